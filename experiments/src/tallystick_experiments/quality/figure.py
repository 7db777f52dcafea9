"""Turn a method's scores on the test rows into figures. Shapes: N rows, T test rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallystick import metrics
from tallystick.config.sections import target_of
from tallystick.metrics import TargetType
from tallystick.tables.target import LabelCoder
from tallystick_experiments.catalogue.public import PublicTable

Ints = NDArray[np.int64]
METRIC: dict[TargetType, str] = {"regression": "rmse", "count": "deviance"}
"""Metrics of targets whose figure is not an AUC."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Hold a method's figures on the test rows: AUC, or RMSE for regression, its time, and the bytes that would cross."""

    value: float
    seconds: float
    epochs: int | None = None
    crossing_bytes: int | None = None


QualityMethod = Callable[[PublicTable, int], Figure]
"""A method that fits on a table's training rows, by a seed, and returns its figure on the test rows."""


def coder_of(table: PublicTable, rows: Ints) -> LabelCoder:
    """Fit the coding of the labels on these rows."""
    target = target_of(table.target, classes=table.classes)
    return LabelCoder.fit(table.frame.get_column(table.label), target, rows)


def test_figure(table: PublicTable, coder: LabelCoder, test: Ints, scores_T: NDArray[Any]) -> float:
    """Compute the AUC, the RMSE for regression, or the deviance for counts.

    For several classes it is the mean over classes of each against the rest.
    """
    labels_T = coder.in_units(coder.encode(table.frame.get_column(table.label)).numpy()[test])
    return metrics.metric(table.target, METRIC.get(table.target, "auc"), labels_T, scores_T)
