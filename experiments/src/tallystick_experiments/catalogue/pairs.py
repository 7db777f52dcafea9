"""Read pairs of tables that share places and not ids: FedSim's sets, if they are public, with the same columns for every method.

A column that reveals the place (a town, a station, the distance to one) is not a feature, because the information of the keys
must come from linking. Shapes: N rows of the label party, M rows of the feature party, P dimensions of the key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.party import FeatureColumns
from tallystick.errors import ConfigError, DataError

Floats = NDArray[np.float64]
GENERATED_ROWS = 6000  # default number of rows of a generated table


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Hold two parties' tables, and the keys that make rows similar."""

    name: str
    own: pl.DataFrame
    label: str
    target: Literal["binary", "multiclass", "regression"]
    own_columns: FeatureColumns
    own_key_NP: Floats
    theirs: pl.DataFrame
    their_columns: FeatureColumns
    their_key_MP: Floats
    same_rows: bool = False
    """Whether row i of both tables is one thing, as in a set that was split by columns."""
    parties: tuple[FeatureColumns, ...] = ()
    """The columns that each feature party holds, if there are several."""

    def shared_out(self, parties: Sequence[int]) -> "Pair":
        """Deal the columns out to three feature parties, and keep the parties of these numbers (counted from 1)."""
        dealt = [FeatureColumns(numeric=self.their_columns.numeric[number - 1 :: 3]) for number in parties]
        return replace(self, parties=tuple(dealt))


def read_hdb(folder: Path) -> Pair:
    """Read Singapore's resale flats of 2015 and 2016, in thousands of dollars, and its secondary schools."""
    flats = _csv(folder / "hdb_with_latlon.csv.gz").with_columns(
        pl.col("resale_price") / 1000,
        month=pl.col("month").str.slice(0, 4).cast(pl.Int64) * 12 + pl.col("month").str.slice(5, 2).cast(pl.Int64),
        storey=pl.col("storey_range").str.slice(0, 2).cast(pl.Float64),
    )
    schools = _csv(folder / "school_clean.csv")
    return Pair(
        name="hdb",
        own=flats,
        label="resale_price",
        target="regression",
        own_columns=FeatureColumns(
            numeric=("month", "floor_area_sqm", "lease_commence_date", "remaining_lease", "storey"),
            categorical=("flat_type", "flat_model"),
        ),
        own_key_NP=_key(flats, "lon", "lat"),
        theirs=schools,
        their_columns=FeatureColumns(
            numeric=tuple(f"{what}_{grade}" for grade in range(4) for what in ("n_places", "vacancy_rate"))
        ),
        their_key_MP=_key(schools, "lon", "lat"),
    )


def read_bike(folder: Path) -> Pair:
    """Read New York's taxi trips of 2016 with their duration in seconds, and bicycle trips of two days of 2017."""
    taxi = _csv(folder / "nyc_taxi_10k.csv.gz", null_values=["NA"]).drop_nulls("duration")
    stations = _csv(folder / "stations.csv").select("station_id", "longitude", "latitude")
    days = [_csv(path) for path in sorted(folder.glob("citibike-*.csv.gz"))]
    trips = pl.concat(days).with_columns(
        pl.col("birth_year").replace(0, None),
        minute=pl.col("start_ts").str.slice(11, 2).cast(pl.Int64) * 60 + pl.col("start_ts").str.slice(14, 2).cast(pl.Int64),
        seconds=pl.col("duration").log1p(),
    )
    for end in ("start", "end"):
        renamed = stations.rename({"station_id": f"{end}_station", "longitude": f"{end}_lon", "latitude": f"{end}_lat"})
        trips = trips.join(renamed, on=f"{end}_station", how="inner", maintain_order="left")
    return Pair(
        name="bike",
        own=taxi.with_columns(minute=pl.col("hour") * 60 + pl.col("minute")),
        label="duration",
        target="regression",
        own_columns=FeatureColumns(numeric=("day", "minute"), categorical=("weekday",)),
        own_key_NP=_key(taxi, "pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"),
        theirs=trips,
        their_columns=FeatureColumns(numeric=("seconds", "minute", "birth_year", "subscriber")),
        their_key_MP=_key(trips, "start_lon", "start_lat", "end_lon", "end_lat"),
    )


def read_house(folder: Path) -> Pair:
    """Read Beijing's flats sold from 2013 on, in 10,000 yuan, and rooms to let.

    The columns are those of Kaggle's ruiqurm/lianjia, and of the table that FedSim's authors give. As in the paper, rows have no
    missing value and a price of 10 to 1,000, and places stay as they are: the two maps differ by a kilometre.
    """
    sold = _csv(folder / "new.csv", encoding="utf8-lossy").drop_nulls()
    date = pl.col("tradeTime").cast(pl.String).str.replace_all("-", "")
    whole = [pl.col(name).cast(pl.String).str.extract(r"(\d+)").cast(pl.Float64) for name in ("floor", "constructionTime")]
    sold = sold.with_columns(*whole, year=date.str.slice(0, 4).cast(pl.Int64), month=date.str.slice(4, 2).cast(pl.Int64))
    sold = sold.drop_nulls().filter(pl.col("year") > 2012, pl.col("totalPrice") >= 10, pl.col("totalPrice") < 1000)
    rooms = _csv(folder / "airbnb_clean.csv")
    return Pair(
        name="house",
        own=sold,
        label="totalPrice",
        target="regression",
        own_columns=FeatureColumns(
            numeric=(
                *("followers", "square", "livingRoom", "drawingRoom", "kitchen", "bathRoom", "floor", "constructionTime"),
                *("ladderRatio", "elevator", "fiveYearsProperty", "year", "month"),
            ),
            categorical=("buildingType", "renovationCondition", "buildingStructure"),
        ),
        own_key_NP=_key(sold, "Lng", "Lat"),
        theirs=rooms,
        their_columns=FeatureColumns(
            numeric=(
                *("price", "minimum_nights", "number_of_reviews", "reviews_per_month", "calculated_host_listings_count"),
                *("availability_365", "rt_Private room", "rt_Shared room"),
            )
        ),
        their_key_MP=_key(rooms, "lon", "lat"),
    )


def read_frogs(folder: Path) -> Pair:
    """Read calls of frogs, split by columns as in the paper: 16 of the 22 MFCCs are the keys, and each party has three."""
    frogs = _csv(folder / "Frogs_MFCCs.csv.gz")
    columns = [name for name in frogs.columns if name.startswith("MFCCs_")]
    return _by_columns("frogs", frogs, columns, keys=16, label="Species", target="multiclass")


def read_synthetic(*, rows: int = GENERATED_ROWS, seed: int = 0) -> Pair:
    """Make two classes with scikit-learn's make_classification, split by columns: 5 keys, and 20 columns for each party."""
    try:
        from sklearn.datasets import make_classification
    except ImportError:
        raise ConfigError("bench fedsim: the synthetic set needs scikit-learn; install it, or name other parts") from None
    x_NF, y_N = make_classification(
        n_samples=rows, n_features=45, n_informative=30, n_redundant=10, n_clusters_per_class=4, random_state=seed
    )
    columns = [f"x{index}" for index in range(45)]
    frame = pl.DataFrame(x_NF / x_NF.std(axis=0), schema=columns).with_columns(label=pl.Series(y_N))
    return _by_columns("synthetic", frame, columns, keys=5, label="label", target="binary")


def read_independent(*, rows: int = GENERATED_ROWS) -> Pair:
    """Generate the same pair with random keys, which show only which rows are one thing (sklearn-random, Table 10)."""
    pair = read_synthetic(rows=rows)
    key_NP = np.random.default_rng(0).normal(size=pair.own_key_NP.shape)
    return replace(pair, name="synthetic-random", own_key_NP=key_NP, their_key_MP=key_NP)


def _by_columns(
    name: str, frame: pl.DataFrame, columns: Sequence[str], *, keys: int, label: str, target: Literal["binary", "multiclass"]
) -> Pair:
    """Split one table by columns, which are drawn as keys or for a party. Row i of both tables is one thing."""
    order = np.random.default_rng(0).permutation(len(columns))
    shuffled = [columns[place] for place in order]
    half = keys + (len(columns) - keys) // 2
    key_NP = _key(frame, *shuffled[:keys])
    return Pair(
        name=name,
        own=frame,
        label=label,
        target=target,
        own_columns=FeatureColumns(numeric=tuple(shuffled[keys:half])),
        own_key_NP=key_NP,
        theirs=frame,
        their_columns=FeatureColumns(numeric=tuple(shuffled[half:])),
        their_key_MP=key_NP,
        same_rows=True,
    )


READERS: Mapping[str, Callable[[Path], Pair]] = {"house": read_house, "hdb": read_hdb, "bike": read_bike, "frogs": read_frogs}
"""The reader of each set."""
GENERATED: Mapping[str, Callable[..., Pair]] = {"synthetic": read_synthetic, "synthetic-random": read_independent}
"""The function that generates each set without a file."""
_FILES = {
    "house": "airbnb_clean.csv",
    "hdb": "hdb_with_latlon.csv.gz",
    "bike": "nyc_taxi_10k.csv.gz",
    "frogs": "Frogs_MFCCs.csv.gz",
}


def recognise(folder: Path) -> str:
    """Find out which set a folder holds, by its files. Raises DataError if there is none."""
    for name, file in _FILES.items():
        if (folder / file).exists():
            return name
    raise DataError(f"{folder}: holds none of {', '.join(_FILES.values())}; give the folder of a set's files")


def _csv(path: Path, **options: Any) -> pl.DataFrame:
    try:
        return pl.read_csv(path, infer_schema_length=None, **options)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read ({str(error)[:200]}); give the folder of the set's files") from None


def _key(frame: pl.DataFrame, *names: str) -> Floats:
    return frame.select(pl.col(names).cast(pl.Float64)).to_numpy()
