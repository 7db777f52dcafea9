"""Damaged run folders: no damaged file is used, each is named, and the run goes on from what both sides still have."""

import os
import shutil
import signal
import stat

import pytest
from tiny import OnDisk, contract_values, lay_out

from tallystick.network.addresses import free_port

PARTIES = ("bank", "shop")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Make a job that has run, with two checkpoints within its last epoch and one at its end."""
    values = contract_values(PARTIES, evaluation__bootstrap=0)
    job = lay_out(tmp_path_factory.mktemp("finished"), PARTIES, values, rows=400)
    job.run_all()
    return job


@pytest.fixture
def job(finished, tmp_path):
    """Return a copy of it, to be damaged. End all processes."""
    shutil.copytree(finished.root, tmp_path / "job")
    copy = OnDisk(tmp_path / "job", PARTIES)
    address = f"127.0.0.1:{free_port()}"
    copy.change("bank", listen=address)
    copy.change("shop", peers={"bank": {"address": address}})
    yield copy
    for party in copy.started:
        party.close()


def folder(job, party):
    (path,) = job.runs(party)
    return path


def steps(job, party):
    return sorted((folder(job, party) / "checkpoints").glob("step-*"), key=lambda path: int(path.stem[5:]))


def flip(path, place=-9):
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)


def said(running):
    return " | ".join(event["say"] for event in running.events if "say" in event)


@pytest.mark.long
def test_a_run_goes_on_from_the_last_step_that_both_sides_have_intact(job, finished):
    early, late = steps(job, "shop")
    flip(late)
    (early.with_name("step-abc.safetensors")).write_bytes(b"not a step")
    for party in PARTIES:
        (folder(job, party) / "model.safetensors").unlink()
    again = job.run_all("run", "--resume")
    assert f"{late} is damaged: its content does not match its digest; going on" in said(again["shop"])
    assert all(f"resuming after step {early.stem[5:]}" in said(again[party]) for party in PARTIES)
    for party in PARTIES:
        assert job.models(party) == finished.models(party)


@pytest.mark.long
@pytest.mark.parametrize("damaged", ["step-*.safetensors", "best-*.safetensors"])
def test_without_an_intact_step_training_starts_anew_on_the_kept_alignment(job, finished, damaged):
    for path in (folder(job, "bank") / "checkpoints").glob(damaged):
        flip(path)
    flip(folder(job, "bank") / "model.safetensors")
    again = job.run_all("run", "--resume")
    assert "keeping the alignment of the interrupted run" in said(again["bank"])
    for party in PARTIES:
        assert "training starts again on the kept alignment" in said(again[party])
        assert job.models(party) == finished.models(party)


@pytest.mark.parametrize("name", ["model.safetensors", "training.json"])
def test_a_damaged_model_is_made_again_from_the_last_checkpoint_and_not_used_before(job, finished, name):
    path = folder(job, "shop") / name
    flip(path)
    for command in ("evaluate", "predict"):
        shop = job.start("shop", command)
        assert shop.end() == 3
        assert f"{path} is damaged" in shop.error
        assert "with --resume on all sides makes it again from the last good checkpoint" in shop.error
    again = job.run_all("run", "--resume")
    assert f"{path} is damaged" in said(again["shop"])
    for party in PARTIES:
        assert job.models(party) == finished.models(party)


@pytest.mark.parametrize("place", [12, 90, -5])
def test_a_damaged_alignment_is_named_before_anybody_is_called_with_advice_that_works(job, place):
    path = folder(job, "bank") / "alignment.safetensors"
    flip(path, place)
    bank = job.start("bank", "run", "--resume")
    assert bank.end() == 3
    assert bank.error.startswith(f"error: {path} is damaged: ")
    assert "start a new run on all sides, without --resume" in bank.error
    if place == -5:
        job.run_all()
        assert [len(job.runs(party)) for party in PARTIES] == [2, 2]


@pytest.mark.parametrize("name", ["encoder.json", "label.json"])
def test_damaged_encoders_are_noticed_before_a_prediction_calls_anybody(job, name):
    flip(folder(job, "bank") / name, 90)
    bank = job.start("bank", "predict", "--output", "scores.csv")
    assert bank.end() == 3
    assert f"{name} is damaged" in bank.error


@pytest.mark.parametrize(("party", "name"), [("bank", "label.json"), ("shop", "encoder.json")])
def test_encoders_that_are_gone_are_missed_before_a_prediction_calls_anybody(job, party, name):
    (folder(job, party) / name).unlink()
    started = job.start(party, "predict", *(("--output", "scores.csv") if party == "bank" else ()))
    assert started.end() == 3
    assert f"{name} is damaged: it is missing; `tallystick run` with --resume" in started.error


def test_a_damaged_secret_ends_a_run_that_would_flip_labels_anew(job):
    flip(folder(job, "bank") / "defense.json", 85)
    bank = job.start("bank", "run", "--resume")
    assert bank.end() == 3
    assert "defense.json is damaged" in bank.error
    assert "another release: start a new run on all sides, without --resume" in bank.error


def test_columns_that_changed_since_are_an_error_not_a_traceback(job):
    for party in PARTIES:
        (folder(job, party) / "model.safetensors").unlink()
        job.change(party, features={"numeric": ["x"], "categorical": []})
    running = job.start_all("run", "--resume")
    codes = {party: running[party].end() for party in PARTIES}
    assert codes == {"bank": 3, "shop": 3}
    errors = [running[party].error for party in PARTIES]
    assert any("is of another model than the one that the contract and the columns give now" in error for error in errors)


def test_a_run_folder_is_held_by_the_run_that_works_in_it(lay_out_job):
    job = lay_out_job(PARTIES, rows=600, training__epochs=400, training__patience=None)
    running = job.start_all()
    running["shop"].wait_for(lambda event: event.get("what") == "training")
    second = job.start("shop", "run", "--resume")
    assert second.end() == 2
    assert f"another process (id {running['shop'].process.pid}) works in this run folder" in second.error
    run = folder(job, "shop")
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    os.kill(running["shop"].process.pid, signal.SIGKILL)
    assert running["bank"].end() == 3


def test_a_run_folder_that_is_removed_in_training_ends_the_run_and_stays_away(lay_out_job):
    job = lay_out_job(PARTIES, rows=600, training__epochs=400, training__patience=None)
    running = job.start_all()
    running["shop"].wait_for(lambda event: event.get("what") == "training")
    run = folder(job, "shop")
    shutil.rmtree(run.rename(job.root / "gone"))  # all at once, because files may still be written during the copy
    assert running["shop"].end() == 3
    assert "its folder is gone, removed while it was in use" in running["shop"].error
    assert not run.exists()
    assert running["bank"].end() == 3
