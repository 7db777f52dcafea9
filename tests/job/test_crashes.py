"""Either party may be killed at any moment. The other one soon ends and says so, and --resume ends with the same weights."""

import itertools
import os
import re
import signal
import time

import pytest
from lanes import short_lane_of
from safetensors.torch import load_file

from tallystick.network.addresses import free_port

PARTIES = ("bank", "shop")
# Large enough that each phase lasts while a signal is on its way, small enough for two cores.
ROWS = 1_500
CHANGES = {
    "training__epochs": 3,
    "training__batch_size": 16,
    "training__checkpoint_every": 20,
    "network": {"heartbeat_s": 0.3, "deadline_s": 4.0, "wait_s": 40.0},
}
LASTS = {"evaluation": {"calibration_bins": 5, "bootstrap": 1_000}}
IN_PHASE = {
    "handshake": lambda event: event.get("phase") == "handshake",
    "alignment": lambda event: event.get("phase") == "alignment",
    "training": lambda event: event.get("what") == "training" and event["done"] > 30,
    "evaluation": lambda event: event.get("phase") == "evaluation",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the models of a run without any trouble."""
    from tiny import contract_values, lay_out

    job = lay_out(tmp_path_factory.mktemp("undisturbed"), PARTIES, contract_values(PARTIES, **CHANGES), rows=ROWS)
    job.run_all()
    return {party: job.models(party)[-1] for party in PARTIES}


IN_SHORT = (("bank", "training"),)


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        pytest.param(victim, phase, marks=() if (victim, phase) in IN_SHORT else pytest.mark.long)
        for victim in PARTIES
        for phase in IN_PHASE
    ],
)
def test_a_killed_party_is_noticed_and_resumed(lay_out_job, undisturbed, victim, phase):
    job = lay_out_job(PARTIES, rows=ROWS, **CHANGES, **(LASTS if phase == "evaluation" else {}))
    survivor = PARTIES[1 - PARTIES.index(victim)]
    running = job.start_all()
    running[victim].wait_for(IN_PHASE[phase])
    running[victim].kill()
    began = time.monotonic()
    code = running[survivor].end()
    took = time.monotonic() - began

    said = running[survivor]
    assert code == 3, said.said
    assert took < 15
    assert len(said.said) == 1, said.said
    assert said.error.startswith(f"error: {victim} "), said.error
    failed = said.found["error"]
    assert failed["peer"] == victim
    # When the signal arrives, the victim may be a phase ahead of the survivor, or behind it.
    assert failed["phase"] in ("start", *IN_PHASE)
    resumes = failed["phase"] not in ("start", "handshake")
    step = f"; last step both sides committed: {failed['committed']}" if resumes else ""
    assert f"[phase: {failed['phase']}{step}; to go on: " in said.error
    assert ("--resume" in said.error) == resumes
    if phase == "training":
        assert failed["phase"] == "training"
        assert failed["committed"] >= 20
    if phase == "evaluation":
        assert failed["committed"] > 150

    again = job.run_all("run", *(["--resume"] if resumes else []))
    for party in PARTIES:
        assert job.models(party)[-1] == undisturbed[party]
        if resumes:
            assert len(job.runs(party)) == 1
    if phase == "training":
        assert any("resuming after step" in event.get("say", "") for event in again["bank"].events)


@pytest.mark.parametrize("sleeper", short_lane_of(PARTIES, 1))
def test_a_stopped_process_is_a_lost_peer_after_the_deadline(lay_out_job, sleeper):
    job = lay_out_job(PARTIES, rows=ROWS, **CHANGES)
    other = PARTIES[1 - PARTIES.index(sleeper)]
    running = job.start_all()
    running[sleeper].wait_for(IN_PHASE["training"])
    os.kill(running[sleeper].process.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert running[other].end() == 3
    assert time.monotonic() - began < 15
    assert f"error: {sleeper} fell silent: nothing heard for 4 s" in running[other].error
    os.kill(running[sleeper].process.pid, signal.SIGCONT)
    assert running[sleeper].end(15) == 3
    assert other in running[sleeper].error


@pytest.mark.parametrize(("victim", "signal_"), short_lane_of(itertools.product(PARTIES, (signal.SIGTERM, signal.SIGINT)), 2))
def test_an_interrupted_party_says_goodbye(lay_out_job, victim, signal_):
    job = lay_out_job(PARTIES, rows=ROWS, **CHANGES)
    other = PARTIES[1 - PARTIES.index(victim)]
    running = job.start_all()
    running[victim].wait_for(IN_PHASE["training"])
    os.kill(running[victim].process.pid, signal_)
    began = time.monotonic()
    assert running[other].end(15) == 3
    assert running[victim].end(15) == 130
    assert time.monotonic() - began < 8
    assert f"error: {victim} stopped: {victim} was interrupted by its operator [phase: training" in running[other].error
    (line,) = running[victim].said
    assert line.startswith("interrupted; the peers that had joined were told; to go on: tallystick run contract.yaml --party ")
    assert line.endswith(" --resume, and the same on the other side")


def test_interrupted_while_waiting_for_a_peer_that_never_comes(lay_out_job):
    job = lay_out_job(PARTIES)
    alone = job.start("shop")
    # It is said once. Then the seconds are counted.
    alone.wait_for(lambda event: event.get("what") == "waiting for bank (s)" and 2 <= event["done"] <= event["total"] == 120)
    os.kill(alone.process.pid, signal.SIGTERM)
    assert alone.end(15) == 130
    assert [event["say"] for event in alone.events if "say" in event] == ["waiting for bank, at most 120 s"]
    assert alone.said == ["interrupted; the peers that had joined were told; to go on: run both sides again"]


def test_who_waits_for_a_peer_that_never_comes_is_sent_to_look_why(lay_out_job):
    """A party that refuses to begin calls nobody. Its own line says why, and resuming would not help."""
    alone = lay_out_job(PARTIES, rows=50, network__wait_s=2).start("shop")
    assert alone.end() == 3
    assert "; to go on: see what bank says: if it refused to begin, put that right first; then run both sides" in alone.error


def test_one_of_two_feature_parties_dies(lay_out_job):
    parties = ("bank", "club", "shop")
    job = lay_out_job(parties, rows=ROWS, **CHANGES)
    running = job.start_all()
    running["shop"].wait_for(IN_PHASE["training"])
    running["shop"].kill()
    began = time.monotonic()
    for survivor in ("bank", "club"):
        assert running[survivor].end(15) == 3
    assert time.monotonic() - began < 15
    assert running["bank"].found["error"]["peer"] == "shop"
    assert "error: bank stopped: bank lost the run: shop " in running["club"].error


@pytest.mark.long
def test_the_label_party_waits_for_one_feature_party_while_another_dies(lay_out_job):
    job = lay_out_job(("bank", "club", "shop"), **{"network__wait_s": 60.0, "network__deadline_s": 4.0})
    bank, shop = job.start("bank"), job.start("shop")
    shop.phase("handshake")
    shop.kill()
    assert bank.end(15) == 3
    assert bank.found["error"]["peer"] == "shop"


@pytest.mark.long
def test_a_peer_that_ends_while_the_baseline_is_trained_is_not_needed(lay_out_job):
    """The label party has already sent its last message, so it measures to the end whatever its peer does."""
    job = lay_out_job(PARTIES, rows=ROWS, **{**CHANGES, **LASTS, "training__batch_size": 2, "training__epochs": 2})
    running = job.start_all()
    running["bank"].wait_for(lambda event: "baseline" in event.get("say", ""))
    os.kill(running["shop"].process.pid, signal.SIGTERM)
    assert running["bank"].end() == 0
    assert "auc_joint" in running["bank"].found


DIVERGES = """
import pathlib, torch
class Bottom(torch.nn.Module):
    width = 4
    def __init__(self, shape):
        super().__init__()
        self.linear = torch.nn.Linear(shape.numeric, 4)
        self.calls = 0
    def forward(self, features):
        self.calls += self.training
        cut = self.linear(features.numeric_NF)
        return cut * float("nan") if self.calls == 30 and pathlib.Path("diverge").exists() else cut
"""


@pytest.mark.long
def test_a_party_that_diverges_ends_both_and_the_run_resumes_to_the_same_weights(lay_out_job):
    quick = {**CHANGES, "training__epochs": 2, "model__bottoms": {"shop": "diverges:Bottom"}}
    jobs = [lay_out_job(PARTIES, rows=400, **quick) for _ in range(2)]
    for job in jobs:
        (job.home("shop") / "diverges.py").write_text(DIVERGES)
    undisturbed, job = jobs
    undisturbed.run_all()
    (job.home("shop") / "diverge").touch()
    running = job.start_all()
    for party in PARTIES:
        assert running[party].end() == 3
    assert (
        "error: the cut embedding of step 30, about to be sent to bank, is NaN or infinite in 16 of 16 rows"
        in running["shop"].error
    )
    assert "shop stopped: shop had to stop: its training diverged; ask them for run.log" in running["bank"].error
    (job.home("shop") / "diverge").unlink()
    job.run_all("run", "--resume")
    for party in PARTIES:
        assert job.models(party) == undisturbed.models(party)
        assert len(job.runs(party)) == 1


@pytest.mark.long
def test_the_survivors_address_may_change_before_resuming(lay_out_job):
    job = lay_out_job(PARTIES, rows=ROWS, **CHANGES)
    running = job.start_all()
    running["shop"].wait_for(IN_PHASE["training"])
    running["bank"].kill()
    assert running["shop"].end(15) == 3
    address = f"127.0.0.1:{free_port()}"
    job.change("bank", listen=address)
    job.change("shop", peers={"bank": {"address": address}})
    job.run_all("run", "--resume")


BY_BUCKETS = {
    "oblivious-transfer": ({"alignment__protocol": "oblivious-transfer"}, "private set intersection, buckets"),
    "malicious": ({"alignment__security": "malicious"}, "private set intersection"),
}


@pytest.mark.long  # tests/alignment/test_buckets.py interrupts alignments at each of their steps, in one process
@pytest.mark.parametrize(("victim", "way"), list(itertools.product(PARTIES, ("oblivious-transfer", "malicious"))))
def test_an_alignment_goes_on_at_the_bucket_in_which_a_party_was_killed(lay_out_job, victim, way):
    """`tallystick align` in 48 buckets is killed after about ten, and both sides resume: the rows are those of an
    undisturbed one.
    """
    changes, what = BY_BUCKETS[way]
    job = lay_out_job(PARTIES, rows=1_000, **changes, network=CHANGES["network"])
    job.run_all("align")
    job.bucket_ids = 20
    running = job.start_all("align")
    running[victim].wait_for(lambda event: event.get("what") == what and event["done"] >= 10)
    running[victim].kill()
    survivor = running[PARTIES[1 - PARTIES.index(victim)]]
    assert survivor.end() == 3
    assert "[phase: alignment" in survivor.error
    assert " --resume, and the same on the other side" in survivor.error
    again = job.run_all("align", "--resume")
    for party in PARTIES:
        first, second = job.runs(party)
        said = " ".join(event.get("say", "") for event in again[party].events)
        assert 9 <= int(re.search(r"goes on: (\d+) of 48 buckets are done on both sides", said)[1]) < 48
        assert rows_of(first) == rows_of(second)
        assert not list((second / "buckets").glob("*.partial"))


def rows_of(folder):
    return load_file(folder / "alignment.safetensors")["rows"].tolist()
