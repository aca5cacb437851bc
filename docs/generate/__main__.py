"""Run `python -m docs.generate [FOLDER]`: the source of the site, or the generated parts that stand in git."""

import sys
from pathlib import Path

from docs.generate import pages_in_git, write_site

if len(sys.argv) > 1:
    write_site(Path(sys.argv[1]))
else:
    for path, text in pages_in_git().items():
        path.write_text(text, encoding="utf-8")
