"""Damages to files: of bytes, of values in JSON and TOML, of arrays and tensors. The same seed gives the same ones."""

from __future__ import annotations

import io
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from crfl_core.runs.run_directory import tensor_digest

Arrays = dict[str, NDArray[Any]]
Mutation = Callable[[bytes, random.Random], bytes]

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        7,
        10**6,
        10**9,
        10**30,
        -0.0,
        0.5,
        1e-300,
        1e308,
        "NaN",
        "Infinity",
        "-Infinity",
    ),
    *("", "x", "0", "../../etc", "\x00", "x" * 10_000, [], {}, [1], [[]], {"a": 1}, ["a", None], [0.5] * 1_000),
)
"""Values that a user could write in the place of another."""


def damaged_bytes(content: bytes, dice: random.Random) -> bytes:
    """Something that a disk, a transfer or an editor does."""
    at, until = sorted(dice.randrange(len(content) + 1) for _ in range(2))
    match dice.randrange(8):
        case 0 | 1 | 2 if content:
            at = dice.randrange(len(content))
            return content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]
        case 3:
            return content[:at]
        case 4:
            return content[:at] + bytes(until - at) + content[until:]
        case 5:
            return content[:at] + content[until:]
        case 6:
            return content[:until] + content[at:]
        case _:
            return content + dice.choice([b"\n", b"\x00", b"x", content, b"[" * 100_000])


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def damaged_tree(tree: Any, dice: random.Random) -> Any:
    """A tree in which one value is odd, gone, or there twice."""
    found = list(places(tree))
    if not found:
        return dice.choice(ODD)
    *way, last = dice.choice(found)
    holder = tree
    for step in way:
        holder = holder[step]
    match dice.randrange(6):
        case 0:
            del holder[last]
        case 1 if isinstance(holder, list):
            holder.append(holder[last])
        case 1:
            holder[f"{last}2"] = holder[last]
        case 2 if isinstance(holder[last], int | float) and not isinstance(holder[last], bool):
            holder[last] = dice.choice([-holder[last], holder[last] * 1000, holder[last] + 1, holder[last] / 3])
        case _:
            holder[last] = dice.choice(ODD)
    return tree


def damaged_json(content: bytes, dice: random.Random) -> bytes:
    """JSON with an odd value, or without end."""
    if dice.random() < 0.03:
        return b"[" * 200_000
    return json.dumps(damaged_tree(json.loads(content), dice)).encode()


def damaged_lines(content: bytes, dice: random.Random) -> bytes:
    """Lines of JSON: an odd value in one, one gone, twice, or somewhere else."""
    lines = content.splitlines(keepends=True)
    at = dice.randrange(len(lines))
    match dice.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(dice.randrange(len(lines)), lines[at])
        case 2:
            dice.shuffle(lines)
        case _:
            lines[at] = damaged_json(lines[at], dice) + b"\n"
    return b"".join(lines)


def damaged_toml(content: bytes, dice: random.Random) -> bytes:
    """TOML with an odd value."""
    tree = damaged_tree(tomllib.loads(content.decode()), dice)
    try:
        return tomli_w.dumps(tree).encode()
    except (TypeError, ValueError, AttributeError):  # TOML has no such value
        return damaged_bytes(content, dice)


def damaged_array(array: NDArray[Any], dice: random.Random) -> NDArray[Any]:
    """An array of another type, shape, length or content."""
    match dice.randrange(9):
        case 0:
            kind = dice.choice(["f4", "f8", "i1", "i8", "u2", "?", "c16", "U3"])
            return array.astype(kind) if array.dtype.kind in "bif" else np.zeros(array.shape, kind)
        case 1:
            return array[..., :-1] if array.ndim else array
        case 2:
            return array[:-1] if array.ndim else array[None]
        case 3:
            return np.concatenate([array, array]) if array.ndim else np.array([array, array])
        case 4:
            return array[None]
        case 5:
            return array.ravel()[:0]
        case 6:
            return array.reshape(-1)
        case _:
            return odd_value(array, dice)


def odd_value(array: NDArray[Any], dice: random.Random) -> NDArray[Any]:
    """An array with a value that has no place there."""
    if array.dtype.kind not in "if" or not array.size:
        return np.zeros_like(array)
    array = array.copy()
    odd = (np.nan, np.inf, -np.inf, -1.0, 1e300, 1e-300, 0.0, 3.0)
    whole = (-1, 2**40, -(2**62), 2**62, 0, 3, 11)
    with np.errstate(all="ignore"):
        array.reshape(-1)[dice.randrange(array.size)] = dice.choice(odd if array.dtype.kind == "f" else whole)
    return array


def damaged_arrays(arrays: Arrays, dice: random.Random) -> Arrays:
    """Named arrays of which one is damaged, gone, renamed, or new."""
    name = dice.choice(sorted(arrays))
    match dice.randrange(8):
        case 0:
            return {key: array for key, array in arrays.items() if key != name}
        case 1:
            return {f"{key}x" if key == name else key: array for key, array in arrays.items()}
        case 2:
            return arrays | {"extra": np.zeros(3)}
        case _:
            return arrays | {name: damaged_array(arrays[name], dice)}


def damaged_npz(content: bytes, dice: random.Random) -> bytes:
    """An npz file with a damaged array."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = damaged_arrays(dict(file), dice)
    if dice.random() < 0.03:
        arrays = arrays | {sorted(arrays)[0]: np.array([{"an": "object"}], object)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # the stubs take a keyword for an option
    return buffer.getvalue()


def damaged_safetensors(content: bytes, dice: random.Random) -> bytes:
    """A safetensors file with a damaged tensor or damaged notes."""
    return rewritten(content, dice, forged=False)


def forged_safetensors(content: bytes, dice: random.Random) -> bytes:
    """The same with a digest of its own that fits."""
    return rewritten(content, dice, forged=True)


def rewritten(content: bytes, dice: random.Random, *, forged: bool) -> bytes:
    """A safetensors file with other tensors or notes, and with the old digest or with one that fits."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    notes = json.loads(header["__metadata__"]["crfl"])
    digest = notes.pop("sha256")
    tensors = load_tensors(content)
    if notes and dice.random() < 0.3:
        notes = damaged_tree(notes, dice)
    else:
        tensors = damaged_arrays(tensors, dice)
    tensors = {name: array for name, array in tensors.items() if array.dtype.kind in "bif"}
    if not isinstance(notes, dict):
        return content[:-1]
    written = {**notes, "sha256": tensor_digest(tensors, notes) if forged else digest}
    return save_tensors(tensors, metadata={"crfl": json.dumps(written, sort_keys=True)})


MEANT: dict[str, Mutation] = {
    ".json": damaged_json,
    ".jsonl": damaged_lines,
    ".toml": damaged_toml,
    ".npz": damaged_npz,
    ".safetensors": damaged_safetensors,
}
"""Damages that know what a file holds, by the ending of its name."""

FORGED: dict[str, Mutation] = MEANT | {".safetensors": forged_safetensors}
"""The same changes, with fitting digests."""
