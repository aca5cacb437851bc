"""Identities in a federation: a certificate for the server and a key for every node."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crfl_core.errors import StoreError

VALIDITY = timedelta(days=365)
LOOPBACK = ("localhost", "127.0.0.1")
"""Names under which the server connects to its own child processes."""
CLIENT_SUFFIXES = (".pub", ".revoked")
"""Endings of the files of clients: with a key that counts, and with one that counts no longer."""


def write_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Write the certificate authority and the server's certificate.

    The files are `ca.crt`, and `server.crt` with `server.key` for these hosts, valid for a year. The authority's key is
    not kept. To issue another certificate later, create all of them again, or use an authority of your own.
    """
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = common_name("crfl federation")
    subject = common_name(hosts[0])
    extension = x509.BasicConstraints(ca=True, path_length=0)
    own = build_certificate(issuer, authority.public_key(), issuer).add_extension(extension, critical=True)
    alternatives = x509.SubjectAlternativeName([parse_host(host) for host in dict.fromkeys((*hosts, *LOOPBACK))])
    theirs = build_certificate(subject, server.public_key(), issuer).add_extension(alternatives, critical=False)
    for name, made in (("ca.crt", own), ("server.crt", theirs)):
        signed = made.sign(authority, hashes.SHA384())
        (folder / name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    write_secret(folder / "server.key", encode_private_key(server, serialization.PrivateFormat.PKCS8))


def common_name(name: str) -> x509.Name:
    """Return an X.509 name that holds only a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def build_certificate(subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name) -> x509.CertificateBuilder:
    """Return a certificate that is not signed yet."""
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(today - timedelta(days=1)).not_valid_after(today + VALIDITY)


def parse_host(host: str) -> x509.GeneralName:
    """Return a host as an X.509 name.

    The name is an IP address or a DNS name.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_node_key(private: Path, public: Path) -> None:
    """Create a node's key pair.

    The private key stays with the node; the public key identifies it to the server.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, encode_private_key(key, serialization.PrivateFormat.OpenSSH))
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*formats) + b"\n")


def encode_private_key(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    """Return a private key as PEM.

    It has no password, so that services start unattended.
    """
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)


def check_secret_file(path: Path) -> None:
    """Raise `StoreError` if a secret file is missing or readable by others."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    if os.name == "posix" and mode & 0o077:
        raise StoreError(f"{path}: holds a secret, and its mode {mode:o} lets other users read it: chmod 600 {path}")


@contextmanager
def private_files() -> Iterator[None]:
    """Let only their owner read the files written in the block."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def read_client_keys(folder: Path) -> list[bytes | None]:
    """Return the public keys of all clients as PEM, client 0 first.

    They are the files of `nodes`, sorted by name. A client whose file ends in `.revoked` instead of `.pub` keeps its
    place, and has None instead of a key.
    """
    files = sorted((file for file in (folder / "nodes").glob("*") if file.suffix in CLIENT_SUFFIXES), key=client_name)
    if not any(file.suffix == ".pub" for file in files):
        raise StoreError(f"{folder / 'nodes'}: no node has a key there: copy the .pub file of every node into it")
    keys: list[bytes | None] = []
    for place, file in enumerate(files):
        key = read_public_key(file) if file.suffix == ".pub" else None
        if place and client_name(file) == client_name(files[place - 1]):
            raise StoreError(f"{file}: {files[place - 1].name} is there, too: keep one of the two")
        if key is not None and key in keys:
            raise StoreError(f"{file}: is also the key of {files[keys.index(key)].name}: every node needs its own")
        keys.append(key)
    return keys


def client_name(file: Path) -> str:
    """Return the name of a client's file without its ending.

    Clients are sorted by this name.
    """
    return file.stem


def read_public_key(file: Path) -> bytes:
    """Return the public key of an OpenSSH file as PEM."""
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise StoreError(f"{file}: is not a public key: make one with `ssh-keygen -t ecdsa -b 384`") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise StoreError(f"{file}: is not an elliptic-curve key: make one with `ssh-keygen -t ecdsa -b 384`")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
