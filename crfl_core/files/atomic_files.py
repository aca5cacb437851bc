"""Folders in which something is put together before it appears under its name, at once or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

LOCK = ".lock"


@contextmanager
def scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder of one's own, which is removed in the end.

    Those that killed processes left behind are removed before. Whose process lives is told by a lock.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent, prefix)
    folder, lock = taken(parent, prefix)
    with lock:
        try:
            yield folder
        finally:
            remove(folder)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of processes that do not live any more; nothing that cannot be locked, and no other folder."""
    with contextlib.suppress(OSError):
        found = [entry for entry in parent.iterdir() if entry.name.startswith(prefix) and not entry.is_symlink()]
        for folder in found:
            with contextlib.suppress(OSError):
                folder.rmdir()  # a kill came before there was a lock
            with contextlib.suppress(OSError), (folder / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder, its lock last: without it nobody could tell what a kill leaves from somebody else's folder."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def taken(parent: Path, prefix: str) -> tuple[Path, TextIO]:
    """A new folder and its lock. Whoever takes it for abandoned before it is locked has it: then another one."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = (folder / LOCK).open("w")
        except FileNotFoundError:
            continue
        except OSError:
            folder.rmdir()
            raise
        if locked(lock) and os.fstat(lock.fileno()).st_nlink:
            return folder, lock
        lock.close()


def locked(file: TextIO) -> bool:
    """Whether nobody else has locked a file. Where there are no locks, nothing is ever taken for abandoned."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
