"""Flower is there, or the tests say so; and nothing that they start is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ABSENT = "flwr is not installed: pip install -c constraints.txt 'crfl[flower]'"
if find_spec("flwr") is None and os.environ.get("CI"):
    raise RuntimeError(ABSENT)


class Absent(pytest.Module):
    """A module of tests that cannot be imported here."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip(ABSENT, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Say that tests are left out, and why, if Flower is not here."""
    return Absent.from_parent(parent, path=module_path) if find_spec("flwr") is None else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of them."""
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker("flower")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let Flower report and install nothing, and keep its files with the test's."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """After the test no process is there whose command names its folder."""
    yield
    until = time.monotonic() + 20
    while (left := processes_of(tmp_path)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left


def processes_of(folder: Path) -> list[str]:
    """List the commands of all processes that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if str(folder) in command and int(entry.parent.name) != os.getpid():
            found.append(command)
    return found
