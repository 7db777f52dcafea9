"""Measure the memory, descriptors and threads of serving processes over a long time. The partner is restarted midway."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tallystick_experiments.speed.serving_clients import asking
from tallystick_experiments.speed.serving_job import FEATURE, LABEL, READY, ServingJob, end, until
from tallystick_experiments.stats import Row

RATE = 100
LOOK_S = 5.0
SETTLED_S = 30.0
"""Seconds after a process has begun to serve, from which it is measured."""


def memory_under_load(job: ServingJob, *, minutes: float, say: Callable[[str], None]) -> list[Row]:
    """Ask for ``minutes``, and measure. Return a row for each process."""
    looks: dict[str, list[tuple[float, dict[str, float]]]] = {}
    with job.serving() as running, asking(job, job.port, rate=RATE) as load:
        for half in ("first", "second"):
            pids = {"label party": running[LABEL].pid, f"feature party, {half} process": running[FEATURE].pid}
            until_s = time.monotonic() + 30 * minutes
            time.sleep(min(SETTLED_S, 10 * minutes))
            while time.monotonic() < until_s:
                for name, pid in pids.items():
                    looks.setdefault(name, []).append((time.monotonic(), holds(pid)))
                time.sleep(LOOK_S)
            say(f"memory: {half} half of {minutes:g} minutes is over")
            if half == "first":
                end(running[FEATURE])
                running[FEATURE] = job.start(FEATURE)
                until(f"http://127.0.0.1:{job.port}/readyz", READY)
    about = {"part": "memory", "requests": load.requests, "failed": load.failed, "p99_ms": load.p99_ms}
    return [{**about, "process": name, **trend(seen)} for name, seen in looks.items()]


def holds(pid: int) -> dict[str, float]:
    """Return memory in MiB, threads and descriptors of a process."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    status = {name: text.split() for name, _, text in lines}
    return {
        "mib": int(status["VmRSS"][0]) / 1024,
        "threads": int(status["Threads"][0]),
        "descriptors": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
    }


def trend(seen: list[tuple[float, dict[str, float]]]) -> Row:
    """Return the first, last and highest value of each measure, and its increase per minute."""
    at = np.array([time for time, _ in seen])
    trend: Row = {"looks": len(seen), "minutes": float(at[-1] - at[0]) / 60}
    for name in seen[0][1]:
        values = np.array([held[name] for _, held in seen])
        slope = float(np.polyfit(at - at[0], values, 1)[0]) * 60 if len(seen) > 1 else float("nan")
        trend |= {f"{name}_first": values[0], f"{name}_last": values[-1], f"{name}_most": values.max(), f"{name}_a_minute": slope}
    return {key: float(value) for key, value in trend.items()}
