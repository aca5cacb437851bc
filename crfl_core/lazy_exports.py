"""A module whose names stand in a stub, `.pyi`, and are imported when they are first used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return a loader of names, `__dir__` and `__all__` for a module, from the stub beside its file.

    Every line of the stub is `from module import name as public_name`, with the full name of the module.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    places = {alias.asname or alias.name: (str(line.module), alias.name) for line in lines for alias in line.names}

    def load(public_name: str) -> object:
        if public_name not in places:
            raise AttributeError(f"module {package!r} has no attribute {public_name!r}")
        home, name = places[public_name]
        is_module = home == package or not hasattr(import_module(home), name)
        return import_module(f"{home}.{name}") if is_module else getattr(import_module(home), name)

    return load, lambda: sorted(places), list(places)
