"""Download of published data files: mirrors in turn, resumed, verified, and put in place when complete."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from crfl_core.extend import DataError, DataFile, DataSource
from crfl_core.files.data_files import data_cache, sha256

if TYPE_CHECKING:
    from requests import Response

BYTES_AT_ONCE = 1 << 16

Report = Callable[[str], None]


class RejectedFile(Exception):
    """Error about a downloaded file that is not the published one."""


class TruncatedFile(RejectedFile):
    """Error about a downloaded file that is too short: the rest may come from another mirror."""


def fetch_files(source: DataSource, to: Path | None, report: Report) -> None:
    """Fetch the missing files of a source.

    `report` is called with sentences about what happens. What is missing in the data directory `to`, or else in all the
    usual ones, is put there, or else into the cache. A file appears under its name only when it is complete and its
    checksum is right. What is left of an interrupted download stays beside it, in `.NAME.part`, and is continued the
    next time.
    """
    folder = (to or data_cache()) / source.folder
    wanted = []
    for file in source.files:
        path = source.find(file.name, to)
        state = file.status(path, thorough=True)
        if state in ("missing", "wrong"):
            wanted.append(file)
        if state == "wrong" and path is not None and path.parent != folder:
            report(f"{path} is not the published file, but is found first: remove it")
    if not wanted:
        report(f"all {len(source.files)} files are there already")
        return
    if source.archive is None and not all(file.urls for file in wanted):
        raise DataError(f"{wanted[0].name} cannot be fetched: {source.how_to_get}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if source.archive is None:
            for file in wanted:
                report(f"{download(file, folder)} is complete")
        else:
            with fetch_archive(source.archive, folder) as archive:
                for path in extract(archive, wanted, folder):
                    report(f"{path} is complete")
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}: choose another folder with --to") from error


@contextmanager
def fetch_archive(file: DataFile, folder: Path) -> Iterator[Path]:
    """Keep an archive until all files are extracted.

    It is removed earlier if it proves to be damaged.
    """
    archive = folder / file.name
    if file.status(archive if archive.exists() else None, thorough=True) in ("missing", "wrong"):
        download(file, folder)
    try:
        yield archive
    except DataError:
        archive.unlink()
        raise
    archive.unlink()


def download(file: DataFile, folder: Path) -> Path:
    """Download one file from the first mirror that has it.

    A `DataError` lists what failed at each.
    """
    from requests import ConnectionError, RequestException
    from requests.exceptions import ChunkedEncodingError

    part = folder / f".{file.name}.part"
    complaints = []
    for url in file.urls:
        try:
            receive(file, url, part)
        except (ConnectionError, ChunkedEncodingError):  # their texts are nested exceptions
            complaints.append(f"{url}: there is no connection to the server, or it broke off")
        except (RequestException, RejectedFile) as error:
            complaints.append(f"{url}: {error}")
        else:
            return part.replace(folder / file.name)
    if part.exists() and part.stat().st_size == 0:
        part.unlink()
    raise DataError(
        f"{file.name} could not be fetched: try again, or copy it to {folder} yourself:\n  " + "\n  ".join(complaints)
    )


def receive(file: DataFile, url: str, part: Path) -> None:
    """Complete the partial file from one mirror, and check it.

    It must have the published checksum. If the beginning was there before and the whole is wrong, everything is asked
    for again.
    """
    resumed = part.exists()
    try:
        if not (resumed and part.stat().st_size == file.size):
            transfer(file, url, part)
        check(file, part)
    except TruncatedFile:
        raise
    except RejectedFile:
        if not resumed:
            raise
        part.unlink(missing_ok=True)
        receive(file, url, part)


def transfer(file: DataFile, url: str, part: Path) -> None:
    """Append what is missing of the partial file.

    All of it is fetched again if the server cannot send a range.
    """
    from pooch import HTTPDownloader
    from tqdm import tqdm

    with part.open("ab") as stream:
        have = stream.tell()

        def begin(response: Response, *_: object, **__: object) -> None:
            if response.status_code == 416:
                raise RejectedFile("there is nothing beyond the part that was fetched before")
            if response.status_code == 200:
                stream.truncate(0)

        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with tqdm(total=file.size or 1, desc=file.name, unit="B", unit_scale=True, disable=None) as bar:
            get = HTTPDownloader(bar, BYTES_AT_ONCE, headers=headers, hooks={"response": begin})
            get(url, stream, None)


def check(file: DataFile, part: Path) -> None:
    """Raise `RejectedFile` unless the partial file is complete.

    A wrong file is removed. A short one is kept.
    """
    size = part.stat().st_size
    if file.size is not None and size < file.size:
        raise TruncatedFile(f"truncated, {size} of {file.size} bytes")
    if file.size is not None and size > file.size:
        found = f"{size} bytes"
        expected = str(file.size)
    elif file.sha256 is not None and (digest := sha256(part)) != file.sha256:
        found = f"SHA-256 {digest}"
        expected = file.sha256
    else:
        return
    part.unlink()
    raise RejectedFile(f"not the published file, it has {found} instead of {expected}")


def extract(archive: Path, wanted: list[DataFile], folder: Path) -> Iterator[Path]:
    """Extract files of an archive, and verify each.

    Paths outside of the folder are refused.
    """
    try:
        with open_archive(archive) as members:
            for file in wanted:
                if file.name not in members:
                    raise DataError(f"{archive}: has no member {file.name}: fetch it again")
                with members[file.name]() as packed:
                    yield unpack(archive, file, packed, folder)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, RuntimeError) as error:
        raise DataError(f"{archive}: is not an intact archive ({error}): fetch it again") from error


@contextmanager
def open_archive(archive: Path) -> Iterator[dict[str, Callable[[], IO[bytes]]]]:
    """Open a zip file or a tar file packed with gzip.

    Yields a function for each regular file, by the file's name. The function opens the file.
    """
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(archive, "r:gz") as packed:
            regular = [info for info in packed if info.isreg()]
            yield {member_path(archive, info.name).name: partial(open_member, packed, info) for info in regular}
    else:
        with zipfile.ZipFile(archive) as content:
            yield {
                member_path(archive, info.filename).name: partial(content.open, info)
                for info in content.infolist()
                if not info.is_dir()
            }


def open_member(packed: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    """Open a regular file of a tar file."""
    stream = packed.extractfile(info)
    assert stream is not None
    return stream


def member_path(archive: Path, member: str) -> PurePosixPath:
    """Return the path of an archive's member.

    Raises `DataError` unless it stays below the folder it is extracted to.
    """
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in member:
        raise DataError(f"{archive}: its member {member!r} would be written outside of the folder: do not trust it")
    return path


def unpack(archive: Path, file: DataFile, packed: IO[bytes], folder: Path) -> Path:
    """Unpack one member to a file, if it is the published file."""
    part = folder / f".{file.name}.part"
    with part.open("wb") as stream:
        while block := packed.read(BYTES_AT_ONCE):
            stream.write(block)
            if file.size is not None and stream.tell() > file.size:
                break  # a bomb would fill the disk
    try:
        check(file, part)
    except RejectedFile as error:
        part.unlink(missing_ok=True)
        raise DataError(f"{archive}: {file.name}: {error}: fetch it again") from error
    return part.replace(folder / file.name)
