"""Read vectors: columns whose cells hold equally many numbers, such as embeddings, become one column per number.

The numbers of a vector form one block: each is centred by its own mean, and all are divided by one deviation. So the proportions
of directions and the cosines of centred vectors stay. No number of a vector gets an embedding of its own. A missing vector is
replaced by the mean, and one indicator marks it.

Shapes: N rows, W numbers of a vector.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from tallystick.errors import FeatureError
from tallystick.reading import did_you_mean
from tallystick.tables.lazy_table import Frame, store
from tallystick.tables.text import rows_listed

MOST_NUMBERS = 4096
_PLACE = re.compile(r"^(?P<vector>.+)\[(?P<place>[0-9]+)\]$", re.DOTALL)


def number_name(vector: str, place: int) -> str:
    """Return the name of the column of one number of a vector."""
    return f"{vector}[{place}]"


def vector_of(name: str, vectors: Sequence[str]) -> str:
    """Return the vector to which a column's number belongs, or an empty text if it belongs to none."""
    match = _PLACE.match(name)
    return match["vector"] if match is not None and match["vector"] in vectors else ""


def with_vectors(frame: Frame, vectors: Sequence[str], *, widths: Mapping[str, int] | None = None) -> Frame:
    """Replace these columns by one column per number, at the end of the table; for a large table, in a file.

    Cells may be Arrow's fixed-size or other lists, Polars' arrays, or text such as ``[0.5, -1]``, as pgvector writes it.
    ``widths`` has the numbers per vector in training, so that all cells may be missing now.

    Raises FeatureError for an absent column, for cells without numbers or with another count of numbers, and for a number that is
    missing, NaN or infinite. Rows are named by number.
    """
    if not vectors:
        return frame
    expressions, added = [], []
    for name in vectors:
        if name not in frame.schema:
            raise FeatureError(f"vectors: column {name!r} is not in the table; {did_you_mean(name, frame.columns)}")
        width = _checked_width(frame, name, (widths or {}).get(name))
        added += [number_name(name, place) for place in range(width)]
        numbers = _as_lists(pl.col(name), frame.schema[name])
        expressions += [numbers.list.get(place, null_on_oob=True).alias(number_name(name, place)) for place in range(width)]
    if taken := [name for name in added if name in frame.schema]:
        raise FeatureError(f"vectors: would make a column {taken[0]!r}, which the table has already; rename that one")
    untouched = [pl.col(name) for name in frame.columns if name not in vectors]
    if isinstance(frame, pl.DataFrame):
        return frame.select(*untouched, *expressions)
    assert frame.rows is None, "a table as it was read"
    written = store(frame.source.select(*untouched, *expressions))
    return replace(frame, source=written.source, held=written.held, block=type(frame.block)())


def widths_of(columns: Sequence[str], vectors: Sequence[str]) -> Mapping[str, int]:
    """Count a table's columns of each vector."""
    counts = dict.fromkeys(vectors, 0)
    for column in columns:
        if vector := vector_of(column, vectors):
            counts[vector] += 1
    return counts


def _as_lists(cells: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Read cells as lists of 32-bit numbers, as embeddings are."""
    if kind == pl.String:
        cells = cells.str.json_decode(pl.List(pl.Float64))
    elif isinstance(kind, pl.Array):
        cells = cells.arr.to_list()
    return cells.cast(pl.List(pl.Float32))


def _checked_width(frame: Frame, name: str, trained: int | None) -> int:
    """Return the number of numbers in each cell of a vector, which must be ``trained`` if that is given."""
    kind = frame.schema[name]
    inner = kind.inner if isinstance(kind, pl.List | pl.Array) else None
    is_vector = kind == pl.String or (inner is not None and inner.is_numeric()) or (kind == pl.Null and trained is not None)
    if not is_vector:
        raise FeatureError(
            f"vectors: column {name!r} has type {kind}; a vector's cells are lists of numbers, or text such as [0.5, -1]"
        )
    source = frame.lazy() if isinstance(frame, pl.DataFrame) else frame.source
    lists = _as_lists(pl.col(name), kind)
    number = pl.element()
    try:
        first = trained or source.select(lists.list.len().drop_nulls().first()).collect(engine="streaming").item()
        looked = source.select(
            (lists.list.len() != (first or 0)).alias("other"),
            lists.list.eval(number.is_null() | ~number.is_finite()).list.any().alias("bad"),
        ).collect(engine="streaming")
    except pl.exceptions.PolarsError:
        raise FeatureError(
            f"vectors: column {name!r} has a cell that is not a list of numbers; write a list, or text such as [0.5, -1]"
        ) from None
    width, other, bad = int(first or 0), looked.get_column("other"), looked.get_column("bad")
    if other.any() and trained is not None:
        raise FeatureError(
            f"vectors: column {name!r} had {width} numbers per cell in training, and has another count in {rows_listed(other)} "
            "rows; give vectors of the same model"
        )
    if other.any():
        raise FeatureError(
            f"vectors: column {name!r} has {width} numbers in its first cell and another count in {rows_listed(other)} rows; "
            "pad the vectors to one length, or list the column under sequences"
        )
    if bad.any():
        raise FeatureError(
            f"vectors: column {name!r} holds a number that is missing, NaN or infinite in {rows_listed(bad)} rows; make the "
            "whole cell null, or leave these rows out"
        )
    if not 1 <= width <= MOST_NUMBERS:
        raise FeatureError(f"vectors: column {name!r} holds {width} numbers a cell; 1 to {MOST_NUMBERS} can be read")
    return width
