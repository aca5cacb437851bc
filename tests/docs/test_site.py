"""The site builds without a warning, and its front page leads to every chapter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import crfl_core
from docs.generate import write_site

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.slow
def test_it_builds_strictly(tmp_path: Path) -> None:
    write_site(tmp_path / "docs")
    places = [str(tmp_path / "docs"), str(tmp_path / "site")]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", *places]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "Getting started" in front
    links = re.findall(r'href="((?!https?:|#)[^"#]+\.html)', front)
    assert links
    assert all((tmp_path / "site" / link).exists() for link in links)


def test_every_page_stands_on_the_front_page() -> None:
    listed = set(re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert pages <= listed
    assert {name for name in listed if not (DOCS / f"{name}.md").exists()} == set()


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_forms_and_workflows_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_the_workflow_runs_the_two_commands_on_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["commands"]
    commands = " ".join(step.get("run", "") for step in job["steps"])
    assert "make demo" in commands
    assert ".ci/run" in commands
    classifiers = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert set(re.findall(r"Python :: (3\.\d+)", classifiers)) == set(job["strategy"]["matrix"]["python"])


def test_the_citation_has_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == crfl_core.__version__
