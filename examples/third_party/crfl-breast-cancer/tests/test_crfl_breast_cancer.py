"""The data are the published ones, and hospitals learn from them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crfl import run
from crfl_core.testing import parametrize_with_checks

from crfl_breast_cancer import BreastCancer

EXAMPLE = Path(__file__).parents[1] / "example.toml"


@parametrize_with_checks([BreastCancer(), BreastCancer(logarithms=False, test_fraction=0.5)])
def test_it_keeps_the_contract_of_its_kind(check: Callable[[], object]) -> None:
    check()


def test_there_are_569_tumours_of_which_212_are_malignant() -> None:
    data = BreastCancer(logarithms=False).read()
    labels = np.concatenate([data.y, data.test_y])
    assert (len(labels), int(labels.sum())) == (569, 212)
    assert data.class_names[1] == "malignant"
    areas = np.concatenate([data.x, data.test_x])[:, data.feature_names.index("mean_area")]
    assert areas[labels == 1].mean() == pytest.approx(978.4, abs=0.1)  # as scikit-learn's own description has it
    assert areas[labels == 0].mean() == pytest.approx(462.8, abs=0.1)


def test_logarithms_are_the_default() -> None:
    assert BreastCancer().read().x == pytest.approx(np.log1p(BreastCancer(logarithms=False).read().x), rel=1e-5)


def test_the_example_is_trained_and_certified(tmp_path: Path) -> None:
    result = run(EXAMPLE, overrides=["storage.figures=[]", "evaluation.every=0"], out=tmp_path / "run")
    assert result.metrics.accuracy > 0.9
    (certified,) = result.certified
    right = certified.guarantee.prediction == certified.labels
    assert (right & (certified.guarantee.radius >= 1)).mean() > 0.88
    (question,) = result.certifier.questions
    declared = [check.measured for check in question.audit.checks if check.status == "declared"]
    assert declared == ["scaling 'minmax' fitted on training data, inputs within [0, 1]"]
