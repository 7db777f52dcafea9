"""A simulated job of a table that two parties share, with ``audit: true``: what attackers find in all that crossed the cut."""

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
        frame: both parties' columns, a row each; joined again on the row's number.
        label: the column to predict.
        columns: of ``label`` and of ``feature``, the parties.
        contract: target, seed and whatever is not the default.
        party: what both party files say besides.
        has_partner: the rows that the feature party has too; all if left out.
        sequences: of the parties, their columns of lists; none if left out.
        folder: where the run folders go; a temporary one if left out.
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
    """Audit a run on a public table whose columns a seed shares out. ``more`` is what the contract says besides."""
    own, partner_columns = table.halves(seed)
    contract = {"target": table.contract_target, "seed": seed, **more}
    return audited(
        table.frame, table.label, {"label": own, "feature": partner_columns}, contract=contract, party=party, folder=folder
    )
