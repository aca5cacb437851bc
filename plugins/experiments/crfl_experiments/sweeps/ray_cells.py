"""What a worker of a Ray cluster does with the cells of a sweep."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any


class Cells:
    """Runs one cell after the other, in one thread. In a second one it can be asked how far it is, and told to end."""

    def __init__(self, marker: str) -> None:
        self._marker = Path(marker)
        self._said: list[dict[str, Any]] = []
        self._must_end = False

    def work(self, line: str) -> None:
        """One job, or a stack of them, whatever comes of it; `said` tells."""
        import torch

        from crfl_experiments.sweeps.worker import work

        torch.set_num_threads(1)
        if not self._marker.exists():
            why = "a sweep on several machines needs a folder on a file system that all of them share"
            for job in json.loads(line)["jobs"]:
                said = f"{platform.node()} does not see {self._marker.parent}: {why}"
                self._say(cell=job["name"], event="failed", reason=said)
            return
        try:
            work(line, self._say)
        except KeyboardInterrupt:  # told to end: the run has saved where it stands
            return

    def said(self) -> list[dict[str, Any]]:
        """What has happened since somebody asked."""
        said = self._said
        self._said = []
        return said

    def end(self) -> None:
        """Save and stop behind the round that is played now."""
        self._must_end = True

    def _say(self, **said: Any) -> None:
        if self._must_end:
            raise OSError("nobody wants to know any more")
        self._said.append(said)
