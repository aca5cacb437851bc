"""What tests of figures look at."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
from crfl_reports.figures import image_of
from matplotlib.figure import Figure
from numpy.typing import NDArray


def texts(figure: Figure) -> list[str]:
    """List every text of a figure, in order."""
    svg = ElementTree.fromstring(image_of(figure, "svg"))
    return [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text")]


def pixels(figure: Figure) -> NDArray[np.float32]:
    """Draw the figure as a picture, (height, width, 4)."""
    return np.asarray(matplotlib.image.imread(io.BytesIO(image_of(figure, "png"))))


def assert_presentable(figure: Figure) -> None:
    """Something is drawn, nothing is cut off at the border, and the size is that of a page."""
    image = pixels(figure)
    height, width, _ = image.shape
    assert 100 <= height <= 2400
    assert 300 <= width <= 2000
    drawn = image[..., :3].mean(axis=2) < 0.75
    assert 0.005 < drawn.mean() < 0.8
    assert not np.concatenate([drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]]).any()
