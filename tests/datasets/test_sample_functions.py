"""A user's own function instead of a file: what it may return, and what is said when it fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crfl_datasets.arrays import Arrays
from pydantic import ValidationError

from crfl_core.extend import DataError, OptionError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the module `my_samples`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    def write(source: str) -> None:
        (tmp_path / "my_samples.py").write_text("import numpy as np\nx, y = np.eye(10), np.arange(10) % 2\n" + source)

    yield write
    sys.modules.pop("my_samples", None)


@pytest.mark.parametrize(
    ("returned", "tests"),
    [
        ("(x, y)", 2),
        ("(x, y, x[:5], y[:5])", 5),
        ("{'x': x, 'y': y, 'test_x': x[:3], 'test_y': y[:3]}", 3),
        ("Data(x, y, x[:4], y[:4], Domain(0, 1), ('a', 'b'))", 4),
    ],
)
def test_a_function_returns_arrays_or_data(module: Callable[[str], None], returned: str, tests: int) -> None:
    module(f"from crfl_core.extend import Data, Domain\ndef load():\n    return {returned}\n")
    data = Arrays(callable="my_samples:load").load()
    assert (data.x.shape[1], len(data.test_x)) == (10, tests)


def test_a_function_may_stand_in_a_file_and_a_bare_name_is_none(
    module: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module("def load(): return x, y\n")
    monkeypatch.chdir(tmp_path)
    assert Arrays(callable="my_samples.py:load").load().x.shape[1] == 10
    with pytest.raises(ValidationError, match=r'must be "package\.module:name"'):
        Arrays(callable="my_samples")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.such.module:load", "cannot be imported: ModuleNotFoundError: No module named 'no'"),
        ("my_samples:other", "'my_samples:other' cannot be imported: AttributeError"),
        ("my_samples.py:other", "my_samples.py:other' cannot be imported: FileNotFoundError"),
    ],
)
def test_a_function_that_is_not_there_is_named(module: Callable[[str], None], name: str, message: str) -> None:
    module("def load(): return x, y\n")
    with pytest.raises(OptionError, match=re.escape(message)):
        Arrays(callable=name).read()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('disk full')", "my_samples:load() failed: RuntimeError: disk full"),
        ("return x", "must return a Data, (x, y), (x, y, test_x, test_y) or a mapping with these names, found ndarray"),
        ("return x, y, x", "found tuple of 3"),
        ("return {'x': x}", "my_samples:load: there is no array 'y', found x"),
        ("return [[1, 2], [3]], [0, 1]", "my_samples:load: inputs, labels and groups must be arrays"),
        ("return {1: x}", "my_samples:load: there is no array 'x', found 1"),
        ("raise SystemExit(3)", "my_samples:load() failed: SystemExit: 3"),
        ("return x, y[:9]", "labels must be (10,), one for each input, found (9,)"),
    ],
)
def test_what_a_function_does_wrong_is_said(module: Callable[[str], None], body: str, message: str) -> None:
    module(f"def load():\n    {body}\n")
    with pytest.raises(DataError, match=re.escape(message)):
        Arrays(callable="my_samples:load").read()
