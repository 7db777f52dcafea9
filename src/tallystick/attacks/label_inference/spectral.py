"""Score rows by their projection on their batch's top singular direction: the spectral attack.

Shapes: B rows of a step's batch, D columns.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tallystick.attacks.label_inference.observations import binary_only, matrices, observations, unlabelled_per_step, whole_run
from tallystick.attacks.matrix import centred, top_direction, two_means_cut
from tallystick.attacks.view import Received, Scores, View


@dataclass(frozen=True, kw_only=True)
class SpectralAttack:
    """Project a row, minus the batch's mean, on the batch's top right-singular vector.

    Sun et al. (label leakage from the forward embedding), section 5 and Algorithm 1, after Tran et al. 2018. The attacker knows
    no label, only that positives are the rarer class. Binary targets only.

    Args:
        target: what it reads: own cut embeddings, or cut gradients.
        signed: True for Algorithm 1, oriented so that the smaller of the two clusters of scores is high; False for section 5's
            absolute value, which maps two equally large clusters onto each other.
        scope: "batch", as in the paper; "run" takes one vector per row, its last embedding or its mean gradient, and orients all
            scores at once. Noise that a defence draws anew at every step then averages out, and thousands of rows show which
            cluster is the smaller one where a batch is too small for that.
    """

    target: Received
    signed: bool = True
    scope: Literal["batch", "run"] = "batch"

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score every batch separately, or the run. It draws nothing at random."""
        binary_only(view, "spectral attack", "clusters")
        if self.scope == "run":
            rows, x_ND = observations(view, self.target)
            return whole_run(view, rows, spectral_scores(x_ND, signed=self.signed))
        return unlabelled_per_step(
            view, [spectral_scores(matrix_BD, signed=self.signed) for matrix_BD in matrices(view, self.target)]
        )


def spectral_scores(matrix_BD: Tensor, *, signed: bool = True) -> Tensor:
    """Score a batch's rows from any layer's activations: higher is more likely positive, as float64 (B,).

    Equal rows get equal scores. If both clusters are equally large, the side farther from the batch's median is high.
    """
    centred_BD = centred(matrix_BD)
    score_B = centred_BD @ top_direction(centred_BD)
    return orient(score_B) if signed else score_B.abs()


def orient(score_B: Tensor) -> Tensor:
    """Flip scores if need be, so that the smaller of their two clusters is the high one."""
    cut = two_means_cut(score_B)
    if cut is None:
        return score_B
    above = int((score_B > cut).sum())
    smaller_is_low = above * 2 > len(score_B)
    if above * 2 == len(score_B):
        smaller_is_low = bool(score_B.mean() < score_B.median())
    return -score_B if smaller_is_low else score_B
