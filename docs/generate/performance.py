"""Write the measured part of docs/performance.md from saved results."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from benchmarks import __main__ as benchmarks
from benchmarks.results import RESULTS_FILE, Result, Results, read
from docs.generate.markdown import WIDTH, cell


def performance(path: Path = RESULTS_FILE) -> str:
    """Write machine and versions, then one section per benchmark."""
    results = read(path)
    missing = [name for name in benchmarks.benchmark_names() if name not in results.benchmarks]
    parts = [conditions(results), *(section(name, found) for name, found in sorted(results.benchmarks.items()))]
    if missing:
        text = f"Not in these results: {', '.join(f'`{name}`' for name in missing)}."
        parts.append("\n".join(textwrap.wrap(text, WIDTH)))
    return "\n\n".join(parts) + "\n"


def conditions(results: Results) -> str:
    """Write machine and versions in two sentences."""
    machine, versions = results.machine, results.versions
    used = ", ".join(f"{name} {number}" for name, number in versions.items())
    measured = (
        f"Measured on {results.measured[:10]}: {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']:g} GiB, {machine['system']}, threads of torch = {machine['threads']} unless a "
        "benchmark says otherwise."
    )
    return "\n".join([*textwrap.wrap(measured, WIDTH), "", *textwrap.wrap(f"Versions: {used}.", WIDTH)])


def section(name: str, found: tuple[Result, ...]) -> str:
    """Write the summary and the ratios of a benchmark."""
    return "\n\n".join([f"### `{name}`", *summary(name), "\n".join(table(found))])


def summary(name: str) -> list[str]:
    """Return the first paragraph of a benchmark's docstring, read from its source."""
    source = Path(benchmarks.__file__).with_name(f"{name}.py")
    if not source.exists():
        return []
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return [text.partition("\n\n")[0]]


def table(found: tuple[Result, ...]) -> Iterator[str]:
    """Write one row per ratio."""
    yield "| what | ratio | spread | target |"
    yield "| --- | ---: | ---: | --- |"
    for result in found:
        spread = f"{result.low:.3g} to {result.high:.3g}" if result.low < result.high else ""
        yield f"| {cell(result.name)} | {result.ratio:.3g} | {spread} | {cell(result.target)} |"
