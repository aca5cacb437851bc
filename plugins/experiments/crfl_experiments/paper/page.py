"""Page of a reproduction: every claim of the paper beside what was measured, with a verdict and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crfl_experiments.paper.claims import Verdict  # needed at run time: pydantic reads annotations
from crfl_experiments.paper.readings import BACKDOORED, CLEAN, Point, Reading, format_mean
from crfl_experiments.paper.sound_answers import SoundAnswer, distance_bounds

if TYPE_CHECKING:
    from crfl_experiments.paper.figures import Figure

PICTURES = "pictures/reproduction"
"""Folder of the pictures, from the page."""


@dataclass(frozen=True)
class Finding:
    """Claim with one test of it: what was tested and measured, and the verdict. `reason` if not measured.

    `everything` is the verdict on all test samples, where the paper certifies a part of them.
    """

    quotation: str
    section: str
    tested: str
    measured: str
    verdict: Verdict
    reason: str = ""
    everything: Verdict | None = None

    @property
    def said(self) -> str:
        """Return the verdict, with the reason if nothing was measured."""
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


@dataclass(frozen=True)
class Section:
    """Figure of the paper on one dataset. `picture` is a file in `PICTURES`, empty if nothing was drawn.

    `numbers` are the rows of a table, titles first; `beside` says what the sound certificate was asked and answers,
    `how` what was run.
    """

    name: str
    title: str
    number: str
    dataset: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    picture: str = ""
    numbers: tuple[tuple[str, ...], ...] = ()
    beside: tuple[str, ...] = ()
    how: str = ""


DEVIATIONS = (
    "Models start at zero, the authors' at random. Softmax regression is convex, so this matters in early rounds only.",
    "The radius abstains if p_A <= p_B; the authors' code squares the difference and never abstains.",
    "L_Z uses the clipping norm of the attacked round, as in the text. The authors' code uses 3 on MNIST in every "
    "round (the value of round 10), and 4 on EMNIST, where Table 1 gives 6.5.",
    "tau is that of Table 1; the authors' code certifies with 174 on EMNIST (table: 70) and 35 on LOAN (table: 143).",
    "Weights are n_i / n, as in the paper, and 1 / N on LOAN, as in the authors' code; they differ only there.",
    "The backdoored test set leaves out the target class; the authors' keeps it.",
    "`crfl paper reproduce --authors` follows the authors' code in all of this.",
    "LOAN is a sample of 57,816 real loans, the paper's has 1.8 million: many states have fewer than its batches "
    "of 800, a short last batch is left out, and 5,000 loans are certified instead of 10,000.",
    "T is not in Table 1; it is that of the authors' configs, 100, and 150 on EMNIST.",
    "The paper certifies 5,000 MNIST images; the first 5,000 of the test set, used here, are its harder half. "
    "Columns called *all* are of all 10,000.",
)

RADII = (
    "Radii are those of the certificate `paper`: Corollary 1 of *CRFL: Certifiably Robust Federated Learning "
    "against Backdoor Attacks* (Xie, Chen, Chen, Li; ICML 2021), a reproduction and [not a "
    "proof](certificates.md). Verdicts are computed: a claim holds if every step of its test does. With several "
    "seeds a step holds if an interval of Student's t (one-sided, 95 %) lies above zero, with one seed if the "
    "number does. Tolerances are ours. Numbers are means with standard deviations over seeds; *area* is the area "
    "under certified accuracy."
)

BESIDE = (
    "Lines and columns called *sound* put the same question to the certificate "
    "[`pathwise-linear`](certificates.md), which is a proof: what share of the same test samples is classified "
    "correctly, and as it would have been without the attack, whatever R clients submit in the attacked round? "
    "This covers backdoors of every radius, scale and poison ratio and changed labels, so it is one number for all"
    " r; R = 1 unless a figure says otherwise. Data, N, T, t_adv and the attack are the same. Features and "
    "training are not: [`paper/sweeps`](../plugins/experiments/crfl_experiments/paper/sweeps) holds the settings. "
    "[`examples/certified/search.py`](../examples/certified/search.py) chose them by the certified accuracy on "
    "`reserve.validation`, samples that no client holds and no number here counts; for EMNIST there was no such "
    "search.",
    "The guarantees compare different things: `pathwise-linear` this run with the run that has the same batches "
    "and no attack, the paper all runs with all runs. The sound certificate is run with one seed; the spread of "
    "three seeds for similar settings is [elsewhere](certificates.md#the-strongest-settings).",
)

NOT_ASKED = "*Sound:* omitted (`--no-sound`)."

HOW_TO = """## On your machine

```sh
crfl data fetch mnist
crfl paper reproduce mnist --fast --seeds 1
crfl paper reproduce --seeds 5
```

The second line takes a few minutes, the third an hour or two on two cores. It writes `reproduction/reproduction.md` and
its pictures; runs are in `reproduction/sweeps`, and the same command continues after an interruption. Missing data are
skipped, and the table names the command that fetches them; loans need a file of your own (`crfl data list`). `--list`
names the figures, such as `mnist/sigma`; a dataset or a figure alone is a name as well. `--no-sound` omits the sound
lines, `--authors` follows the authors' code where it differs from the paper, and `--set KEY=VALUE` changes every run.
`paper/sweeps` holds the values that each figure varies, in one file per dataset
([examples/paper](../examples/paper/README.md))."""


def page(sections: Sequence[Section]) -> str:
    """Write the page in Markdown."""
    return "\n".join(page_lines(sections))


def page_lines(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the page, line by line."""
    yield "# The paper, figure by figure"
    yield ""
    yield "Written by `crfl paper reproduce`. The number of seeds is below each figure."
    yield ""
    yield RADII
    yield ""
    yield from verdict_table(sections)
    if any(section.beside for section in sections):
        yield ""
        yield "## Sound certificates beside it"
        for paragraph in BESIDE:
            yield ""
            yield paragraph
    yield ""
    yield "## Known deviations"
    yield ""
    for deviation in DEVIATIONS:
        yield f"- {deviation}"
    yield ""
    yield HOW_TO
    for section in sections:
        if section.picture:
            yield from figure_lines(section)


def verdict_table(sections: Sequence[Section]) -> Iterator[str]:
    """Yield a table with a row for every claim."""
    both = any(finding.everything for section in sections for finding in section.findings)
    yield from markdown_table(
        [
            ("figure", "data", "tested", "verdict", *(["all samples"] if both else [])),
            *(
                (
                    f"{section.title} ({section.number})",
                    section.dataset,
                    finding.tested,
                    finding.said,
                    *([finding.everything or ""] if both else []),
                )
                for section in sections
                for finding in section.findings
            ),
        ]
    )


def figure_lines(section: Section) -> Iterator[str]:
    """Yield the lines of a figure that was measured."""
    yield ""
    yield f"## {section.title}, {section.dataset} ({section.number})"
    yield ""
    yield f"![{section.title}]({PICTURES}/{section.picture})"
    if section.how:
        yield ""
        yield f"Measured with {section.how}."
    if section.numbers:
        yield ""
        yield from markdown_table(section.numbers)
    for finding in section.findings:
        yield ""
        yield f"> {finding.quotation}"
        yield f"> ({finding.section})"
        yield ""
        yield f"- tested: {finding.tested}"
        yield f"- measured: {finding.measured}"
        yield f"- verdict: **{finding.said}**"
        if finding.everything:
            yield f"- on all test samples: {finding.everything}"
    for paragraph in (*(section.beside or (NOT_ASKED,)), " ".join(section.notes)):
        yield ""
        yield paragraph


def markdown_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown; the first row are titles."""
    titles, *others = rows
    for row in (titles, ["---"] * len(titles), *others):
        yield f"| {' | '.join(row)} |"


Row = tuple[str, ...]
ALL = "all"
"""The column of all test samples."""


@dataclass(frozen=True)
class Column:
    """Number of every cell; `doubled` if that of all test samples stands beside it."""

    title: str
    of: Callable[[Reading], float]
    doubled: bool = True


COLUMNS = (
    Column("accuracy of the model", lambda one: one.base_accuracy),
    Column("certified at r = 0", lambda one: float(one.samples().accuracy([0.0])[0])),
    Column("area", lambda one: one.samples().area),
    Column("largest radius", lambda one: one.samples().reach, doubled=False),
)
BACKDOOR_COLUMNS = (
    Column("clean area", lambda one: one.samples().without(one.target).area),
    Column("backdoored area", lambda one: one.samples(BACKDOORED).without(one.target).area),
)
DISTANCE_COLUMNS = (
    Column("distance in round t_adv", lambda one: float(one.distances[0]), doubled=False),
    Column("in the last round", lambda one: float(one.distances[-1]), doubled=False),
)


def number_table(figure: Figure, points: Sequence[Point], sound: Sequence[SoundAnswer]) -> tuple[Row, ...]:
    """Return the numbers of a figure; the first row are titles."""
    if figure.name == "closeness":
        return distance_table(figure, points, sound)
    columns = BACKDOOR_COLUMNS if figure.sources else COLUMNS
    both = any(
        one.first is not None and one.first < test_set_size(one) for point in points for one in point.readings.values()
    )
    titles: list[str] = [figure.symbol or "figure"]
    for column in columns:
        titles += [column.title, ALL] if both and column.doubled else [column.title]
    titles += (["sound, at every r", ALL] if both else ["sound, at every r"]) if sound else []
    return tuple(titles), *(number_row(figure, point, columns, sound, both) for point in points)


def number_row(
    figure: Figure, point: Point, columns: Sequence[Column], sound: Sequence[SoundAnswer], both: bool
) -> Row:
    """Return the numbers of a point."""
    found = [" ".join(filter(None, (point.figure if figure.sources else "", point.series, f"{point.value:g}")))]
    for column in columns:
        found.append(format_mean(point.of(column.of)))
        if both and column.doubled:
            found.append(format_mean(point.everything.of(column.of)))
    answer = next((one for one in sound if one.value in (None, point.value)), None)
    test_set = BACKDOORED if figure.sources else CLEAN
    if answer is not None:
        found += [format_mean(one.share(test_set)) for one in ((answer, answer.everything) if both else (answer,))]
    elif sound:
        found += [""] * (2 if both else 1)
    return tuple(found)


def distance_table(figure: Figure, points: Sequence[Point], sound: Sequence[SoundAnswer]) -> tuple[Row, ...]:
    """Return the distances to the clean model and the sound bounds.

    No attack exceeds the bounds.
    """
    bounds = ("sound bound in round t_adv", "in the last round") if sound else ()
    rows = [(figure.symbol, *(column.title for column in DISTANCE_COLUMNS), *bounds)]
    for point in points:
        found = [f"{point.value:g}", *(format_mean(point.of(column.of)) for column in DISTANCE_COLUMNS)]
        for answer in sound:
            limits = distance_bounds(answer, int(point.value))
            found += [format_mean(list(limits[:, place])) for place in (0, -1)]
        rows.append(tuple(found))
    return tuple(rows)


def test_set_size(one: Reading) -> int:
    """Return the number of samples of the clean test set."""
    return len(one.everything.samples().labels)
