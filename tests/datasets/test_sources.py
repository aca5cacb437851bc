"""Where data files are looked for, and what is said if they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from crfl_datasets.mnist import Mnist

from crfl_core import dump_config, load_config
from crfl_core.extend import ConfigError, DataError, DataFile, DataSource, OptionError
from crfl_core.files.data_files import cache_dir, data_dirs, sha256
from crfl_core.training.federation import build
from tests.datasets.idx_files import write_four

SOURCE = DataSource(
    folder="two-files",
    files=(DataFile("a.gz", sha256="0" * 64, size=3), DataFile("b.csv")),
    licence="none",
    homepage="https://example.org",
    how_to_get="run `crfl data fetch two-files`",
)
SINGLE = DataSource("table", (DataFile("table.csv", also=("my-table.csv",)),), "none", "", "ask for it")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A shared data directory and the one in the cache."""
    shared, cache = tmp_path / "shared", tmp_path / "cache"
    monkeypatch.setenv("CRFL_DATA_DIR", str(shared))
    monkeypatch.setenv("CRFL_CACHE_DIR", str(cache))
    return shared, cache / "data"


def put(path: Path, text: str = "abc") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_shared_directory_comes_before_the_cache(places: tuple[Path, Path]) -> None:
    shared, cache = places
    assert SOURCE.find("a.gz") is None
    in_cache = put(cache / "two-files" / "a.gz")
    assert SOURCE.find("a.gz") == in_cache
    in_shared = put(shared / "two-files" / "a.gz")
    assert SOURCE.find("a.gz") == in_shared


def test_a_path_of_the_config_is_the_only_place(places: tuple[Path, Path], tmp_path: Path) -> None:
    put(places[0] / "two-files" / "a.gz")
    own = tmp_path / "own"
    assert SOURCE.find("a.gz", own) is None
    assert SOURCE.find("a.gz", put(own / "a.gz").parent) == own / "a.gz"


@pytest.mark.parametrize("folder", ["two-files", "two_files", "TwoFiles", "."])
@pytest.mark.parametrize("name", ["a.gz", "a"])
def test_spellings_of_the_folder_and_unpacked_files_are_found(
    folder: str, name: str, places: tuple[Path, Path]
) -> None:
    path = put(places[0] / folder / name)
    assert SOURCE.find("a.gz") == path


def test_a_path_may_be_the_file_itself(tmp_path: Path) -> None:
    path = put(tmp_path / "whatever.csv")
    assert SINGLE.find("table.csv", path) == path
    assert SOURCE.find("b.csv", path) is None
    named = put(tmp_path / "b.csv")
    assert SOURCE.find("b.csv", named) == named


def test_other_names_of_a_file_are_found_after_its_own(tmp_path: Path) -> None:
    other = put(tmp_path / "my-table.csv")
    assert SINGLE.find("table.csv", tmp_path) == other
    own = put(tmp_path / "table.csv")
    assert SINGLE.find("table.csv", tmp_path) == own


def test_the_cache_is_where_the_system_wants_it_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRFL_DATA_DIR", raising=False)
    monkeypatch.delenv("CRFL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir().name == "crfl"
    assert data_dirs() == (cache_dir() / "data",)


def test_the_state_of_a_file_depends_on_size_and_checksum(tmp_path: Path) -> None:
    path = put(tmp_path / "a.gz")
    right = DataFile("a.gz", sha256=sha256(path), size=3)
    assert right.status(None, thorough=True) == "missing"
    assert right.status(path, thorough=False) == "found"
    assert right.status(path, thorough=True) == "ok"
    assert SOURCE.files[0].status(path, thorough=True) == "wrong"
    assert DataFile("a.gz", size=4).status(path, thorough=False) == "wrong"
    assert DataFile("a.gz").status(path, thorough=True) == "found"
    assert SOURCE.files[0].status(put(tmp_path / "a"), thorough=True) == "found"


def test_a_missing_file_is_explained_with_places_and_command(places: tuple[Path, Path]) -> None:
    with pytest.raises(DataError) as failure:
        Mnist().load()
    text = str(failure.value)
    assert text.startswith("train-images-idx3-ubyte.gz was not found in ")
    assert all(str(place) in text for place in places)
    assert "run `crfl data fetch mnist`, or set CRFL_DATA_DIR or dataset.path" in text


def test_a_path_that_does_not_exist_is_an_error_of_the_config(tmp_path: Path) -> None:
    config = load_config({"dataset": {"type": "mnist", "path": str(tmp_path / "nowhere")}}).config
    with pytest.raises(ConfigError, match=r"there is no file or folder .*nowhere") as failure:
        build(config)
    assert failure.value.key == "dataset.path"
    with pytest.raises(OptionError, match="path: there is no file or folder"):
        Mnist(path=tmp_path / "nowhere").load()


def test_nothing_is_found_in_folders_that_may_not_be_read(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRFL_DATA_DIR", "x" * 300)  # longer than a name may be; without permission it is the same
    write_four(places[1] / "mnist")
    assert len(Mnist().load().x) == 50
    with pytest.raises(OptionError, match="path: there is no file or folder"):
        Mnist(path=Path("x" * 300)).load()


def test_a_file_that_cannot_be_read_has_no_checksum(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory: change its permissions, or remove it"):
        sha256(tmp_path)


def test_the_home_of_an_unknown_user_is_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match=r"dataset.path = '~unknown-user/data': there is no folder ~unknown"):
        load_config({"dataset": {"type": "mnist", "path": "~unknown-user/data"}})


def test_a_relative_path_starts_from_the_working_directory_and_survives_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_four(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    config = load_config({"dataset": {"type": "mnist", "path": "own"}}).config
    monkeypatch.chdir("/")
    assert f'path = "{tmp_path / "own"}"' in dump_config(config)
    assert len(config.dataset.load().x) == 50
