"""A party's training workers: a job with several, any of which is killed."""

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import contract_values

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.config.party_checks import check_party
from tallystick.errors import ConfigError
from tallystick.job.phases.workers import compare_workers
from tallystick.run_folder.folder import RunFolder

PARTIES = ("bank", "shop")
CHANGES = {
    "training__epochs": 3,
    "training__batch_size": 16,
    "training__checkpoint_every": 20,
    "evaluation__own_columns_baseline": False,
    "evaluation__importance": {"own_columns": False},
    "network": {"heartbeat_s": 0.3, "deadline_s": 4.0, "wait_s": 40.0},
}


def trains(event):
    return event.get("what") == "training" and event["done"] > 30


def kill_worker(process):
    """Kill a party's only other process."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (worker,) = [int(child) for child in children if b"workers.process" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(worker, signal.SIGKILL)


@pytest.mark.long
def test_a_killed_worker_ends_both_parties_and_the_run_resumes_to_the_same_bits(lay_out_job):
    """First the feature party's worker is killed; after that is resumed, the label party's."""
    whole, job = (lay_out_job(PARTIES, rows=600, **CHANGES) for _ in range(2))
    for each in (whole, job):
        for party in PARTIES:
            each.change(party, training_workers=2)
    ran = whole.run_all()
    assert "training in 2 processes, which share the rows of each batch" in [event.get("say") for event in ran["shop"].events]
    for victim, other, resume in (("shop", "bank", []), ("bank", "shop", ["--resume"])):
        running = job.start_all("run", *resume)
        running[victim].wait_for(trains)
        kill_worker(running[victim].process)
        assert [running[party].end() for party in (victim, other)] == [3, 3]
        (line,) = running[victim].said
        assert line.startswith(
            f"error: worker 1 of the 2 that train for {victim} was ended by signal 9; perhaps memory ran out ["
        )
        assert "to go on: tallystick run contract.yaml --party " in line
        assert f"{victim} had to stop: a process that shares its training has ended" in running[other].error
    again = job.run_all("run", "--resume")
    said = [event["say"] for event in again["bank"].events if "say" in event]
    assert not [line for line in said if line.startswith("note: training began with training_workers")]
    for party in PARTIES:
        assert job.models(party) == whole.models(party)
        assert len(job.runs(party)) == 1


@pytest.mark.parametrize(("began", "now", "says"), [(1, 2, True), (2, 1, True), (2, 2, False), (1, 1, False)])
def test_a_run_that_goes_on_with_other_workers_says_so(began, now, says, tmp_path):
    """Bits depend on the number of workers. A run that begins anew in its folder forgets the earlier number."""
    said = []

    def job(workers):
        party = SimpleNamespace(training_workers=workers)
        return SimpleNamespace(party=party, folder=folder, logbook=SimpleNamespace(watcher=SimpleNamespace(say=said.append)))

    folder = RunFolder.new(tmp_path, parse_contract(contract_values(PARTIES)), "bank", key=None)
    compare_workers(job(3 - began), goes_on=False)
    compare_workers(job(began), goes_on=False)
    compare_workers(job(now), goes_on=True)
    began_and_now = f"training began with training_workers = {began} and goes on with {now}"
    line = f"note: {began_and_now}: its last bits differ from a run with either number"
    assert said == [line] * says


REFUSED = {
    'device = "cuda"': ({"device": "cuda"}, {}),
    "with alignment.method = union the label party": ({}, {"alignment__method": "union"}),
    "with unaligned.method = average the label party": ({}, {"unaligned": {"method": "average"}}),
    "model.normalization = batch": ({}, {"model__normalization": "batch"}),
    "model.bottoms.bank": ({}, {"model__bottoms": {"bank": "mine:Bottom"}}),
    "model.top": ({}, {"model__top": "mine:Top"}),
}


@pytest.mark.parametrize(("named", "values"), REFUSED.items(), ids=REFUSED)
def test_what_a_batch_cannot_be_shared_out_for_is_refused(named, values, tmp_path):
    of_party, of_contract = values
    contract = parse_contract(contract_values(PARTIES, **of_contract))
    file = {"party": "bank", "table": {"path": "t.parquet"}, "keys": {"id": "id"}, "label": "y", "training_workers": 2}
    party = parse_party(file | of_party, folder=tmp_path)
    with pytest.raises(ConfigError, match=f"training_workers = 2: {re.escape(named)}"):
        check_party(contract, party, network=False)
    check_party(contract, party.model_copy(update={"training_workers": 1}), network=False)
