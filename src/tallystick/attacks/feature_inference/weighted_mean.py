"""Average other attacks' guesses, weighted by how well each guesses known rows that were left out.

Shapes: N rows, K known rows, A attacks, T targets.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Reads, Targets, inputs
from tallystick.attacks.feature_inference.view import FeatureAttack, FeatureView, Reconstruction
from tallystick.errors import ConfigError

SWEEPS = 100
_READS: tuple[Reads, ...] = ("mean", "course")  # inputs of the averaged attacks
LEAST_GAIN = 1e-3  # least share of the variance that an attack is assumed to explain


@dataclass(frozen=True, kw_only=True)
class WeightedMean:
    """Average attacks with different errors. If there is noise, this beats each of them.

    Stacking (Wolpert 1992; Breiman 1996). Known rows are left out fold by fold, and each attack guesses them from the others. For
    each target, weights of at least 0 minimise the squared error of these guesses. They are shrunk towards weights that follow
    from each attack's own error. Then the attacks get all known rows, and their guesses are averaged.

    Args:
        parts: the attacks; at least one.
        folds: number of folds of the known rows, at least 2.
        shrinkage: strength of the shrinkage, in units of the guesses' variance; at least 0.
    """

    parts: tuple[FeatureAttack, ...]
    folds: int = 3
    shrinkage: float = 20.0

    def __post_init__(self) -> None:
        if not self.parts or self.folds < 2 or self.shrinkage < 0:
            raise ConfigError(
                f"weighted mean: {len(self.parts)} attacks, folds={self.folds}, shrinkage={self.shrinkage}; expected at least 1, "
                "2 and 0"
            )

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. ``generator`` serves all attacks, and is reset for each one that gets all known rows.

        If one row is known, all guesses are its columns.
        """
        targets, known_count = Targets.of(view.columns_K), len(view.known_K)
        left_AKT = torch.zeros(len(self.parts), *targets.y_KT.shape, dtype=torch.float64)
        # Make a view of only the known rows, with inputs scaled like those of all rows; guessing them needs no other row
        for reads in _READS:
            inputs(view, reads, own_columns=False)
        at_NL, left_NCD = view.looks_at_NL, view.contrast_NCD
        alone = replace(
            view,
            last_ND=view.last_ND[view.known_K],
            mean_ND=view.mean_ND[view.known_K],
            looks_NE=view.looks_NE[view.known_K],
            looks_at_NL=at_NL if at_NL is None else at_NL[view.known_K],
            contrast_NCD=left_NCD if left_NCD is None else left_NCD[view.known_K],
            own_NA=view.own_NA if view.own_NA is None else view.own_NA[view.known_K],
            known_K=torch.arange(known_count),
            guesses={},
            scaled={key: x_ND[view.known_K] for key, x_ND in view.scaled.items()},
        )
        fold_K = torch.arange(known_count) % self.folds
        for fold in range(min(self.folds, known_count) if known_count > 1 else 0):
            left_K = fold_K == fold
            (shown_S,) = (~left_K).nonzero(as_tuple=True)
            fold_view = replace(alone, known_K=shown_S, columns_K=view.columns_K.rows(shown_S))
            for place, attack in enumerate(self.parts):
                left_AKT[place, left_K] = _values(attack(fold_view, generator=generator), targets)[left_K]
        seed = generator.initial_seed()
        all_ANT = torch.stack([_values(view.guess(attack, seed=seed), targets) for attack in self.parts])
        mean_T = targets.y_KT.mean(dim=0)
        guess_AKT = left_AKT - mean_T
        truth_KT = targets.y_KT - mean_T
        error_AT, variance_T = (guess_AKT - truth_KT).square().mean(dim=1), truth_KT.square().mean(dim=0)
        tells_AT = (1 - error_AT / variance_T.clamp(min=torch.finfo(torch.float64).tiny)).clamp(min=LEAST_GAIN)
        alone_AT = tells_AT / tells_AT.sum(dim=0)
        pull_T = self.shrinkage * guess_AKT.square().mean(dim=(0, 1)) + torch.finfo(torch.float64).tiny
        gram_AAT = torch.einsum("akt,bkt->abt", guess_AKT, guess_AKT)
        gram_AAT.diagonal().add_(pull_T[:, None])
        along_AT = (guess_AKT * truth_KT).sum(dim=1) + pull_T * alone_AT
        weight_AT = alone_AT.clone()
        for _ in range(SWEEPS):  # minimise a convex function coordinate by coordinate
            for place in range(len(weight_AT)):
                step_T = (along_AT[place] - (gram_AAT[place] * weight_AT).sum(dim=0)) / gram_AAT[place, place]
                weight_AT[place] = (weight_AT[place] + step_T).clamp(min=0)
        return targets.reconstruction((mean_T + (weight_AT[:, None] * (all_ANT - mean_T)).sum(dim=0)).T)


def _values(reconstruction: Reconstruction, targets: Targets) -> Tensor:
    """Return a reconstruction's numbers and its score of each known code. A code that it did not search gets its mean."""
    mean_T = targets.y_KT.mean(dim=0)
    value_NT = mean_T.repeat(len(reconstruction.numeric_NF), 1)
    value_NT[:, : targets.numeric] = reconstruction.numeric_NF
    first = targets.numeric
    for code_C, code_J, score_JN in zip(targets.codes, reconstruction.codes, reconstruction.scores, strict=True):
        is_known_J = torch.isin(code_J, code_C)
        value_NT[:, first + torch.searchsorted(code_C, code_J[is_known_J])] = score_JN[is_known_J].T
        first += len(code_C)
    return value_NT
