"""Measure what clients notice if a partner is killed, stopped, slow, restarted or has another certificate, or a store is away.

Real processes run under an open load. A fault begins and ends, and the row is complete once joint scores are back.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tallystick.config.party import load_party
from tallystick.errors import ConfigError
from tallystick.network.addresses import free_port
from tallystick.network.certificates import write_test_certificates
from tallystick_experiments.speed.serving_clients import asking
from tallystick_experiments.speed.serving_job import FEATURE, LABEL, ServingJob, end, started
from tallystick_experiments.speed.slow_link import SlowLink
from tallystick_experiments.stats import Row

RATE, DEADLINE_MS = 100, 200.0
BEFORE_S, LASTS_S, AFTER_S, BACK_S = 4.0, 5.0, 3.0, 120.0
LOOK_S, WINDOW = 0.1, 5  # seconds between looks at the counts, and the number of looks for a share
JOINT, ALONE = "joint model", "own columns"
BACK = 0.9  # share of the scored rows


@dataclass(kw_only=True)
class Stage:
    """Hold processes and stores that a fault can act on."""

    job: ServingJob
    running: "dict[str, subprocess.Popen[bytes]]"
    line: SlowLink
    store: "subprocess.Popen[bytes] | None" = None
    distance_ms: float = 0.0
    """The round trip of the line without a fault."""

    def restart(self, name: str) -> None:
        """Stop a side without force, and start it again."""
        end(self.running[name])
        self.running[name] = self.job.start(name)


def _kill(stage: Stage) -> None:
    stage.running[FEATURE].kill()
    stage.running[FEATURE].wait()


def _start(stage: Stage) -> None:
    stage.running[FEATURE] = stage.job.start(FEATURE)


def _signals(number: signal.Signals) -> Callable[[Stage], None]:
    return lambda stage: os.kill(stage.running[FEATURE].pid, number)


def _slow(milliseconds: float) -> Callable[[Stage], None]:
    def make(stage: Stage) -> None:
        stage.line.round_trip_ms = stage.distance_ms + milliseconds

    return make


def _renew(stage: Stage) -> None:
    folder = stage.job.root / "certificates"
    for name in (LABEL, FEATURE):
        for suffix in (".pem", ".key"):
            (folder / f"{name}{suffix}").unlink()
    write_test_certificates(folder, [LABEL, FEATURE])
    stage.restart(FEATURE)


def _store(number: signal.Signals) -> Callable[[Stage], None]:
    def make(stage: Stage) -> None:
        assert stage.store is not None
        os.kill(stage.store.pid, number)

    return make


def _nothing(_stage: Stage) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Define a fault, and the action that ends it after ``lasts_s``.

    It also says whose rows the store holds, if the fault is a store's, and which bodies requests have.
    """

    begins: Callable[[Stage], None]
    ends: Callable[[Stage], None] = _nothing
    lasts_s: float = LASTS_S
    store_of: str | None = None
    bodies: str = "keys"


FAULTS: Mapping[str, Fault] = {
    "none": Fault(begins=_nothing),
    "partner killed, started again": Fault(begins=_kill, ends=_start),
    "partner stopped (SIGSTOP)": Fault(begins=_signals(signal.SIGSTOP), ends=_signals(signal.SIGCONT)),
    "line to the partner a second slower": Fault(begins=_slow(1000.0), ends=_slow(0.0)),
    "partner restarted": Fault(begins=lambda stage: stage.restart(FEATURE), lasts_s=0.0),
    "both certificates renewed, partner restarted": Fault(begins=_renew, lasts_s=0.0),
    "partner's store hangs": Fault(begins=_store(signal.SIGSTOP), ends=_store(signal.SIGCONT), store_of=FEATURE),
    "own store hangs, requests bring own columns": Fault(
        begins=_store(signal.SIGSTOP), ends=_store(signal.SIGCONT), store_of=LABEL, bodies="columns"
    ),
}


def faults_under_load(job: ServingJob, *, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each fault. Raises ConfigError if Redis is not installed."""
    serving = job.values(LABEL)["serving"]
    job.change(LABEL, serving={**serving, "deadline_ms": DEADLINE_MS})
    peers = job.values(FEATURE)["peers"]
    rows_of_faults = []
    with SlowLink(mbit_per_s=10_000.0, round_trip_ms=0.0).running() as line, _redis(job) as (store, port):
        job.change(FEATURE, peers={LABEL: {"address": f"127.0.0.1:{line.to(job.link)}"}})
        for name, fault in FAULTS.items():
            say(f"fault: {name}")
            with _rows_in_redis(job, fault.store_of, port), job.serving() as running:
                rows_of_faults.append(
                    {"part": "faults", "fault": name, **_seen(fault, Stage(job=job, running=running, line=line, store=store))}
                )
    job.change(FEATURE, peers=peers)
    job.change(LABEL, serving=serving)
    return rows_of_faults


@dataclass(kw_only=True)
class Counts:
    """Count rows that were scored jointly and alone, every LOOK_S, until it is over."""

    job: ServingJob
    seen: list[tuple[float, float, float]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def looking(self) -> "Iterator[Counts]":
        """Look in a separate thread until the block ends."""
        thread = threading.Thread(target=self.look)
        thread.start()
        try:
            yield self
        finally:
            self.over.set()
            thread.join()

    def look(self) -> None:
        """Look until it is over."""
        while not self.over.wait(LOOK_S):
            scores = self.job.scored()
            self.seen.append((time.monotonic(), scores.get(JOINT, 0.0), scores.get(ALONE, 0.0)))

    def back(self, since: float) -> float | None:
        """Return the time since then at which rows were scored jointly again, or None if they are not yet."""
        looks = [each for each in tuple(self.seen) if each[0] >= since]
        for (_, joint, alone), (at, joint_then, alone_then) in zip(looks, looks[WINDOW:], strict=False):
            joint_rows, rows = joint_then - joint, joint_then - joint + alone_then - alone
            if rows and joint_rows >= BACK * rows:
                return at
        return None

    def share_alone(self, since: float, to: float) -> float | None:
        """Return the share of rows between these times that own columns scored, or None if no row was scored."""
        some = [each for each in self.seen if since <= each[0] <= to]
        joint, alone = (some[-1][place] - some[0][place] for place in (1, 2)) if len(some) > 1 else (0.0, 0.0)
        return alone / (joint + alone) if joint + alone else None


def _seen(fault: Fault, stage: Stage) -> Row:
    with (
        Counts(job=stage.job).looking() as counts,
        asking(stage.job, stage.job.port, rate=RATE, bodies=fault.bodies) as load,
    ):
        time.sleep(BEFORE_S)
        began = time.monotonic()
        fault.begins(stage)
        time.sleep(fault.lasts_s)
        fault.ends(stage)
        ended = time.monotonic()
        back = None
        while back is None and time.monotonic() < ended + BACK_S:
            time.sleep(LOOK_S)
            back = counts.back(ended)
        time.sleep(AFTER_S)
    return {
        "requests": load.requests,
        "failed": load.failed,
        "p50_ms": load.p50_ms,
        "p99_ms": load.p99_ms,
        "slowest_ms": load.slowest_ms,
        "alone": counts.share_alone(began, ended),
        "back_s": back - ended if back is not None else None,
    }


@contextmanager
def _redis(job: ServingJob) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    program, port = shutil.which("redis-server"), free_port()
    if program is None:
        raise ConfigError("bench serve: the store that is to hang is not installed; apt-get install redis-server")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(job.root)]
    process = started(command, log=job.root / "redis.log")
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


@contextmanager
def _rows_in_redis(job: ServingJob, name: str | None, port: int) -> Iterator[None]:
    """Let a side find its rows in Redis during the block."""
    if name is None:
        yield
        return
    import redis

    client = redis.Redis(port=port)
    table = load_party(job.root / f"{name}.yaml").table
    assert table is not None
    assert isinstance(table.path, Path)
    client.mset({f"{name}:{row['id']}": json.dumps(row) for row in pl.read_parquet(table.path).to_dicts()})
    client.close()
    serving = job.values(name).get("serving", {})
    store = {"method": "redis", "url": f"redis://127.0.0.1:{port}/0", "prefix": f"{name}:"}
    job.change(name, serving={**serving, "store": store})
    try:
        yield
    finally:
        job.change(name, serving=serving)
