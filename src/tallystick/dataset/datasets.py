"""Choose the dataset for a contract's linkage, by the linkage's facts on positions and candidates."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tallystick.alignment.linkages import Linkage
from tallystick.config.contract import Contract
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.dataset.similarity import SimilarityDataset
from tallystick.dataset.union import UnionDataset
from tallystick.network.channel import Channel
from tallystick.tables.encoder import Encoder


class DatasetKind(Protocol):
    """A class of datasets, as the job makes them."""

    def of(self, contract: Contract, own: OwnRows, channels: Sequence[Channel], *, secret_seed: Callable[[], int]) -> Dataset:
        """Encode a party's aligned rows for training and evaluation. ``secret_seed`` is called if something is drawn."""
        ...

    def to_score(self, contract: Contract, own: OwnRows, encoder: Encoder | None, *, secret_seed: Callable[[], int]) -> Dataset:
        """Encode new aligned rows by the encoder of a trained party."""
        ...


def nothing_to_draw() -> int:
    """Take the place of the secret seed if nothing is drawn. Raises AssertionError if it is called."""
    raise AssertionError("rows that have all their columns need nothing filled in")


def dataset_of(linkage: Linkage) -> DatasetKind:
    """Choose the dataset for training, evaluation and prediction: candidates of each row, rows that may be absent, or only common
    rows.
    """
    if linkage.similar:
        return SimilarityDataset
    return UnionDataset if linkage.imputes else IntersectionDataset
