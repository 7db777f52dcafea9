"""Choose the values of a column that get a code of their own, from the training rows, and encode cells.

Code 0 is missing. Code 1 is every category that is unseen in training, rarer than ``encoding.min_count``, or beyond
``encoding.max_categories``. Codes from 2 on are the categories in descending order of frequency. Values are compared as text,
spelt like keys. If at least one training row in a hundred has a value that no other row has, later rows will also bring new
values (Good 1953). For such a column ``min_count: auto`` asks for more rows, because a network memorises rare categories.

Shapes: N rows.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.party import EncodingConfig
from tallystick.tables.column_formats import Form
from tallystick.tables.text import as_text

MISSING, UNSEEN, FIRST_CATEGORY = 0, 1, 2
UNSEEN_SHARE = 0.01  # from this share of unique values on, encoding.min_count = auto asks for more rows of a category
ENCODED_AT_A_TIME = 2**18  # number of cells that are converted to text at a time


class CategoricalColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One categorical column: 0 missing, 1 unseen or rare, 2 + k the k-th most frequent category of the training rows."""

    name: str
    categories: tuple[str, ...]
    min_count: int = 1  # training rows of each category
    form: Form = "text"
    built_for: int | None = None  # number of categories when the network was built, if later trainings added more
    missing: bool = True  # whether training rows had missing cells, if known
    rare_share: float = 0.0  # share of the training rows whose category shares a code with those never seen

    @property
    def tables(self) -> tuple[int, int]:
        """Return the number of codes, and the number for which the network was built."""
        return FIRST_CATEGORY + len(self.categories), FIRST_CATEGORY + (self.built_for or len(self.categories))

    def encode(self, column: pl.Series) -> NDArray[np.int64]:
        """Return each cell's code."""
        return codes_of(column, self.categories)


def codes_of(column: pl.Series, categories: tuple[str, ...]) -> NDArray[np.int64]:
    """Return each cell's code among these categories."""
    known_values = pl.Series(categories, dtype=pl.String)
    codes = pl.int_range(FIRST_CATEGORY, FIRST_CATEGORY + len(known_values), eager=True)
    text = as_text(column)
    code_N = text.replace_strict(known_values, codes, default=UNSEEN, return_dtype=pl.Int64)
    return code_N.set(text.is_null(), MISSING).to_numpy()


def count_values(columns: Iterable[pl.Series]) -> pl.DataFrame:
    """Count each value of these columns together, missing cells too: ``text`` and ``len``."""
    parts = [
        pl.DataFrame({"text": as_text(part)}).group_by("text").len() for column in columns for part in cells_at_a_time(column)
    ]
    return pl.concat(parts).group_by("text").agg(pl.col("len").sum())


def kept_categories(counts: pl.DataFrame, encoding: EncodingConfig, *, cells: int) -> tuple[tuple[str, ...], int]:
    """Choose the values that get a code of their own, by falling frequency. Also return how often each must occur among the
    ``cells``.
    """
    if encoding.min_count != "auto":
        least = encoding.min_count
    else:
        # Ask for more than one row, because rare categories train the code of rare and unseen ones. If one row in a hundred
        # would bring an unseen category (Good, 1953: the share of values with a single training row), the network memorises
        # the seen ones, so ask for more rows per code.
        is_open = (counts.get_column("len") == 1).sum() >= UNSEEN_SHARE * cells
        least = min(max(cells // 1000, 4), 20) if is_open else usual_count(cells)
    common = (
        counts.drop_nulls("text")
        .filter(pl.col("len") >= least)
        .sort(["len", "text"], descending=[True, False])
        .head(encoding.max_categories)
    )
    return tuple(common.get_column("text").to_list()), least


def fit_categorical(
    name: str, cells: Iterable[pl.Series], encoding: EncodingConfig, *, rows: int, form: Form = "text"
) -> CategoricalColumn | None:
    """Fit on the cells of the training rows, in any order. Return None for a constant column."""
    counts = count_values(cells)
    if counts.height == 1:
        return None
    categories, least = kept_categories(counts, encoding, cells=rows)
    missing = counts.get_column("text").null_count() > 0
    rare = counts.drop_nulls("text").filter(~pl.col("text").is_in(categories))
    rare_share = int(rare.get_column("len").sum()) / max(rows, 1)
    return CategoricalColumn(name=name, categories=categories, min_count=least, form=form, missing=missing, rare_share=rare_share)


def usual_count(rows: int) -> int:
    """Return how many rows a category needs under ``min_count: auto``, in a column without new values in later rows."""
    return min(max(rows // 5000, 4), 10)


def cells_at_a_time(column: pl.Series) -> Iterator[pl.Series]:
    """Yield a column in parts of ``ENCODED_AT_A_TIME`` cells."""
    return (column[start : start + ENCODED_AT_A_TIME] for start in range(0, max(len(column), 1), ENCODED_AT_A_TIME))
