"""Every attack of examples/attacks against every defence, as Markdown tables: `python examples/matrix.py`.

A cell says what became of the attacked model: the attack success rate on backdoored inputs, then its
accuracy, in percent. In brackets stands the same for the clean twin, trained with the same defence and seeds but
without the attack, so that an ordinary error does not count as a success. Untargeted attacks have an accuracy only.
Every number is a mean over the seeds; with `--ranges`, the smallest and the largest follow it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

from crfl import AttackEffect, RunConfig, RunResult, attack_effect, load_config, run

PRESETS = Path(__file__).parent / "attacks"
ATTACKS = tuple(sorted(path.stem for path in PRESETS.glob("*.toml") if path.stem not in ("base", "mnist")))
"""All that run on the embedded digits: base.toml has no attack, mnist.toml needs files."""

DEFENCES: dict[str, Sequence[str]] = {
    "none": (),
    "norm-bound + weak-noise": (
        "aggregation=[{type='norm-bound', bound=0.5}, {type='weak-noise', std=0.002}, 'fedavg']",
    ),
    "update-cap": ("aggregation=[{type='update-cap', bound=0.5}, 'fedavg']",),
    "rfa": ("aggregation=['rfa']",),
    "krum": ("aggregation=[{type='krum', f=4}]",),
    "multi-krum": ("aggregation=[{type='multi-krum', f=4}]",),
    "median": ("aggregation=['median']",),
    "trimmed-mean": ("aggregation=[{type='trimmed-mean', trim=4}]",),
    "foolsgold": ("aggregation=['foolsgold']",),
    "clip + noise": ("server={clip_norm=4.0, noise_std=0.05}",),
    "fltrust": ("reserve={root=100}", "aggregation=['fltrust']"),
    "flame": ("aggregation=[{type='flame', noise=0.001}]",),
    "dnc": ("aggregation=[{type='dnc', f=4}]",),
    "sign-majority": ("aggregation=[{type='sign-majority', step=0.05}]",),
    "per-layer krum": ("aggregation=[{type='per-layer', rule={type='krum', f=4}}]",),
    "ten groups": ("groups={count=10}",),
}
"""What each defence changes in a config. "clip + noise" is the paper's; the last one has no rule but votes."""

COLUMNS = 8
"""How many defences fit into a table that people can read."""

QUICK = ("certificates=[]", "storage.figures=[]", "engine.threads=1")
"""Only training counts here."""


def effects(
    attacks: Iterable[str],
    defences: Iterable[str],
    folder: Path,
    overrides: Sequence[str] = (),
    twins: dict[str, RunResult] | None = None,
    seeds: Iterable[int] = (0,),
) -> Iterator[tuple[str, list[AttackEffect]]]:
    """Return what every attack does under every defence, seed by seed, beside the clean twin that all attacks share."""
    twins = {} if twins is None else twins
    for attack, defence in product(attacks, defences):
        found = []
        for seed in seeds:
            changes = (*QUICK, *DEFENCES[defence], f"seed={seed}", *overrides)
            config = load_config(PRESETS / f"{attack}.toml", overrides=changes).config
            attacked = run(config, out=folder / f"{attack}-{defence}", force=True)
            clean = clean_twin(config, folder / f"clean-{len(twins)}", twins)
            found.append(attack_effect(attacked, clean))
        yield attack, found


def clean_twin(config: RunConfig, path: Path, known: dict[str, RunResult]) -> RunResult:
    """Return the same run without the attack, trained once for all attacks."""
    twin = config.without_attack().model_copy(update={"name": "clean"})
    key = twin.model_dump_json()
    if key not in known:
        known[key] = run(twin, out=path, force=True)
    return known[key]


def cell(effects: Sequence[AttackEffect], ranges: bool) -> str:
    """Success and accuracy in percent, and the clean twin's in brackets."""
    accuracy = beside([e.accuracy for e in effects], [e.clean_accuracy for e in effects], ranges)
    pairs = [(e.success_rate, e.clean_rate) for e in effects if e.success_rate is not None and e.clean_rate is not None]
    if not pairs:
        return accuracy
    successes, clean = zip(*pairs, strict=True)
    return f"{beside(successes, clean, ranges)}, {accuracy}"


def beside(attacked: Sequence[float], clean: Sequence[float], ranges: bool) -> str:
    """Rates in percent, and those of the clean twins."""
    return f"{spread(attacked, ranges)} ({spread(clean, ranges)})"


def spread(rates: Sequence[float], ranges: bool) -> str:
    """Return the mean of some rates in percent, and their range if `ranges`.

    >>> spread([0.5, 0.7], True), spread([0.5, 0.7], False)
    ('60 [50..70]', '60')
    """
    mean = f"{100 * fmean(rates):.0f}"
    return f"{mean} [{100 * min(rates):.0f}..{100 * max(rates):.0f}]" if ranges else mean


Found = Mapping[tuple[str, str], Sequence[AttackEffect]]
"""Attack and defence, and their effects seed by seed."""


def column(attacks: Sequence[str], overrides: Sequence[str], defence: str, seed: int) -> list[AttackEffect]:
    """Return what every attack does under one defence with one seed."""
    with tempfile.TemporaryDirectory() as folder:
        return [effect for _, (effect,) in effects(attacks, [defence], Path(folder), overrides, seeds=[seed])]


def matrix(
    attacks: Sequence[str], defences: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], jobs: int
) -> Found:
    """Compute all effects, several defences and seeds at a time."""
    columns = list(product(defences, seeds))
    # Not by fork: a forked process must not use the threads that PyTorch has started.
    with ProcessPoolExecutor(min(jobs, len(columns)), get_context("spawn")) as pool:
        done = pool.map(partial(column, attacks, overrides), *zip(*columns, strict=True))
        found: dict[tuple[str, str], list[AttackEffect]] = {}
        for (defence, _), answers in zip(columns, done, strict=True):
            for attack, effect in zip(attacks, answers, strict=True):
                found.setdefault((attack, defence), []).append(effect)
    return found


def tables(found: Found, attacks: Sequence[str], defences: Sequence[str], *, ranges: bool) -> str:
    """Return one row per attack and one column per defence, in tables that fit a page."""
    parts = [defences[first : first + COLUMNS] for first in range(0, len(defences), COLUMNS)]
    return "\n\n".join(
        "\n".join(
            [
                f"| attack | {' | '.join(part)} |",
                f"| --- |{' --- |' * len(part)}",
                *(f"| {name} | {' | '.join(cell(found[name, each], ranges) for each in part)} |" for name in attacks),
            ]
        )
        for part in parts
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, names in (("--attacks", ATTACKS), ("--defences", tuple(DEFENCES))):
        parser.add_argument(option, nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another dataset, more rounds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="0 1 2 unless given")
    parser.add_argument("--ranges", action="store_true", help="the smallest and the largest of all seeds as well")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that train at the same time")
    chosen = parser.parse_args(arguments)
    found = matrix(chosen.attacks, chosen.defences, chosen.seeds, chosen.set, chosen.jobs)
    print(tables(found, chosen.attacks, chosen.defences, ranges=chosen.ranges))


if __name__ == "__main__":
    main()
