"""Keys of a request are read row by row if that is quick, and by a table if only a table can tell, with the same result."""

import io
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal

import msgspec
import polars as pl
import pyarrow as pa
import pytest

from tallystick.config.contract import parse_contract
from tallystick.config.party import PartyFile
from tallystick.serving.problem_details import Problem
from tallystick.serving.requests import FEW_ROWS, Reader, decoded
from tallystick.tables.arrow import as_polars
from tallystick.tables.keys import key_of


@pytest.fixture
def reader(tmp_path):
    contract = parse_contract(
        {
            "name": "keys",
            "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
            "alignment": {
                "method": "intersection",
                "keys": [{"name": "who", "normalise": ["trim", "lower"]}, {"name": "branch"}],
            },
        }
    )
    party = PartyFile.model_validate(
        {
            "party": "bank",
            "table": {"path": tmp_path / "bank.parquet"},
            "keys": {"who": "person", "branch": "office"},
            "tls": {"ca": tmp_path / "ca.pem", "certificate": tmp_path / "c.pem", "key": tmp_path / "k.pem"},
            "label": "y",
        }
    )
    schema = {"person": pl.String(), "office": pl.Int64()}
    return Reader(contract=contract, party=party, encoder=None, schema=schema, most_rows=500)


def asked(reader, rows):
    return reader.json(decoded(msgspec.json.encode({"rows": rows}))).keys


def test_a_key_is_the_same_with_a_table_and_without(reader):
    rows = [{"person": f" Ann{number} ", "office": number} for number in range(FEW_ROWS)]
    few, many = asked(reader, rows), asked(reader, [*rows, {"person": "é", "office": 7}])
    assert few == many[:-1]
    assert few[0] == b"4:ann01:0"
    assert many[-1] == "2:é1:7".encode()


@pytest.mark.parametrize("row", [{"person": 5, "office": 5}, {"person": "a", "office": True}, {"person": " ", "office": 5}])
def test_a_cell_of_another_type_or_an_empty_key_is_refused_as_ever(reader, row):
    with pytest.raises(Problem) as refused:
        asked(reader, [row])
    assert refused.value.status == 422


MOMENTS = [datetime(2020, 1, 2, 3, 4, 5), datetime(1999, 12, 31)]
KEYS_OF_EVERY_TYPE = {
    "text": (pa.array(["007", "1.0"]), None),
    "bool": (pa.array([True, False]), None),
    "int8": (pa.array([1, 7], pa.int8()), [1, "7"]),
    "int64": (pa.array([2**53 + 1, 7]), [2**53 + 1, 7.0]),
    "uint64": (pa.array([2**63 + 5, 7], pa.uint64()), [2**63 + 5, "7"]),
    "float64": (pa.array([2.0, 7.5]), [2, 7.5]),
    "float32": (pa.array([2.0, 7.3], pa.float32()), [2.0, 7.3]),
    "hugeint": (pa.array([Decimal(10**29 + 1), Decimal(5)], pa.decimal128(38, 0)), [10**29 + 1, 5]),
    "decimal256": (pa.array([Decimal(10**29 + 1), Decimal(5)], pa.decimal256(40, 1)), [str(10**29 + 1), 5.0]),
    "decimal": (pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2)), [1.5, 2]),
    "date": (pa.array([date(2020, 1, 2), date(1999, 12, 31)]), ["2020-01-02", "1999-12-31"]),
    "moment": (pa.array(MOMENTS, pa.timestamp("us")), ["2020-01-02T03:04:05", "1999-12-31"]),
    "nanoseconds": (
        pa.array([1577934245123456789, 7], pa.timestamp("ns")),
        ["2020-01-02T03:04:05.123456789", "1970-01-01T00:00:00.000000007"],
    ),
    "zoned": (pa.array(MOMENTS, pa.timestamp("us", "+05:30")), ["2020-01-02T08:34:05+05:30", "1999-12-31T00:00:00Z"]),
    "time": (pa.array([time(1, 2, 3), time(0, 0)]), ["01:02:03", "00:00"]),
}


def refusal(ask):
    with pytest.raises(Problem) as refused:
        ask()
    assert refused.value.status == 422
    return refused.value.detail


def stream_of(**columns):
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("kind", KEYS_OF_EVERY_TYPE)
def test_a_key_of_every_type_is_that_of_the_table(reader, kind):
    """A row's key is the table's: as an Arrow stream of the table's type, as numbers or ISO text in JSON, and as text."""
    column, cells = KEYS_OF_EVERY_TYPE[kind]
    person = pa.array(["a", "b"])
    table = as_polars(pa.table({"person": person, "office": column}))
    of_table = [key.encode() for key in key_of(table, columns=reader.party.keys, alignment=reader.contract.alignment)]
    reader = replace(reader, schema=dict(table.schema))
    assert reader.arrow(stream_of(person=person, office=column)).keys == of_table
    cells = column.to_pylist() if cells is None else cells
    rows = [{"person": who, "office": cell} for who, cell in zip(["a", "b"], cells, strict=True)]
    assert asked(reader, rows) == of_table
    assert asked(reader, rows * FEW_ROWS) == of_table * FEW_ROWS
    if kind not in ("bool", "zoned"):
        spelt = [key.rpartition(b":")[2].decode() for key in of_table] if kind not in ("moment", "nanoseconds", "time") else cells
        assert asked(reader, [{"person": who, "office": cell} for who, cell in zip(["a", "b"], spelt, strict=True)]) == of_table


@pytest.mark.parametrize(
    ("kind", "cell", "key"),
    [
        (pl.Decimal(10, 2), "1.50", b"1.5"),
        (pl.Decimal(10, 2), "-0.10", b"-0.1"),
        (pl.Decimal(10, 2), "2.00", b"2"),
        (pl.Float64(), "1.50", b"1.5"),
        (pl.Int64(), "1.50", b"1.50"),  # none of the table's
        (pl.String(), "1.50", b"1.50"),  # as it is written
        (pl.Decimal(10, 2), "01.50", b"01.5"),  # none of the table's
    ],
)
def test_text_for_a_key_with_a_fraction_is_spelt_as_the_table_spells_it(reader, kind, cell, key):
    """In every reader a decimal 1.50 is the key 1.5, and text 1.50 is another key."""
    reader = replace(reader, schema=reader.schema | {"office": kind})
    wanted = [b"1:a%d:%b" % (len(key), key)]
    assert asked(reader, [{"person": "a", "office": cell}]) == wanted
    assert asked(reader, [{"person": "a", "office": cell}] * (FEW_ROWS + 1)) == wanted * (FEW_ROWS + 1)
    assert reader.arrow(stream_of(person=pa.array(["a"]), office=pa.array([cell]))).keys == wanted


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pl.Int64(), 2.0**53),
        (pl.Float64(), 8.9e29),
        (pl.Decimal(38, 0), 8.9e29),
        (pl.Int64(), True),
        (pl.Int64(), [1]),
        (pl.Boolean(), 1.0),
        (pl.Date(), 20200102),
    ],
)
def test_a_key_that_cannot_be_told_from_others_is_refused_by_its_column(reader, kind, cell):
    reader = replace(reader, schema=reader.schema | {"office": kind})
    assert "column 'office'" in refusal(lambda: asked(reader, [{"person": "a", "office": cell}]))


@pytest.mark.parametrize("column", [pa.array([1]), pa.array([2.0**60]), pa.array([b"1"]), pa.array([True])])
def test_an_arrow_key_of_another_type_is_refused_by_its_column(reader, column):
    """A number, where the table has text, may have lost leading zeros."""
    assert "column 'person'" in refusal(lambda: reader.arrow(stream_of(person=column, office=pa.array([1]))))
    if not pa.types.is_integer(column.type):
        assert "column 'office'" in refusal(lambda: reader.arrow(stream_of(person=pa.array(["a"]), office=column)))
