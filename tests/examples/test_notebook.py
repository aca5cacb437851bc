"""The notebook of examples/ runs from first to last cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.xdist_group("notebook")  # one process shares what the fixtures make

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, "done.ipynb")
"""
"""In a process of its own: the sockets of a kernel are not closed in the order that warnings as errors ask for."""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("notebook")
    own = {"JUPYTER_RUNTIME_DIR": str(folder / "jupyter"), "IPYTHONDIR": str(folder / "ipython"), "MPLBACKEND": "agg"}
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK)]
    done = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    content = json.loads((folder / "done.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> set[str]:
    """Return the kinds of output below a cell."""
    return {kind for output in cell["outputs"] for kind in output.get("data", {"stream": ""})}


def test_no_cell_warns_or_fails(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr", output


def test_figures_are_pictures_and_results_are_tables(cells: list[dict[str, Any]]) -> None:
    figures = [cell for cell in cells if "plot(" in "".join(cell["source"])]
    assert len(figures) == 6
    assert all("image/png" in shown(cell) for cell in figures)
    (result,) = (cell for cell in cells if "".join(cell["source"]).endswith("\nundefended"))
    assert "text/html" in shown(result)
    tables = [cell for cell in cells if "to_pandas" in "".join(cell["source"])]
    assert any("text/html" in shown(cell) for cell in tables)


def test_the_committed_notebook_holds_no_outputs() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(not cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code")
