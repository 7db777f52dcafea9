"""The AUC that a job releases: what a run does if the noise, or the labels, leave none."""

import numpy as np
import pytest
from tiny import columns, contract_values, tables

from tallystick.config.contract import parse_contract
from tallystick.privacy.ledger import Ledger
from tallystick.results import read_result
from tallystick.simulation import simulate
from tallystick.tables.keys import read_keys
from tallystick.tables.split import TEST, split_by_hash

PARTIES = ("bank", "shop")


def test_a_run_whose_noise_hides_a_class_ends_with_a_report_and_is_charged_once(lay_out_job):
    """At epsilon 1e-9 the noisy count is within the some 40 test rows, and so gives an AUC, with a probability below 1e-7."""
    job = lay_out_job(PARTIES, rows=200, evaluation__privacy={"epsilon": 1e-9}, evaluation__own_columns_baseline=False)
    first = job.run_all()
    again = job.run_all("run", "--resume")
    for party in PARTIES:
        (said,) = first[party].found["private_releases"]
        assert said.startswith("no AUC: the noisy number of positives is ")
        assert again[party].found["private_releases"] == [said]
        (folder,) = job.runs(party)
        assert (folder / "report.html").exists()
        (released,) = read_result((folder / "result.json").read_bytes()).sections.privacy.releases
        assert (released.epsilon, released.protects) == (1e-9, "labels")
        assert "spent all the same" in released.note
    assert first["bank"].found["spent_epsilon"] == pytest.approx(1e-9, abs=0)
    assert len(Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").entries("labels")) == 2  # and the training


@pytest.mark.parametrize("value", [0, 1])
def test_test_rows_of_one_class_end_a_run_no_other_way_than_noise_does(tmp_path, value):
    contract = parse_contract(
        contract_values(PARTIES, evaluation__privacy={"epsilon": 1.0}, evaluation__own_columns_baseline=False)
    )
    frames = tables(PARTIES, rows=200)
    keys = read_keys(frames["bank"], columns={"id": "id"}, alignment=contract.alignment)
    of_test = np.asarray(keys.rows_R)[split_by_hash(keys.ids, contract.split, seed=contract.seed) == TEST]
    labels = frames["bank"]["y"].to_numpy().copy()
    labels[of_test] = value
    frames["bank"] = frames["bank"].with_columns(y=labels)
    found = simulate(contract, frames, columns(PARTIES), folder=tmp_path)
    (released,) = found.sections.privacy.releases
    assert released.what.startswith(("AUC ", "no AUC: "))
    assert len(Ledger(tmp_path / "privacy-ledger.sqlite", party="bank").entries("labels")) == 2  # and the training
