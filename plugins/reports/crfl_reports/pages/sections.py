"""Sections of a run's page, as markup; the page's script fills in the figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from crfl_core.config import RunConfig, load_config
from crfl_core.config.options import list_settings
from crfl_core.errors import CrflError
from crfl_core.records.table import Table
from crfl_core.reporting.glossary import GLOSSARY
from crfl_core.reporting.metrics import floor_percent
from crfl_core.runs.verification import build_receipt
from crfl_reports.pages import words
from crfl_reports.pages.markup import Html, element, figure_place, glossary_term, join_parts, rich, table, term_id

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import Check, Level
    from crfl_core.records.ledger import Ledger
    from crfl_core.reporting.metrics import CollectiveCurve, Curve, Metrics
    from crfl_core.runs.results import RunResult


def run_sections(run: RunResult, *, backdoor: Html, closeness: Html) -> Iterator[tuple[str, str, Html]]:
    """Yield the name, title and content of every section, in order."""
    yield "summary", "Summary", summary(run)
    certified = [figure_place("curves", "Certified accuracy and rate"), *map(collective, run.metrics.collective)]
    yield "certified", "What is certified", join_parts(certified)
    yield "explorer", "What if? The threat explored", explorer()
    yield "training", "Training", training(run.ledger)
    if run.distances:
        yield "closeness", "Distance to the clean twin", closeness
    if run.metrics.backdoor is not None:
        yield "backdoor", "The backdoor", backdoor
    yield "samples", "Test samples", element("div", id="sample-table")
    yield "audit", "Audit in plain language", audit(run)
    yield "config", "Config, and where it came from", config(run)
    yield "environment", "Environment", environment(run)
    yield "receipt", "Receipt", receipt(run)
    yield "glossary", "Glossary", glossary()


def summary(run: RunResult) -> Html:
    """Build the summary.

    It has a row of measured numbers, a row for every certificate, and sentences.
    """
    verdict = run.verdict
    kind = "verdict" if verdict.startswith("Certified") else "verdict none"
    rows = [element("p", verdict, class_=kind), number_row("Measured", None, measured(run.metrics))]
    for curve in words.strongest_curves(run.metrics):
        rows.append(number_row(curve.certificate, element("p", rich(words.basis(curve)), class_="note"), cards(curve)))
    sentences = [element("li", sentence) for sentence in words.summary(run)]
    return join_parts([*rows, element("ul", *sentences)])


def number_row(title: str, note: Html | None, numbers: Iterable[tuple[str, Html, str]]) -> Html:
    """Build a titled row of numbers.

    Every number has a key, a name and a value.
    """
    tiles = [element("div", element("dt", name), element("dd", value, data_metric=key)) for key, name, value in numbers]
    return element("div", element("h3", title), note, element("dl", *tiles, class_="tiles"), class_="numbered")


def measured(metrics: Metrics) -> Iterator[tuple[str, Html, str]]:
    """Yield the numbers that were measured: key, name and value."""
    yield "accuracy", join_parts(["accuracy on clean test samples"]), words.percent(metrics.accuracy)
    if metrics.trusted_baseline is not None:
        told = join_parts(["accuracy of the server alone, against any number of clients"])
        yield "server_alone", told, words.percent(metrics.trusted_baseline.accuracy)
    if metrics.backdoor is not None:
        success = glossary_term("attack success rate", "attack success rate")
        yield "success_rate", success, words.percent(metrics.backdoor.success_rate)


def cards(curve: Curve) -> Iterator[tuple[str, Html, str]]:
    """Yield certified accuracy at some radii of one certificate."""
    name = glossary_term("certified accuracy", "certified accuracy")
    for at, value in words.shown_radii(curve):
        told = join_parts([name, f", {words.radius(at, curve.level)}"])
        yield f"{curve.certificate}-{at:g}", told, words.percent(value)


def collective(curve: CollectiveCurve) -> Html:
    """Build the table of collective certified accuracy, with its sentences."""
    said = (
        f"Collective certified accuracy of {curve.certificate}: how much of the {curve.test_set} test set stays right, "
        "whichever clients are malicious, if they are the same for all samples. No single prediction is said to stay "
        "right."
    )
    rows = [
        [
            str(number),
            "not computed: too many sets of clients" if share is None else floor_percent(share),
            "" if share is None else "exact" if exact else "a lower bound",
        ]
        for number, share, exact in zip(curve.clients, curve.collective_accuracy, curve.exact, strict=True)
    ]
    header = ("malicious clients", "samples that stay right", "kind of number")
    return join_parts([element("p", said), table(header, rows, "Collective certified accuracy")])


def explorer() -> Html:
    """Build the place of the explorer."""
    told = element(
        "p",
        "Every combination of the sliders was put to the run's own certificates when this page was written, from the "
        "votes that the run stored. The page calculates nothing.",
        class_="note",
    )
    return join_parts([told, figure_place("explorer", "The explorer")])


def training(ledger: Ledger) -> Html:
    """Build the places of the figures about training.

    A figure of a single measured round would have no line, so it is left out.
    """
    figures = [("weights", "Weights that reached the model"), ("partition", "Who holds what")]
    if len({record.round for record in ledger.rounds if record.accuracy is not None}) > 1:
        figures.insert(0, ("rounds", "Accuracy in every round"))
    return join_parts([join_parts([element("h3", title), figure_place(name, title)]) for name, title in figures])


def audit(run: RunResult) -> Html:
    """Build the audit of every certificate.

    It has the statement of the certificate, its assumptions, and the findings.
    """
    parts = [element("p", "A certificate holds under assumptions. The audit compares each with the record of the run.")]
    for found in run.audits:
        parts.append(element("h3", found.certificate, *([] if found.sound else [f" ({found.label})"])))
        parts.append(element("p", rich(verdict(found.refusals, found.directions, found.sound))))
        parts.append(element("p", f"Assumptions: {words.count_checks(found.checks)}."))
        held = tuple(check for check in found.checks if check.status == "held")
        others = tuple(check for check in found.checks if check.status != "held")
        if others:
            parts.append(checks(f"Assumptions of {found.certificate} that do not hold or are taken on trust", others))
        if held:
            listing = checks(f"Assumptions of {found.certificate} that hold", held)
            parts.append(element("details", element("summary", f"{len(held)} checked, holding"), listing))
    return join_parts(parts)


def verdict(refusals: dict[str, str], directions: Mapping[Level, tuple[str, ...]], sound: bool) -> words.Rich:
    """Describe the outcome of an audit.

    The text says what is refused, and how the rest may be read.
    """
    told: words.Rich = [f"Refused: {name}. {reason}. " for name, reason in refusals.items()]
    if not sound:
        told.append("It claims no proof: its numbers are there to be compared. ")
    readings: dict[tuple[str, ...], list[str]] = {}
    for level, read in directions.items():
        if read:
            readings.setdefault(read, []).append(level)
    for read, levels in readings.items():
        told.append(f"At the {' and '.join(levels)} level it may be read ")
        for number, direction in enumerate(read):
            told += [" and "] * bool(number)
            told.append(words.Term(direction, direction))
        told.append(". ")
    return told


def checks(caption: str, found: tuple[Check, ...]) -> Html:
    """Build a table of assumptions of a certificate, the worst first."""
    order = list(words.STATUSES)
    rows = []
    for check in sorted(found, key=lambda one: order.index(one.status)):
        only = " and ".join(filter(None, (check.level and f"the {check.level} level", check.direction)))
        needed = f"; needed: {check.required}" if check.status != "held" and check.required else ""
        remedy = f"; to do: {check.remedy}" if check.status == "failed" and check.remedy else ""
        where = f" (for {only} only)" if only else ""
        rows.append([f"{check.name}{where}", badge(check), f"{check.measured}{needed}{remedy}"])
    return table(("assumption", "outcome", "found"), rows, caption)


def badge(check: Check) -> Html:
    """Build the coloured outcome of a check."""
    kind = "declared" if words.is_missing_reading(check) else check.status
    key = check.direction if words.is_missing_reading(check) and check.direction else words.STATUSES[check.status]
    return element("span", glossary_term(words.outcome(check), key), class_=f"status {kind}")


def glossary() -> Html:
    """Build the list of all terms that the page links to."""
    entries = []
    for term, meaning in sorted(GLOSSARY.items()):
        entries += [element("dt", term, id=term_id(term)), element("dd", meaning)]
    return element("dl", *entries, class_="glossary")


def config(run: RunResult) -> Html:
    """Build a table of all settings that can be opened."""
    lines = settings(run)
    rows = [[line.key, element("code", line.value), line.origin] for line in lines]
    listing = table(("key", "value", "from"), rows, "Settings", class_="config")
    return element("details", element("summary", f"{len(rows)} settings"), listing)


def environment(run: RunResult) -> Html:
    """Build a table of the versions of everything that took part."""
    recorded = run.directory.read_json("environment.json")
    left_out = ("plugins", "earlier", "origins", "sha256")
    rows = [[name.replace("_", " "), plain(recorded[name])] for name in recorded if name not in left_out]
    if digest := recorded.get("sha256"):
        rows.append(["SHA-256 of this record", element("code", plain(digest))])
    parts = [table(("what", "version or number"), rows, "Versions")]
    plugins = [
        [f"{entry.get('kind')} {entry.get('name')}", f"{entry.get('distribution')} {entry.get('version')}"]
        for entry in recorded.get("plugins", ())
    ]
    listing = table(("plugin", "from"), plugins, "Plugins")
    parts.append(element("details", element("summary", f"{len(plugins)} plugins"), listing))
    if earlier := recorded.get("earlier"):
        parts.append(element("p", f"The run was resumed; earlier rounds were played with: {plain(earlier)}"))
    return join_parts(parts)


def plain(value: Any) -> str:
    """Return a value of a JSON file as text."""
    return value if isinstance(value, str) else json.dumps(value)


def receipt(run: RunResult) -> Html:
    """Return the digests that trace this page to its run."""
    try:
        found = build_receipt(run.directory)
    except CrflError as error:
        return element("p", str(error))
    rows = [["run", found["run"]], ["manifest, SHA-256", element("code", found["manifest"])]]
    rows += [[f"{name} test set", element("code", facts["digest"])] for name, facts in found["data"].items()]
    files = [[name, element("code", value)] for name, value in found["files"].items()]
    verify = element("code", "crfl verify RUN")
    told = element(
        "p", verify, " compares every file; ", element("code", "crfl receipt RUN"), " writes this to a file."
    )
    listing = table(("file", "SHA-256"), files, "Files of the run")
    details = element("details", element("summary", f"{len(files)} files"), listing)
    return join_parts([table(("what", "value"), rows, "Receipt"), told, details])


DEFAULT = "default"


class Setting(NamedTuple):
    """Key, its value as TOML writes it, and where it was written."""

    key: str
    value: str
    origin: str


def settings(run: RunResult) -> list[Setting]:
    """List every setting of a run.

    A run keeps its complete config. Where each value was written before, `environment.json` says; of runs that did not
    record this, only what differs from the defaults is told apart.
    """
    recorded = run.directory.read_json("environment.json").get("origins")
    written = recorded if isinstance(recorded, Mapping) else {}
    loaded = load_config(run.path / "config.toml", registry=run.registry)  # without the plugins that are not here
    return [
        Setting(line.key, line.text, origin_of(line.key, written, is_default(run.config, line.key.split("."))))
        for line in list_settings(loaded)
    ]


def origin_of(key: str, written: Mapping[str, Any], default: bool) -> str:
    """Return where a key was written.

    If the key was not written itself and its value is not the default, return the place of a table around it.

    >>> origin_of("attack.scale", {"attack": "a.toml"}, False), origin_of("attack.target", {"attack": "a.toml"}, True)
    ('a.toml', 'default')
    """
    exact = key.split(".")
    single = [part for part in exact if part != "0"]  # a single table may stand for a list of one
    shortest = [len(exact), len(single)] if default else [1, 1]
    places = (
        written.get(".".join(parts[:length]))
        for parts, least in zip((exact, single), shortest, strict=True)
        for length in range(len(parts), least - 1, -1)
    )
    unknown = DEFAULT if default or written else "the config"
    return next((str(origin) for origin in places if origin is not None), unknown)


def is_default(config: RunConfig, path: Sequence[str]) -> bool:
    """Return whether a value is the default of its key."""
    here: Any = config
    for step in path[:-1]:
        here = here[int(step)] if isinstance(here, tuple) and step.isdecimal() else getattr(here, step, None)
    field = type(here).model_fields.get(path[-1]) if isinstance(here, Table) else None
    return field is not None and bool(getattr(here, path[-1]) == field.get_default(call_default_factory=True))
