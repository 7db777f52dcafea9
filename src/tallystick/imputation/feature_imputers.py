"""Impute absent features with a random cut embedding, or with another row's features. Shapes: B batch, D cut width."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tallystick.errors import ConfigError, DataError
from tallystick.imputation.imputer import ANY_CALIBRATION, FeatureImputer, When
from tallystick.lazy_torch import Generator, Tensor, torch

if TYPE_CHECKING:
    from tallystick.imputation.moments import MovingMoments


@dataclass(frozen=True, kw_only=True)
class RandomFeatures(FeatureImputer):
    """Draws absent cut embeddings coordinate by coordinate from the moving mean and deviation of real ones.

    FLORIST, section 3.2, fea-random. It is only for comparison. No formal guarantee. Not protected: real coordinates are
    correlated and, after a ReLU, never negative. Drawn ones are neither, and outlier detection separates them.
    """

    name: ClassVar[str] = "random"
    gives: ClassVar[str] = "a cut embedding from the moving mean and deviation of real ones"
    reader: ClassVar[str] = "one pass over the embeddings names all of its rows"

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: "MovingMoments", generator: Generator) -> Tensor:
        """Replace the embeddings of absent rows. ``moments`` must have seen this batch's real rows."""
        noise_BD = torch.randn(cut_BD.shape, generator=generator, dtype=cut_BD.dtype, device=generator.device).to(cut_BD.device)
        return torch.where(present_B[:, None], cut_BD, moments.mean_D + moments.variance_D.sqrt() * noise_BD)


@dataclass(frozen=True, kw_only=True)
class GaussianFeatures(FeatureImputer):
    """Draws absent cut embeddings from N(0, (scale/d)·max‖f‖²·I), the maximum over the batch's real rows.

    FLORIST, section 3.2, fea-Gaussian. It is only for comparison. No formal guarantee. Not protected: centre, spread and sign (an
    embedding after a ReLU is never negative) all differ from those of real embeddings, so single coordinates separate them. The
    paper's spectral attack separates them only for some scales (docs/results/unions.md).

    Args:
        scale: the paper's s, above 0.
    """

    name: ClassVar[str] = "gaussian"
    gives: ClassVar[str] = "a cut embedding from N(0, (s/d) max‖f‖²)"
    reader: ClassVar[str] = "one pass over the embeddings names all of its rows"

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"synthetic features gaussian: scale={self.scale}; expected above 0")

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: "MovingMoments", generator: Generator) -> Tensor:  # noqa: ARG002
        """Replace the embeddings of absent rows. If the batch has no real row, they become 0."""
        norm_B = torch.where(present_B, cut_BD.detach().norm(dim=1), 0.0)
        deviation = norm_B.max() * (self.scale / cut_BD.shape[1]) ** 0.5
        noise_BD = deviation * torch.randn(cut_BD.shape, generator=generator, dtype=cut_BD.dtype, device=generator.device)
        return torch.where(present_B[:, None], cut_BD, noise_BD.to(cut_BD.device))


@dataclass(frozen=True, kw_only=True)
class SamplingFeatures(FeatureImputer):
    """Gives an absent row the features of a whole real row of the side, a donor chosen at random.

    FLORIST, section 2.4 (theorem 2: of all draws that ignore the label, the marginal is nearest to the truth), fea-sampling. No
    formal guarantee. Not protected: an imputed row has the same embedding as its donor, in one batch to the bit and elsewhere
    nearly so. Donors are drawn again each epoch, so an imputed row's embedding jumps and a real row's drifts. An imputed row's
    embedding and label are independent, and a real row's are not.

    Args:
        distinct: whether to choose donors that are not in the batch themselves and serve only once in it, if there are enough
            rows.
    """

    name: ClassVar[str] = "sampling"
    gives: ClassVar[str] = "the features of a real row of its own"
    reader: ClassVar[str] = "one pass over the embeddings names .366 of its rows, and all rows drawn anew are told with AUC .998"
    calibrated: ClassVar[tuple[When, ...]] = ANY_CALIBRATION

    distinct: bool = True

    def inputs(self, own_B: Tensor, *, own_rows: int, uniform_B: Tensor) -> Tensor:
        """Replace -1 by a donor.

        Args:
            own_B: the own row of each batch row, -1 if it is absent.
            own_rows: the number of rows that the side has.
            uniform_B: a number in [0, 1) per batch row that chooses the donor.

        Raises:
            DataError: the side has no rows.
        """
        if own_rows < 1:
            raise DataError("synthetic features sampling: this side has no rows to sample from; it needs at least one")
        absent_B = own_B < 0
        donor_B = torch.where(absent_B, (uniform_B.double() * own_rows).long().clamp(max=own_rows - 1), own_B)
        if self.distinct and own_B.shape[0] <= own_rows:
            # Move each donor that is taken or repeated to the next free row (linear probing); the first of equal ones stays
            donor_A = donor_B[absent_B]
            used = set(own_B[~absent_B].tolist())
            donors = []
            for donor in donor_A.tolist():
                while donor in used:
                    donor = (donor + 1) % own_rows
                used.add(donor)
                donors.append(donor)
            donor_B[absent_B] = donor_A.new_tensor(donors)
        return donor_B
