"""Make tables for the feature-leakage benchmark: two parties' files joined by id, or one file with its columns divided.

Shapes: N training rows, T test rows, A own columns as numbers.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tallystick.attacks.feature_inference.view import ColumnValues
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import Features
from tallystick_experiments.catalogue.ads import encode_ads
from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable

TEST_SHARE = 0.25
AID_CODES = 16


def split_and_encode(table: TwoPartyTable, *, seed: int) -> tuple[SplitData, ColumnValues]:
    """Split by a seed if the table has no test rows of its own, and encode. Also return the feature party's columns by name."""
    if table.test_N is None:
        drawn_N = np.random.default_rng([seed, 8]).random(table.frame.height) < TEST_SHARE
        table = replace(table, test_N=pl.Series(drawn_N))
    assert table.test_N is not None
    data = encode_ads(table, seed=seed, min_count=4)
    encoder = Encoder.fit(table.frame, table.feature_party, np.flatnonzero(~table.test_N.to_numpy()))
    categorical = tuple(column.name for column in encoder.categorical)
    features = data.training.rows(torch.arange(len(data.training)))
    columns = ColumnValues(
        numeric_NF=features.numeric_NF,
        categorical_NG=features.categorical_NG[:, : len(categorical)],  # no attack infers the items of sequences
        numeric=encoder.numeric_names,
        categorical=categorical,
        categories=data.shape.cardinalities,
    )
    return data, columns


def as_numbers(features: Features) -> Tensor:
    """Return a party's columns as numbers (N, A): standardised ones, and an indicator for each frequent category."""
    indicators = [one_hot(code_N.clamp(max=AID_CODES), AID_CODES + 1).float() for code_N in features.categorical_NG.T]
    return torch.cat([features.numeric_NF, *indicators], dim=1)
