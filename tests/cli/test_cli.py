"""The command line: every command does what its help says, for people and for pipes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from rich.console import Console

import crfl_core
from crfl_core import extend
from crfl_core.cli import output
from crfl_core.cli.app import TASKS, app
from tests.oracle import write_status

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]


def python(code: str, **environment: str) -> CompletedProcess[str]:
    """Runs code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )


class TestHelp:
    def test_it_groups_every_command_of_ours_by_task_with_one_line_each(self, crfl: Crfl) -> None:
        sections: dict[str, list[str]] = {}
        for line in crfl("--help").stdout.splitlines():
            if line.endswith(":") and not line.startswith(" "):
                section = sections.setdefault(line, [])
            elif sections and line.strip():
                section.append(line)
        assert list(sections)[:5] == ["Start:", "Ask a run:", "Compare runs:", "Trust a run:", "Extend:"]
        assert [line.split()[0] for line in sections["Start:"]] == ["demo", "advise", "run"]
        del sections["Options:"]
        rows = [line for lines in sections.values() for line in lines]
        known = {name for names in TASKS.values() for name in names}
        assert all(line.split()[0] in known and line.endswith(".") for line in rows)

    def test_it_lists_every_command(self, crfl: Crfl) -> None:
        result = crfl("--help")
        assert result.returncode == 0
        for command in COMMANDS:
            assert f" {command} " in result.stdout

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_explains_itself(self, crfl: Crfl, command: str) -> None:
        result = crfl(command, "--help")
        assert result.returncode == 0
        assert f"crfl {command}" in result.stdout

    def test_certify_offers_an_example_that_it_takes(self, crfl: Crfl, finished_run: Path) -> None:
        text = " ".join(crfl("certify", "--help").stdout.replace("│", " ").split())
        (example,) = re.findall(r"e\.g\. (\S+=\d+)\.", text)
        assert crfl("certify", finished_run, "--set", example).returncode == 0

    def test_no_command_at_all_shows_the_three_things_to_do_next(self, crfl: Crfl) -> None:
        result = crfl()
        assert result.returncode == 0
        offered = re.findall(r"^  crfl (\S+) ", result.stdout, re.MULTILINE)
        assert offered == ["demo", "run", "advise"]
        assert all(crfl(command, "--help").returncode == 0 for command in offered)
        assert "crfl --help" in result.stdout

    @pytest.mark.parametrize("arguments", [["frobnicate"], ["run", "--sett", "a=b"], ["show"]])
    def test_a_wrong_command_line_is_bad_input(self, crfl: Crfl, arguments: list[str]) -> None:
        result = crfl(*arguments)
        assert result.returncode == 2
        assert "Usage" in result.stderr

    @pytest.mark.parametrize("start", ["from crfl_core.cli import main; main(['--help'])", "import crfl_core"])
    def test_it_answers_before_anything_big_is_imported(self, start: str) -> None:
        code = f"try:\n    {start}\nexcept SystemExit:\n    pass\nimport sys\n"
        code += "print('big:', *({'torch', 'pydantic', 'numpy', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)))"
        assert python(code).stdout.splitlines()[-1] == "big:"


def test_version(crfl: Crfl) -> None:
    result = crfl("--version")
    assert (result.returncode, result.stdout) == (0, f"crfl {crfl_core.__version__}\n")


def test_the_package_is_a_command_too() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "crfl_core", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"crfl {crfl_core.__version__}\n"


class TestRun:
    def test_it_writes_plain_lines_without_a_terminal(self, crfl: Crfl, small: list[str], tmp_path: Path) -> None:
        result = crfl("run", *small)
        assert result.returncode == 0
        progress = [line.split()[:2] for line in result.stderr.splitlines()]
        assert progress[0] == ["round", "1/3"]  # those between are shown every few seconds
        assert progress[-1] == ["round", "3/3"]
        for expected in ("accuracy ", "* paper: reproduction, not a proof", "certified accuracy", "run directory: "):
            assert expected in result.stdout
        assert len(result.stdout.splitlines()) <= 25
        assert result.stdout.splitlines()[-1] == "more: crfl show runs/digits --full, crfl open runs/digits"
        assert "\x1b" not in result.stdout + result.stderr
        assert (tmp_path / "runs" / "digits" / "metrics.json").exists()

    def test_full_shows_every_table_and_the_audit(self, crfl: Crfl, small: list[str]) -> None:
        result = crfl("run", "--full", *small)
        title = "paper (reproduction, not a proof): feature level"
        for expected in ("clean accuracy", title, "certified rate", "audit"):
            assert expected in result.stdout

    def test_json_is_the_metrics(self, crfl: Crfl, small: list[str], tmp_path: Path) -> None:
        result = crfl("run", "--json", *small)
        assert json.loads(result.stdout) == json.loads((tmp_path / "runs" / "digits" / "metrics.json").read_text())

    def test_quiet_prints_only_the_run_directory(self, crfl: Crfl, small: list[str]) -> None:
        result = crfl("run", "--quiet", "--out", "here", *small)
        assert (result.returncode, result.stdout, result.stderr) == (0, "here\n", "")

    def test_a_config_file_names_the_directory(self, crfl: Crfl, small: list[str], tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text('name = "mine"\nattack = "model-replacement"\n')
        assert crfl("run", "mine.toml", "-q", *small).stdout == f"{Path('runs', 'mine')}\n"

    def test_force_replaces_a_finished_run(self, crfl: Crfl, small: list[str], tmp_path: Path) -> None:
        crfl("run", "-q", "--out", "here", *small)
        assert crfl("run", "-q", "--out", "here", "--force", *small, "--set", "seed=1").returncode == 0
        assert crfl_core.load(tmp_path / "here").config.seed == 1
        assert [path.name for path in tmp_path.iterdir()] == ["here"]

    def test_a_warning_of_ours_is_one_sentence(self, crfl: Crfl, small: list[str], install: Install) -> None:
        source = """
from crfl_core.extend import Tracker, hookimpl

class Raises(Tracker):
    @hookimpl
    def crfl_run_started(self):
        raise OSError("disk full")
"""
        install("noisy-tools", "2.0", {"crfl.trackers": {"raises": "Raises"}}, source)
        result = crfl("run", "-q", *small, "--set", 'trackers=["raises"]')
        assert result.returncode == 0
        told = "warning: tracker 'raises' of noisy-tools 2.0 failed in crfl_run_started: OSError: disk full ("
        assert result.stderr.startswith(told)
        assert result.stderr.endswith("); the run continues without it\n")

    def test_debug_shows_where_an_error_was_raised(self, crfl: Crfl, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CRFL_DEBUG", "1")
        with pytest.raises(extend.ConfigError):
            crfl("run", "nope.toml")


class TestCtrlC:
    SOURCE = """
from crfl_core.extend import Tracker, hookimpl

class Stops(Tracker):
    after: int = 1

    @hookimpl
    def crfl_round_started(self, run, current):
        if run.resumed_from < self.after < current.number:
            raise KeyboardInterrupt
"""

    @pytest.fixture(autouse=True)
    def _stops(self, install: Install) -> None:
        install("impatient-tools", "1.0", {"crfl.trackers": {"stops": "Stops"}}, self.SOURCE)

    @pytest.fixture
    def stopping(self, small: list[str]) -> list[str]:
        return [*small, "--set", 'trackers=["stops"]', "--set", "storage.checkpoint_seconds=0"]

    @pytest.mark.parametrize("out", [[], ["--out", "elsewhere"]])
    def test_it_says_how_to_resume(self, crfl: Crfl, stopping: list[str], out: list[str]) -> None:
        path = out[-1] if out else str(Path("runs", "digits"))
        result = crfl("run", "-q", *out, *stopping)
        assert (result.returncode, result.stdout) == (130, "")
        assert result.stderr == f"interrupted: resume with `crfl run {path}`\n"
        result = crfl("run", "-q", "--trust", path)
        assert (result.returncode, result.stdout) == (0, f"{path}\n")

    def test_the_same_command_resumes_as_well(self, crfl: Crfl, stopping: list[str], small: list[str]) -> None:
        crfl("run", "-q", "--out", "stopped", *stopping)
        assert crfl("run", "-q", "--out", "stopped", *stopping).returncode == 0
        assert crfl("run", "-q", "--out", "straight", *small).returncode == 0
        assert crfl("show", "stopped", "--json").stdout == crfl("show", "straight", "--json").stdout

    def test_a_resumed_run_may_be_interrupted_again(self, crfl: Crfl, stopping: list[str]) -> None:
        crfl("run", "-q", "--out", "here", *stopping, "--set", 'trackers=[{type="stops"}, {type="stops", after=2}]')
        result = crfl("run", "-q", "--trust", "here")
        assert (result.returncode, result.stderr) == (130, "interrupted: resume with `crfl run here`\n")
        assert crfl("run", "-q", "--trust", "here").returncode == 0

    def test_before_anything_is_written_there_is_nothing_to_resume(
        self, crfl: Crfl, small: list[str], install: Install
    ) -> None:
        source = "from crfl_datasets.digits import Digits\nclass Slow(Digits):\n    def read(self):\n"
        install("slow-tools", "1.0", {"crfl.datasets": {"slow": "Slow"}}, source + "        raise KeyboardInterrupt\n")
        result = crfl("run", "-q", *small, "--set", "dataset=slow")
        assert (result.returncode, result.stderr) == (130, "interrupted: nothing was written yet\n")


class TestFinishedRun:
    def test_show_prints_the_tables(self, crfl: Crfl, finished_run: Path) -> None:
        result = crfl("show", finished_run)
        assert result.returncode == 0
        assert "accuracy " in result.stdout
        assert f"run directory: {finished_run}" in result.stdout.splitlines()

    def test_show_prints_the_metrics_as_json(self, crfl: Crfl, finished_run: Path) -> None:
        result = crfl("show", finished_run, "--json")
        assert json.loads(result.stdout) == json.loads((finished_run / "metrics.json").read_text())

    def test_resume_of_a_finished_run_changes_nothing(self, crfl: Crfl, finished_run: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
        assert crfl("run", finished_run, "--quiet").stdout == f"{finished_run}\n"
        assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before

    def test_a_run_is_resumed_with_its_own_config(self, crfl: Crfl, finished_run: Path) -> None:
        options = [["--set", "rounds=5"], ["--out", "other"], ["--from", "first"], ["--force"], ["--dry-run"]]
        for given in options:
            refused = crfl("run", finished_run, *given)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert f"error: {given[0]}: the run in {finished_run} is resumed with its own config" in refused.stderr

    def test_a_sweep_is_resumed_by_its_own_command(self, crfl: Crfl, tmp_path: Path) -> None:
        (tmp_path / "many").mkdir()
        (tmp_path / "many" / "sweep.toml").touch()
        assert crfl("run", "many").stderr == "error: many: holds a sweep: continue it with `crfl sweep many`\n"

    def test_predict_prints_one_row_per_input(self, crfl: Crfl, finished_run: Path, tmp_path: Path) -> None:
        images = np.random.default_rng(0).integers(0, 17, size=(3, 8, 8))
        np.savez(tmp_path / "new.npz", x=images)
        result = crfl("predict", finished_run, "new.npz")
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        expected = crfl_core.predict(crfl_core.load(finished_run), images)
        assert [int(row["class"]) for row in rows] == expected.classes.tolist()
        (certified,) = expected.certified
        assert [float(row["paper.feature.radius"] or "nan") for row in rows] == pytest.approx(
            certified.guarantee.radius.tolist(), rel=0, abs=0, nan_ok=True
        )

    def test_predict_takes_scaled_inputs_and_npy_and_writes_a_file(
        self, crfl: Crfl, finished_run: Path, tmp_path: Path
    ) -> None:
        images = np.random.default_rng(0).integers(0, 17, size=(3, 64))
        np.savez(tmp_path / "raw.npz", x=images)
        np.save(tmp_path / "scaled.npy", images / 16)
        raw = crfl("predict", finished_run, "raw.npz").stdout
        assert crfl("predict", finished_run, "scaled.npy", "--scaled", "--out", "out.csv").stdout == ""
        assert (tmp_path / "out.csv").read_text() == raw


class TestPlugins:
    def test_the_table_names_every_plugin_and_what_is_wrong_with_it(
        self, crfl: Crfl, install: Install, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        install("broken-tools", "0.3", {"crfl.trackers": {"broken": "Broken"}}, "import no_such_module")
        lines = crfl("plugins").stdout.splitlines()
        (broken,) = [line for line in lines if " broken " in line]
        assert "broken-tools 0.3" in broken
        assert "failed" in broken
        (jsonl,) = [line for line in lines if " jsonl " in line]
        assert f"crfl {crfl_core.__version__}" in jsonl
        assert " ok " in jsonl

    def test_a_name_is_never_broken_in_a_pipe(self, crfl: Crfl, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        listing = json.loads(crfl("plugins", "--json").stdout)
        lines = crfl("plugins").stdout.splitlines()
        assert len(lines) == len(listing)
        for plugin in listing:
            (line,) = [line for line in lines if line.split()[:2] == [plugin["kind"], plugin["name"]]]
            assert plugin["summary"] in line

    def test_a_terminal_shows_a_table_for_each_kind_that_fits_it(
        self, crfl: Crfl, install: Install, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install("broken-tools", "0.3", {"crfl.trackers": {"broken": "Broken"}}, "import no_such_module")
        monkeypatch.setattr(output, "terminal", lambda: Console(width=60, force_terminal=True, color_system=None))
        printed = crfl("plugins").stdout
        assert max(map(len, printed.splitlines())) <= 60
        words = [line.split() for line in printed.splitlines()]
        for plugin in json.loads(crfl("plugins", "--json").stdout):
            assert [plugin["kind"]] in words
            assert any(line[:1] == [plugin["name"]] for line in words)
        assert "broken  failed: broken-tools 0.3: " in re.sub(" {2,}", "  ", printed)
        assert f"crfl {crfl_core.__version__}" not in printed  # said of other distributions alone

    def test_kind_lists_one_kind(self, crfl: Crfl) -> None:
        listing = json.loads(crfl("plugins", "--kind", "tracker", "--json").stdout)
        assert {plugin["kind"] for plugin in listing} == {"tracker"}
        lines = crfl("plugins", "--kind", "tracker").stdout.splitlines()
        assert [line.split()[1] for line in lines] == [plugin["name"] for plugin in listing]
        assert "--kind trackers: kinds are aggregator" in crfl("plugins", "--kind", "trackers").stderr

    def test_json_is_for_programs(self, crfl: Crfl) -> None:
        listing = json.loads(crfl("plugins", "--json").stdout)
        (jsonl,) = [plugin for plugin in listing if plugin["name"] == "jsonl"]
        assert jsonl == {
            "kind": "tracker",
            "name": "jsonl",
            "distribution": "crfl",
            "version": crfl_core.__version__,
            "status": "ok",
            "reason": "",
            "summary": "Appends one JSON object per event to a file, for tools that follow a run.",
            "hooks": ["crfl_certified", "crfl_round_finished", "crfl_run_finished", "crfl_run_started"],
        }


def test_explain_prints_every_setting_and_where_it_was_written(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("rounds = 5\n")
    (tmp_path / "mine.toml").write_text('extends = "base.toml"\n[training]\nsteps = 4\n')
    result = crfl("explain", "mine.toml", "--set", "seed=7")
    found = dict(line.split("  # ") for line in result.stdout.splitlines())
    origins = {setting.strip(): origin for setting, origin in found.items()}
    assert origins["rounds = 5"] == "base.toml"
    assert origins["training.steps = 4"] == "mine.toml"
    assert origins["seed = 7"] == "--set seed=7"
    assert origins["training.batch_size = 32"] == "default"


def test_a_reader_that_goes_away_is_no_crash() -> None:
    code = (
        "import os, sys\nread, write = os.pipe()\nos.dup2(write, 1)\nos.close(write)\nos.close(read)\n"
        "from crfl_core.cli import main\nmain(['schema'])\n"
    )
    assert python(code).stderr == ""


def test_a_run_starts_from_the_model_of_another(crfl: Crfl, tmp_path: Path) -> None:
    settings = ("--quiet", "--set", "rounds=3", "--set", "votes.models=20", "--set", "attack=none")
    assert crfl("run", *settings, "--out", "first").returncode == 0
    result = crfl("run", *settings, "--from", "first", "--out", "second")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [(tmp_path / name / "rounds.jsonl").read_text().splitlines()[0] for name in ("first", "second")]
    first, second = map(json.loads, lines)
    assert second["loss"] < first["loss"]
    assert second["start_norm"] > first["start_norm"] == 0.0
    write_status(tmp_path / "second", {"format": 1, "state": "training"})
    result = crfl("run", *settings, "--from", "second", "--out", "third")
    assert result.returncode == 2
    assert "second: the run is not trained yet: finish it with `crfl run second`" in result.stderr
