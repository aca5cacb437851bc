"""The command keeps what its kind promises, and does what it says."""

from collections.abc import Callable
from pathlib import Path

import pytest
from crfl import run
from crfl_core.testing import parametrize_with_checks

from crfl_my_plugin import my_plugin


@parametrize_with_checks([my_plugin])
def test_it_keeps_the_contract_of_its_kind(check: Callable[[], object]) -> None:
    check()


def test_there_is_a_line_for_every_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run({"rounds": 2, "votes": {"models": 20}, "storage": {"figures": []}}, out=tmp_path / "run")
    my_plugin(result.path)
    near = capsys.readouterr().out.splitlines()
    my_plugin(result.path, radius=1e9)
    far = capsys.readouterr().out.splitlines()
    assert len(near) == len(far) == len(result.metrics.curves)
    assert all(line.startswith("0.000  ") for line in far)
