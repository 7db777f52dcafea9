"""Simulate an audited job of a table that two parties share: what attackers find in everything that crosses the cut."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tallystick.config.party import FeatureColumns, SequenceConfig
from tallystick.results import Result
from tallystick.simulation import simulate
from tallystick.watcher import Silent
from tallystick_experiments.catalogue.public import PublicTable

KEY = "row"


def audited(
    frame: pl.DataFrame,
    label: str,
    columns: Mapping[str, FeatureColumns],
    *,
    contract: Mapping[str, Any],
    party: Mapping[str, Any] | None = None,
    has_partner: pl.Series | None = None,
    sequences: Mapping[str, Mapping[str, SequenceConfig]] | None = None,
    folder: Path | None = None,
) -> Result:
    """Run the job of a label party and a feature party.

    Args:
        frame: both parties' columns, one row each; the job joins them again by the number of the row.
        label: the column to predict.
        columns: the columns of the parties ``label`` and ``feature``.
        contract: target, seed and everything that differs from the defaults.
        party: further keys of both party files.
        has_partner: which rows the feature party has too; by default all.
        sequences: the parties' columns of lists; by default none.
        folder: the place of the run folders; by default a temporary one.
    """
    numbered = frame.with_row_index(KEY)
    agreed = {
        "name": "audited",
        "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}},
        "alignment": {"keys": [{"name": KEY}]},
        "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
        "audit": True,
        **contract,
    }
    listed = {
        name: {"numeric": list(of_party.numeric), "categorical": list(of_party.categorical)} for name, of_party in columns.items()
    }
    lists = {name: dict((sequences or {}).get(name, {})) for name in columns}
    parties: dict[str, dict[str, Any]] = {
        name: {
            "keys": {KEY: KEY},
            "features": features,
            "sequences": {column: config.model_dump() for column, config in lists[name].items()},
            **(party or {}),
        }
        for name, features in listed.items()
    }
    parties["label"]["label"] = label
    partner_rows = numbered if has_partner is None else numbered.filter(has_partner)
    tables = {
        "label": numbered.select(KEY, label, *columns["label"].numeric, *columns["label"].categorical, *lists["label"]),
        "feature": partner_rows.select(KEY, *columns["feature"].numeric, *columns["feature"].categorical, *lists["feature"]),
    }
    return simulate(agreed, tables, parties, folder=folder, watcher=Silent())


def audited_table(
    table: PublicTable, seed: int, *, folder: Path | None = None, party: Mapping[str, Any] | None = None, **more: Any
) -> Result:
    """Audit a run on a public table, with columns divided by a seed. ``more`` has further keys of the contract."""
    own, partner_columns = table.halves(seed)
    contract = {"target": table.contract_target, "seed": seed, **more}
    return audited(
        table.frame, table.label, {"label": own, "feature": partner_columns}, contract=contract, party=party, folder=folder
    )
