"""Measure the effect of connections without a token that never read: descriptors, memory, and an honest client's answers."""

import contextlib
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tallystick_experiments.speed.serving_job import LABEL, ServingJob
from tallystick_experiments.speed.serving_memory import holds
from tallystick_experiments.stats import Row

DESCRIPTORS, CONNECTIONS = 512, 480
PIPELINED = (2000, 8)
"""Requests of a connection: as many as it can send, and as many as the server allows."""
QUIET_S, FLOOD_S, PAUSE_S, TIMEOUT_S = 10.0, 30.0, 0.05, 10.0
AGAIN_S = 0.01
"""Seconds before connections are opened in place of those that the server has ended."""
ASKS = b"GET /v1/score HTTP/1.1\r\nHost: x\r\n\r\n"


def flooded(job: ServingJob, *, say: Callable[[str], None]) -> list[Row]:
    """Ask honestly: alone, next to each flood, and alone again. Return a row for each."""
    with _few_descriptors() as as_before, job.serving() as running:
        as_before()
        pid = running[LABEL].pid
        found = [_seen(job, pid, "alone", QUIET_S)]
        say("flood: an honest client alone")
        for pipelined in PIPELINED:
            over = threading.Event()
            flooding = threading.Thread(target=_flood, args=(job.port, pipelined, over))
            flooding.start()
            try:
                found.append(_seen(job, pid, f"beside connections that ask {pipelined:,} times", FLOOD_S))
            finally:
                over.set()
                flooding.join()
            say(f"flood: an honest client beside connections that ask {pipelined:,} times")
        found.append(_seen(job, pid, "afterwards", QUIET_S))
        say("flood: afterwards")
    return found


@contextmanager
def _few_descriptors() -> Iterator[Callable[[], None]]:
    """Limit processes that are started now to DESCRIPTORS descriptors. Calling the yielded function ends the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def as_before() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        yield as_before
    finally:
        as_before()


def _flood(port: int, pipelined: int, over: threading.Event) -> None:
    """Hold CONNECTIONS that have asked ``pipelined`` times and read nothing. If the server ends one, another is opened."""
    asks = ASKS * pipelined
    links: list[tuple[socket.socket, memoryview]] = []
    while not over.is_set():
        for place, (link, rest) in reversed(list(enumerate(links))):
            try:
                links[place] = link, rest[link.send(rest) :] if rest else rest
            except BlockingIOError:
                continue
            except OSError:
                link.close()
                del links[place]
        while len(links) < CONNECTIONS and not over.wait(AGAIN_S):
            with contextlib.suppress(OSError):
                link = socket.socket()
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.settimeout(1.0)
                link.connect(("127.0.0.1", port))
                link.setblocking(False)
                links.append((link, memoryview(asks)))
                break
        over.wait(AGAIN_S)
    for link, _ in links:
        link.close()


def _seen(job: ServingJob, pid: int, what: str, seconds: float) -> Row:
    """Measure an honest client and the process itself for ``seconds``."""
    times, failed, joint, held = list[float](), 0, 0, list[dict[str, float]]()
    body, until = (job.root / "body.json").read_bytes(), time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {job.token}", "Content-Type": "application/json"}
    while time.monotonic() < until:
        began = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", job.port, timeout=TIMEOUT_S)
        try:
            client.request("POST", "/v1/score", body, headers)
            answer = json.loads(client.getresponse().read())
            times.append(time.monotonic() - began)
            joint += answer["scores"][0]["scored_by"] == "joint model"
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            failed += 1
        finally:
            client.close()
        held.append(holds(pid))
        time.sleep(PAUSE_S)
    millis = 1000 * np.array(times or [float("nan")])
    return {
        "part": "flood",
        "what": what,
        "descriptors": max(each["descriptors"] for each in held),
        "mib": max(each["mib"] for each in held),
        "requests": len(times) + failed,
        "failed": failed,
        "joint": joint / max(len(times), 1),
        "p50_ms": float(np.percentile(millis, 50)),
        "p99_ms": float(np.percentile(millis, 99)),
    }
