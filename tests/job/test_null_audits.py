"""The product's audits of data without a leak: the truth is shuffled among the rows of a recorded run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import columns, contract_values, tables

from tallystick.audit.columns import audit_columns
from tallystick.audit.labels import audit_labels
from tallystick.audit.recorded_columns import RecordedColumns, load_columns, save_columns
from tallystick.audit.recorded_labels import RecordedLabels, load_labels, save_labels
from tallystick.report.leaks import feature_headline, leak_headline
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.listing import contract_of
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")


@pytest.mark.long
def test_what_has_nothing_to_do_with_a_view_is_seldom_found_in_it(tmp_path):
    """Of 20 shuffles at most 1 % should say "yes" and 5 % "a little", for labels and for columns.

    3 or more of 20 say "yes" with a chance of .001, 5 or more "a little" with one of .003. Seeded.
    """
    values = contract_values(PARTIES, training__epochs=4, audit="quick")
    simulate(values, tables(PARTIES, rows=600), columns(PARTIES), folder=tmp_path, watcher=Silent(), secret_seed=1)
    bank, shop = (RunFolder.open(next((tmp_path / name).glob("tiny-*"))) for name in PARTIES)
    contract = contract_of(bank.path)
    labels = load_labels(bank, contract)
    loaded = {
        part: load_columns(shop, contract, part) for part in (None, "validation", "test")
    }  # each group of rows that crossed
    said: dict[str, list[str]] = {"labels": [], "columns": []}
    for seed in range(20):
        rng = np.random.default_rng([seed, 99])
        label_N = labels.label_N[torch.from_numpy(rng.permutation(len(labels.label_N)))]
        save_labels(bank, contract, label_N, labels.own_N, run_id=labels.run_id)
        said["labels"] += leak_headline(audit_labels(RecordedLabels.load(bank, contract), watcher=Silent(), seed=seed))
        for part, (truth, party, run_id) in loaded.items():
            order_R = torch.from_numpy(rng.permutation(len(truth.rows_R)))
            other = replace(truth, used=truth.used.rows(order_R), unused=truth.unused.rows(order_R))
            save_columns(shop, contract, party, other, run_id=run_id, part=part)
        said["columns"].append(feature_headline(audit_columns(RecordedColumns.load(shop, contract), watcher=Silent(), seed=seed)))
    for lines in said.values():
        assert sum(", yes:" in line for line in lines) < 3
        assert sum(", a little:" in line for line in lines) < 5
        assert sum("no attack here found more" in line for line in lines) > 12
