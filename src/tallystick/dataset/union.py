"""Provide rows that any of two parties has: every position is a row of one of them, and absent rows are imputed (FLORIST).

Shapes: U positions of the union, N own rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from tallystick.config.contract import Contract
from tallystick.config.sections import TrainingConfig, UnionConfig
from tallystick.dataset.dataset import Dataset, Labels
from tallystick.dataset.imputed import ImputingBottom, ImputingObjective, ImputingSource
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.dataset.own_rows import OwnRows, positions
from tallystick.imputation.draws import Draws, Redraw
from tallystick.imputation.feature_imputers import SamplingFeatures
from tallystick.imputation.imputer import FeatureImputer, LabelImputer
from tallystick.imputation.imputer_table import feature_strategy, label_strategy
from tallystick.network.channel import Channel
from tallystick.privacy.randomness import secret_generator
from tallystick.tables.common_values import CommonValues
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import FeatureRows, PackedFeatures
from tallystick.tables.split import split_by_hash
from tallystick.training.calibration import NO_CALIBRATION, Calibration, LogitLine, LogitShift
from tallystick.training.checkpoint import TrainingState
from tallystick.training.objective import Objective
from tallystick.training.plan import Schedule


@dataclass(frozen=True, kw_only=True)
class Imputation:
    """Imputers of one party in a run, and their randomness.

    Args:
        own_U: own row at each position, -1 where absent.
        labels: imputer for absent labels, if this is the label party.
        features: imputer for absent features.
        seed: kept secret, so that the other side cannot repeat the draws.
        redraw: whether a row keeps its draws for the whole run (as in `tallystick run`) or gets new ones at each step.
    """

    own_U: Tensor
    labels: LabelImputer
    features: FeatureImputer
    seed: int = field(repr=False)
    redraw: Redraw = "once"

    @classmethod
    def of(cls, union: UnionConfig, own_U: Tensor, *, is_label: bool, seed: int) -> "Imputation":
        """Choose imputers as the contract says. The label party's own columns are never sent, so plain sampling is enough for
        them.
        """
        features = SamplingFeatures() if is_label else feature_strategy(union.features)[0]
        return cls(own_U=own_U, labels=label_strategy(union.labels)[0], features=features, seed=seed)

    def source(self, features: FeatureRows, *, common: CommonValues | None = None) -> ImputingSource:
        """Return the features at every position, with the ``common`` values of training, or new ones."""
        draws, generator = self._draws(1, stream=1), self._generator(stream=4)
        return ImputingSource.of(features, self.own_U, imputer=self.features, draws=draws, generator=generator, common=common)

    def bottom(self, bottom: nn.Module) -> ImputingBottom:
        """Wrap the bottom model, so that the imputer can change its output."""
        return ImputingBottom(bottom, self.features, generator=self._generator(stream=2))

    def objective(self, labels_N: Tensor, calibration: Calibration, *, positive_rate: float) -> ImputingObjective:
        """Build the label party's loss."""
        draws = self._draws(max(self.labels.draws, 1), stream=3)
        return ImputingObjective(
            labels_N, self.own_U, imputer=self.labels, draws=draws, calibration=calibration, positive_rate=positive_rate
        )

    def _draws(self, k: int, *, stream: int) -> Draws:
        return Draws.of(rows=len(self.own_U), k=k, redraw=self.redraw, generator=self._generator(stream=stream))

    def _generator(self, *, stream: int) -> torch.Generator:
        return secret_generator(self.seed, stream=stream)


def union_calibration(
    union: UnionConfig, sizes: Mapping[str, int], feature_party: str, *, positive_rate: float, own_columns: bool
) -> Calibration:
    """Build the calibration that the contract's strategies need, from the set sizes that the label party learnt.

    The shift is valid if the label party has no columns of its own. If it has some, a row that only it has still depends on its
    label. Then a fitted calibration omits the shift and uses its own rows as they are, including imputed features.
    """
    imputer, label_when = label_strategy(union.labels)
    _, feature_when = feature_strategy(union.features)
    times = {label_when, feature_when} - {"never"}
    if not times:
        return NO_CALIBRATION
    (when,) = times  # the contract allows one
    if when == "fitted" and own_columns:
        return Calibration(when=when)
    shared, label_only = sizes["intersection"], sizes["union"] - sizes[feature_party]
    imputed = imputer.imputed_rate(positive_rate)
    # Imputation that follows the model's own predictions trains nothing, so then only the label party's rows count.
    rows = sizes["union"] if imputed is not None else shared + label_only
    shift = LogitShift.of_union(
        shared=shared, label_only=label_only, union=rows, positive_rate=positive_rate, imputed_rate=imputed or 0.0
    )
    return Calibration(shift=shift, when=when, real=shared / (shared + label_only))


@dataclass(frozen=True, kw_only=True)
class UnionDataset(Dataset):
    """A party's rows if it lacks some of the positions.

    Args:
        imputation: imputes the rows at these positions.
        labels_N: the label party's own labels.
        positive_rate: rate of positives in its own training rows; no other label affects an imputed value or a shift.
        shift: correction of the logits, as far as sizes and rates determine it.
    """

    imputation: Imputation
    labels_N: Tensor = field(default_factory=lambda: torch.empty(0))
    positive_rate: float = np.nan
    shift: Calibration = NO_CALIBRATION

    @classmethod
    def of(
        cls,
        contract: Contract,
        own: OwnRows,
        channels: Sequence[Channel],  # noqa: ARG003
        *,
        secret_seed: Callable[[], int],
    ) -> "UnionDataset":
        """Encode each of this party's rows once, and prepare the imputation at the positions that it lacks.

        The split is by universal id, which both sides have for every position. The encoder is fitted on the own training rows.
        """
        seed = secret_seed()
        own = _shuffled(own, seed)
        own_U = torch.from_numpy(own.alignment.rows_N.copy())
        imputation = Imputation.of(contract.union, own_U, is_label=own.is_label, seed=seed)
        uids_U16 = own.alignment.uids_N16
        if uids_U16 is None:
            universal_ids = [position.to_bytes(8, "big") for position in range(len(own.alignment))]
        else:
            universal_ids = [bytes(uid) for uid in np.ascontiguousarray(uids_U16)]
        parts_U = split_by_hash(universal_ids, contract.split, seed=contract.seed)
        train_U, validation_U, test_U = positions(parts_U)
        of_training = own_U[train_U]
        training_rows = of_training[of_training >= 0].numpy()
        encoder = own.fit_encoder(own.table(), training_rows)
        source = imputation.source(_encoded(encoder, own, contract)) if encoder is not None else None
        if encoder is not None and source is not None:
            encoder = msgspec.structs.replace(encoder, common=source.common)
        dataset = cls(
            encoder=encoder,
            source=source,
            imputation=imputation,
            train_N=train_U,
            validation_N=validation_U,
            test_N=test_U,
        )
        if not own.is_label:
            return dataset
        coder = own.fit_labels(contract, training_rows)
        labels_N = coder.encode(own.label())
        rate = labels_N[training_rows].double().mean().item()
        (peer,) = contract.feature_parties
        return replace(
            dataset,
            labels=Labels.of(coder, labels_N[own_U.clamp(min=0)]),
            labels_N=labels_N,
            positive_rate=rate,
            shift=union_calibration(
                contract.union, own.alignment.sizes, peer, positive_rate=rate, own_columns=encoder is not None
            ),
        )

    @classmethod
    def to_score(
        cls, contract: Contract, own: OwnRows, encoder: Encoder | None, *, secret_seed: Callable[[], int]
    ) -> "UnionDataset":
        """Encode new rows by the encoder of the training, and impute at the positions that this party lacks."""
        seed = secret_seed()
        own = _shuffled(own, seed)
        own_U = torch.from_numpy(own.alignment.rows_N.copy())
        imputation = Imputation.of(contract.union, own_U, is_label=own.is_label, seed=seed)
        source = imputation.source(_encoded(encoder, own, contract), common=encoder.common) if encoder is not None else None
        return cls(encoder=encoder, source=source, imputation=imputation)

    def schedule(self, training: TrainingConfig, *, seed: int) -> Schedule:
        """Build the batches of training. If labels are drawn from embeddings, the training positions are embedded once before."""
        schedule = super().schedule(training, seed=seed)
        return replace(schedule, embeds_before=0) if self.imputation.labels.settles_first else schedule

    def is_own(self, index_B: Tensor) -> Tensor:
        """Mark the positions that are rows of this party."""
        return self.imputation.own_U[index_B] >= 0

    @property
    def membership(self) -> Tensor:
        """Mark the positions that are own rows: the peer must not find out."""
        return self.imputation.own_U >= 0

    def wrap(self, bottom: nn.Module) -> nn.Module:
        """Wrap the bottom model, so that the imputer can change its output."""
        return self.imputation.bottom(bottom)

    def objective(self) -> Objective:
        """Build the loss from real labels, and from imputed ones if there is no real label."""
        return self.imputation.objective(self.labels_N, self.shift, positive_rate=self.positive_rate)

    def own_part(self) -> IntersectionDataset:
        """Select the positions of the own rows. Everything is real there."""
        return IntersectionDataset(
            encoder=self.encoder,
            source=self.source,
            labels=self.labels,
            train_N=self.train_N[self.is_own(self.train_N)],
            validation_N=self.validation_N[self.is_own(self.validation_N)],
            test_N=self.test_N[self.is_own(self.test_N)],
        )

    def calibration(self, state: TrainingState | None) -> Calibration:
        """Return the shift, with the line that training fitted, if it fitted one."""
        line = state.best_fitted if state is not None else {}
        return replace(self.shift, line=LogitLine(**line)) if line else self.shift


def _shuffled(own: OwnRows, seed: int) -> OwnRows:
    """Return the own rows, numbered in an order that follows from their positions and the secret seed.

    Imputed rows are made from numbered rows, and a row may be replaced by its neighbour. If rows were numbered as in the table,
    this would show the other side which rows are neighbours there.
    """
    rows_N, keys = own.alignment.rows_N, own.keys
    order_R = rows_N[rows_N >= 0][torch.randperm(len(keys.rows_R), generator=secret_generator(seed, stream=5)).numpy()]
    number_R = np.empty_like(order_R)
    number_R[order_R] = np.arange(len(order_R))
    return replace(
        own,
        keys=replace(keys, rows_R=keys.rows_R[order_R], id_R=keys.id_R[order_R]),
        alignment=replace(own.alignment, rows_N=np.where(rows_N >= 0, number_R[rows_N], -1)),
    )


def _encoded(encoder: Encoder, own: OwnRows, contract: Contract) -> PackedFeatures:
    return own.named(encoder.encode(own.table()), np.arange(len(own.keys.rows_R)), contract)
