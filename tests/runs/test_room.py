"""What is left of memory and disk: the narrowest limit counts, and an unknown one is not a limit."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from crfl_core import resource_limits

GIBIBYTE = 2**30


def machine(root: Path, files: dict[str, str]) -> Path:
    """A machine of which only these files are known."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


MEMORY = {"proc/meminfo": "MemTotal:  33554432 kB\nMemAvailable:   8388608 kB\n"}
UNIFIED = {
    "proc/self/cgroup": "0::/batch/job\n",
    "sys/fs/cgroup/batch/job/memory.max": "max\n",
    "sys/fs/cgroup/batch/job/memory.current": "0\n",
    "sys/fs/cgroup/batch/memory.max": f"{4 * GIBIBYTE}\n",
    "sys/fs/cgroup/batch/memory.current": f"{2 * GIBIBYTE}\n",
    "sys/fs/cgroup/batch/memory.stat": f"anon 7\ninactive_file {GIBIBYTE}\n",
}
FIRST = {
    "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/abc\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIBIBYTE}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIBIBYTE}\n",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
}


def test_the_kernel_says_what_is_available(tmp_path: Path) -> None:
    assert resource_limits.free_memory(machine(tmp_path, MEMORY)) == resource_limits.Headroom(
        8 * GIBIBYTE, "available memory"
    )


@pytest.mark.parametrize(("files", "left", "most"), [(UNIFIED, 3, 4), (FIRST, 2, 3)])
def test_a_container_may_have_less(tmp_path: Path, files: dict[str, str], left: int, most: int) -> None:
    """A limit of a group above holds as well; what could be dropped is left, too."""
    found = resource_limits.free_memory(machine(tmp_path, MEMORY | files))
    assert found == resource_limits.Headroom(left * GIBIBYTE, f"memory limit of {most * GIBIBYTE:,} bytes (cgroup)")


def test_damaged_files_are_no_limit(tmp_path: Path) -> None:
    damaged = {"sys/fs/cgroup/batch/memory.max": "lots", "sys/fs/cgroup/batch/memory.stat": ""}
    found = resource_limits.free_memory(machine(tmp_path, MEMORY | UNIFIED | damaged))
    assert found is not None
    assert found.left == 8 * GIBIBYTE


def test_the_address_space_of_a_process_may_be_limited() -> None:
    code = (
        "import resource; from crfl_core import resource_limits; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({GIBIBYTE}, {GIBIBYTE})); found = resource_limits.free_memory(); "
        f"print(0 < found.left < {GIBIBYTE}, found.limit)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["True", f"address space of {GIBIBYTE:,} bytes (ulimit -v)\n"]


def test_disk_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    found = resource_limits.free_disk(tmp_path / "not" / "there")
    assert found is not None
    assert found.left > 0
    assert found.limit == f"free disk at {tmp_path}"


def test_what_this_process_has_is_known() -> None:
    assert 0 < resource_limits.resident_memory() <= resource_limits.peak_memory()
    assert resource_limits.peak_memory() >= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
