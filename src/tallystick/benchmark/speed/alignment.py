"""How fast a private alignment is, beside the arithmetic it cannot do without.

One operating system process per party, joined by mutual TLS over loopback, sharing the cores of this machine. The
floor is a bare loop over libsodium's scalar multiplication, one process per core, measured in the same run.
"""

import itertools
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.alignment.group import hash_to_group, multiply
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psi import Protocol, intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import union_helper, union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.demo.processes import PartyContext, run_parties
from tallystick.errors import ConfigError, TallystickError
from tallystick.network.channel import Channel

Figures = dict[str, Any]

LABEL, FEATURE, HELPER = "label", "feature", "helper"
PEERS = {
    # Whom each party calls (True) or waits for (False).
    "intersection": {LABEL: {FEATURE: False}, FEATURE: {LABEL: True}},
    "diffie-hellman": {LABEL: {FEATURE: False}, FEATURE: {LABEL: True}},
    "union": {LABEL: {FEATURE: False}, FEATURE: {LABEL: True}},
    "union-with-helper": {
        HELPER: {LABEL: False, FEATURE: False},
        LABEL: {FEATURE: False, HELPER: True},
        FEATURE: {LABEL: True, HELPER: True},
    },
}
INTERSECTIONS: Mapping[str, Protocol] = {"intersection": "auto", "diffie-hellman": "diffie-hellman"}
BARE_LOOP_S = 5.0  # long enough to outlast what a machine gives for a moment
BARE_TIMEOUT_S = 120.0
PARTY_TIMEOUT_S = 1800.0


def run(
    *,
    rows: int,
    protocol: str = "intersection",
    overlap: float = 0.5,
    dummies: int = 0,
    threads: int | None = None,
    turns: int | None = None,
) -> Figures:
    """Align two tables of ``rows`` ids that share ``overlap`` of them, and check the result.

    Gives, among others: ``seconds``; ``scalar_multiplications`` of both sides; ``efficiency``, the time that these
    take in a bare loop on all cores over ``seconds`` (None where the protocol hardly multiplies); per party ``peak_mib``,
    ``peak_over_baseline_mib`` and bytes. The bare loop runs before and after every turn, for a machine that others use too,
    or that slows down under load, is not equally fast all the time: a turn's efficiency takes the mean of the two, and
    the medians over the turns are given. By default three turns, one above 200,000 rows.

    Raises ConfigError for an unknown protocol or sizes that cannot be aligned.
    """
    if protocol not in PEERS:
        raise ConfigError(f"protocol = {protocol!r}: expected one of {', '.join(PEERS)}")
    common = round(rows * overlap)
    if not 0 < common < rows:
        raise ConfigError(f"rows = {rows}, overlap = {overlap}: expected both sides to share some of their ids, but not all")
    job = {"protocol": protocol, "rows": rows, "common": common, "dummies": dummies, "threads": threads}
    bare, seconds = [_bare_multiplications_per_s()], []
    for _ in range(turns or (3 if rows <= 200_000 else 1)):
        taken, parties = _run_parties(job)
        seconds.append(taken)
        bare.append(_bare_multiplications_per_s())
    multiplications = sum(party["scalar_multiplications"] for party in parties.values())
    floors = [2 * multiplications / (before + after) for before, after in itertools.pairwise(bare)]
    efficiencies = [floor / taken for floor, taken in zip(floors, seconds, strict=True)]
    if multiplications < rows:  # hashing, not multiplying, is what takes the time
        efficiencies = []
    return {
        "protocol": protocol,
        "rows": rows,
        "overlap": overlap,
        "cores": os.cpu_count(),
        "seconds": statistics.median(seconds),
        "scalar_multiplications": multiplications,
        "bare_multiplications_per_s": statistics.median(bare),
        "efficiency": statistics.median(efficiencies) if efficiencies else None,
        "turns": {"seconds": seconds, "bare_multiplications_per_s": bare, "efficiency": efficiencies},
        "parties": parties,
    }


def _run_parties(job: Figures) -> tuple[float, dict[str, Figures]]:
    """Time the parties from the word go, once all are connected and hold their ids, to the last result."""
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        outcome = run_parties(Path(folder), __name__, PEERS[job["protocol"]], job, timeout_s=PARTY_TIMEOUT_S)
    return outcome.seconds, outcome.results


def party(stage: PartyContext, job: Figures) -> Figures:
    """One party's process."""
    baseline = memory_mib("VmRSS")
    name, channels = stage.name, stage.channels
    numbers = _customers(name, job)
    ids = [b"customer-%012d" % number for number in numbers]
    stage.ready()
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
        "peak_mib": memory_mib("VmHWM"),
        "peak_over_baseline_mib": memory_mib("VmHWM") - baseline,
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
    if job["protocol"] in INTERSECTIONS:
        first_common = job["rows"] - job["common"]
        right = np.array_equal(np.sort(numbers[own]), np.arange(first_common, job["rows"]))
    else:
        union = 2 * job["rows"] - job["common"]
        right = len(own) == job["rows"] and union <= len(alignment) <= union + 2 * job["dummies"]
    if not right:
        raise TallystickError(f"the alignment is wrong: {len(alignment)} positions, {len(own)} own rows")


_Role = Callable[[Sequence[bytes], Mapping[str, Channel], Figures], Alignment]


def _intersect(role: Callable[..., Alignment], ids: Sequence[bytes], channels: Mapping[str, Channel], job: Figures) -> Alignment:
    of = list(channels.values()) if role is intersect_label_party else channels[LABEL]
    return role(ids, of, rng=SecureRandom(), protocol=INTERSECTIONS[job["protocol"]], threads=job["threads"])


def _join(role: Callable[..., Any], *, helper: bool = False) -> _Role:
    """Make a role of a union protocol callable as the benchmark calls every role."""

    def joined(ids: Sequence[bytes], channels: Mapping[str, Channel], job: Figures) -> Alignment:
        peer = next(channel for name, channel in channels.items() if name != HELPER)
        options = {"rng": SecureRandom(), "dummies": job["dummies"]}
        outcome: Alignment = (
            role(ids, peer, channels[HELPER], **options) if helper else role(ids, peer, threads=job["threads"], **options)
        )
        return outcome

    return joined


_ROLES: dict[str, dict[str, _Role]] = {
    **{
        name: {LABEL: partial(_intersect, intersect_label_party), FEATURE: partial(_intersect, intersect_feature_party)}
        for name in INTERSECTIONS
    },
    "union": {LABEL: _join(union_label_party), FEATURE: _join(union_feature_party)},
    "union-with-helper": {
        LABEL: _join(union_with_helper_party, helper=True),
        FEATURE: _join(union_with_helper_party, helper=True),
    },
}


def memory_mib(field: str) -> float:
    """Read this process's resident memory, now (VmRSS) or at its highest (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def _bare_multiplications_per_s() -> float:
    """Measure libsodium's scalar multiplication in one process per core, nothing else running."""
    cores = os.cpu_count() or 1
    # Not multiprocessing.Pool: it starts a worker that died anew and waits for the lost task for ever.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return sum(pool.map(_bare_loop, range(cores), timeout=BARE_TIMEOUT_S))
        except (BrokenProcessPool, TimeoutError) as error:
            raise TallystickError(
                f"the bare loop of scalar multiplications did not end: {error or type(error).__name__}"
            ) from None


def _bare_loop(_: int) -> float:
    points, key = hash_to_group([b"%d" % number for number in range(1000)]), SecureRandom().scalar()
    started, rounds = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < BARE_LOOP_S:
        points = multiply(points, key)
        rounds += 1
    return rounds * len(points) / elapsed
