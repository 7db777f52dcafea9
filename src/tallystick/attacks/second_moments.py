"""Second moments of gradients over a training: where they vary least and most, and all directions made alike.

Shapes: G steps, M rows of each batch that stand for it, N of all these of which moments are taken, S rows that are asked for, D
cut width, H the two halves of the directions: low and high.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HALVES = ("low", "high")
FLOOR = 1e-5  # of the greatest variance: directions that vary less hold rounding
REFRESH = 16  # steps at least that the principal directions serve: finding them takes longer than all else here
STANDING_ROWS = 128  # of a batch, spread over it, that stand for it
ROWS_PER_DIRECTION = 8  # at least, of which a covariance is taken
TINY = torch.finfo(torch.float32).tiny


def standing_rows(rows: int, width: int) -> Tensor:
    """Return which rows stand for a batch of so many gradients of that width."""
    return torch.arange(0, rows, max(1, -(-rows // max(STANDING_ROWS, width // 2))))


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """Rows of several steps: as many of each that stand for its batch, and those that are asked for.

    Args:
        standing_GMD: float32, less the mean of each step.
        asked_SD: float32, likewise.
        step_S: which of the steps an asked row is of.
        deviation_G: root mean square of what stands for a step, 0 where all are alike.
    """

    standing_GMD: Tensor
    asked_SD: Tensor
    step_S: Tensor
    deviation_G: Tensor

    @classmethod
    def of(
        cls, standing_of_step: Sequence[Tensor], asked_of_step: Sequence[Tensor], *, mean_GD: Tensor | None = None
    ) -> "StepRows":
        """Put the rows of steps together, each less the mean of its whole step, or else of what stands for it."""
        counts = torch.tensor([asked.shape[0] for asked in asked_of_step])
        step_S = torch.repeat_interleave(torch.arange(len(counts)), counts)
        standing_GMD = torch.stack(list(standing_of_step)).float()
        mean_GD = standing_GMD.mean(dim=1) if mean_GD is None else mean_GD.float()
        standing_GMD = standing_GMD - mean_GD[:, None]
        largest_G = standing_GMD.abs().amax(dim=(1, 2))  # by which a squared gradient of a trained model does not vanish
        unit_GMD = standing_GMD / largest_G.clamp(min=TINY)[:, None, None]
        deviation_G = torch.linalg.vector_norm(unit_GMD, dim=(1, 2)).mul_(largest_G) / standing_GMD[0].numel() ** 0.5
        asked_SD = torch.cat(list(asked_of_step)).float() - mean_GD.index_select(0, step_S)
        return cls(standing_GMD=standing_GMD, asked_SD=asked_SD, step_S=step_S, deviation_G=deviation_G)

    def scaled(self) -> Tensor:
        """Return the rows that are asked for, each step's by its deviation. Equal rows become 0."""
        return self.asked_SD / self.deviation_G.clamp(min=TINY)[self.step_S, None]


@dataclass(kw_only=True)
class SecondMoments:
    """A running sum of the centred gradients' second moments, and what it tells of the rows of a few steps.

    Each batch counts alike, for gradients shrink as a model learns. Where the principal directions are found anew, by enough
    rows, the sum is halved. An epoch begins with a new sum: what is kept for a run that resumes is what whitens alone.

    Args:
        white_DD: what whitens, once an epoch has passed.
        moments_DD: the running sum, once a step of the epoch was seen.
        basis_DD: the principal directions, side by side, those that vary least first; without those in which nothing varies.
        low: how many of these are the low half.
        steps: seen since the directions were found.
        rows: seen since the sum was halved.
        most: rows of a batch of which moments are taken; half as many as the cut is wide, if that is more.
    """

    white_DD: Tensor | None = None
    moments_DD: Tensor | None = None
    basis_DD: Tensor | None = None
    low: int = 0
    steps: int = 0
    rows: int = 0
    most: int = 64

    def __call__(self, batches: StepRows) -> tuple[Tensor, Tensor | None]:
        """Take steps in. Return the energies (S, H) and the whitened gradients (S, D) of the rows that are asked for.

        Energies are minus the logarithms of the squared lengths in the low and in the high half, less their mean over what stands
        for the step; 0 where all gradients are alike. Whitened gradients, of mean squared length D, are None in the first epoch.
        Both are NaN where a gradient is not finite.
        """
        width, step_S = batches.standing_GMD.shape[2], batches.step_S
        varies_G = batches.deviation_G > 0
        scale_G11 = torch.where(varies_G, batches.deviation_G, 1)[:, None, None]
        standing_GMD = batches.standing_GMD / scale_G11
        asked_SD = batches.asked_SD / scale_G11[step_S, 0]
        some_GND = standing_GMD[:, :: -(-standing_GMD.shape[1] // max(self.most, width // 2))]
        some_ND = some_GND[varies_G & batches.deviation_G.isfinite()].flatten(0, 1)
        moments_DD = some_ND.T @ some_ND
        self.moments_DD = moments_DD if self.moments_DD is None else self.moments_DD.add_(moments_DD)
        self.steps, self.rows = self.steps + standing_GMD.shape[0], self.rows + some_ND.shape[0]
        if self.basis_DD is None or not self.basis_DD.shape[1]:
            self._turn(*torch.linalg.eigh(self.moments_DD.double()))
        energy_SH = self._energies(standing_GMD, asked_SD, step_S)
        white_SD = None if self.white_DD is None else self._whitened(self.white_DD, some_GND, asked_SD, step_S)
        if self.steps >= max(REFRESH, width // 16):
            self._refresh(self.moments_DD)
        return energy_SH, white_SD

    def _energies(self, standing_GMD: Tensor, asked_SD: Tensor, step_S: Tensor) -> Tensor:
        basis_DD = self.basis_DD
        assert basis_DD is not None

        def told(x: Tensor) -> Tensor:
            turned = (x @ basis_DD).square_()
            energy = torch.stack([turned[..., : self.low].sum(dim=-1), turned[..., self.low :].sum(dim=-1)], dim=-1)
            return energy.clamp_(min=TINY).log_().neg_()

        mean_GH = told(standing_GMD).mean(dim=1)
        mean_GH[~standing_GMD[:, 0, 0].isfinite()] = torch.nan
        return told(asked_SD) - mean_GH.index_select(0, step_S)

    @staticmethod
    def _whitened(white_DD: Tensor, some_GND: Tensor, asked_SD: Tensor, step_S: Tensor) -> Tensor:
        """Turn rows so that all directions count alike, by the covariance of the steps before.

        That of the same steps would need a second pass. Directions that hardly varied hold rounding, and are not made larger than
        ``FLOOR`` allows. Nothing is turned in the first epoch, in which gradients change the most. (By the whole epoch before,
        noise that a defence draws once per row and shapes like the gradients of each step told .76 where that of the last few
        steps tells .90.)
        """
        size_G = (some_GND @ white_DD).square_().sum(dim=2).mean(dim=1)
        factor_G = torch.where(size_G > 0, (white_DD.shape[0] / size_G).sqrt(), 0)
        return (asked_SD @ white_DD).mul_(factor_G[step_S, None])

    def _refresh(self, moments_DD: Tensor, *, epoch_ended: bool = False) -> None:
        """Find the directions anew, and what whitens if these were enough rows."""
        value_D, vector_DD = torch.linalg.eigh(moments_DD.double())
        self._turn(value_D, vector_DD)
        self.steps, enough = 0, self.rows >= ROWS_PER_DIRECTION * value_D.shape[0]
        if (enough and self.white_DD is not None) or (epoch_ended and self.white_DD is None):
            self.white_DD = _symmetric(value_D, vector_DD).to(moments_DD.dtype)
        if enough:
            moments_DD /= 2
            self.rows = 0

    def _turn(self, value_D: Tensor, vector_DD: Tensor) -> None:
        """Take these principal directions, as many of those that vary in either half."""
        varies_D = value_D > 1e-10 * value_D[-1]
        self.low, self.basis_DD = int(varies_D.sum()) // 2, vector_DD[:, varies_D].float()

    def epoch_ended(self) -> None:
        """Whiten by this epoch's last steps from now on."""
        if self.moments_DD is not None:
            self._refresh(self.moments_DD, epoch_ended=True)
        self.moments_DD, self.steps, self.rows = None, 0, 0


def whitening(moments_DD: Tensor) -> Tensor:
    """Compute the symmetric square root of the inverse of these second moments, but for directions that hardly vary."""
    return _symmetric(*torch.linalg.eigh(moments_DD.double())).to(moments_DD.dtype)


def _symmetric(value_D: Tensor, vector_DD: Tensor) -> Tensor:
    if not float(value_D[-1]) > 0:
        return torch.eye(len(value_D), dtype=vector_DD.dtype)
    scale_D = value_D.clamp(min=FLOOR * float(value_D[-1])).rsqrt()
    # Turned back, for every epoch has principal directions of its own.
    white_DD: Tensor = (vector_DD * scale_D) @ vector_DD.T
    return white_DD
