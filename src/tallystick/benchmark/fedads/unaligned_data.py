"""Rows for FedAds' Table 3: which of them are aligned, whose columns are whose, both encoded. Shapes: N rows of the table."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tallystick.benchmark.clicks import CRITEO_CATEGORICAL, CRITEO_NUMERIC
from tallystick.benchmark.fedads.data import AdTable, read_ads
from tallystick.config.party import EncodingConfig, FeatureColumns
from tallystick.data.encoder import Encoder
from tallystick.data.features import FeatureShape, PackedFeatures
from tallystick.errors import DataError

MIN_COUNT = 4
ALIGNED = 0.2  # share of training rows, FedAds'
TEST, VALIDATION = 0.2, 0.1  # shares of rows where the data has no test rows of its own; validation is of the rest


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Encoded rows by their place in the table.

    Test and validation rows have both parties' columns, as in FedAds; of the training rows only ``aligned_N`` have.
    """

    own: PackedFeatures
    theirs: PackedFeatures
    own_shape: FeatureShape
    their_shape: FeatureShape
    columns: tuple[str, ...]
    labels_N: Tensor
    aligned_N: Tensor
    unaligned_N: Tensor
    validation_N: Tensor
    test_N: Tensor


def read_both_parties(path: Path, *, limit: int | None = None) -> AdTable:
    """Read a data set as Table 4's benchmark does, but for Kaggle's Criteo file.

    That is split by kind of column: C1-C26 to the label party, I1-I13 to the feature party.

    Raises DataError for one that is absent or of another format.
    """
    table = read_ads(path, limit=limit)
    if table.name != "criteo":
        return table
    label_party, feature_party = FeatureColumns(categorical=CRITEO_CATEGORICAL), FeatureColumns(numeric=CRITEO_NUMERIC)
    return replace(table, label_party=label_party, feature_party=feature_party)


def share_out(table: AdTable, *, seed: int, aligned: float = ALIGNED) -> Rows:
    """Draw test, validation and aligned rows, and encode: the label party by all its training rows, the other by aligned ones.

    Where the data says which rows the feature party has, validation rows are of those, and all others of them are aligned.
    """
    rows, random = table.frame.height, np.random.default_rng(seed)
    order_N = random.permutation(rows)
    if table.test_N is not None:
        is_test_N = table.test_N.to_numpy()
        test, rest = np.flatnonzero(is_test_N), order_N[~is_test_N[order_N]]
    else:
        test, rest = order_N[: int(TEST * rows)], order_N[int(TEST * rows) :]
    lone = rest[:0]
    if table.has_partner_N is not None:
        has_partner_N = table.has_partner_N.to_numpy()
        rest, lone, aligned = rest[has_partner_N[rest]], rest[~has_partner_N[rest]], 1.0
    held = int(VALIDATION / (1 - TEST) * len(rest))
    validation, training = rest[:held], np.concatenate([rest[held:], lone])
    both = training[: int(aligned * (len(rest) - held))]
    labels_N = torch.from_numpy(table.frame.get_column(table.label).to_numpy().astype(np.float32))
    if not len(both) or not 0 < float(labels_N[both].mean()) < 1:
        raise DataError(f"{table.name}: {len(both)} aligned training rows, or one class only among them; give more rows")
    encoding = EncodingConfig(numeric="log" if table.name == "criteo" else "auto", min_count=MIN_COUNT)
    own = Encoder.fit(table.frame, table.label_party, np.sort(training), encoding=encoding)
    theirs = Encoder.fit(table.frame, table.feature_party, np.sort(both), encoding=encoding)
    return Rows(
        own=own.encode(table.frame),
        theirs=theirs.encode(table.frame),
        own_shape=own.feature_shape,
        their_shape=theirs.feature_shape,
        columns=tuple(column.name for column in own.categorical),
        labels_N=labels_N,
        aligned_N=torch.from_numpy(both),
        unaligned_N=torch.from_numpy(training[len(both) :]),
        validation_N=torch.from_numpy(validation),
        test_N=torch.from_numpy(test),
    )
