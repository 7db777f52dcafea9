"""Replace unique values: draw numbers within narrow bins, and pool rare codes.

Shapes: N fitted rows, B rows of a batch, F numeric columns, G columns of codes, T bins of a column, C codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import torch
from torch import Tensor

from tallystick.tables.categories import UNSEEN
from tallystick.tables.features import Features

BINS = 128  # greatest number of bins of a numeric column
LEAST_ROWS = 8  # least number of rows of a bin
LEAST_CODES = 10  # a code with fewer rows is replaced


class NumberBins(msgspec.Struct, frozen=True, kw_only=True):
    """Bins of one numeric column: bin t begins at ``starts[t]``, and its numbers are drawn from ``lows[t]`` to ``highs[t]``.

    A number that enough rows have is a bin with that single value. Numbers below the first bin belong to it.
    """

    starts: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]


class CommonValues(msgspec.Struct, frozen=True, kw_only=True):
    """Common values, which replace rare values in a party's encoded columns. They are fitted on the party's rows.

    Made-up rows copy cells of real rows, and this can give them away: a number that only one row has was not copied. So each
    number, in real and made-up rows, is replaced by one drawn at random from its bin. A bin has a 128th of the rows, and at least
    8. A number that so many rows share stays unchanged. If fewer rows lie between two such numbers, they get one of the two. A
    code of fewer than 10 rows becomes the code of unseen categories. No formal guarantee: combinations of several columns stay as
    they are.
    """

    numbers: tuple[NumberBins, ...]
    codes: tuple[tuple[int, ...], ...]  # the new code of each code, by column; the last entry is for all later codes

    @classmethod
    def fit(cls, features: Features) -> "CommonValues":
        """Fit on the party's own rows."""
        numbers: list[NumberBins] = []
        for value_N in features.numeric_NF.cpu().numpy().T:
            least = max(LEAST_ROWS, len(value_N) // BINS)
            value_V, count_V = np.unique(value_N, return_counts=True)
            heavy_V = count_V >= least
            before_V = np.append(0, np.cumsum(count_V))  # rows below each value, and all of them
            begins: list[int] = []
            first = 0
            for heavy in (*np.flatnonzero(heavy_V).tolist(), len(value_V)):
                while before_V[heavy] - before_V[first] >= least:
                    begins.append(first)
                    first = int(np.searchsorted(before_V, before_V[first] + least))
                begins.append(heavy)  # the few rows below it do not begin a bin, so they belong to the one before
                first = heavy + 1
            begins_T = np.array(begins[:-1] or [0])
            starts_T, heavy_T = value_V[begins_T], heavy_V[begins_T]
            lows_T, highs_T = starts_T, np.append(starts_T[1:], value_V[-1])
            highs_T[heavy_T] = starts_T[heavy_T]
            ends = tuple(lows_T.tolist()), tuple(highs_T.tolist())
            numbers.append(NumberBins(starts=tuple(starts_T.tolist()), lows=ends[0], highs=ends[1]))
        codes: list[tuple[int, ...]] = []
        for code_N in features.categorical_NG.cpu().numpy().T:
            count_C = np.bincount(code_N, minlength=UNSEEN + 1)
            rare_C = count_C < LEAST_CODES
            rare_C[UNSEEN] = False
            pooled = int(count_C[rare_C].sum()) + int(count_C[UNSEEN])
            other = UNSEEN if pooled >= LEAST_CODES else int(count_C.argmax())
            common_C = np.where(rare_C, other, np.arange(len(count_C)))
            common_C[UNSEEN] = other
            codes.append((*common_C.tolist(), other))
        return cls(numbers=tuple(numbers), codes=tuple(codes))


@dataclass(frozen=True, kw_only=True)
class Blur:
    """Common values for batches. One random number per row serves all columns; ``offset_F`` makes the columns differ."""

    starts_FT: Tensor
    lows_FT: Tensor
    highs_FT: Tensor
    offset_F: Tensor
    code_C: Tensor  # the new codes, column after column
    first_G: Tensor  # the place at which a column's codes begin
    last_G: Tensor

    @classmethod
    def of(cls, values: CommonValues, *, generator: torch.Generator) -> "Blur":
        """Prepare the columns. ``generator`` draws the columns' offsets."""
        sizes = torch.tensor([len(codes) for codes in values.codes], dtype=torch.int64)
        first_G = torch.cumsum(sizes, dim=0) - sizes
        return cls(
            starts_FT=_padded([bins.starts for bins in values.numbers], torch.inf),
            lows_FT=_padded([bins.lows for bins in values.numbers], 0.0),
            highs_FT=_padded([bins.highs for bins in values.numbers], 0.0),
            offset_F=torch.rand(len(values.numbers), generator=generator),
            code_C=torch.tensor([code for codes in values.codes for code in codes], dtype=torch.int64),
            first_G=first_G,
            last_G=first_G + sizes - 1,
        )

    def __call__(self, rows: Features, uniform_B: Tensor) -> Features:
        """Return these rows with common values. Each row's number in [0, 1) chooses its place within its bins."""
        device = rows.numeric_NF.device
        at_FB = rows.numeric_NF.cpu().T.contiguous()
        bin_FB = (torch.searchsorted(self.starts_FT, at_FB, right=True) - 1).clamp(min=0)
        low_FB, high_FB = self.lows_FT.gather(1, bin_FB), self.highs_FT.gather(1, bin_FB)
        numeric_BF = (low_FB + (high_FB - low_FB) * ((uniform_B + self.offset_F[:, None]) % 1)).T.contiguous()
        codes_BG = self.code_C[torch.minimum(rows.categorical_NG.cpu() + self.first_G, self.last_G)]
        return replace(rows, numeric_NF=numeric_BF.to(device), categorical_NG=codes_BG.to(device))


def _padded(values: Sequence[tuple[float, ...]], fill: float) -> Tensor:
    padded_FT = torch.full((len(values), max((len(each) for each in values), default=1)), fill)
    for row_T, each in zip(padded_FT, values, strict=True):
        row_T[: len(each)] = torch.tensor(each)
    return padded_FT
