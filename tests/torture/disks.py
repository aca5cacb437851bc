"""Small disks that really run full: file systems in memory, seen by this process and its children alone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEW_NAMESPACE, NEW_USER = 0x00020000, 0x10000000
REMOUNT, DETACH = 32, 2
PRIVATE = 0x40000 | 0x4000
"""Mounts are private, at all depths."""

PLENTY = "size=64m,nr_inodes=10000"
LIBC = ctypes.CDLL(None, use_errno=True)


def may_mount() -> bool:
    """Give this process mounts of its own, which end with it; as root, or as the root of a namespace for users."""
    user, group = os.getuid(), os.getgid()
    if LIBC.unshare(NEW_NAMESPACE) != 0:
        if LIBC.unshare(NEW_NAMESPACE | NEW_USER) != 0:
            return False
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        except OSError:
            return False
    return bool(LIBC.mount(b"none", b"/", None, PRIVATE, None) == 0)


@contextmanager
def disk(place: Path) -> Iterator[None]:
    """A file system in memory at a folder."""
    mount(place, PLENTY)
    try:
        yield
    finally:
        checked(LIBC.umount2(os.fsencode(place), DETACH))


def leave(place: Path, *, pages: int | None = None, files: int | None = None) -> None:
    """Let a disk hold that many more bytes than it holds now; without a number, plenty."""
    if pages is None and files is None:
        mount(place, PLENTY, REMOUNT)
        return
    now = os.statvfs(place)
    used, there = now.f_blocks - now.f_bfree, now.f_files - now.f_ffree
    size = "64m" if pages is None else str((used + pages) * now.f_frsize)
    inodes = 10_000 if files is None else there + files
    mount(place, f"size={size},nr_inodes={inodes}", REMOUNT)


def mount(place: Path, options: str, flags: int = 0) -> None:
    """Mount, or change what is mounted."""
    checked(LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", flags, options.encode()))


def checked(answer: int) -> None:
    """Raise what the operating system refused."""
    if answer != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
