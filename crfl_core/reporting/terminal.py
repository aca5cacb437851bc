"""Summary of a finished run on one screen: accuracy, guarantees, and the assumptions behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from crfl_core.certification.levels import LEVEL_WORDS
from crfl_core.reporting.verdict import attack_text, run_verdict, statement_text

if TYPE_CHECKING:
    from crfl_core.reporting.metrics import CollectiveCurve, Curve, Metrics

SCREEN_LINES = 25
"""The screen that a summary has: 80 x 24 with a prompt."""
REMARK_LINES = 6
"""Lines that are kept for remarks."""
CELL_COLUMNS = 5


def show_summary(console: Console, name: str, metrics: Metrics, audit: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Print a summary of a finished run on one screen."""
    head = [run_verdict(metrics, audit), "", *model_lines(name, metrics), ""]
    end = [f"run directory: {path}", f"more: crfl show {path} --full, crfl open {path}"]
    show_guarantees(console, metrics.curves, audit, head, end, metrics.collective)


def show_guarantees(
    console: Console,
    curves: Sequence[Curve],
    audit: Sequence[Mapping[str, Any]],
    head: Sequence[str],
    end: Sequence[str],
    collective: Sequence[CollectiveCurve] = (),
) -> None:
    """Print what is certified on the clean test set.

    The lines of `head` stand above it, and those of `end` below. Rows that do not fit are counted.
    """
    remarks = [*refusal_remarks(audit), *condition_remarks(curves), *list_remarks(audit), *label_remarks(curves)]
    blocks = list(blocks_of(curves))
    together = collective_block(collective)
    room = SCREEN_LINES - height((*head, *end), console.width) - (0 if together is None else len(together.rows) + 3)
    if height(remarks, console.width) + sum(len(block.rows) + 1 for block in blocks) > room - 3:
        remarks = [shorten(remark, console.width) for remark in remarks]
    tables, left_out = fit_blocks(blocks, room - min(REMARK_LINES, height(remarks, console.width)) - 3)
    for number, line in enumerate(head):
        console.print(Text(line, style="" if number else "bold"))
    if tables:
        samples = next(curve.samples for curve in curves if curve.test_set == "clean")
        console.print(Text(f"certified accuracy on {samples} clean test samples, by", style="bold"))
    names = max((len(row.certificate) for table in tables for row in table.rows), default=0)
    width = max(names + 2, *(len(words.heading) for words in LEVEL_WORDS.values()))
    for table in tables:
        console.print(block_table(table, width, console.width))
        room -= len(table.rows) + 1
    if left_out:
        console.print(Text(f"{left_out} more row{'s' if left_out > 1 else ''} with --full"))
    if together is not None:
        console.print(Text("collective certified accuracy: one set of clients attacks all samples, by", style="bold"))
        console.print(block_table(together, width, console.width))
        for sentence in collective_sentences(collective):
            console.print(Text(sentence), soft_wrap=True)
    show_remarks(console, remarks, room - 3)
    for line in end:
        console.print(Text(line), soft_wrap=True)


def show_remarks(console: Console, remarks: Sequence[str], room: int) -> None:
    """Print as many remarks as fit, and how many more there are."""
    left = list(remarks)
    while left and line_height(left[0], console.width) <= room:
        room -= line_height(left[0], console.width)
        console.print(Text(left.pop(0), style="yellow"))
    if left:
        console.print(Text(f"{len(left)} more remark{'s' if len(left) > 1 else ''} with --full", style="yellow"))


def fit_blocks(blocks: Sequence[Block], room: int) -> tuple[list[Block], int]:
    """Return the first rows of all blocks that fit.

    Each block is under a heading. Also return how many rows do not fit.
    """
    kept = []
    left_out = 0
    for block in blocks:
        rows = block.rows[: max(0, room - 1)]
        left_out += len(block.rows) - len(rows)
        if rows:
            kept.append(Block(block.level, block.radii, rows))
            room -= len(rows) + 1
    return kept, left_out


def height(lines: Iterable[str], width: int) -> int:
    """Return how many lines of a terminal the given lines take."""
    return sum(line_height(line, width) for line in lines)


def line_height(line: str, width: int) -> int:
    """Return about how many lines of a terminal one line takes.

    Words are not broken.
    """
    return max(1, -(-len(line) // max(1, width - 8)))


def model_lines(name: str, metrics: Metrics) -> Iterator[str]:
    """Yield what was trained, its accuracy, and the success of the attack."""
    sizes = metrics.partition.sizes
    samples = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    yield f"{name}: {len(sizes)} clients with {samples} samples each"
    yield f"attack            {attack_text(metrics.attackers, metrics.partition.clients)}"
    yield f"accuracy          {format_share(metrics.accuracy)}"
    if metrics.voting == "condorcet":
        yield "vote of groups    Condorcet: the winner beats every other class in their rankings"
    if metrics.backdoor is not None:
        backdoor = metrics.backdoor
        clean = f"class {backdoor.target}; {format_share(backdoor.clean_rate)} without the trigger"
        yield f"backdoor success  {format_share(backdoor.success_rate)}  ({clean})"
    if metrics.trusted_baseline is not None:
        own = metrics.trusted_baseline
        most = metrics.clients_above_baseline()
        more = "nothing more is certified" if most is None else "more is certified only if no client is malicious"
        if most:
            more = f"more is certified up to {most:g} malicious client{'' if most == 1 else 's'}"
        yield f"server alone      {format_share(own.accuracy)}  (its {own.samples} labelled samples; {more})"
    if metrics.attackers is not None and metrics.attackers.mean_weight_share is not None:
        yield f"attackers' weight {format_share(metrics.attackers.mean_weight_share)}"


@dataclass(frozen=True)
class SummaryRow:
    """One line of a table: a certificate, the assumed rounds of attacks, and its share at every radius."""

    certificate: str
    rounds: str
    shares: tuple[float | None, ...]


@dataclass(frozen=True)
class Block:
    """The guarantees of all certificates at one level, at the radii of them all."""

    level: str
    radii: tuple[float, ...]
    rows: tuple[SummaryRow, ...]


def blocks_of(curves: Iterable[Curve]) -> Iterator[Block]:
    """Yield the certified accuracy on the clean test set, level by level."""
    clean = [curve for curve in curves if curve.test_set == "clean"]
    for level in LEVEL_WORDS:
        if of_level := [curve for curve in clean if curve.level == level]:
            radii = tuple(sorted({radius for curve in of_level for radius in curve.radii}))
            yield Block(level, radii, tuple(row for curve in of_level for row in rows_of(curve, radii)))


def collective_block(curves: Sequence[CollectiveCurve]) -> Block | None:
    """Return collective certified accuracy as one block; None if there is none."""
    if not curves:
        return None
    clients = tuple(sorted({number for curve in curves for number in curve.clients}))
    known = [dict(zip(curve.clients, curve.collective_accuracy, strict=True)) for curve in curves]
    rows = (
        SummaryRow(
            curve.certificate + ("+" if curve.conditional else ""), curve.rounds, tuple(map(shares.get, clients))
        )
        for curve, shares in zip(curves, known, strict=True)
    )
    return Block("client", tuple(map(float, clients)), tuple(rows))


def collective_sentences(curves: Sequence[CollectiveCurve]) -> Iterator[str]:
    """Yield the statement of each curve for one number of clients.

    It is the largest at which half of the samples stay right. If fewer than half always do, it is the smallest number.
    """
    for curve in curves:
        shares = zip(curve.clients, curve.collective_accuracy, strict=True)
        half = [number for number, share in shares if share is not None and share >= 0.5]
        yield f"{curve.certificate}: {curve.sentence(max(half, default=curve.clients[0]))}"


def rows_of(curve: Curve, radii: Sequence[float]) -> Iterator[SummaryRow]:
    """Yield the rows of a curve.

    One row is for attacks in any round, if computed. Another is for the rounds of the attack, if it differs.
    """
    name = curve.certificate + ("*" if curve.label else "") + ("+" if curve.conditional else "")
    if curve.any_round_accuracy:
        unknown = "any round" if curve.rounds.startswith("round ") else "any such rounds"
        yield SummaryRow(name, unknown, shares_at(radii, curve.radii, curve.any_round_accuracy))
    if curve.any_round_accuracy != curve.certified_accuracy:
        yield SummaryRow(name, curve.rounds, shares_at(radii, curve.radii, curve.certified_accuracy))


def shares_at(radii: Sequence[float], known: Sequence[float], shares: Sequence[float]) -> tuple[float | None, ...]:
    """Return a falling curve at other radii than its own.

    It is None where it is not known.

    >>> shares_at([0, 1, 2, 3], [0, 2], [0.9, 0.9]), shares_at([0, 1, 2], [0, 2], [0.9, 0.5])
    ((0.9, 0.9, 0.9, None), (0.9, None, 0.5))
    """
    found: list[float | None] = []
    for radius in radii:
        above = [share for place, share in zip(known, shares, strict=True) if place >= radius]
        below = [share for place, share in zip(known, shares, strict=True) if place <= radius]
        found.append(above[0] if above and below and above[0] == below[-1] else None)
    return tuple(found)


def block_table(block: Block, name: int, width: int) -> Table:
    """Return the table of a level, as wide as the terminal.

    Equal columns are joined, and surplus ones are left out.
    """
    when = max(len("every round"), *(len(row.rounds) for row in block.rows))
    columns = choose_columns(list(join_columns(block)), max(1, (width - name - when - 2) // (CELL_COLUMNS + 1)))
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(Text(LEVEL_WORDS[block.level].heading), width=name, no_wrap=True)
    table.add_column(width=when, no_wrap=True)
    for title, _ in columns:
        table.add_column(title, justify="right", min_width=CELL_COLUMNS, no_wrap=True)
    for number, row in enumerate(block.rows):
        cells = ["" if (found := row.shares[place]) is None else format_share(found) for _, place in columns]
        again = number > 0 and block.rows[number - 1].certificate == row.certificate
        table.add_row(Text("" if again else f"  {row.certificate}"), Text(row.rounds), *cells)
    return table


def join_columns(block: Block) -> Iterator[tuple[str, int]]:
    """Yield the columns of a block.

    A column has a title, and the last of the radii between which no row changes.
    """
    places = range(len(block.radii))
    for _, same in groupby(places, key=lambda place: tuple(row.shares[place] for row in block.rows)):
        alike = list(same)
        last = block.radii[alike[-1]]
        radius = "any" if last == float("inf") else f"{last:g}".removeprefix("0") or "0"
        yield (radius if len(alike) == 1 or radius == "any" else f"to {radius}"), alike[-1]


def choose_columns(columns: Sequence[tuple[str, int]], fitting: int) -> list[tuple[str, int]]:
    """Choose as many columns as fit: the first ones, and the last.

    >>> choose_columns([("0", 0), ("1", 1), ("2", 2), ("9", 3)], 3)
    [('0', 0), ('1', 1), ('9', 3)]
    """
    if len(columns) <= fitting:
        return list(columns)
    return [*columns[: fitting - 1], columns[-1]]


def refusal_remarks(audit: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the refused certificates, and why."""
    for entry in audit:
        for name, reason in entry["refused"].items():
            yield f"refused: {name}: {reason}"


def condition_remarks(curves: Iterable[Curve]) -> Iterator[str]:
    """Yield the conditions of the numbers.

    A condition appears once for all certificates that share it.
    """
    names: dict[str, list[str]] = {}
    for curve in curves:
        for condition in curve.conditional:
            names.setdefault(condition, []).append(curve.certificate)
    for condition, certificates in names.items():
        yield f"+ conditional: {condition} ({', '.join(dict.fromkeys(certificates))})"


def list_remarks(audit: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the assumptions that certificates declare and nothing checks."""
    users: dict[str, list[str]] = {}
    for entry in audit:
        for check in entry["checks"]:
            if check["status"] == "declared" and entry["certificate"] not in entry["refused"]:
                users.setdefault(check["name"], []).append(entry["certificate"])
    if users:
        found = (f"{name} ({', '.join(certificates)})" for name, certificates in users.items())
        yield f"not checked: {'; '.join(found)}"


def label_remarks(curves: Iterable[Curve]) -> Iterator[str]:
    """Yield the labels of certificates, then their statements.

    The labelled certificates prove nothing. The statements are those of the others.
    """
    labels = dict.fromkeys((curve.certificate, curve.label) for curve in curves if curve.label)
    for certificate, label in labels:
        yield f"* {certificate}: {label}"
    statements: dict[str, list[str]] = {}
    for curve in curves:
        if curve.directions:
            statements.setdefault(statement_text(curve), []).append(curve.certificate)
    for text, certificates in statements.items():
        yield f"{', '.join(dict.fromkeys(certificates))}: {text}"


def format_share(value: float) -> str:
    """Format a share with three digits, without the leading zero.

    >>> format_share(0.8941), format_share(1.0)
    ('.894', '1.000')
    """
    text = f"{value:.3f}"
    return text.removeprefix("0")


def shorten(line: str, width: int) -> str:
    """Shorten a remark to two lines of a terminal.

    The full report has all of it.
    """
    longest = max(40, 2 * (width - 8))
    return line if len(line) <= longest else f"{line[: longest - 4]} ..."
