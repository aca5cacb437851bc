"""The documentation is true: code runs, commands work, links lead somewhere."""

from __future__ import annotations

import doctest
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from crfl_core import load_config, run
from crfl_core.extend import Certificate, FileDataset, Registry
from crfl_core.plugin_api import KINDS, hookspecs
from docs.generate import pages_in_git, written_pages
from docs.generate.examples import Examples
from docs.generate.parts import part_writers, replace_parts
from docs.generate.reference import reference_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "examples" / "README.md"])
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".toml", ".yaml"))

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE_PATH = re.compile(r"(?<![\w/.-])((?:crfl_core|plugins|docs|tests|examples|benchmarks)/[\w/.-]*[\w/])")
MATCHING = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fenced block of a page; `line` is that of its first line, `file` the name that this line gives, if any."""

    language: str
    text: str
    line: int
    file: str | None


class Command(NamedTuple):
    """A line `$ crfl ...` of a console block, and the output that the page shows below it."""

    arguments: list[str]
    output: str


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        named = re.match(r"# file: (\S+)\n", match[2])
        yield Block(match[1], match[2], text.count("\n", 0, match.start()) + 2, named[1] if named else None)


def commands(block: Block) -> Iterator[Command]:
    for chunk in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = chunk.partition("\n")
        program, *arguments = shlex.split(line)
        assert program == "crfl", f"line {block.line}: a console block is for crfl commands, found {program!r}"
        yield Command(arguments, output)


def section(page: Path, heading: str) -> str:
    """Return the text below a heading of the second level."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"{name_of(page)} has no section {heading!r}"
    return rest.partition("\n## ")[0]


def write(block: Block, folder: Path, begun: set[str]) -> None:
    """Write the file of a block; a second block of the same name appends."""
    assert block.file is not None
    with (folder / block.file).open("a" if block.file in begun else "w", encoding="utf-8") as file:
        file.write(block.text)
    begun.add(block.file)


def execute(block: Block, page: Path, module: ModuleType) -> str:
    """Run a Python block and return what it prints; tracebacks point at the line of the page."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with redirect_stdout(StringIO()) as printed:
        exec(code, vars(module))
    return printed.getvalue()


def call(command: Command, crfl: Callable[..., CompletedProcess[str]]) -> None:
    """Run a command and compare what it prints with what the page shows."""
    done = crfl(*command.arguments)
    fails = command.output.startswith("error: ")
    shown = f"crfl {shlex.join(command.arguments)}"
    assert done.returncode == (2 if fails else 0), f"{shown} ended with {done.returncode}: {done.stderr}"
    if command.output:
        assert_shown(command.output, done.stderr if fails else done.stdout, shown)


def assert_shown(expected: str, found: str, what: str) -> None:
    """Compare output with a page; `...` matches anything, white space is ignored."""
    assert doctest.OutputChecker().check_output(expected, found, MATCHING), f"{what} printed\n{found}"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, which is fastest for small models beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_and_commands_of_a_page_work_in_order(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crfl: Callable[..., CompletedProcess[str]],
    editable: Callable[[Path], str],
) -> None:
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # pydantic looks up annotations in the module of a class
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed = ""
    begun: set[str] = set()
    installed: list[str] = []
    for block in blocks(page):
        if block.file is not None:
            write(block, tmp_path, begun)
        if block.language == "python":
            printed = execute(block, page, module)
        elif block.language == "output":
            assert_shown(block.text, printed, f"the code above line {block.line}")
        elif block.language == "sh" and block.text.startswith("pip install --editable ./"):
            installed.append(editable(tmp_path / block.text.split()[-1]))
        elif block.language == "console":
            for command in commands(block):
                for name in installed:
                    sys.modules.pop(name, None)  # a command is a new process: it sees what was edited
                call(command, crfl)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_that_are_not_run_say_so_by_their_language(page: Path) -> None:
    run, not_run = {"python", "output", "console", "pycon"}, {"toml", "yaml", "sh", "text", "py"}
    assert {block.language for block in blocks(page)} <= run | not_run


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def internal_links(text: str) -> Iterator[str]:
    for link in LINK.findall(FENCE.sub("", text)):
        if not link.startswith("https://"):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_in_the_repository_lead_to_files_in_git(page: Path) -> None:
    for link in internal_links(page.read_text(encoding="utf-8")):
        path = link.partition("#")[0]
        assert (page.parent / path).exists(), f"{name_of(page)} links to {link}, which does not exist"


def test_links_of_the_site_lead_to_pages_and_headings() -> None:
    pages = replace_parts(written_pages(), part_writers().keys() - {"steps"})  # the table of steps takes a minute
    pages |= reference_pages(pages, Examples.of(pages))
    headings = {path: anchors(text) for path, text in pages.items()}
    for page, text in pages.items():
        for link in internal_links(text):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target in pages or target.exists(), f"{name_of(page)} links to {link}, which does not exist"
            assert not anchor or anchor in headings[target], f"{name_of(page)} links to {link}: no such heading"


def test_docstrings_refer_to_headings_that_exist() -> None:
    places = [path for folder in ("crfl_core", "plugins") for path in (ROOT / folder).rglob("*.py")]
    for path in places:
        for page, anchor in re.findall(r"(docs/[\w/-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
            assert (ROOT / page).exists(), f"{name_of(path)} refers to {page}, which does not exist"
            headings = anchors((ROOT / page).read_text(encoding="utf-8"))
            assert not anchor or anchor in headings, f"{name_of(path)} refers to {page}#{anchor}"


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "README.md"], ids=name_of)
def test_every_path_that_the_map_of_the_code_names_exists(page: Path) -> None:
    paths = set(CODE_PATH.findall(page.read_text(encoding="utf-8")))
    assert paths
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_page_is_linked_from_the_front_page_and_that_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    kinds = (DOCS / "writing-plugins" / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in DOCS.glob("*.md") if f"({page.name})" not in front} == {"index.md"}
    assert "(reference/README.md)" in front
    assert "(docs/index.md)" in readme
    writing = {page.name for page in (DOCS / "writing-plugins").glob("*.md")}
    assert {name for name in writing if f"({name})" not in kinds} == {"README.md"}
    assert writing >= {f"{kind}.md" for kind in (*KINDS, "stage")}
    assert "(docs/writing-plugins/README.md" in readme


def test_generated_parts_are_up_to_date_where_they_stand_in_git() -> None:
    for path, expected in pages_in_git().items():
        assert path.read_text(encoding="utf-8") == expected, f"{name_of(path)}: run python -m docs.generate"


def test_every_generated_part_stands_on_a_page_and_every_kind_of_plugin_shows_one() -> None:
    used = {name: path for path in PAGES for name in re.findall(r"<!-- generated: (\w+) -->", path.read_text())}
    assert used.keys() == part_writers().keys() | {"reference"}
    for kind in (*KINDS, "stage"):
        assert used[kind.replace("-", "_")] == DOCS / "writing-plugins" / f"{kind}.md"


def test_the_hooks_page_gives_the_signature_of_every_hook_and_of_no_other() -> None:
    page = (DOCS / "hooks.md").read_text(encoding="utf-8")
    specs = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("crfl_")}
    documented = re.findall(r"^def (crfl_\w+)\((.*)\) -> (.*): \.\.\.$", page, re.MULTILINE)
    expected = []
    for name, spec in specs.items():
        signature = inspect.signature(spec)
        arguments = ", ".join(f"{argument.name}: {argument.annotation}" for argument in signature.parameters.values())
        expected.append((name, arguments, signature.return_annotation))
    assert documented == expected


def test_the_concepts_page_lists_every_check_of_the_paper_certificate_and_what_its_failure_does(tmp_path: Path) -> None:
    result = run({"rounds": 1, "votes": {"models": 10}}, out=tmp_path / "run")
    (audit,) = result.audits
    table = section(DOCS / "concepts.md", "Audit")
    listed = dict(
        re.findall(r"^\| ([A-Za-z' ]+) \| (refused|condition|(?:always )?`declared`) \|$", table, re.MULTILINE)
    )
    assert list(listed) == [check.name for check in audit.checks]
    for check in audit.checks:
        effect = "`declared`" if check.status == "declared" else "refused" if check.refuses else "condition"
        assert listed[check.name].removeprefix("always ") == effect, check.name


def test_the_certificates_page_lists_every_check_of_the_sound_certificates_and_who_makes_it(tmp_path: Path) -> None:
    table = section(DOCS / "certificates.md", "The audit")
    rows = re.findall(r"^\| ([A-Za-z' -]+) \| [^|]+ \| ([a-z, ]+) \|$", table, re.MULTILINE)[1:]
    listed = {(check, certificate) for check, certificates in rows for certificate in certificates.split(", ")}

    votes = {"continuations": 4, "selection": 2}
    drawn = {"type": "pathwise-smoothed", "method": "monte-carlo"}
    sound = ["pathwise-linear", drawn, {"type": "tail"} | votes, {"type": "postprocess"} | votes]
    found: set[tuple[str, str]] = set()
    for number, (rule, rounds) in enumerate([("fedavg", [1]), ("rfa", [1]), ("fedavg", [1, 2])]):
        config = {"rounds": 2, "threat": {"rounds": rounds}, "certificates": sound, "aggregation": rule}
        for audit in run(config, out=tmp_path / str(number)).audits:
            found |= {(check.name, audit.certificate.partition("-")[0]) for check in audit.checks}
    assert listed == found


def test_getting_started_explains_every_file_of_a_run_directory(tmp_path: Path) -> None:
    run({"rounds": 1, "votes": {"models": 10}}, out=tmp_path / "run")
    page = (DOCS / "getting-started.md").read_text(encoding="utf-8")
    names = {f"{path.name}/" if path.is_dir() else path.name for path in (tmp_path / "run").iterdir()}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_readme_takes_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 125


def test_the_certificates_page_says_what_every_included_certificate_is_worth() -> None:
    text = section(DOCS / "certificates.md", "All of them")
    registry = Registry()
    for name in registry.names("certificate"):
        plugin = registry.load("certificate", name)
        assert issubclass(plugin, Certificate)
        assert f"`{name}`" in text
        assert plugin.label in text


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_every_example_runs_and_is_described(example: Path, tmp_path: Path) -> None:
    assert f"({example.name})" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    config = load_config(example).config
    if isinstance(config.dataset, FileDataset):
        source = config.dataset.source()
        if not any(source.find(file.name) for file in source.files):
            pytest.skip(f"set CRFL_DATA_DIR to a folder with the files of {config.dataset.configured_as}")
    overrides = ["rounds=2", "votes.models=20", "training.steps=2"]
    if config.attack is not None:
        overrides.append("attack.rounds=[1]")
    for position, certificate in enumerate(config.certificates):
        if "continuations" in type(certificate).model_fields:
            overrides += [f"certificates.{position}.continuations=8", f"certificates.{position}.selection=4"]
    result = run(example, overrides=overrides, out=tmp_path / "run")
    assert len(result.ledger.rounds) == 2


def test_the_commented_example_is_the_default_config() -> None:
    example = load_config(ROOT / "examples" / "digits.toml").config
    assert example == load_config().config.model_copy(update={"name": example.name})


def test_the_examples_show_what_they_are_there_for(tmp_path: Path) -> None:
    digits, clean, network = (
        load_config(ROOT / "examples" / name).config for name in ("digits.toml", "digits-clean.toml", "digits-mlp.toml")
    )
    assert load_config(ROOT / "examples/digits.yaml").config == digits
    assert clean == digits.model_copy(update={"name": "digits-clean", "attack": None})
    few = ["certificates.postprocess.continuations=5", "certificates.postprocess.selection=2", "votes.models=10"]
    result = run(network, overrides=["rounds=1", "attack.rounds=[1]", *few], out=tmp_path / "run")
    assert set(result.metrics.refused) == {"paper", "pathwise-linear"}
    assert all("softmax" in reason for reason in result.metrics.refused.values())
    assert {certified.certificate for certified in result.certified} == {"postprocess"}


def test_every_certificate_of_one_model_takes_part_in_the_worked_example() -> None:
    config, registry = load_config(ROOT / "examples" / "certified-digits.toml").config, Registry()
    loaded = {name: registry.load("certificate", name) for name in registry.names("certificate")}
    one_model = {name for name, plugin in loaded.items() if issubclass(plugin, Certificate) and not plugin.groups}
    assert {one.title for one in config.certificates} == one_model
