"""Retrain each month on real flights, and compare starting from last month's weights with starting from scratch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import polars as pl
from typer import Option

from tallystick.errors import ConfigError
from tallystick.simulation import simulate
from tallystick.tables.flights import CARRIER_FEATURES, KEY, LABEL, WEATHER_FEATURES, write_flights
from tallystick.watcher import Silent
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import grid
from tallystick_experiments.options import seeds_option
from tallystick_experiments.page import Benchmark, Cell, seeds_of
from tallystick_experiments.pivot import Pivot, mean
from tallystick_experiments.stats import Figure, Row, change

WINDOW = 3  # months that a training reads
LAST_MONTH = 12
MONTH, TIME = "month_number", "date"

Tables = Mapping[str, pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Way:
    """Define one way to get a model for a month: whether it starts from the last one, whether it trains, and its
    share of epochs.
    """

    starts: bool = False
    trains: bool = True
    share: float = 1.0


SCRATCH = "from scratch"
WAYS: Mapping[str, Way] = {
    SCRATCH: Way(),
    "from last month's weights": Way(starts=True),
    "from last month's weights, a quarter of the epochs": Way(starts=True, share=0.25),
    "the first model as it is": Way(trains=False),
}


def retraining_experiment(
    *,
    rows: Annotated[int, Option(help="Flights of each month.", min=200)] = 4_000,
    months: Annotated[int, Option(help="Months that are retrained for.", min=1)] = 6,
    epochs: Annotated[int, Option(help="Most epochs of a training, before its refit.", min=1)] = 12,
    seeds: Annotated[Sequence[int], seeds_option()] = range(1, 3),
) -> Experiment:
    """Train on three months and test on the next, then go on month by month, in each way.

    Args:
        rows: flights of each month, drawn at random.
        months: the number of months to retrain for, after the first training.
        epochs: the most epochs of a training, before its refit.
        seeds: the seeds of rows, order and weights.

    Raises ConfigError for more months than there are.
    """
    if not 1 <= months <= LAST_MONTH - WINDOW - 1:
        most = LAST_MONTH - WINDOW - 1
        raise ConfigError(f"months = {months}: must be 1 to {most}; each training reads {WINDOW} months, and the next one tests")

    def trial(seed: int, way: str) -> Row:
        return {"months": _chain(WAYS[way], rows=rows, months=months, epochs=epochs, seed=seed)}

    about = {"rows": rows, "months": months, "epochs": epochs}
    return Experiment(
        name="retraining",
        cases=grid(seed=seeds, way=WAYS),
        trial=trial,
        page=retraining_page,
        setting={"benchmark": "retraining", **about},
        about=about,
    )


def _chain(way: Way, *, rows: int, months: int, epochs: int, seed: int) -> list[Row]:
    """Measure each month's model on the month after it. The first month's model is the same for all ways."""
    rows_of_chain: list[Row] = []
    with TemporaryDirectory() as folder:
        # Both tables, with the month as a number, and with this many flights of each month
        written = write_flights(Path(folder), seed=1)
        date = (pl.col("month") * 100 + pl.col("day")).alias(TIME)
        carrier = pl.read_parquet(written.carrier).with_columns(pl.col("month").alias(MONTH), date)
        carrier = carrier.filter(pl.int_range(pl.len()).shuffle(seed=seed).over(MONTH) < rows)
        tables, earlier = {"carrier": carrier, "weather": pl.read_parquet(written.weather)}, ""
        for month in range(WINDOW, WINDOW + months + 1):
            is_first = month == WINDOW
            share = 1.0 if is_first else way.share if way.trains else 0.0
            # A run trains for at least one epoch, so a model without training takes one epoch that changes next to nothing.
            training: dict[str, Any] = {"epochs": max(int(epochs * share), 1)}
            if not is_first and not way.trains:
                training |= {"learning_rate": 1e-9, "refit": False}
            began = time.process_time()
            start_from = earlier if way.starts or not way.trains else ""
            result = _simulate(Path(folder), _window(tables, month), training, seed=seed, start_from=start_from)
            seconds, earlier = time.process_time() - began, result.run_id
            if is_first:
                continue
            refit = result.training.refit_epochs
            rows_of_chain.append(
                {
                    "tested_on": month + 1,
                    "loss": result.joint["nll"]["value"],
                    "auc": result.joint["auc"]["value"],
                    "seconds": round(seconds, 2) if way.trains else 0.0,
                    "epochs": len(result.training.history) - refit if way.trains else 0,
                    "refit_epochs": refit,
                }
            )
    return rows_of_chain


def retraining_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show means over months, with intervals over seeds, and the loss month by month."""

    def of_months(name: str) -> Figure:
        return lambda row: sum(month[name] for month in row["months"]) / len(row["months"])

    def change_of_loss(chains: Sequence[Row]) -> Cell:
        scratch = [row for row in rows if row["way"] == SCRATCH]
        return None if chains[0]["way"] == SCRATCH else change(chains, scratch, of_months("loss"))

    note = (
        f"Flights that arrive over 15 minutes late; {about['rows']:,} of each month, trained on {WINDOW} months and tested on "
        f"the next one; means of {about['months']} months, seeds {seeds_of(rows)}, with Student's 95 % intervals over seeds. At "
        f"most {about['epochs']} epochs are validated; a refit then trains anew with the validation rows, for as many as "
        "were best. The change is from scratch's loss, seed by seed. Processor time is of all parties and phases."
    )
    return Benchmark(
        title="Retraining by the month: from last month's weights against from scratch",
        tables=[
            Pivot(
                name="Means over months",
                rows={"training begins": "way"},
                shown={
                    "loss": mean(of_months("loss")),
                    "change of loss": change_of_loss,
                    "AUC": mean(of_months("auc")),
                    "processor seconds": mean(of_months("seconds")),
                    "epochs": mean(of_months("epochs")),
                    "epochs of the refit": mean(of_months("refit_epochs")),
                },
                note=note,
            ).table(rows),
            Pivot(name="Loss by month", rows={"training begins": "way"}, columns="tested on", figure="loss").table(
                {**row, **month, "tested on": f"tested on month {month['tested_on']}"} for row in rows for month in row["months"]
            ),
        ],
    )


def _window(tables: Tables, month: int) -> Tables:
    """Return the flights of the training months and of the test month, which is the next one."""
    carrier = tables["carrier"].filter(pl.col(MONTH).is_between(month - WINDOW + 1, month + 1))
    return {"carrier": carrier, "weather": tables["weather"].join(carrier.select(KEY), on=KEY, how="semi")}


def _simulate(folder: Path, tables: Tables, training: Mapping[str, Any], *, seed: int, start_from: str) -> Any:
    linked = tables["carrier"].join(tables["weather"].select(KEY), on=KEY, how="semi")
    months = linked.get_column(MONTH)
    test = int((months == months.max()).sum()) / len(months)
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
    # The month is left out, because training never saw the test month.
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
    return simulate(contract, tables, parties, folder=folder / "runs", watcher=Silent(), start_from=start_from or None)
