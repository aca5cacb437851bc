"""Arrays that cannot be used are named with the place, and nothing in them is executed."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_datasets.arrays import Arrays

from crfl_core.extend import DataError
from tests.datasets.own_files import X, Y, changed, npz_file


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "a.npz: there is no array 'y', found x"),
        ({"x": X, "y": Y[:19]}, "a.npz: labels must be (20,), one for each input, found (19,)"),
        ({"x": X[:, 0], "y": Y}, "a.npz: inputs must be (samples, features) or (samples, height, width), found (20,)"),
        ({"x": X[:0], "y": Y[:0]}, "found (0, 2)"),
        (
            {"x": changed(X, (7, 1), np.nan), "y": Y},
            "a.npz, sample 7, feature 1: holds nan where a finite number is needed",
        ),
        ({"x": changed(X, (3, 0), 1e300), "y": Y}, "a.npz, sample 3, feature 0: holds 1e+300 where a finite number"),
        ({"x": X.astype(str), "y": Y}, "a.npz: inputs must be numbers, found an array of <U"),
        ({"x": X, "y": changed(Y, 3, -1)}, "a.npz, sample 3: the label -1 is not a class"),
        ({"x": X, "y": changed(Y * 1.0, 2, np.nan)}, "a.npz, sample 2: the label nan is not a whole number"),
        ({"x": X, "y": Y + 20}, "a.npz: the largest label is 21, beyond the number of samples: number classes from 0"),
        ({"x": X, "y": Y + 0.5}, "a.npz, sample 0: the label 0.5 is not a whole number"),
        ({"x": X, "y": Y * 1j}, "a.npz: labels must be numbers or text, found an array of complex128"),
        ({"x": X, "y": Y, "test_x": X}, "a.npz: there is an array 'test_x', but none 'test_y': add it"),
        ({"x": np.zeros((20, 1, 1, 1, 1)), "y": Y}, "a.npz: inputs must be (samples, features) or (samples, height"),
        ({"x": X, "y": changed(Y * 1.0, 2, 1e300)}, "a.npz, sample 2: the label 1e+300 is not a whole number"),
        ({"x": X, "y": Y, "test_x": X[:, :1], "test_y": Y}, "a.npz (test): has 1 features, but"),
        ({"x": X, "y": Y, "test_x": changed(X, (2, 0), np.inf), "test_y": Y}, "(test), sample 2, feature 0: holds inf"),
    ],
)
def test_unusable_arrays_are_named_with_the_place(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Arrays(path=npz_file(tmp_path / "a.npz", **arrays)).read()


def test_a_label_beyond_the_named_classes_is_an_error_that_names_them(tmp_path: Path) -> None:
    path = npz_file(tmp_path / "a.npz", x=X, y=changed(Y, 4, 2))
    with pytest.raises(DataError, match=r"a.npz, sample 4: the label 2 is not a class: there are 2, .*called no, yes"):
        Arrays(path=path, class_names=("no", "yes")).read()
    words = npz_file(tmp_path / "w.npz", x=X, y=np.array(["no", "maybe"])[Y])
    with pytest.raises(DataError, match=r"w.npz, sample 1: the label maybe is not a class"):
        Arrays(path=words, class_names=("no", "yes")).read()


class Trap:
    """Unpickling this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "gotcha"))


def test_python_objects_in_numpy_files_are_never_loaded(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "gotcha")] * 20, dtype=object)
    np.savez(tmp_path / "a.npz", x=trap, y=Y, allow_pickle=True)
    np.save(tmp_path / "x.npy", trap, allow_pickle=True)
    np.save(tmp_path / "y.npy", Y)
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(Trap(tmp_path / "gotcha")))
    for options in (
        {"path": tmp_path / "a.npz"},
        {"path": tmp_path / "x.npy", "labels_path": tmp_path / "y.npy"},
        {"path": tmp_path / "raw.npy", "labels_path": tmp_path / "y.npy"},
    ):
        with pytest.raises(DataError, match=r"is not a \.np[yz] file of numbers or text .*np.save"):
            Arrays.model_validate(options).read()
    assert not (tmp_path / "gotcha").exists()


@pytest.mark.parametrize("keep", [0, 10, 100, 400])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path, keep: int) -> None:
    path = npz_file(tmp_path / "a.npz", x=X, y=Y)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=re.escape(str(path))):
        Arrays(path=path).read()


def test_an_npy_file_that_is_called_npz_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    path = (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"x.npz: is not a .npz file"):
        Arrays(path=path).read()


def test_inputs_outside_of_the_declared_domain_are_an_error_with_the_place(tmp_path: Path) -> None:
    path = npz_file(tmp_path / "a.npz", x=changed(X, (7, 1), 1e6), y=Y)
    with pytest.raises(DataError, match=r"a.npz, sample 7, feature 1: holds 1000000.0 where a number in the domain \["):
        Arrays(path=path, domain=(float(X.min()), float(X.max()))).read()


def test_an_owner_that_is_not_a_number_is_an_error(tmp_path: Path) -> None:
    path = npz_file(tmp_path / "a.npz", x=X, y=Y, owner=changed(Y * 1.0, 5, np.nan))
    with pytest.raises(DataError, match=r"a.npz: groups must be finite, sample 5 has nan"):
        Arrays(path=path, group="owner").read()


def test_labels_with_holes_are_an_error_unless_all_classes_are_named(tmp_path: Path) -> None:
    """Codes such as 0, 5 and 10 would become eleven classes."""
    path = npz_file(tmp_path / "codes.npz", x=X, y=np.array([0, 5, 10])[np.arange(20) % 3])
    with pytest.raises(DataError, match="no sample has the label 1, though the largest is 10: number the 3 classes"):
        Arrays(path=path).read()
    names = tuple(map(str, range(11)))
    assert Arrays(path=path, class_names=names).read().class_names == names


def test_a_single_class_is_an_error(tmp_path: Path) -> None:
    path = npz_file(tmp_path / "one.npz", x=X, y=np.zeros(20, np.int64))
    with pytest.raises(DataError, match="needs two classes or more, found 0: add samples of another, or name it"):
        Arrays(path=path).load()
    assert Arrays(path=path, class_names=("0", "1")).load().class_names == ("0", "1")
