"""Record the results of six example configs and compare them bit for bit.

    python -m tests.goldens record build/goldens.json     # before a change
    python -m tests.goldens compare build/goldens.json    # after it; exit 1 if anything differs

A record holds a SHA-256 of every array that a run wrote (model, ledger, votes) and of the radii of every certificate,
and the public names and entry points. It is made on the machine that compares it: other processors round differently.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from crfl_core import extend, run

EXAMPLES = Path(__file__).parents[2] / "examples"

CONFIGS: dict[str, tuple[str, list[str]]] = {
    "softmax-fedavg-attacked": ("digits.toml", ['certificates=["paper", "pathwise-linear"]']),
    "rfa-chain": ("defences/rfa.toml", []),
    "groups": ("certified/digits-every-round.toml", []),
    "tail-continuations": ("digits.toml", ['certificates=[{type = "tail", continuations=40, selection=10}]']),
    "mlp-postprocess": ("digits-mlp.toml", []),
    "reserve-fltrust": ("defences/fltrust.toml", []),
}
"""The example file and the settings that differ from it, by the name of a golden run."""


def digest(array: np.ndarray[Any, Any]) -> str:
    """Return the SHA-256 of an array's type, shape and bytes."""
    header = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()


def digest_run(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of every array and CSV file below a run directory."""
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.suffix == ".npz":
            with np.load(file) as arrays:
                for key in sorted(arrays.files):
                    yield f"{name}:{key}", digest(arrays[key])
        elif file.suffix == ".safetensors":
            for key, array in sorted(load_file(file).items()):
                yield f"{name}:{key}", digest(array)
        elif file.suffix == ".npy":
            yield name, digest(np.load(file))
        elif file.suffix == ".csv":
            yield name, hashlib.sha256(file.read_bytes()).hexdigest()


def record() -> dict[str, dict[str, str]]:
    """Run every config and return the digests by run, with the public names and the entry points."""
    results: dict[str, dict[str, str]] = {}
    for name, (file, settings) in CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            run(EXAMPLES / file, overrides=settings, out=Path(folder) / "run")
            results[name] = dict(digest_run(Path(folder) / "run"))
        print(f"{name}: {len(results[name])} arrays and tables", flush=True)
    results["extend"] = dict.fromkeys(sorted(dir(extend)), "")
    points = importlib.metadata.distribution("crfl").entry_points
    results["entry points"] = {f"{point.group} {point.name}": "" for point in points}
    return results


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield one line for everything that is missing, new or different."""
    for name in sorted({*before, *after}):
        old = before.get(name, {})
        new = after.get(name, {})
        yield from (f"{name}: {key} is missing" for key in sorted(old.keys() - new.keys()))
        yield from (f"{name}: {key} is new" for key in sorted(new.keys() - old.keys()))
        yield from (f"{name}: {key} differs" for key in sorted(old.keys() & new.keys()) if old[key] != new[key])


def main() -> int:
    """Record or compare, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    found = record()
    if arguments.action == "record":
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        arguments.file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        return 0
    lines = list(differences(json.loads(arguments.file.read_text(encoding="utf-8")), found))
    print("\n".join(lines) or "identical")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
