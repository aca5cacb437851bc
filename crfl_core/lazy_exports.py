"""Lazy names of a module: they are listed in its stub, `.pyi`, and imported when they are first used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a module.

    They come from the stub beside its file. Every line of the stub is `from module import name as public_name`, with
    the full name of the module.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes: dict[str, tuple[str, str]] = {}
    for line in stub.body:
        if isinstance(line, ast.ImportFrom):
            homes |= {alias.asname or alias.name: (str(line.module), alias.name) for alias in line.names}

    def load(public_name: str) -> object:
        """Import the module of a public name, and return what it names."""
        if public_name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {public_name!r}")
        home, name = homes[public_name]
        if home != package:
            module = import_module(home)
            if hasattr(module, name):
                return getattr(module, name)
        return import_module(f"{home}.{name}")  # the name is a module itself

    return load, lambda: sorted(homes), list(homes)
