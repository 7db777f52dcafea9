"""Tables for the feature-leakage benchmark: two parties' files joined by id, or one file whose columns are shared out.

Shapes: N training rows, T test rows, A own columns as numbers.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tallystick.attacks.feature_inference.view import ColumnValues
from tallystick.config.party import FeatureColumns
from tallystick.data.encoder import Encoder
from tallystick.data.features import Features, FeatureShape
from tallystick.data.lazy import LazyTable
from tallystick.errors import DataError
from tallystick_experiments.experiment import SplitData
from tallystick_experiments.fedads.data import AdTable, encode_ads, read_ads

TEST_SHARE = 0.25
AID_CODES = 16


def read_pair(data: Path, partner: Path | None, *, limit: int | None = None) -> AdTable:
    """Read two parties' CSV files (columns id and, in the label party's, y), or one file of the FedAds benchmark's formats.

    Raises DataError for a file that is absent or of another format.
    """
    if partner is None:
        return read_ads(data, limit=limit)
    try:
        label, feature = (pl.read_csv(path, n_rows=limit, infer_schema_length=None) for path in (data, partner))
        _check_pair(label, feature, data, partner)
        frame = label.join(feature.rename({name: f"partner_{name}" for name in feature.columns if name != "id"}), on="id")
        frame = frame.sort("id").with_columns(pl.col("y").cast(pl.Int64))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{data}, {partner}: not two CSV files with columns id and, in the first, y: {error}") from None
    if not frame.height:
        raise DataError(f"{data}, {partner}: no id is in both files; write the same ids in both, or give more rows")
    names = [name for name in frame.columns if name not in ("id", "y")]
    theirs = [name for name in names if name.startswith("partner_")]
    coded = [name for name in names if not frame.schema[name].is_numeric()]

    def columns(of: list[str]) -> FeatureColumns:
        return FeatureColumns(
            numeric=tuple(name for name in of if name not in coded), categorical=tuple(name for name in of if name in coded)
        )

    own = [name for name in names if name not in theirs]
    return AdTable(
        name=data.name.split(".")[0],
        frame=LazyTable.of(frame),
        label="y",
        label_party=columns(own),
        feature_party=columns(theirs),
    )


def _check_pair(label: pl.DataFrame, feature: pl.DataFrame, data: Path, partner: Path) -> None:
    """Raise DataError for what the join would get through and no figure should be made of."""
    for path, frame in ((data, label), (partner, feature)):
        if twice := frame.filter(pl.col("id").is_duplicated()).get_column("id").head(1).to_list():
            raise DataError(f"{path}: id {twice[0]} is there more than once; a row per id was expected")
    if other := label.filter(~pl.col("y").is_in([0, 1]).fill_null(False)).get_column("y").head(1).to_list():
        raise DataError(f"{data}: y is {other[0]} in a row; 0 or 1 was expected in each")


def split_and_encode(table: AdTable, *, seed: int) -> tuple[SplitData, FeatureShape, FeatureShape, ColumnValues]:
    """Split by a seed where the table has no test rows of its own, and encode; gives the feature party's columns by name, too."""
    if table.test_N is None:
        drawn_N = np.random.default_rng([seed, 8]).random(table.frame.height) < TEST_SHARE
        table = replace(table, test_N=pl.Series(drawn_N))
    data, theirs, own = encode_ads(table, seed=seed, min_count=4)
    training = np.flatnonzero(~table.test_N.to_numpy()) if table.test_N is not None else np.empty(0, dtype=np.int64)
    encoder = Encoder.fit(table.frame, table.feature_party, training)
    categorical = tuple(column.name for column in encoder.categorical)
    names = encoder.numeric_names
    features = data.training.rows(torch.arange(len(data.training)))
    columns = ColumnValues(
        numeric_NF=features.numeric_NF,
        categorical_NG=features.categorical_NG[:, : len(categorical)],  # no attack infers the items of sequences
        numeric=names,
        categorical=categorical,
        categories=theirs.cardinalities,
    )
    return data, theirs, own, columns


def as_numbers(features: Features) -> Tensor:
    """A party's columns as numbers (N, A): standardised ones, and an indicator for each frequent category."""
    indicators = [one_hot(code_N.clamp(max=AID_CODES), AID_CODES + 1).float() for code_N in features.categorical_NG.T]
    return torch.cat([features.numeric_NF, *indicators], dim=1)
