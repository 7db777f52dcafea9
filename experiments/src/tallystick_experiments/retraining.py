"""Retraining by the month on real flights: from last month's weights against from scratch, by loss and processor time."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from tallystick.data.flights import CARRIER_FEATURES, KEY, LABEL, WEATHER_FEATURES, write_flights
from tallystick.errors import ConfigError
from tallystick.simulation import simulate
from tallystick.watcher import Silent

WINDOW = 3  # months that a training reads
LAST_MONTH = 12
MONTH, TIME = "month_number", "date"

Tables = Mapping[str, pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to have a model for a month: what it starts from, and what the contract's training is changed in."""

    name: str
    starts: bool
    training: Mapping[str, Any]


WAYS = (
    Way(name="from scratch", starts=False, training={}),
    Way(name="from last month's weights", starts=True, training={}),
    Way(name="from last month's weights, a quarter of the epochs", starts=True, training={"epochs": "quarter"}),
)


def run(*, rows: int, months: int, epochs: int, seeds: int, progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Train on three months and test on the next, then go on a month at a time, each way.

    Gives for each way the mean loss and AUC on the next month and the processor seconds of a run, and for the first model, as it
    is, its loss on the same months.
    """
    if not 1 <= months <= LAST_MONTH - WINDOW - 1:
        most = LAST_MONTH - WINDOW - 1
        raise ConfigError(f"months = {months}: must be 1 to {most}; each training reads {WINDOW} months, and the next one tests")
    found: list[dict[str, Any]] = []
    total, done = seeds * (1 + months * len(WAYS)), 0
    for seed in range(1, seeds + 1):
        with TemporaryDirectory() as folder:
            tables = _flights(Path(folder), rows=rows, seed=seed)
            starts = {way.name: "" for way in WAYS}
            for month in range(WINDOW, WINDOW + months + 1):
                window = _window(tables, month)
                for way in WAYS if month > WINDOW else WAYS[:1]:
                    began = time.process_time()
                    result = _simulate(Path(folder), window, way, epochs=epochs, seed=seed, start_from=starts[way.name])
                    seconds = time.process_time() - began
                    starts = {**starts, way.name: result.run_id} if month > WINDOW else dict.fromkeys(starts, result.run_id)
                    done += 1
                    progress("trainings", done, total)
                    if month > WINDOW:
                        joint = result.joint
                        found.append(
                            {
                                "seed": seed,
                                "way": way.name,
                                "trained_to_month": month,
                                "loss": joint["nll"]["value"],
                                "auc": joint["auc"]["value"],
                                "processor_seconds": round(seconds, 2),
                                "epochs": len(result.training.history) if result.training is not None else None,
                            }
                        )
    return {"rows_a_month": rows, "window_months": WINDOW, "runs": found, "means": _means(found)}


def _flights(folder: Path, *, rows: int, seed: int) -> Tables:
    """Both tables with the month as a number beside, so many flights of each month."""
    written = write_flights(folder, seed=1)
    date = (pl.col("month") * 100 + pl.col("day")).alias(TIME)
    carrier = pl.read_parquet(written.carrier).with_columns(pl.col("month").alias(MONTH), date)
    carrier = carrier.filter(pl.int_range(pl.len()).shuffle(seed=seed).over(MONTH) < rows)
    return {"carrier": carrier, "weather": pl.read_parquet(written.weather)}


def _window(tables: Tables, month: int) -> Tables:
    """The flights of the months that are trained on and of the one that tests, which is the next."""
    carrier = tables["carrier"].filter(pl.col(MONTH).is_between(month - WINDOW + 1, month + 1))
    return {"carrier": carrier, "weather": tables["weather"].join(carrier.select(KEY), on=KEY, how="semi")}


def _simulate(folder: Path, tables: Tables, way: Way, *, epochs: int, seed: int, start_from: str) -> Any:
    linked = tables["carrier"].join(tables["weather"].select(KEY), on=KEY, how="semi")
    months = linked.get_column(MONTH)
    test = int((months == months.max()).sum()) / len(months)
    training = {"epochs": epochs, **way.training}
    if training["epochs"] == "quarter":
        training["epochs"] = max(epochs // 4, 1)
    contract = {
        "name": "retraining",
        "parties": {"carrier": {"role": "label"}, "weather": {"role": "feature"}},
        "alignment": {"method": "intersection", "keys": [{"name": KEY}]},
        "split": {"method": "time", "validation": 0.1, "test": round(test, 6)},
        "training": training,
        "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
        "audit": False,
        "seed": seed,
    }
    # The month is left out: the month that is tested was never seen.
    categorical = tuple(name for name in CARRIER_FEATURES.categorical if name != "month")
    parties: dict[str, dict[str, Any]] = {
        "carrier": {
            "keys": {KEY: KEY},
            "label": LABEL,
            "time": TIME,
            "features": {"numeric": CARRIER_FEATURES.numeric, "categorical": categorical},
        },
        "weather": {"keys": {KEY: KEY}, "features": WEATHER_FEATURES.model_dump()},
    }
    started = start_from if way.starts and start_from else None
    return simulate(contract, tables, parties, folder=folder / "runs", watcher=Silent(), start_from=started)


def _means(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    frame = pl.DataFrame(found)
    means = frame.group_by("way", maintain_order=True).agg(pl.col("loss", "auc", "processor_seconds", "epochs").mean())
    return means.to_dicts()
