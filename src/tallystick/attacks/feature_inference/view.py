"""Define the data from which a label party could rebuild a feature party's columns: received cut embeddings, and known rows.

Shapes: N rows, K known rows, D cut width, F numeric columns, G categorical columns, A columns of its own, C categories,
J categories that an attack searches, L looks (embeddings of a row in different epochs), E = L D.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from tallystick.attacks.view import StepView
from tallystick.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ColumnValues:
    """Rows of a feature party's columns: the truth, or what an attacker knows of a few rows.

    Args:
        numeric_NF: floats, standardised or not.
        categorical_NG: int64, codes from 0.
        numeric: F names.
        categorical: G names.
        categories: number of codes of each categorical column.
        vectors: for the first numeric columns, the vector to which each belongs; empty for a plain column.
    """

    numeric_NF: Tensor
    categorical_NG: Tensor
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    categories: tuple[int, ...]
    vectors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shapes = (tuple(self.numeric_NF.shape[1:]), tuple(self.categorical_NG.shape[1:]), len(self.categories))
        expected = ((len(self.numeric),), (len(self.categorical),), len(self.categorical))
        if shapes != expected or len(self.numeric_NF) != len(self.categorical_NG):
            raise DataError(
                f"columns: numbers of shape {tuple(self.numeric_NF.shape)} and codes of {tuple(self.categorical_NG.shape)} for "
                f"{len(self.numeric)} numeric and {len(self.categorical)} categorical names; give as many columns as names"
            )

    def __len__(self) -> int:
        return len(self.numeric_NF)

    def rows(self, index: Tensor) -> "ColumnValues":
        """Pick rows."""
        return ColumnValues(
            numeric_NF=self.numeric_NF[index],
            categorical_NG=self.categorical_NG[index],
            numeric=self.numeric,
            categorical=self.categorical,
            categories=self.categories,
            vectors=self.vectors,
        )

    @property
    def numbers(self) -> dict[str, list[int]]:
        """Return the places of each numeric column's numbers, those of a vector together."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.numeric):
            places.setdefault((self.vectors[place] if place < len(self.vectors) else "") or name, []).append(place)
        return places


@dataclass(frozen=True, kw_only=True)
class FirstBatch:
    """The rows of the first batch, and the initial bottom model, if it follows from what every party knows.

    Args:
        rows_B: int64, places of these rows in the view.
        cut_BD: their embeddings of the first step.
        embed: takes numbers and embedded categories (B, T), float64, to the input of the last layer's ReLU (B, D).
        numeric: number of the T inputs that are numbers.
        tables: for each categorical column, the embeddings (C, E) of its codes before training; side by side they fill the rest
            of T.
    """

    rows_B: Tensor
    cut_BD: Tensor
    embed: Callable[[Tensor], Tensor]
    numeric: int
    tables: tuple[Tensor, ...]

    def among(self, chosen_M: Tensor) -> "FirstBatch | None":
        """Return the batch restricted to the chosen rows, or None if it has none of them."""
        place_N = torch.full((int(max(chosen_M.max(), self.rows_B.max())) + 1,), -1, dtype=torch.int64)
        place_N[chosen_M] = torch.arange(len(chosen_M))
        (place_K,) = (place_N[self.rows_B] >= 0).nonzero(as_tuple=True)
        return replace(self, rows_B=place_N[self.rows_B[place_K]], cut_BD=self.cut_BD[place_K]) if len(place_K) else None


@dataclass(frozen=True, kw_only=True)
class Marginals:
    """Distributions of columns, as a statistical office or the party itself may have published them.

    Args:
        quantile_QF: evenly spaced quantiles of each numeric column, from its least value to its greatest.
        shares: for each categorical column, the share of each code, (C,).
    """

    quantile_QF: Tensor
    shares: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class SentEmbeddings:
    """The embeddings of some rows that a label party received in one or several trainings, and what else it has.

    Args:
        last_BD: the last embedding of each row.
        mean_BD: the mean embedding of each row.
        looks_BE: the embeddings of several epochs, side by side.
        looks_at_BL: the step within each of these epochs at which the row was embedded; None if unknown.
        contrast_BCD: the embedding minus its mean with each of the C columns shuffled; None if no column was shuffled.
        shuffles: number of shuffles in this mean.
        own_BA: the label party's own columns, as numbers; None if it has none, or they are not available.
        first: the first batch and the bottom model that embedded it, if these follow from the contract.
    """

    last_BD: Tensor
    mean_BD: Tensor
    looks_BE: Tensor
    looks_at_BL: Tensor | None
    contrast_BCD: Tensor | None = None
    shuffles: int = 1
    own_BA: Tensor | None = None
    first: FirstBatch | None = None

    @classmethod
    def of(cls, step: StepView) -> "SentEmbeddings":
        """Make it from sums per row."""
        assert step.mean_BD is not None
        assert step.looks_BE is not None
        return cls(last_BD=step.received_BD, mean_BD=step.mean_BD, looks_BE=step.looks_BE, looks_at_BL=step.looks_at_BL)

    def rows(self, kept_K: Tensor) -> "SentEmbeddings":
        """Return the values of some rows."""
        return SentEmbeddings(
            last_BD=self.last_BD[kept_K],
            mean_BD=self.mean_BD[kept_K],
            looks_BE=self.looks_BE[kept_K],
            looks_at_BL=None if self.looks_at_BL is None else self.looks_at_BL[kept_K],
            contrast_BCD=None if self.contrast_BCD is None else self.contrast_BCD[kept_K],
            shuffles=self.shuffles,
            own_BA=None if self.own_BA is None else self.own_BA[kept_K],
            first=None if self.first is None else self.first.among(kept_K),
        )

    def beside(self, other: "SentEmbeddings") -> "SentEmbeddings":
        """Join the embeddings of both trainings, as further columns.

        Looks of the same steps become wider looks. Other looks are appended; those of a narrower cut are padded with zeros.
        """
        at = [each.looks_at_BL for each in (self, other) if each.looks_at_BL is not None]
        assert len(at) == 2, "sums by row say when each look was"
        mine_BLD, theirs_BLD = (each.looks_BE.reshape(*at_BL.shape, -1) for each, at_BL in zip((self, other), at, strict=True))
        if torch.equal(*at):
            looks_BE, looks_at_BL = torch.cat([mine_BLD, theirs_BLD], dim=2).flatten(1), at[0]
        else:
            width = max(mine_BLD.shape[2], theirs_BLD.shape[2])
            looks_BE = torch.cat([pad(each, (0, width - each.shape[2])).flatten(1) for each in (mine_BLD, theirs_BLD)], dim=1)
            looks_at_BL = torch.cat(at, dim=1)
        return SentEmbeddings(
            last_BD=torch.cat([self.last_BD, other.last_BD], dim=1),
            mean_BD=torch.cat([self.mean_BD, other.mean_BD], dim=1),
            looks_BE=looks_BE,
            looks_at_BL=looks_at_BL,
        )


@dataclass(frozen=True, kw_only=True)
class FeatureView:
    """The label party's view of some rows, and the few of them whose columns it knows.

    Args:
        last_ND: each row's last cut embedding, of the most trained bottom model.
        mean_ND: the mean over the training, in which fresh noise averages out; equal to ``last_ND`` for one look.
        looks_NE: a row's embeddings of several epochs side by side. Each epoch's model shows the columns in another way.
        known_K: int64, the known rows.
        columns_K: the columns of the known rows.
        own_NA: the label party's own columns of all rows, as numbers; None if it has none, or if the attack is measured without
            them.
        first: the first batch and the model that embedded it, for an attack that knows no row; None if not available.
        marginals: the distribution of each column, for an attack that knows no row; None if unknown.
        others: columns of other people, who are not among the rows, for an attack that knows no row; None if not available.
        looks_at_NL: for each look, the step of its epoch, from 0, in which the row was embedded, because the bottom model changes
            with each step; None if unknown, or if there is one look only.
        contrast_NCD: a row's embedding minus its mean with each of the C columns shuffled, numbers first; None if no column was
            shuffled.
        shuffles: number of shuffles in this mean.
        scaled: cache of scaled inputs of all rows, which do not depend on the known rows and serve all attacks.
        guesses: cache of guesses that a later attack reads, by attack and seed.
    """

    last_ND: Tensor
    mean_ND: Tensor
    looks_NE: Tensor
    known_K: Tensor
    columns_K: ColumnValues
    own_NA: Tensor | None = None
    first: FirstBatch | None = None
    marginals: Marginals | None = None
    others: ColumnValues | None = None
    looks_at_NL: Tensor | None = None
    contrast_NCD: Tensor | None = None
    shuffles: int = 1
    scaled: dict[tuple[str, bool], Tensor] = field(default_factory=dict, repr=False, compare=False)
    guesses: dict[tuple["FeatureAttack", int], "Reconstruction"] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.last_ND.ndim != 2 or self.last_ND.shape != self.mean_ND.shape:
            raise DataError(
                f"feature attack: last and mean embeddings have shapes {tuple(self.last_ND.shape)} and "
                f"{tuple(self.mean_ND.shape)}; expected the same (N, D)"
            )
        at_NL = self.looks_at_NL
        if at_NL is not None and (
            len(at_NL) != len(self.looks_NE) or not at_NL.shape[1] or self.looks_NE.shape[1] % at_NL.shape[1]
        ):
            raise DataError(
                f"feature attack: looks of shape {tuple(self.looks_NE.shape)} and their steps of {tuple(at_NL.shape)} do not fit"
            )
        columns, left_NCD = len(self.columns_K.numeric) + len(self.columns_K.categorical), self.contrast_NCD
        if left_NCD is not None and (left_NCD.ndim != 3 or left_NCD.shape[:2] != (len(self.last_ND), columns)):
            raise DataError(
                f"feature attack: the change by shuffled columns has shape {tuple(left_NCD.shape)}; expected (N, C, D) for "
                f"{len(self.last_ND)} rows and {columns} columns"
            )
        if not len(self.known_K) and self.first is None and self.marginals is None and self.others is None:
            raise DataError(
                "feature attack: no row is known; an attacker needs a few rows whose columns it knows, or their distributions"
            )
        if len(self.known_K) != len(self.columns_K):
            raise DataError(f"feature attack: {len(self.known_K)} known rows, but columns of {len(self.columns_K)}")
        for name, matrix in (("last", self.last_ND), ("mean", self.mean_ND), ("earlier", self.looks_NE)):
            if not bool(torch.isfinite(matrix).all()):
                raise DataError(
                    f"feature attack: {name} embeddings are NaN or infinite; training diverged or the record is damaged"
                )

    def guess(self, attack: "FeatureAttack", *, seed: int) -> "Reconstruction":
        """Return an attack's guess. If it ran before, pop the guess from ``guesses``."""
        earlier = self.guesses.pop((attack, seed), None)
        return earlier if earlier is not None else attack(self, generator=torch.Generator().manual_seed(seed))

    def of_rows(self, index: Tensor, *, others: ColumnValues, marginals: Marginals) -> "FeatureView":
        """Return the view of some rows, without known rows, but with a table of other people and its distributions."""
        own_NA, looks_at_NL = (None if each is None else each[index] for each in (self.own_NA, self.looks_at_NL))
        return FeatureView(
            last_ND=self.last_ND[index],
            mean_ND=self.mean_ND[index],
            looks_NE=self.looks_NE[index],
            known_K=index[:0],
            columns_K=others.rows(index[:0]),
            own_NA=own_NA,
            marginals=marginals,
            others=others,
            looks_at_NL=looks_at_NL,
        )


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """An attack's guess at every row's columns.

    Args:
        numeric_NF: float64, guessed numbers.
        categorical_NG: int64, the likeliest code of each column.
        scores: for each categorical column, scores (J, N) of some of its codes, float64, in any unit that ranks rows; empty if
            the attack has none.
        codes: the codes of these scores, int64 (J,). For other codes the attack ranks all rows equally.
    """

    numeric_NF: Tensor
    categorical_NG: Tensor
    scores: tuple[Tensor, ...] = ()
    codes: tuple[Tensor, ...] = ()


class FeatureAttack(Protocol):
    """Rebuilds columns from the view and nothing else."""

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess the columns of all rows of the view."""
        ...
