"""Choose and encode rows for FedAds' Table 3: which are aligned, and whose columns are whose. Shapes: N rows of the table."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.config.party import EncodingConfig
from tallystick.errors import ConfigError, DataError
from tallystick.tables.features import FeatureShape, PackedFeatures
from tallystick_experiments.catalogue.table import TwoPartyTable

MIN_COUNT = 4
ALIGNED = 0.2  # share of training rows, as in FedAds
TEST, VALIDATION = 0.2, 0.1  # shares of rows if the data has no test rows of its own; validation is of the rest


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Hold encoded rows, by their position in the table.

    Test and validation rows have both parties' columns, as in FedAds. Of the training rows, only ``aligned_N`` have.
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


def share_out(table: TwoPartyTable, *, seed: int, aligned: float = ALIGNED, by_users: bool = False) -> Rows:
    """Draw test, validation and aligned rows, and encode the label party's columns on all training rows, the other's on aligned
    ones.

    Args:
        table: the rows.
        seed: the seed of the draws.
        aligned: the share of the training rows with both parties' columns, if the data does not say which rows have them.
        by_users: whether to keep all rows of a user in one of these parts, even if the data has its own test rows.

    Raises DataError for too few rows, ConfigError if the data has no column of users.
    """
    random = np.random.default_rng(seed)
    test, validation, both, lone = (_parts_by_users if by_users else _parts)(table, random, aligned)
    training = np.concatenate([both, lone])
    labels_N = torch.from_numpy(table.frame.get_column(table.label).to_numpy().astype(np.float32))
    if not len(both) or not 0 < float(labels_N[both].mean()) < 1:
        raise DataError(f"{table.name}: {len(both)} aligned training rows, or one class only among them; give more rows")
    encoding = EncodingConfig(numeric="log" if table.name == "criteo" else "auto", min_count=MIN_COUNT)
    partner_encoder, own = table.encoders(np.sort(both), np.sort(training), encoding)
    return Rows(
        own=own.encode(table.frame),
        theirs=partner_encoder.encode(table.frame),
        own_shape=own.feature_shape,
        their_shape=partner_encoder.feature_shape,
        columns=tuple(column.name for column in own.categorical),
        labels_N=labels_N,
        aligned_N=torch.from_numpy(both),
        unaligned_N=torch.from_numpy(lone),
        validation_N=torch.from_numpy(validation),
        test_N=torch.from_numpy(test),
    )


Numbers = NDArray[np.int64]
Parts = tuple[Numbers, Numbers, Numbers, Numbers]  # test, validation, aligned and unaligned rows


def _parts(table: TwoPartyTable, random: np.random.Generator, aligned: float) -> Parts:
    """Draw test, validation, aligned and unaligned rows independently.

    If the data says which rows the feature party has, validation rows are among these, and all others of them are aligned.
    """
    rows = table.frame.height
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
    validation_count = int(VALIDATION / (1 - TEST) * len(rest))
    validation, training = rest[:validation_count], np.concatenate([rest[validation_count:], lone])
    shared = int(aligned * (len(rest) - validation_count))
    return test, validation, training[:shared], training[shared:]


def _parts_by_users(table: TwoPartyTable, random: np.random.Generator, aligned: float) -> Parts:
    """Split as _parts does, in the same shares of users, so that a user of the test rows is in no other part.

    If the data says which rows the feature party has, all its training rows are aligned. Rows that it lacks are left out if their
    user is for test or validation.
    """
    if table.user is None:
        raise ConfigError(f"--by-users: {table.name} has no column that tells users apart; FedAds' folder and IJCAI-18 have")
    user_N = table.frame.get_column(table.user).fill_null("").cast(pl.String).rank("dense").to_numpy().astype(np.int64) - 1
    users = int(user_N.max()) + 1
    place_N = random.permutation(users)[user_N]
    has_partner_N = np.ones(len(user_N), dtype=bool) if table.has_partner_N is None else table.has_partner_N.to_numpy()
    tests, validation_end = int(TEST * users), int(TEST * users) + int(VALIDATION * users)
    shared = users if table.has_partner_N is not None else validation_end + int(aligned * (users - validation_end))
    is_test_N, is_training_N = place_N < tests, place_N >= validation_end
    is_aligned_N = is_training_N & has_partner_N & (place_N < shared)
    parts = is_test_N & has_partner_N, ~is_test_N & ~is_training_N & has_partner_N, is_aligned_N, is_training_N & ~is_aligned_N
    test, validation, both, lone = (np.flatnonzero(part_N) for part_N in parts)
    return test, validation, both, lone
