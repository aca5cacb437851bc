"""Small pictures of inputs, all of a test set on one sheet."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

MOST = 500
"""So many inputs of a test set are shown."""

ACROSS = 25
"""Pictures in a row of the sheet."""

SHEET_BYTES = 500_000
"""A sheet is not larger than this: of large pictures fewer are shown."""


def sheet(inputs: NDArray[np.float64], shape: tuple[int, ...], domain: tuple[float, float]) -> dict[str, Any] | None:
    """The first inputs as a PNG file in a data address, and how they lie on it; None if they are no pictures."""
    picture = picture_shape(shape)
    if picture is None:
        return None
    shown = inputs[:MOST]
    while len(shown):
        content = png(laid_out(pixels(shown, picture, domain)))
        if len(content) <= SHEET_BYTES:
            break
        shown = shown[: len(shown) // 2]
    if not len(shown):
        return None
    height, width, _ = picture
    address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return {"count": len(shown), "across": ACROSS, "width": width, "height": height, "sheet": address}


def picture_shape(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Height, width and channels of an image shape, (height, width) or (channels, height, width).

    >>> picture_shape((8, 8)), picture_shape((3, 32, 32)), picture_shape((64,))
    ((8, 8, 1), (32, 32, 3), None)
    """
    if len(shape) == 2:
        return shape[0], shape[1], 1
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1], shape[2], shape[0]
    return None


def pixels(inputs: NDArray[np.float64], picture: tuple[int, int, int], domain: tuple[float, float]) -> Pixels:
    """Inputs as (m, height, width, channels), from black at the lower end of their domain to white at the upper one."""
    height, width, channels = picture
    low, high = domain if np.isfinite(domain).all() else (float(inputs.min()), float(inputs.max()))
    levels = np.clip((inputs - low) / max(high - low, 1e-12), 0.0, 1.0) * 255
    return np.rint(levels).astype(np.uint8).reshape(-1, channels, height, width).transpose(0, 2, 3, 1)


def laid_out(pictures: Pixels) -> Pixels:
    """Pictures beside each other, `ACROSS` in a row."""
    count, height, width, channels = pictures.shape
    rows = -(-count // ACROSS)
    whole = np.zeros((rows * ACROSS, height, width, channels), np.uint8)
    whole[:count] = pictures
    grid = whole.reshape(rows, ACROSS, height, width, channels).transpose(0, 2, 1, 3, 4)
    return grid.reshape(rows * height, ACROSS * width, channels)


def png(image: Pixels) -> bytes:
    """An image, (height, width, 1 or 3), as a PNG file."""
    height, width, channels = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in parts)


def chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG file: its length, kind, content and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
