"""A run directory of another person: nothing is written through its links, and only bounded regular files are read."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from numpy.lib import format as npy_format

import crfl_core
from crfl_core.errors import StoreError
from crfl_core.files import atomic_files, bounded_reading
from crfl_core.files.atomic_files import replace_file
from crfl_core.runs.run_directory import RunDirectory
from tests.oracle import contents, sealed
from tests.runs.runs import CONFIG, finished, interrupted

Crfl = Callable[..., CompletedProcess[str]]
SECRET = "export PATH=/bin\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("links") / "run")


@pytest.fixture(scope="module")
def halted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interrupted(tmp_path_factory.mktemp("links") / "run")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def unfinished(halted: Path, tmp_path: Path) -> Path:
    """An interrupted run of one's own."""
    return Path(shutil.copytree(halted, tmp_path / "run"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file of the user that a link could lead to."""
    file = tmp_path / "bashrc"
    file.write_text(SECRET)
    return file


@pytest.mark.parametrize("name", [".report.html.tmp", "report.html"])
def test_a_report_is_not_written_through_a_link(name: str, run: Path, target: Path, crfl: Crfl) -> None:
    (run / name).symlink_to(target)
    crfl("open", run)
    assert target.read_text() == SECRET


@pytest.mark.parametrize("name", [".status.json.tmp", ".lock", "events.jsonl", "votes", "environment.json"])
def test_a_run_with_a_link_is_not_resumed(name: str, unfinished: Path, target: Path) -> None:
    """Whatever the run or a tracker would write, also through the temporary names of earlier versions."""
    (unfinished / name).unlink(missing_ok=True)
    (unfinished / name).symlink_to(target)
    with pytest.raises(StoreError, match=r"is a link, and nothing is|symbolic links|json: damaged"):
        crfl_core.resume(unfinished)
    assert target.read_text() == SECRET


def test_a_link_that_stays_inside_of_a_run_does_not_keep_it_from_being_resumed(unfinished: Path) -> None:
    """As some trackers make them: the latest of several folders."""
    (unfinished / "wandb" / "run-1").mkdir(parents=True)
    (unfinished / "wandb" / "latest").symlink_to("run-1")
    assert crfl_core.resume(unfinished).metrics.accuracy > 0


def test_a_linked_lock_does_not_empty_a_file(run: Path, target: Path) -> None:
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(target)
    with pytest.raises(StoreError, match=r"\.lock: cannot be written: .*remove the link"):
        crfl_core.run(CONFIG, out=run, force=True)
    assert target.read_text() == SECRET
    assert crfl_core.load(run).metrics.accuracy > 0


def test_an_answer_is_not_saved_through_a_link(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "what-if")
    (tmp_path / "elsewhere").mkdir()
    (run / "what-if").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="what-if: is a link, and nothing is written through links"):
        crfl_core.certify(crfl_core.load(run), ["threat.clients=2"], save="mine")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_receipt_replaces_a_link(run: Path, target: Path, crfl: Crfl) -> None:
    run.with_name("run.receipt.json").symlink_to(target)
    assert crfl("receipt", run).returncode == 0
    assert target.read_text() == SECRET


def test_temporary_names_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    create = atomic_files.open_new

    def watch(path: Path) -> int:
        seen.append(path.name)
        return create(path)

    monkeypatch.setattr(atomic_files, "open_new", watch)
    for _ in range(2):
        replace_file(tmp_path / "file", b"content")
    assert len(set(seen)) == 2
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(FileExistsError):
        create(tmp_path / "link")


@pytest.mark.parametrize("name", ["metrics.json", "status.json", "votes/seed.json", "clients.npz"])
def test_a_fifo_hangs_no_command(name: str, run: Path, crfl: Crfl) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    if name == "votes/seed.json":
        manifest = json.loads((run / "manifest.json").read_text())
        manifest["files"][name] = 64 * "0"
        (run / "manifest.json").write_text(json.dumps(manifest))
        sealed(run, keep_manifest=True)
    result = crfl("verify", run)
    assert result.returncode == 2
    assert f"{name}: cannot be read: it is not a regular file" in result.stderr


def test_a_fifo_as_a_lock_hangs_no_command(unfinished: Path) -> None:
    (unfinished / ".lock").unlink()
    os.mkfifo(unfinished / ".lock")
    with pytest.raises(StoreError, match=r"\.lock: cannot be written: .*not a regular file"):
        crfl_core.resume(unfinished)


def test_a_file_that_is_larger_than_memory_is_refused(run: Path, crfl: Crfl) -> None:
    """A sparse file: it takes no space, and terabytes to read."""
    with (run / "metrics.json").open("wb") as file:
        file.truncate(2**42)
    result = crfl("verify", run)
    assert result.returncode == 2
    assert "metrics.json: cannot be read: it has 4,398,046,511,104 bytes, and at most" in result.stderr


@pytest.mark.parametrize("name", ["../notes.txt", "/etc/passwd", "votes/../../notes.txt", "", "."])
def test_a_manifest_cannot_name_files_outside_of_the_run(name: str, run: Path, crfl: Crfl) -> None:
    (run.parent / "notes.txt").write_text("mine")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["files"][name] = 64 * "0"
    (run / "manifest.json").write_text(json.dumps(manifest))
    sealed(run, keep_manifest=True)
    result = crfl("verify", run)
    assert result.returncode == 2
    assert f"it lists {name!r}, which is outside of the directory" in result.stderr


def npz_of(shape: tuple[int, ...], content: bytes) -> bytes:
    """An npz file with one array whose header claims a shape."""
    header = io.BytesIO()
    npy_format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("delta.npy", header.getvalue() + content)
    return packed.getvalue()


def test_an_array_that_unfolds_to_more_than_memory_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "clients.npz").write_bytes(npz_of((2**20,), bytes(2**23)))
    assert (run / "clients.npz").stat().st_size < 2**16
    sealed(run)
    monkeypatch.setattr(bounded_reading, "free_bytes", lambda: 2**22)
    with pytest.raises(StoreError, match=r"clients\.npz: damaged: .* its arrays unfold to 8,388,\d+ bytes"):
        RunDirectory(run).read_arrays("clients.npz")


@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6)])
def test_an_array_that_claims_more_than_it_holds_is_refused(shape: tuple[int, ...], run: Path) -> None:
    (run / "clients.npz").write_bytes(npz_of(shape, bytes(8)))
    sealed(run)
    with pytest.raises(StoreError, match=r"delta\.npy claims more numbers than it holds"):
        RunDirectory(run).read_arrays("clients.npz")


def test_ordinary_arrays_are_read(tmp_path: Path) -> None:
    arrays = {"a": np.zeros((3, 4)), "b": np.array("text"), "c": np.zeros(0, np.int64), "d": np.float32(2)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    read = bounded_reading.read_arrays(buffer.getvalue())
    assert read.keys() == arrays.keys()
    assert all(np.array_equal(read[name], np.asarray(array)) for name, array in arrays.items())


def test_links_may_be_read(run: Path, tmp_path: Path) -> None:
    """Tools for large files put a link in the place of a file; its content is compared with its digest."""
    before = contents(run)
    shutil.move(run / "model.safetensors", tmp_path / "annex")
    (run / "model.safetensors").symlink_to(tmp_path / "annex")
    assert crfl_core.load(run).parameters.numel() > 0
    assert contents(run) == before


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("audit.json", '"status": "held"', '"status": "sworn"'),
        ("audit.json", '"sound": true', '"sound": "perhaps"'),
        ("audit.json", '"checks": [', '"checks": [7, '),
        ("audit.json", '"level": null', '"level": "galaxy"'),
        ("metrics.json", '"level": "client"', '"level": "galaxy"'),
        ("metrics.json", '"statement": "tail"', '"statement": "gospel"'),
    ],
)
def test_a_forged_word_is_a_sentence(name: str, before: str, after: str, run: Path, crfl: Crfl) -> None:
    """With digests that fit, only the meaning of a word protects the tables that print it."""
    text = (run / name).read_text()
    text = text if before in text else json.dumps(json.loads(text), indent=None)
    assert before in text
    (run / name).write_text(text.replace(before, after))
    sealed(run)
    for options in ((), ("--full",)):
        result = crfl("show", run, *options)
        assert result.returncode == 2
        assert f"{name}: damaged: " in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("text", ["a: &a [*a]", "x: &x {y: 1, z: *x}", "a: {b: &b {c: [{d: *b}]}}"])
def test_a_config_that_contains_itself_is_a_sentence(text: str, tmp_path: Path, crfl: Crfl) -> None:
    (tmp_path / "config.yaml").write_text(text)
    result = crfl("run", "config.yaml")
    assert (result.returncode, result.stderr) == (
        2,
        "error: config.yaml: an alias stands inside of what it stands for: remove it\n",
    )


def test_aliases_of_aliases_do_not_fill_memory(tmp_path: Path, crfl: Crfl) -> None:
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{new}: &{new} [{', '.join(10 * [f'*{old}'])}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    assert "has more than 100,000 values: write fewer aliases" in crfl("run", "config.yaml").stderr


def test_aliases_that_are_not_nested_may_be_written(tmp_path: Path, crfl: Crfl) -> None:
    text = "votes: &votes {models: 20}\ncertificates: [{type: paper, votes: *votes}]\n"
    (tmp_path / "config.yaml").write_text(text)
    assert crfl("explain", "config.yaml").returncode == 0


@pytest.mark.parametrize("place", ["/dev/zero", "fifo"])
def test_endless_files_are_not_read(place: str, tmp_path: Path, run: Path, crfl: Crfl) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "config.toml").write_text(f'extends = "{place}"')
    commands: list[tuple[object, ...]] = [("run", "config.toml"), ("run", place), ("predict", run, place)]
    options = ("model.start", "dataset.path", "partition.path")
    kinds = ("--set", "dataset.type=mnist", "--set", "partition.type=file")
    commands += [("run", "--dry-run", *kinds, "--set", f"{option}={place}") for option in options]
    for command in commands:
        result = crfl(*command)
        assert result.returncode == 2
        assert "not a regular file" in result.stderr, command


def test_a_report_that_does_not_fit_on_the_disk_leaves_nothing(
    run: Path, crfl: Crfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        result = crfl("open", run)
    assert result.returncode == 2
    assert "report.html: cannot be written: No space left on device: choose another --out" in result.stderr
    assert contents(run) == before
