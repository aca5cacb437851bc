"""`crfl plot`: figures as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Crfl = Callable[..., CompletedProcess[str]]


def test_it_writes_what_is_asked_for_in_every_format(finished_run: Path, crfl: Crfl, tmp_path: Path) -> None:
    formats = ("--format", "svg", "--format", "pdf", "--format", "png")
    done = crfl("plot", finished_run, "--figure", "curves", "--figure", "weights", "--out", "shown", *formats)
    assert done.returncode == 0
    names = [f"shown/{name}.{suffix}" for name in ("curves", "weights") for suffix in ("svg", "pdf", "png")]
    assert done.stdout.split() == names
    starts = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    for name in names:
        assert (tmp_path / name).read_bytes().startswith(starts[name[-3:]])


def test_without_names_it_draws_all_that_can_be_drawn_and_names_the_rest(finished_run: Path, crfl: Crfl) -> None:
    done = crfl("plot", finished_run)
    assert {f"figures/{name}.png" for name in ("curves", "rounds", "samples", "flips")} <= {*done.stdout.split()}
    assert done.stderr == "not drawn: collective, closeness, backdoor, matrix; --figure NAME says why\n"


def test_the_run_directory_stays_as_it_is(finished_run: Path, crfl: Crfl) -> None:
    crfl("plot", finished_run, "--figure", "rounds")
    assert crfl("verify", finished_run).returncode == 0


def test_bad_input_is_one_sentence(finished_run: Path, crfl: Crfl, tmp_path: Path) -> None:
    done = crfl("plot", finished_run, "--figure", "curve")
    assert (done.returncode, done.stderr) == (2, "error: there is no figure 'curve': did you mean 'curves'?\n")
    done = crfl("plot", finished_run, "--figure", "matrix")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: figure 'matrix' needs runs with different attacks or defences\n"
    (tmp_path / "file").write_text("")
    done = crfl("plot", finished_run, "--figure", "rounds", "--out", "file")
    assert done.returncode == 2
    assert "file: figures cannot be written: File exists: choose another --out" in done.stderr
    assert crfl("plot", tmp_path / "nothing").returncode == 2
    assert crfl("plot", finished_run, "--format", "gif").returncode == 2
