"""Receipts as files: read, compared with a run, and signed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crfl_core.errors import StoreError
from crfl_core.extend import CrflError, DataError
from crfl_core.runs.receipts import VERSION
from crfl_core.runs.run_directory import RunDirectory


def signed_part(receipt: dict[str, Any]) -> bytes:
    """The bytes under which a signature stands: everything but the signature, in one spelling."""
    rest = {name: value for name, value in receipt.items() if name != "signature"}
    return json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()


def read_receipt(path: Path) -> dict[str, Any]:
    """A receipt from its file."""
    try:
        receipt = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no receipt: not valid JSON: {error}") from error
    if not isinstance(receipt, dict) or receipt.get("receipt") != VERSION or not isinstance(receipt.get("files"), dict):
        raise DataError(f"{path}: is no receipt of this version, {VERSION}: write it with `crfl receipt RUN`")
    return receipt


def compared(directory: RunDirectory, path: Path) -> Iterator[str]:
    """Whether a run, whose files fit its own manifest, is the one of a receipt; then who signed it."""
    receipt = read_receipt(path)
    yield signer_of(receipt, path)
    if receipt.get("manifest") != directory.status.get("manifest"):
        files = receipt["files"]
        now = directory.digests
        different = sorted(name for name in {*files, *now} if files.get(name) != now.get(name))
        named = f": {', '.join(different[:5])} differ" if different else ""
        raise StoreError(
            f"{directory.path}: is complete in itself and not the run of {path}{named}: it is another run, or forged"
        )
    yield "this is the run of the receipt"


def signer_of(receipt: dict[str, Any], path: Path) -> str:
    """Who signed a receipt, in words. Raises `CrflError` if the signature is not one of this receipt."""
    signature = receipt.get("signature")
    if signature is None:
        return "the receipt is not signed: anybody can have written it"
    from crfl_core.cli.signing import fits

    if not isinstance(signature, dict) or not fits(signature, signed_part(receipt)):
        raise CrflError(f"{path}: the signature is not one of this receipt: it was altered after it was signed")
    return f"the receipt is signed with the key {signature['public_key']}: compare it with that of the author"
