"""The diagram of how data flows: a small run is watched, and the calls that make plain data are drawn as a tree.

It runs in a process of its own, so that nothing was computed and kept beforehand.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

from docs.generate.doors import public_entries
from docs.generate.markdown import ROOT, fenced
from docs.generate.members import bases, is_record

CONFIG = {
    "rounds": 2,
    "dtype": "float64",
    "partition": {"type": "iid", "clients": 4},
    "model": {"type": "softmax", "features": {"type": "unit-ball"}},
    "training": {"learning_rate": 0.1, "steps": 2},
    "aggregation": ["norm-filter", "rfa"],
    "attack": {"type": "dba", "rounds": [1]},
    "certificates": ["paper"],
    "votes": {"models": 10, "selection_models": 5},
    "storage": {"figures": []},
}
ONLY_FACTS = {
    "Check",
    "DataFacts",
    "Domain",
    "Layout",
    "ModelFacts",
    "Plugin",
    "Scaling",
    "Streams",
    "Table",
    "VoteSettings",
}
"""Records that travel inside others, or everywhere: drawing them would hide the rest."""


@dataclass
class Call:
    """A function that was called, what it was the first to make, and what it called."""

    name: str
    file: str
    makes: list[str] = field(default_factory=list)
    calls: dict[CodeType, Call] = field(default_factory=dict)

    def prune(self) -> bool:
        """Forget the calls that made nothing. Whether anything is left."""
        self.calls = {code: call for code, call in self.calls.items() if call.prune()}
        return bool(self.makes or self.calls)

    def lines(self, here: str = "", below: str = "") -> Iterator[tuple[str, str]]:
        """The tree as lines, each with its file."""
        yield here + self.name + (f" ──► {', '.join(self.makes)}" if self.makes else ""), self.file
        for number, call in enumerate(self.calls.values(), 1):
            last = number == len(self.calls)
            yield from call.lines(below + ("└── " if last else "├── "), below + ("    " if last else "│   "))


class Watch:
    """Follows the calls of this thread, and notes who is the first to make each kind of record."""

    def __init__(self, records: set[str]) -> None:
        self.top = Call("", "")
        self._stack = [self.top]
        self._waiting = set(records)

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        """What `sys.setprofile` calls."""
        code = frame.f_code
        if event == "call" and code.co_name == "__init__":
            self._note(frame.f_locals.get("self"))
        if not is_step(code) or event not in ("call", "return"):
            return
        if event == "call":
            self._stack.append(self._stack[-1].calls.setdefault(code, Call(code.co_qualname, place_of(code))))
        elif len(self._stack) > 1:
            self._note(value)
            self._stack.pop()

    def _note(self, value: object) -> None:
        for part in value if isinstance(value, tuple) else ():
            self._note(part)
        kind = type(value).__name__
        if kind in self._waiting and type(value).__module__.startswith("crfl_core"):
            self._waiting.remove(kind)
            self._stack[-1].makes.append(kind)


@cache
def is_step(code: CodeType) -> bool:
    """Whether a function is drawn: a public one of the core's packages or of a plugin, not a method of a record."""
    path, private = Path(code.co_filename), code.co_name.startswith("_") and not code.co_name.endswith("__")
    inside = path.is_relative_to(ROOT / "plugins") or path.is_relative_to(ROOT / "crfl_core")
    return inside and path.parent != ROOT / "crfl_core" and not private and not code.co_name.startswith("<")


@cache
def place_of(code: CodeType) -> str:
    """The file of a function, below `crfl_core`, or the package of a plugin and the file in it."""
    parts = Path(code.co_filename).relative_to(ROOT).parts
    return "/".join(parts[2:] if parts[0] == "plugins" else parts)


def watched_run() -> Call:
    """The calls of a small run, of which those are kept that lead to a record."""
    from crfl_core import run

    records = {entry.name for entry in public_entries() if entry.definition.is_class and is_record(entry.definition)}
    plugins = {entry.name for entry in public_entries() if "Plugin" in {base.name for base in bases(entry.definition)}}
    watch = Watch(records - plugins - ONLY_FACTS | {"RunResult"})
    with TemporaryDirectory() as folder:
        sys.setprofile(watch)
        try:
            run(CONFIG, out=Path(folder, "run"))
        finally:
            sys.setprofile(None)
    watch.top.prune()
    (started,) = watch.top.calls.values()
    return started


def drawn() -> str:
    """The tree beside the files of its functions."""
    lines = list(watched_run().lines())
    width = max(len(text) for text, _ in lines) + 2
    return "\n".join(f"{text:<{width}}{file}" for text, file in lines)


def flow() -> str:
    """The diagram as Markdown."""
    command = [sys.executable, "-X", "utf8", "-c", "from docs.generate.flow import drawn; print(drawn())"]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, encoding="utf-8")
    return fenced("text", printed.stdout) + "\n"
