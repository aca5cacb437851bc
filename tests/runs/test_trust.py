"""Code that runs: what a config may import, and what a run directory may not without trust."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core import load_config
from crfl_core.errors import StoreError
from crfl_core.extend import ConfigError, Tracker, hookimpl
from tests.oracle import tiny

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

TOOLS = """
import numpy as np
from crfl_certificates.paper import Paper

class Mine(Paper): ...

def samples():
    x = np.linspace(0.0, 1.0, 480).reshape(120, 4)
    y = np.arange(120) % 3
    return x, y, x[:30], y[:30]
"""
POINTS = {"crfl.certificates": {"mine": "Mine"}}


@pytest.fixture
def tools(install: Install) -> None:
    """A package with a certificate, and a function that makes data."""
    install("robust-tools", "1.2", POINTS, TOOLS)


def forget() -> None:
    """As if the process were a new one."""
    sys.modules.pop("robust_tools", None)


def own_data(**changes: Any) -> dict[str, Any]:
    """A run on data that a function makes."""
    data = {"type": "arrays", "callable": "robust_tools:samples", "domain": [0.0, 1.0]}
    return tiny(dataset=data, rounds=2, attack="none", partition={"type": "iid", "clients": 4}, **changes)


class TestAllowList:
    @pytest.mark.parametrize("allow", [[], ["crfl"], ["other-tools"], ["robust-tools-extra"]])
    def test_a_function_that_is_not_listed_is_not_even_imported(
        self, allow: list[str], tools: None, tmp_path: Path
    ) -> None:
        message = (
            "dataset.callable = 'robust_tools:samples': the code 'robust_tools:samples' is blocked by plugins.allow, "
            "which does not list it: if you trust it, add 'robust-tools' there"
        )
        with pytest.raises(ConfigError, match=re.escape(message)):
            crfl_core.run(own_data(plugins={"allow": allow}), out=tmp_path / "run")
        assert "robust_tools" not in sys.modules
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("allow", [None, ["robust-tools"], ["Robust_Tools", "other"]])
    def test_a_function_that_is_listed_runs(self, allow: list[str] | None, tools: None, tmp_path: Path) -> None:
        config = own_data() if allow is None else own_data(plugins={"allow": allow})
        assert crfl_core.run(config, out=tmp_path / "run").ledger.facts.inputs == 4

    def test_a_module_may_be_listed_by_the_distribution_that_holds_it(self) -> None:
        """scikit-learn is imported as sklearn."""
        data = {"type": "arrays", "callable": "sklearn.datasets:load_iris"}
        assert load_config(tiny(dataset=data, plugins={"allow": ["scikit-learn"]})).config.dataset is not None
        with pytest.raises(ConfigError, match="is blocked by"):
            load_config(tiny(dataset=data, plugins={"allow": ["scipy"]}))


@pytest.fixture
def received(tools: None, tmp_path: Path) -> Path:
    """A finished run with a certificate of a package that is installed, as another person may have sent it."""
    config = tiny(rounds=2, certificates=["paper", "mine"])
    path = crfl_core.run(config, out=tmp_path / "run").path
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 64)))
    forget()
    return path


class TestRunDirectories:
    def test_show_imports_nothing(self, received: Path, crfl: Crfl) -> None:
        result = crfl("show", received)
        assert result.returncode == 0
        assert "accuracy " in result.stdout
        assert "robust_tools" not in sys.modules

    @pytest.mark.parametrize("command", ["certify", "predict"])
    def test_what_would_run_third_party_code_says_so_and_imports_nothing(
        self, command: str, received: Path, crfl: Crfl
    ) -> None:
        result = crfl(command, received, *(["new.npz"] if command == "predict" else []))
        assert (result.returncode, result.stdout) == (2, "")
        assert (
            f"certificate 'mine' of robust-tools 1.2 is blocked by the run directory {received}, which may name any "
            "code: read its config.toml, then give --trust" in result.stderr
        )
        assert "robust_tools" not in sys.modules

    @pytest.mark.parametrize("command", ["certify", "predict"])
    def test_with_trust_it_runs(self, command: str, received: Path, crfl: Crfl) -> None:
        result = crfl(command, received, *(["new.npz"] if command == "predict" else []), "--trust")
        assert result.returncode == 0
        assert "mine" in result.stdout

    def test_the_allow_list_in_the_run_does_not_count(self, tools: None, tmp_path: Path) -> None:
        """The person who made the run wrote it."""
        config = tiny(rounds=2, certificates=["mine"], plugins={"allow": ["robust-tools"]})
        run = crfl_core.run(config, out=tmp_path / "run")
        assert run.certified  # the process that made a run may read it
        forget()
        with pytest.raises(crfl_core.CrflError, match="which may name any code"):
            crfl_core.certify(crfl_core.load(run.path))
        assert "robust_tools" not in sys.modules

    def test_explain_shows_what_was_written_and_imports_nothing(self, received: Path, crfl: Crfl) -> None:
        result = crfl("explain", received)
        assert result.returncode == 0
        assert 'certificates.1.type = "mine"' in result.stdout
        assert "which may name any code" in result.stderr
        assert "robust_tools" not in sys.modules

    def test_new_votes_on_data_of_a_function_need_trust(self, tools: None, tmp_path: Path) -> None:
        run = crfl_core.run(own_data(), out=tmp_path / "run")
        forget()
        with pytest.raises(ConfigError, match="the code 'robust_tools:samples' is blocked by the run directory"):
            crfl_core.certify(crfl_core.load(run.path), ["votes.models=16"])
        assert "robust_tools" not in sys.modules
        assert crfl_core.certify(crfl_core.load(run.path, trust=True), ["votes.models=16"]).needs == "votes"

    def test_training_again_with_third_party_code_needs_trust(self, received: Path, crfl: Crfl) -> None:
        result = crfl("verify", received, "--recompute")
        assert result.returncode == 2
        assert "which may name any code: read its config.toml, then give --trust" in result.stderr
        assert "robust_tools" not in sys.modules
        assert crfl("verify", received, "--recompute", "--trust").returncode == 0


class Impatient(Tracker):
    """Stops a run in its first round."""

    @hookimpl
    def crfl_round_finished(self) -> None:
        raise KeyboardInterrupt


def interrupted(path: Path, **changes: Any) -> Path:
    """Return an unfinished run."""
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(tiny(**changes), out=path, trackers=[Impatient()])
    return path


class TestResume:
    def test_a_run_of_plugins_of_crfl_needs_no_trust(self, tmp_path: Path) -> None:
        path = interrupted(tmp_path / "run", trackers=["jsonl"])
        assert crfl_core.resume(path).metrics.accuracy > 0

    def test_third_party_code_needs_trust(self, tools: None, tmp_path: Path) -> None:
        path = interrupted(tmp_path / "run", certificates=["mine"])
        forget()
        with pytest.raises(crfl_core.CrflError, match="which may name any code"):
            crfl_core.resume(path)
        assert "robust_tools" not in sys.modules
        assert crfl_core.resume(path, trust=True).metrics.accuracy > 0

    def test_a_tracker_that_writes_where_the_config_says_needs_trust(self, tmp_path: Path) -> None:
        target = tmp_path / "events.jsonl"
        path = interrupted(tmp_path / "run", trackers=[{"type": "jsonl", "path": str(target)}])
        before = target.read_bytes()
        with pytest.raises(StoreError, match=r"trackers\.0\.path = .* decides where the run writes or connects to"):
            crfl_core.resume(path)
        assert target.read_bytes() == before
        assert crfl_core.resume(path, trust=True).metrics.accuracy > 0
