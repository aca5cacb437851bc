"""Style of figures, names that fit beside them, and their bytes as files."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["svg", "png", "pdf"]

BLUE = "#0072B2"
VERMILLION = "#D55E00"
INK = "#000000"
PALETTE = (BLUE, VERMILLION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
"""The palette of Okabe and Ito, which colour-blind people can tell apart, without its yellow, which white swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2, 2, 2, 2, 2)))
"""Colours, markers and dashes have different periods: even without colours, 30 lines in a row look different."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.parse_math": False,  # names of classes and clients may hold dollar signs
    "pdf.fonttype": 42,  # whole TrueType fonts: publishers refuse the outlines that are the default
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and changed
    "svg.hashsalt": "crfl",  # the same file every time
}
UNDATED: dict[Format, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

DRAWING = threading.RLock()
"""Matplotlib's settings and Python's filters of warnings are the whole process's."""


def image_of(figure: Figure, suffix: Format) -> bytes:
    """Render a figure as a file, with the same bytes every time."""
    buffer = io.BytesIO()
    with own_style():
        figure.savefig(buffer, format=suffix, dpi=120, metadata=UNDATED[suffix])
    return buffer.getvalue()


@contextmanager
def own_style() -> Iterator[None]:
    """Apply settings that ignore the user's matplotlibrc and do not change it."""
    import matplotlib

    with DRAWING, matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # names in other scripts: readable in the SVG at least
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE):
            yield


LONGEST_NAME = 24
LETTER = 0.08
"""Inches of a letter at the usual size, rather too many than too few."""


def shorten_names(names: Sequence[str], longest: int = LONGEST_NAME) -> list[str]:
    """Shorten names to one line; long ones keep their beginning and end.

    >>> shorten_names(["Does not meet the credit policy", "paid"])
    ['Does not me…redit policy', 'paid']
    """
    half = longest // 2
    lines = ("".join(sign if sign.isprintable() else " " for sign in name) for name in names)
    return [line if len(line) <= longest else f"{line[: half - 1]}…{line[-half:]}" for line in lines]


def room(names: Sequence[str], longest: int = LONGEST_NAME) -> float:
    """Return the inches that the longest of some names takes."""
    return LETTER * max(map(len, shorten_names(names, longest)), default=2)


RADIUS = {
    "feature": "change of a poisoned input, L2 norm in scaled inputs",
    "sample": "share of poisoned samples",
    "client": "number of malicious clients",
    "backdoor": "trigger on the test input, L2 norm in scaled inputs",
}
"""Axis label of a radius, by the level of a certificate."""
