"""Training again with the validation rows: who is told, what it costs, and what uses the model before it."""

import time

import polars as pl
import pytest
import similar
import torch
from lanes import short_lane_of
from tiny import PATIENCE_S, columns, contract_values, lay_out, tables

from tallystick.config.contract import parse_contract
from tallystick.dataset import intersection
from tallystick.disclosure.table import disclosure_lines
from tallystick.errors import ConfigError
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.row_recorder import RowStore
from tallystick.simulation import simulate
from tallystick.training.checkpoint import read_tensors

PARTIES = ("bank", "shop")


def run(folder, parties=PARTIES, **changes):
    """Simulate with rows split by time, unless the changes say otherwise. Return the result and each party's folder."""
    of = columns(parties)
    of["bank"]["time"] = "day"
    values = contract_values(parties, **{"split__method": "time", "training__epochs": 3, **changes})
    result = simulate(values, tables(parties, rows=400), of, folder=folder)
    return result, {party: RunFolder.open(next((folder / party).glob("tiny-*"))) for party in parties}


def weights(folder, path):
    return {name: tensor.tolist() for name, tensor in read_tensors(path, origin=folder.origin)[0].items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Make a run with the defaults of a split by time, and the same run without a refit, with the same encoders."""
    from tiny import seed_system

    found = []
    for changes in ({}, {"training__refit": False}):
        with pytest.MonkeyPatch.context() as patch:
            seed_system(patch)
            patch.setattr(intersection, "fitted_positions", lambda _, *parts_N, **_folded: torch.cat(parts_N))
            audited = {"audit": "quick", "evaluation__importance": {"feature_columns": "label-party"}}
            found.append(run(tmp_path_factory.mktemp("run"), **audited, **changes))
    return found


def test_the_model_before_it_is_that_of_a_run_without(both):
    (_, refitted), (_, plain) = both
    for party in PARTIES:
        kept, before = refitted[party], plain[party]
        assert weights(kept, kept.model_before_refit) == weights(before, before.model)
        assert weights(kept, kept.model) != weights(before, before.model)
        assert not before.model_before_refit.exists()


def test_what_needs_validation_rows_is_measured_by_the_model_before(both):
    """Column importance and the cheapest threshold are those of a run without a refit. Test results differ."""
    (refitted, _), (plain, _) = both
    assert [each.party for each in refitted.sections.importance] == ["bank", "shop"]
    assert refitted.sections.importance == plain.sections.importance
    assert refitted.sections.decisions["best"]["threshold"] == plain.sections.decisions["best"]["threshold"]
    assert refitted.joint["auc"]["value"] != plain.joint["auc"]["value"]


def test_the_report_says_it(both):
    (refitted, folders), _ = both
    assert (refitted.training.refit_epochs, len(refitted.training.history)) == (3, 6)
    learnt = {item.party: item.what for item in refitted.learnt if item.step == "training" and "epochs" in item.what}
    rows = refitted.data.rows
    assert learnt["shop"].endswith(
        f" The same of {rows['train'] + rows['validation']} rows, the validation rows among them, for 3 epochs more."
    )
    assert learnt["bank"].endswith(" The same of 3 more epochs, in which training began anew with the validation rows.")
    assert any("by the weights before the refit" in item.what for item in refitted.learnt)
    for folder in folders.values():
        assert "training then began anew with the validation rows for that many passes (" in folder.report.read_text()


def test_the_audit_reads_the_validation_rows_labels(both):
    (refitted, folders), (plain, _) = both
    bank, rows = folders["bank"], refitted.data.rows
    store = RowStore(folder=bank.views / "shop", contract=refitted.contract.hash, received="cut_gradient", origin=bank.origin)
    first, last = (store.load(epoch) for epoch in (store.epochs()[0], store.epochs()[-1]))
    assert (len(first.seen_rows), len(last.seen_rows)) == (rows["train"], rows["train"] + rows["validation"])
    assert store.epochs()[-1] == 5
    assert refitted.sections.leakage.attacks
    assert plain.data.rows == rows


def test_encoders_know_what_the_validation_rows_brought(tmp_path):
    """A category is new in the newest training rows, which are for validation: without a refit it is unknown."""
    frames, of = tables(PARTIES, rows=400), columns(PARTIES)
    of["bank"]["time"] = "day"
    is_new = pl.col("day").is_between(72, 78)
    frames["bank"] = frames["bank"].with_columns(kind=pl.when(is_new).then(pl.lit("new")).otherwise("kind"))
    known = []
    for refit in ("auto", False):
        values = contract_values(PARTIES, split__method="time", training__epochs=1, training__refit=refit)
        simulate(values, frames, of, folder=tmp_path / str(refit))
        kept = next((tmp_path / str(refit) / "bank").glob("tiny-*/encoder.json")).read_text()
        known.append('"new"' in kept)
    assert known == [True, False]


MORE = {
    "several feature parties": {"parties": ("bank", "club", "shop")},
    "pipelined": {"training__mode": "pipelined"},
    "labels replaced": {"defense": [{"method": "label-dp", "epsilon": 4.0}]},
    "noise on gradients": {"defense": [{"method": "marvell", "power": 1.0}]},
    "no gradients": {"training__gradients": "none"},
    "split by hash": {"split__method": "hash", "training__refit": True},
    "no validation rows to stop by": {"training__patience": None, "training__schedule": "cosine"},
}


@pytest.mark.parametrize("changes", short_lane_of(MORE.values(), 4), ids=MORE)
def test_it_goes_with(changes, tmp_path):
    result, folders = run(tmp_path, **changes)
    assert result.training.refit_epochs == result.training.best_epoch - 3 > 0
    assert result.joint["auc"]["value"] > 0.5
    sends = changes.get("training__gradients") != "none"
    assert [folder.model_before_refit.exists() for folder in folders.values()] == [True, *[sends] * (len(folders) - 1)]


def test_by_hash_there_is_none_unless_it_is_asked_for(tmp_path):
    result, _ = run(tmp_path, split__method="hash", training__epochs=1)
    assert result.training.refit_epochs == 0


@pytest.mark.long
def test_it_goes_with_rows_that_are_linked_by_similarity(tmp_path):
    of = {name: dict(party) for name, party in similar.columns().items()}
    of["bank"]["time"] = "day"
    values = similar.contract_values(split__method="time", training__epochs=2)
    result = simulate(values, similar.tables(rows=200), of, folder=tmp_path)
    assert (result.training.refit_epochs, len(result.training.history)) == (2, 4)
    assert len(list(tmp_path.glob("*/*/model-before-refit.safetensors"))) == 3


def test_it_goes_with_several_rows_of_an_id(tmp_path):
    frames, of = tables(PARTIES, rows=300), columns(PARTIES)
    of["bank"]["time"] = "day"
    frames["bank"] = pl.concat([frames["bank"], frames["bank"].head(100)])
    values = contract_values(PARTIES, split__method="time", training__epochs=1, alignment__duplicates="all")
    assert simulate(values, frames, of, folder=tmp_path).training.refit_epochs == 1


REFUSED = {
    "split.validation = 0: there are no validation rows to train on": {"split__validation": 0.0},
    "alignment.method = union: stand-ins for a union's absent rows would be drawn a second time": {"alignment__method": "union"},
    "unaligned.method = heuristic: its models are fitted to each other on validation rows": {
        "unaligned": {"method": "heuristic"}
    },
}


@pytest.mark.parametrize("problem", REFUSED)
def test_a_refit_that_cannot_be_is_refused(problem):
    values = contract_values(PARTIES, training__refit=True, **REFUSED[problem])
    with pytest.raises(ConfigError, match=f"training.refit = true, {problem}".replace(".", r"\.")):
        parse_contract(values)
    values["training"].pop("refit")
    values["split"]["method"] = "hash" if "union" in problem else "time"
    assert not parse_contract(values).refits


def test_check_says_what_it_discloses():
    by_time = parse_contract(contract_values(PARTIES, split__method="time"))
    (line,) = [line for line in disclosure_lines(by_time, own_columns=None) if "training.refit" in line]
    assert "further gradients go to shop, which depend on the validation rows' labels too" in line
    for changes in ({"training__refit": False}, {"training__gradients": "none"}):
        contract = parse_contract(contract_values(PARTIES, split__method="time", **changes))
        assert not any("refit" in line for line in disclosure_lines(contract, own_columns=None))


def test_trials_of_a_search_are_compared_by_validation_alone():
    contract = parse_contract(contract_values(PARTIES, split__method="time"))
    assert contract.refits
    assert not contract.for_trial().refits


TO_BE_CUT = {"split__method": "time", "training__epochs": 3, "training__batch_size": 4, "training__checkpoint_every": 5}


def by_day(job):
    job.change("bank", time="day")
    return job


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return each party's model of an undisturbed run."""
    job = by_day(lay_out(tmp_path_factory.mktemp("whole"), PARTIES, contract_values(PARTIES, **TO_BE_CUT), rows=420))
    job.run_all()
    return {party: job.models(party)[-1] for party in PARTIES}


def cut_in_the_refit(lay_out_job, victim):
    """Kill the victim of a job while it refits, once that has committed some steps.

    The first training takes 204 steps and the refit at least 76. A look at the folder every millisecond meets the refit in its
    middle, unless the machine is busy. So a run that ended before the kill is begun again.
    """
    for _ in range(5):
        cut = by_day(lay_out_job(PARTIES, rows=420, **TO_BE_CUT))
        running, until = cut.start_all(), time.monotonic() + PATIENCE_S
        while max(committed(cut, victim), default=0) < 215 and time.monotonic() < until:
            time.sleep(0.001)
        running[victim].kill()
        for party in PARTIES:
            running[party].end()
        if not any(RunFolder.open(path).trained for party in PARTIES for path in cut.runs(party)):
            return cut
    pytest.fail("five runs were through before they were killed")


def committed(job, party):
    """Return the steps whose checkpoints are in a party's run folder now."""
    return [int(path.stem.partition("-")[2]) for run in job.runs(party) for path in run.glob("checkpoints/step-*.safetensors")]


@pytest.mark.long
@pytest.mark.parametrize("victim", PARTIES)
def test_a_party_that_is_killed_in_the_refit_is_resumed_to_the_same_bits(lay_out_job, undisturbed, victim):
    cut = cut_in_the_refit(lay_out_job, victim)
    again = cut.run_all("run", "--resume")
    assert {party: cut.models(party)[-1] for party in PARTIES} == undisturbed
    assert any("resuming after step" in event.get("say", "") for event in again["bank"].events)
    if victim == "bank":  # the refit cannot go back to the model before it, so all of training is repeated
        (kept,) = cut.runs(victim)
        (kept / "model-before-refit.safetensors").write_bytes(b"damaged")
        again = cut.run_all("run", "--resume")
        assert any("model-before-refit.safetensors is damaged" in event.get("say", "") for event in again["bank"].events)
        assert cut.models(victim)[-1] == undisturbed[victim]
