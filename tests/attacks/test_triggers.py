"""Triggers: which inputs they change and by how much, and data that they do not fit."""

from __future__ import annotations

import math
import re

import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from crfl_attacks.triggers import FeatureTrigger, PixelTrigger
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.extend import DataFacts, Domain, OptionError
from tests.attacks.support import IMAGES, prepared


@settings(deadline=None, max_examples=30)
@given(norm=st.floats(0.01, 20.0), size=st.integers(1, 8), low=st.floats(-1, 0), high=st.floats(0.5, 2))
def test_a_triggered_input_stays_in_the_domain_and_moves_by_no_more_than_the_triggers_norm(
    norm: float, size: int, low: float, high: float
) -> None:
    facts = DataFacts(64, 10, Domain(low, high), (8, 8))
    own = ModelReplacement(trigger=PixelTrigger(norm=norm, size=size))
    x = torch.rand(5, 64, dtype=torch.float64) * (high - low) + low
    triggered = own.add_trigger(x, prepared(own, facts))
    assert float(triggered.min()) >= low
    assert float(triggered.max()) <= high
    assert float((triggered - x).norm(dim=1).max()) <= norm * (1 + 1e-9)


@pytest.mark.parametrize(
    ("corner", "pixels"),
    [
        ("top-left", [0, 1, 8, 9]),
        ("top-right", [6, 7, 14, 15]),
        ("bottom-left", [48, 49, 56, 57]),
        ("bottom-right", [54, 55, 62, 63]),
    ],
)
def test_a_pixel_trigger_is_a_bright_square_in_its_corner(corner: str, pixels: list[int]) -> None:
    pattern = PixelTrigger.model_validate({"norm": 3.0, "size": 2, "corner": corner}).pattern(IMAGES)
    assert torch.nonzero(pattern).flatten().tolist() == pixels
    torch.testing.assert_close(pattern[pixels], torch.full((4,), 1.5).double())


@pytest.mark.parametrize(("position", "pixels"), [((0, 0), [0, 1, 8, 9]), ((2, 5), [21, 22, 29, 30])])
def test_a_pixel_trigger_can_sit_anywhere(position: tuple[int, int], pixels: list[int]) -> None:
    pattern = PixelTrigger(position=position, corner="bottom-right").pattern(IMAGES)
    assert torch.nonzero(pattern).flatten().tolist() == pixels


def test_colour_images_get_the_square_in_every_channel() -> None:
    facts = DataFacts(inputs=48, classes=2, domain=Domain(0.0, 1.0), image_shape=(3, 4, 4))
    pattern = PixelTrigger(norm=1.0, size=1).pattern(facts)
    assert torch.nonzero(pattern).flatten().tolist() == [0, 16, 32]
    assert float(pattern.norm()) == pytest.approx(1.0)


def test_a_feature_trigger_raises_the_named_features() -> None:
    pattern = FeatureTrigger(norm=2.0, features=(3, 7)).pattern(DataFacts(10, 2, Domain()))
    assert torch.nonzero(pattern).flatten().tolist() == [3, 7]
    torch.testing.assert_close(pattern[[3, 7]], torch.full((2,), math.sqrt(2.0)).double())


@pytest.mark.parametrize(
    ("trigger", "facts", "message"),
    [
        (PixelTrigger(), DataFacts(10, 2, Domain()), "trigger.type: 'pixels' needs images"),
        (PixelTrigger(size=9), IMAGES, "trigger.size: found 9, but images are 8 x 8"),
        (
            PixelTrigger(position=(3, 7)),
            IMAGES,
            "trigger.position: 2 pixels from row 3 and column 7 do not fit into images of 8 x 8",
        ),
        (FeatureTrigger(features=(64,)), IMAGES, "trigger.features: there is no feature 64: features are 0..63"),
    ],
)
def test_a_trigger_that_does_not_fit_the_data_says_why(
    trigger: PixelTrigger | FeatureTrigger, facts: DataFacts, message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        trigger.pattern(facts)
