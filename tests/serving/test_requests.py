"""Keys of a request: row by row where that is quick, by a table where only one can tell, and the same either way."""

import msgspec
import polars as pl
import pytest

from tallystick.config.contract import parse_contract
from tallystick.config.party import PartyFile
from tallystick.serving.problem_details import Problem
from tallystick.serving.requests import FEW_ROWS, Reader, decoded


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


@pytest.mark.parametrize("row", [{"person": 5, "office": 5}, {"person": "a", "office": "x"}, {"person": " ", "office": 5}])
def test_a_cell_of_another_type_or_an_empty_key_is_refused_as_ever(reader, row):
    with pytest.raises(Problem) as refused:
        asked(reader, [row])
    assert refused.value.status == 422
