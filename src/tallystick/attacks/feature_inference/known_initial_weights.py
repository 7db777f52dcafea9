"""Solve the first batch with the bottom model that embedded it, if its starting weights are public.

Shapes: N rows, B rows of the first batch, D cut width, T unknowns of a row: its numbers, then the embeddings of its categories.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.kernel import KernelRidge
from tallystick.attacks.feature_inference.view import ColumnValues, FeatureAttack, FeatureView, FirstBatch, Reconstruction
from tallystick.errors import DataError

STEPS, STRIDE, SETTLED = 30, 1e-4, 1e-9
CHUNK = 64  # rows solved together
LATER = KernelRidge(reads="looks", bandwidths=(0.3, 1.0, 3.0))
PRIOR = 1e-10  # weight of a prior at the mean; it decides only what a narrow cut leaves undetermined


@dataclass(frozen=True, kw_only=True)
class KnownStartAttack:
    """Compute the columns of the first batch's rows from their embeddings, then learn the other rows from these.

    It knows no row. Untrained weights embed the first batch. If these weights follow from facts that all parties know, the label
    party has the function and its value (``FeatureView.first``). A unit of the last layer above 0 shows the input of the ReLU; a
    unit at 0 only shows that the input was not above 0. Damped Gauss-Newton steps find the row, exactly if the cut has more units
    than there are columns. The category is the one with the nearest starting embedding. The rows of the first batch are then
    known rows, and ``rest`` rebuilds the others from them. If the weights start from a secret, the attack solves for the wrong
    model and finds nothing.

    The other rows are rebuilt from embeddings of later epochs, because in the first epoch each batch had other weights.

    Args:
        rest: attack that rebuilds the other rows.
    """

    rest: FeatureAttack = LATER

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. Raises DataError if the view has no first batch."""
        if view.first is None:
            raise DataError("known start: the view has no initial bottom model (FeatureView.first)")
        solved_columns, rows_B, width = (
            read_off(view.first, solved(view.first), view.columns_K),
            view.first.rows_B,
            view.last_ND.shape[1],
        )
        looks_NE = view.looks_NE[:, width:] if view.looks_NE.shape[1] > width else view.looks_NE
        reconstruction = self.rest(
            replace(view, known_K=rows_B, columns_K=solved_columns, looks_NE=looks_NE, looks_at_NL=None), generator=generator
        )
        reconstruction.numeric_NF[rows_B] = solved_columns.numeric_NF.to(reconstruction.numeric_NF)
        reconstruction.categorical_NG[rows_B] = solved_columns.categorical_NG
        return reconstruction


def read_off(first: FirstBatch, value_BT: Tensor, names: ColumnValues) -> ColumnValues:
    """Convert unknowns to columns, with these ``names``."""
    widths = [first.numeric, *(table_CE.shape[1] for table_CE in first.tables)]
    numeric_BF, *embedded = torch.split(value_BT, widths, dim=1)
    codes = [torch.cdist(each, table_CE.double()).argmin(dim=1) for each, table_CE in zip(embedded, first.tables, strict=True)]
    empty_B0 = torch.empty(len(value_BT), 0, dtype=torch.int64)
    return replace(names, numeric_NF=numeric_BF.float(), categorical_NG=torch.stack(codes, dim=1) if codes else empty_B0)


def solved(first: FirstBatch) -> Tensor:
    """Find the unknowns (B, T), float64, whose embeddings are nearest to the received ones (Levenberg-Marquardt)."""
    scale_T = torch.cat([torch.ones(first.numeric), *(table_CE.std(dim=0, correction=0) for table_CE in first.tables)]).double()
    parts = [_solved(first, cut_BD.double(), scale_T) for cut_BD in torch.split(first.cut_BD, CHUNK)]
    return torch.cat(parts) * scale_T


def _solved(first: FirstBatch, cut_BD: Tensor, scale_T: Tensor) -> Tensor:
    """Find the unknowns in units of their deviation, beginning at 0."""
    active_BD, width = cut_BD > 0, len(scale_T)

    def before(unit_NT: Tensor) -> Tensor:
        return first.embed(unit_NT * scale_T)

    def error_of(before_BD: Tensor) -> Tensor:
        return torch.where(active_BD, before_BD - cut_BD, before_BD.clamp(min=0))

    def slope_of(unit_BT: Tensor, before_BD: Tensor) -> Tensor:
        """Compute the derivative of the error (B, D, T) by differences, exact up to rounding where layers are linear."""
        moved_BTT = unit_BT[:, None, :] + STRIDE * eye_TT
        slope_BTD = (before(moved_BTT.flatten(0, 1)).view(len(cut_BD), width, -1) - before_BD[:, None, :]) / STRIDE
        return torch.where((active_BD | (before_BD > 0))[:, :, None], slope_BTD.mT, 0)

    eye_TT = torch.eye(width, dtype=torch.float64)
    unit_BT = torch.zeros(len(cut_BD), width, dtype=torch.float64)
    damping_B = torch.full((len(cut_BD),), 1e-3, dtype=torch.float64)
    before_BD = before(unit_BT)
    for _ in range(STEPS):
        error_BD, slope_BDT = error_of(before_BD), slope_of(unit_BT, before_BD)
        curve_BTT = slope_BDT.mT @ slope_BDT
        size_B = curve_BTT.diagonal(dim1=1, dim2=2).mean(dim=1)
        down_BT = -(slope_BDT.mT @ error_BD[:, :, None])[:, :, 0] - PRIOR * size_B[:, None] * unit_BT
        ridge_B = size_B * (damping_B + PRIOR) + torch.finfo(torch.float64).tiny
        step_BT = torch.linalg.solve(curve_BTT + ridge_B[:, None, None] * eye_TT, down_BT)
        tried_BD = before(unit_BT + step_BT)
        better_B = error_of(tried_BD).square().sum(dim=1) < error_BD.square().sum(dim=1)
        unit_BT = torch.where(better_B[:, None], unit_BT + step_BT, unit_BT)
        before_BD = torch.where(better_B[:, None], tried_BD, before_BD)
        damping_B = torch.where(better_B, damping_B / 10, damping_B * 10).clamp(1e-12, 1e3)
        if float(step_BT.abs().max()) < SETTLED:
            break
    return unit_BT
