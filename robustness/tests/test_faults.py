"""Each campaign runs and repeats by its number, and its oracle catches a planted fault; whole campaigns are for the command."""

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from planted_worker import Planted
from safetensors.torch import save_file
from tiny import PATIENCE_S

from tallystick.cut.cut_messages import CutEmbedding
from tallystick.errors import ConfigError, PeerLost
from tallystick.network.messages import Array, MalformedMessage, decode, encode
from tallystick.storage import Origin
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.training.training_messages import CutWidth
from tallystick_experiments.grid import Keeping
from tallystick_experiments.page import benchmark_html
from tallystick_robustness import campaign, files, fixture_job, folders, kills, messages, scenes, waits
from tallystick_robustness.both import copy_of_homes, predicted
from tallystick_robustness.files import Files
from tallystick_robustness.folders import Folders
from tallystick_robustness.messages import Messages, MethodMessages
from tallystick_robustness.mutate import BYTE_MUTATIONS, MessageParts, due, spoil_message
from tallystick_robustness.network import NetworkFaults
from tallystick_robustness.outcome import CaseOutcome, attempt, broken_weights, unclean
from tallystick_robustness.page import faults, faults_page
from tallystick_robustness.processes import ForkServer
from tallystick_robustness.proxy import FaultPlan as NetworkPlan
from tallystick_robustness.scenes import Scene
from tallystick_robustness.worker import Played, Worker

HONEST = bytes(encode(CutEmbedding(step=3, values=Array.of(np.ones((2, 2), dtype=np.float32)))))


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # for planted.py
        with ForkServer(tmp_path_factory.mktemp("processes")) as ready:
            yield ready


# --- the oracles


def test_an_attempt_tells_our_errors_from_others():
    def ours():
        raise PeerLost("bank", "bank has gone")

    def others():
        raise KeyError("id")

    assert attempt(ours, bound_s=5).failure == ""
    assert isinstance(attempt(ours, bound_s=5).error, PeerLost)
    assert attempt(others, bound_s=5).failure == "KeyError at outside"
    assert attempt(lambda: 1, bound_s=5).value == 1
    assert attempt(lambda: time.sleep(0.02), bound_s=0.001).failure == "took too long"
    # Named by the product's own place, not by the library's below it.
    assert attempt(lambda: decode(None, CutEmbedding), bound_s=5).failure == "TypeError at network/messages.py in decode"


@pytest.mark.parametrize("words", ["\x1b[2K\rall is well", "a\x00b", "\u202egnihtyna", "\x9b31m", "x" * 10_000])
def test_words_that_drive_a_terminal_or_never_end_are_seen(words):
    assert unclean(words)
    assert not unclean("error: Schlüssel für bank: größer als 1\nand a second line")


def test_weights_that_are_not_finite_are_seen(tmp_path):
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    assert broken_weights(tmp_path) == ""
    save_file({"w": torch.tensor([1.0, float("nan")])}, tmp_path / "step-5.safetensors")
    assert broken_weights(tmp_path) == "weights that are not finite in a checkpoint"


def test_what_a_spoilt_message_deserves():
    frame = MessageParts.of(HONEST)
    assert frame.payload() == HONEST

    def other(**fields):
        return MessageParts(frame.version, frame.name, {**frame.fields, **fields}, frame.bulk).payload()

    def elements(*values):
        return MessageParts(frame.version, frame.name, frame.fields, np.array(values, dtype=np.float32).tobytes()).payload()

    assert due(HONEST, HONEST, CutEmbedding) == "same"
    assert due(HONEST, HONEST[:-1], CutEmbedding) == "refuse"
    assert due(HONEST, other(step=4), CutEmbedding) == "refuse"
    assert due(HONEST, other(step="3"), CutEmbedding) == "refuse"
    assert due(HONEST, other(values=["float32", [4, 1], [0, 16]]), CutEmbedding) == "refuse"
    assert due(HONEST, elements(1, 1, 1, float("inf")), CutEmbedding) == "refuse"
    assert due(HONEST, elements(1, 1, 1, 2), CutEmbedding) == "may"
    assert due(HONEST, bytes(encode(CutWidth(width=3))), CutEmbedding) == "refuse"


def test_spoilt_messages_repeat_by_their_seed_and_no_decoder_chokes_on_them():
    seen = set()
    for seed in range(600):
        how, spoilt = spoil_message(HONEST, random.Random(seed))
        assert (how, spoilt) == spoil_message(HONEST, random.Random(seed))
        seen.add(how)
        try:
            decode(spoilt, CutEmbedding)
        except MalformedMessage:
            continue
    assert len(seen) > 15, seen
    assert set(BYTE_MUTATIONS) <= seen


# --- messages and files


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return Messages(tmp_path_factory.mktemp("messages"), seed=0, limited=False)


@pytest.mark.long
def test_messages_reach_every_role_and_repeat_by_number(recorded, monkeypatch):
    monkeypatch.setattr(Messages, "shares", (0.4, 0.55))  # whole jobs, which take a second each, are one case in twenty here
    outcomes = [recorded.case(number) for number in range(150)]
    assert {True, False} == {outcome.what.startswith("job") for outcome in outcomes}
    assert all(outcome.case == number for number, outcome in enumerate(outcomes))
    assert {outcome.ended for outcome in outcomes} >= {"refused", "accepted"}
    assert len({outcome.what for outcome in outcomes}) > 25
    again = recorded.case(100)
    assert (again.what, again.how, again.ended) == (outcomes[100].what, outcomes[100].how, outcomes[100].ended)
    assert len(recorded.facts()["roles"]) >= 22
    assert {"Hello", "Refusal", "UnionScores"} <= set(recorded.facts()["for the decoder alone, made up"])


def test_linking_by_similarity_refuses_or_takes_what_its_helper_and_parties_spoil(tmp_path, monkeypatch):
    monkeypatch.setattr(scenes, "METHOD_JOBS", {})  # which take a second each
    monkeypatch.setattr(MethodMessages, "shares", (0.0, 1.0))
    fixture = MethodMessages(tmp_path, seed=0, limited=False)
    outcomes = [fixture.case(number) for number in range(150)]
    assert [outcome for outcome in outcomes if outcome.ended == "failed"] == []
    assert len({outcome.what for outcome in outcomes}) == 5 * 3  # what the helper sees, and each role
    assert {outcome.ended for outcome in outcomes} >= {"refused", "accepted"}


@pytest.mark.parametrize("takes", ["anything", "nothing"])
def test_a_role_that_uses_a_malformed_message_or_chokes_on_it_fails(tmp_path, monkeypatch, takes):
    """The campaign exists to find a role that hides what is wrong with a message, or fails on it."""

    def careless(channels, _folder):
        try:
            channels["shop"].receive(CutEmbedding)
        except Exception as error:
            if takes == "nothing":
                raise KeyError("values") from error

    def says(channels, _folder):
        channels["bank"].send(decode(HONEST, CutEmbedding))

    scene = Scene(name="planted", roles={"bank": careless, "shop": says}, templates={})
    monkeypatch.setattr(messages, "general_scenes", lambda _: [scene])
    monkeypatch.setattr(Messages, "shares", (0.0, 1.0))
    planted = Messages(tmp_path, seed=0, limited=False)
    outcomes = [planted.case(number) for number in range(40)]
    failures = {outcome.failure.partition(":")[0] for outcome in outcomes if outcome.ended == "failed"}
    assert failures == {"used silently"} if takes == "anything" else {"KeyError at outside"} <= failures


@pytest.mark.long
def test_damaged_files_of_every_kind(tmp_path):
    damaged = Files(tmp_path, seed=0)
    done = {}
    for number in range(400):
        kind = damaged.kind(number)
        if kind not in done and len(done) < len(files.KINDS):
            done[kind] = damaged.case(number)
    assert set(done) == set(files.KINDS)
    assert all(outcome.ended in ("refused", "withstood", "accepted", "failed") for outcome in done.values())
    # A table with another value gives other weights, which the comparison with the undamaged run detects.
    homes = damaged.copy_of_the_finished("planted")
    model = homes.latest(fixture_job.LABEL) / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    assert homes.digests() != damaged.digests


@pytest.mark.long
def test_swapped_files_of_run_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "LINKAGES", {"intersection": {}})
    fixture = Folders(tmp_path, seed=0)
    outcomes = [fixture.case(number) for number in range(len(folders.FAULTS))]
    assert [outcome.failure for outcome in outcomes] == [""] * len(outcomes)
    assert [outcome.what for outcome in outcomes] == [f"intersection, {fault}" for fault in folders.FAULTS]
    # The campaign detects what the seals prevent: another run's model, sealed as this one's, gives other scores.
    linked = fixture._linked["intersection"]
    homes = copy_of_homes(linked.done, tmp_path / "planted")
    own, other = (each.latest("bank") / "model.safetensors" for each in (homes, linked.other))
    origins = [Origin.of(path.parent) for path in (own, other)]
    write_tensors(own, read_tensors(other, origin=origins[1])[0], {}, origin=origins[0])
    assert not predicted(homes).errors
    assert folders._distance(folders._scores(homes), linked.scores) > 100 * linked.slack


@pytest.mark.long
def test_a_worker_that_dies_or_hangs_costs_its_case_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tallystick_robustness.worker.CASE_S", 4.0)
    worker = Worker(Planted, 0, tmp_path / "worker")
    try:
        outcomes, lost = worker.run(range(5))
        assert (len(outcomes), lost) == (5, None)
        worker.send_signal(signal.SIGSTOP)
        outcomes, lost = worker.run(range(5, 8))
        assert outcomes == []
        assert (lost.case, lost.failure) == (5, "a hang")
        worker.send_signal(signal.SIGKILL)
        outcomes, lost = worker.run(range(6, 8))
        assert lost.failure == "the process died (SIGKILL)"
    finally:
        worker.close()


# --- processes


@pytest.mark.long
def test_kills_are_real_and_are_survived(fork_server, tmp_path):
    """Killed just before a file is renamed, opened or removed; the campaign judges the time that the other side took."""
    fixture_of = kills.Kills(tmp_path, seed=0, fork_server=fork_server)
    number = next(n for n in range(1000) if [p.kind for p in fixture_of.plans(n)] == ["SIGKILL at a file"])
    outcome = fixture_of.case(number)
    assert outcome.what == "SIGKILL at a file"
    assert fixture_of.other_weights(fixture_job.Homes(root=tmp_path / "nothing")).endswith("bank, shop")
    assert outcome.failure == "" or outcome.failure.startswith("exit later than"), outcome.detail


@pytest.mark.long
def test_other_weights_words_and_codes_are_caught(fork_server, tmp_path):
    planted = {
        "import sys; sys.exit(7)": "exit code 7",
        "import sys; sys.stderr.write('error: one\\nerror: two\\n'); sys.exit(3)": "2 lines on standard error",
        "import sys; sys.stderr.write('error: \\x1b[2Kwell\\n'); sys.exit(3)": "an error with characters that drive a terminal",
        "import sys; sys.stderr.write('well\\n'); sys.exit(3)": "a line of another kind",
        "1 / 0": "a traceback: ZeroDivisionError",
        "import os; os.kill(os.getpid(), 15)": "exit code -15",
        "import sys; sys.stderr.write('error: gone\\n'); sys.exit(3)": "",
        "import os; os.kill(os.getpid(), 9)": "",  # killed from outside, so it has no last words
    }
    started = {script: fork_server.start("planted", "planted", [script], tmp_path) for script in planted}
    for script, expected in planted.items():
        assert started[script].wait(time.monotonic() + PATIENCE_S)
        problem = started[script].problem()
        assert problem.startswith(expected) if expected else problem == "", script


def test_a_cut_connection_is_ridden_out(fork_server, tmp_path):
    faults = NetworkFaults(tmp_path, seed=0, fork_server=fork_server)
    cut = faults.played(0, NetworkPlan(port=0, target=0, kind="cut", at_bytes=40_000))
    assert (cut.what, cut.ended) == ("cut", "withstood"), cut.detail


@pytest.mark.long
def test_each_wait_for_a_partner_ends_by_a_signal_though_the_partner_is_stopped(fork_server, tmp_path):
    """Each command and phase, both sides. The campaign judges how long it took, because the machine may be busy."""
    waits_of = waits.Waits(tmp_path, seed=0, fork_server=fork_server)
    hardest = "SIGTERM beside a stopped partner"
    numbers = [
        number
        for number, (what, happens) in enumerate(waits.CASES)
        if happens == (hardest if waits.WAITS[what].stuck_at is not None else "SIGTERM")
    ]
    assert len(numbers) == len(waits.WAITS)
    with ThreadPoolExecutor(3) as pool:
        for outcome in pool.map(waits_of.case, numbers):
            assert outcome.failure in ("", waits.LATE), outcome
            assert outcome.seconds < waits.PATIENCE_S, outcome


# --- all together


def test_the_log_resumes_and_the_page_shows_every_way_to_fail(tmp_path):
    outcomes = [
        CaseOutcome(case=number, what="decoder: Size", how="cut short", ended=ended, seconds=0.1, failure=failure)
        for number, (ended, failure) in enumerate([("refused", ""), ("failed", "KeyError at x"), ("failed", "KeyError at x")])
    ]
    line = campaign.line_of(range(3), Played(outcomes=outcomes, facts={"rows": 5}))
    found = campaign.campaign_figures(
        campaign.CampaignSettings(campaign="messages", count=3, seed=1), [json.loads(json.dumps(line))], 2.0
    )
    assert found["ended"] == {"refused": 1, "failed": 2}
    assert found["failures"]["KeyError at x"]["cases"] == 2
    page = faults_page({"seed": 1}, [found])
    html = benchmark_html(page)
    assert "KeyError at x" in html
    assert "--campaign messages --seed 1 --case 1" in html
    assert msgspec.to_builtins(page)["tables"][0]["rows"][-1][:5] == ["all", 3, 0, 1, 0]


def test_a_campaign_goes_on_where_its_log_ends(tmp_path, monkeypatch):
    played = []

    def play(setting, chunks, jobs, scratch):
        for chunk in chunks:
            played.append(chunk.start)
            rows = [CaseOutcome(case=number, what="x", how="", ended="refused", seconds=0.0) for number in chunk]
            yield campaign.line_of(chunk, Played(outcomes=rows, facts={}))
            if len(played) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "_lines", play)
    with pytest.raises(KeyboardInterrupt):
        campaign.run_campaign(campaign="kills", count=5, keeping=Keeping(log=tmp_path / "runs.jsonl"))
    again = Keeping(log=tmp_path / "runs.jsonl", resume=True)
    (found,) = campaign.run_campaign(campaign="kills", count=5, keeping=again)
    assert played == [0, 1, 2, 3, 4] or played == [0, 1, 1, 2, 3, 4]
    assert found["cases"] == 5
    with pytest.raises(ConfigError, match="seed differ"):
        campaign.run_campaign(campaign="kills", count=5, seed=2, keeping=again)
    with pytest.raises(ConfigError, match="--campaign floods: must be"):
        campaign.run_campaign(campaign="floods")


def test_workers_of_other_sweeps_are_refused():
    with pytest.raises(ConfigError, match=r"--workers, --ray: .* use --jobs N"):
        faults(campaign="messages", count=1, keeping=Keeping(made=lambda *_: iter(())))
