"""Compute second moments of gradients over a training: the directions of least and of most variance, and a whitening matrix.

Shapes: G steps, B rows of a batch, M sample rows of a batch, S requested rows of all steps, D cut width, H the two halves of the
directions: low and high.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

HALVES = ("low", "high")
FLOOR = 1e-5  # share of the greatest variance; a direction that varies less holds only rounding
REFRESH = 16  # the principal directions serve at least this many steps, because finding them is the slowest part
STANDING_ROWS = 64  # number of sample rows, spread over the batch
ROWS_PER_DIRECTION = 8  # a covariance needs at least this many rows per direction
TINY = torch.finfo(torch.float32).tiny
SMALL = 1e-15  # a deviation between this and its inverse has a square within float32's range


def standing_rows(rows: int, width: int) -> slice:
    """Return which rows form the sample of a batch of this many gradients of this width."""
    return slice(None, None, max(1, -(-rows // max(STANDING_ROWS, width // 2))))


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """Sample rows and requested rows of several steps, minus their step's mean and divided by the deviation of its sample.

    If all sample rows of a step are equal, its rows are not divided.

    Args:
        standing_GMD: float32, the sample rows of each step.
        asked_SD: float32, the requested rows.
        step_S: the step of each requested row.
        varies_G: whether a step's sample rows differ.
    """

    standing_GMD: Tensor
    asked_SD: Tensor
    step_S: Tensor
    varies_G: Tensor

    @classmethod
    def of(cls, matrix_GBD: Tensor) -> "StepRows":
        """Make sample and requested rows of all rows of each step."""
        steps, rows, width = matrix_GBD.shape
        step_S = torch.arange(steps).repeat_interleave(rows)
        return cls.scaled(matrix_GBD, matrix_GBD.reshape(-1, width), matrix_GBD.mean(dim=1), step_S)

    @classmethod
    def scaled(cls, standing_GMD: Tensor, asked_SD: Tensor, mean_GD: Tensor, step_S: Tensor) -> "StepRows":
        """Scale sample rows and requested rows, given unchanged, by the mean of all rows of their step."""
        standing_GMD = standing_GMD - mean_GD[:, None]
        asked_SD = asked_SD - mean_GD.index_select(0, step_S)
        numbers = standing_GMD[0].numel()
        deviation_G = torch.linalg.vector_norm(standing_GMD, dim=(1, 2)) / numbers**0.5
        if not bool(((deviation_G > SMALL) & (deviation_G < 1 / SMALL)).all()):
            largest_G = standing_GMD.abs().amax(dim=(1, 2))  # squares of a trained model's gradients underflow
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
    """A running sum of the centred gradients' second moments. It gives energies and whitened gradients of later rows.

    Each batch has equal weight, because gradients shrink as a model learns. When the principal directions are found again from
    enough rows, the sum is halved. Each epoch begins a new sum, so a run that resumes needs only the whitening matrix.

    Args:
        white_DD: matrix that whitens gradients; None in the first epoch.
        moments_DD: the running sum; None before the first step of an epoch.
        basis_DD: the principal directions as columns, those with the least variance first; those without variance are left out.
        low: number of directions in the low half.
        steps: number of steps since the directions were found.
        rows: number of rows since the sum was halved.
    """

    white_DD: Tensor | None = None
    moments_DD: Tensor | None = None
    basis_DD: Tensor | None = None
    low: int = 0
    steps: int = 0
    rows: int = 0

    def __call__(self, batches: StepRows) -> tuple[Tensor, Tensor | None]:
        """Add steps. Return the energies (S, H) and the whitened gradients (S, D) of the requested rows.

        An energy is minus the logarithm of a gradient's squared length within the low or the high half, minus the mean over the
        step's sample rows. It is 0 if all gradients are equal. Whitened gradients have mean squared length D; in the first epoch
        they are None. Both are NaN if a gradient is not finite.
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
            # Earlier steps define the whitening, because the steps themselves would need a second pass. Directions with hardly
            # any variance hold rounding, so FLOOR limits how much they are stretched. The first epoch is not whitened, because
            # gradients change most in it. (For a defence that draws noise once per row and shapes it like each step's gradients,
            # whitening by the whole previous epoch gave an AUC of .76, by its last few steps .90.)
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
        """Find the principal directions again if they have served for many steps.

        ``__call__`` does this too; a caller may do it earlier, at a moment when time is free.
        """
        if self.moments_DD is not None and self.steps >= max(REFRESH, self.moments_DD.shape[0] // 16):
            self._refresh(self.moments_DD)

    def _refresh(self, moments_DD: Tensor, *, epoch_ended: bool = False) -> None:
        """Find the directions again. Update the whitening if there were enough rows or the first epoch ended."""
        value_D, vector_DD = torch.linalg.eigh(moments_DD.double())
        self._turn(value_D, vector_DD)
        self.steps, enough = 0, self.rows >= ROWS_PER_DIRECTION * value_D.shape[0]
        if (enough and self.white_DD is not None) or (epoch_ended and self.white_DD is None):
            self.white_DD = _symmetric(value_D, vector_DD, dtype=moments_DD.dtype)
        if enough:
            moments_DD /= 2
            self.rows = 0

    def _turn(self, value_D: Tensor, vector_DD: Tensor) -> None:
        """Use these principal directions. Those that vary are divided into two equal halves."""
        varies_D = value_D > 1e-10 * value_D[-1]
        self.low, self.basis_DD = int(varies_D.sum()) // 2, vector_DD[:, varies_D].float()

    def epoch_ended(self) -> None:
        """Whiten by this epoch's last steps from now on."""
        self.find_directions()
        if self.moments_DD is not None:
            self._refresh(self.moments_DD, epoch_ended=True)
        self.moments_DD, self.steps, self.rows = None, 0, 0


def whitening(moments_DD: Tensor) -> Tensor:
    """Compute the symmetric inverse square root of these second moments. Directions that hardly vary are limited by FLOOR."""
    return _symmetric(*torch.linalg.eigh(moments_DD.double()), dtype=moments_DD.dtype)


def _symmetric(value_D: Tensor, vector_DD: Tensor, *, dtype: torch.dtype) -> Tensor:
    if not float(value_D[-1]) > 0:
        return torch.eye(len(value_D), dtype=dtype)
    scale_D = value_D.clamp(min=FLOOR * float(value_D[-1])).rsqrt()
    # Rotate back to the original axes, because every epoch has other principal directions.
    white_DD: Tensor = (vector_DD * scale_D).to(dtype) @ vector_DD.to(dtype).T
    return white_DD
