"""Train a head on shares with the product's own run, on the rows and columns of the other methods."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tallystick.config.contract import parse_contract
from tallystick.simulation import simulate
from tallystick.storage import scratch_folder
from tallystick.watcher import Silent
from tallystick_experiments.catalogue.public import PublicTable
from tallystick_experiments.catalogue.table import column_names
from tallystick_experiments.quality.figure import METRIC, Figure

KEY, PLACE = "number of the row", "place in the split"


@dataclass(frozen=True, kw_only=True)
class SharedMethod:
    """Run a simulated job with ``training.gradients: shared``: a label party, a feature party and a helper.

    It splits by a column that puts the training rows first and the test rows last, so the rows are those of the other methods.
    """

    def __call__(self, table: PublicTable, seed: int) -> Figure:
        """Run the job, and return the figure of its report."""
        started = time.perf_counter()
        parts = table.parts(seed)
        place_N = np.empty(table.frame.height, dtype=np.int64)
        place_N[np.concatenate(parts)] = np.arange(table.frame.height)
        frame = table.frame.with_row_index(KEY).with_columns(pl.Series(PLACE, place_N))
        own, partner_columns = table.halves(seed)
        _, validation, test = (len(part) / table.frame.height for part in parts)
        contract = parse_contract(
            {
                "name": "shared",
                "seed": seed,
                "training": {"gradients": "shared"},
                "target": table.contract_target,
                "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}, "helper": {"role": "helper"}},
                "alignment": {"keys": [{"name": KEY}]},
                "split": {"method": "time", "validation": validation, "test": test},
                "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
                "unaligned": {"method": "none"},
            }
        )
        parties: dict[str, dict[str, Any]] = {
            name: {
                "keys": {KEY: KEY},
                "features": {"numeric": list(columns.numeric), "categorical": list(columns.categorical)},
            }
            for name, columns in (("label", own), ("feature", partner_columns))
        }
        parties["label"] |= {"label": table.label, "time": PLACE}
        tables = {
            "label": frame.select(KEY, PLACE, table.label, *column_names(own)),
            "feature": frame.select(KEY, *column_names(partner_columns)),
        }
        with scratch_folder() as folder:
            result = simulate(contract, tables, parties, folder=folder, watcher=Silent(), secret_seed=seed)
        assert result.evaluation is not None, "there are test rows"
        value = result.evaluation["joint"][METRIC.get(table.target, "auc")]["value"]
        assert value is not None, "the test rows are of more than one class"
        crossing = sum(phase.bytes_sent for phase in result.phases if phase.name == "training")
        return Figure(value=value, seconds=time.perf_counter() - started, crossing_bytes=crossing)
