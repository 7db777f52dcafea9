"""A defended and audited job as processes: killed in training and resumed, it is the same run, and it is charged once."""

import json
from dataclasses import replace

import polars as pl
import pytest
from tiny import columns, contract_values, weights

from tallystick import simulation
from tallystick.audit.run import audit_recorded
from tallystick.privacy.ledger import Ledger
from tallystick.results import read_result
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
CHANGES = {
    "audit": True,
    "defense": [{"method": "label-dp", "epsilon": 2.0}, {"method": "marvell", "power": 4.0}],
    "training__epochs": 3,
    "training__batch_size": 16,
    "training__checkpoint_every": 20,
    "network": {"heartbeat_s": 0.3, "deadline_s": 8.0, "wait_s": 40.0},
}


@pytest.mark.long
def test_killed_and_resumed(lay_out_job, tmp_path, monkeypatch):
    job = lay_out_job(PARTIES, rows=900, **CHANGES)
    job.change("bank", privacy={"cap": 2.0})  # the budget of one run: resuming it is not refused
    running = job.start_all()
    running["bank"].wait_for(lambda event: event.get("what") == "training" and event["done"] > 40)
    running["bank"].kill()
    assert running["shop"].end() == 3
    (folder,) = job.runs("bank")
    # An epoch of 36 steps was over. What was recorded can be attacked, and the resumed run still audits itself.
    found = audit_recorded(folder, watcher=Silent()).leakage
    assert " of a run that was not finished." in found.summary
    noted = json.loads((folder / "defense.json").read_text())
    again = job.run_all("run", "--resume")
    assert json.loads((folder / "defense.json").read_text()) == noted

    (entry,) = Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").entries("labels")
    assert entry.event.epsilon == 2.0
    assert again["bank"].found["spent_epsilon"] == 2.0
    assert " and 3 of 3." in read_result((folder / "result.json").read_bytes()).sections.leakage.summary
    attacks = {attack["name"] for attack in again["bank"].found["leakage"]["attacks"]}
    assert {"norm", "direction-1", "spectral-embedding"} <= attacks
    assert "leakage" not in again["shop"].found

    # The same secrets in one process, undisturbed, give the same first weights, flips and noise, and so the same weights.
    uses = {"bank": ("start", "defense"), "shop": ("start",)}
    kept = {
        party: {use: json.loads((run / f"{use}.json").read_text())["secret"] for use in uses[party]}
        for party in PARTIES
        for run in job.runs(party)
    }
    assert kept["bank"]["start"] != kept["shop"]["start"]

    def with_the_same_secrets(folder, **_):
        return replace(folder, draw=lambda use: bytes.fromhex(kept[folder.origin.party][use]))

    monkeypatch.setattr(simulation, "replace", with_the_same_secrets)
    frames = {party: pl.read_parquet(job.home(party) / "table.parquet") for party in PARTIES}
    simulate(contract_values(PARTIES, **CHANGES), frames, columns(PARTIES), folder=tmp_path / "simulated")
    for party in PARTIES:
        (model,) = (tmp_path / "simulated" / party).glob("*/model.safetensors")
        assert weights(model) == job.models(party)[-1]
