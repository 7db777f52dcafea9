"""Prepare the inputs and targets of reconstruction attacks, as matrices.

The course is a row's embeddings over a training, adjusted as if the same weights had embedded all rows.

Shapes: N rows, K known rows, D inputs or cut width, T targets, S fitted targets, C codes of a column, J fitted codes, L looks
(embeddings) of a row, E = L D, P principal components.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.feature_inference.view import ColumnValues, FeatureView, Reconstruction

LEAST_LOOKS = 3
COMPONENTS = 128  # so many, because with many epochs even the last directions of a narrow cut depend on columns
GUIDES = 16  # number of components of the other looks that predict a row's movement
DEGREE, PASSES = 3, 2
ROWS_PER_WEIGHT = 10
SHRUNK = 1e-4
FLAT = 1e-6


def course(view: FeatureView) -> tuple[Tensor, Tensor]:
    """Compute principal components of the rows' aligned looks, each scaled to deviation 1, the largest first, float64 (N, P).

    If fewer than three looks were kept, as for a wide cut, the components are those of the mean embeddings. Also return their
    former deviations, relative to the first.
    """
    at_NL = view.looks_at_NL
    if at_NL is None or at_NL.shape[1] < LEAST_LOOKS:
        mean_ND = view.mean_ND.double()
        return components(mean_ND - mean_ND.mean(dim=0))
    looks_NLD = view.looks_NE.double().reshape(*at_NL.shape, -1)
    return components(even_columns(aligned(looks_NLD, at_NL.double()).flatten(1)))


def aligned(looks_NLD: Tensor, at_NL: Tensor) -> Tensor:
    """Align the looks as if all rows of an epoch had been embedded at its middle, float64 (N, L, D).

    A regression over all rows predicts each look from principal components of the other looks, and from their products with the
    first powers of the time within the epoch. The part that depends on time is subtracted. This is done twice, the second time
    with aligned looks. A look's own components are not used, because they would reproduce the look at its own time. If there are
    too few rows for the regression, the looks stay unchanged.
    """
    rows, looks, width = looks_NLD.shape
    time_NL = 2 * at_NL / at_NL.amax(dim=0).clamp(min=1) - 1
    guides = min(GUIDES, (looks - 1) * width)
    degree = min(DEGREE, rows // (ROWS_PER_WEIGHT * (1 + guides)) - 1)
    found_NLD = looks_NLD
    for _ in range(PASSES if degree > 0 else 0):
        scaled_NE = even_columns(found_NLD.flatten(1))
        gram_EE = scaled_NE.T @ scaled_NE
        moved = []
        for look in range(looks):
            other_E = torch.arange(looks * width) // width != look
            vector_EP = torch.linalg.eigh(gram_EE[other_E][:, other_E])[1][:, -guides:]
            guide_NP = torch.cat([torch.ones_like(time_NL[:, :1]), scaled_NE[:, other_E] @ vector_EP], dim=1)
            with_time = torch.cat([guide_NP * time_NL[:, look, None] ** power for power in range(1, degree + 1)], dim=1)
            every = torch.cat([guide_NP, with_time], dim=1)
            gram = every.T @ every
            gram.diagonal().add_(SHRUNK * rows)
            weights = torch.linalg.solve(gram, every.T @ looks_NLD[:, look])
            moved.append(looks_NLD[:, look] - with_time @ weights[guide_NP.shape[1] :])
        found_NLD = torch.stack(moved, dim=1)
    return found_NLD


def even_columns(x_NE: Tensor) -> Tensor:
    """Centre each column and scale it to deviation 1. A column that hardly varies becomes 0."""
    centred_NE = x_NE - x_NE.mean(dim=0)
    deviation_E = centred_NE.square().mean(dim=0).sqrt()
    flat_E = deviation_E <= FLAT * deviation_E.max().clamp(min=torch.finfo(x_NE.dtype).tiny)
    return centred_NE / deviation_E.masked_fill(flat_E, torch.inf)


def components(x_NE: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the first principal components of centred columns, scaled to deviation 1, or one of zeros if nothing varies.

    Also return their former deviations, relative to the first.
    """
    value_E, vector_EE = torch.linalg.eigh(x_NE.T @ x_NE)
    is_varying = value_E > FLAT**2 * value_E[-1]
    if not bool(is_varying.any()):
        return torch.zeros_like(x_NE[:, :1]), x_NE.new_ones(1)
    z_NP = x_NE @ vector_EE[:, is_varying].flip(1)[:, :COMPONENTS]
    deviation_P = z_NP.square().mean(dim=0).sqrt()
    return z_NP / deviation_P, deviation_P / deviation_P[0]


LEAST_FITTED = 1 / 200  # a category needs at least this share of the known rows
Reads = Literal["last", "mean", "looks", "all", "course", "uneven-course"]


def inputs(view: FeatureView, reads: Reads, *, own_columns: bool) -> Tensor:
    """Return the chosen embeddings, with own columns if wanted and available, each scaled to deviation 1, float64 (N, D).

    Mean and deviation are those of all rows, known or not. A column that hardly varies becomes 0. For "course" the columns are
    components of ``course``. For "uneven-course" each is scaled to the root of its deviation, so that larger ones count more;
    both are computed together.
    """
    if reads == "uneven-course":
        inputs(view, "course", own_columns=own_columns)
    if (reads, own_columns) not in view.scaled:
        every = {"last": [view.last_ND], "mean": [view.mean_ND], "looks": [view.looks_NE], "all": [view.mean_ND, view.looks_NE]}
        parts, share_P = every.get(reads, []), torch.ones(1)
        if reads == "course":
            z_NP, share_P = course(view)
            parts = [z_NP]
        if own_columns and view.own_NA is not None:
            parts = [*parts, view.own_NA]
        x_ND = torch.cat([part.double() for part in parts], dim=1)
        centred_ND = x_ND - x_ND.mean(dim=0)
        deviation_D = centred_ND.square().mean(dim=0).sqrt()
        flat_D = deviation_D <= 1e-6 * deviation_D.max().clamp(min=torch.finfo(torch.float64).tiny)
        view.scaled[reads, own_columns] = (centred_ND / deviation_D.masked_fill(flat_D, torch.inf)).clamp_(-10, 10)
        if reads == "course":
            view.scaled["uneven-course", own_columns] = view.scaled[reads, own_columns][:, : len(share_P)] * share_P.sqrt()
    return view.scaled[reads, own_columns]


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Targets of a fit: the numbers, then an indicator of each category that a known row has. Other categories cannot be guessed.

    Args:
        y_KT: float64, the targets of the known rows.
        numeric: number of targets that are numbers.
        codes: per categorical column, the codes that occur among the known rows, in order.
        counts: number of known rows with each of these codes.
        categories: number of codes of each categorical column.
    """

    y_KT: Tensor
    numeric: int
    codes: tuple[Tensor, ...]
    counts: tuple[Tensor, ...]
    categories: tuple[int, ...]

    @cached_property
    def means(self) -> Tensor:
        """Average over the known rows."""
        return self.y_KT.mean(dim=0)

    @classmethod
    def of(cls, columns_K: ColumnValues) -> "Targets":
        """Make the targets from the columns of the known rows."""
        parts, codes, counts = [columns_K.numeric_NF.double()], [], []
        for g in range(len(columns_K.categorical)):
            code_K = columns_K.categorical_NG[:, g]
            code_C, count_C = np.unique(code_K.numpy(), return_counts=True)
            codes.append(torch.from_numpy(code_C))
            counts.append(torch.from_numpy(count_C))
            parts.append((code_K[:, None] == codes[-1]).double())
        return cls(
            y_KT=torch.cat(parts, dim=1),
            numeric=len(columns_K.numeric),
            codes=tuple(codes),
            counts=tuple(counts),
            categories=columns_K.categories,
        )

    def fitted(self, *, least: int = 2) -> Tensor:
        """Return which targets are fitted: numbers, and categories with at least two known rows and one in 200 of them.

        With a single known row, a category cannot be predicted when that row is left out. An attack that learns from such a
        row about the other columns may ask for one row, and then for one in 100, because among many rows a category of one row
        explains only that row's embedding.
        """
        share = LEAST_FITTED if least > 1 else 2 * LEAST_FITTED
        numbers_F = torch.full((self.numeric,), len(self.y_KT) + least)  # numbers are always fitted
        several_T = torch.cat([numbers_F, *self.counts]) >= max(least, len(self.y_KT) * share)
        return several_T.nonzero().flatten()

    def split(self, values_NT: Tensor) -> tuple[Tensor, ...]:
        """Split targets into the part of the numbers and one part per categorical column."""
        return torch.split(values_NT, [self.numeric, *(len(each) for each in self.codes)], dim=1)

    def values(self, reconstruction: Reconstruction) -> Tensor:
        """Convert a reconstruction to targets (N, T)."""
        codes = [reconstruction.categorical_NG[:, g, None] == each for g, each in enumerate(self.codes)]
        return torch.cat([reconstruction.numeric_NF.double(), *(code_NC.double() for code_NC in codes)], dim=1)

    def reconstruction(self, guess_SN: Tensor, fitted_S: Tensor | None = None) -> Reconstruction:
        """Convert guessed targets to a reconstruction, with the likeliest code of each categorical column.

        With ``fitted_S``, only these targets were guessed, numbers among them. The other targets get their means.
        """
        which_S = torch.arange(self.y_KT.shape[1]) if fitted_S is None else fitted_S
        mean_T = self.means
        first, guesses, scores, codes = self.numeric, [], [], []
        for code_C in self.codes:
            low, high = torch.searchsorted(which_S, torch.tensor([first, first + len(code_C)])).tolist()
            place_J, score_JN = which_S[low:high] - first, guess_SN[low:high]
            constant_C = mean_T[first : first + len(code_C)].index_fill(0, place_J, -torch.inf)
            guess_N = constant_C.argmax().expand(guess_SN.shape[1])
            if len(place_J):
                best = score_JN.max(dim=0)
                guess_N = torch.where(best.values >= constant_C.max(), place_J[best.indices], guess_N)
            guesses.append(code_C[guess_N])
            scores.append(score_JN.double())
            codes.append(code_C[place_J])
            first += len(code_C)
        none_N0 = torch.empty(guess_SN.shape[1], 0, dtype=torch.int64)
        return Reconstruction(
            numeric_NF=guess_SN[: self.numeric].T,
            categorical_NG=torch.stack(guesses, dim=1) if guesses else none_N0,
            scores=tuple(scores),
            codes=tuple(codes),
        )
