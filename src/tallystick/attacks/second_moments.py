"""Second moments of gradients over a training: where they vary least and most, and all directions made alike.

Shapes: B rows of a step's batch, S and M some of them, D cut width, H the two halves of the directions: low and high.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.matrix import centred

HALVES = ("low", "high")
FLOOR = 1e-5  # of the greatest variance: directions that vary less hold rounding
REFRESH, BASIS_REFRESH = (
    8,
    16,
)  # steps at least that one whitening and one basis serve: finding it takes longer than all else here
MOMENT_ROWS, MEAN_ROWS = 256, 128  # of a batch, spread over it, of which its moments and its mean are taken
ROWS_PER_DIRECTION = 8  # at least, of which a covariance is taken


@dataclass(frozen=True, kw_only=True)
class BatchGradients:
    """A batch's gradients, with the second moments that whatever reads them takes of it.

    Args:
        x_BD: float32, centred, divided by the largest: a squared gradient of a trained model must not vanish.
        largest: before, in absolute value. 0 where all are alike, not finite where one is not.
        moments_DD: sum of the second moments of some rows, spread over the batch.
        counted: how many rows these are.
    """

    x_BD: Tensor
    largest: float
    moments_DD: Tensor
    counted: int

    @classmethod
    def of(cls, gradient_BD: Tensor) -> "BatchGradients":
        """Centre a batch."""
        x_BD = centred(gradient_BD, dtype=torch.float32)
        largest = float(x_BD.abs().max()) if x_BD.numel() else 0.0
        if 0 < largest < torch.inf:
            x_BD /= largest
        width = x_BD.shape[1]
        some_MD = x_BD[_places(len(x_BD), most=max(MOMENT_ROWS, 2 * width))]
        return cls(x_BD=x_BD, largest=largest, moments_DD=some_MD.T @ some_MD, counted=len(some_MD))


def _places(rows: int, *, most: int) -> Tensor:
    """Return at most ``most`` of so many places, evenly spread."""
    return torch.arange(0, rows, max(1, -(-rows // most)))


@dataclass(kw_only=True)
class DirectionEnergies:
    """Minus the logarithm of each row's energy in the lower and in the upper half of the gradients' principal directions.

    The directions are those of a running sum of the centred gradients' second moments, which each new basis halves: so batches
    that are smaller than the cut is wide have a low half, too. A direction in which nothing varies is in neither.

    Args:
        moments_DD: the running sum, once a step was seen.
        basis_DD: the directions, side by side.
        halves_DH: 1 for each direction's half.
        steps: seen since the basis was found.
    """

    moments_DD: Tensor | None = None
    basis_DD: Tensor | None = None
    halves_DH: Tensor | None = None
    steps: int = 0

    def __call__(self, gradient_BD: Tensor) -> Tensor:
        """Compute the two numbers (B, H) of each row, less their batch's mean, float32, or NaN if a gradient is not finite."""
        return self.of(BatchGradients.of(gradient_BD), torch.arange(len(gradient_BD)))

    def of(self, batch: "BatchGradients", rows_S: Tensor) -> Tensor:
        """Compute them of some rows of a batch (S, H), less the mean of rows spread over it."""
        if not 0 < batch.largest < torch.inf:
            return torch.full((len(rows_S), len(HALVES)), 0.0 if batch.largest == 0 else torch.nan)
        self.moments_DD = batch.moments_DD.clone() if self.moments_DD is None else self.moments_DD.add_(batch.moments_DD)
        if self.basis_DD is None or self.halves_DH is None or self.steps >= max(BASIS_REFRESH, batch.x_BD.shape[1] // 16):
            # The principal directions of these moments (D, D), side by side, and the half of each (D, H): as many in either
            value_D, vector_DD = torch.linalg.eigh(self.moments_DD.double())
            varies_D = value_D > 1e-10 * value_D[-1]
            place_D = varies_D.cumsum(dim=0)
            low_D = varies_D & (place_D <= int(varies_D.sum()) // 2)
            self.basis_DD, self.halves_DH = vector_DD.float(), torch.stack([low_D, varies_D & ~low_D], dim=1).float()
            self.steps = 0
            self.moments_DD /= 2
        self.steps += 1
        spread_M = _places(len(batch.x_BD), most=MEAN_ROWS)
        turned_MD = batch.x_BD[torch.cat([spread_M, rows_S])] @ self.basis_DD
        told_MH = -(turned_MD.square_() @ self.halves_DH).clamp_(min=torch.finfo(torch.float32).tiny).log_()
        told_SH: Tensor = told_MH[len(spread_M) :] - told_MH[: len(spread_M)].mean(dim=0)
        return told_SH


@dataclass(kw_only=True)
class RecentWhitening:
    """Turns gradients so that all directions count alike, by the covariance of the steps before.

    That of the same steps would need a second pass. Directions that hardly varied hold rounding, and are not made larger than
    ``FLOOR`` allows. Each batch is brought to one scale, for gradients shrink as a model learns. Nothing is turned in the first
    epoch, in which they change the most. (By the whole epoch before, noise that a defence draws once per row and shapes like the
    gradients of each step told .76 where that of the last few steps tells .90.)

    Args:
        white_DD: what whitens, once an epoch has passed.
        moments_DD: the running sum of second moments, which each new whitening halves.
        largest: the gradient that this sum is in units of; it is this epoch's first batch's.
        steps, rows: seen since the last whitening.
    """

    white_DD: Tensor | None = None
    moments_DD: Tensor | None = None
    largest: float = 0.0
    steps: int = 0
    rows: int = 0

    def __call__(self, gradient_BD: Tensor) -> Tensor | None:
        """Whiten the gradients (B, D), of mean squared length D.

        Return None in the first epoch, and if all are alike or next to 0.

        NaN where one is not finite.
        """
        return self.of(BatchGradients.of(gradient_BD), torch.arange(len(gradient_BD)))

    def of(self, batch: "BatchGradients", rows_S: Tensor) -> Tensor | None:
        """Whiten some rows of a batch, (S, D)."""
        width = batch.x_BD.shape[1]
        if batch.largest == 0:
            return None
        if not batch.largest < torch.inf:
            return torch.full((len(rows_S), width), torch.nan)
        self.largest = self.largest or batch.largest
        if self.white_DD is not None and self.moments_DD is not None and self.steps >= max(REFRESH, width // 16):
            self._refresh()
        moments_DD = batch.moments_DD * (batch.largest / self.largest) ** 2
        self.moments_DD = moments_DD if self.moments_DD is None else self.moments_DD.add_(moments_DD)
        self.steps, self.rows = self.steps + 1, self.rows + batch.counted
        if self.white_DD is None:
            return None
        size = float((self.white_DD * (batch.moments_DD @ self.white_DD)).sum()) / batch.counted
        if not (size > 0 and moments_DD.any()):  # gradients so small that their squares are 0 beside those of the epoch's first
            return None
        whitened_SD: Tensor = (batch.x_BD[rows_S] @ self.white_DD).mul_((width / size) ** 0.5)
        return whitened_SD

    def _refresh(self) -> None:
        """Whiten by what was seen since, if these were enough rows."""
        assert self.moments_DD is not None
        if self.white_DD is not None and self.rows < ROWS_PER_DIRECTION * len(self.moments_DD):
            return
        self.white_DD = whitening(self.moments_DD)
        self.moments_DD /= 2
        self.steps = self.rows = 0

    def epoch_ended(self) -> None:
        """Whiten by this epoch's last steps from now on. What is kept is what whitens alone, for a run that resumes here."""
        if self.moments_DD is not None:
            self._refresh()
        self.moments_DD, self.largest, self.steps, self.rows = None, 0.0, 0, 0


def whitening(moments_DD: Tensor) -> Tensor:
    """Compute the symmetric square root of the inverse of these second moments, but for directions that hardly vary."""
    value_D, vector_DD = torch.linalg.eigh(moments_DD.double())
    if not float(value_D[-1]) > 0:
        return torch.eye(len(value_D), dtype=moments_DD.dtype)
    scale_D = value_D.clamp(min=FLOOR * float(value_D[-1])).rsqrt()
    # Turned back, for every epoch has principal directions of its own.
    white_DD: Tensor = (vector_DD * scale_D) @ vector_DD.T
    return white_DD.to(moments_DD.dtype)
