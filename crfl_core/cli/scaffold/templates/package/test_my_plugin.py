"""The plugin keeps what its kind promises, and its example runs."""

from collections.abc import Callable
from pathlib import Path

from crfl import run
from crfl_core.testing import parametrize_with_checks

from crfl_my_plugin import MyPlugin

EXAMPLE = Path(__file__).parents[1] / "example.toml"


@parametrize_with_checks([MyPlugin()])
def test_it_keeps_the_contract_of_its_kind(check: Callable[[], object]) -> None:
    check()


def test_the_example_runs(tmp_path: Path) -> None:
    result = run(EXAMPLE, overrides=["storage.figures=[]"], out=tmp_path / "run")
    assert result.metrics.accuracy > 0.5
    assert "crfl-my-plugin" in (result.path / "environment.json").read_text(encoding="utf-8")
