"""Generate the documentation that the code already knows.

`python -m docs.generate build/docs` copies the hand-written pages to a folder and adds what is generated: the pages
of `reference/`, and the parts between `<!-- generated: NAME -->` and the next `<!-- end -->`. `make site` builds the
site from that folder. In git these parts hold a sentence that says where to find the content. Only the parts in
`parts.IN_GIT`, which readers of a page need, stand in git in full; `python -m docs.generate` rewrites them in place.
"""

from pathlib import Path
from shutil import copytree, ignore_patterns

from docs.generate.examples import Examples
from docs.generate.markdown import DOCS, ROOT
from docs.generate.parts import IN_GIT, part_writers, replace_parts
from docs.generate.reference import reference_pages


def pages_in_git() -> dict[Path, str]:
    """Return every page with the generated parts in git as they should be."""
    return replace_parts(written_pages(), IN_GIT)


def site_pages() -> dict[Path, str]:
    """Return every page of the site, by its path below the folder `docs`."""
    pages = replace_parts(written_pages(), part_writers().keys())
    pages |= reference_pages(pages, Examples.of(pages))
    return {path.relative_to(DOCS): text for path, text in pages.items() if path.is_relative_to(DOCS)}


def write_site(folder: Path) -> None:
    """Write the source of the site to a folder."""
    copytree(DOCS, folder, dirs_exist_ok=True, ignore=ignore_patterns("generate", "__pycache__"))
    for path, text in site_pages().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def written_pages() -> dict[Path, str]:
    """Return the text of every Markdown page in git."""
    paths = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
    return {path: path.read_text(encoding="utf-8") for path in paths}
