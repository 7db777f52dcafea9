"""A whole real row for absent features. Shapes: B batch, A absent rows."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tallystick.errors import DataError
from tallystick.imputation.imputer import ANY_CALIBRATION, FeatureImputer, When


@dataclass(frozen=True, kw_only=True)
class SamplingFeatures(FeatureImputer):
    """Gives an absent row the features of a whole real row of the side, a donor chosen at random.

    FLORIST, section 2.4 (theorem 2: of all draws that ignore the label, the marginal is nearest to the truth),
    fea-sampling. No formal guarantee. Not protected: an imputed row has the same embedding as its donor, in one batch to
    the bit and elsewhere nearly so; drawn anew each epoch, an imputed row's embedding jumps where a real row's drifts;
    and the pair of embedding and label is independent, where a real pair is not.

    Args:
        distinct: choose donors that neither occur in the batch themselves nor serve twice in it, as far as there are enough.
    """

    name: ClassVar[str] = "sampling"
    gives: ClassVar[str] = "the features of a real row of its own"
    reader: ClassVar[str] = "one pass over the embeddings names .366 of its rows, and all rows drawn anew are told with AUC .998"
    calibrated: ClassVar[tuple[When, ...]] = ANY_CALIBRATION

    distinct: bool = True

    def inputs(self, own_B: Tensor, *, own_rows: int, uniform_B: Tensor) -> Tensor:
        """Replace -1 by a donor.

        Args:
            own_B: own row of each batch row, -1 where absent.
            own_rows: rows that the side has.
            uniform_B: a number in [0, 1) per batch row that chooses the donor.

        Raises:
            DataError: the side has no row at all.
        """
        if own_rows < 1:
            raise DataError("synthetic features sampling: this side has no rows to sample from; it needs at least one")
        absent_B = own_B < 0
        donor_B = torch.where(absent_B, (uniform_B.double() * own_rows).long().clamp(max=own_rows - 1), own_B)
        if self.distinct and own_B.shape[0] <= own_rows:
            # Move each donor that is taken or repeated to the next free row (linear probing), the first of equals staying
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
