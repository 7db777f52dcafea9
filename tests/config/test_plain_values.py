"""Values of a contract or a party file as programs pass them become the plain values that they are."""

from decimal import Decimal
from enum import Enum
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import tiny
import torch

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import ConfigError


class Split(Enum):
    HASH = "hash"


@pytest.mark.parametrize(
    ("key", "given", "plain"),
    [
        ("model__hidden", np.array([8, 8]), [8, 8]),
        ("model__hidden", pd.Series([8, 8]), [8, 8]),
        ("model__hidden", pl.Series([8, 8]), [8, 8]),
        ("model__hidden", torch.tensor([8, 8]), [8, 8]),
        ("training__batch_size", torch.tensor(32), 32),
        ("training__batch_size", Decimal(32), 32),
        ("training__learning_rate", Decimal("0.02"), 0.02),
        ("split__method", Split.HASH, "hash"),
    ],
)
def test_what_a_sweep_or_a_frame_brings_is_the_plain_value_that_it_is(key, given, plain):
    both = [parse_contract(tiny.contract_values(("bank", "shop"), **{key: value})) for value in (given, plain)]
    assert both[0] == both[1]
    assert both[0].hash == both[1].hash


def test_names_of_columns_may_come_from_a_frame_and_not_from_a_set():
    """A set has no order of its own: the same words gave another network in another process."""
    frame = pd.DataFrame({"x": [1.0], "noise": [2.0]})
    values = {"party": "shop", "table": {"path": "t.csv"}, "keys": {"id": "id"}}
    party = parse_party(values | {"features": {"numeric": frame.columns}}, folder=Path(), source="shop")
    assert party.features.numeric == ("x", "noise")
    with pytest.raises(ConfigError, match=r"shop: features.numeric: must be a list"):
        parse_party(values | {"features": {"numeric": {"x", "noise"}}}, folder=Path(), source="shop")
