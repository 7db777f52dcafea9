"""Make rows from pieces of several real ones.

Shapes: N own rows, S rows to make, F numeric and G categorical columns, C columns of both kinds, K codes of a column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ConfigError, DataError
from tallystick.imputation.imputer import ANY_CALIBRATION, FeatureImputer, When
from tallystick.lazy_torch import Generator, Tensor, torch

TREE_ROWS = 20_000  # own rows, evenly spread, from which the tree is learnt
BINS = 32  # number of bins of a numeric column
CHUNK = 50_000  # rows made at a time
LARGEST_SHARE = 0.75  # a made-up row takes at most this share of its columns from one own row, if possible

Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SplicedFeatures(FeatureImputer):
    """Gives an absent row a row spliced from pieces of several real ones, made once and embedded like real rows.

    It is not in FLORIST. The own columns are joined by the tree of greatest mutual information (Chow and Liu 1968; numbers in 32
    bins). A row begins with a random real row at the root. At each edge it changes, with chance ``switch``, to another random
    real row that agrees on the column from which the edge comes. So pairs of columns along the tree are distributed as in real
    rows, and much of what several columns share stays. Rows of which one real row gave more than three quarters are spliced again
    with twice the chance.

    A cell is copied unchanged, so a made-up row would never have a value of its own, as some real rows have. So all rows, real
    ones too, are embedded with common values (``data.common_values``).

    No formal guarantee. Not protected: a row is made without its label, so the pair of embedding and label is independent, which
    a real pair is not. The same holds for the embedding and anything else that the label party knows of the row.

    Args:
        switch: the chance of changing to another real row at an edge of the tree, above 0 and at most 1.
    """

    name: ClassVar[str] = "splice"
    gives: ClassVar[str] = "a row spliced from pieces of several real rows of its own"
    calibrated: ClassVar[tuple[When, ...]] = ANY_CALIBRATION

    makes_rows: ClassVar[bool] = True

    switch: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.switch <= 1:
            raise ConfigError(f"synthetic features splice: switch={self.switch}; expected above 0 and at most 1")

    def made_up(self, numeric_NF: Tensor, categorical_NG: Tensor, count: int, *, generator: Generator) -> tuple[Tensor, Tensor]:
        """Splice ``count`` rows. Raises DataError if the side has no rows."""
        if len(numeric_NF) < 1:
            raise DataError("synthetic features splice: this side has no rows to splice from; it needs at least one")
        codes: list[Codes] = []
        for column_N in numeric_NF.T.numpy():
            edges_of_bins = np.unique(np.quantile(column_N, np.linspace(0, 1, BINS + 1)[1:-1]))
            bins_N = np.searchsorted(edges_of_bins, column_N, side="right")
            codes.append(np.unique(bins_N, return_inverse=True)[1].astype(np.int64))
        codes += [np.unique(column_N, return_inverse=True)[1] for column_N in categorical_NG.T.numpy()]
        tree_rows = np.linspace(0, len(numeric_NF) - 1, min(len(numeric_NF), TREE_ROWS)).round().astype(np.int64)
        edges = dependence_tree([code_N[tree_rows] for code_N in codes])
        agreeing = [_Agreeing(code_N) for code_N in codes]
        rng = np.random.default_rng(torch.randint(2**62, (4,), generator=generator).tolist())
        numbers_SF, codes_SG = torch.empty(count, numeric_NF.shape[1]), torch.empty(count, categorical_NG.shape[1]).long()
        for place_S in torch.split(torch.arange(count), CHUNK):
            donor_SC = torch.from_numpy(self._spliced(agreeing, edges, len(place_S), rng)).long()
            numbers_SF[place_S] = numeric_NF.gather(0, donor_SC[:, : numeric_NF.shape[1]])
            codes_SG[place_S] = categorical_NG.gather(0, donor_SC[:, numeric_NF.shape[1] :])
        return numbers_SF, codes_SG

    def _spliced(
        self, agreeing: Sequence["_Agreeing"], edges: Sequence[tuple[int, int]], count: int, rng: np.random.Generator
    ) -> NDArray[np.int32]:
        """Choose the own row that gives each column of the next rows (S, C)."""
        donor_SC = np.zeros((count, len(agreeing)), dtype=np.int32)
        left_S, switch = np.arange(count), self.switch
        while len(left_S):
            for column, parent in edges:
                if parent < 0:
                    donor_SC[left_S, column] = rng.integers(agreeing[0].rows, size=len(left_S))
                    continue
                same_S = donor_SC[left_S, parent]
                other_S = agreeing[parent].draw(same_S, rng)
                donor_SC[left_S, column] = np.where(rng.random(len(left_S)) < switch, other_S, same_S)
            if switch >= 1:
                break
            # For each row, the largest share of its columns from one donor
            sorted_SC = np.sort(donor_SC[left_S], axis=1)
            run_S = most_S = np.ones(len(sorted_SC), dtype=np.int64)
            for before_S, now_S in zip(sorted_SC.T, sorted_SC.T[1:], strict=False):
                run_S = np.where(before_S == now_S, run_S + 1, 1)
                most_S = np.maximum(most_S, run_S)
            left_S, switch = left_S[most_S / len(agreeing) > LARGEST_SHARE], min(2 * switch, 1.0)
        return donor_SC


class _Agreeing:
    """Draw, for given rows, random ones with the same code in a column."""

    def __init__(self, code_N: Codes) -> None:
        self.rows, self._code_N, self._order_N = len(code_N), code_N, np.argsort(code_N, kind="stable")
        self._size_K = np.bincount(code_N)
        self._start_K = np.cumsum(self._size_K) - self._size_K

    def draw(self, rows_S: NDArray[np.int32], rng: np.random.Generator) -> Codes:
        code_S = self._code_N[rows_S]
        donor_S: Codes = self._order_N[self._start_K[code_S] + rng.integers(self._size_K[code_S])]
        return donor_S


def dependence_tree(codes: Sequence[Codes]) -> list[tuple[int, int]]:
    """Return the spanning tree of greatest mutual information: each column with the one that it depends on, starting at the root
    (-1).

    Entropies have Miller and Madow's correction. Without it, columns of many codes would seem to determine everything.
    """
    entropy_C = [_entropy(code_N) for code_N in codes]
    information_CC = np.zeros((len(codes), len(codes)))
    for a in range(len(codes)):
        for b in range(a):
            joint_N = np.unique(codes[a] * (codes[b].max() + 1) + codes[b], return_inverse=True)[1]
            information_CC[a, b] = information_CC[b, a] = entropy_C[a] + entropy_C[b] - _entropy(joint_N)
    edges, best_C, by_C = [(0, -1)], information_CC[0].copy(), np.zeros(len(codes), dtype=np.int64)
    outside = set(range(1, len(codes)))
    while outside:
        column = max(outside, key=lambda each: float(best_C[each]))
        outside.remove(column)
        edges.append((column, int(by_C[column])))
        better_C = information_CC[column] > best_C
        best_C, by_C = np.where(better_C, information_CC[column], best_C), np.where(better_C, column, by_C)
    return edges


def _entropy(code_N: Codes) -> float:
    count_K = np.bincount(code_N)
    share_K = count_K[count_K > 0] / len(code_N)
    return float(-(share_K * np.log(share_K)).sum() + (len(share_K) - 1) / (2 * len(code_N)))
