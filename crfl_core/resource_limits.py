"""What this machine has left: memory, as the kernel, a container or a limit of the process allows it, and disk."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

KIBIBYTE = 1024


class Room(NamedTuple):
    """How many bytes are left, and what limits them."""

    left: int
    limit: str


class MemoryFiles(NamedTuple):
    """The files of a control group that say what its processes may have, what they have, and what could be dropped."""

    folder: str
    most: str
    used: str
    droppable: str


UNIFIED = MemoryFiles("", "memory.max", "memory.current", "inactive_file")
FIRST_VERSION = MemoryFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory(root: Path = Path("/")) -> Room | None:
    """What this process may still take: the narrowest of all limits. None where nothing is known.

    `root` is where `proc` and `sys` are.
    """
    return min((*physical(root), *control_groups(root), *address_space(root)), default=None)


def disk(path: Path) -> Room | None:
    """What may still be written below a path that need not exist yet; None where nothing is known.

    File systems that are no disk, such as /proc, have no size: what they refuse to write they say themselves.
    """
    for place in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):
            usage = shutil.disk_usage(place)
            return Room(usage.free, f"free disk at {place}") if usage.total else None
    return None


def resident(root: Path = Path("/")) -> int:
    """The memory that this process has now; 0 where nobody says."""
    return kibibytes(root / "proc/self/status", "VmRSS") or 0


def peak() -> int:
    """The most memory that this process ever had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(resident(), most if sys.platform == "darwin" else most * KIBIBYTE)


def physical(root: Path) -> Iterator[Room]:
    """The memory that the kernel could give away without swapping."""
    left = kibibytes(root / "proc/meminfo", "MemAvailable")
    if left is None:
        with suppress(ValueError, OSError, AttributeError):
            left = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if left is not None:
        yield Room(left, "available memory")


def control_groups(root: Path) -> Iterator[Room]:
    """What the control groups of this process allow, as containers and batch systems set them."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, inside = line.split(":", 2)
            if controllers in ("", "memory"):
                files = UNIFIED if not controllers else FIRST_VERSION
                mount = root / "sys/fs/cgroup" / files.folder
                own = mount / inside.lstrip("/")
                # A limit of a group above holds as well; inside of a container only the mount itself may be there.
                for group in (own, *own.parents[: len(own.relative_to(mount).parts)]):
                    yield from allowed(group, files)


def allowed(group: Path, files: MemoryFiles) -> Iterator[Room]:
    """What one control group has left, if it has a limit. Files that were only read once do not count as used."""
    with suppress(OSError, ValueError):
        most, used = (int((group / name).read_text(encoding="utf-8")) for name in (files.most, files.used))
        found = re.search(rf"^{files.droppable} (\d+)$", (group / "memory.stat").read_text(encoding="utf-8"), re.M)
        yield Room(max(0, most - used + (int(found[1]) if found else 0)), f"memory limit of {most:,} bytes (cgroup)")


def address_space(root: Path) -> Iterator[Room]:
    """What `ulimit -v` leaves."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        used = kibibytes(root / "proc/self/status", "VmSize") or 0
        yield Room(max(0, most - used), f"address space of {most:,} bytes (ulimit -v)")


def kibibytes(file: Path, name: str) -> int | None:
    """A line `name: 123 kB` of a file of the kernel, in bytes."""
    with suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+) kB$", file.read_text(encoding="utf-8"), re.M)
        return int(found[1]) * KIBIBYTE if found else None
    return None
