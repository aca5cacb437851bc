"""Atomic files and folders: new content appears under its name as a whole, or not at all.

Files are written beside their place under an unpredictable name, synchronised and renamed, and so is the name. Folders
are put together in a hidden scratch folder, which the next command removes if a kill leaves it behind. A lock tells
whether its process is still alive. Nothing is written through a link.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO

from crfl_core.errors import DataError, StoreError

LOCK = ".lock"
"""File in a folder that the process which writes there keeps locked."""

TEMPORARY_NAME = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")
"""Pattern of the names of files that are being written."""

REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EFBIG: "raise the limit of the size of files (`ulimit -f`)",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "close other programs",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the link",
}
"""Remedies for errors of the operating system."""


def content_digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def explain_os_errors(what: str) -> Iterator[None]:
    """Turn an `OSError` into a `StoreError` with a remedy.

    `what` begins the message: it names the file and what could not be done with it.
    """
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0)
        raise StoreError(f"{what}: {error.strerror or error}{f': {remedy}' if remedy else ''}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically.

    A reader finds the whole old or the whole new content. When it returns, the content and its name are on disk. A link
    at `path` is replaced, not followed.
    """
    with explain_os_errors(f"{path}: cannot be written"):
        create_folders(path.parent)
        rename_into_place(path, content)


def write_output_file(path: Path, content: bytes) -> None:
    """Write a file where the user wants it.

    It is written atomically unless it is a device or a pipe. Raises `DataError` that asks for another --out.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            rename_into_place(path, content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}: choose another --out") from error


def rename_into_place(path: Path, content: bytes) -> None:
    """Write a new file beside its place, and rename it.

    The file and then the folder are synchronised with the disk.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(open_new(temporary), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # half a file would take the space that a full disk does not have
            temporary.unlink()
        raise
    synchronise_folder(path.parent)


def open_new(path: Path) -> int:
    """Create a file for writing, and return its descriptor.

    Anything that exists at `path`, also a link, raises `OSError`.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file and return its descriptor.

    Links and other files raise `OSError`. A FIFO does not block.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError("it is not a regular file: remove it")


def create_folders(path: Path) -> None:
    """Create a folder and those above it that do not exist.

    Their names are on disk afterwards.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        synchronise_folder(folder.parent)


def synchronise_folder(path: Path) -> None:
    """Write the names in a folder to disk.

    After a power cut, files keep the names that they have now. Not every file system can. Everything is in its place
    even then, so it is not an error.
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            os.fsync(descriptor)
        os.close(descriptor)


def rename_folder(path: Path, target: Path) -> None:
    """Rename a folder; its new name is on disk when this returns."""
    path.rename(target)
    synchronise_folder(target.parent)
    if path.parent != target.parent:
        synchronise_folder(path.parent)


def find_link(folder: Path, name: str) -> Path | None:
    """Return the first link between a folder and a file.

    The file is below the folder. None if the way has no link.
    """
    place = folder
    for part in Path(name).parts:
        place = place / part
        if place.is_symlink():
            return place
    return None


def refuse_links(folder: Path, name: str) -> None:
    """Raise `StoreError` if writing would lead out through a link.

    `name` is the place of the file in the folder.
    """
    if (link := find_link(folder, name)) is not None:
        raise StoreError(f"{link}: is a link, and nothing is written through links: replace it with what it points to")


def remove_temporary_files(folder: Path) -> None:
    """Remove what killed processes were writing in a folder.

    The caller knows that no other process writes there.
    """
    with suppress(OSError):
        for entry in folder.iterdir():
            if TEMPORARY_NAME.fullmatch(entry.name) and entry.is_file() and not entry.is_symlink():
                entry.unlink()


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a folder for this process, and remove it at the end.

    Scratch folders that killed processes left behind are removed first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned_folders(parent, prefix)
    folder, lock = create_locked_folder(parent, prefix)
    with lock:
        try:
            yield folder
        finally:
            remove_folder(folder)


def remove_abandoned_folders(parent: Path, prefix: str) -> None:
    """Remove the scratch folders of processes that have ended.

    A folder that cannot be locked belongs to a living process and stays, as does every folder without this prefix.
    """
    with suppress(OSError):
        found = [entry for entry in parent.iterdir() if entry.name.startswith(prefix) and not entry.is_symlink()]
        for folder in found:
            with suppress(OSError):
                folder.rmdir()  # a kill came before there was a lock
            with suppress(OSError), os.fdopen(open_regular(folder / LOCK, os.O_RDWR), "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a scratch folder, its lock last.

    After a kill the lock is what tells the rest of a scratch folder from a folder of the user.
    """
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def create_locked_folder(parent: Path, prefix: str) -> tuple[Path, TextIO]:
    """Create a folder with a lock that this process holds.

    Another process may take the new folder for abandoned before it is locked; then a further one is created.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = (folder / LOCK).open("w")
        except FileNotFoundError:
            continue
        except OSError:
            folder.rmdir()
            raise
        if try_lock(lock) and os.fstat(lock.fileno()).st_nlink:
            return folder, lock
        lock.close()


def try_lock(file: IO[str]) -> bool:
    """Lock a file unless another process has locked it.

    Return whether this process may use it. On a file system without locks the answer is always yes, and nothing is ever
    taken for abandoned.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
