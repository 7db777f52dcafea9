"""Digests of columns are equal for equal values of any type, and differ if any cell does."""

from datetime import date, datetime
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.tables import digests
from tallystick.tables.digests import column_digest

CELLS = {
    "numbers": st.none() | st.integers(-9, 9),
    "text": st.none() | st.text("ab\0", max_size=2),
    "lists": st.none() | st.lists(st.text("ab", max_size=2), max_size=2),
}
TYPES = {"numbers": pl.Int64(), "text": pl.String(), "lists": pl.List(pl.String())}


@pytest.mark.parametrize("kind", CELLS)
@given(data=st.data())
def test_two_columns_have_one_digest_if_they_have_the_same_cells_in_the_same_order(kind, data):
    one, other = (data.draw(st.lists(CELLS[kind], max_size=4)) for _ in range(2))
    columns = [pl.Series(cells, dtype=TYPES[kind]) for cells in (one, other)]
    assert (column_digest([columns[0]]) == column_digest([columns[1]])) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pl.Series([1, None, 0]), pl.Series([1.0, float("nan"), -0.0])),
        (pl.Series([1, 2]), pl.Series([Decimal("1.00"), Decimal("2.00")])),
        (pl.Series([date(2024, 1, 2)]), pl.Series([datetime(2024, 1, 2)])),
        (pl.Series(["a", "b"]), pl.Series(["a", "b"], dtype=pl.Categorical)),
        (pl.Series([[1.0, 2.0]]), pl.Series([[1.0, 2.0]], dtype=pl.Array(pl.Float64, 2))),
    ],
)
def test_the_type_of_a_column_does_not_count(one, other):
    assert column_digest([one]) == column_digest([other])


def test_a_long_column_is_digested_in_parts(monkeypatch):
    column = pl.Series([*range(10)])
    monkeypatch.setattr(digests, "CELLS_AT_A_TIME", 3)
    assert column_digest([column]) == column_digest([column.cast(pl.Float64)]) != column_digest([column[::-1]])
