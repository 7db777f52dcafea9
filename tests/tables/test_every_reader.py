"""A column of any kind is encoded alike by every reader, in training, prediction, serving or a later training.

Hypothesis draws the cells. If two readers disagree, they must refuse the column by its name.
"""

import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import numpy as np
import polars as pl
import polars.selectors as cs
import postgres
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import by_turns, short_lane_of
from tiny import contract_values

from tallystick.config.contract import parse_contract
from tallystick.config.party import FeatureColumns, parse_party
from tallystick.config.serving import Postgres
from tallystick.config.table import TableConfig
from tallystick.errors import DataError, StoreError
from tallystick.scoring.stores.postgres import PostgresDatabase
from tallystick.scoring.stores.queried import QueriedStore
from tallystick.serving.problem_details import Problem
from tallystick.serving.requests import Reader, ScoreRequest
from tallystick.tables.encoder import Encoder
from tallystick.tables.extension import extended
from tallystick.tables.frame import as_frame
from tallystick.tables.keys import keys_of
from tallystick.tables.profile import profile
from tallystick.tables.table import read_rows, read_table

CONTRACT = parse_contract(contract_values(("bank", "shop")))
MOMENT = st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)).map(lambda each: each.replace(microsecond=0))
KINDS = {
    "whole": (pl.Int64, st.integers(-(2**40), 2**40)),
    "real": (pl.Float64, st.floats(-1e6, 1e6).map(lambda each: round(each, 4))),
    "true": (pl.Boolean, st.booleans()),
    "words": (pl.String, st.sampled_from(["red", "green", "blue", "grün", "a b"])),
    "words that may mean missing": (pl.String, st.sampled_from(["red", "green", "NA", "NULL", "n/a", "?"])),
    "codes": (pl.String, st.sampled_from(["01067", "1067", "1.10", "1.1", "12E4", "K1A", "K2B"])),
    "digits": (pl.String, st.sampled_from(["01067", "01069", "04103", "99999"])),
    "days": (pl.Date, st.dates(date(2000, 1, 1), date(2030, 1, 1))),
    "moments": (pl.Datetime("us"), MOMENT),
    "midnights": (pl.Datetime("us"), MOMENT.map(lambda each: each.replace(hour=0, minute=0, second=0))),
    "zoned": (pl.Datetime("us", "UTC"), MOMENT.map(lambda each: each.replace(tzinfo=UTC))),
    "times": (pl.Time, st.times(time(0), time(23, 59)).map(lambda each: each.replace(microsecond=0))),
    "durations": (pl.Duration("us"), st.integers(-(10**6), 10**6).map(lambda each: timedelta(seconds=each))),
    "decimals": (pl.Decimal(18, 4), st.integers(-(10**9), 10**9).map(lambda each: Decimal(each) / 10_000)),
    "single": (pl.Float32, st.integers(-(10**4), 10**4).map(lambda each: each / 16)),
    "unsigned": (pl.UInt64, st.integers(0, 2**64 - 1)),
    "exponents": (pl.String, st.sampled_from(["12E4", "3E5", "7e2"])),
    "dictionary": (pl.Categorical, st.sampled_from(["low", "high", "grün"])),
}  # fmt: skip


def written(rows: pl.DataFrame, folder: Path, way: str) -> dict[str, str]:
    """Write the rows for a reader. Return what the party file says of the table."""
    if way == "csv":
        rows.with_columns(cs.duration().dt.to_string("iso")).write_csv(folder / "t.csv")
        return {"path": "t.csv"}
    if way == "sqlite":
        (folder / "t.db").unlink(missing_ok=True)
        plain = rows.with_columns(cs.duration().dt.to_string("iso"), cs.decimal().cast(pl.Float64)).with_columns(
            (cs.temporal() | cs.categorical()).cast(pl.String)
        )
        with closing(sqlite3.connect(folder / "t.db")) as connection:
            connection.execute("CREATE TABLE rows (id TEXT, x)")
            connection.executemany("INSERT INTO rows VALUES (?, ?)", plain.rows())
            connection.commit()
        return {"query": "SELECT * FROM rows", "database": "sqlite:t.db"}
    rows.write_parquet(folder / "t.parquet")
    return {"path": "t.parquet"} if way == "parquet" else {"query": "SELECT * FROM 't.parquet'"}


def party_of(table, folder):
    values = {"party": "bank", "table": table, "keys": {"id": "id"}, "encoding": {"min_count": 1}}
    return parse_party(values, folder=folder)


def read(rows: pl.DataFrame, folder: Path, way: str, trained: Encoder | None):
    """Read the rows by a reader."""
    if way in ("csv", "parquet", "duckdb", "sqlite"):
        party = party_of(written(rows, folder, way), folder)
        return read_rows(party.table, party, trained=trained)
    arrow = rows.to_arrow()
    if way == "fixed offset" and rows.dtypes[1] == pl.Datetime("us", "UTC"):
        arrow = arrow.set_column(1, rows.columns[1], arrow[rows.columns[1]].cast(pa.timestamp("us", tz="+05:30")))
    return as_frame({"polars": rows, "pandas": rows.to_pandas()}.get(way, arrow), source="bank")


def values(features):
    return np.concatenate([features.numeric_NF.numpy(), features.categorical_NG.numpy()], axis=1).tolist()


def served(rows: pl.DataFrame, encoder: Encoder, way: str, folder: Path):
    """Ask for the rows over HTTP."""
    reader = Reader.of(CONTRACT, party_of({"path": "t.csv"}, folder), encoder, rows)
    if way == "json":
        plain = rows.cast({cs.decimal(): pl.Float64}).with_columns(cs.duration().dt.to_string("iso"))
        cells = [
            {name: cell.isoformat() if hasattr(cell, "isoformat") else cell for name, cell in row.items()}
            for row in plain.iter_rows(named=True)
        ]
        return reader.json(ScoreRequest(rows=cells)).own
    sink = pa.BufferOutputStream()
    arrow = rows.cast({pl.Categorical: pl.String}).to_arrow(compat_level=pl.CompatLevel.oldest())  # no dictionaries in a stream
    with pa.ipc.new_stream(sink, arrow.schema) as stream:
        stream.write_table(arrow)
    return reader.arrow(sink.getvalue().to_pybytes()).own


class Server:
    """A PostgreSQL server: rows are written to it, read by a query, and looked up by key."""

    def __init__(self, address):
        import adbc_driver_postgresql.dbapi as dbapi

        self.place = {"database": f"postgresql://me@{address}"}
        self._connection = dbapi.connect(f"postgresql://me:{quote(postgres.PASSWORD)}@{address}", autocommit=True)

    def write(self, rows):
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest("rows", rows.to_arrow(compat_level=pl.CompatLevel.oldest()), mode="replace")

    def read(self, folder, trained):
        party = party_of({"query": "SELECT * FROM rows"} | self.place, folder)
        return read_rows(party.table, party, trained=trained)

    def looked_up(self, encoder, schema, keys):
        config = Postgres.model_validate(
            {"method": "postgres", "query": "SELECT id AS key, x FROM rows WHERE id = ANY($1)"} | self.place
        )
        store = QueriedStore(PostgresDatabase(config, text=()), encoder, schema)
        try:
            return store.find([key.encode() for key in keys]).features_E
        finally:
            store.close()

    def close(self):
        self._connection.close()


@pytest.fixture(scope="module")
def server():
    """A real server, which ends with the module. Its password is where libpq looks for one."""
    pytest.importorskip("adbc_driver_postgresql", reason="no driver (pip install 'tallystick[postgres]')")
    with pytest.MonkeyPatch.context() as patch, postgres.server() as address:
        patch.setenv("PGPASSWORD", postgres.PASSWORD)
        server = Server(address)
        yield server
        server.close()


FRAMES = ("csv", "parquet", "duckdb", "polars", "pandas", "arrow", "fixed offset")
MAY_REFUSE = {"codes": {"json"}, "digits": {"json"}, "durations": {*FRAMES, "json", "stream"}}
"""JSON has types: text is no number, where a CSV column without a letter was trained as numbers. A CSV and JSON have no
durations. DuckDB reads durations that Polars writes as numbers. Everything else must be read.
"""


def rows_of(kind, data):
    """Draw a table of a key and a column of this kind."""
    dtype, cells = KINDS[kind]
    drawn = data.draw(st.lists(st.none() | cells, min_size=4, max_size=8))
    return pl.DataFrame({"id": [f"k{number}" for number in range(len(drawn))], "x": pl.Series(drawn, dtype=dtype)})


def brought(rows, folder, way, trained, server):
    return server.read(folder, trained) if way == "postgres" else read(rows, folder, way, trained)


def compared(rows, way, later_ways, *, may_refuse=frozenset(), server=None):
    """Train on rows of one reader. All later readers give the same values, or name the column."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        party, first = party_of({"path": "t.csv"}, folder), brought(rows, folder, way, None, server)
        encoder = Encoder.of_party(first, party, np.arange(rows.height), numbers="plain")
        if encoder is None:  # a single value
            return
        wanted, refused = values(encoder.encode(first).unpacked()), []
        for later in later_ways:
            try:
                if later in ("json", "stream"):
                    later_values = values(served(rows, encoder, later, folder))
                elif later == "postgres store":
                    later_values = values(server.looked_up(encoder, first.schema, rows["id"]))
                else:
                    frame = brought(rows, folder, later, encoder, server)
                    later_values = values(encoder.encode(frame).unpacked())
                    again = extended(encoder, frame, party, np.arange(rows.height))
                    assert values(again.encode(frame).unpacked()) == wanted, (way, later, "start from")
            except (DataError, Problem, StoreError) as error:
                said = str(getattr(error, "detail", error))
                assert any(f"column {name!r}" in said for name in rows.columns[1:]), (way, later, said)
                refused.append(later)
            else:
                assert later_values == wanted, (way, later)
        assert way not in refused
        assert set(refused) <= may_refuse, (way, refused)


@pytest.mark.parametrize("kind", short_lane_of(KINDS, 7))
@settings(max_examples=3, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_column_is_encoded_alike_whichever_reader_brings_it(kind, data):
    rows, way = rows_of(kind, data), data.draw(st.sampled_from(FRAMES))
    compared(rows, way, (*FRAMES, "json", "stream"), may_refuse=MAY_REFUSE.get(kind, set()))


@pytest.mark.parametrize("examples", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", short_lane_of([kind for kind in KINDS if kind != "durations"], 4))  # intervals are refused
def test_a_column_of_a_postgresql_server_is_encoded_alike(kind, examples, server):
    """Rows of one reader are trained on, and read by the others, and the other way round. A store of rows looks them up
    by key, too.
    """

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(data=st.data())
    def tried(data):
        rows = rows_of(kind, data)
        server.write(rows)
        if data.draw(st.booleans()):
            later_ways, may_refuse = (*FRAMES, "postgres", "postgres store", "json", "stream"), MAY_REFUSE.get(kind, set())
            compared(rows, "postgres", later_ways, may_refuse=may_refuse, server=server)
        else:
            compared(rows, data.draw(st.sampled_from(FRAMES)), ("postgres", "postgres store"), server=server)

    tried()


TYPES_OF_SQLITE = {"whole", "real", "true", "words", "codes", "digits", "decimals", "single", "exponents", "dictionary"}
"""It has numbers and text, and nothing for times: these are text there, as another reader would read them in training."""


def test_a_decimal_is_one_key_whichever_reader_brings_it(server, tmp_path):
    rows = pl.DataFrame({"id": pl.Series([Decimal("1.50"), Decimal("2.00"), Decimal("-0.10")], dtype=pl.Decimal(10, 2)), "x": 1})
    server.write(rows)
    frames = {way: read(rows, tmp_path, way, None) for way in ("parquet", "duckdb", "polars", "pandas", "arrow")}
    frames["postgres"] = server.read(tmp_path, None)
    for way, frame in frames.items():
        assert list(keys_of(frame, party_of({"path": "t.csv"}, tmp_path), CONTRACT.alignment).ids) == [b"1.5", b"2", b"-0.1"], way


@pytest.mark.parametrize("kind", short_lane_of([kind for kind in KINDS if kind != "durations"], 4))
@settings(max_examples=2, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_column_of_sqlite_is_encoded_alike(kind, data):
    rows, way = rows_of(kind, data), data.draw(st.sampled_from(FRAMES))
    compared(rows, way, ["sqlite"])
    if kind in TYPES_OF_SQLITE:
        compared(rows, "sqlite", (*FRAMES, "sqlite", "json", "stream"), may_refuse=MAY_REFUSE.get(kind, set()))


NAMES = (
    *("a.b", "a,b", "x[0]", "two\nlines", " x ", '"quoted"', "caf\u00e9", "cafe\u0301", "v" * 3000, "\u200b", "\u05e9\u05dc",),
    *("*", "0", "id is missing", "x is missing", "row number", "key", "len", "text", "index", "^x", "x$", "__index", "col('x')"),
)  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [NAMES[::2], NAMES[1::2], *(pytest.param((name,), marks=pytest.mark.long) for name in NAMES)],  # two of them look alike
    ids=("some", "others", *map(ascii, NAMES)),
)
def test_a_column_of_any_name_is_read_alike_by_every_reader(names):
    columns = {name: [3, None, place, 4, 1] for place, name in enumerate(names)}
    rows = pl.DataFrame({"id": ["a", "b", "c", "d", "e"], **columns})
    compared(rows, "csv", (*FRAMES, "json", "stream"))
    compared(rows, "pandas", (*FRAMES, "json", "stream"))


@pytest.mark.parametrize("way", FRAMES)
@pytest.mark.parametrize("name", ["^x.*$", "^$", "^a\nb$"])
def test_a_name_that_is_a_pattern_of_names_is_refused_by_every_reader(tmp_path, way, name):
    with pytest.raises(DataError, match=r"a column is called .*; a name that begins .* is read as a pattern"):
        read(pl.DataFrame({"id": ["a", "b"], name: [1, 2], "x1": [3, 4]}), tmp_path, way, None)


@pytest.mark.parametrize(("later", "missing"), by_turns([*FRAMES[1:], "json", "stream"], ["NA", "null", "", "gone"]))
def test_what_a_file_takes_for_a_missing_cell_of_text_is_one_in_whatever_is_read_later(missing, later, tmp_path):
    """The party file names `gone`. Rows that never were a file have the word, or an empty text, as it is written there."""
    rows = pl.DataFrame({"id": [f"k{number}" for number in range(9)], "x": ["red", "green", missing] * 3})
    party = party_of({**written(rows, tmp_path, "csv"), "missing": ["NA", "null", "gone"]}, tmp_path)
    first = read_rows(party.table, party, trained=None)
    assert first.get_column("x").null_count() == 3
    encoder = Encoder.of_party(first, party, np.arange(9), numbers="plain")
    wanted = values(encoder.encode(first).unpacked())
    assert wanted[2] not in (wanted[0], wanted[1])
    if later in ("json", "stream"):
        assert values(served(rows, encoder, later, tmp_path)) == wanted
        return
    frame = read(rows, tmp_path, later, encoder)
    assert values(encoder.encode(frame).unpacked()) == wanted
    assert values(encoder.encode(frame[np.array([2, 0])]).unpacked()) == [wanted[2], wanted[0]]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("kind", [pl.Int64, pl.Float64])
def test_a_number_that_is_named_as_missing_is_missing_in_every_file(tmp_path, ending, kind):
    frame = pl.DataFrame({"x": pl.Series([1, -999, None, 3, -99], dtype=kind), "z": [-999, 1, 2, 3, 4]})
    path = tmp_path / f"t.{ending}"
    (frame.write_csv if ending == "csv" else frame.write_parquet)(path)
    words = ("-999", "-999.0", "no number")
    table = read_table(TableConfig(path=path, missing_in={"x": words}))
    assert table.get_column("x").to_list() == [1, None, None, 3, -99]
    assert table.get_column("z").to_list() == [-999, 1, 2, 3, 4]


STAND_INS = {
    "whole": ([1, -999, 5, 3], "-999"),
    "real": ([1.5, -999.0, 5.0, 3.0], "-999"),
    "days": ([date(2024, 1, 2), date(9999, 12, 31), date(2024, 1, 4), date(2024, 2, 1)], "9999-12-31"),
    "moments": ([datetime(2024, month, 2, 3) for month in (1, 12, 4, 2)], "2024-12-02 03:00:00"),
    "zoned": ([datetime(2024, day, 2, 3, tzinfo=UTC) for day in (1, 12, 4, 2)], "2024-12-02 03:00:00+00:00"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("trained", "everywhere"), by_turns([(kind, first) for first in ("csv", "parquet") for kind in STAND_INS], [False, True])
)
def test_a_value_that_stands_for_a_missing_one_is_one_whatever_is_read_later(trained, everywhere, tmp_path):
    """The party file of the training names it. Later a query or a request has it unchanged."""
    kind, first = trained
    cells, word = STAND_INS[kind]
    rows = pl.DataFrame({"id": list("abcd"), "x": pl.Series(cells, dtype=KINDS[kind][0])})
    named = {"missing": [word]} if everywhere else {"missing_in": {"x": [word]}}
    text = rows.with_columns(pl.col("x").dt.to_string("%Y-%m-%d %H:%M:%S%:z")) if kind == "zoned" and first == "csv" else rows
    party = party_of({**written(text, tmp_path, first), **named}, tmp_path)
    trained = read_rows(party.table, party, trained=None)
    assert trained.get_column("x").null_count() == 1
    encoder = Encoder.of_party(trained, party, np.arange(4), numbers="plain")
    wanted = values(encoder.encode(trained).unpacked())
    for later in (*FRAMES, "sqlite"):
        if later == "sqlite" and kind == "zoned":
            continue  # its text has no zone
        frame = read(rows, tmp_path, later, encoder)
        assert values(encoder.encode(frame).unpacked()) == wanted, later
        assert values(encoder.encode(frame[np.array([1, 0])]).unpacked()) == [wanted[1], wanted[0]], later
    for later in ("json", "stream"):
        assert values(served(rows, encoder, later, tmp_path)) == wanted, later


LARGE_STAND_INS = {
    "beyond 2^53": (pl.Int64, 2**53 + 1),
    "the largest": (pl.Int64, 2**63 - 2),
    "unsigned": (pl.UInt64, 2**64 - 2),
    "huge": (pl.Decimal(38, 0), 10**30 + 1),
    "negative": (pl.Int64, -(10**18) + 1),
}


@pytest.mark.parametrize(("kind", "first"), by_turns(LARGE_STAND_INS, ["csv", "parquet", "pandas"]))
def test_a_neighbour_of_a_stand_in_is_a_value_however_large_both_are(kind, first, tmp_path):
    """Floating point does not distinguish them; a column of whole numbers does."""
    dtype, number = LARGE_STAND_INS[kind]
    cells = [number, number - 1, number + 1, 7]
    rows = pl.DataFrame({"id": list("abcd"), "x": pl.Series(cells, dtype=dtype)})
    party = party_of({**written(rows, tmp_path, "parquet" if first == "pandas" else first), "missing": [str(number)]}, tmp_path)
    trained = read_rows(party.table, party, trained=None)
    assert trained.get_column("x").is_null().to_list() == [True, False, False, False]
    encoder = Encoder.of_party(trained, party, np.arange(4), numbers="plain")
    wanted = values(encoder.encode(trained).unpacked())
    ways = [way for way in (*FRAMES, "sqlite") if way != "sqlite" or dtype == pl.Int64]
    for later in ways:
        assert values(encoder.encode(read(rows, tmp_path, later, encoder)).unpacked()) == wanted, later
    assert values(served(rows, encoder, "stream", tmp_path)) == wanted
    reader = Reader.of(CONTRACT, party, encoder, rows)
    for extra in (7, 7.0):
        request = [{"id": key, "x": cell} for key, cell in zip("abcd", [*cells[:3], extra], strict=True)]
        assert values(reader.json(ScoreRequest(rows=request)).own) == wanted


OTHER_STAND_INS = {
    "a comma of decimals": (
        {"decimal": ",", "missing": ["-999,50"]},
        ["1,5", "-999,5", "2,5", "1.003,25"],
        [1.5, None, 2.5, 1003.25],
    ),
    "an exponent": ({"missing": ["1e3"]}, ["5", "1000", "7", "9"], [5, None, 7, 9]),
    "a date as it is written": (
        {"missing": ["31.12.9999"]},
        ["03.01.2024", "31.12.9999", "04.02.2024", "05.02.2024"],
        [date(2024, 1, 3), None, date(2024, 2, 4), date(2024, 2, 5)],
    ),
    "a midnight": (
        {"missing": ["9999-12-31 00:00:00"]},
        ["2024-01-03", "9999-12-31 00:00:00", "2024-01-04", "2024-02-05"],
        [date(2024, 1, 3), None, date(2024, 1, 4), date(2024, 2, 5)],
    ),
    "a time of day": ({"missing": ["00:00"]}, ["08:05", "00:00", "09:30", "10:00"], [time(8, 5), None, time(9, 30), time(10)]),
    "a word": ({"missing": ["keine Angabe"]}, ["red", "keine Angabe", "red", "blue"], ["red", None, "red", "blue"]),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "first"), by_turns(OTHER_STAND_INS, ["csv", "parquet"]))
def test_a_stand_in_of_any_kind_is_missing_in_every_file_and_in_whatever_is_read_later(kind, first, tmp_path):
    named, cells, read_as = OTHER_STAND_INS[kind]
    stand_in = {"a date as it is written": date(9999, 12, 31), "a midnight": date(9999, 12, 31), "a time of day": time(0)}
    stand_in |= {"a comma of decimals": -999.5, "an exponent": 1000, "a word": "keine Angabe"}
    typed = pl.DataFrame({"id": list("abcd"), "x": [stand_in[kind] if cell is None else cell for cell in read_as]})
    values_of_party = {"dates": {"x": "%d.%m.%Y"}} if kind == "a date as it is written" else {}
    if first == "csv":
        (tmp_path / "t.csv").write_text("id;x\n" + "".join(f"{key};{cell}\n" for key, cell in zip("abcd", cells, strict=True)))
        table = {"path": "t.csv", **named}
    else:
        table = {**written(typed, tmp_path, "parquet"), **{key: each for key, each in named.items() if key != "decimal"}}
        if "decimal" in named:
            table["missing"] = ["-999.5"]
        if kind == "a date as it is written":  # as text, which `dates` reads
            pl.DataFrame({"id": list("abcd"), "x": cells}).write_parquet(tmp_path / "t.parquet")
    party = parse_party(
        {"party": "bank", "table": table, "keys": {"id": "id"}, "encoding": {"min_count": 1}, **values_of_party}, folder=tmp_path
    )
    trained = read_rows(party.table, party, trained=None)
    assert trained.get_column("x").to_list() == read_as
    encoder = Encoder.of_party(trained, party, np.arange(4), numbers="plain")
    wanted = values(encoder.encode(trained).unpacked())
    for later in ("parquet", "polars", "pandas", "arrow", "duckdb"):
        assert values(encoder.encode(read(typed, tmp_path, later, encoder)).unpacked()) == wanted, later
    for later in ("json", "stream"):
        assert values(served(typed, encoder, later, tmp_path)) == wanted, later


@pytest.mark.parametrize(
    ("mark", "way"), by_turns(["?", "n/a", "", "  ", "Unbekannt"], ["parquet", "duckdb", "sqlite", "polars"])
)
def test_a_mark_among_words_is_said_by_every_reader_until_the_party_says_what_it_is(mark, way, tmp_path):
    rows = pl.DataFrame({"id": [f"k{number}" for number in range(9)], "x": ["red", "green", mark] * 3})
    frame, party = read(rows, tmp_path, way, None), party_of({"path": "t.parquet"}, tmp_path)

    def said(party):
        told = [each for each in profile(frame, party).warnings if "may mean a missing cell" in each]
        encoder = Encoder.of_party(frame, party, np.arange(9), numbers="plain")
        assert [each for each in encoder.notes if "may mean a missing cell" in each] == told
        return told

    (line,) = said(party)
    assert line.startswith(f"column 'x': cells {mark!r} stay values")
    assert f"table.missing_in: {{x: [{mark!r}]}}" in line
    assert not said(party.model_copy(update={"features": FeatureColumns(categorical=("x",))}))
    rows.write_parquet(tmp_path / "t.parquet")
    named = party_of({"path": "t.parquet", "missing_in": {"x": [mark]}}, tmp_path)
    assert read_rows(named.table, named, trained=None).get_column("x").null_count() == 3


@pytest.mark.parametrize("later", ["csv", "parquet", "polars", "json"])
def test_a_cell_of_blanks_is_read_alike_later(later, tmp_path):
    rows = pl.DataFrame({"id": [f"k{number}" for number in range(9)], "x": ["red", "green", "  "] * 3})
    party = party_of(written(rows, tmp_path, "csv"), tmp_path)
    first = read_rows(party.table, party, trained=None)
    encoder = Encoder.of_party(first, party, np.arange(9), numbers="plain")
    wanted = values(encoder.encode(first).unpacked())
    if later == "json":
        assert values(served(rows, encoder, later, tmp_path)) == wanted
    else:
        assert values(encoder.encode(read(rows, tmp_path, later, encoder)).unpacked()) == wanted
