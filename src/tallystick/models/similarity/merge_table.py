"""Merges and weight gates by name: a row each, and nobody else compares the names; the contract's keys are in config/merge.py."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import nn

from tallystick.models.similarity.gates import EqualWeight, LearntWeight, SimilarityWeight
from tallystick.models.similarity.merges import AttentionMerge, AverageMerge, CNNMerge, MLPMerge, Top1Merge


class MakesMerge(Protocol):
    """A class of merges, as a label model makes them."""

    def __call__(self, links: int, width: int, settings: Any) -> nn.Module:
        """Make one for so many links, whose outputs are so wide, by the settings of its own method."""
        ...


MERGES: Mapping[str, MakesMerge] = {
    "attention": AttentionMerge,
    "cnn": CNNMerge,
    "mlp": MLPMerge,
    "average": AverageMerge,
    "top1": Top1Merge,
}
"""The contract's model.merge.method to its module."""

WEIGHTS: Mapping[str, Callable[[], nn.Module]] = {
    "learnt": LearntWeight,
    "similarity": SimilarityWeight,
    "equal": EqualWeight,
}
"""The contract's model.merge.weight to its module."""

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "none": nn.Identity}
"""The contract's model.merge.activation to its module."""
