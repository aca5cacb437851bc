"""`crfl demo`: a federation without a defence, with one, and with two proofs, in a minute."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.arguments import JsonOption, QuietOption

if TYPE_CHECKING:
    from crfl_core import RunResult
    from crfl_core.reporting.metrics import Curve

CONFIG = Path(__file__).with_name("demo.toml")
TRIGGER_NORM = 0.25
"""Change of an image that the last proof covers, where pixels are between 0 and 1."""
CHART_LINES = 5
BAR_WIDTH = 6
Colour = Callable[[str], str]
EIGHTHS = " ▁▂▃▄▅▆▇█"
EXPLORE = 10.0
"""Seconds for the explorer of the report."""

Out = Annotated[Path, typer.Option("--out", help="Folder for the four runs of the demo.")]


@dataclass(frozen=True)
class DemoRun:
    """One federation of the story: its name, and its difference from the undefended one."""

    name: str
    what: str
    overrides: tuple[str, ...] = ()


DEMO_RUNS = (
    DemoRun("undefended", "averaging"),
    DemoRun("defended", "RFA", ('aggregation=["rfa"]',)),
    DemoRun("certified", "vote of groups", ("groups={count=10}", 'certificates=["group-vote"]')),
    DemoRun(
        "triggered",
        "vote on pixels",
        (
            "groups={count=10}",
            'certificates=["backdoor"]',
            'model.features=[{type="unit-ball", radius=4.0}]',
            "training.learning_rate=10.0",
            f"evaluation.radii=[{TRIGGER_NORM}]",
        ),
    ),
)
CERTIFIED = 2
"""Place of the federation that the chart and the report show."""


def demo(out: Out = Path("runs/demo"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """See a backdoor, a defence and a proof, in a minute.

    The same federation is attacked without a defence, with one, and with a certificate.
    """
    if not quiet:
        passing("starting")
    import crfl_reports.pages
    from crfl_core import run
    from crfl_core.cli.output import program_name, progress, redirect_plugin_output, use_colours
    from crfl_reports.commands.pages import write_with_progress

    results: list[RunResult] = []
    for number, row in enumerate(DEMO_RUNS, 1):
        trackers = progress(quiet, f"{number}/{len(DEMO_RUNS)} {row.name}")
        results.append(run(CONFIG, overrides=row.overrides, out=out / row.name, force=True, trackers=trackers))
    passing("")
    if json:
        from pydantic_core import to_json

        echo(to_json({row.name: result.metrics for row, result in zip(DEMO_RUNS, results, strict=True)}, indent=2))
        return
    if quiet:
        crfl_reports.pages.write_report(out / "certified", explore=EXPLORE)
        echo(str(out))
        return
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    for line in story_lines(results, plain=plain, colours=use_colours()):
        typer.echo(line)
    with redirect_plugin_output():
        report = write_with_progress(out / "certified", explore=EXPLORE)
    for line in ending(report, program_name()):
        echo(line)


def ending(report: Path, program: str = "crfl") -> Iterator[str]:
    """Yield the path of the report, and commands to paste next."""
    following = {
        f"{program} open {report.parent}": "the report, in a browser",
        f"{program} show {report.parent}": "what is proved",
        f"{program} advise": "a config for your own question",
        f"{program} --help": "all commands",
    }
    width = max(map(len, following))
    yield ""
    yield f"Report: {report}"
    for number, (command, what) in enumerate(following.items()):
        yield f"{'' if number else 'Next:':<6}{command:<{width}}  {what}"


def story_lines(results: Sequence[RunResult], *, plain: bool, colours: bool = False) -> Iterator[str]:
    """Yield the story, line by line.

    With colours, successful attacks are red and proofs green.
    """
    red = partial(style, colour="red") if colours else str
    green = partial(style, colour="green") if colours else str
    yield "Ten clients learn to read digits. One of them plants a backdoor: an image with a"
    yield "small mark is to be taken for a 0."
    yield ""
    yield from table(results, red, green)
    yield ""
    curve = clean_curve(results[CERTIFIED])
    assert curve is not None
    yield "Proved: read right, whatever this many of the ten clients do, in every round:"
    yield from map(green, chart(curve.certified_accuracy, [f"{radius:g}" for radius in curve.radii], plain=plain))
    yield ""
    yield "The defence stopped one attack; the proof covers any by that many clients."
    yield f"The last row covers any trigger of norm {TRIGGER_NORM} on the image as well."


def style(text: str, colour: str) -> str:
    """Return a text in a colour of the terminal."""
    return typer.style(text, fg=colour)


def table(results: Sequence[RunResult], red: Colour, green: Colour) -> Iterator[str]:
    """Yield a table row for each federation.

    A row shows the accuracy, the success of the backdoor, and what is proved against 1, 2 and 3 clients.
    """
    yield f"{'':28}{'accuracy':>8}{'backdoor':>10}   proved against 1, 2, 3 clients"
    for row, result in zip(DEMO_RUNS, results, strict=True):
        metrics = result.metrics
        assert metrics.backdoor is not None
        success = f"{percent(metrics.backdoor.success_rate):>10}"
        backdoor = red(success) if metrics.backdoor.success_rate > 0.5 else success
        curve = clean_curve(result)
        proved = proof_text(curve) if curve is None else green(proof_text(curve))
        yield f"  {row.name:<11}{row.what:<15}{percent(metrics.accuracy):>8}{backdoor}   {proved}"


def proof_text(curve: Curve | None) -> str:
    """Write the accuracy proved against 1, 2 and 3 clients."""
    if curve is None:
        return "nothing"
    if curve.by_clients:
        return "  ".join(percent(curve.by_clients[number][curve.radii.index(TRIGGER_NORM)]) for number in (1, 2, 3))
    known = dict(zip(curve.radii, curve.certified_accuracy, strict=True))
    return "  ".join(percent(known[number]) for number in (1, 2, 3))


def clean_curve(result: RunResult) -> Curve | None:
    """Return the certified curve of the clean test images.

    The result is None if the run has none.
    """
    return next((curve for curve in result.metrics.curves if curve.test_set == "clean"), None)


def percent(share: float) -> str:
    """Write a share in percent.

    >>> percent(0.9359)
    '93.6 %'
    """
    return f"{share:.1%}".replace("%", " %")


def chart(shares: Sequence[float], labels: Sequence[str], *, plain: bool = False) -> Iterator[str]:
    """Draw shares between 0 and 1 as bars with labels below.

    With `plain` the bars are ASCII characters.

    >>> print("\\n".join(chart([1.0, 0.5], ["0", "1"], plain=True)))
    100 %  ####
           ####
           ####    ####
           ####    ####
      0 %  ####    ####
            0       1
    """
    for level in reversed(range(CHART_LINES)):
        axis = {CHART_LINES - 1: "100 %", 0: "  0 %"}.get(level, "     ")
        bars = (block(share * CHART_LINES - level, plain=plain) * (BAR_WIDTH - 2) for share in shares)
        yield f"{axis}  {'    '.join(bars)}".rstrip()
    yield " " * 7 + "    ".join(f"{label:^{BAR_WIDTH - 2}}" for label in labels).rstrip()


def block(height: float, *, plain: bool) -> str:
    """Return one character of a bar, filled as far as `height`."""
    filled = min(1.0, max(0.0, height))
    return ("#" if filled >= 0.5 else " ") if plain else EIGHTHS[round(filled * 8)]
