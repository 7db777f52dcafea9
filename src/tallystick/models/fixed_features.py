"""Compute fixed features of one party's columns, which no training changes, for a head on shares.

Each numeric column becomes hats between quantiles of its training rows, few and many (piecewise-linear codes). Each categorical
column becomes a number for each frequent code. Random rectified sums of three columns add interactions within the party. Of all
these the strongest principal axes are kept, each scaled to about the same variance. If there are fewer axes, zeros come before
them: other parties see the number of features, and the content of columns must not determine it.

Shapes: N rows, F numeric columns, G categorical columns, K quantiles, Z inputs of the random sums, R hats, codes and sums,
D axes.
"""

import math

import torch
from torch import Tensor, nn

from tallystick.privacy.randomness import Seed, generator_of
from tallystick.tables.features import Features, FeatureShape

FINE, COARSENING = 37, 4
COARSE = FINE // COARSENING + 1
"""Number of quantiles of the fine hats, and of the coarse hats, which use every fourth quantile."""
MOST_FINE_COLUMNS = 24
"""Greatest number of numeric columns for which there are fine hats."""
MOST_CODES = 64
"""Greatest number of codes of a category. If a party has more for its large categories, these share them evenly."""
RANDOM_SUMS = 512
_SUMMED = 3
_LEAST_DEVIATION = 0.3
"""A hat, code or sum with a smaller deviation is not scaled to deviation 1, because a rare category would become too large."""
_FLOOR = 0.1
"""Share of the largest variance that is added to each axis's variance, because weaker axes are usually noise."""
_SAMPLE = 1 << 14
"""Greatest number of rows used to find the axes."""


class FixedFeatures(nn.Module):
    """A party's features, within -3 to 3, fitted on its own training rows without labels.

    An axis of variance v is divided by the root of v plus a tenth of the largest variance. So strong axes have about variance 1,
    no axis has more, and one learning rate fits all tables.

    No formal guarantee, and nothing of it leaves the party: it is for features that cross only as shares.

    Args:
        shape: shape of the party's encoded columns; None for a label party without columns.
        most: number of axes, including zeros for missing ones.
        codes: codes of all its categories with more than 64 codes together; each has at least 64.
        constant: whether the first feature is 1, which gives a head its intercept.
    """

    LIMIT = 3.0
    knots_FK: Tensor
    weights_ZS: Tensor
    offsets_S: Tensor
    mean_R: Tensor
    axes_RD: Tensor

    def __init__(self, shape: FeatureShape | None, *, most: int, constant: bool, codes: int = 0) -> None:
        super().__init__()
        shape = shape or FeatureShape(numeric=0, cardinalities=())
        large = sum(cardinality > MOST_CODES for cardinality in shape.cardinalities)
        self.codes = [min(cardinality, max(MOST_CODES, codes // max(large, 1))) for cardinality in shape.cardinalities]
        self.constant = constant
        self._fine = shape.numeric <= MOST_FINE_COLUMNS
        inputs = shape.numeric + sum(self.codes)
        sums = RANDOM_SUMS if shape.numeric + len(self.codes) > 1 else 0
        hats = shape.numeric * (COARSE + FINE * self._fine)
        raw = hats + sum(self.codes) + sums
        axes = most if raw else 0
        self.width = axes + constant
        self.register_buffer("knots_FK", torch.zeros(shape.numeric, FINE))
        self.register_buffer("weights_ZS", torch.zeros(inputs, sums))
        self.register_buffer("offsets_S", torch.zeros(sums))
        self.register_buffer("mean_R", torch.zeros(raw))
        self.register_buffer("axes_RD", torch.zeros(raw, axes))

    def fit(self, features: Features, *, seed: Seed) -> "FixedFeatures":
        """Fit quantiles and axes on training rows, and draw the random sums from this party's seed.

        Args:
            features: the training rows, at least one.
            seed: seed of the draws; a secret one keeps them private.
        """
        numbers_NF = features.numeric_NF
        steps_K = torch.linspace(0, 1, FINE)
        for column, number_N in enumerate(numbers_NF.unbind(1)):
            ordered_N = number_N.sort().values  # torch.quantile accepts no more than 16 million numbers
            self.knots_FK[column] = ordered_N[((len(ordered_N) - 1) * steps_K).round().long()]
        generator = generator_of(seed, "fixed features")
        inputs, sums = self.weights_ZS.shape
        columns = [[column] for column in range(numbers_NF.shape[1])]
        for codes in self.codes:
            first = columns[-1][-1] + 1 if columns else 0
            columns.append(list(range(first, first + codes)))
        for drawn in range(sums):
            for column in torch.randperm(len(columns), generator=generator)[:_SUMMED].tolist():
                places = columns[column]
                self.weights_ZS[places, drawn] = torch.randn(len(places), generator=generator)
        self.offsets_S.copy_(torch.randn(sums, generator=generator))
        assert inputs == sum(map(len, columns)), "each input is of one column"
        if len(self.mean_R):
            sample_N = torch.arange(0, len(features), math.ceil(len(features) / _SAMPLE))
            raw_NR = self._raw(features.rows(sample_N))
            self.mean_R.copy_(raw_NR.mean(dim=0))
            deviation_R = raw_NR.std(dim=0, correction=0).clamp(min=_LEAST_DEVIATION)
            scaled_NR = (raw_NR - self.mean_R) / deviation_R
            variance_R, axes_RR = torch.linalg.eigh((scaled_NR.T @ scaled_NR / len(scaled_NR)).double())
            floor = variance_R[-1].clamp(min=1e-6) * _FLOOR
            count = min(self.axes_RD.shape[1], len(variance_R))
            weighted_RD = axes_RR[:, -count:] / (variance_R[-count:].clamp(min=0) + floor).sqrt()
            self.axes_RD[:, -count:] = weighted_RD.float() / deviation_R.unsqueeze(1)
        return self

    @torch.no_grad()
    def forward(self, features: Features) -> Tensor:
        """Return features (N, D), float32."""
        axes_ND = ((self._raw(features) - self.mean_R) @ self.axes_RD).clamp(-self.LIMIT, self.LIMIT)
        if not self.constant:
            return axes_ND
        return torch.cat([torch.ones(len(axes_ND), 1), axes_ND], dim=1)

    def _raw(self, features: Features) -> Tensor:
        coarse_NFK = _hats(features.numeric_NF, self.knots_FK[:, ::COARSENING].contiguous())
        hats = [coarse_NFK] + ([_hats(features.numeric_NF, self.knots_FK)] if self._fine else [])
        codes = [
            torch.nn.functional.one_hot(code_N.clamp(max=most), most + 1)[:, :most].float()
            for code_N, most in zip(features.categorical_NG.unbind(1), self.codes, strict=True)
        ]
        # A number's place among its quantiles has no tails, so a random sum of places has none
        places_NF = (coarse_NFK * torch.linspace(-1.7, 1.7, COARSE)).sum(dim=2)
        sums_NS = torch.relu(torch.cat([places_NF, *codes], dim=1) @ self.weights_ZS + self.offsets_S)
        return torch.cat([*(each.flatten(1) for each in hats), *codes, sums_NS], dim=1)


def _hats(numbers_NF: Tensor, knots_FK: Tensor) -> Tensor:
    """Return how near each number is to each of its column's quantiles, (N, F, K): two values are not 0, and they sum to 1."""
    most = knots_FK.shape[1] - 1
    hats_NFK = torch.zeros(*numbers_NF.shape, most + 1)
    number_FN = numbers_NF.t().contiguous()
    left_FN = (torch.searchsorted(knots_FK, number_FN, right=True) - 1).clamp(0, most - 1)
    low_FN, high_FN = knots_FK.gather(1, left_FN), knots_FK.gather(1, left_FN + 1)
    share_FN = torch.where(high_FN > low_FN, (number_FN - low_FN) / (high_FN - low_FN), (number_FN >= high_FN).float()).clamp(
        0, 1
    )
    hats_NFK.scatter_(2, left_FN.t().unsqueeze(2), (1 - share_FN).t().unsqueeze(2))
    hats_NFK.scatter_(2, left_FN.t().unsqueeze(2) + 1, share_FN.t().unsqueeze(2))
    return hats_NFK
