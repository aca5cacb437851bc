"""Fetch or compare the vendored files of reports: `python -m docs.vendored [VERSION]`.

Without a version, the files that are there are compared with what `vendored.json` says of them, and nothing is fetched.
With one, `npm` downloads the package and compares it with the digest that its registry has of it, and its files replace
those that are there. Look at the pages afterwards: `python -m docs.screenshots`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "plugins" / "reports" / "crfl_reports" / "pages" / "assets" / "vendored"
RECORD = FOLDER / "vendored.json"
PACKAGE = "uplot"
FILES = {
    "uPlot.iife.min.js": "package/dist/uPlot.iife.min.js",
    "uPlot.min.css": "package/dist/uPlot.min.css",
    "LICENSE": "package/LICENSE",
}
"""The names of the files here, and in the package."""


def main(arguments: list[str]) -> int:
    """Fetch a version, or compare the files with their record."""
    if arguments:
        record = fetch(arguments[0])
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        print(f"{PACKAGE} {record['version']}: {len(FILES)} files written to {FOLDER}")
    different = differences()
    for name in different:
        print(f"{FOLDER / name}: is not the file of {RECORD.name}: fetch it again", file=sys.stderr)
    return 2 if different else 0


def fetch(version: str) -> dict[str, Any]:
    """Download a version with npm, which compares the registry's digest, and unpack the files."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{PACKAGE}@{version}", "--json"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True)
        (about,) = json.loads(done.stdout)
        content = (Path(folder) / about["filename"]).read_bytes()
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != about["integrity"]:
        raise SystemExit(f"{about['filename']}: its digest is {found}, not {about['integrity']}")
    digests = {}
    licence = ""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for name, inside in {**FILES, "package.json": "package/package.json"}.items():
            member = archive.extractfile(inside)
            if member is None:
                raise SystemExit(f"{about['filename']}: has no {inside}")
            text = member.read()
            if name == "package.json":
                licence = json.loads(text)["license"]
                continue
            (FOLDER / name).write_bytes(text)
            digests[name] = hashlib.sha256(text).hexdigest()
    return {
        "package": PACKAGE,
        "version": about["version"],
        "licence": licence,
        "source": f"npm package {PACKAGE} {about['version']}",
        "integrity": about["integrity"],
        "sha256": digests,
    }


def differences() -> list[str]:
    """Return the files that differ from their record."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return [
        name
        for name, digest in record["sha256"].items()
        if hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() != digest
    ]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
