"""Synthetic labels and features for rows of the union that a side does not have (FLORIST, sections 2.4 and 3)."""

from tallystick.training.synthetic.features import (
    FEATURE_FILLS,
    FeatureFill,
    GaussianFeatures,
    MovingMoments,
    RandomFeatures,
    SamplingFeatures,
)
from tallystick.training.synthetic.labels import (
    LABEL_FILLS,
    LabelBatch,
    LabelFill,
    MajorityLabels,
    MinorityLabels,
    NeighborLabels,
    RandomPositiveLabels,
    RandomPredictedLabels,
)
from tallystick.training.synthetic.strategies import (
    FEATURE_STRATEGIES,
    LABEL_STRATEGIES,
    Draws,
    Redraw,
    feature_strategy,
    label_strategy,
)

__all__ = [
    "FEATURE_FILLS",
    "FEATURE_STRATEGIES",
    "LABEL_FILLS",
    "LABEL_STRATEGIES",
    "Draws",
    "FeatureFill",
    "GaussianFeatures",
    "LabelBatch",
    "LabelFill",
    "MajorityLabels",
    "MinorityLabels",
    "MovingMoments",
    "NeighborLabels",
    "RandomFeatures",
    "RandomPositiveLabels",
    "RandomPredictedLabels",
    "Redraw",
    "SamplingFeatures",
    "feature_strategy",
    "label_strategy",
]
