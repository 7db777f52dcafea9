"""Measure what clients notice of a partner that is far away, and stopped, killed and slow in turn, and the processes' memory."""

import time
from collections.abc import Callable, Iterator
from itertools import cycle, product

from tallystick_experiments.speed.serving_clients import asking
from tallystick_experiments.speed.serving_faults import FAULTS, Counts, Stage
from tallystick_experiments.speed.serving_job import FEATURE, LABEL, ServingJob
from tallystick_experiments.speed.serving_memory import SETTLED_S, holds, trend
from tallystick_experiments.speed.slow_link import SlowLink
from tallystick_experiments.stats import Row

RATE, ROUND_TRIP_MS, DEADLINE_MS = 20, 80.0, 400.0
IN_TURN = ("partner stopped (SIGSTOP)", "partner killed, started again", "line to the partner a second slower")
LASTS_S = (5.0, 20.0)
"""Seconds of a fault, in turn: within the network's deadline, and beyond it."""
BETWEEN_S = 60.0
LOOK_S = 5.0


def plan(minutes: float) -> list[tuple[str, float]]:
    """Plan faults and their seconds in sequence: all of them short, then all of them long, as many as fit into the time."""
    stages, left_s = list[tuple[str, float]](), 60 * minutes - BETWEEN_S
    turns = cycle(product(LASTS_S, IN_TURN))
    while True:
        lasts_s, name = next(turns)
        left_s -= lasts_s + BETWEEN_S
        if left_s < 0:
            return stages
        stages.append((name, lasts_s))
    return stages


def far_under_load(job: ServingJob, *, minutes: float, say: Callable[[str], None]) -> list[Row]:
    """Ask for ``minutes``, with a fault of the partner about once a minute.

    Return a row for each fault, and one for each process.
    """
    serving, peers = job.values(LABEL)["serving"], job.values(FEATURE)["peers"]
    job.change(LABEL, serving={**serving, "deadline_ms": DEADLINE_MS})
    with SlowLink(mbit_per_s=100.0, round_trip_ms=ROUND_TRIP_MS).running() as line:
        job.change(FEATURE, peers={LABEL: {"address": f"127.0.0.1:{line.to(job.link)}"}})
        with job.serving() as running:
            stage = Stage(job=job, running=running, line=line, distance_ms=ROUND_TRIP_MS)
            looks: dict[tuple[str, int], list[tuple[float, dict[str, float]]]] = {}
            with asking(job, job.port, rate=RATE) as load, Counts(job=job).looking() as counts:
                began, troubles = time.monotonic(), list[Row]()
                for _ in _waits(began, BETWEEN_S):
                    _look(stage, looks)
                for name, lasts_s in plan(minutes):
                    begins, fault = time.monotonic(), FAULTS[name]
                    fault.begins(stage)
                    time.sleep(lasts_s)
                    fault.ends(stage)
                    ended = time.monotonic()
                    for _ in _waits(ended, BETWEEN_S):
                        _look(stage, looks)
                    back = counts.back(ended)
                    troubles.append(
                        {
                            "part": "far",
                            "fault": name,
                            "lasts_s": lasts_s,
                            "joint": _joint(counts, begins, ended),
                            "back_s": back - ended if back is not None else None,
                            "joint_afterwards": _joint(counts, back, ended + BETWEEN_S) if back is not None else 0.0,
                        }
                    )
                    say(f"far: {name} for {lasts_s:g} s")
                over = time.monotonic()
    job.change(LABEL, serving=serving)
    job.change(FEATURE, peers=peers)
    about = {
        "part": "far whole",
        "requests": load.requests,
        "failed": load.failed,
        "p50_ms": load.p50_ms,
        "p99_ms": load.p99_ms,
        "slowest_ms": load.slowest_ms,
        "joint": _joint(counts, began, over),
        "minutes": (over - began) / 60,
    }
    steady = {process: [look for look in seen if look[0] > seen[0][0] + SETTLED_S] for process, seen in looks.items()}
    rows_held = [
        {"part": "far held", "process": f"feature party, process {number}" if name == FEATURE else "label party", **trend(seen)}
        for number, ((name, _), seen) in enumerate(steady.items())
        if seen
    ]
    return [*troubles, about, *rows_held]


def _waits(since: float, seconds: float) -> Iterator[None]:
    """Yield every LOOK_S for ``seconds``."""
    while time.monotonic() < since + seconds:
        yield
        time.sleep(LOOK_S)


def _look(stage: Stage, looks: dict[tuple[str, int], list[tuple[float, dict[str, float]]]]) -> None:
    for name, process in stage.running.items():
        looks.setdefault((name, process.pid), []).append((time.monotonic(), holds(process.pid)))


def _joint(counts: Counts, since: float, to: float) -> float | None:
    alone = counts.share_alone(since, to)
    return None if alone is None else 1 - alone
