"""Writes the documentation that the code already knows: `python -m docs.generate`, from the top of the repository.

`parts` replaces what stands between a `<!-- generated: NAME -->` and the next `<!-- end -->` in pages written by hand;
`reference` writes the pages of `docs/reference/` as a whole.
"""

from pathlib import Path

from docs.generate.examples import Examples
from docs.generate.markdown import DOCS, ROOT
from docs.generate.parts import replaced
from docs.generate.reference import reference_pages


def pages() -> dict[Path, str]:
    """Every page that is generated, or has a generated part, as it should be."""
    written = {path: path.read_text(encoding="utf-8") for path in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])}
    with_parts = replaced(written)
    return with_parts | reference_pages(Examples.of(written | with_parts))
