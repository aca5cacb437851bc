"""Package of a new plugin, written from templates as a whole or not at all.

The templates are ordinary files that work as they are, so that linter and type checker see them: the placeholders are
names such as `MyPlugin` and `crfl_my_plugin`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from crfl_core import __version__
from crfl_core.cli.scaffold.names import COMMAND, PluginNames, ScaffoldError
from crfl_core.extend import Registry
from crfl_core.plugin_api import KINDS

TEMPLATES = Path(__file__).with_name("templates")
LICENCES: Mapping[str, str | None] = {
    "apache-2.0": "Apache-2.0",
    "mit": "MIT",
    "bsd-3-clause": "BSD-3-Clause",
    "none": None,
}
"""Licences to choose from, with their names in the metadata."""


def write_package(
    names: PluginNames,
    target: Path,
    *,
    licence: str,
    author: str | None,
    registry: Registry,
    url: str | None = None,
) -> None:
    """Write the package into `target`, which must not exist yet.

    Raises `ScaffoldError`. Then nothing is written.
    """
    names.check()
    content = package_files(names, licence=licence, author=author, registry=registry, url=url)
    if os.path.lexists(target):
        raise ScaffoldError(f"{target}: exists already and is not overwritten: choose another --out")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".crfl-new-", dir=target.parent) as scratch:
            package = Path(scratch, "package")
            for name, text in content.items():
                path = package / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            package.rename(target)  # there at once or not at all
    except OSError as error:
        raise ScaffoldError(f"{target}: cannot be written: {error.strerror}: choose another --out") from error


def package_files(
    names: PluginNames, *, licence: str, author: str | None, registry: Registry, url: str | None = None
) -> dict[str, str]:
    """Return every file of the package, by its path.

    `url` is the address of its repository, if it is known.
    """
    if licence not in LICENCES:
        raise ScaffoldError(f"--licence {licence}: there are {', '.join(LICENCES)}")
    if author is not None and not re.fullmatch(r'[^"\\\x00-\x1f]+', author):
        raise ScaffoldError(f"--author {author!r}: use no quotes, backslashes or line breaks")
    if url is not None and not re.fullmatch(r'https?://[^"\\\s]+', url):
        raise ScaffoldError(f"--url {url!r}: use the address of a repository, such as https://example.org/me/project")
    words = placeholders(names, licence, author or f"The authors of {names.distribution}", registry)
    words["MY_URL"] = (url or f"https://example.org/{names.distribution}").rstrip("/")
    templates = templates_of(names)
    if LICENCES[licence] is not None:
        templates["LICENSE"] = f"licences/{licence}.txt"
    result = {
        name: fill_template((TEMPLATES / path).read_text(encoding="utf-8"), words) for name, path in templates.items()
    }
    if LICENCES[licence] is None:
        result["pyproject.toml"] = re.sub(r"^license.*\n", "", result["pyproject.toml"], flags=re.MULTILINE)
    if url is None:
        urls = re.compile(r"^(\[project\.urls\]|Repository = .*|Issues = .*)$", re.MULTILINE)
        result["pyproject.toml"] = urls.sub(r"# \1", result["pyproject.toml"])
    check_target(names, result[f"src/{names.module}/__init__.py"])
    return result | {f"src/{names.module}/py.typed": ""}


def templates_of(names: PluginNames) -> dict[str, str]:
    """Return the template of every file of the package.

    Only commands have no example config.
    """
    kind = names.kind.replace("-", "_")
    is_command = names.kind == COMMAND
    templates = {
        "pyproject.toml": "package/project.toml",
        "README.md": "package/README-command.md" if is_command else "package/README.md",
        ".gitignore": "package/gitignore",
        ".github/workflows/publish.yml": "package/publish.yml",
        ".github/workflows/tests.yml": "package/tests.yml",
        f"src/{names.module}/__init__.py": f"kinds/{kind}.py",
        f"tests/test_{names.module}.py": f"package/test_{'my_command' if is_command else 'my_plugin'}.py",
    }
    return templates if is_command else templates | {"example.toml": f"kinds/{kind}.toml"}


def placeholders(names: PluginNames, licence: str, author: str, registry: Registry) -> dict[str, str]:
    """Return the placeholders of the templates with their replacements."""
    exact = f"{names.distribution}:{names.plugin}"
    return {
        "crfl-my-plugin": names.distribution,
        "crfl_my_plugin": names.module,
        "my-plugin": names.plugin,
        "my_plugin": names.function_name,
        "MyPlugin": names.class_name,
        "MY_TARGET": names.target,
        "MY_TYPE": exact if names.rivals(registry) else names.plugin,
        "MY_KIND": names.kind.replace("-", " "),
        "MY_GROUP": KINDS[names.found_as].group,
        "crfl>=0.0.0": f"crfl>={__version__}",
        "MY_LICENCE": LICENCES[licence] or "",
        "MY_AUTHOR": author,
        "MY_YEAR": str(date.today().year),
    }


def fill_template(template: str, words: Mapping[str, str]) -> str:
    """Replace every placeholder of a template, all at once."""
    return re.sub("|".join(map(re.escape, words)), lambda match: words[match[0]], template)


def check_target(names: PluginNames, source: str) -> None:
    """Refuse a name that the plugin's module uses.

    `crfl new stage stage` would derive Stage from Stage.
    """
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    if names.target in used:
        raise ScaffoldError(f"{names.plugin!r} would be called {names.target}, which its module already uses")
