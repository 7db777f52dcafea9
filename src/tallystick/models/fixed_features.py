"""Features of one party's columns that no training changes: what a head on shares takes.

Each numeric column becomes hats between quantiles of its training rows (a piecewise-linear code), each categorical one a number
for each frequent code, and random rectified sums of three columns bring interactions within the party.

Shapes: N rows, F numeric columns, G categorical columns, K quantiles, Z inputs of the random sums, R random sums, D features.
"""

import torch
from torch import Tensor, nn

from tallystick.privacy.randomness import Seed, generator_of
from tallystick.tables.features import Features, FeatureShape

QUANTILES = 10
MOST_CODES = 64
RANDOM_SUMS = 192
_SUMMED = 3
_LEAST_DEVIATION = 0.3
"""Below this deviation a feature is not brought to deviation 1: a rare category would be blown up."""


class FixedFeatures(nn.Module):
    """A party's features, within -2 to 2, fitted on its own training rows without a label.

    They are scaled so that the largest eigenvalue of their second moments is 1: then one learning rate fits all tables, however
    many columns a party has, and neither party needs to know the other's.

    No formal guarantee, and nothing of it leaves the party: it is for features of which only shares cross.

    Args:
        shape: of the party's encoded columns; None for a label party without columns of its own.
        constant: whether the first feature is 1, which gives a head its intercept.
    """

    LIMIT = 2.0
    knots_FK: Tensor
    weights_ZR: Tensor
    offsets_R: Tensor
    mean_D: Tensor
    scale_D: Tensor

    def __init__(self, shape: FeatureShape | None, *, constant: bool) -> None:
        super().__init__()
        shape = shape or FeatureShape(numeric=0, cardinalities=())
        self.codes = [min(codes, MOST_CODES) for codes in shape.cardinalities]
        self.constant = constant
        inputs = shape.numeric + sum(self.codes)
        sums = RANDOM_SUMS if shape.numeric + len(self.codes) > 1 else 0
        self.width = shape.numeric * QUANTILES + sum(self.codes) + sums + constant
        self.register_buffer("knots_FK", torch.zeros(shape.numeric, QUANTILES))
        self.register_buffer("weights_ZR", torch.zeros(inputs, sums))
        self.register_buffer("offsets_R", torch.zeros(sums))
        self.register_buffer("mean_D", torch.zeros(self.width - constant))
        self.register_buffer("scale_D", torch.ones(self.width - constant))

    def fit(self, features: Features, *, seed: Seed) -> "FixedFeatures":
        """Fit quantiles and scales on training rows, and draw the random sums from this party's seed.

        Args:
            features: the training rows, at least one.
            seed: of the draws; a secret one keeps them at home.
        """
        numbers_NF = features.numeric_NF
        steps_K = torch.linspace(0, 1, QUANTILES)
        for column, number_N in enumerate(numbers_NF.unbind(1)):
            ordered_N = number_N.sort().values  # torch.quantile takes no more than 16 million numbers
            self.knots_FK[column] = ordered_N[((len(ordered_N) - 1) * steps_K).round().long()]
        generator = generator_of(seed, "fixed features")
        inputs, sums = self.weights_ZR.shape
        columns = [[column] for column in range(numbers_NF.shape[1])]
        for codes in self.codes:
            first = columns[-1][-1] + 1 if columns else 0
            columns.append(list(range(first, first + codes)))
        for drawn in range(sums):
            for column in torch.randperm(len(columns), generator=generator)[:_SUMMED].tolist():
                places = columns[column]
                self.weights_ZR[places, drawn] = torch.randn(len(places), generator=generator)
        self.offsets_R.copy_(torch.randn(sums, generator=generator))
        assert inputs == sum(map(len, columns)), "each input is of one column"
        raw_ND = self._raw(features)
        self.mean_D.copy_(raw_ND.mean(dim=0))
        self.scale_D.copy_(raw_ND.std(dim=0, correction=0).clamp(min=_LEAST_DEVIATION))
        if len(self.scale_D):
            scaled_ND = ((raw_ND - self.mean_D) / self.scale_D).double()
            moments_DD = scaled_ND.T @ scaled_ND / len(scaled_ND)
            self.scale_D *= torch.linalg.eigvalsh(moments_DD)[-1].clamp(min=1e-6).sqrt().float()
        return self

    @torch.no_grad()
    def forward(self, features: Features) -> Tensor:
        """Return features (N, D), float32."""
        scaled_ND = ((self._raw(features) - self.mean_D) / self.scale_D).clamp(-self.LIMIT, self.LIMIT)
        if not self.constant:
            return scaled_ND
        return torch.cat([torch.ones(len(scaled_ND), 1), scaled_ND], dim=1)

    def _raw(self, features: Features) -> Tensor:
        hats_NFK = _hats(features.numeric_NF, self.knots_FK)
        codes = [
            torch.nn.functional.one_hot(code_N.clamp(max=most), most + 1)[:, :most].float()
            for code_N, most in zip(features.categorical_NG.unbind(1), self.codes, strict=True)
        ]
        # A number's place among its quantiles has no tails, so a random sum of it has none
        places_NF = (hats_NFK * torch.linspace(-1.7, 1.7, QUANTILES)).sum(dim=2)
        sums_NR = torch.relu(torch.cat([places_NF, *codes], dim=1) @ self.weights_ZR + self.offsets_R)
        return torch.cat([hats_NFK.flatten(1), *codes, sums_NR], dim=1)


def _hats(numbers_NF: Tensor, knots_FK: Tensor) -> Tensor:
    """Return of each number how near it is to each of its column's quantiles, (N, F, K): two are not 0, and their sum is 1."""
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
