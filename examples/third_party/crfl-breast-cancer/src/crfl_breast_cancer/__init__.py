"""The Wisconsin breast cancer data for crfl: is a tumour benign or malignant?"""

from __future__ import annotations

import numpy as np
from crfl_core.extend import Data, Domain, ScalingKind, SplitDataset
from pydantic import Field


class BreastCancer(SplitDataset):
    """Breast Cancer Wisconsin (Diagnostic): 569 tumours, 30 measurements each, shipped with scikit-learn.

    Wolberg, Street and Mangasarian, 1995. Measurements are positive and of very different sizes, so scaling is fitted
    to the training samples unless a config says otherwise, which certificates declare. With `logarithms`, areas and
    radii are told apart by ratios.
    """

    scaling: ScalingKind = Field("minmax", description="as for every dataset; areas are 1000 times as large as angles")
    logarithms: bool = Field(True, description="log(1 + x) of every measurement: a few tumours are far larger")

    def read(self) -> Data:
        """Return all tumours, shuffled and split. Malignant is class 1."""
        from sklearn.datasets import load_breast_cancer

        found = load_breast_cancer()
        x, y = np.log1p(found.data) if self.logarithms else found.data, 1 - found.target
        train, test = self.split(len(y))
        return Data(
            x=x[train].astype(np.float32),
            y=y[train].astype(np.int64),
            test_x=x[test].astype(np.float32),
            test_y=y[test].astype(np.int64),
            domain=Domain(0.0, np.inf),
            class_names=("benign", "malignant"),
            feature_names=tuple(name.replace(" ", "_") for name in found.feature_names),
        )
