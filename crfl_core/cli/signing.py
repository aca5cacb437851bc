"""Signatures of receipts: Ed25519, by the package `cryptography`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crfl_core.extend import CrflError, DataError

ALGORITHM = "Ed25519"
HOW = "make one with `openssl genpkey -algorithm ed25519 -out key.pem` or `ssh-keygen -t ed25519`"


def sign(key: Path, content: bytes) -> dict[str, str]:
    """The signature under some bytes with the private key of a file, PEM or OpenSSH, without a passphrase."""
    needed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        text = key.read_bytes()
    except OSError as error:
        raise DataError(f"{key}: cannot be read: {error.strerror}: {HOW}") from error
    read = serialization.load_ssh_private_key if b"OPENSSH" in text else serialization.load_pem_private_key
    try:
        private = read(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise DataError(f"{key}: holds no private key that can be used: {error}: {HOW}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise DataError(f"{key}: is no {ALGORITHM} key: {HOW}")
    public = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return {"algorithm": ALGORITHM, "public_key": public.hex(), "value": private.sign(content).hex()}


def fits(signature: dict[str, Any], content: bytes) -> bool:
    """Whether a signature stands under these bytes."""
    needed()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        public.verify(bytes.fromhex(signature["value"]), content)
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return False
    return signature.get("algorithm") == ALGORITHM


def needed() -> None:
    """Raise `CrflError` where the package is not installed that signs."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise CrflError("signatures need the package cryptography: pip install 'crfl[sign]'") from None
