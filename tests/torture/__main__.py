"""`python -m tests.torture --faults 300 --seed 0`: what disturbs runs, and that nothing is lost or different."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

for _name in ("OMP", "MKL", "OPENBLAS"):  # forked children have one thread, so their parent must never have had more
    os.environ[f"{_name}_NUM_THREADS"] = "1"


def main() -> int:
    """The campaign, a table of it, and a status that says whether all was well."""
    options = parsed()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what runs in the background ignore it
    folder = Path(tempfile.mkdtemp(prefix="crfl-torture-")).resolve()
    os.environ["CRFL_CACHE_DIR"] = str(folder / "cache")

    from tests.torture import disks

    mounting = disks.may_mount()  # before anything starts a thread

    from tests.torture import careless, scenes
    from tests.torture.campaign import Campaign, table

    if options.careless:
        careless.write_in_place()
    began = time.monotonic()
    campaign = Campaign(folder, scenes.build(folder), options.seed, mounting)
    numbers = options.case
    results = []
    for result in map(campaign.case, numbers) if numbers else campaign.results(options.faults, options.processes):
        results.append(result)
        for problem in result.problems:
            print(f"case {result.number}, {result.scene}, {result.struck}: {problem}", flush=True)
    print(table(results))
    count, bad = sum(len(result.struck) for result in results), sum(bool(result.problems) for result in results)
    print(f"{count} faults in {len(results)} cases, {time.monotonic() - began:.0f} s: {bad} lost or different")
    if not mounting:
        print("no disk ran full: this user may not mount one")
    if bad:
        print(f"what they left behind is in {folder}; repeat one with --seed {options.seed} --case NUMBER")
    else:
        shutil.rmtree(folder)
    return int(bad > 0)


def parsed() -> argparse.Namespace:
    """What people may ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--faults", type=int, default=300, help="at least this many")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random, but for moments")
    parser.add_argument("--processes", type=int, default=2, help="cases side by side")
    parser.add_argument("--case", type=int, nargs="+", help="only these, by their numbers")
    parser.add_argument("--careless", action="store_true", help="write files in place, to see that it is noticed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
