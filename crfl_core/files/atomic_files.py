"""Atomic files and folders: new content appears under its name as a whole, or not at all.

Files are written beside their place, synchronised and renamed. Folders are put together in a hidden scratch folder,
which the next command removes if a kill leaves it behind. A lock tells whether its process is still alive.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO

from crfl_core.errors import StoreError

LOCK = ".lock"
"""File in a folder that the process which writes there keeps locked."""

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
}
"""What helps against an error of the operating system."""


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
    """Write a file atomically: a reader finds the whole old or the whole new content."""
    temporary = path.with_name(f".{path.name}.tmp")
    with explain_os_errors(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # half a file would take the space that a full disk does not have
                temporary.unlink()
            raise


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
            with suppress(OSError), (folder / LOCK).open("r+") as lock:
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
    """Lock a file unless another process has locked it; return whether this process may use it.

    On a file system without locks the answer is always yes, and nothing is ever taken for abandoned.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
