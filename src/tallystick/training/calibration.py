"""Calibration by logit shift: what a model trained on partly synthetic rows says about real ones.

Shapes: B rows of a batch.

Filling absent labels and features changes the share of positives at a given x. On the union of both sides' rows
this change is one affine map of probabilities (LogitShift), known from the sizes alone. It can be applied to the
logits that the loss sees ("training", the papers' -tr) or undone at prediction ("prediction", -te).
"""

from dataclasses import dataclass
from math import inf, isclose, log
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tallystick.errors import ConfigError

When = Literal["never", "training", "prediction"]

LOGIT_LIMIT = 16.0  # an inverted probability outside [0, 1] is cut here: sigmoid(-16) is 1e-7, about float32's resolution at 1


def _log(probability: float) -> float:
    return log(probability) if probability > 0 else -inf


@dataclass(frozen=True, kw_only=True)
class LogitShift:
    """The map from D(y=1|x) on real rows to D'(y=1|x) on the union with its synthetic rows, in logits.

    FLORIST, appendices E, F and G (equations 1-3), as one formula that is exact on a union: D' = shared·D + positive,
    with shared = P11 the share of rows that both sides have, positive = P10·π + (1 - P11 - P10)·q the share whose label
    is 1 whatever x is, and negative the rest. P10 is the share that only the label party has, π its rate of positives
    and q the rate of positives among filled labels (0 for majority). It holds if absence is independent of x and y,
    absent features are drawn from their marginal (sampling) and the label party has no features of its own.
    A statistic about three sizes and one rate: it reveals no row, and protects none.

    Args:
        shared: P11, in (0, 1].
        positive: share of rows whose label is 1 whatever x is, in [0, 1).
        negative: share of rows whose label is 0 whatever x is, in [0, 1); the three add up to 1.

    Raises:
        ConfigError: the shares are not probabilities, do not add up to 1, or no row is shared.
    """

    shared: float
    positive: float
    negative: float

    def __post_init__(self) -> None:
        shares = (self.shared, self.positive, self.negative)
        if not (0 < self.shared <= 1 and min(shares) >= 0 and isclose(sum(shares), 1.0, abs_tol=1e-9)):
            raise ConfigError(
                f"calibration: shares (shared, positive, negative) = {shares} must not be negative, must add up to 1 and shared "
                "must be above 0; calibrate only a union in which both sides share rows"
            )

    @classmethod
    def of_union(
        cls, *, shared: int, label_only: int, union: int, positive_rate: float, filled_rate: float = 0.0
    ) -> "LogitShift":
        """Take the shares from the sizes that the union protocol reveals.

        Args:
            shared: rows that both sides have.
            label_only: rows that only the label party has.
            union: rows of the union, dummies included.
            positive_rate: rate of positives on the label party's rows (π).
            filled_rate: rate of positives among filled labels (q): 0 for majority when positives are rare.
        """
        if not (shared > 0 and label_only >= 0 and shared + label_only <= union):
            raise ConfigError(
                f"calibration: sizes shared={shared}, label_only={label_only}, union={union} do not fit; "
                "expected shared > 0 and shared + label_only <= union"
            )
        if not (0 <= positive_rate <= 1 and 0 <= filled_rate <= 1):
            raise ConfigError(f"calibration: rates π={positive_rate}, q={filled_rate} must lie in [0, 1]")
        feature_only = union - shared - label_only
        return cls(
            shared=shared / union,
            positive=(label_only * positive_rate + feature_only * filled_rate) / union,
            negative=(label_only * (1 - positive_rate) + feature_only * (1 - filled_rate)) / union,
        )

    def forward(self, logits_B: Tensor) -> Tensor:
        """Give the logits of D' for logits of D; differentiable and finite for every finite logit."""
        log_shared = log(self.shared)
        log_one_B = torch.logaddexp(log_shared + logsigmoid(logits_B), logits_B.new_tensor(_log(self.positive)))
        log_zero_B = torch.logaddexp(log_shared + logsigmoid(-logits_B), logits_B.new_tensor(_log(self.negative)))
        return log_one_B - log_zero_B

    def inverse(self, logits_B: Tensor) -> Tensor:
        """Give the logits of D for logits of D', cut at ±LOGIT_LIMIT where D would leave [0, 1].

        sigmoid(l) - b is computed as sigmoid(l)·(1 - b)·(1 - exp(logit(b) - l)), which keeps its precision where the two cancel.
        """
        one_B = logsigmoid(logits_B) + _log_excess(logits_B, self.positive)
        zero_B = logsigmoid(-logits_B) + _log_excess(-logits_B, self.negative)
        # Both excesses cannot be empty at once: the three shares add up to 1 and shared is above 0.
        return (one_B - zero_B).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)


def _log_excess(logits_B: Tensor, floor: float) -> Tensor:
    """log((sigmoid(l) - floor) / sigmoid(l)), and -inf where sigmoid(l) <= floor."""
    if floor == 0:
        return torch.zeros_like(logits_B)
    gap_B = (log(floor) - log(1 - floor)) - logits_B
    return torch.where(gap_B < 0, torch.log(-torch.expm1(gap_B.clamp(max=0.0))), -inf) + log(1 - floor)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Where a LogitShift applies; the training loop calls both methods and need not know.

    FLORIST, section 2.4 "Logits Calibration": "training" is -tr, "prediction" is -te, "never" is the plain strategy.
    No threat model: it changes numbers that the label party holds. Under "training" it also scales the cut gradients,
    by a function of the logit only, so it neither adds to nor hides what they reveal.
    """

    shift: LogitShift
    when: When = "never"

    def training_logits(self, logits_B: Tensor) -> Tensor:
        """Give the logits that the loss compares with the filled labels."""
        return self.shift.forward(logits_B) if self.when == "training" else logits_B

    def prediction_logits(self, logits_B: Tensor) -> Tensor:
        """Give the logits of a real row's label."""
        return self.shift.inverse(logits_B) if self.when == "prediction" else logits_B


NO_CALIBRATION = Calibration(shift=LogitShift(shared=1.0, positive=0.0, negative=0.0))
