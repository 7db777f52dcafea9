"""Send load with clients that are not our own: ``hey`` asks in ticks, ``wrk`` at random times."""

import io
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tallystick.errors import ConfigError
from tallystick_experiments.speed.serving_job import ServingJob

CLIENTS = {"hey": "in ticks", "wrk": "at random"}
PAUSE_MS = 500.0
"""Mean pause of a connection between two requests, long against an answer, so that requests come even if others wait."""
FOR_EVER_S = 86_400
# wrk runs a script. Its requests are those of a file, and each connection pauses for an exponentially distributed time.
_SCRIPT = """
local pause, made = tonumber(os.getenv("PAUSE_MS")), {}
local headers = {["Content-Type"] = "application/json", ["Authorization"] = "Bearer " .. os.getenv("TOKEN")}
function init()
  math.randomseed(1)
  for line in io.lines(os.getenv("BODIES")) do made[#made + 1] = wrk.format("POST", "/v1/score", headers, line) end
end
function request() return made[math.random(#made)] end
function delay() return math.floor(0.5 - pause * math.log(1 - math.random())) end
function done(summary, latency)
  local e = summary.errors
  local failed = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format('\\n{"requests": %d, "us": %d, "p50": %d, "p99": %d, "slowest": %d, "failed": %d}\\n', summary.requests,
    summary.duration, latency:percentile(50), latency:percentile(99), latency.max, failed))
end
"""


@dataclass(kw_only=True)
class LoadAsked:
    """Hold the outcomes of one client's requests, and milliseconds from a request to its answer."""

    requests: int = 0
    failed: int = 0
    per_second: float = 0.0
    p50_ms: float = field(default=float("nan"))
    p99_ms: float = field(default=float("nan"))
    slowest_ms: float = field(default=float("nan"))


def require_clients(clients: Iterable[str]) -> None:
    """Raise ConfigError if one of these clients is not installed."""
    if missing := [name for name in clients if shutil.which(name) is None]:
        names = " ".join(missing)
        raise ConfigError(f"bench serve: clients are not installed: {names}; apt-get install {names}")


def ask(client: str, job: ServingJob, port: int, *, rate: int, seconds: int) -> LoadAsked:
    """Ask ``rate`` times a second."""
    if client == "hey":
        return _hey(job, port, rate=rate, seconds=seconds)
    with asking(job, port, rate=rate, seconds=seconds) as load:
        pass
    return load


def _hey(job: ServingJob, port: int, *, rate: int, seconds: int) -> LoadAsked:
    """Send one request of each worker ten times a second, all at once."""
    workers = max(1, rate // 10)
    command = ["hey", "-z", f"{seconds}s", "-c", str(workers), "-q", str(rate / workers), "-o", "csv", "-m", "POST"]
    command += ["-T", "application/json", "-H", f"Authorization: Bearer {job.token}", "-D", str(job.root / "body.json")]
    output = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/v1/score"], check=True, capture_output=True, timeout=seconds + 60
    )
    answers = pl.read_csv(io.BytesIO(output.stdout))
    millis = 1000 * answers.get_column("response-time").to_numpy()
    return LoadAsked(
        requests=len(answers),
        failed=int((answers.get_column("status-code") != 200).sum()),
        per_second=len(answers) / seconds,
        p50_ms=float(np.percentile(millis, 50)),
        p99_ms=float(np.percentile(millis, 99)),
        slowest_ms=float(millis.max()),
    )


@contextmanager
def asking(job: ServingJob, port: int, *, rate: int, seconds: int | None = None, bodies: str = "keys") -> Iterator[LoadAsked]:
    """Ask at random times during the block, or for ``seconds``. The outcomes are known once it has ended."""
    connections, load = max(4, round(rate * PAUSE_MS / 1000)), LoadAsked()
    script = job.root / "ask.lua"
    script.write_text(_SCRIPT)
    pause_ms = 1000 * connections / rate
    variables = {"PAUSE_MS": str(pause_ms), "TOKEN": job.token, "BODIES": str(job.root / bodies)}
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds or FOR_EVER_S}s", "--timeout", "10", "-s", str(script)]
    process = subprocess.Popen(
        [*command, f"http://127.0.0.1:{port}"], env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield load
        if seconds is None:
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=(seconds or 0) + 60)
    finally:
        process.kill()
        process.wait()
    figures = json.loads(output.decode().strip().splitlines()[-1])
    load.requests, load.failed = figures["requests"], figures["failed"]
    load.per_second = figures["requests"] / (figures["us"] / 1e6)
    load.p50_ms, load.p99_ms, load.slowest_ms = (figures[name] / 1000 for name in ("p50", "p99", "slowest"))
