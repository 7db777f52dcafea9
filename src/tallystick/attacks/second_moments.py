"""Second moments of gradients over a training: where they vary least and most, and all directions made alike.

Shapes: G steps, B rows of a batch, M of these that stand for it, S rows of all steps that are asked for, D
cut width, H the two halves of the directions: low and high.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

HALVES = ("low", "high")
FLOOR = 1e-5  # of the greatest variance: directions that vary less hold rounding
REFRESH = 16  # steps at least that the principal directions serve: finding them takes longer than all else here
STANDING_ROWS = 64  # of a batch, spread over it, that represent it
ROWS_PER_DIRECTION = 8  # at least, of which a covariance is taken
TINY = torch.finfo(torch.float32).tiny
SMALL = 1e-15  # deviations between this and its inverse have squares that float32 holds


def standing_rows(rows: int, width: int) -> slice:
    """Return which rows represent a batch of this many gradients of this width."""
    return slice(None, None, max(1, -(-rows // max(STANDING_ROWS, width // 2))))


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """Rows of several steps, each less its step's mean and divided by one deviation: those that stand for a batch, and those that
    are asked for. Where what stands for a step is all alike, nothing is divided.

    Args:
        standing_GMD: float32.
        asked_SD: float32, likewise.
        step_S: which of the steps an asked row is of.
        varies_G: steps whose representing rows are not all equal.
    """

    standing_GMD: Tensor
    asked_SD: Tensor
    step_S: Tensor
    varies_G: Tensor

    @classmethod
    def of(cls, matrix_GBD: Tensor) -> "StepRows":
        """Take all rows of each step."""
        steps, rows, width = matrix_GBD.shape
        step_S = torch.arange(steps).repeat_interleave(rows)
        return cls.scaled(matrix_GBD, matrix_GBD.reshape(-1, width), matrix_GBD.mean(dim=1), step_S)

    @classmethod
    def scaled(cls, standing_GMD: Tensor, asked_SD: Tensor, mean_GD: Tensor, step_S: Tensor) -> "StepRows":
        """Take the rows that represent each step, and those that are asked for, unchanged, and the mean of all rows."""
        standing_GMD = standing_GMD - mean_GD[:, None]
        asked_SD = asked_SD - mean_GD.index_select(0, step_S)
        numbers = standing_GMD[0].numel()
        deviation_G = torch.linalg.vector_norm(standing_GMD, dim=(1, 2)) / numbers**0.5
        if not bool(((deviation_G > SMALL) & (deviation_G < 1 / SMALL)).all()):
            largest_G = standing_GMD.abs().amax(dim=(1, 2))  # by which a squared gradient of a trained model does not vanish
            unit_GMD = standing_GMD / largest_G.clamp(min=TINY)[:, None, None]
            deviation_G = torch.linalg.vector_norm(unit_GMD, dim=(1, 2)).mul_(largest_G) / numbers**0.5
        varies_G = deviation_G != 0
        scale_G = torch.where(varies_G, deviation_G, 1)
        return cls(
            standing_GMD=standing_GMD.div_(scale_G[:, None, None]),
            asked_SD=asked_SD.div_(scale_G.index_select(0, step_S)[:, None]),
            step_S=step_S,
            varies_G=varies_G,
        )


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
    """

    white_DD: Tensor | None = None
    moments_DD: Tensor | None = None
    basis_DD: Tensor | None = None
    low: int = 0
    steps: int = 0
    rows: int = 0

    def __call__(self, batches: StepRows) -> tuple[Tensor, Tensor | None]:
        """Take steps in. Return the energies (S, H) and the whitened gradients (S, D) of the rows that are asked for.

        Energies are minus the logarithms of the squared lengths in the low and in the high half, less their mean over what stands
        for the step; 0 if all gradients are equal. Whitened gradients, of mean squared length D, are None in the first epoch.
        Both are NaN if a gradient is not finite.
        """
        standing_GMD, asked_SD, step_S = batches.standing_GMD, batches.asked_SD, batches.step_S
        steps, rows, width = standing_GMD.shape
        self.find_directions()
        finite_G = standing_GMD[:, 0, 0].isfinite()
        counts_G = batches.varies_G & finite_G
        moments_GDD = torch.bmm(standing_GMD.transpose(1, 2), standing_GMD)
        moments_DD = moments_GDD.sum(dim=0) if bool(counts_G.all()) else moments_GDD[counts_G].sum(dim=0)
        self.moments_DD = moments_DD if self.moments_DD is None else self.moments_DD.add_(moments_DD)
        self.steps, self.rows = self.steps + steps, self.rows + rows * int(counts_G.sum())
        if self.basis_DD is None or not self.basis_DD.shape[1]:
            self._turn(*torch.linalg.eigh(self.moments_DD.double()))
        mean_GH = self._energies(standing_GMD).mean(dim=1)
        mean_GH[~finite_G] = torch.nan
        energy_SH = self._energies(asked_SD) - mean_GH.index_select(0, step_S)
        white_SD = None
        if self.white_DD is not None:
            # By the steps before: the same ones would need a second pass. Directions that hardly varied hold rounding, and are
            # not made larger than FLOOR allows. Nothing is turned in the first epoch, in which gradients change the most. (By
            # the whole epoch before, noise that a defence draws once per row and shapes like the gradients of each step told
            # .76 where that of the last few steps tells .90.)
            square_G = moments_GDD.flatten(1) @ (self.white_DD @ self.white_DD).flatten()
            factor_G = torch.where(square_G > 0, (width * rows / square_G).sqrt(), 0)
            white_SD = (asked_SD @ self.white_DD).mul_(factor_G.index_select(0, step_S)[:, None])
        return energy_SH, white_SD

    def _energies(self, x: Tensor) -> Tensor:
        basis_DD = self.basis_DD
        assert basis_DD is not None
        turned = x @ basis_DD
        halves = [torch.linalg.vector_norm(half, dim=-1) for half in (turned[..., : self.low], turned[..., self.low :])]
        return torch.stack(halves, dim=-1).square_().clamp_(min=TINY).log_().neg_()

    def find_directions(self) -> None:
        """Find the principal directions again if they served for long. It is done before the next steps in any case."""
        if self.moments_DD is not None and self.steps >= max(REFRESH, self.moments_DD.shape[0] // 16):
            self._refresh(self.moments_DD)

    def _refresh(self, moments_DD: Tensor, *, epoch_ended: bool = False) -> None:
        """Find the directions again, and the whitening if there were enough rows."""
        value_D, vector_DD = torch.linalg.eigh(moments_DD.double())
        self._turn(value_D, vector_DD)
        self.steps, enough = 0, self.rows >= ROWS_PER_DIRECTION * value_D.shape[0]
        if (enough and self.white_DD is not None) or (epoch_ended and self.white_DD is None):
            self.white_DD = _symmetric(value_D, vector_DD, dtype=moments_DD.dtype)
        if enough:
            moments_DD /= 2
            self.rows = 0

    def _turn(self, value_D: Tensor, vector_DD: Tensor) -> None:
        """Take these principal directions, as many of those that vary in either half."""
        varies_D = value_D > 1e-10 * value_D[-1]
        self.low, self.basis_DD = int(varies_D.sum()) // 2, vector_DD[:, varies_D].float()

    def epoch_ended(self) -> None:
        """Whiten by this epoch's last steps from now on."""
        self.find_directions()
        if self.moments_DD is not None:
            self._refresh(self.moments_DD, epoch_ended=True)
        self.moments_DD, self.steps, self.rows = None, 0, 0


def whitening(moments_DD: Tensor) -> Tensor:
    """Compute the symmetric square root of the inverse of these second moments, but for directions that hardly vary."""
    return _symmetric(*torch.linalg.eigh(moments_DD.double()), dtype=moments_DD.dtype)


def _symmetric(value_D: Tensor, vector_DD: Tensor, *, dtype: torch.dtype) -> Tensor:
    if not float(value_D[-1]) > 0:
        return torch.eye(len(value_D), dtype=dtype)
    scale_D = value_D.clamp(min=FLOOR * float(value_D[-1])).rsqrt()
    # Turned back, for every epoch has principal directions of its own.
    white_DD: Tensor = (vector_DD * scale_D).to(dtype) @ vector_DD.to(dtype).T
    return white_DD
