"""Without cut gradients, as processes: the feature party's process ends before training, whatever happens to the label
party's.
"""

import json
import os
import signal

import numpy as np
import polars as pl
import pytest

PARTIES = ("bank", "shop")
CHANGES = {
    "training__gradients": "none",
    "training__epochs": 6,
    "training__batch_size": 4,
    "training__checkpoint_every": 20,
    "network__deadline_s": 60.0,  # how long shop would wait for bank's end, if it had to
    "evaluation__own_columns_baseline": False,
}


@pytest.mark.long
def test_a_feature_party_neither_sees_nor_needs_the_label_partys_training(lay_out_job):
    job = lay_out_job(PARTIES, rows=300, **CHANGES)
    running = job.start_all()
    running["bank"].wait_for(lambda event: event.get("what") == "training" and event["done"] > 30)
    os.kill(running["bank"].process.pid, signal.SIGSTOP)
    # half of the time that it would wait for a bank that is there
    assert running["shop"].end(timeout=30) == 0, running["shop"].said
    running["bank"].kill()
    shops = {path.name: path.stat().st_mtime_ns for path in job.runs("shop")[0].iterdir()}
    banks = max(path.stat().st_mtime_ns for path in (job.runs("bank")[0] / "checkpoints").iterdir())
    assert shops["model.safetensors"] < banks

    again = job.run_all("run", "--resume")
    assert any("resuming after step" in event.get("say", "") for event in again["bank"].events)
    assert not any("step" in event.get("say", "") for event in again["shop"].events)
    assert "auc_joint" in again["bank"].found
    job.run_all()  # undisturbed
    for party in PARTIES:
        resumed, whole = job.models(party)
        assert resumed == whole

    predicting = {"bank": job.start("bank", "predict", "--output", "scores.parquet"), "shop": job.start("shop", "predict")}
    for party in predicting.values():
        assert party.end() == 0, party.said
    predicted = np.sort(pl.read_parquet(job.home("bank") / "scores.parquet")["score"].to_numpy())
    tested = pl.read_parquet(job.runs("bank")[1] / "scores.parquet")["score"].to_numpy()
    assert len(tested) == json.loads((job.runs("bank")[1] / "result.json").read_bytes())["data"]["rows"]["test"] < len(predicted)
    nearest = predicted[np.clip(np.searchsorted(predicted, tested - 1e-5), 0, len(predicted) - 1)]
    assert np.abs(nearest - tested).max() < 2e-5
