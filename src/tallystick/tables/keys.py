"""Read keys: the ids by which rows are matched, spelt the same way by every party.

Shapes: N rows of the table, R rows that take part, U ids.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from struct import Struct
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.alignment.ids import Ids
from tallystick.alignment.key_ids import KeyIds, first_key, ids_by_key, key_prefix
from tallystick.alignment.linkages import LINKAGES
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.config.alignment import AlignmentConfig, KeyColumn
from tallystick.config.party import PartyFile, RepeatsConfig
from tallystick.errors import DataError, IdError
from tallystick.tables.key_spelling import key_doubts
from tallystick.tables.lazy_table import Frame
from tallystick.tables.normalise import join, normalise
from tallystick.tables.similar_keys import read_similar_keys
from tallystick.tables.table import require_column
from tallystick.tables.text import rows_listed
from tallystick.tables.times import ordered_times


@dataclass(frozen=True, kw_only=True)
class KeyReport:
    """Counts of rows with and without a usable key."""

    rows: int
    null_rows: int  # rows with a key column that is null, or empty after normalising
    duplicated_keys: int  # keys that are in more than one row
    duplicate_rows: int  # rows left out because another row has their key
    used: int  # rows that take part
    by_key: Mapping[str, int] = field(default_factory=dict)  # if there are several keys, number of rows that each may link
    repeats: str = ""  # in words: what happens to rows that share a key
    doubtful: tuple[str, ...] = ()  # warnings about key columns whose values look rounded, or seem to lack leading zeros

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def notes(self) -> list[str]:
        """Say in words which rows do not take part."""
        lines = []
        if self.null_rows:
            lines.append(f"{self.null_rows} of {self.rows} rows have no key")
        if self.duplicated_keys:
            left_out = f"{self.duplicate_rows} of {self.rows} rows are left out" if self.duplicate_rows else "no row is left out"
            lines.append(f"{self.duplicated_keys} keys occur in more than one row; {left_out}: {self.repeats}")
        if self.by_key:
            lines.append(f"rows by key: {', '.join(f'{name} {rows:,}' for name, rows in self.by_key.items())}")
        return [*lines, *self.doubtful]


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Unique ids in order of first occurrence in the table, the rows that take part, and the id of each row.

    Similar keys do not identify a row: then an id is the row's number in the table, and reveals nothing to others. If several
    keys may link a row, its id is that of its first key, and ``by_key`` has all of them.
    """

    ids: Ids  # U
    rows_R: NDArray[np.int64]  # row numbers of the table, in its order unless sorted
    id_R: NDArray[np.int64]  # index of each row's id; several rows may share one (alignment.duplicates = all)
    report: KeyReport
    similar: SimilarKeys | None = None
    by_key: tuple[KeyIds, ...] = ()

    def linked_ids(self, rows_M: NDArray[np.int64], alignment: Alignment) -> Ids:
        """Return the ids of these rows, out of the R, as all parties know them. A linked row has the id of its linking key."""
        if alignment.key_N is None:
            return self.ids_of(rows_M)
        number_R = first_key(self.by_key, len(self.rows_R))
        number_R[alignment.rows_N] = alignment.key_N
        return ids_by_key(self.by_key, number_R).gather(rows_M)

    def ids_of(self, rows_M: NDArray[np.int64]) -> Ids:
        """Return the ids of these rows, out of the R."""
        return self.ids.gather(self.id_R[rows_M])

    def only(self, is_in_U: NDArray[np.bool_]) -> "Keys":
        """Return only the rows of these ids."""
        assert self.similar is None, "each row has one id"
        assert not self.by_key, "each row has one id"
        place_U, takes_part_R = np.cumsum(is_in_U) - 1, is_in_U[self.id_R]
        ids = self.ids.gather(np.flatnonzero(is_in_U))
        return replace(self, ids=ids, rows_R=self.rows_R[takes_part_R], id_R=place_U[self.id_R[takes_part_R]])

    def sorted(self) -> "Keys":
        """Return the same rows in the order of their ids, which does not depend on the table's."""
        ids, place_U = self.ids.sorted()
        rank_U = np.empty_like(place_U)
        rank_U[place_U] = np.arange(len(place_U))
        order_R = np.argsort(rank_U[self.id_R], kind="stable")
        place_R = np.empty_like(order_R)
        place_R[order_R] = np.arange(len(order_R))
        by_key = tuple(replace(key, row_U=place_R[key.row_U]) for key in self.by_key)
        return replace(self, ids=ids, rows_R=self.rows_R[order_R], id_R=rank_U[self.id_R][order_R], by_key=by_key)


def who_of(names: Iterable[bytes]) -> NDArray[np.int64]:
    """Return a number for each row that identifies it in other tables, too. It seeds noise that belongs to the row."""
    hashes = bytearray()  # a joined list would take six times the memory
    for name in names:
        hashes += hashlib.blake2b(name, digest_size=8).digest()
    return (np.frombuffer(hashes, dtype="<u8").astype(np.uint64) >> np.uint64(1)).astype(np.int64)


def fingerprint(keys: Keys) -> str:
    """Return a digest of a table's ids in order. A saved alignment can only be used with the same table."""
    digest = hashlib.blake2b(digest_size=16)
    length = Struct(">I").pack
    for ids in (keys.ids, *(key.ids for key in keys.by_key)):
        for piece in ids.pieces():
            digest.update(b"".join(chain.from_iterable(zip(map(length, map(len, piece)), piece, strict=True))))
    for key in keys.by_key:
        digest.update(key.row_U.astype("<i8").tobytes())
    if len(keys.rows_R) > len(keys.ids):
        digest.update(keys.id_R.astype("<i8").tobytes())
    if keys.similar is not None:
        digest.update(keys.similar.digest())
    return digest.hexdigest()


def read_keys(
    frame: Frame,
    *,
    columns: Mapping[str, str],
    alignment: AlignmentConfig,
    repeats: RepeatsConfig | None = None,
    is_label: bool = True,
) -> Keys:
    """Normalise a table's keys, and handle nulls and duplicates as the contract and the party file say.

    Args:
        frame: N rows.
        columns: contract's key name to own column.
        alignment: the key columns in order with their steps, and the rules for nulls and duplicates.
        repeats: the party file's rule for rows that share a key; it overrides the contract's.
        is_label: whether this is the label party. Only its rows may all take part.

    Raises DataError for an absent column, and IdError for more rows than ``max_rows``, for keys that are all null, for duplicates
    that leave nothing, and for any null or duplicate where the rule is ``error``. Rows are named by number, never by content.
    """
    if alignment.max_rows is not None and frame.height > alignment.max_rows:
        raise IdError(f"the table has {frame.height} rows, over alignment.max_rows = {alignment.max_rows} of the contract")
    if alignment.similarity is not None:
        similar, rows_R = read_similar_keys(frame, columns=columns, terms=alignment.similarity, nulls=alignment.nulls)
        report = KeyReport(
            rows=frame.height, null_rows=frame.height - len(rows_R), duplicated_keys=0, duplicate_rows=0, used=len(rows_R)
        )
        ids = Ids.of([b"row %d" % row for row in rows_R])
        return Keys(ids=ids, rows_R=rows_R, id_R=np.arange(len(ids)), report=report, similar=similar)
    if alignment.any_of:
        return _keys_of_any(frame, columns, alignment)
    key = key_of(frame, columns=columns, alignment=alignment)
    names = ", ".join(columns[each.name] for each in alignment.keys)
    null_rows = _require_keys(names, key.is_null(), alignment)
    counting = _counting_rows(frame, key, names, alignment, repeats=repeats, is_label=is_label)
    if not counting.rows.height:
        raise IdError(
            f"key ({names}): every key occurs in more than one row, and alignment.duplicates = drop leaves out all of them; "
            "use a key that identifies a row, or duplicates: all"
        )
    report = KeyReport(
        rows=frame.height,
        null_rows=null_rows,
        duplicated_keys=counting.duplicated,
        duplicate_rows=frame.height - null_rows - counting.rows.height,
        used=counting.rows.height,
        repeats=counting.words,
        doubtful=key_doubts(frame, columns=columns, alignment=alignment),
    )
    key = counting.rows.get_column("key")
    if not counting.duplicated:
        used_keys, id_R = key, np.arange(len(key))
    else:  # the distinct keys in order, and the place of each row's key among them
        keys = key.to_frame("key").unique(maintain_order=True).with_row_index("id")
        numbers = key.to_frame("key").join(keys, on="key", how="left", maintain_order="left").get_column("id")
        used_keys, id_R = keys.get_column("key"), numbers.cast(pl.Int64).to_numpy()
    rows_R = counting.rows.get_column("row").cast(pl.Int64).to_numpy()
    return Keys(ids=Ids(used_keys.cast(pl.Binary), distinct=True), rows_R=rows_R, id_R=id_R, report=report)


def _require_keys(names: str, is_null_N: pl.Series, alignment: AlignmentConfig) -> int:
    """Count the rows without a key. Raises IdError if all rows lack one, or if none may."""
    null_rows = int(is_null_N.sum())
    if null_rows == len(is_null_N):
        raise IdError(f"key ({names}): all {len(is_null_N)} rows are null or empty; check the column and the normalise steps")
    if null_rows and alignment.nulls == "error":
        raise IdError(f"key ({names}): null or empty in {rows_listed(is_null_N)} rows; the contract's alignment.nulls is error")
    return null_rows


@dataclass(frozen=True, kw_only=True)
class _Counting:
    """The rows that count for their key (columns ``key`` and ``row``), the number of repeated keys, and what happens to them."""

    rows: pl.DataFrame
    duplicated: int
    words: str


def _counting_rows(
    frame: Frame,
    key: pl.Series,
    names: str,
    alignment: AlignmentConfig,
    *,
    repeats: RepeatsConfig | None = None,
    is_label: bool = True,
) -> _Counting:
    """Choose which rows of a key count. Raises IdError if keys repeat and may not."""
    table = pl.DataFrame({"key": key, "row": pl.int_range(len(key), eager=True)}).drop_nulls("key")
    distinct = _are_distinct(table.get_column("key"))  # the usual case: avoids two tables of all keys
    duplicated = 0 if distinct else table.group_by("key").len().filter(pl.col("len") > 1).height
    if repeats is not None:
        rows, words = latest_last(frame, table, repeats).unique("key", keep="last").sort("row"), repeats.words
    else:
        if duplicated:
            what = f"key ({names}): {duplicated} keys occur in more than one row"
            if alignment.duplicates == "error":
                repeated = rows_listed(key.is_duplicated() & key.is_not_null())
                raise IdError(f"{what}: {repeated} rows; the contract's alignment.duplicates is error")
            if alignment.duplicates == "all" and not is_label:
                raise IdError(
                    f"{what}; with alignment.duplicates = all only the label party's keys may: say under repeats in the party "
                    "file which row of a key counts, such as repeats: {latest: COLUMN}"
                )
        rows, words = table, _said_of_rule(alignment, is_label=is_label)
        if not distinct and alignment.duplicates != "all":
            rows = table.unique("key", keep="first" if alignment.duplicates == "first" else "none", maintain_order=True)
    return _Counting(rows=rows, duplicated=duplicated, words=words if duplicated else "")


def _are_distinct(keys: pl.Series) -> bool:
    """Tell whether no key repeats. Sorting hashes takes half the memory of Polars' own count, and a fourth of its time."""
    hash_N = np.sort(keys.hash().to_numpy())
    return bool((hash_N[1:] != hash_N[:-1]).all()) or keys.n_unique() == len(keys)


def _keys_of_any(frame: Frame, columns: Mapping[str, str], alignment: AlignmentConfig) -> Keys:
    """Read ids by each of several keys. A row takes part if it counts for one of them."""
    keys = [_joined(frame, columns, each.columns) for each in alignment.any_of]
    has_key_NK = np.stack([key.is_not_null().to_numpy() for key in keys], axis=1)
    every_name = ", ".join(columns[each.name] for each in alignment.keys)
    null_rows = _require_keys(every_name, pl.Series(~has_key_NK.any(axis=1)), alignment)
    counting = [
        _counting_rows(frame, key, ", ".join(columns[column.name] for column in each.columns), alignment)
        for key, each in zip(keys, alignment.any_of, strict=True)
    ]
    row_of_key = [each.rows.get_column("row").cast(pl.Int64).to_numpy() for each in counting]
    takes_part_N = np.zeros(frame.height, dtype=bool)
    for row_U in row_of_key:
        takes_part_N[row_U] = True
    rows_R, place_N = np.flatnonzero(takes_part_N), np.cumsum(takes_part_N) - 1
    if not len(rows_R):
        raise IdError(
            f"key ({every_name}): every value occurs in more than one row, and alignment.duplicates = drop leaves out all of "
            "them; use keys that identify a row, or duplicates: first"
        )
    by_key = tuple(
        KeyIds(
            name=each.name,
            ids=Ids(those.rows.get_column("key").cast(pl.Binary), distinct=True),
            row_U=place_N[row_U],
            earlier_U=has_key_NK[row_U, :number] @ (1 << np.arange(number)),
        )
        for number, (each, those, row_U) in enumerate(zip(alignment.any_of, counting, row_of_key, strict=True))
    )
    report = KeyReport(
        rows=frame.height,
        null_rows=null_rows,
        duplicated_keys=sum(each.duplicated for each in counting),
        duplicate_rows=frame.height - null_rows - len(rows_R),
        used=len(rows_R),
        by_key={key.name: len(key.ids) for key in by_key},
        repeats=next((each.words for each in counting if each.words), ""),
        doubtful=key_doubts(frame, columns=columns, alignment=alignment),
    )
    ids = ids_by_key(by_key, first_key(by_key, len(rows_R)))
    return Keys(ids=ids, rows_R=rows_R, id_R=np.arange(len(rows_R)), report=report, by_key=by_key)


def keys_of(frame: Frame, party: PartyFile, alignment: AlignmentConfig) -> Keys:
    """Read a party's keys as read_keys does. Errors name the party. The party that names a label is the label party."""
    is_label = bool(party.labels)
    try:
        return read_keys(frame, columns=party.keys, alignment=alignment, repeats=party.repeats, is_label=is_label)
    except DataError as error:
        raise type(error)(f"party {party.party}: {error}") from None


def key_of(frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig) -> pl.Series:
    """Return the key of each row as text, null if it has none. If several keys may link a row, join all that it has.

    Raises DataError for an absent column, IdError for floats so large that two ids may have become one.
    """
    if not alignment.any_of:
        return _joined(frame, columns, alignment.keys)
    parts = [_joined(frame, columns, each.columns) for each in alignment.any_of]
    has_none = (
        pl.DataFrame([part.alias(str(number)) for number, part in enumerate(parts)])
        .select(pl.all_horizontal(pl.all().is_null()))
        .to_series()
    )
    return join([("=" + part).fill_null("") for part in parts]).set(has_none, None)


def ids_of_persons(frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig) -> set[bytes]:
    """Return every id that may identify these rows: by all keys together, and by each key that may link alone.

    Raises as key_of does.
    """
    ids = set(key_of(frame, columns=columns, alignment=alignment).drop_nulls().cast(pl.Binary))
    for number, each in enumerate(alignment.any_of):
        alone = _joined(frame, columns, each.columns).drop_nulls().cast(pl.Binary)
        ids |= {*alone, *Ids(alone, distinct=False).prefixed(key_prefix(number))}
    return ids


def _joined(frame: Frame, columns: Mapping[str, str], keys: Sequence[KeyColumn]) -> pl.Series:
    """Return the joined value of these key columns, null if one of them is null."""
    parts = []
    for key in keys:
        column = require_column(frame, columns[key.name], use="key")
        if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
            raise IdError(
                f"key column {column.name!r} has type {column.dtype}; a key is text, a number, a date or a time: name another "
                "column under keys, or convert this one"
            )
        # Large whole numbers share a float with their neighbours, so such ids would match other people's ids.
        if column.dtype.is_float():
            digits = 24 if column.dtype == pl.Float32 else 11 if column.dtype == pl.Float16 else 53
            beyond = column.is_finite() & (column.abs() >= 2.0**digits)
            if beyond.fill_null(False).any():
                raise IdError(
                    f"key column {column.name!r} holds floats, and {rows_listed(beyond)} rows have ids of 2^{digits} = "
                    f"{2**digits} or more: from there on {column.dtype} no longer distinguishes neighbouring whole numbers, so "
                    "different ids may have become equal; read the column as whole numbers or as text (in pandas: dtype 'Int64' "
                    "or str, which allow missing ids, too)"
                )
        parts.append(normalise(column, key.normalise))
    return join(parts)


def latest_last(frame: Frame, table: pl.DataFrame, repeats: RepeatsConfig) -> pl.DataFrame:
    """Sort the rows of ``table``, which has their numbers, so that later ones come last. Raises DataError."""
    if repeats.latest is None:
        return table
    times = ordered_times(require_column(frame, repeats.latest, use="repeats.latest"), use="repeats.latest")
    return table.with_columns(time=times.gather(table.get_column("row"))).sort("time", "row", nulls_last=False).drop("time")


def _said_of_rule(alignment: AlignmentConfig, *, is_label: bool) -> str:
    rule = f"alignment.duplicates = {alignment.duplicates}"
    if alignment.duplicates == "all":
        return f"each is joined with the other side's row of its key ({rule})"
    if alignment.any_of:
        whose = "the first of these rows" if alignment.duplicates == "first" else "none of these rows"
        return f"{whose} may be linked by it ({rule})"
    counts = "the first row of a key counts" if alignment.duplicates == "first" else "none of a key's rows counts"
    takes_all = is_label and not LINKAGES[alignment.method].imputes
    instead = "agree on alignment.duplicates: all to use every row" if takes_all else "say under repeats which one counts"
    return f"{counts} ({rule}); {instead}"
