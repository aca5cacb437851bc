"""Free memory, as the kernel, a container or a limit of the process allows it, and free disk."""

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


class Headroom(NamedTuple):
    """Number of bytes left, and what limits them."""

    left: int
    limit: str


class ControlGroupFiles(NamedTuple):
    """Names of the files of a control group: its limit, the memory used, and the part of it that can be dropped."""

    folder: str
    limit: str
    used: str
    droppable: str


CGROUP_V2 = ControlGroupFiles("", "memory.max", "memory.current", "inactive_file")
CGROUP_V1 = ControlGroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_memory(root: Path = Path("/")) -> Headroom | None:
    """Return how much this process may still allocate.

    It is the narrowest of all limits. None if no limit is known. `root` is where `proc` and `sys` are.
    """
    return min((*physical_memory(root), *control_groups(root), *address_space(root)), default=None)


def free_disk(path: Path) -> Headroom | None:
    """Return how much may still be written below a path.

    The path need not exist yet. None if it is not known. File systems that are not disks, such as /proc, have no size:
    they refuse writes themselves.
    """
    for place in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):
            usage = shutil.disk_usage(place)
            return Headroom(usage.free, f"free disk at {place}") if usage.total else None
    return None


def resident_memory(root: Path = Path("/")) -> int:
    """Return the memory of this process in bytes.

    It is 0 if the kernel does not tell.
    """
    return read_kibibytes(root / "proc/self/status", "VmRSS") or 0


def peak_memory() -> int:
    """Return the largest memory that this process ever had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform != "darwin":
        peak *= KIBIBYTE
    return max(resident_memory(), peak)


def physical_memory(root: Path) -> Iterator[Headroom]:
    """Yield the memory that the kernel could give away without swapping."""
    left = read_kibibytes(root / "proc/meminfo", "MemAvailable")
    if left is None:
        with suppress(ValueError, OSError, AttributeError):
            left = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if left is not None:
        yield Headroom(left, "available memory")


def control_groups(root: Path) -> Iterator[Headroom]:
    """Yield what the control groups of this process allow.

    Containers and batch systems set them.
    """
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group_path = line.split(":", 2)
            if controllers in ("", "memory"):
                files = CGROUP_V1 if controllers else CGROUP_V2
                mount = root / "sys/fs/cgroup" / files.folder
                innermost = mount / group_path.lstrip("/")
                # A limit of an outer group holds as well; inside of a container only the mount itself may exist.
                for group in (innermost, *innermost.parents[: len(innermost.relative_to(mount).parts)]):
                    yield from group_headroom(group, files)


def group_headroom(group: Path, files: ControlGroupFiles) -> Iterator[Headroom]:
    """Yield what one control group has left, if limited.

    Files that were only read do not count as used.
    """
    with suppress(OSError, ValueError):
        limit = int((group / files.limit).read_text(encoding="utf-8"))
        used = int((group / files.used).read_text(encoding="utf-8"))
        statistics = (group / "memory.stat").read_text(encoding="utf-8")
        found = re.search(rf"^{files.droppable} (\d+)$", statistics, re.M)
        droppable = int(found[1]) if found else 0
        yield Headroom(max(0, limit - used + droppable), f"memory limit of {limit:,} bytes (cgroup)")


def address_space(root: Path) -> Iterator[Headroom]:
    """Yield what `ulimit -v` leaves."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        used = read_kibibytes(root / "proc/self/status", "VmSize") or 0
        yield Headroom(max(0, limit - used), f"address space of {limit:,} bytes (ulimit -v)")


def read_kibibytes(file: Path, name: str) -> int | None:
    """Read a line `name: 123 kB` of a kernel's file, in bytes.

    None if the file has no such line.
    """
    with suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+) kB$", file.read_text(encoding="utf-8"), re.M)
        return int(found[1]) * KIBIBYTE if found else None
    return None
