"""A table of two parties: its rows, its 0/1 label, and who holds which columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.party import EncodingConfig, FeatureColumns, SequenceConfig
from tallystick.data.encoder import Encoder
from tallystick.data.lazy import LazyTable


@dataclass(frozen=True, kw_only=True)
class TwoPartyTable:
    """Rows of both parties, a 0/1 label, and which rows are for tests; the label party may have no columns."""

    name: str
    frame: LazyTable
    label: str
    feature_party: FeatureColumns
    label_party: FeatureColumns = field(default_factory=FeatureColumns)
    test_N: pl.Series | None = None  # bool per row; None: some are drawn
    has_partner_N: pl.Series | None = None  # bool per row: the feature party has it too; None: all, whatever a benchmark hides
    label_sequences: Mapping[str, SequenceConfig] = field(default_factory=dict)
    feature_sequences: Mapping[str, SequenceConfig] = field(default_factory=dict)
    user: str | None = None  # column that tells users apart

    def encoders(
        self, feature_rows: NDArray[np.int64], label_rows: NDArray[np.int64], encoding: EncodingConfig
    ) -> tuple[Encoder, Encoder]:
        """The feature party's encoder and the label party's, each fitted on its training rows."""
        return (
            Encoder.fit(self.frame, self.feature_party, feature_rows, encoding=encoding, sequences=self.feature_sequences),
            Encoder.fit(self.frame, self.label_party, label_rows, encoding=encoding, sequences=self.label_sequences),
        )
