"""Whether something was made by this user's installation: sealed with a key that never leaves it."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path

CONFIG_DIR = "CRFL_CONFIG_DIR"
KEY_BYTES = 32


def config_dir() -> Path:
    """Where the settings of this user lie: $CRFL_CONFIG_DIR, else where the operating system wants them."""
    from platformdirs import user_config_path

    own = os.environ.get(CONFIG_DIR)
    return Path(own) if own else user_config_path("crfl")


def local_key() -> bytes | None:
    """The key of this user's installation, made when it is first needed; None where it cannot be kept."""
    path = config_dir() / "key"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".key-{os.getpid()}-{secrets.token_hex(4)}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())  # half a key would make all runs those of others, for ever
            with contextlib.suppress(FileExistsError):  # another process was faster: its key counts
                os.link(fresh, path)
            fresh.unlink()
        key = path.read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def seal(content: bytes) -> str:
    """What only this installation can write under a content; empty where no key can be kept."""
    key = local_key()
    return "" if key is None else hmac.new(key, content, "sha256").hexdigest()


def is_sealed_here(content: bytes, found: object) -> bool:
    """Whether this installation wrote a seal under this content."""
    own = seal(content)
    return bool(own) and isinstance(found, str) and hmac.compare_digest(own.encode(), found.encode())
