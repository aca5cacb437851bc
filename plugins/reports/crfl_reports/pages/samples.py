"""Answers of every certificate for every test sample, from the run's own tables, and small pictures.

No plugin is needed to read the tables.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import CrflError
from crfl_core.plugin_api.certificate import ABSTAIN, CertificateResult, Guarantee
from crfl_reports.pages.figure_data import number

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult
    from crfl_core.runs.run_directory import RunDirectory

MOST_ROWS = 4_000
"""Samples of a test set that are listed; the tables of the run have all of them."""

DIGITS = 4
"""Significant digits of a radius, rounded down: a page must not claim more than was certified."""

Key = tuple[str, str, str]
"""Test set, certificate and level."""


def tables(directory: RunDirectory) -> Iterator[CertificateResult]:
    """Yield the guarantees in the tables of a run, in order."""
    for name in sorted(directory.digests):
        if name.startswith("certificates/") and not name.endswith("-by-clients.csv"):
            yield from guarantees(directory, name)


def guarantees(directory: RunDirectory, name: str) -> Iterator[CertificateResult]:
    """Yield the guarantees of one table of a run.

    Raises `StoreError` if the table differs from the digest that the run has of it.
    """
    text = directory.read(name).decode()
    found: dict[Key, list[dict[str, str]]] = {}
    try:
        for line in csv.DictReader(io.StringIO(text)):
            found.setdefault((line["set"], line["certificate"], line["level"]), []).append(line)
        for lines in found.values():
            yield guarantee(lines)
    except (KeyError, ValueError, TypeError) as error:
        raise directory.damage_error(name, error) from error


def guarantee(lines: list[dict[str, str]]) -> CertificateResult:
    """Build the guarantee of one curve from its lines.

    A curve has one certificate, level and test set.
    """
    first = lines[0]
    columns = {
        column: np.array([float(line[column] or "nan") for line in lines])
        for column in ("radius", "log_radius", "p_a", "p_b")
    }
    predictions = [int(line["prediction"]) if line["prediction"] else ABSTAIN for line in lines]
    return CertificateResult(
        certificate=first["certificate"],
        level=first["level"],  # type: ignore[arg-type]  # as the run wrote it
        test_set=first["set"],
        statement=first["statement"],  # type: ignore[arg-type]  # likewise
        directions=tuple(filter(None, first["directions"].split("+"))),  # type: ignore[arg-type]  # likewise
        clean_world="",
        label="",
        conditional=(),
        labels=np.array([int(line["label"]) for line in lines]),
        guarantee=Guarantee(prediction=np.array(predictions), **columns),
    )


def sample_data(run: RunResult) -> dict[str, Any]:
    """Return the sample table of every test set.

    It has labels, columns of every certificate and level, and pictures.
    """
    sets: dict[str, dict[str, Any]] = {}
    for found in tables(run.directory):
        chosen = sets.setdefault(found.test_set, {"labels": found.labels[:MOST_ROWS].tolist(), "columns": []})
        chosen["total"] = len(found.labels)
        chosen["columns"].append(
            {
                "certificate": found.certificate,
                "level": found.level,
                "prediction": found.guarantee.prediction[:MOST_ROWS].tolist(),
                "radius": [number(round_down(value)) for value in found.guarantee.radius[:MOST_ROWS].tolist()],
            }
        )
    why = ""
    if sets:
        pictures, why = pictures_of(run)
        for name, picture in pictures.items():
            if name in sets:
                sets[name]["pictures"] = picture
    return {"sets": sets, "without": why}


def pictures_of(run: RunResult) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the pictures of every test set.

    If there are none, the text says why.
    """
    facts = run.ledger.facts
    if facts.image_shape is None:
        return {}, "the inputs are not images"
    from crfl_core.runs.run_data import read_test_inputs

    try:
        inputs = read_test_inputs(run)
    except CrflError as error:
        return {}, str(error)
    found = {name: sheet(x, facts.image_shape, facts.domain) for name, x in inputs.items()}
    return {name: picture for name, picture in found.items() if picture is not None}, ""


def round_down(value: float) -> float:
    """Round a radius to few digits, never up.

    >>> round_down(0.0283859), round_down(2.0), round_down(float("inf"))
    (0.02838, 2.0, inf)
    """
    if not math.isfinite(value) or value == 0:
        return value
    digits = DIGITS - 1 - math.floor(math.log10(abs(value)))
    down = math.floor(value * 10.0**digits) / 10.0**digits
    return float(f"{min(down, value):.{DIGITS}g}") if down <= value else value


Pixels = NDArray[np.uint8]

MOST = 500
"""Inputs of a test set that are shown as pictures."""

ACROSS = 25
"""Pictures in a row of the sheet."""

SHEET_BYTES = 500_000
"""A sheet is not larger than this: of large pictures fewer are shown."""


def sheet(inputs: NDArray[np.float64], shape: tuple[int, ...], domain: tuple[float, float]) -> dict[str, Any] | None:
    """Return the first inputs as one PNG in a data address.

    The result is None if the inputs are not pictures.
    """
    picture = picture_shape(shape)
    if picture is None:
        return None
    shown = inputs[:MOST]
    while len(shown):
        content = png(tile_pictures(pixels(shown, picture, domain)))
        if len(content) <= SHEET_BYTES:
            break
        shown = shown[: len(shown) // 2]
    if not len(shown):
        return None
    height, width, _ = picture
    address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return {"count": len(shown), "across": ACROSS, "width": width, "height": height, "sheet": address}


def picture_shape(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the height, width and channels of an image shape.

    An image shape is (height, width) or (channels, height, width). The result is None for other shapes.

    >>> picture_shape((8, 8)), picture_shape((3, 32, 32)), picture_shape((64,))
    ((8, 8, 1), (32, 32, 3), None)
    """
    if len(shape) == 2:
        return shape[0], shape[1], 1
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1], shape[2], shape[0]
    return None


def pixels(inputs: NDArray[np.float64], picture: tuple[int, int, int], domain: tuple[float, float]) -> Pixels:
    """Convert inputs to (m, height, width, channels).

    The lower end of their domain is black.
    """
    height, width, channels = picture
    low, high = domain if np.isfinite(domain).all() else (float(inputs.min()), float(inputs.max()))
    levels = np.clip((inputs - low) / max(high - low, 1e-12), 0.0, 1.0) * 255
    return np.rint(levels).astype(np.uint8).reshape(-1, channels, height, width).transpose(0, 2, 3, 1)


def tile_pictures(pictures: Pixels) -> Pixels:
    """Tile pictures, `ACROSS` in a row."""
    count, height, width, channels = pictures.shape
    rows = -(-count // ACROSS)
    whole = np.zeros((rows * ACROSS, height, width, channels), np.uint8)
    whole[:count] = pictures
    grid = whole.reshape(rows, ACROSS, height, width, channels).transpose(0, 2, 1, 3, 4)
    return grid.reshape(rows * height, ACROSS * width, channels)


def png(image: Pixels) -> bytes:
    """Encode an image, (height, width, 1 or 3), as a PNG file."""
    height, width, channels = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in parts)


def chunk(kind: bytes, content: bytes) -> bytes:
    """Encode a part of a PNG file.

    The bytes are its length, kind, content and checksum.
    """
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
