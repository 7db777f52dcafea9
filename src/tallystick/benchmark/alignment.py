"""How fast a private alignment is, beside the arithmetic it cannot do without.

One operating system process per party, joined by gRPC with mutual TLS over loopback, sharing the cores of this machine. The
floor is a bare loop over libsodium's scalar multiplication, one process per core, measured in the same run.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.alignment.group import hash_to_group, multiply
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import union_helper, union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import ConfigError, TallystickError
from tallystick.network.certificates import load_identity, write_test_certificates
from tallystick.network.channel import Channel
from tallystick.network.grpc import Limits, Network

Figures = dict[str, Any]

LABEL, FEATURE, HELPER = "label", "feature", "helper"
PEERS = {
    # Whom each party calls (True) or waits for (False).
    "intersection": {LABEL: {FEATURE: False}, FEATURE: {LABEL: True}},
    "union": {LABEL: {FEATURE: False}, FEATURE: {LABEL: True}},
    "union-with-helper": {
        HELPER: {LABEL: False, FEATURE: False},
        LABEL: {FEATURE: False, HELPER: True},
        FEATURE: {LABEL: True, HELPER: True},
    },
}
BARE_LOOP_S = 2.0
PARTY_TIMEOUT_S = 1800.0


def run(
    *, rows: int, protocol: str = "intersection", overlap: float = 0.5, dummies: int = 0, threads: int | None = None
) -> Figures:
    """Align two tables of ``rows`` ids that share ``overlap`` of them, and check the result.

    Gives, among others: ``seconds``; ``scalar_multiplications`` of both sides; ``efficiency``, the time that these
    take in a bare loop on all cores over ``seconds`` (None with a helper, which needs none); per party ``peak_mib``,
    ``peak_over_baseline_mib`` and bytes.

    Raises ConfigError for an unknown protocol or sizes that cannot be aligned.
    """
    if protocol not in PEERS:
        raise ConfigError(f"protocol = {protocol!r}: expected one of {', '.join(PEERS)}")
    common = round(rows * overlap)
    if not 0 < common < rows:
        raise ConfigError(f"rows = {rows}, overlap = {overlap}: expected both sides to share some of their ids, but not all")
    job = {"protocol": protocol, "rows": rows, "common": common, "dummies": dummies, "threads": threads}
    bare_before = _bare_multiplications_per_s()
    seconds, parties = _run_parties(job)
    bare = max(bare_before, _bare_multiplications_per_s())
    multiplications = sum(party["scalar_multiplications"] for party in parties.values())
    return {
        "protocol": protocol,
        "rows": rows,
        "overlap": overlap,
        "cores": os.cpu_count(),
        "seconds": seconds,
        "scalar_multiplications": multiplications,
        "bare_multiplications_per_s": bare,
        "efficiency": multiplications / bare / seconds if multiplications else None,
        "parties": parties,
    }


def _run_parties(job: Figures) -> tuple[float, dict[str, Figures]]:
    """Start the parties, let them connect, then time them from the word go to the last result."""
    peers = PEERS[job["protocol"]]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        write_test_certificates(Path(folder) / "tls", list(peers))
        pipes: dict[str, Connection] = {}
        processes = {}
        for name in peers:
            pipes[name], theirs = context.Pipe()
            processes[name] = context.Process(target=_party, args=(name, job, Path(folder) / "tls", theirs), daemon=True)
            processes[name].start()
            theirs.close()
        try:
            ports = {name: _hear(pipes[name]) for name in peers}
            _tell(pipes, ports)
            for name in peers:
                assert _hear(pipes[name]) == "ready"
            started = time.perf_counter()
            _tell(pipes, "go")
            figures: dict[str, Figures] = {}
            while len(figures) < len(peers):
                ready = wait([pipe for name, pipe in pipes.items() if name not in figures], timeout=PARTY_TIMEOUT_S)
                if not ready:
                    raise TallystickError(f"no party finished within {PARTY_TIMEOUT_S:g} s; try fewer rows")
                for name in [name for name, pipe in pipes.items() if pipe in ready]:
                    figures[name] = _hear(pipes[name])
            seconds = time.perf_counter() - started
            for process in processes.values():
                process.join(timeout=30)
        finally:
            for process in processes.values():
                process.kill()
                process.join()
    return seconds, {name: figures[name] for name in peers}


def _tell(pipes: dict[str, Connection], what: Any) -> None:
    for pipe in pipes.values():
        pipe.send(what)


def _hear(pipe: Connection) -> Any:
    try:
        heard = pipe.recv()
    except EOFError:
        raise TallystickError("a party's process ended without a result; its standard error says why") from None
    if isinstance(heard, TallystickError):
        raise heard
    return heard


def _party(name: str, job: Figures, tls: Path, pipe: Connection) -> None:
    """One party's process."""
    try:
        with _network(name, job["protocol"], tls, pipe) as channels:
            pipe.send(_timed(name, job, channels, pipe))
    except TallystickError as error:
        pipe.send(TallystickError(f"{name}: {error}"))


@contextmanager
def _network(name: str, protocol: str, tls: Path, pipe: Connection) -> Iterator[dict[str, Channel]]:
    peers = PEERS[protocol][name]
    identity = load_identity(name, ca=tls / "ca.pem", certificate=tls / f"{name}.pem", key=tls / f"{name}.key")
    waits = not all(peers.values())
    network = Network(identity, limits=Limits(), listen="127.0.0.1:0" if waits else None)
    try:
        pipe.send(network.port)
        ports = pipe.recv()
        addresses = {peer: f"127.0.0.1:{ports[peer]}" if calls else None for peer, calls in peers.items()}
        yield dict(network.connect(addresses))
    finally:
        network.close()


def _timed(name: str, job: Figures, channels: dict[str, Channel], pipe: Connection) -> Figures:
    baseline = _memory_mib("VmRSS")
    numbers = _customers(name, job)
    ids = [b"customer-%012d" % number for number in numbers]
    pipe.send("ready")
    pipe.recv()
    started, cpu_started = time.perf_counter(), time.process_time()
    multiplications = 0
    if name == HELPER:
        union_helper(channels[LABEL], channels[FEATURE], rng=SecureRandom())
    else:
        alignment = _ROLES[job["protocol"]][name](ids, channels, job)
        _check(alignment, numbers, job)
        multiplications = alignment.multiplications
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "scalar_multiplications": multiplications,
        "peak_mib": _memory_mib("VmHWM"),
        "peak_over_baseline_mib": _memory_mib("VmHWM") - baseline,
        "bytes_sent": sum(channel.traffic.bytes_sent for channel in channels.values()),
        "bytes_received": sum(channel.traffic.bytes_received for channel in channels.values()),
    }


def _customers(name: str, job: Figures) -> "np.ndarray[Any, Any]":
    """Number this party's customers, in an order of its own; the helper has none."""
    rows = 0 if name == HELPER else job["rows"]
    first = 0 if name == LABEL else job["rows"] - job["common"]
    return np.random.default_rng(first).permutation(np.arange(first, first + rows))


def _check(alignment: Alignment, numbers: "np.ndarray[Any, Any]", job: Figures) -> None:
    own = alignment.rows_N[alignment.rows_N >= 0]
    if job["protocol"] == "intersection":
        first_common = job["rows"] - job["common"]
        right = np.array_equal(np.sort(numbers[own]), np.arange(first_common, job["rows"]))
    else:
        union = 2 * job["rows"] - job["common"]
        right = len(own) == job["rows"] and union <= len(alignment) <= union + 2 * job["dummies"]
    if not right:
        raise TallystickError(f"the alignment is wrong: {len(alignment)} positions, {len(own)} own rows")


_Role = Callable[[Sequence[bytes], dict[str, Channel], Figures], Alignment]


def _join(role: Callable[..., Any], *, helper: bool = False) -> _Role:
    """Make a role of a union protocol callable as the benchmark calls every role."""

    def joined(ids: Sequence[bytes], channels: dict[str, Channel], job: Figures) -> Alignment:
        peer = next(channel for name, channel in channels.items() if name != HELPER)
        options = {"rng": SecureRandom(), "dummies": job["dummies"]}
        outcome: Alignment = (
            role(ids, peer, channels[HELPER], **options) if helper else role(ids, peer, threads=job["threads"], **options)
        )
        return outcome

    return joined


_ROLES: dict[str, dict[str, _Role]] = {
    "intersection": {
        LABEL: lambda ids, channels, job: intersect_label_party(
            ids, [channels[FEATURE]], rng=SecureRandom(), threads=job["threads"]
        ),
        FEATURE: lambda ids, channels, job: intersect_feature_party(
            ids, channels[LABEL], rng=SecureRandom(), threads=job["threads"]
        ),
    },
    "union": {LABEL: _join(union_label_party), FEATURE: _join(union_feature_party)},
    "union-with-helper": {
        LABEL: _join(union_with_helper_party, helper=True),
        FEATURE: _join(union_with_helper_party, helper=True),
    },
}


def _memory_mib(field: str) -> float:
    """Read this process's resident memory, now (VmRSS) or at its highest (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def _bare_multiplications_per_s() -> float:
    """Measure libsodium's scalar multiplication in one process per core, nothing else running."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count()) as pool:
        return float(sum(pool.map(_bare_loop, range(os.cpu_count() or 1), chunksize=1)))


def _bare_loop(_: int) -> float:
    points, key = hash_to_group([b"%d" % number for number in range(1000)]), SecureRandom().scalar()
    started, rounds = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < BARE_LOOP_S:
        points = multiply(points, key)
        rounds += 1
    return rounds * len(points) / elapsed
