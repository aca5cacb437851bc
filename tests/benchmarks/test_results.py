"""Ratios of benchmarks are kept with their spread, and compared with earlier ones by more than their noise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as program
from benchmarks import timing
from benchmarks.comparison import compare
from benchmarks.results import BadResults, Result, Results, merge_repetitions, new_results, number_names, read, write
from benchmarks.timing import Ratio, Seconds, best_times, median_ratio, report
from docs.generate.performance import performance


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    timing.RESULTS.clear()
    yield
    timing.RESULTS.clear()


def result(ratio: float, low: float, high: float, target: str = "at most 2") -> Result:
    return Result("time of a / b", ratio, low, high, target)


def results(*found: Result) -> Results:
    return new_results({"first": found})


def ticking(*ticks: float) -> Iterator[float]:
    yield from ticks


def test_the_ratio_of_two_times_is_that_of_the_best_turns_and_spreads_like_all_turns() -> None:
    ours, theirs = Seconds.of([2.0, 3.0, 2.5]), Seconds.of([1.0, 1.0, 1.0])
    ratio = ours / theirs
    assert isinstance(ratio, Ratio)
    assert (ratio, ratio.spread) == (2.0, (2.0, 3.0))
    assert ours / 2 == 1.0


def test_of_many_turns_the_middle_half_counts() -> None:
    assert Ratio.of(3.0, [1.0, 2.0, 3.0, 4.0, 100.0]).spread == (2.0, 4.0)


def test_a_spread_includes_what_is_reported() -> None:
    assert Ratio.of(0.5, [1.0, 2.0]).spread == (0.5, 2.0)


def test_candidates_take_turns_and_the_first_does_not_count() -> None:
    clock = ticking(0, 9, 10, 19, 20, 22, 23, 27, 30, 33, 40, 48)
    times = best_times({"a": int, "b": int}, turns=2, clock=lambda: next(clock))
    assert times["a"].turns == (2, 3)
    assert times["b"].turns == (4, 8)


def test_the_median_ratio_knows_its_turns() -> None:
    clock = ticking(0, 1, 9, 10, 11, 13, 20, 21, 25)
    ratio = median_ratio(int, int, turns=2, clock=lambda: next(clock))
    assert (ratio, ratio.turns) == (3.0, (2.0, 4.0))


def test_a_report_is_a_line_and_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    report("time of a / b", Ratio.of(2.0, [2.0, 3.0]), "at most 2", detail="12 ms")
    report("memory", 1.5, "below 2")
    assert [result(2.0, 2.0, 3.0), Result("memory", 1.5, 1.5, 1.5, "below 2")] == timing.RESULTS
    assert "time of a / b (12 ms)" in capsys.readouterr().out


def test_a_file_has_machine_versions_and_ratios(tmp_path: Path) -> None:
    written = results(result(1.23456, 1.1, 1.4))
    write(written, tmp_path / "measured.json")
    found = read(tmp_path / "measured.json")
    assert found.benchmarks == {"first": (result(1.235, 1.1, 1.4),)}
    assert found.machine["cores"] >= 1
    assert {"python", "crfl", "torch", "numpy"} <= found.versions.keys()
    assert found.measured == written.measured
    assert [path.name for path in tmp_path.iterdir()] == ["measured.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "benchmarks": {"a": [{"ratio": 1}]}}'])
def test_what_is_no_file_of_results_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(BadResults, match=r"odd\.json is not a file of results: write one with"):
        read(tmp_path / "odd.json")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text('{"format": 2}')
    with pytest.raises(BadResults, match="has format 2, this version reads 1"):
        read(tmp_path / "new.json")


@pytest.mark.parametrize(
    ("target", "old", "new", "expected"),
    [
        ("at most 2", (1.0, 0.9, 1.1), (1.3, 1.2, 1.4), "1 slower, 0 faster"),
        ("below 2", (1.0, 0.9, 1.1), (1.15, 1.05, 1.2), "0 slower, 0 faster"),
        ("at most 2", (1.0, 0.9, 1.1), (0.7, 0.6, 0.8), "0 slower, 1 faster"),
        ("at least 2", (3.0, 2.9, 3.1), (2.0, 1.9, 2.5), "1 slower, 0 faster"),
        ("at least 2", (3.0, 2.9, 3.1), (4.0, 3.9, 4.5), "0 slower, 1 faster"),
        ("at most 2", (1.0, 1.0, 1.0), (1.04, 1.04, 1.04), "0 slower, 0 faster"),
        ("at most 2", (1.0, 1.0, 1.0), (1.06, 1.06, 1.06), "1 slower, 0 faster"),
        ("0.5 to 2", (1.0, 1.0, 1.0), (9.0, 9.0, 9.0), "0 slower, 0 faster"),
    ],
)
def test_slower_is_what_lies_beyond_the_old_spread_on_the_worse_side(
    target: str, old: tuple[float, float, float], new: tuple[float, float, float], expected: str
) -> None:
    lines, slower = compare(results(result(*old, target)), results(result(*new, target)))
    assert lines[-1].startswith(expected)
    assert slower is expected.startswith("1 slower")


def test_a_comparison_names_other_versions_and_machines() -> None:
    old = results(result(1.0, 1.0, 1.0))
    new = replace(old, machine={**old.machine, "cores": 128}, versions={**old.versions, "torch": "9.0"})
    lines, slower = compare(old, new)
    assert not slower
    assert lines[0].startswith("the machines differ")
    assert lines[1] == f"torch: {old.versions['torch']} -> 9.0"


def test_equal_names_are_numbered_and_repetitions_are_one_result() -> None:
    once = [result(1.0, 1.0, 1.0), result(5.0, 5.0, 5.0)]
    again = [result(3.0, 3.0, 3.0), result(5.5, 5.5, 5.5)]
    assert [one.name for one in number_names(once)] == ["time of a / b", "time of a / b [2]"]
    first, second = merge_repetitions([once, again, once])
    assert (first.ratio, first.low, first.high) == (1.0, 1.0, 3.0)
    assert (second.ratio, second.low, second.high) == (5.0, 5.0, 5.5)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Two benchmarks, `first` and `second`, that report the number in here."""
    numbers = [1.0]
    for name in ("first", "second"):
        module = ModuleType(f"benchmarks.{name}")
        module.main = lambda: report("time of a / b", numbers[0], "at most 2")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(program, "benchmark_names", lambda: ["first", "second"])
    return numbers


def test_what_is_saved_is_compared_later(
    bench: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = str(tmp_path / "old.json"), str(tmp_path / "new.json")
    assert program.main(["--save", old]) == 0
    bench[0] = 1.5
    assert program.main(["first", "--save", new, "--compare", old]) == 1
    assert "slower: first: time of a / b: 1 -> 1.5 (at most 2)" in capsys.readouterr().out
    assert program.main(["--compare", old, "--new", new]) == 1
    assert program.main(["--compare", old, "--new", old]) == 0


def test_saving_some_benchmarks_keeps_the_others_of_the_same_machine(bench: list[float], tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    program.main(["--save", str(path)])
    bench[0] = 3.0
    program.main(["second", "--save", str(path), "--repeat", "2"])
    kept = read(path)
    assert {name: found[0].ratio for name, found in kept.benchmarks.items()} == {"first": 1.0, "second": 3.0}
    write(replace(kept, machine={"processor": "another"}), path)
    program.main(["second", "--save", str(path)])
    assert list(read(path).benchmarks) == ["second"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["third"], "there is no benchmark 'third': there are first, second"),
        (["--repeat", "0"], "--repeat must be at least 1"),
        (["--new", "a.json"], "--new goes with --compare"),
        (["--save", "nowhere/at/all.json"], "--save: there is no folder nowhere/at"),
    ],
)
def test_wrong_arguments_are_explained(
    bench: list[float], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_missing_is_one_sentence(bench: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--compare", "no.json"]) == 2
    assert capsys.readouterr().err == "error: no.json cannot be read: No such file or directory\n"


def test_the_page_shows_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    write(replace(results(), benchmarks={"votes": (result(1.5, 1.4, 1.6),)}), path)
    page = performance(path)
    assert "### `votes`\n\nVotes of M = 1000 noisy models" in page
    assert "| time of a / b | 1.5 | 1.4 to 1.6 | at most 2 |" in page
    assert "Not in these results: `aggregators`" in page
    assert max(map(len, page.splitlines())) <= 120


def test_every_benchmark_can_be_called_and_says_what_it_measures() -> None:
    assert {"aggregators", "rounds", "votes"} <= set(program.benchmark_names())
    for name in program.benchmark_names():
        source = Path(program.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        assert source.startswith('"""')
        assert "\ndef main() -> None:\n" in source
