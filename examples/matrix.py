"""Every attack of examples/attacks against every defence, as one Markdown table: `python examples/matrix.py`.

A cell says what became of the attacked model: the attack success rate on backdoored inputs, then its
accuracy, in percent. In brackets stands the same for the clean twin, trained with the same defence and seeds but
without the attack, so that nobody takes an ordinary error for a success. Untargeted attacks have an accuracy only.
With several `--seeds` every number is a mean, followed by the smallest and the largest.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from crfl_core import AttackEffect, RunConfig, RunResult, attack_effect, load_config, run

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
}
"""What each defence changes in a config. The last one is the paper's."""

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
    """What every attack does under every defence, seed by seed, beside the clean twin, which all attacks share."""
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
    """The same run without the attack; trained once, however many attacks ask for it."""
    twin = config.without_attack().model_copy(update={"name": "clean"})
    key = twin.model_dump_json()
    if key not in known:
        known[key] = run(twin, out=path, force=True)
    return known[key]


def cell(effects: Sequence[AttackEffect]) -> str:
    """Success and accuracy in percent, and the clean twin's in brackets."""
    accuracy = beside([e.accuracy for e in effects], [e.clean_accuracy for e in effects])
    pairs = [(e.success_rate, e.clean_rate) for e in effects if e.success_rate is not None and e.clean_rate is not None]
    if not pairs:
        return accuracy
    successes, clean = zip(*pairs, strict=True)
    return f"{beside(successes, clean)}, {accuracy}"


def beside(attacked: Sequence[float], clean: Sequence[float]) -> str:
    """Rates in percent, and those of the clean twins."""
    return f"{spread(attacked)} ({spread(clean)})"


def spread(rates: Sequence[float]) -> str:
    """A rate in percent; of several the mean and the range.

    >>> spread([0.5, 0.7]), spread([0.5])
    ('60 [50..70]', '50')
    """
    mean = f"{100 * fmean(rates):.0f}"
    return mean if len(rates) == 1 else f"{mean} [{100 * min(rates):.0f}..{100 * max(rates):.0f}]"


def table(found: Iterable[tuple[str, list[AttackEffect]]], defences: Sequence[str]) -> str:
    """One row per attack, one column per defence."""
    rows: dict[str, list[str]] = {}
    for attack, effects in found:
        rows.setdefault(attack, []).append(cell(effects))
    lines = ["| attack | " + " | ".join(defences) + " |", "| --- |" + " --- |" * len(defences)]
    return "\n".join(lines + [f"| {attack} | " + " | ".join(cells) + " |" for attack, cells in rows.items()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, names in (("--attacks", ATTACKS), ("--defences", tuple(DEFENCES))):
        parser.add_argument(option, nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another dataset, more rounds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="several: mean and range")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = effects(chosen.attacks, chosen.defences, Path(folder), chosen.set, seeds=chosen.seeds)
        print(table(found, chosen.defences))


if __name__ == "__main__":
    main()
