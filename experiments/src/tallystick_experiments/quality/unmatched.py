"""Score rows without a partner's row as a run of the product does, to compare with the label party's own columns alone.

The run is a simulated job with the contract's defaults and a method for such rows. Its feature party has a share of the rows that
are not for tests, and none of the test rows. So each test row is scored as one without a partner's row.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tallystick.config.contract import parse_contract
from tallystick.models.branches import BranchedModel
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import Architecture, TrainedLabelParty
from tallystick.simulation import simulate
from tallystick.storage import scratch_folder
from tallystick.watcher import Silent
from tallystick_experiments.catalogue.public import PublicTable
from tallystick_experiments.catalogue.table import column_names
from tallystick_experiments.quality.figure import Figure, Ints, coder_of, test_figure

KEY, TIME = "number of the row", "time of the row"
VALIDATION = 1 / 8  # share of the rows that are not test rows; the other methods have a tenth of all rows


@dataclass(frozen=True, kw_only=True)
class UnmatchedMethod:
    """Run the product, and score all test rows by own columns, because no partner has them.

    Args:
        method: the contract's method for rows without a partner's row.
        matched: the share of the rows outside the tests that the feature party has too.
    """

    method: str
    matched: float = 0.5

    def __call__(self, table: PublicTable, seed: int) -> Figure:
        """Run the job and score the test rows."""
        started = time.perf_counter()
        train, validation, test = table.parts(seed)
        with scratch_folder() as folder:
            trained = self._trained(table, seed, np.concatenate([train, validation]), folder)
        assert trained.encoder is not None
        assert isinstance(trained.model, BranchedModel)
        trained.model.eval()
        features = trained.encoder.encode(table.frame[np.sort(test)]).unpacked()
        logits_T = trained.model.score_alone(features).detach().numpy()
        value = test_figure(table, coder_of(table, train), np.sort(test), trained.coder.predictions(logits_T))
        return Figure(value=value, seconds=time.perf_counter() - started, epochs=trained.state.epoch)

    def _trained(self, table: PublicTable, seed: int, rows: Ints, folder: Path) -> TrainedLabelParty:
        """Train the label party's part of a run on these rows."""
        own, partner_columns = table.halves(seed)
        by_time = table.times is not None
        frame = table.frame.with_row_index(KEY)
        if table.times is not None:
            frame = frame.with_columns(table.times.alias(TIME))
        frame = frame[np.sort(rows)]
        matched = np.random.default_rng([seed, 15]).random(frame.height) < self.matched
        label_side = frame.select(KEY, table.label, *([TIME] if by_time else []), *column_names(own))
        contract = parse_contract(
            {
                "name": "unmatched",
                "seed": seed,
                "training": {"starts": "public"},
                "target": table.contract_target,
                "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}},
                "alignment": {"keys": [{"name": KEY}]},
                "split": {"method": "time" if by_time else "hash", "validation": VALIDATION, "test": 0.0},
                "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
                "unaligned": {"method": self.method},
                "audit": False,
            }
        )
        parties: dict[str, dict[str, Any]] = {
            name: {
                "keys": {KEY: KEY},
                "features": {"numeric": list(columns.numeric), "categorical": list(columns.categorical)},
            }
            for name, columns in (("label", own), ("feature", partner_columns))
        }
        parties["label"] |= {"label": table.label} | ({"time": TIME} if by_time else {})
        tables = {"label": label_side, "feature": frame.filter(pl.Series(matched)).select(KEY, *column_names(partner_columns))}
        simulate(contract, tables, parties, folder=folder, watcher=Silent())
        (run,) = (folder / "label").glob("unmatched-*")
        return TrainedLabelParty.load(RunFolder.open(run), Architecture.of(contract, "label"))
