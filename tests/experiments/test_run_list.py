"""`crfl ls` lists every run, also damaged ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from crfl_experiments.run_list import list_runs


@pytest.mark.parametrize("content", [b"", b"{", b'{"kind": "recipe"}', None])
def test_a_run_with_a_damaged_marker_is_listed_as_damaged(
    content: bytes | None, finished_run: Path, tmp_path: Path
) -> None:
    for name in ("good", "bad"):
        shutil.copytree(finished_run, tmp_path / name)
    if content is None:
        (tmp_path / "bad/crfl.json").unlink()
    else:
        (tmp_path / "bad/crfl.json").write_bytes(content)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/status.json").write_text("{}")
    assert [(one.name, one.state) for one in list_runs(tmp_path)] == [("bad", "damaged"), ("good", "finished")]
