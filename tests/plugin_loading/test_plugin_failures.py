"""Plugins that raise while a run uses them: a sentence that says which plugin and line it was, and how to go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from tests.plugin_loading.called_methods import Called, every_called_method

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

SOURCE = """
from {module} import {base}

class Fragile({base}):
    def {method}(self, *_, **__):
        raise ZeroDivisionError("out of order")
"""


@every_called_method
def test_a_plugin_that_raises_is_named_with_its_distribution_and_version(
    called: Called, install: Install, crfl: Crfl, small: list[str], tmp_path: Path
) -> None:
    source = SOURCE.format(module=called.module, base=called.base, method=called.method)
    install("fragile-tools", "0.7", {f"crfl.{called.group}": {"fragile": "Fragile"}}, source)
    result = crfl("run", "--quiet", "--out", tmp_path / "run", *small, "--set", called.setting_for("fragile"))
    assert result.returncode == 2
    assert "'fragile' of fragile-tools 0.7 failed" in result.stderr
    assert "ZeroDivisionError: out of order" in result.stderr
    first, *more = result.stderr.splitlines()
    assert first.endswith("fragile_tools.py:6)")
    resume = [f"resume with `crfl run {tmp_path / 'run'}`"] if (tmp_path / "run").exists() else []
    assert more == [*resume, "CRFL_DEBUG=1 shows the traceback"]
