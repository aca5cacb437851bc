"""Whose code runs: what a config may import, and what a run directory that somebody else made may not."""

from __future__ import annotations

import re
import shutil
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
from crfl_core.files.ownership import local_key
from tests.oracle import sealed, tiny

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


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts this process into the place of one of several people, each with an installation of their own."""

    def put(person: str) -> None:
        monkeypatch.setenv("CRFL_CONFIG_DIR", str(tmp_path / "home" / person))

    return put


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
def received(tools: None, at_home: Callable[[str], None], tmp_path: Path) -> Path:
    """A finished run that somebody else made, with a certificate of a package that is installed here, too."""
    at_home("sender")
    config = tiny(rounds=2, certificates=["paper", "mine"])
    path = crfl_core.run(config, out=tmp_path / "run").path
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 64)))
    at_home("reader")
    forget()
    return path


class TestRunsOfOthers:
    def test_show_imports_nothing(self, received: Path, crfl: Crfl) -> None:
        result = crfl("show", received)
        assert result.returncode == 0
        assert "accuracy " in result.stdout
        assert "robust_tools" not in sys.modules

    @pytest.mark.parametrize("command", ["certify", "predict"])
    def test_what_would_run_code_says_so_and_imports_nothing(self, command: str, received: Path, crfl: Crfl) -> None:
        result = crfl(command, received, *(["new.npz"] if command == "predict" else []))
        assert (result.returncode, result.stdout) == (2, "")
        assert (
            f"certificate 'mine' of robust-tools 1.2 is blocked by the origin of {received}, which was not made here: "
            "read its config.toml, then give --trust" in result.stderr
        )
        assert "robust_tools" not in sys.modules

    @pytest.mark.parametrize("command", ["certify", "predict"])
    def test_trust_is_a_word_of_the_reader(self, command: str, received: Path, crfl: Crfl) -> None:
        result = crfl(command, received, *(["new.npz"] if command == "predict" else []), "--trust")
        assert result.returncode == 0
        assert "mine" in result.stdout

    def test_the_list_in_the_run_does_not(self, tools: None, at_home: Callable[[str], None], tmp_path: Path) -> None:
        """It was written by whoever made the run."""
        at_home("sender")
        config = tiny(rounds=2, certificates=["mine"], plugins={"allow": ["robust-tools"]})
        run = crfl_core.run(config, out=tmp_path / "run")
        at_home("reader")
        forget()
        with pytest.raises(crfl_core.CrflError, match="which was not made here"):
            crfl_core.certify(crfl_core.load(run.path))
        assert "robust_tools" not in sys.modules

    def test_explain_shows_what_was_written_and_imports_nothing(self, received: Path, crfl: Crfl) -> None:
        result = crfl("explain", received)
        assert result.returncode == 0
        assert 'certificates.1.type = "mine"' in result.stdout
        assert "which was not made here" in result.stderr
        assert "robust_tools" not in sys.modules

    def test_a_run_of_ones_own_needs_no_word(self, received: Path, at_home: Callable[[str], None], crfl: Crfl) -> None:
        """Wherever it was moved to."""
        at_home("sender")
        moved = received.rename(received.with_name("moved"))
        assert crfl("certify", moved).returncode == 0

    def test_a_run_of_ones_own_with_another_config_is_one_of_others(
        self, received: Path, at_home: Callable[[str], None], crfl: Crfl
    ) -> None:
        """Published, altered, and sent back with a manifest that fits."""
        at_home("sender")
        config = received / "config.toml"
        config.write_text(config.read_text().replace("seed = 1", "seed = 2"))
        sealed(received)
        assert "which was not made here" in crfl("certify", received).stderr
        assert "robust_tools" not in sys.modules

    def test_new_votes_on_data_of_a_function_need_trust(
        self, tools: None, at_home: Callable[[str], None], tmp_path: Path
    ) -> None:
        at_home("sender")
        run = crfl_core.run(own_data(), out=tmp_path / "run")
        at_home("reader")
        forget()
        with pytest.raises(ConfigError, match="the code 'robust_tools:samples' is blocked by the origin of"):
            crfl_core.certify(crfl_core.load(run.path), ["votes.models=16"])
        assert "robust_tools" not in sys.modules
        assert crfl_core.certify(crfl_core.load(run.path, trust=True), ["votes.models=16"]).needs == "votes"


class Impatient(Tracker):
    """Stops a run in its first round."""

    @hookimpl
    def crfl_round_finished(self) -> None:
        raise KeyboardInterrupt


def test_a_run_of_others_is_resumed_with_trust_only(at_home: Callable[[str], None], tmp_path: Path) -> None:
    """Even if all of its code is crfl's: its trackers would write where its config says."""
    at_home("sender")
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(tiny(), out=tmp_path / "run", trackers=[Impatient()])
    at_home("reader")
    with pytest.raises(StoreError, match="was not made here, and resuming does what its config says, with your rights"):
        crfl_core.resume(tmp_path / "run")
    assert crfl_core.resume(tmp_path / "run", trust=True).metrics.accuracy > 0


def test_the_key_is_readable_by_its_owner_alone(at_home: Callable[[str], None], tmp_path: Path) -> None:
    at_home("owner")
    key = local_key()
    assert key == local_key()
    file = tmp_path / "home" / "owner" / "key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes() == key
    at_home("other")
    assert local_key() != key


def test_where_no_key_can_be_kept_every_run_is_one_of_others(
    monkeypatch: pytest.MonkeyPatch, tools: None, tmp_path: Path
) -> None:
    """Also those that were made there; the process that makes one may read it all the same."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("CRFL_CONFIG_DIR", str(tmp_path / "file"))
    run = crfl_core.run(tiny(rounds=2, certificates=["mine"]), out=tmp_path / "run")
    assert run.certified
    with pytest.raises(crfl_core.CrflError, match="which was not made here"):
        crfl_core.certify(crfl_core.load(run.path))
    shutil.rmtree(run.path)
