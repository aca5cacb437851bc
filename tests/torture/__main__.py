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
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--faults", type=int, default=300, help="at least so many")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random, but for moments")
    parser.add_argument("--processes", type=int, default=2, help="cases side by side")
    parser.add_argument("--case", type=int, help="only this one")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what runs in the background ignore it
    folder = Path(tempfile.mkdtemp(prefix="crfl-torture-")).resolve()
    for name in ("CRFL_CACHE_DIR", "CRFL_CONFIG_DIR"):
        os.environ[name] = str(folder / name.lower())

    from tests.torture import disks

    mounting = disks.may_mount()  # before anything starts a thread

    from tests.torture import scenes
    from tests.torture.campaign import Campaign, table

    began = time.monotonic()
    print(f"preparing in {folder}", file=sys.stderr)
    campaign = Campaign(folder, scenes.build(folder), options.seed, mounting)
    print(f"prepared in {time.monotonic() - began:.0f} s", file=sys.stderr)
    results, bad = [], 0
    cases = (
        campaign.results(options.faults, options.processes) if options.case is None else [campaign.case(options.case)]
    )
    for result in cases:
        results.append(result)
        bad += bool(result.problems)
        for problem in result.problems:
            print(f"case {result.number}, {result.scene}, {result.struck}: {problem}", flush=True)
    print(table(results))
    count = sum(len(result.struck) for result in results)
    print(f"{count} faults in {len(results)} cases, {time.monotonic() - began:.0f} s: {bad} lost or different")
    if not mounting:
        print("no disk ran full: this user may not mount one")
    if bad:
        print(f"what they left behind is in {folder}; repeat one with --seed {options.seed} --case NUMBER")
    else:
        shutil.rmtree(folder)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
