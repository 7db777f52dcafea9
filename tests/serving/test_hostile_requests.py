"""Any request, for any kind of table, gives a row's key and columns, or a Problem with one line that names no value."""

import json
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tallystick.config.contract import parse_contract
from tallystick.config.party import FeatureColumns, PartyFile, SequenceConfig
from tallystick.serving.openapi import _STATUSES
from tallystick.serving.problem_details import Problem
from tallystick.serving.requests import Reader, RequestedRows, decoded
from tallystick.tables.encoder import Encoder

SECRET, ROWS = "Mallory-1234", 40
TABLE = pl.DataFrame(
    {
        "who": [f"id-{number}" for number in range(ROWS)],
        "x": [number / 3 for number in range(ROWS)],
        "whole": list(range(ROWS)),
        "flag": [bool(number % 2) for number in range(ROWS)],
        "kind": [["red", "green", None][number % 3] for number in range(ROWS)],
        "items": ["a b c"[: 1 + 2 * (number % 3)] for number in range(ROWS)],
        "seen": [["a", "b"][: number % 3] for number in range(ROWS)],
        "since": [datetime(2025, 1, 1) + timedelta(days=number) for number in range(ROWS)],
    }
)
READ = FeatureColumns(numeric=("x", "whole", "flag"), categorical=("kind",))
SEQUENCES = {"items": SequenceConfig(separator=" ", length=2), "seen": SequenceConfig(length=2)}
ROW = {"who": "id-1", "x": 1.0, "whole": 3, "flag": True, "kind": "red", "items": "a b", "seen": ["a"]}


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Return types by the key's column: of texts, of numbers, of days."""
    folder = tmp_path_factory.mktemp("party")

    def reader(key):
        contract = parse_contract(
            {
                "name": "served",
                "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
                "alignment": {"method": "intersection", "keys": [{"name": "key"}]},
            }
        )
        party = PartyFile.model_validate(
            {
                "party": "bank",
                "table": {"path": folder / "t.parquet"},
                "keys": {"key": key},
                "tls": {part: folder / f"{part}.pem" for part in ("ca", "certificate", "key")},
                "label": "y",
            }
        )
        encoder = Encoder.fit(TABLE, READ, np.arange(ROWS), sequences=SEQUENCES)
        return Reader(contract=contract, party=party, encoder=encoder, schema=dict(TABLE.schema), most_rows=5)

    return {key: reader(key) for key in ("who", "whole", "since")}


def checked(problem):
    """Check that it is one line with a documented status, and names no value."""
    assert problem.status in _STATUSES
    assert 20 < len(problem.detail) < 300
    assert problem.detail.isprintable()
    assert "Mallory" not in problem.detail
    return problem


def asked(reader, body):
    """Return what a body asks for, or its problem."""
    try:
        found = reader.json(decoded(body))
    except Problem as problem:
        return checked(problem)
    assert isinstance(found, RequestedRows)
    if found.own is not None:
        assert torch.isfinite(found.own.numeric_NF).all()
    return found


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", SECRET, "\x00", "x" * 2000, "é" * 600, "1", "1e5", "nan", "2025-01-01", "2025-01-01T00:00:00+01:00"]),
    st.text(max_size=5),
    st.lists(st.one_of(st.none(), st.just(SECRET), st.integers(), st.floats(), st.lists(st.none(), max_size=1)), max_size=3),
    st.dictionaries(st.just(SECRET), st.none(), max_size=1),
)
COLUMNS = st.dictionaries(st.sampled_from([*TABLE.columns, SECRET, ""]), CELLS, max_size=3)


@given(key=st.sampled_from(["who", "whole", "since"]), changes=st.lists(COLUMNS, min_size=1, max_size=3), alike=st.booleans())
def test_any_cells_are_read_or_a_problem(readers, key, changes, alike):
    rows = [{key: TABLE[key].cast(pl.String)[1]} | ROW | (changes[0] if alike else change) for change in changes]
    asked(readers[key], json.dumps({"rows": rows}).encode())


BODIES = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"rows":' + b"[" * 100_000,
    b'{"rows":[{"who":' + b"[" * 100_000,
    b'{"rows":[{"who":' + b'{"a":' * 100_000,
    b'{"rows":[{"who":"\xff"}]}',
    b'{"rows":[{"who":"\\ud800"}]}',
    b'{"rows":[{"who":1e400}]}',
    b'{"rows":[{"who":Infinity}]}',
    b'{"rows":[{"who":' + b"9" * 900_000 + b"}]}",
    b'{"rows":[{"who":"Mallory-1234"}]} Mallory-1234',
    b'{"rows":[{"who":"a"}],"Mallory-1234":1}',
    json.dumps({"rows": [{"who": "a"}] * 6}).encode(),
    json.dumps({"rows": [{"who": "a", SECRET: 1}]}).encode(),
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_is_no_request_is_a_problem(readers, body):
    assert isinstance(asked(readers["who"], body), Problem)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_problem(readers, body):
    assert isinstance(asked(readers["who"], body), Problem)
