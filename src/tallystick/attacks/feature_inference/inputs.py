"""Prepare what reconstruction attacks read and aim at, as matrices. Shapes: N rows, K known rows, D inputs, T targets."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.feature_inference.aligned import course
from tallystick.attacks.feature_inference.view import ColumnValues, FeatureView, Reconstruction

Reads = Literal["last", "mean", "looks", "all", "course"]


def inputs(view: FeatureView, reads: Reads, *, own_columns: bool) -> Tensor:
    """Return the chosen embeddings, and own columns if asked for and there: centred and of one deviation, float64 (N, D).

    All rows serve for it, known or not. A column that hardly varies becomes 0. Of the course these are components (``course``).
    """
    if (reads, own_columns) not in view.scaled:
        view.scaled[reads, own_columns] = _scaled(view, reads, own_columns=own_columns)
    return view.scaled[reads, own_columns]


def _scaled(view: FeatureView, reads: Reads, *, own_columns: bool) -> Tensor:
    every = {"last": [view.last_ND], "mean": [view.mean_ND], "looks": [view.looks_NE], "all": [view.mean_ND, view.looks_NE]}
    parts = [course(view)] if reads == "course" else every[reads]
    if own_columns and view.own_NA is not None:
        parts = [*parts, view.own_NA]
    x_ND = torch.cat([part.double() for part in parts], dim=1)
    centred_ND = x_ND - x_ND.mean(dim=0)
    deviation_D = centred_ND.square().mean(dim=0).sqrt()
    flat_D = deviation_D <= 1e-6 * deviation_D.max().clamp(min=torch.finfo(torch.float64).tiny)
    return (centred_ND / deviation_D.masked_fill(flat_D, torch.inf)).clamp_(-10, 10)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Targets of a fit: the numbers, then an indicator per category that a known row has; no other category can be guessed.

    Args:
        y_KT: float64.
        numeric: how many of the T are numbers.
        codes: per categorical column the codes that occur among the known rows, in order.
        categories: per categorical column how many codes there are.
    """

    y_KT: Tensor
    numeric: int
    codes: tuple[Tensor, ...]
    categories: tuple[int, ...]

    @classmethod
    def of(cls, columns_K: ColumnValues) -> "Targets":
        """Take the targets of the known rows."""
        parts, codes = [columns_K.numeric_NF.double()], []
        for g in range(len(columns_K.categorical)):
            code_K = columns_K.categorical_NG[:, g]
            codes.append(torch.from_numpy(np.unique(code_K.numpy())))
            parts.append((code_K[:, None] == codes[-1]).double())
        return cls(
            y_KT=torch.cat(parts, dim=1),
            numeric=len(columns_K.numeric),
            codes=tuple(codes),
            categories=columns_K.categories,
        )

    def split(self, values_NT: Tensor) -> tuple[Tensor, ...]:
        """Split into the numbers' part, and one per categorical column."""
        return torch.split(values_NT, [self.numeric, *(len(each) for each in self.codes)], dim=1)

    def values(self, found: Reconstruction) -> Tensor:
        """Return the targets (N, T) as a reconstruction has them."""
        codes = [found.categorical_NG[:, g, None] == each for g, each in enumerate(self.codes)]
        return torch.cat([found.numeric_NF.double(), *(code_NC.double() for code_NC in codes)], dim=1)

    def reconstruction(self, predicted_NT: Tensor) -> Reconstruction:
        """Take predicted targets apart: of each categorical column the likeliest code."""
        numeric_NF, *scores = self.split(predicted_NT)
        guesses = [each[score_NC.argmax(dim=1)] for each, score_NC in zip(self.codes, scores, strict=True)]
        none_N0 = torch.empty(len(predicted_NT), 0, dtype=torch.int64)
        ranked = tuple(
            torch.full((len(score_NC), size), -torch.inf, dtype=torch.float64).index_copy_(1, code_C, score_NC.double())
            for score_NC, code_C, size in zip(scores, self.codes, self.categories, strict=True)
        )
        categorical_NG = torch.stack(guesses, dim=1) if guesses else none_N0
        return Reconstruction(numeric_NF=numeric_NF, categorical_NG=categorical_NG, scores=ranked)
