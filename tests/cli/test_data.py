"""`crfl data`: downloads from servers on this machine that are slow of mind, dead, or lie."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess
from threading import Thread

import pytest

from crfl_core.cli.download import BYTES_AT_ONCE, fetch_files
from crfl_core.extend import DataError, DataFile, DataSource

CONTENT = bytes(range(256)) * 300
DEAD = "http://127.0.0.1:9/"  # the port that discards, where no server listens


@dataclass
class Mirror:
    """What a server has, how it behaves, and the ranges that it was asked for."""

    files: dict[str, bytes] = field(default_factory=lambda: {"a.bin": CONTENT})
    knows_ranges: bool = True
    stops_after: int | None = None
    asked: list[str | None] = field(default_factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Send a file, or the end of it, or less than promised."""
        asked = request.headers["Range"]
        self.asked.append(asked)
        content = self.files.get(request.path.strip("/"))
        if content is None:
            request.send_error(404)
            return
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.knows_ranges else 0
        if first >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if first else 200)
        request.send_header("Content-Length", str(len(content) - first))
        request.end_headers()
        request.wfile.write(content[first : self.stops_after])


@pytest.fixture
def serve() -> Iterator[Callable[[Mirror], Mirror]]:
    """Starts servers on loopback."""
    servers: list[ThreadingHTTPServer] = []

    def start(mirror: Mirror) -> Mirror:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, *args: object) -> None:
                """Nothing on stderr."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        mirror.url = f"http://127.0.0.1:{server.server_port}/"
        return mirror

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def source_of(*urls: str, content: bytes = CONTENT) -> DataSource:
    """A source of one file with the checksum of some content."""
    file = DataFile("a.bin", hashlib.sha256(content).hexdigest(), len(content), tuple(url + "a.bin" for url in urls))
    return DataSource("small", (file,), "none", "https://example.org", "ask for it")


def fetched(source: DataSource, to: Path) -> list[str]:
    """What is reported while fetching."""
    reports: list[str] = []
    fetch_files(source, to, reports.append)
    return reports


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "small").iterdir()}


def test_a_file_is_fetched_verified_and_not_fetched_again(serve: Callable[[Mirror], Mirror], tmp_path: Path) -> None:
    mirror = serve(Mirror())
    assert fetched(source_of(mirror.url), tmp_path) == [f"{tmp_path / 'small' / 'a.bin'} is complete"]
    assert files(tmp_path) == {"a.bin": CONTENT}
    assert fetched(source_of(mirror.url), tmp_path) == ["all 1 files are there already"]
    assert mirror.asked == [None]


@pytest.mark.parametrize("first", ["dead", "without the file"])
def test_the_next_mirror_is_tried(first: str, serve: Callable[[Mirror], Mirror], tmp_path: Path) -> None:
    useless = DEAD if first == "dead" else serve(Mirror(files={})).url
    fetched(source_of(useless, serve(Mirror()).url), tmp_path)
    assert files(tmp_path) == {"a.bin": CONTENT}


def test_a_truncated_download_is_kept_aside_and_continued(serve: Callable[[Mirror], Mirror], tmp_path: Path) -> None:
    mirror = serve(Mirror(stops_after=70_000))
    with pytest.raises(DataError, match=r"a\.bin could not be fetched: .*:\n  http://127.*a\.bin: .* it broke off"):
        fetched(source_of(mirror.url), tmp_path)
    assert files(tmp_path) == {".a.bin.part": CONTENT[:BYTES_AT_ONCE]}
    mirror.stops_after = None
    fetched(source_of(mirror.url), tmp_path)
    assert files(tmp_path) == {"a.bin": CONTENT}
    assert mirror.asked == [None, f"bytes={BYTES_AT_ONCE}-"]


def test_another_mirror_continues_what_the_first_began(serve: Callable[[Mirror], Mirror], tmp_path: Path) -> None:
    first, second = serve(Mirror(stops_after=70_000)), serve(Mirror())
    fetched(source_of(first.url, second.url), tmp_path)
    assert files(tmp_path) == {"a.bin": CONTENT}
    assert second.asked == [f"bytes={BYTES_AT_ONCE}-"]


def test_a_server_without_ranges_sends_everything_again(serve: Callable[[Mirror], Mirror], tmp_path: Path) -> None:
    part = tmp_path / "small" / ".a.bin.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT[:700])
    fetched(source_of(serve(Mirror(knows_ranges=False)).url), tmp_path)
    assert files(tmp_path) == {"a.bin": CONTENT}


@pytest.mark.parametrize("part", [b"other bytes", CONTENT, CONTENT + b"too long", b"x" * len(CONTENT)])
def test_whatever_the_partial_file_holds_the_result_is_right(
    part: bytes, serve: Callable[[Mirror], Mirror], tmp_path: Path
) -> None:
    path = tmp_path / "small" / ".a.bin.part"
    path.parent.mkdir()
    path.write_bytes(part)
    fetched(source_of(serve(Mirror()).url), tmp_path)
    assert files(tmp_path) == {"a.bin": CONTENT}


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (CONTENT[:-1] + b"!", "not the published file, it has SHA-256 "),
        (CONTENT + b"!", "not the published file, it has 76801 bytes instead of 76800"),
        (CONTENT[:-9], "truncated, 76791 of 76800 bytes"),
    ],
)
def test_a_tampered_file_is_never_put_in_place(
    sent: bytes, complaint: str, serve: Callable[[Mirror], Mirror], tmp_path: Path
) -> None:
    liar = serve(Mirror({"a.bin": sent}))
    with pytest.raises(DataError, match=re.escape(f"{liar.url}a.bin: {complaint}")):
        fetched(source_of(liar.url), tmp_path)
    assert "a.bin" not in files(tmp_path)
    fetched(source_of(liar.url, serve(Mirror()).url), tmp_path)
    assert files(tmp_path) == {"a.bin": CONTENT}


def test_a_wrong_file_is_replaced(serve: Callable[[Mirror], Mirror], tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "a.bin").write_bytes(b"old")
    fetched(source_of(serve(Mirror()).url), tmp_path)
    assert files(tmp_path) == {"a.bin": CONTENT}


def test_a_wrong_file_that_would_be_found_first_is_pointed_out(
    serve: Callable[[Mirror], Mirror], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRFL_DATA_DIR", str(tmp_path / "shared"))
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    wrong = tmp_path / "shared" / "a.bin"
    wrong.parent.mkdir()
    wrong.write_bytes(b"old")
    reports: list[str] = []
    fetch_files(source_of(serve(Mirror()).url), None, reports.append)
    assert reports[0] == f"{wrong} is not the published file, but is found first: remove it"
    assert files(tmp_path / "cache" / "data") == {"a.bin": CONTENT}


def test_without_a_network_every_mirror_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as failure:
        fetched(source_of(DEAD, "http://name.invalid/"), tmp_path)
    assert f"\n  {DEAD}a.bin: " in str(failure.value)
    assert "\n  http://name.invalid/a.bin: " in str(failure.value)
    assert files(tmp_path) == {}


def test_files_without_a_public_source_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.bin cannot be fetched: ask for it"):
        fetched(source_of(), tmp_path)


def test_a_folder_that_cannot_be_written_is_named(serve: Callable[[Mirror], Mirror], tmp_path: Path) -> None:
    (tmp_path / "small").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"small: cannot be written: .*: choose another folder with --to"):
        fetched(source_of(serve(Mirror()).url), tmp_path)


def archive_of(**members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


def tar_of(**members: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return content.getvalue()


def linked_tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        link = tarfile.TarInfo("a.bin")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/hostname"
        archive.addfile(link)
    return content.getvalue()


@contextmanager
def archived(serve: Callable[[Mirror], Mirror], content: bytes, name: str = "all.zip") -> Iterator[DataSource]:
    """A source whose only file is inside an archive with this content."""
    url = serve(Mirror({name: content})).url
    file = DataFile("a.bin", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    archive = DataFile(name, size=len(content), urls=(f"{url}{name}",))
    yield DataSource("small", (file,), "none", "", "ask for it", archive)


def test_files_are_taken_out_of_an_archive_which_is_then_removed(
    serve: Callable[[Mirror], Mirror], tmp_path: Path
) -> None:
    members = {"gzip/a.bin": CONTENT, "gzip/other.txt": b"?"}
    for name, make in (("all.zip", archive_of), ("all.tar.gz", tar_of)):
        with archived(serve, make(**members), name) as source:
            fetched(source, tmp_path / name)
        assert files(tmp_path / name) == {"a.bin": CONTENT}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (tar_of(**{"a.bin": CONTENT, "../../evil.sh": b"#!"}), "its member '../../evil.sh' would be written outside"),
        (tar_of(**{"a.bin": CONTENT[:9]}), "a.bin: truncated, 9 of 76800 bytes"),
        (linked_tar(), "has no member a.bin"),
        (tar_of(**{"a.bin": CONTENT})[:-40], "is not an intact archive"),
        (b"no archive", "is not an intact archive"),
    ],
    ids=["slip", "short", "link", "truncated", "no tar"],
)
def test_a_bad_tar_file_is_refused_and_leaves_nothing_behind(
    content: bytes, complaint: str, serve: Callable[[Mirror], Mirror], tmp_path: Path
) -> None:
    target = tmp_path / "data"
    with archived(serve, content, "all.tar.gz") as source, pytest.raises(DataError, match=re.escape(complaint)):
        fetched(source, target)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            archive_of(**{"a.bin": CONTENT, "../../evil.sh": b"#!"}),
            "its member '../../evil.sh' would be written outside",
        ),
        (archive_of(**{"/etc/a.bin": CONTENT}), "its member '/etc/a.bin' would be written outside"),
        (archive_of(**{"..\\a.bin": CONTENT}), "would be written outside of the folder: do not trust it"),
        (archive_of(**{"C:a.bin": CONTENT}), "would be written outside of the folder: do not trust it"),
        (archive_of(**{"a.bin": CONTENT[:-1] + b"!"}), "a.bin: not the published file, it has SHA-256"),
        (archive_of(**{"a.bin": CONTENT * 1000}), "a.bin: not the published file, it has"),
        (archive_of(**{"a.bin": CONTENT[:9]}), "a.bin: truncated, 9 of 76800 bytes"),
        (archive_of(other=b""), "has no member a.bin"),
        (b"PK, but no archive", "is not an intact archive"),
    ],
    ids=["slip", "absolute", "backslash", "drive", "tampered", "bomb", "short", "incomplete", "no zip"],
)
def test_a_bad_archive_is_refused_and_leaves_nothing_behind(
    content: bytes, complaint: str, serve: Callable[[Mirror], Mirror], tmp_path: Path
) -> None:
    target = tmp_path / "data"
    with archived(serve, content) as source, pytest.raises(DataError, match=re.escape(complaint)):
        fetched(source, target)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


PLUGIN = """
from crfl_core.extend import Data, DataFile, DataSource, FileDataset

class Small(FileDataset):
    "One small file."

    @classmethod
    def source(cls) -> DataSource:
        file = DataFile("a.bin", {sha256!r}, {size}, ({url!r} + "a.bin",))
        return DataSource("small", (file,), "public domain", "https://example.org", "run `crfl data fetch small`")

    def read(self) -> Data:
        raise NotImplementedError
"""


@pytest.fixture
def small_dataset(
    install: Callable[..., None],
    serve: Callable[[Mirror], Mirror],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Installs a dataset of one file that a server has, and returns the empty cache of data files."""
    monkeypatch.delenv("CRFL_DATA_DIR", raising=False)
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    source = PLUGIN.format(sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT), url=serve(Mirror()).url)
    install("small-data", "1.0", {"crfl.datasets": {"small": "Small"}}, source)
    return tmp_path / "cache" / "data"


def test_the_commands_find_fetch_and_verify(small_dataset: Path, crfl: Callable[..., CompletedProcess[str]]) -> None:
    before = crfl("data", "list").stdout
    assert "small: One small file.\n  0 of 1 files found; for the missing ones: run `crfl data fetch small`" in before
    assert "licence: public domain; https://example.org" in before
    assert re.search(r"missing +76,800 +[0-9a-f]{12} a\.bin", before)
    assert crfl("data", "verify", "small").stdout == "missing  small: a.bin\n"

    path = small_dataset / "small" / "a.bin"
    done = crfl("data", "fetch", "small")
    assert (done.returncode, done.stdout) == (0, f"{path} is complete\n")
    assert f"ok       small: {path}\n" in crfl("data", "verify").stdout

    path.write_bytes(CONTENT[:-1] + b"!")
    done = crfl("data", "verify", "small")
    assert (done.returncode, done.stdout) == (2, f"wrong    small: {path}\n")
    (entry,) = (entry for entry in json.loads(crfl("data", "list", "--json").stdout) if entry["name"] == "small")
    assert entry["files"][0]["path"] == str(path)
    assert entry["source"]["files"][0]["sha256"] == hashlib.sha256(CONTENT).hexdigest()


def test_files_can_be_fetched_to_another_directory(
    small_dataset: Path, crfl: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    assert crfl("data", "fetch", "small", "--to", tmp_path / "mine").returncode == 0
    assert (tmp_path / "mine" / "small" / "a.bin").read_bytes() == CONTENT
    assert not small_dataset.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fetch", "digits"), "error: dataset 'digits' is not read from published files: there is nothing to fetch"),
        (("verify", "digits"), "error: dataset 'digits' is not read from published files: there is nothing to fetch"),
        (("fetch", "mnits"), "error: there is no dataset 'mnits': did you mean 'mnist'"),
        (("verify", "mnits"), "error: there is no dataset 'mnits': did you mean 'mnist'"),
    ],
)
def test_a_dataset_that_cannot_be_fetched_is_an_error(
    arguments: tuple[str, ...], complaint: str, crfl: Callable[..., CompletedProcess[str]]
) -> None:
    done = crfl("data", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(complaint)


def test_a_broken_dataset_plugin_is_listed_with_its_problem(
    install: Callable[..., None], crfl: Callable[..., CompletedProcess[str]]
) -> None:
    install("broken-data", "1.0", {"crfl.datasets": {"broken": "Missing"}}, "")
    done = crfl("data", "list")
    assert done.returncode == 0
    assert "broken: dataset 'broken' of broken-data 1.0 cannot be imported: AttributeError" in done.stdout
    done = crfl("data", "verify", "broken")
    assert done.returncode == 2
    assert done.stderr.startswith("error: dataset 'broken' of broken-data 1.0 cannot be imported: AttributeError")
