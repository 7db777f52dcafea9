"""Provide rows linked by similar keys (FedSim): each row of the label party with its K most similar rows of each feature party.

A position is a row of the label party. The loops do not change. A feature party's source embeds each distinct candidate of a
batch once, in an order that both sides know. The label party's columns say where each link's candidate is among them.

Shapes: N positions, B batch, K candidates of a position, R distinct candidates of a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from tallystick.alignment.outcome import Candidates
from tallystick.config.contract import Contract
from tallystick.cut.forward import FeatureSource
from tallystick.dataset.dataset import Dataset, Labels
from tallystick.dataset.intersection import IntersectionDataset, parts_by_time
from tallystick.dataset.own_rows import OwnRows, fitted_positions, own_folds_of, positions
from tallystick.errors import DataError
from tallystick.network.channel import Channel
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import FeatureRows, Features
from tallystick.tables.linked_columns import CandidateLinks, LinkedFeatures, distinct_candidates
from tallystick.tables.split import ids_by_position, split_positions
from tallystick.training.objective import Objective, Supervised


@dataclass(frozen=True, kw_only=True)
class DistinctCandidates:
    """Rows of a feature party that cross for a batch: each distinct candidate once, in the order of their numbers.

    Args:
        numbers_NK: numbers of the candidates at each position, -1 for padding.
        rows: number of rows of the feature party that have numbers.
    """

    numbers_NK: Tensor
    rows: int

    def numbers(self, index_B: Tensor) -> Tensor:
        """Return the numbers of the rows that cross (R,)."""
        return distinct_candidates(self.numbers_NK[index_B], rows=self.rows)[0]

    def places(self, index_B: Tensor) -> Tensor:
        """Return the place of each candidate among them (B, K), -1 for padding."""
        return distinct_candidates(self.numbers_NK[index_B], rows=self.rows)[1]

    def most(self, positions: int) -> int:
        """Bound how many rows can cross for this many positions."""
        return max(1, min(self.rows, positions * self.numbers_NK.shape[1]))


@dataclass(frozen=True, kw_only=True)
class AllCandidates(DistinctCandidates):
    """All candidates of a batch cross, one after the other, even if a row occurs several times, as in FedSim's paper.

    It is only for comparison: it gives the same numbers, up to the order of sums, with several times as many bytes.
    """

    def numbers(self, index_B: Tensor) -> Tensor:
        """Return the numbers of all candidates (B K,). Padding has number 0, which is never used."""
        return self.numbers_NK[index_B].flatten().clamp(min=0)

    def places(self, index_B: Tensor) -> Tensor:
        """Return consecutive places."""
        numbers_BK = self.numbers_NK[index_B]
        place_BK = torch.arange(numbers_BK.numel(), device=numbers_BK.device).view_as(numbers_BK)
        return place_BK.masked_fill(numbers_BK < 0, -1)

    def most(self, positions: int) -> int:
        """Return one row for each link."""
        return positions * self.numbers_NK.shape[1]


@dataclass(frozen=True, kw_only=True)
class CandidateSource:
    """A feature party's columns of the rows that cross for a batch.

    Args:
        features: features of its rows, by number.
        crossing: selects the rows that cross.
    """

    features: FeatureRows
    crossing: DistinctCandidates

    def __call__(self, index_B: Tensor) -> Features:
        """Return the batch at these positions (R rows)."""
        return self.features.rows(self.crossing.numbers(index_B))


@dataclass(frozen=True, kw_only=True)
class LinkedSource:
    """The label party's columns, if any, and the links of each row.

    Args:
        features: features of its rows, by position.
        crossings: which rows of each feature party cross.
        similarities_NK: the similarity of each candidate, per feature party.
    """

    features: FeatureRows
    crossings: Sequence[DistinctCandidates]
    similarities_NK: Sequence[Tensor]

    def __call__(self, index_B: Tensor) -> LinkedFeatures:
        """Return the batch at these positions."""
        rows = self.features.rows(index_B)
        linked = tuple(
            CandidateLinks(place_BK=crossing.places(index_B), similarity_BK=similarity_NK[index_B])
            for crossing, similarity_NK in zip(self.crossings, self.similarities_NK, strict=True)
        )
        return LinkedFeatures(numeric_NF=rows.numeric_NF, categorical_NG=rows.categorical_NG, linked=linked)


@dataclass(frozen=True, kw_only=True)
class SimilarityDataset(Dataset):
    """A party's rows if each row of the label party has linked candidates.

    Threat model and guarantee are those of the alignment: this reveals nothing more than the alignment did. Both sides know which
    rows of a feature party are candidates of which position. So a feature party sees in each batch which of its rows are used,
    and the label party sees which embeddings belong to one row.

    Args:
        crossings: which rows cross, per feature party in the contract's order; a feature party has only its own.
        own_source: the label party's columns without links, for a model of own columns alone; None if it has no columns.
    """

    crossings: tuple[DistinctCandidates, ...]
    own_source: FeatureSource | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        contract: Contract,
        own: OwnRows,
        channels: Sequence[Channel],
        *,
        secret_seed: Callable[[], int],  # noqa: ARG003
    ) -> "SimilarityDataset":
        """Split the label party's rows and encode this party's. The encoder is fitted on training rows, or on rows linked to
        them.
        """
        split = contract.split
        if split.method == "hash":
            parts = split_positions(len(own.alignment), split, seed=contract.seed)
        else:
            parts = parts_by_time(split, own, channels)
        train_N, validation_N, test_N = positions(parts)
        for part_N, name, share in ((train_N, "training", 1.0), (validation_N, "validation", contract.split.validation)):
            if share and not len(part_N):
                raise DataError(
                    f"none of the {len(own.alignment)} rows fall into the {name} part; bring more rows or change split"
                )
        own_folds = None
        if own.is_label and contract.alignment.leaves_unlinked:
            own_folds = own_folds_of(contract, own.before, ids_by_position(len(own.alignment)), train_N, validation_N)
        taught = contract.refits or own_folds is not None
        device, fitted_rows = torch.device(own.party.device), fitted_positions(train_N, validation_N, taught=taught).numpy()
        if not own.is_label:
            (candidates,) = own.candidates(contract.feature_parties)
            used = np.unique(candidates.numbers_NK[fitted_rows])
            fitted_rows = used[used >= 0]
        dataset = cls._encoded(contract, own, own.fit_encoder(own.linked(), fitted_rows), device)
        dataset = replace(dataset, train_N=train_N.to(device), validation_N=validation_N.to(device), test_N=test_N.to(device))
        if not own.is_label:
            return dataset
        coder = own.fit_labels(contract, own.alignment.rows_N[train_N.numpy()])
        true_N = coder.encode(own.label().gather(own.alignment.rows_N)).to(device)
        labels = Labels.of(coder, true_N, own.weights(contract, own.alignment.rows_N))
        return replace(dataset, labels=labels, own_folds=own_folds.to(device) if own_folds is not None else None)

    @classmethod
    def to_score(
        cls,
        contract: Contract,
        own: OwnRows,
        encoder: Encoder | None,
        *,
        secret_seed: Callable[[], int],  # noqa: ARG003
    ) -> "SimilarityDataset":
        """Encode new rows by the encoder of the training."""
        return cls._encoded(contract, own, encoder, torch.device("cpu"))

    @classmethod
    def _encoded(cls, contract: Contract, own: OwnRows, encoder: Encoder | None, device: torch.device) -> "SimilarityDataset":
        features: FeatureRows = no_features(len(own.alignment.own_rows), device)
        if encoder is not None:
            features = own.named(encoder.encode(own.linked()), own.alignment.own_rows, contract).to(device)
        linked = own.candidates(contract.feature_parties)
        crossings = tuple(crossing_of(candidates, device) for candidates in linked)
        if not own.is_label:
            return cls(encoder=encoder, source=CandidateSource(features=features, crossing=crossings[0]), crossings=crossings)
        similarities_NK = []
        for candidates in linked:
            assert candidates.similarity_NK is not None, "the label party learns similarities"
            similarities_NK.append(torch.from_numpy(candidates.similarity_NK.astype(np.float32)).to(device))
        source = LinkedSource(features=features, crossings=crossings, similarities_NK=similarities_NK)
        own_source = features.rows if encoder is not None else None
        return cls(encoder=encoder, source=source, crossings=crossings, own_source=own_source)

    @property
    def has_branches(self) -> bool:
        """Return True: links read own columns in addition to the top."""
        return True

    def is_linked(self, index_B: Tensor) -> Tensor:
        """Mark the positions that have a candidate of any feature party."""
        return torch.stack([(crossing.numbers_NK[index_B] >= 0).any(dim=1) for crossing in self.crossings]).any(dim=0)

    @property
    def candidates(self) -> tuple[int, ...]:
        """Return K for each feature party."""
        return tuple(crossing.numbers_NK.shape[1] for crossing in self.crossings)

    def cut_rows(self, index_B: Tensor, peer: int) -> int:
        """Count the distinct candidates of these positions."""
        return len(self.crossings[peer].numbers(index_B))

    def most_cut_rows(self, positions: int, peer: int) -> int:
        """Bound the rows that cross. A candidate crosses once per batch, so never more rows cross than exist."""
        return self.crossings[peer].most(positions)

    def cut_numbers(self, index_B: Tensor, peer: int) -> Tensor:
        """Return the distinct candidates of these positions, by number."""
        return self.crossings[peer].numbers(index_B)

    def columns_of(self, rows_R: Tensor) -> Features:
        """Return the columns of the rows with these numbers."""
        assert isinstance(self.source, CandidateSource), "a feature party's rows are numbered"
        return self.source.features.rows(rows_R)

    def seen(self, index_B: Tensor, rows_RD: Tensor, peer: int) -> Tensor:
        """Average what crossed over each example's candidates (B, D)."""
        place_BK = self.crossings[peer].places(index_B)
        return CandidateLinks(place_BK=place_BK, similarity_BK=torch.zeros(place_BK.shape)).mean(rows_RD)

    def objective(self) -> Objective:
        """Build the loss for the training labels."""
        labels = self.known_labels
        return Supervised(labels.coder.type, labels.training_labels_N, labels.weight_N, levels=labels.coder.levels)

    def own_part(self) -> IntersectionDataset:
        """Return the same rows without links, with the true labels."""
        labels = self.known_labels
        return IntersectionDataset(
            encoder=self.encoder,
            source=self.own_source,
            labels=replace(labels, training_labels_N=labels.true_N),
            train_N=self.train_N,
            validation_N=self.validation_N,
            test_N=self.test_N,
            folds=self.own_folds,
        )


def crossing_of(candidates: Candidates, device: torch.device) -> DistinctCandidates:
    """Return the rows that cross for a party's candidates."""
    return DistinctCandidates(numbers_NK=torch.from_numpy(candidates.numbers_NK.copy()).to(device), rows=candidates.rows)


def no_features(rows: int, device: torch.device) -> Features:
    """Return the columns of a party that has none."""
    return Features(
        numeric_NF=torch.empty(rows, 0, device=device), categorical_NG=torch.empty(rows, 0, dtype=torch.int64, device=device)
    )
