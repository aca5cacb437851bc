"""Fetch or compare the vendored files of reports: `python -m docs.vendored [VERSION]`.

Without a version, the files that are there are compared with what `vendored.json` says of them, and nothing is fetched.
With one, the package is downloaded from the npm registry, compared with the digest that the registry has of it, and its
files replace those that are there. Look at the pages afterwards: `python -m docs.screenshots`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

FOLDER = Path(__file__).parents[1] / "plugins" / "reports" / "crfl_reports" / "pages" / "assets" / "vendored"
RECORD = FOLDER / "vendored.json"
REGISTRY = "https://registry.npmjs.org"
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
    """Download a version, compare the registry's digest, and unpack the files."""
    about = json.loads(download(f"{REGISTRY}/{PACKAGE}/{version}"))
    content = download(about["dist"]["tarball"])
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != about["dist"]["integrity"]:
        raise SystemExit(f"{about['dist']['tarball']}: its digest is {found}, not {about['dist']['integrity']}")
    digests = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for name, inside in FILES.items():
            member = archive.extractfile(inside)
            if member is None:
                raise SystemExit(f"{about['dist']['tarball']}: has no {inside}")
            text = member.read()
            (FOLDER / name).write_bytes(text)
            digests[name] = hashlib.sha256(text).hexdigest()
    return {
        "package": PACKAGE,
        "version": about["version"],
        "licence": about["license"],
        "source": about["dist"]["tarball"],
        "integrity": about["dist"]["integrity"],
        "sha256": digests,
    }


def download(address: str) -> bytes:
    """Download a file of the registry."""
    with urlopen(address, timeout=60) as answer:
        content: bytes = answer.read()
    return content


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
