"""Summarise all rows of a key in further columns, if the party file asks for it. Shapes: N rows of the table."""

from collections.abc import Callable, Collection, Mapping

import polars as pl

from tallystick.config.alignment import AlignmentConfig
from tallystick.config.party import PartyFile, Statistic
from tallystick.errors import DataError
from tallystick.tables.keys import key_of, latest_last
from tallystick.tables.lazy_table import Frame
from tallystick.tables.table import require_column

_MADE: Mapping[Statistic, Callable[[pl.Expr], pl.Expr]] = {
    "mean": pl.Expr.mean,
    "median": pl.Expr.median,
    "sum": pl.Expr.sum,
    "min": pl.Expr.min,
    "max": pl.Expr.max,
    "std": pl.Expr.std,
    "count": pl.Expr.count,
    "distinct": lambda column: column.drop_nulls().n_unique(),
    "first": lambda column: column.drop_nulls().first(),
    "last": lambda column: column.drop_nulls().last(),
}
_OF_NUMBERS = ("mean", "median", "sum", "std")


def with_summaries(frame: Frame, party: PartyFile, alignment: AlignmentConfig) -> Frame:
    """Return the table with the columns of ``repeats.aggregate`` and ``count``, which summarise all rows of a row's key.

    Rows and their order stay; ``read_keys`` decides which row of a key counts. Rows without a key get nulls. Raises DataError for
    an absent column, a statistic of numbers on a column without numbers, and a name that the table has already.
    """
    repeats = party.repeats
    if repeats is None or not (repeats.aggregate or repeats.count):
        return frame
    key = key_of(frame, columns=party.keys, alignment=alignment)
    numbered = pl.DataFrame({"key": key, "row": pl.int_range(frame.height, eager=True)}).drop_nulls("key")
    rows = latest_last(frame, numbered, repeats)
    pairs = [(column, each) for column, statistics in repeats.aggregate.items() for each in statistics]
    summaries: dict[str, pl.Series] = {}
    for column, statistic in pairs:
        name = column if len(repeats.aggregate[column]) == 1 else f"{column}_{statistic}"
        _require_free(name, frame, summaries, replaced=repeats.aggregate)
        # Compute a value for each key from its rows, in their order
        values = require_column(frame, column, use="repeats.aggregate")
        if statistic in _OF_NUMBERS and not (values.dtype.is_numeric() or values.dtype == pl.Boolean):
            raise DataError(
                f"repeats.aggregate.{column}: {statistic} is for numbers, and the column has type {values.dtype}; "
                "take min, max, count, distinct, first or last"
            )
        values = values.fill_nan(None) if values.dtype.is_float() else values
        table = rows.select("key", value=values.gather(rows.get_column("row")))
        summaries[name] = _spread(table.group_by("key", maintain_order=True).agg(_MADE[statistic](pl.col("value"))), key, name)
    if repeats.count is not None:
        _require_free(repeats.count, frame, summaries)
        summaries[repeats.count] = _spread(rows.group_by("key").agg(pl.len().alias("value")), key, repeats.count)
    columns = pl.DataFrame(list(summaries.values()))
    untouched = [name for name in frame.columns if name not in repeats.aggregate]
    if isinstance(frame, pl.DataFrame):
        return frame.select(untouched).hstack(columns)
    return frame.beside(untouched, columns)


def _spread(of_key: pl.DataFrame, key: pl.Series, name: str) -> pl.Series:
    """Assign every row the value of its key."""
    return key.to_frame("key").join(of_key, on="key", how="left", maintain_order="left").get_column("value").alias(name)


def _require_free(name: str, frame: Frame, summaries: Mapping[str, pl.Series], *, replaced: Collection[str] = ()) -> None:
    if name in summaries or (name in frame.columns and name not in replaced):
        raise DataError(f"repeats: would make a column {name!r}, which the table has already; rename that one")
