"""Inputs that cannot be predicted: one clear sentence that begins with their file."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cli.bad_input import Bad, Refused, npz


def inputs(content: bytes, *says: str) -> Bad:
    """A wrong file of inputs to predict."""
    return Bad(["predict", "finished", "inputs.npz"], "inputs.npz: ", says, {"inputs.npz": content})


PREDICT_INPUTS = {
    "missing file": Bad(["predict", "finished", "x.npz"], "x.npz: ", ["No such file"]),
    "wrong shape": inputs(npz(x=np.zeros((2, 63))), "x must be numbers of shape (samples, 64), found (2, 63)"),
    "no rows": inputs(npz(x=np.zeros((0, 64))), "found (0, 64)"),
    "a single number": inputs(npz(x=3.0), "found ()"),
    "text": inputs(npz(x=np.full((1, 64), "a")), "must be numbers"),
    "not finite": inputs(npz(x=np.full((2, 64), np.nan)), "row 0 is not finite: remove or fill it"),
    "no x": inputs(npz(y=np.zeros((2, 64))), "has no array `x`, found y", "np.savez(file, x=inputs)"),
    "objects": inputs(npz(x=np.array([[None] * 64])), "not an npz or npy file of plain numbers"),
    "no npz": inputs(b"hello", "not an npz or npy file of plain numbers", "np.savez(file, x=inputs)"),
    "empty": inputs(b"", "not an npz or npy file of plain numbers"),
    "cut off": inputs(npz(x=np.zeros((2, 64)))[:200], "not an npz or npy file of plain numbers"),
    "a table for a run on arrays": Bad(
        ["predict", "finished", "new.csv"], "new.csv: new inputs for this dataset are .npz", [], {"new.csv": b"a\n1\n"}
    ),
    "out in no directory": Bad(
        ["predict", "finished", "good.npz", "--out", "no/where.csv"],
        "no/where.csv: cannot be written: ",
        ["choose another --out"],
        {"good.npz": npz(x=np.zeros((1, 64)))},
    ),
}


@pytest.mark.parametrize("bad", PREDICT_INPUTS.values(), ids=PREDICT_INPUTS)
def test_inputs_that_cannot_be_predicted_are_refused(bad: Bad, refused: Refused) -> None:
    refused(bad)
