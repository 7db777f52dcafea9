"""Messages about versions between two sides that serve: what is not agreed on is not answered, and malformed ones end
the session.
"""

import threading
from types import SimpleNamespace

import pytest
from torch import nn

from tallystick.errors import PeerError, ProtocolError
from tallystick.job.handshake import PromotedHalf
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Stopped
from tallystick.scoring.scoring_messages import RowQuestion
from tallystick.serving import loaded_runs
from tallystick.serving.feature_party import AnsweringRuns, FeatureRun
from tallystick.serving.loaded_runs import LoadedRuns
from tallystick.serving.serving_messages import VersionsHeld, VersionsWanted, WantedRun
from tallystick.serving.version_switch import Switching

OLD, NEW, OTHER = "a" * 16, "b" * 16, "c" * 16
VERSION, WRONG = "1" * 64, "2" * 64


def half(run_id):
    return PromotedHalf(run_id=run_id, contract="0" * 64, commitment="3" * 64)


class Store:
    closed = False

    def close(self):
        self.closed = True


class Promotions:
    """Promotions that a test changes."""

    def __init__(self, *run_ids, candidate=None, kept=VERSION):
        self.run_ids, self.candidate, self.kept, self.count = run_ids, candidate, kept, 0
        self.path = self

    def change(self, *run_ids):
        self.run_ids, self.count = run_ids, self.count + 1

    def stat(self):
        return SimpleNamespace(st_mtime_ns=self.count, st_size=0, st_ino=0)

    def halves(self):
        return tuple(map(half, self.run_ids))

    def candidate_half(self):
        return half(self.candidate) if self.candidate else None

    def agree(self, run_id, version, peer):
        if version != self.kept:
            raise PeerError(peer, f"run {run_id} is not the version that was agreed")


def feature_run(run_id):
    return FeatureRun(run_id=run_id, folder=None, ids=1, encoder=None, store=Store(), bottom=nn.Linear(1, 1))


@pytest.fixture
def feature():
    """Return a feature party that promoted OLD and NEW and has both loaded, and the other end of its channel."""
    promotions, said = Promotions(NEW, OLD), []
    runs = LoadedRuns(promotions, feature_run, say=said.append)
    runs._runs = {run_id: feature_run(run_id) for run_id in (OLD, NEW, OTHER)}
    side = SimpleNamespace(versions=promotions, watcher=SimpleNamespace(say=said.append))
    answering = AnsweringRuns(side=side, runs=runs, alignment=None, begun=WantedRun(run_id=OLD, version=VERSION))
    label, own = memory_channels("bank", "shop", timeout_s=10)

    def wants(*wanted):
        label.send(VersionsWanted(runs=wanted))
        answering.agree(own)
        return label.receive(VersionsHeld)

    return SimpleNamespace(wants=wants, answering=answering, runs=runs, promotions=promotions, said=said)


def test_a_run_is_answered_once_it_was_agreed_on(feature):
    with pytest.raises(KeyError):
        feature.answering[NEW]
    held = feature.wants(WantedRun(run_id=OLD, version=VERSION), WantedRun(run_id=NEW, version=VERSION))
    assert held.loaded == (OLD, NEW)
    assert [each.run_id for each in held.promoted] == [NEW, OLD]
    assert feature.answering[NEW].bottom is feature.runs[NEW].bottom
    feature.wants(WantedRun(run_id=NEW, version=VERSION))
    with pytest.raises(KeyError):
        feature.answering[OLD]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (WantedRun(run_id=OTHER, version=VERSION), "not promoted here"),
        (WantedRun(run_id=NEW, version=WRONG), "not the version"),
        (WantedRun(run_id=NEW), None),
    ],
)
def test_a_run_that_is_not_promoted_here_or_is_another_version_is_not_answered(feature, wanted, why):
    assert feature.wants(WantedRun(run_id=OLD, version=VERSION), wanted).loaded == (OLD,)
    with pytest.raises(KeyError):
        feature.answering[wanted.run_id]
    assert why is None or any(why in line for line in feature.said)


def test_a_run_that_is_withdrawn_is_answered_for_a_moment_and_then_no_more(feature, monkeypatch):
    feature.promotions.change(NEW)
    feature.runs.look()
    assert feature.answering[OLD]
    monkeypatch.setattr(loaded_runs, "GRACE_S", 0.0)
    with pytest.raises(KeyError):
        feature.answering[OLD]
    assert feature.wants(WantedRun(run_id=OLD, version=VERSION)).loaded == ()


def test_promotions_that_cannot_be_read_leave_the_former_ones(feature):
    def fail():
        raise PeerError("x", "promoted.json: cannot be read")

    feature.promotions.change()
    feature.promotions.halves = fail
    feature.runs.look()
    feature.runs.look()
    assert feature.runs.promoted.ids == [NEW, OLD]
    assert feature.said == ["promoted.json: cannot be read; versions stay as they are"]


@pytest.mark.parametrize(
    "runs",
    [
        (),
        (WantedRun(run_id=OLD, version="1" * 63),),
        (WantedRun(run_id=OLD, version="1" * 64 + "\n"),),
        (WantedRun(run_id="../../etc/passwd", version=VERSION),),
        tuple(WantedRun(run_id=f"{number:016}", version=VERSION) for number in range(4)),
    ],
)
def test_malformed_wants_end_the_session(feature, runs):
    with pytest.raises(ProtocolError, match="bank"):
        feature.wants(*runs)


MALFORMED = {
    "a short run": VersionsHeld(promoted=(), candidate=None, loaded=("a",), failed=()),
    "a short hash": VersionsHeld(
        promoted=(PromotedHalf(run_id=OLD, contract="0", commitment="3" * 64),), candidate=None, loaded=(), failed=()
    ),
    "too many": VersionsHeld(promoted=tuple(half(f"{number:016}") for number in range(21)), candidate=None, loaded=(), failed=()),
    "no candidate's hash": VersionsHeld(
        promoted=(), candidate=PromotedHalf(run_id=OLD, contract="0" * 64, commitment="3" * 65), loaded=(), failed=()
    ),
    "a failed run's path": VersionsHeld(promoted=(), candidate=None, loaded=(), failed=("../../etc/passw",)),
    "loaded twice over": VersionsHeld(promoted=(), candidate=None, loaded=(OLD,) * 4, failed=()),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_holdings_end_the_session(what):
    own, theirs = memory_channels("bank", "shop", timeout_s=10)
    switching = Switching(
        party="bank",
        channels={"shop": own},
        versions=Promotions(OLD),
        runs=LoadedRuns(Promotions(OLD), feature_run, say=print),
        served=None,
        begun=WantedRun(run_id=OLD, version=VERSION),
        building=None,
        turn=threading.Lock,
        say=print,
    )
    theirs.send(MALFORMED[what])
    with pytest.raises(ProtocolError, match="shop"):
        switching.keep_up(threading.Event())
    assert theirs.receive(RowQuestion).versions
    assert theirs.receive(VersionsWanted).runs == (WantedRun(run_id=OLD, version=VERSION),)
    theirs.send(Stopped(reason="over"))
