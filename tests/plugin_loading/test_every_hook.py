"""What must be true of each hook in hookspecs.py, including one that is added later."""

from __future__ import annotations

import ast
import functools
import inspect
from pathlib import Path

import pytest

import crfl_core
from crfl_core.plugin_api import hookspecs

HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("crfl_")}
every_hook = pytest.mark.parametrize("hook", HOOKS)


@every_hook
def test_the_core_calls_it(hook: str) -> None:
    assert hook in called_hooks()


@every_hook
def test_it_has_a_test_that_bears_its_name(hook: str) -> None:
    files = Path(__file__).parent.glob("test_hooks_that_*.py")
    assert any(f"def test_{hook}_" in file.read_text(encoding="utf-8") for file in files)


@every_hook
def test_it_is_documented_with_its_signature(hook: str) -> None:
    signature = str(inspect.signature(HOOKS[hook])).replace("'", "")
    text = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
    assert f"def {hook}{signature}" in text


@every_hook
def test_it_says_what_it_is_for(hook: str) -> None:
    assert inspect.getdoc(HOOKS[hook])


@functools.cache
def called_hooks() -> set[str]:
    """Hooks that the core observes by name, and those that a method of `Hooks` asks, if the core calls the method."""
    core = Path(crfl_core.__file__).parent
    sources = [path for path in core.rglob("*.py") if path.name != "hookspecs.py"]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    calls = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    methods = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    observed = {
        str(call.args[0].value)
        for call in calls
        if ast.unparse(call.func).endswith(("hooks.observe", "self.observe")) and isinstance(call.args[0], ast.Constant)
    }
    asked = {
        node.attr
        for function in ast.walk(trees[core / "plugin_loading" / "hooks.py"])
        if isinstance(function, ast.FunctionDef) and function.name in methods
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self._manager.hook"
    }
    return observed | asked
