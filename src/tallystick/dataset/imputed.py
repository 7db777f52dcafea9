"""Train on a union: rows that a party lacks are imputed, and its batches do not show the other side which rows those are.

The loops of label_party.py and feature_party.py do not change. This file holds the imputing source, bottom and objective. Shapes:
U positions of the union, N own rows, B batch, D cut width, K draws.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from tallystick.imputation.draws import Draws
from tallystick.imputation.imputer import FeatureImputer, LabelBatch, LabelImputer
from tallystick.imputation.moments import MovingMoments
from tallystick.tables.common_values import Blur, CommonValues
from tallystick.tables.features import FeatureRows, Features
from tallystick.training.calibration import Calibration
from tallystick.training.objective import mean_cross_entropy
from tallystick.training.plan import no_positions

MOST_DONORS = 100_000  # greatest number of own rows from which others are made up


@dataclass(frozen=True, kw_only=True)
class ImputedFeatures(Features):
    """A batch in which absent rows are imputed. ``present_B`` is only for this party's own bottom and is never sent."""

    present_B: Tensor

    def rows(self, index_B: Tensor) -> "ImputedFeatures":
        """Pick rows, in the order of the index."""
        picked = super().rows(index_B)
        return ImputedFeatures(
            numeric_NF=picked.numeric_NF,
            categorical_NG=picked.categorical_NG,
            who_N=picked.who_N,
            present_B=self.present_B.index_select(0, index_B),
        )


@dataclass(frozen=True, kw_only=True)
class ImputingSource:
    """A source of a party's features at positions of the union: its own row, or an imputed one.

    Args:
        features: the N own rows.
        own_U: own row at each position, -1 where absent.
        imputer: imputes absent rows.
        draws: numbers that choose donors; they come from a secret seed, so that the other side cannot repeat them.
        made_up: one row for each absent position, in their order, if the imputer makes rows before training.
        common: makes the values of own and made-up rows equally rare, if the imputer makes rows.
        blur: does the same in batches.
        number_U: a number for each position, for ``blur``.
    """

    features: FeatureRows
    own_U: Tensor
    imputer: FeatureImputer
    draws: Draws
    made_up: Features | None = None
    common: CommonValues | None = None
    blur: Blur | None = None
    number_U: Tensor = field(default_factory=no_positions)

    @classmethod
    def of(
        cls,
        features: FeatureRows,
        own_U: Tensor,
        *,
        imputer: FeatureImputer,
        draws: Draws,
        generator: torch.Generator,
        common: CommonValues | None = None,
    ) -> "ImputingSource":
        """Make the rows that the imputer makes before training, from at most 100,000 own rows. ``generator`` must be secret as
        well.

        ``common`` values come from training; without them they are fitted here.
        """
        source = cls(features=features, own_U=own_U, imputer=imputer, draws=draws)
        if not imputer.makes_rows:
            return source
        donor_rows = torch.linspace(0, len(features) - 1, min(len(features), MOST_DONORS), dtype=torch.float64).round().long()
        donors = features.rows(donor_rows)
        if absent := int((own_U < 0).sum()):
            numeric, codes = imputer.made_up(donors.numeric_NF, donors.categorical_NG, absent, generator=generator)
            source = replace(source, made_up=Features(numeric_NF=numeric, categorical_NG=codes))
        common = common or CommonValues.fit(donors)
        return replace(
            source,
            common=common,
            blur=Blur.of(common, generator=generator),
            number_U=torch.rand(len(own_U), generator=generator),
        )

    def __call__(self, index_B: Tensor) -> ImputedFeatures:
        """Return the batch at these positions."""
        own_B = self.own_U[index_B]
        inputs_B = self.imputer.inputs(own_B, own_rows=len(self.features), uniform_B=self.draws.at(index_B)[:, 0])
        rows = self.features.rows(inputs_B)
        if self.made_up is not None:
            absent_B = own_B < 0
            made_up = self.made_up.rows(self._place_among_absent[index_B[absent_B]]).to(rows.numeric_NF.device)
            rows.numeric_NF[absent_B], rows.categorical_NG[absent_B] = made_up.numeric_NF, made_up.categorical_NG
        if self.blur is not None:
            rows = self.blur(rows, self.number_U[index_B.cpu()])
        who_B = rows.who_N
        if who_B is not None:  # a stand-in is not its donor's row: the same noise would reveal it
            who_B = torch.where(own_B >= 0, who_B, -1 - index_B.to(who_B.device))
        return ImputedFeatures(numeric_NF=rows.numeric_NF, categorical_NG=rows.categorical_NG, who_N=who_B, present_B=own_B >= 0)

    @cached_property
    def _place_among_absent(self) -> Tensor:
        absent_U = (self.own_U < 0).long()
        return torch.cumsum(absent_U, dim=0) - absent_U


class ImputingBottom(nn.Module):
    """A feature party's bottom model on a union. Some imputers replace the cut embedding of an absent row.

    Its state holds what a resumed run needs besides the weights: the moving moments and the noise generator's state. No formal
    guarantee: the imputer's docstring says what reveals absent rows.
    """

    def __init__(self, bottom: nn.Module, imputer: FeatureImputer, *, generator: torch.Generator) -> None:
        super().__init__()
        width = bottom.width
        assert isinstance(width, int)
        self.bottom = bottom
        self.width = width
        self.moments = MovingMoments(width)
        self._imputer = imputer
        self._generator = generator

    def forward(self, features: ImputedFeatures) -> Tensor:
        """Compute the cut embeddings (B, D) that are sent."""
        cut_BD: Tensor = self.bottom(features)
        if self.training:
            self.moments.update(cut_BD.detach()[features.present_B])
        return self._imputer.cut(cut_BD, features.present_B, moments=self.moments, generator=self._generator)

    def get_extra_state(self) -> Tensor:
        """Return the generator's state, for checkpoints."""
        return self._generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the generator's state."""
        self._generator.set_state(state)


class ImputingObjective:
    """The label party's loss on a union: real labels if it has them, imputed ones otherwise, calibrated if agreed.

    FLORIST, sections 2.4 and 3.1. No formal guarantee: see the imputer's docstring.

    Args:
        labels_N: the N own labels, 0 or 1.
        own_U: own row at each position, -1 where absent.
        imputer: imputes absent labels.
        draws: the imputer's numbers, from a secret seed.
        calibration: says when the logit shift applies.
        positive_rate: π, the rate of positives in the own training rows; validation and test labels do not affect gradients.
    """

    def __init__(
        self,
        labels_N: Tensor,
        own_U: Tensor,
        *,
        imputer: LabelImputer,
        draws: Draws,
        calibration: Calibration,
        positive_rate: float,
    ) -> None:
        self._labels_N = labels_N
        self._own_U = own_U
        self._imputer = imputer
        self._draws = draws
        self._calibration = calibration
        self._positive_rate = positive_rate
        self._settled_U: Tensor | None = None

    @property
    def settles_first(self) -> bool:
        """Tell whether absent labels are drawn before training."""
        return self._imputer.settles_first

    def real_labels(self, index_N: Tensor) -> Tensor:
        """Return the own labels at these positions, -1 if absent."""
        own_N = self._own_U[index_N]
        return torch.where(own_N >= 0, self._labels_N[own_N.clamp(min=0)], -1.0)

    def settle(self, index_N: Tensor, logits_N: Tensor) -> Tensor:
        """Draw a label for each of these positions by its logit, and return all positions' labels, 0 for the rest."""
        settled_U = torch.zeros(len(self._own_U), dtype=self._labels_N.dtype, device=self._own_U.device)
        drawn_N = self._draws.at(index_N)[:, 0] < torch.sigmoid(logits_N)
        settled_U[index_N] = drawn_N.to(settled_U.dtype)
        self.take_settled(settled_U)
        return settled_U

    def take_settled(self, settled_U: Tensor) -> None:
        """Use labels that were drawn before."""
        self._settled_U = settled_U

    def __call__(self, logits: Tensor, index_B: Tensor, cuts_BD: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return the loss of a training batch, over all its rows, and its real and synthetic targets."""
        own_B = self._own_U[index_B]
        logits_B = logits.detach() if logits.ndim == 1 else logits.detach().mean(dim=1)  # for an ensemble the mean predicts
        batch = LabelBatch(
            labels_B=self._labels_N[own_B.clamp(min=0)],
            present_B=own_B >= 0,
            logits_B=logits_B,
            cut_BD=cuts_BD[0].detach() if cuts_BD else logits_B[:, None],
            positive_rate=self._positive_rate,
            settled_B=None if self._settled_U is None else self._settled_U[index_B],
        )
        targets_B = self._imputer(batch, uniform_BK=self._draws.at(index_B))
        return mean_cross_entropy(self._calibration.training_logits(logits), targets_B), targets_B

    def validation_loss(self, logits: Tensor, index_N: Tensor) -> Tensor:
        """Return the loss of calibrated logits on the rows that have a real label.

        Values that have to be fitted are fitted to these rows first.
        """
        own_N = self._own_U[index_N]
        real = own_N >= 0
        labels_V = self._labels_N[own_N[real]]
        if self._calibration.when == "fitted":
            self._calibration, loss = self._calibration.fit(logits[real], labels_V, positive_rate=self._positive_rate)
            return torch.tensor(loss)
        return binary_cross_entropy_with_logits(self._calibration.prediction_logits(logits[real]), labels_V)

    def fitted(self) -> dict[str, float]:
        """Return the line through the logits that the last validation fitted."""
        return asdict(self._calibration.line) if self._calibration.when == "fitted" else {}
