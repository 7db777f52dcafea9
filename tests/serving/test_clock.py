"""The label party's own messages leave by a clock that no request affects, and they are the same whatever is asked."""

import itertools
import threading
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
from sides import PARTIES, Sides
from test_version_messages import NEW, OLD, VERSION, Promotions, half
from tiny import tables

from tallystick.network.channel import MemoryChannel, memory_channels
from tallystick.scoring.batching import Batcher, PendingRows
from tallystick.serving import label_party, version_switch
from tallystick.serving.loaded_runs import LOOK_S, LoadedRuns
from tallystick.serving.served_runs import ServedRun, ServedRuns
from tallystick.serving.serving_messages import VersionsHeld, VersionsWanted, WantedRun
from tallystick.serving.version_switch import Switching

NOT_LATE = itertools.repeat(0.0)


class Clock:
    """A clock that moves when somebody waits, and what happens then."""

    def __init__(self, *, looks, over, meanwhile):
        self.now, self.looks, self.over, self.meanwhile = 1000.3, looks, over, meanwhile

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        self.meanwhile(self)
        self.looks -= 1
        if not self.looks:
            self.over.set()


class Timed(MemoryChannel):
    """Notes when each message leaves, and has an answer at once, or after some seconds of the clock."""

    def take(self, clock, takes_s):
        self.clock, self.takes_s, self.sent = clock, iter(takes_s), []

    def send(self, message):
        self.sent.append((self.clock.now, message))

    def receive(self, _kind, **_):
        self.clock.now += next(self.takes_s, 0.0)
        return VersionsHeld(promoted=(half(NEW), half(OLD)), candidate=None, loaded=(OLD, NEW), failed=())


def served_run(run_id):
    scorer = SimpleNamespace(names=("score",), alone=None)
    return ServedRun(run_id=run_id, scorer=scorer, store=None, ids=1, reader=None, answers=None)


def built(_run):
    """A way of asking that needs one question."""
    yield
    return "a way of asking"


class Agreed(Promotions):
    """Promotions of which every version is right."""

    def agree(self, run_id, version, peer):
        pass


def looks(*, meanwhile, takes_s=(), count=6, late_s=NOT_LATE):
    """Return what left, and when, in a session that looks so often, with something done before each look."""
    over = threading.Event()
    clock = Clock(looks=count, over=over, meanwhile=meanwhile)
    runs = LoadedRuns(Agreed(NEW, OLD), served_run, say=print)
    runs._runs = {OLD: served_run(OLD), NEW: served_run(NEW)}
    own, _ = memory_channels("bank", "shop", timeout_s=1)
    own.__class__ = Timed
    own.take(clock, takes_s)
    switching = Switching(
        party="bank",
        channels={"shop": own},
        versions=Agreed(NEW, OLD),
        runs=runs,
        served=ServedRuns(runs[OLD]),
        begun=WantedRun(run_id=OLD, version=VERSION),
        building=built,
        turn=threading.Lock,
        say=print,
        lateness=partial(next, iter(late_s)),
    )
    switching.askings[OLD] = "a way of asking"
    clock.runs = runs
    switching.keep_up(over, now=clock, wait=clock.wait)
    assert switching.served.now.current.run_id == NEW
    return own.sent


def times_of(sent):
    """Return when versions were told, in seconds from the beginning. A run that was built is told of at once."""
    return sorted({round(at - 1000.3, 9) for at, message in sent if isinstance(message, VersionsWanted)})


def nothing(_clock):
    pass


def test_looks_leave_at_whole_seconds_from_the_beginning_whatever_is_asked_meanwhile():
    def users(clock):
        for run in clock.runs.loaded[:: 1 if int(clock.now) % 2 else -1]:
            (run.users.come if int(clock.now) % 3 else run.users.go)()

    quiet, busy = looks(meanwhile=nothing), looks(meanwhile=users)
    assert times_of(quiet) == [number * LOOK_S for number in range(6)]
    assert busy == quiet


def test_a_look_that_a_partner_was_slow_with_is_followed_by_the_next_one_that_is_due():
    sent = looks(meanwhile=nothing, takes_s=(0.2, 2.5, 0.1))
    assert times_of(sent)[:4] == [0, 0.2, 3, 4]  # 0.2: a run was built


def test_each_look_is_late_by_a_draw_of_its_own_and_the_next_one_is_none_the_later():
    """Otherwise the milliseconds by which a busy machine is late would show."""
    sent = looks(meanwhile=nothing, late_s=(0.2, 0.1, 0.0, 0.24, 0.05, 0.1))
    assert times_of(sent) == pytest.approx([0, 1.2, 2.1, 3.0, 4.24, 5.05])
    drawn = [version_switch.draw_lateness() for _ in range(200)]
    assert 0 <= min(drawn) < max(drawn) <= LOOK_S / 4
    assert len(set(drawn)) == 200


class Flooded(Sides):
    """A server by `ahead` that clients ask all the time, and whose batches take longer than they may."""

    asked = False

    def until_ticked(self, side, server, work, *, stopped):
        batchers, switchings, begun = [], [], label_party._begun
        serve = Batcher.serve

        def served(batcher, *arguments, **more):
            batchers.append(batcher)
            serve(batcher, *arguments, **more)

        def began(*arguments, **more):
            switchings.append(begun(*arguments, **more))
            return switchings[-1]

        self.patch.setattr(Batcher, "serve", served)
        self.patch.setattr(label_party, "_begun", began)
        self.outcomes = []

        def flood():
            while not stopped.wait(0.01):
                if self.asked and batchers and batchers[0].ready:
                    run = switchings[0].served.now.current
                    keys = [b"id-000003", b"nobody"]
                    batchers[0].want(
                        PendingRows(run=run, keys=keys, own=None, until=time.monotonic() + 60, done=self.outcomes.append)
                    )

        asking = threading.Thread(target=flood)
        asking.start()
        super().until_ticked(side, server, work, stopped=stopped)
        asking.join()


def test_by_ahead_a_server_that_is_asked_all_the_time_sends_what_one_that_nobody_asks_does(tmp_path, monkeypatch):
    """The thread of versions sends everything, also if each batch is late: compared by bytes, in order."""
    frames = tables(PARTIES, rows=80)
    senders, send = Counter(), MemoryChannel.send

    def counted(channel, message):
        if channel.peer == "shop":
            senders[type(message).__name__, threading.current_thread().name] += 1
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", counted)
    sides = Flooded(tmp_path, monkeypatch, frames)
    sides.job.change("bank", serving={**sides.options, "deadline_ms": 1.0})
    assert sides.run() is None
    heard = {}
    for asked in (False, True):
        sides.asked = asked
        senders.clear()
        del sides.heard[1:]  # the same draws
        assert sides.serve() is None
        heard[asked] = sides.heard[-1][1]
        assert {name for kind, name in senders if kind == "VersionsWanted"} == {"tallystick-switching"}
    assert sides.outcomes
    assert any("joint" in outcome.why_B for outcome in sides.outcomes)
    assert heard[True] == heard[False]
