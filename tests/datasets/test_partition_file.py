"""A partition from a file: what it may say, what is refused, and what is recorded of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core.extend import ConfigError, CrflError
from crfl_core.records.inputs import partition_digest
from tests.oracle import federation_of, tiny

SAMPLES = len(federation_of(tiny()).data.x)
OWNER = np.arange(SAMPLES) ** 2 % 7 % 3
ROWS = [np.flatnonzero(client == OWNER).tolist() for client in range(3)]


def config(path: Path, **changes: Any) -> dict[str, Any]:
    """The small config with a partition from a file, without an attack."""
    return tiny(partition={"type": "file", "path": str(path)}, attack="none", **changes)


def written(folder: Path, content: Any, name: str = "clients.json") -> Path:
    """A partition as JSON."""
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "clients.npz", client=OWNER)
    files = [
        tmp_path / "clients.npz",
        written(tmp_path, OWNER.tolist(), "owners.json"),
        written(tmp_path, ROWS, "rows.json"),
        written(tmp_path, dict(zip(("Ann", "Bob", "Cleo"), ROWS, strict=True)), "named.json"),
    ]
    federations = [federation_of(config(path)) for path in files]
    for federation in federations:
        assert [rows.tolist() for rows in federation.data.partition] == ROWS
        assert federation.facts.partition_digest == partition_digest([np.array(rows) for rows in ROWS])
    assert [federation.data.client_names for federation in federations] == [(), (), (), ("Ann", "Bob", "Cleo")]


def test_no_seed_changes_it_and_another_file_has_another_digest(tmp_path: Path) -> None:
    path = written(tmp_path, OWNER.tolist())
    facts = [federation_of(config(path, seed=seed)).facts for seed in (0, 1)]
    assert facts[0].partition_digest == facts[1].partition_digest
    turned = federation_of(config(written(tmp_path, (2 - OWNER).tolist(), "other.json")))
    assert turned.facts.partition_digest not in (facts[0].partition_digest, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (OWNER.tolist()[1:], f"the client of {SAMPLES - 1} samples, but {SAMPLES} are for training"),
        ([0.5] * SAMPLES, "must be whole numbers, found float64"),
        ([-1] + [0] * (SAMPLES - 1), r"clients are 0, 1, 2, \.\.\., found -1 to 0"),
        ([0, 2] * (SAMPLES // 2), "client 1 of 3 has no samples"),
        ([ROWS[0], ROWS[1], []], "the rows of client 2 must be whole numbers, found none"),
        ([ROWS[0], ROWS[1]], f"row {ROWS[2][0]} has no clients"),
        ([*ROWS, [7]], "row 7 has 2 clients"),
        ([*ROWS, [SAMPLES]], f"there is no row {SAMPLES}"),
        ([ROWS[0], 3], "must be a list of whole numbers"),
        ("all clients", "must be whole numbers"),
        ([], "must be whole numbers, found none"),
    ],
)
def test_what_is_no_partition_is_refused_with_the_file_and_the_key(content: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigError, match=message) as caught:
        federation_of(config(path))
    assert caught.value.key == "partition.path"
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"[0, 1", "cannot be understood"),
        ("a.json", b"[" * 100_000, "cannot be understood"),
        ("a.npz", b"PK nothing", "cannot be understood"),
        ("a.csv", b"0", "its name says neither .npz nor .json"),
        ("a.json", None, "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_refused(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        federation_of(config(tmp_path / name))


def test_a_run_is_not_resumed_with_another_partition(tmp_path: Path) -> None:
    path = written(tmp_path, OWNER.tolist())
    run = crfl_core.run(config(path), out=tmp_path / "run")
    assert run.ledger.facts.partition_digest == partition_digest([np.array(rows) for rows in ROWS])
    swapped = OWNER.copy()
    first, second = ROWS[0][0], ROWS[1][0]
    swapped[[first, second]] = swapped[[second, first]]
    written(tmp_path, swapped.tolist())
    with pytest.raises(CrflError, match="partition_digest"):
        run.directory.check_facts(federation_of(config(path)).facts)
