"""Run directories that cannot be used: one clear sentence that begins with the directory or its file."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cli.bad_input import Bad, Refused, npz


def damaged(command: str, name: str, content: bytes | None, *says: str) -> Bad:
    """A file of a run directory that cannot be used."""
    run = name.partition("/")[0]
    arguments = [command, run, *(["good.npz"] if command == "predict" else [])]
    return Bad(arguments, f"{name}: ", says, {name: content, "good.npz": npz(x=np.zeros((1, 64)))})


RUN_DIRECTORIES = {
    "out is no run": Bad(
        ["run", "--out", "other"],
        "other: exists but is not a run directory: choose another --out",
        (),
        {"other/notes": b""},
    ),
    "out is a file": Bad(["run", "--out", "notes"], "notes: exists but is not a run directory", (), {"notes": b""}),
    "out below a file": Bad(
        ["run", "--out", "notes/run"],
        "notes/run: cannot create the run directory: ",
        ["choose another --out"],
        {"notes": b""},
    ),
    "finished run": Bad(
        ["run", "--out", "finished"],
        "finished: holds a finished run: see it with `crfl show finished`",
        ["another --out", "--force"],
    ),
    "other config": Bad(
        ["run", "--out", "unfinished"],
        "unfinished: holds an unfinished run with another config: resume it with `crfl run unfinished`",
        ["--force"],
    ),
    "show nothing": Bad(["show", "nope"], "nope: not a run directory: give the path that `crfl run` printed"),
    "show a file": Bad(["show", "notes"], "notes: not a run directory", (), {"notes": b""}),
    "show an unfinished run": Bad(
        ["show", "unfinished"],
        "unfinished: the run is not finished: continue with `crfl run unfinished`",
    ),
    "resume nothing": Bad(["run", "nope"], "nope: "),
    "resume a directory": Bad(["run", "other"], "other: not a run directory", (), {"other/notes": b""}),
    "predict with nothing": Bad(["predict", "nope", "x.npz"], "nope: not a run directory"),
    "no metrics": damaged("show", "finished/metrics.json", None, "missing", "--force"),
    "cut metrics": damaged("show", "finished/metrics.json", b"{", "damaged", "Invalid JSON", "--force"),
    "empty audit": damaged("show", "finished/audit.json", b"{}", "damaged", "'certificates'", "--force"),
    "cut status": damaged("show", "finished/status.json", b"{", "damaged"),
    "wrong status": damaged("show", "finished/status.json", b"[]", "damaged: not a table"),
    "unknown state": damaged("show", "finished/status.json", b'{"format": 1, "state": "x"}', "no state 'x'"),
    "newer format": Bad(
        ["show", "finished"],
        "finished: written in format 3, this version of crfl reads format 1",
        ["environment.json"],
        {"finished/status.json": b'{"format": 3}'},
    ),
    "damaged model": damaged("predict", "finished/model.safetensors", b"x", "damaged", "--force"),
    "damaged ledger": damaged("predict", "finished/ledger.json", b"{}", "damaged"),
    "damaged clients": damaged("predict", "finished/clients.npz", b"x", "damaged: not an npz file of plain arrays"),
    "damaged rounds": damaged("predict", "finished/rounds.jsonl", b"{}\n", "damaged"),
    "damaged config": damaged("predict", "finished/config.toml", b"rounds =", "not valid TOML"),
    "missing rounds": Bad(
        ["predict", "finished", "good.npz"],
        "finished: the ledger must hold rounds 1 to 3, found 0",
        (),
        {"finished/rounds.jsonl": b"", "good.npz": npz(x=np.zeros((1, 64)))},
    ),
    "damaged checkpoint": damaged("run", "unfinished/checkpoint/state.safetensors", b"x", "damaged", "--force"),
    "checkpoint beyond the ledger": Bad(
        ["run", "unfinished"],
        "unfinished: the ledger ends before the checkpoint of round 2: start again with --force",
        (),
        {"unfinished/rounds.jsonl": b""},
    ),
}


@pytest.mark.parametrize("bad", RUN_DIRECTORIES.values(), ids=RUN_DIRECTORIES)
def test_a_run_directory_that_cannot_be_used_is_refused(bad: Bad, refused: Refused) -> None:
    refused(bad)
