"""The demo: one screen that tells the truth."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from crfl_reports.commands.demo import CERTIFIED, DEMO_RUNS, TRIGGER_NORM, ending, story_lines

from crfl_core import RunResult, load
from crfl_core.cli.output import program_name, use_colours

Crfl = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture
def shown(crfl: Crfl, folder: Path) -> str:
    """What the demo prints; it is run once."""
    kept = folder / "shown.txt"
    if not kept.exists():
        result = crfl("demo", "--out", folder / "runs")
        assert result.returncode == 0
        kept.write_text(result.stdout, encoding="utf-8")
        (folder / "progress.txt").write_text(result.stderr, encoding="utf-8")
    return kept.read_text(encoding="utf-8")


def results(folder: Path) -> list[RunResult]:
    return [load(folder / "runs" / row.name) for row in DEMO_RUNS]


def test_it_fits_on_one_screen(shown: str, folder: Path) -> None:
    story, found, _ = shown.partition("\nReport: ")
    assert found
    lines = [*story.splitlines(), *ending(Path("runs/demo/certified/report.html"))]  # where it is by default
    assert len(lines) <= 30
    assert all(len(line) <= 80 for line in lines)


def test_the_attack_succeeds_without_a_defence_and_fails_with_one(shown: str, folder: Path) -> None:
    undefended, defended, certified, triggered = (result.metrics for result in results(folder))
    assert undefended.backdoor is not None
    assert defended.backdoor is not None
    assert certified.backdoor is not None
    assert triggered.backdoor is not None
    assert undefended.backdoor.success_rate > 0.9
    assert undefended.accuracy > defended.accuracy - 0.04  # nearly unharmed
    assert defended.backdoor.success_rate < 0.05
    assert certified.backdoor.success_rate < 0.05
    assert certified.accuracy > 0.95
    assert triggered.backdoor.success_rate < 0.05


def test_what_is_proved_is_what_the_certificate_says(shown: str, folder: Path) -> None:
    (curve,) = (one for one in results(folder)[CERTIFIED].metrics.curves if one.test_set == "clean")
    proved = dict(zip(curve.radii, curve.certified_accuracy, strict=True))
    row = next(line for line in shown.splitlines() if line.strip().startswith("certified"))
    assert row.endswith("  ".join(f"{proved[number]:.1%}".replace("%", " %") for number in (1, 2, 3)))
    assert proved[3] > 0.8
    assert "directions" in curve.model_dump()
    assert set(curve.directions) == {"backward", "forward"}


def test_the_last_row_is_about_clients_and_a_trigger_together(shown: str, folder: Path) -> None:
    (curve,) = (one for one in results(folder)[-1].metrics.curves if one.test_set == "clean")
    assert curve.certificate == "backdoor"
    place = curve.radii.index(TRIGGER_NORM)
    row = next(line for line in shown.splitlines() if line.strip().startswith("triggered"))
    assert row.endswith("  ".join(f"{curve.by_clients[number][place]:.1%}".replace("%", " %") for number in (1, 2, 3)))
    assert curve.by_clients[1][place] > 0.6


def test_it_ends_with_the_report_and_what_to_do_next(shown: str, folder: Path) -> None:
    place = folder / "runs" / "certified"
    assert f"\nReport: {place}/report.html\nNext: crfl open {place}  the report, in a browser\n" in shown
    following = shown[shown.index("Next: ") :].splitlines()
    starts = ("the report", "what is proved", "a config for", "all commands")
    assert len({line.index(start) for line, start in zip(following, starts, strict=True)}) == 1


def test_the_commands_to_paste_are_those_that_the_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my env" / "bin" / "crfl"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program_name() == "'my env/bin/crfl'"
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_name() == "crfl"
    monkeypatch.setattr("sys.argv", ["/usr/lib/crfl/__main__.py"])
    assert program_name() == "crfl"


def test_progress_says_which_of_the_four_federations_trains(shown: str, folder: Path) -> None:
    progress = (folder / "progress.txt").read_text(encoding="utf-8")
    for title in ("1/4 undefended  round 1/20", "2/4 defended  round 1/20", "4/4 triggered  round 1/20"):
        assert title in progress


def test_a_successful_attack_is_red_and_a_proof_green(shown: str, folder: Path) -> None:
    lines = [*story_lines(results(folder), plain=True, colours=True)]
    row = {line.split()[0]: line for line in lines if line.startswith("  ") and " %" in line}
    assert re.search(r"\x1b\[31m +9\d\.\d %\x1b\[0m", row["undefended"])
    assert "\x1b" not in row["defended"]
    assert re.search(r"\x1b\[32m.* %\x1b\[0m", row["certified"])
    assert not any("\x1b" in line for line in story_lines(results(folder), plain=True))


def test_no_color_is_for_the_demo_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert use_colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colours()


def test_terminals_without_unicode_get_plain_bars(shown: str, folder: Path) -> None:
    text = "\n".join(story_lines(results(folder), plain=True))
    assert text.isascii()
    assert "####" in text


def test_json_has_the_metrics_of_all_four(crfl: Crfl, shown: str, folder: Path) -> None:
    answer = json.loads(crfl("demo", "--json", "--out", folder / "again").stdout)
    assert list(answer) == [row.name for row in DEMO_RUNS]
    assert answer["certified"] == json.loads((folder / "runs" / "certified" / "metrics.json").read_text())


def test_quiet_prints_only_the_folder(crfl: Crfl, tmp_path: Path) -> None:
    told = crfl("demo", "--quiet", "--out", "quiet")
    assert (told.stdout, told.stderr) == ("quiet\n", "")
    assert (tmp_path / "quiet" / "certified" / "report.html").exists()
