"""Define a table of two parties: its rows, its 0/1 label, each party's columns, and its rows encoded for training and tests.

Shapes: N training rows, T test rows.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.config.party import EncodingConfig, FeatureColumns, SequenceConfig
from tallystick.cut.forward import FeatureSource, no_columns
from tallystick.errors import DataError
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import FeatureShape, PackedFeatures
from tallystick.tables.lazy_table import LazyTable

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TwoPartyTable:
    """Hold rows of both parties, a 0/1 label, and which rows are for tests. The label party may have no columns."""

    name: str
    frame: LazyTable
    label: str
    feature_party: FeatureColumns
    label_party: FeatureColumns = field(default_factory=FeatureColumns)
    test_N: pl.Series | None = None  # bool per row; None: some are drawn
    has_partner_N: pl.Series | None = None  # bool per row: the feature party has it too; None: all
    label_sequences: Mapping[str, SequenceConfig] = field(default_factory=dict)
    feature_sequences: Mapping[str, SequenceConfig] = field(default_factory=dict)
    user: str | None = None  # column that identifies the user

    @property
    def labels(self) -> Tensor:
        """Return the labels of all rows, as float32."""
        return torch.from_numpy(self.frame.get_column(self.label).to_numpy().astype(np.float32))

    def encoders(self, feature_rows: Numbers, label_rows: Numbers, encoding: EncodingConfig) -> tuple[Encoder, Encoder]:
        """Fit the feature party's encoder and the label party's, each on its own training rows."""
        return (
            Encoder.fit(self.frame, self.feature_party, feature_rows, encoding=encoding, sequences=self.feature_sequences),
            Encoder.fit(self.frame, self.label_party, label_rows, encoding=encoding, sequences=self.label_sequences),
        )


@dataclass(frozen=True, kw_only=True)
class SplitData:
    """Hold both parties' encoded rows in one order. The label party may have no columns."""

    shape: FeatureShape  # shape of the feature party's columns
    training: PackedFeatures
    training_labels_N: Tensor  # float32, 0 or 1
    test: PackedFeatures
    test_labels_T: Tensor
    own_shape: FeatureShape | None = None
    own_training: FeatureSource = no_columns
    own_test: FeatureSource = no_columns


def encode_split(
    table: TwoPartyTable,
    training: Numbers,
    test: Numbers,
    encoding: EncodingConfig,
    *,
    finish: Callable[[Encoder], Encoder] = lambda encoder: encoder,
) -> SplitData:
    """Encode these rows in this order. Encoders are fitted on the training rows, and then changed by ``finish``.

    Raises DataError if there are no rows to train on or to test with.
    """
    labels_N, fitted_on = table.labels, np.sort(training)
    if not (len(test) and len(training) and 0 < float(labels_N[training].mean()) < 1):
        raise DataError(f"{table.name}: {len(training)} training and {len(test)} test rows, or one class only; give more rows")
    partner_encoder, own = map(finish, table.encoders(fitted_on, fitted_on, encoding))
    training_rows, test_rows = torch.from_numpy(training), torch.from_numpy(test)
    features = partner_encoder.encode(table.frame)
    data = SplitData(
        shape=partner_encoder.feature_shape,
        training=features.picked(training_rows),
        training_labels_N=labels_N[training_rows],
        test=features.picked(test_rows),
        test_labels_T=labels_N[test_rows],
    )
    if not (column_names(table.label_party) or table.label_sequences):
        return data
    columns = own.encode(table.frame)
    return replace(
        data,
        own_shape=own.feature_shape,
        own_training=columns.picked(training_rows).rows,
        own_test=columns.picked(test_rows).rows,
    )


def column_names(columns: FeatureColumns) -> tuple[str, ...]:
    """Return all names."""
    return columns.numeric + columns.categorical


def split_columns(columns: FeatureColumns, given: Collection[str]) -> tuple[FeatureColumns, FeatureColumns]:
    """Return the given columns and the others, each in their order."""
    one, other = (
        FeatureColumns(
            numeric=tuple(name for name in columns.numeric if (name in given) == held),
            categorical=tuple(name for name in columns.categorical if (name in given) == held),
        )
        for held in (True, False)
    )
    return one, other
