"""Keep the distribution of a party's own columns in training, to compare later rows with it. It stays in the run folder.

Shapes: N rows.
"""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.errors import DataError
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.categories import count_values
from tallystick.tables.columns import TrainingColumns
from tallystick.tables.encoder import Encoder
from tallystick.tables.lazy_table import Frame

POINTS = 2_000  # greatest number of points of a numeric column: its values, or evenly spaced quantiles
CATEGORIES = 200  # greatest number of categories of a column that are counted by name
FEWEST = 20  # fewest rows behind a number or a category of a coarse profile
_NAME = "profile"


class NumericProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A numeric column: its number of rows, the number of missing cells, and its sorted values or quantiles."""

    name: str
    rows: int
    missing: int
    points: tuple[float, ...]


class CategoricalProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A categorical column: the number of missing cells, the most frequent values with their counts, and the count of others."""

    name: str
    missing: int
    counts: tuple[tuple[str, int], ...]
    others: int


class TrainingProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The columns of a number of rows. A ``coarse`` profile has no value of fewer than FEWEST rows."""

    rows: int
    numeric: tuple[NumericProfile, ...] = ()
    categorical: tuple[CategoricalProfile, ...] = ()
    coarse: bool = False


def profile_of(frame: Frame, encoder: Encoder, rows: NDArray[np.int64]) -> TrainingProfile:
    """Profile the encoder's columns in these rows, without sequences."""
    columns = TrainingColumns(encoder.fitted(frame), rows)
    numeric = tuple(numeric_profile(column.name, columns.numbers(column.name)) for column in encoder.numeric)
    categorical = []
    for column in encoder.categorical:
        counts = count_values(columns.cells(column.name)).sort(["len", "text"], descending=[True, False])
        named = counts.drop_nulls("text")
        common = named.head(CATEGORIES)
        categorical.append(
            CategoricalProfile(
                name=column.name,
                missing=int(counts.filter(pl.col("text").is_null()).get_column("len").sum()),
                counts=tuple(zip(common.get_column("text").to_list(), common.get_column("len").to_list(), strict=True)),
                others=int(named.get_column("len").sum()) - int(common.get_column("len").sum()),
            )
        )
    return TrainingProfile(rows=len(rows), numeric=numeric, categorical=tuple(categorical))


def numeric_profile(name: str, values_N: NDArray[np.float64]) -> NumericProfile:
    """Profile numbers, NaN for missing."""
    numbers_N = values_N[~np.isnan(values_N)]
    numbers_N.sort()
    if len(numbers_N) > POINTS:
        numbers_N = numbers_N[np.linspace(0, len(numbers_N) - 1, POINTS).round().astype(np.int64)]
    return NumericProfile(name=name, rows=len(values_N), missing=int(np.isnan(values_N).sum()), points=tuple(numbers_N.tolist()))


def coarsen_profile(folder: RunFolder) -> None:
    """Make a run's profile coarse, if it has one: remove every value of fewer than FEWEST rows. No formal guarantee.

    A profile of few rows has each of their numbers, and any profile has the smallest and the largest number, and categories of a
    single row. In a coarse profile each group of FEWEST neighbours is represented by the mean of its middle half. Values between
    two such means, or beyond the outermost, are on a straight line.
    """
    if not profile_path(folder).exists() or (profile := kept_profile(folder)).coarse:
        return
    numeric, categorical = [], []
    for column in profile.numeric:
        count, points_P = len(column.points) // FEWEST, np.empty(0)
        if count > 1:  # otherwise there are too few rows to say anything
            groups = np.array_split(np.array(column.points), count)
            means_G = np.array([group[len(group) // 4 : len(group) - len(group) // 4].mean() for group in groups])
            rise_G = np.diff(means_G)
            place_P = (np.arange(len(column.points)) + 0.5) / len(column.points) * count - 0.5
            below_P = place_P.astype(np.int64).clip(0, len(rise_G) - 1)
            points_P = means_G[below_P] + (place_P - below_P) * rise_G[below_P]
        numeric.append(msgspec.structs.replace(column, points=tuple(points_P.tolist())))
    for each in profile.categorical:
        counts = tuple((value, rows) for value, rows in each.counts if rows >= FEWEST)
        rare = sum(rows for _, rows in each.counts) - sum(rows for _, rows in counts)
        categorical.append(msgspec.structs.replace(each, counts=counts, others=each.others + rare))
    coarse = msgspec.structs.replace(profile, numeric=tuple(numeric), categorical=tuple(categorical), coarse=True)
    keep_profile(folder, coarse)


def keep_profile(folder: RunFolder, profile: TrainingProfile) -> None:
    """Keep the profile in the run folder, sealed."""
    folder.write(profile_path(folder), msgspec.json.encode(profile).decode())


def profile_path(folder: RunFolder) -> Path:
    """Return the path of a run's profile."""
    return folder.path / f"{_NAME}.json"


def kept_profile(folder: RunFolder) -> TrainingProfile:
    """Read a run's profile. Raises DataError if it has none."""
    path = profile_path(folder)
    if not path.exists():
        raise DataError(f"{folder.path} keeps no distribution of its training rows (it has no column): monitor another run")
    return msgspec.json.decode(folder.read_json(path), type=TrainingProfile)
