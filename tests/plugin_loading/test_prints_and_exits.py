"""Plugins that print where they should not, or try to end the process: neither reaches people's scripts."""

from __future__ import annotations

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

import crfl_core
from crfl_core.errors import describe_exception
from tests.plugin_loading.called_methods import Called, every_called_method

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

CHATTY = """
import subprocess
import sys

from pydantic import field_validator

from crfl_aggregators.fedavg import FedAvg
from crfl_certificates.paper import Paper
from crfl_core.extend import Tracker, hookimpl
from crfl_models.softmax import Softmax

print("says import")


class Rule(FedAvg):
    f: int = 1

    @field_validator("f")
    @classmethod
    def _check(cls, value):
        print("says validation")
        return value

    def weights(self, clients):
        print("says weights")
        return super().weights(clients)


class Watch(Tracker):
    @hookimpl
    def crfl_run_finished(self):
        sys.stdout.write("says hook\\n")
        subprocess.run([sys.executable, "-c", "print('says process')"], check=True)


class Linear(Softmax):
    def build(self, facts):
        print("says model")
        return super().build(facts)


class Proof(Paper):
    def audit(self, ledger, threat):
        print("says audit")
        return super().audit(ledger, threat)
"""
POINTS = {
    "crfl.aggregators": {"rule": "Rule"},
    "crfl.trackers": {"watch": "Watch"},
    "crfl.models": {"linear": "Linear"},
    "crfl.certificates": {"proof": "Proof"},
}
SETTINGS = ["aggregation={type='rule', f=2}", "trackers=['watch']", "model='linear'", "certificates=['proof']"]


class TestPrints:
    @pytest.fixture
    def arguments(self, install: Install, small: list[str]) -> list[str]:
        install("chatty-tools", "1.0", POINTS, CHATTY)
        return [*small, *(word for setting in SETTINGS for word in ("--set", setting))]

    @pytest.fixture
    def run(self, crfl: Crfl, arguments: list[str]) -> Crfl:
        assert crfl("run", "--quiet", "--out", "here", *arguments).returncode == 0
        return crfl

    def test_quiet_prints_only_the_path(self, crfl: Crfl, arguments: list[str]) -> None:
        result = crfl("run", "--quiet", "--out", "here", *arguments)
        assert result.stdout == "here\n"
        for who in ("import", "validation", "weights", "hook", "model", "audit"):
            assert f"says {who}\n" in result.stderr

    def test_json_is_only_json(self, run: Crfl) -> None:
        for command in (["plugins", "--json"], ["show", "here", "--json"], ["plugins", "check", "rule", "--json"]):
            json.loads(run(*command).stdout)

    def test_the_other_commands_say_only_what_is_theirs(self, run: Crfl, tmp_path: Path) -> None:
        np.savez(tmp_path / "new.npz", x=np.zeros((2, 64)))
        for command in (["predict", "here", "new.npz"], ["certify", "here"], ["explain", "here"], ["run", "here"]):
            result = run(*command, "--trust")
            assert result.returncode == 0, result.stderr
            assert "says" not in result.stdout
        assert "says audit" in run("certify", "here", "--trust").stderr

    def test_processes_that_a_plugin_starts_are_kept_out_as_well(self, arguments: list[str], tmp_path: Path) -> None:
        path = os.pathsep.join([str(tmp_path / "site-packages"), *sys.path])
        command = [sys.executable, "-m", "crfl_core", "run", "--quiet", "--out", "here", *arguments]
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout == "here\n"
        assert "says process\n" in done.stderr


EXITS = """
import sys

from pydantic import field_validator
from crfl_core.extend import hookimpl
from {module} import {base}

class Exits({base}):
    {decorator}
    def {method}(self, *_, **__):
        sys.exit(7)
"""
SENTENCE = "SystemExit: 7: a plugin must not end the process"
RESUME = "resume with `crfl run runs/digits`\n"
HINT = "CRFL_DEBUG=1 shows the traceback\n"


def without_folder(text: str) -> str:
    """Replace the folder of every place in a message, which is another one in each test."""
    return re.sub(r"\([^ ()]*/", "(", text)


class TestExits:
    @every_called_method
    def test_a_method_that_exits_is_a_failure_of_its_plugin(
        self, called: Called, install: Install, crfl: Crfl, small: list[str]
    ) -> None:
        source = EXITS.format(module=called.module, base=called.base, method=called.method, decorator="")
        install("exiting-tools", "0.7", {f"crfl.{called.group}": {"exits": "Exits"}}, source)
        result = crfl("run", "--quiet", *small, "--set", called.setting_for("exits"))
        assert (result.returncode, result.stdout) == (2, "")
        first, *more = result.stderr.splitlines(keepends=True)
        assert SENTENCE in first
        assert "exiting_tools.py:11" in first
        assert more in ([HINT], [RESUME, HINT])

    def test_importing_one_is_a_sentence(self, install: Install, crfl: Crfl) -> None:
        install("exiting-tools", "0.7", {"crfl.trackers": {"exits": "Exits"}}, "import sys\nsys.exit(7)\n")
        result = crfl("run", "--quiet", "--set", "trackers=['exits']")
        assert result.returncode == 2
        told = f"tracker 'exits' of exiting-tools 0.7 cannot be imported: {SENTENCE} (exiting_tools.py:2)\n"
        assert without_folder(result.stderr).endswith(told)
        assert crfl("plugins", "--json").returncode == 0

    @pytest.mark.parametrize("loader", ["importlib.metadata", "importlib_metadata"])
    def test_the_line_is_the_plugins_whichever_library_loads_it(self, loader: str) -> None:
        """The second library takes the place of the first as soon as a tracker or an engine imports it."""
        loading = {"__name__": loader}
        exec(compile("def load(source, names):\n    exec(source, names)\n", f"{loader}.py", "exec"), loading)
        with pytest.raises(ZeroDivisionError) as stop:
            loading["load"](compile("\n1 / 0\n", "plugin.py", "exec"), {"__name__": "plugin"})  # type: ignore[operator]
        stop.value.__traceback__ = stop.tb.tb_next
        assert describe_exception(stop.value) == "ZeroDivisionError: division by zero (plugin.py:2)"

    @pytest.mark.parametrize(
        ("statement", "reason"),
        [
            ("sys.exit(7)", SENTENCE),
            ("{}['lost']", "KeyError: 'lost'"),
            ("1 / 0", "ZeroDivisionError: division by zero"),
        ],
    )
    def test_checking_its_options_is_one_too(self, install: Install, crfl: Crfl, statement: str, reason: str) -> None:
        source = (
            "import sys\nfrom pydantic import field_validator\nfrom crfl_trackers.jsonl import JsonLines\n"
            "class Exits(JsonLines):\n    @field_validator('path')\n    @classmethod\n"
            f"    def _check(cls, value):\n        {statement}\n"
        )
        install("exiting-tools", "0.7", {"crfl.trackers": {"exits": "Exits"}}, source)
        result = crfl("run", "--quiet", "--set", "trackers=[{type='exits', path='a'}]")
        assert result.returncode == 2
        assert without_folder(result.stderr) == (
            "error: --set trackers=[{type='exits', path='a'}]: trackers.0: tracker 'exits' of exiting-tools 0.7 "
            f"failed to check its options: {reason} (exiting_tools.py:8)\n"
        )

    def test_a_hook_that_exits_stops_the_run_with_a_sentence(
        self, install: Install, crfl: Crfl, small: list[str]
    ) -> None:
        source = EXITS.format(
            module="crfl_datasets.partitioners.random_splits",
            base="Iid",
            method="crfl_round_finished",
            decorator="@hookimpl",
        )
        install("exiting-tools", "0.7", {"crfl.partitioners": {"exits": "Exits"}}, source)
        result = crfl("run", "--quiet", *small, "--set", "partition=exits")
        assert (result.returncode, result.stdout) == (2, "")
        sentence = f"partitioner 'exits' of exiting-tools 0.7 failed in crfl_round_finished: {SENTENCE}"
        assert without_folder(result.stderr) == f"error: {sentence} (exiting_tools.py:11)\n{RESUME}{HINT}"

    def test_a_tracker_that_exits_is_disabled_as_after_any_failure(
        self, install: Install, crfl: Crfl, small: list[str]
    ) -> None:
        source = EXITS.format(
            module="crfl_core.extend", base="Tracker", method="crfl_round_finished", decorator="@hookimpl"
        )
        install("exiting-tools", "0.7", {"crfl.trackers": {"exits": "Exits"}}, source)
        result = crfl("run", "--quiet", "--out", "here", *small, "--set", "trackers=['exits']")
        assert (result.returncode, result.stdout) == (0, "here\n")
        assert without_folder(result.stderr) == (
            f"warning: tracker 'exits' of exiting-tools 0.7 failed in crfl_round_finished: {SENTENCE} "
            "(exiting_tools.py:11); the run continues without it\n"
        )

    def test_the_kit_reports_it_as_a_broken_promise(self, install: Install, crfl: Crfl) -> None:
        source = EXITS.format(module="crfl_aggregators.fedavg", base="FedAvg", method="weights", decorator="")
        install("exiting-tools", "0.7", {"crfl.aggregators": {"exits": "Exits"}}, source)
        result = crfl("plugins", "check", "exits", "--json")
        assert result.returncode == 1
        assert any(SENTENCE in line["message"] for line in json.loads(result.stdout))


def test_python_code_gets_an_exception_that_it_can_handle(install: Install, tmp_path: Path) -> None:
    source = EXITS.format(module="crfl_datasets.digits", base="Digits", method="read", decorator="")
    install("exiting-tools", "0.7", {"crfl.datasets": {"exits": "Exits"}}, source)
    with pytest.raises(crfl_core.CrflError, match=r"'exits' of exiting-tools 0\.7 failed: SystemExit: 7"):
        crfl_core.run({"dataset": "exits"}, out=tmp_path / "run")
