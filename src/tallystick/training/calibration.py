"""Calibrate a model that was trained on partly synthetic rows for its predictions on real rows.

Shapes: B rows of a batch, V the label party's own validation rows, G groups of them, S tried slopes.

Imputing absent labels and features changes the share of positives at a given x. On the union of both sides' rows this change is
an affine map of probabilities (LogitShift), known from the sizes alone. It can be applied to the logits that the loss sees
("training", the paper's -tr) or undone at prediction ("prediction", -te). If few rows are shared, both require the model to be
right to fractions of a percent. "fitted" (-fit, not in the paper) checks this: it applies the map in training and then fits a
line through the logits (LogitLine) on validation labels.
"""

from dataclasses import dataclass, replace
from math import inf, isclose, log, nan

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tallystick.errors import ConfigError, DataError
from tallystick.imputation.imputer import When

LOGIT_LIMIT = 16.0  # an inverted probability outside [0, 1] is cut here: sigmoid(-16) is 1e-7, about float32's resolution at 1


def _log(probability: float) -> float:
    return log(probability) if probability > 0 else -inf


@dataclass(frozen=True, kw_only=True)
class LogitShift:
    """The map from D(y=1|x) on real rows to D'(y=1|x) on the union with its synthetic rows, in logits.

    FLORIST, appendices E, F and G (equations 1-3), as one formula that is exact on a union: D' = shared·D + positive. Here shared
    = P11 is the share of rows that both sides have. positive = P10·π + (1 - P11 - P10)·q is the share with label 1 whatever x is.
    negative is the rest. P10 is the share that only the label party has, π its rate of positives, and q the rate of positives
    among imputed labels (0 for majority). The formula holds if absence is independent of x and y, absent features are drawn from
    their marginal (sampling) and the label party has no features of its own. It depends only on three sizes and one rate: it
    reveals no row, and protects none.

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
        cls, *, shared: int, label_only: int, union: int, positive_rate: float, imputed_rate: float = 0.0
    ) -> "LogitShift":
        """Compute the shares from the sizes that the union protocol reveals.

        Args:
            shared: rows that both sides have.
            label_only: rows that only the label party has.
            union: rows of the union, dummies included.
            positive_rate: rate of positives on the label party's rows (π).
            imputed_rate: rate of positives among imputed labels (q): 0 for majority when positives are rare.
        """
        if not (shared > 0 and label_only >= 0 and shared + label_only <= union):
            raise ConfigError(
                f"calibration: sizes shared={shared}, label_only={label_only}, union={union} do not fit; "
                "expected shared > 0 and shared + label_only <= union"
            )
        if not (0 <= positive_rate <= 1 and 0 <= imputed_rate <= 1):
            raise ConfigError(f"calibration: rates π={positive_rate}, q={imputed_rate} must lie in [0, 1]")
        feature_only = union - shared - label_only
        return cls(
            shared=shared / union,
            positive=(label_only * positive_rate + feature_only * imputed_rate) / union,
            negative=(label_only * (1 - positive_rate) + feature_only * (1 - imputed_rate)) / union,
        )

    def forward(self, logits_B: Tensor) -> Tensor:
        """Return the logits of D' for logits of D. It is differentiable and finite for every finite logit."""
        log_shared = log(self.shared)
        log_one_B = torch.logaddexp(log_shared + logsigmoid(logits_B), logits_B.new_tensor(_log(self.positive)))
        log_zero_B = torch.logaddexp(log_shared + logsigmoid(-logits_B), logits_B.new_tensor(_log(self.negative)))
        return log_one_B - log_zero_B

    def inverse(self, logits_B: Tensor) -> Tensor:
        """Return the logits of D for logits of D', cut at ±LOGIT_LIMIT if D would leave [0, 1].

        sigmoid(l) - b is computed as sigmoid(l)·(1 - b)·(1 - exp(logit(b) - l)), which stays precise if the two terms cancel.
        """
        one_B = logsigmoid(logits_B) + _log_excess(logits_B, self.positive)
        zero_B = logsigmoid(-logits_B) + _log_excess(-logits_B, self.negative)
        # Both excesses cannot be empty at the same time: the three shares add up to 1 and shared is above 0.
        return (one_B - zero_B).clamp(-LOGIT_LIMIT, LOGIT_LIMIT)


def _log_excess(logits_B: Tensor, floor: float) -> Tensor:
    """Compute log((sigmoid(l) - floor) / sigmoid(l)), and -inf if sigmoid(l) <= floor."""
    if floor == 0:
        return torch.zeros_like(logits_B)
    gap_B = (log(floor) - log(1 - floor)) - logits_B
    return torch.where(gap_B < 0, torch.log(-torch.expm1(gap_B.clamp(max=0.0))), -inf) + log(1 - floor)


NO_SHIFT = LogitShift(shared=1.0, positive=0.0, negative=0.0)


@dataclass(frozen=True, kw_only=True)
class LogitLine:
    """Calibrated logits as a line through the model's: slope times logit plus intercept (Platt 1999).

    The slope is above 0, so ranks do not change. It depends on validation labels and stays with the label party; no guarantee.
    """

    slope: float = 1.0
    intercept: float = 0.0

    def __call__(self, logits_B: Tensor) -> Tensor:
        """Return the calibrated logits."""
        return self.slope * logits_B + self.intercept


SLOPES = torch.logspace(-2, 1, 61, dtype=torch.float64)  # tried slopes, for logits of deviation 1: 12 % apart
GROUPS = 1024  # greatest number of groups of validation rows with nearly equal logits


def fit_line(logits_V: Tensor, labels_V: Tensor, *, real: float, positive_rate: float) -> tuple[LogitLine, float]:
    """Fit a line through the logits on the label party's own validation rows. Return also the mean loss with it.

    This is not in FLORIST, whose -te inverts the shift and so multiplies every error of the model by one over the shared part of
    the union. Here the validation labels show how far the logits can be trusted. A share ``real`` of the own rows has real
    features and the rest sampled ones, which are independent of the label: P(y = 1) = real sigmoid(l) + (1 - real) π. The
    intercept is the one that makes the mean of sigmoid(l) equal π. The slope, for logits of deviation 1, is the most likely one
    under a half-normal prior of deviation 1, which corresponds to an AUC of about .76. If the labels are not informative, the
    slope falls towards 0 and every prediction towards π, which is calibrated but useless.

    Args:
        logits_V: the model's logits.
        labels_V: 0 or 1.
        real: share of own rows whose features are all real, in (0, 1].
        positive_rate: π, the rate of positives in the own training rows.

    Raises:
        DataError: there are no such rows.
    """
    rows = len(logits_V)
    if not rows:
        raise DataError(
            "calibration: none of the label party's own rows fell into the validation part, so nothing can be fitted; "
            "raise split.validation, or choose a strategy without -fit"
        )
    order_V = torch.argsort(logits_V)
    sorted_V, positive_V = logits_V[order_V].double().cpu(), labels_V[order_V].double().cpu()
    mean, spread = sorted_V.mean().item(), sorted_V.std(correction=0).item()
    rate = min(max(positive_rate, 1e-6), 1 - 1e-6)
    prior_logit = log(rate) - log(1 - rate)
    if not spread > 1e-9:  # nothing separates the rows; or logits are NaN, which the loss reports
        share = positive_V.mean().item()
        entropy = -share * log(rate) - (1 - share) * log(1 - rate)
        return LogitLine(intercept=prior_logit - mean), nan if spread != 0 else entropy
    groups = min(GROUPS, rows)
    place_V = torch.arange(rows) * groups // rows
    rows_G = torch.bincount(place_V, minlength=groups).double()
    logits_G = torch.zeros(groups, dtype=torch.float64).index_add_(0, place_V, (sorted_V - mean) / spread) / rows_G
    positives_G = torch.zeros(groups, dtype=torch.float64).index_add_(0, place_V, positive_V)
    line_SG = SLOPES[:, None] * logits_G
    low_S, high_S = prior_logit - line_SG[:, -1], prior_logit - line_SG[:, 0]
    for _ in range(50):
        middle_S = (low_S + high_S) / 2
        over_S = (torch.sigmoid(line_SG + middle_S[:, None]) @ rows_G) > rate * rows
        low_S, high_S = torch.where(over_S, low_S, middle_S), torch.where(over_S, middle_S, high_S)
    chance_SG = (real * torch.sigmoid(line_SG + low_S[:, None]) + (1 - real) * rate).clamp(1e-12, 1 - 1e-12)
    likelihood_S = torch.log(chance_SG) @ positives_G + torch.log1p(-chance_SG) @ (rows_G - positives_G)
    best = int(torch.argmax(likelihood_S - SLOPES**2 / 2))
    slope = SLOPES[best].item() / spread
    return LogitLine(slope=slope, intercept=low_S[best].item() - slope * mean), -likelihood_S[best].item() / rows


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A calibration that applies only in some phases, and its fitted values. The training loop only calls its methods.

    FLORIST, section 2.4 "Logits Calibration": "training" is -tr, "prediction" is -te, "never" is the plain strategy. "fitted" is
    -tr and then a LogitLine. No threat model: it changes numbers that the label party has. In training it also scales the cut
    gradients, by a function of the logit only, so it neither adds to what they reveal nor hides it.

    Args:
        shift: how imputation changed the probabilities.
        when: the phase in which it applies.
        real: share of the label party's rows whose features are all real, in (0, 1].
        line: the fitted line.
    """

    shift: LogitShift = NO_SHIFT
    when: When = "never"
    real: float = 1.0
    line: LogitLine = LogitLine()

    def training_logits(self, logits_B: Tensor) -> Tensor:
        """Return the logits that the loss compares with the imputed labels."""
        return self.shift.forward(logits_B) if self.when in ("training", "fitted") else logits_B

    def prediction_logits(self, logits_B: Tensor) -> Tensor:
        """Return the logits of a real row's label."""
        if self.when == "fitted":
            return self.line(logits_B)
        return self.shift.inverse(logits_B) if self.when == "prediction" else logits_B

    def fit(self, logits_V: Tensor, labels_V: Tensor, *, positive_rate: float) -> tuple["Calibration", float]:
        """Return itself with the line for the label party's own validation rows, and the mean loss there (see fit_line)."""
        line, loss = fit_line(logits_V, labels_V, real=self.real, positive_rate=positive_rate)
        return replace(self, line=line), loss


NO_CALIBRATION = Calibration()
