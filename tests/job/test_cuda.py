"""Whole jobs on CUDA, beside the same jobs on the CPU: trained, audited, measured, linked by similarity, defended, resumed.

CI has no CUDA device, so it skips these: run them on a machine that has one.
"""

import pytest
import similar
import torch
from defense_rows import DEFENSE_ROWS
from tiny import columns, contract_values, tables

from tallystick.simulation import Silent, simulate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PARTIES = ("bank", "shop")
ALL, LABEL, FEATURE = set(PARTIES), {"bank"}, {"shop"}


def on(where, theirs):
    """Return what the party files say of columns, with these parties on CUDA."""
    return {name: {**each, "threads": 1, "device": "cuda" if name in where else "cpu"} for name, each in theirs.items()}


def run(where, *, target="binary", **changes):
    given = {"type": target, **({"classes": 3} if target == "multiclass" else {})}
    contract = contract_values(PARTIES, target=given, **{"evaluation__own_columns_baseline": True, **changes})
    return simulate(contract, tables(PARTIES, rows=500, target=target), on(where, columns(PARTIES)), watcher=Silent())


@pytest.mark.parametrize("where", [ALL, LABEL, FEATURE], ids=["all", "label party", "feature party"])
def test_a_run_with_audit_and_importance_measures_what_it_measures_on_a_cpu(where):
    changes = {"audit": True, "evaluation__importance": {"feature_columns": "both", "repeats": 2}}
    here, there = run(set(), **changes), run(where, **changes)
    for model in ("joint", "local_baseline"):
        expected = here.evaluation[model]["auc"]["value"]
        assert there.evaluation[model]["auc"]["value"] == pytest.approx(expected, abs=0.01)  # sums are in another order
    assert there.sections.leakage is not None
    assert there.sections.features


@pytest.mark.parametrize("target", ["multiclass", "regression"])
def test_other_targets_with_boosting_beside(target):
    run(ALL, target=target, audit=True, evaluation__own_columns_boosting=True)


def test_folds_whose_columns_are_screened():
    changes = {"training__folds": 3, "training__epochs": 4, "audit": "quick"}
    here, there = run(set(), **changes), run(ALL, **changes)
    expected = here.evaluation["joint"]["auc"]["value"]
    assert there.evaluation["joint"]["auc"]["value"] == pytest.approx(expected, abs=0.01)


def test_training_that_sends_no_gradient():
    run(ALL, training__gradients="none", training__epochs=2)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "lamb"])
def test_pipelined_training_by_each_optimizer(optimizer):
    changes = {"training__mode": "pipelined", "training__staleness": 4, "training__optimizer": optimizer, "training__clip": 1.0}
    run(ALL, **changes)


@pytest.mark.parametrize("method", list(DEFENSE_ROWS))
def test_each_defence(method):
    target = "multiclass" if method == "label-dp-prior" else "binary"
    for row in DEFENSE_ROWS[method]:
        run(ALL, target=target, defense=[{"method": method, **row}], audit=True)


@pytest.mark.parametrize("numeric", ["piecewise-linear", "periodic"])
def test_each_embedding_of_numbers(numeric):
    run(ALL, model__numeric=numeric)


def test_rows_linked_by_similarity():
    contract = similar.contract_values(target="binary", audit=True)
    where = {"bank", "club", "shop"}
    simulate(contract, similar.tables(target="binary"), on(where, similar.columns()), watcher=Silent())


def test_a_killed_run_goes_on_and_its_model_predicts_on_a_cpu(lay_out_job):
    job = lay_out_job(PARTIES, training__batch_size=8, training__checkpoint_every=10)
    for party in PARTIES:
        job.change(party, device="cuda")
    running = job.start_all()
    running["shop"].wait_for(lambda event: event.get("what") == "training" and event["done"] > 10)
    running["shop"].kill()
    assert running["bank"].end() == 3
    job.run_all("run", "--resume")
    for party in PARTIES:
        job.change(party, device="cpu")
    scoring = {"bank": job.start("bank", "predict", "--output", "scores.csv"), "shop": job.start("shop", "predict")}
    for name, party in scoring.items():
        assert party.end() == 0, f"{name}: {party.said}"
