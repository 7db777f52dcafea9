"""Measure a private alignment, from a party's table to its written alignment, and the arithmetic that it needs at least.

Each party is one process, joined by mutual TLS over loopback, and all share the cores of this machine. If a protocol multiplies
for every id, the lower bound is a bare loop over libsodium's scalar multiplication, with one process per core, in the same run.
An intersection can be compared with SecretFlow's on the same tables in the same run (``secretflow.py``).
"""

import contextlib
import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from typer import Option

from tallystick.alignment.group import hash_to_group, multiply
from tallystick.alignment.key_ids import MOST_KEYS
from tallystick.alignment.linkages import LINKAGES
from tallystick.alignment.pairwise import LOCAL
from tallystick.alignment.psi import FEW_IDS
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract, parse_contract
from tallystick.config.table import TableConfig
from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, Peers, run_parties
from tallystick.errors import ConfigError, TallystickError
from tallystick.job.phases.align import align_keys, help_align
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.keys import fingerprint, read_keys
from tallystick.tables.table import read_table
from tallystick_experiments.options import several
from tallystick_experiments.resident import memory_mib
from tallystick_experiments.speed import secretflow
from tallystick_experiments.speed.slow_link import SlowLink

Figures = dict[str, Any]

HELPER = "helper"
WITH_HELPER: Peers = {
    HELPER: {LABEL: False, FEATURE: False},
    LABEL: {FEATURE: False, HELPER: True},
    FEATURE: {LABEL: True, HELPER: True},
}
PROTOCOLS: Mapping[str, Mapping[str, str]] = {
    "intersection": {"method": "intersection"},
    "diffie-hellman": {"method": "intersection", "protocol": "diffie-hellman"},
    "malicious": {"method": "intersection", "security": "malicious"},
    "union": {"method": "union"},
    "union-diffie-hellman": {"method": "union", "protocol": "diffie-hellman"},
    "union-with-helper": {"method": "union-with-helper"},
}
"""The contract's keys of the alignment."""
OVERLAP = 0.5  # share of the shorter table's ids
LACKED, MOVED = 0.2, 0.1  # share of people without a key, per key; share of the feature party's with another first key
BARE_LOOP_S = 5.0  # long enough for short bursts of the machine not to matter
BARE_TIMEOUT_S = 120.0
PARTY_TIMEOUT_S = 1800.0


def measure_alignment(
    *,
    rows: Annotated[int, Option(help="Rows of the label party.", min=1)] = 100_000,
    others: Annotated[int | None, Option(help="Rows of the feature party; as many if left out.", min=1)] = None,
    protocol: Annotated[
        str, Option(help="intersection, diffie-hellman, malicious, union or union-with-helper.")
    ] = "intersection",
    keys: Annotated[
        int, Option(help="Keys of which any may link a row: each person lacks some; of an intersection.", min=1, max=MOST_KEYS)
    ] = 1,
    turns: Annotated[int | None, Option(help="Repetitions; 3 if left out, 1 above 400,000 rows in all.", min=1)] = None,
    peer: Annotated[str | None, Option(help="spu: SecretFlow's intersections in the same run, too.")] = None,
    peer_python: Annotated[str, Option(help="The Python that has the peer installed.")] = sys.executable,
    peer_protocols: Annotated[Sequence[str], several("Which of the peer's.")] = secretflow.PROTOCOLS,
    link_mbit: Annotated[
        float | None, Option(help="Mbit/s each way of a slow line between the parties; loopback if left out.", min=0.1)
    ] = None,
    link_ms: Annotated[float, Option(help="Milliseconds of its round trip.", min=0)] = 0.0,
) -> Figures:
    """Align two tables that share half of the ids of the shorter one, and check the result.

    ``rows`` and ``others`` (the same number, if None) are the rows of the label and the feature party, in CSV files. The time
    runs from opening these to the written alignment. The figures include: ``seconds``; ``cpu_seconds`` and ``bytes`` of all
    parties; ``scalar_multiplications`` of both sides; ``efficiency``, which is the time of these in a bare loop on all cores over
    ``seconds`` (None if the protocol hardly multiplies); and per party ``peak_mib``, ``peak_over_baseline_mib`` and seconds of
    each part. The bare loop runs before and after every turn, because a shared machine, or one that slows down under load, is not
    always equally fast. A turn's efficiency uses the mean of the two, and the figures are medians over the turns. The default is
    three turns, or one if there are more than 400,000 rows in all. With the peer ``spu``, each turn also runs SecretFlow's
    ``peer_protocols`` on tables of the same ids, with a Python that has it. ``link_mbit`` puts a line of this many Mbit/s each
    way, with a round trip of ``link_ms``, between every two parties (``slow_link.py``).

    With several ``keys``, a side lacks each key for a fifth of its people, and a tenth of the feature party's people have another
    first key than the label party knows. The links are compared with a join in the clear.

    Raises ConfigError for an unknown protocol, sizes that cannot be aligned, or a ``peer_python`` without spu.
    """
    others = rows if others is None else others
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol = {protocol!r}: expected one of {', '.join(PROTOCOLS)}")
    if keys > 1 and PROTOCOLS[protocol]["method"] != "intersection":
        raise ConfigError(f"--keys {keys}: any of several keys links rows of an intersection, not of protocol = {protocol}")
    common = round(min(rows, others) * OVERLAP)
    if not 0 < common < min(rows, others):
        raise ConfigError(f"rows = {rows}, others = {others}: expected both sides to share some of their ids, but not all")
    if peer not in (None, "spu"):
        raise ConfigError(f"--peer = {peer!r}: expected spu")
    if peer is not None:
        secretflow.check_peer(peer_python, peer_protocols)
    line = {"link_mbit": link_mbit, "link_ms": link_ms}
    job = {"protocol": protocol, "rows": rows, "others": others, "common": common, "keys": keys, **line}
    measured = _repeat(
        job,
        turns or (3 if rows + others <= 400_000 else 1),
        peer=None if peer is None else partial(secretflow.measure_secretflow, peer_python, peer_protocols, common=common),
    )
    sizes = {"protocol": protocol, "rows": rows, "others": others, "overlap": OVERLAP, "keys": keys}
    return {**sizes, **line, "cores": os.cpu_count(), **measured}


def _repeat(job: Figures, turns: int, *, peer: Callable[[list[Path]], Figures] | None) -> Figures:
    """Align ``turns`` times, with the bare loop before and after each turn, and return the medians. ``peer`` aligns the same
    tables.
    """
    protocol = job["protocol"]
    multiplies = protocol in ("diffie-hellman", "union-diffie-hellman") or (
        protocol in ("intersection", "union") and job["rows"] + job["others"] <= FEW_IDS
    )
    bare, seconds, peers = [_bare_multiplications_per_s()] if multiplies else [], [], []
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        tables = {name: Path(folder) / f"{name}.csv" for name in (LABEL, FEATURE)}
        for name, table in tables.items():
            _table(name, job).write_csv(table)
        for _ in range(turns):
            elapsed, parties = _run_parties(job | {"tables": {name: str(table) for name, table in tables.items()}})
            seconds.append(elapsed)
            if multiplies:
                bare.append(_bare_multiplications_per_s())
            if peer is not None:
                peers.append(peer(list(tables.values())))
    multiplications = sum(party["scalar_multiplications"] for party in parties.values())
    floors = [2 * multiplications / (before + after) for before, after in itertools.pairwise(bare)]
    efficiencies = [floor / elapsed for floor, elapsed in zip(floors, seconds, strict=multiplies)]
    return {
        "seconds": statistics.median(seconds),
        "cpu_seconds": sum(party["cpu_seconds"] for party in parties.values()),
        "bytes": sum(party["bytes_sent"] for party in parties.values()),
        "scalar_multiplications": multiplications,
        "bare_multiplications_per_s": statistics.median(bare) if bare else None,
        "efficiency": statistics.median(efficiencies) if efficiencies else None,
        "turns": {"seconds": seconds, "bare_multiplications_per_s": bare, "efficiency": efficiencies},
        "parties": parties,
        "spu": peers,
    }


def _run_parties(job: Figures) -> tuple[float, dict[str, Figures]]:
    """Time the parties from the moment when all are connected and hold their ids to the last result."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tallystick-bench-"))
        route = None
        if (mbit := job["link_mbit"]) is not None:
            link = SlowLink(mbit_per_s=mbit, round_trip_ms=job["link_ms"])
            route = stack.enter_context(link.running()).to
        peers = WITH_HELPER if LINKAGES[PROTOCOLS[job["protocol"]]["method"]].helper else PAIR
        outcome = run_parties(Path(folder), alignment_party, peers, job, timeout_s=PARTY_TIMEOUT_S, route=route)
    return outcome.seconds, outcome.results


def alignment_party(stage: PartyContext, job: Figures) -> Figures:
    """Run one party's process."""
    name, channels, contract = stage.name, stage.channels, _contract(job["protocol"], keys=job["keys"])
    folder = None if name == HELPER else RunFolder.new(stage.home / "runs", contract, name, key=None)
    baseline = memory_mib("VmRSS")
    stage.ready()
    cpu_started, clock = time.process_time(), [time.perf_counter()]
    multiplications = 0
    if folder is None:
        help_align(contract, channels)
    else:
        columns = [key.name for key in contract.alignment.keys]
        table = read_table(TableConfig(path=Path(job["tables"][name])), text=columns)
        keys = read_keys(table, columns={column: column for column in columns}, alignment=contract.alignment)
        clock.append(time.perf_counter())
        alignment = align_keys(contract, name, keys, channels, local=LOCAL, expected=max(job["rows"], job["others"]))
        clock.append(time.perf_counter())
        folder.save_alignment(alignment, run_id="bench", table=fingerprint(keys))
        multiplications = alignment.multiplications
    clock.append(time.perf_counter())
    cpu_seconds = time.process_time() - cpu_started
    if folder is not None:
        numbers = _customers(name, job)[keys.rows_R]
        own = alignment.rows_N[alignment.rows_N >= 0]
        if PROTOCOLS[job["protocol"]]["method"] == "intersection":
            first_common = job["rows"] - job["common"]
            expected = np.arange(first_common, job["rows"]) if job["keys"] == 1 else _joined(job)
            right = np.array_equal(np.sort(numbers[own]), expected)
        else:
            right = len(own) == len(numbers) and len(alignment) == job["rows"] + job["others"] - job["common"]
        if not right:
            raise TallystickError(f"the alignment is wrong: {len(alignment)} positions, {len(own)} own rows")
    return {
        "seconds": clock[-1] - clock[0],
        "seconds_by_part": dict(zip(("reading", "aligning", "writing"), np.diff(clock).tolist(), strict=False)),
        "cpu_seconds": cpu_seconds,
        "scalar_multiplications": multiplications,
        "peak_mib": memory_mib("VmHWM"),
        "peak_over_baseline_mib": memory_mib("VmHWM") - baseline,
        "bytes_sent": sum(channel.traffic.bytes_sent for channel in channels.values()),
        "bytes_received": sum(channel.traffic.bytes_received for channel in channels.values()),
    }


def _customers(name: str, job: Figures) -> "np.ndarray[Any, Any]":
    """Assign numbers to this party's customers, in an order of its own."""
    first, rows = (0, job["rows"]) if name == LABEL else (job["rows"] - job["common"], job["others"])
    return np.random.default_rng(first).permutation(np.arange(first, first + rows))


def _table(name: str, job: Figures) -> pl.DataFrame:
    """Make this party's keys: the id, or for several keys those that it knows of each of its customers."""
    customers = _customers(name, job)
    ids = "customer-" + pl.Series(customers).cast(pl.String).str.zfill(12)
    if job["keys"] == 1:
        return ids.to_frame("id")
    has_PK, has_moved_P = _known(name, job)
    columns = {f"key{number}": ids.set(pl.Series(~has_PK[customers, number]), None) for number in range(job["keys"])}
    if name == FEATURE:
        columns["key0"] = columns["key0"].zip_with(pl.Series(~has_moved_P[customers]), "moved-" + columns["key0"])
    return pl.DataFrame(columns)


def _known(name: str, job: Figures) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Return the keys that a party has of each person, (P, K), and who has another first key at the feature party (P,)."""
    people = job["rows"] + job["others"]
    has_PK = np.random.default_rng([1, int(name == LABEL)]).random((people, job["keys"])) < 1 - LACKED
    return has_PK, np.random.default_rng(2).random(people) < MOVED


def _joined(job: Figures) -> "np.ndarray[Any, Any]":
    """Join in the clear: the common customers for whom the first key that both know is the same on both sides."""
    people = np.arange(job["rows"] - job["common"], job["rows"])
    (label_PK, moved_P), (feature_PK, _) = _known(LABEL, job), _known(FEATURE, job)
    both_PK = label_PK[people] & feature_PK[people]
    differs_P = moved_P[people] & both_PK[:, 0]
    joined: np.ndarray[Any, Any] = people[both_PK.any(axis=1) & ~differs_P]
    return joined


def _contract(protocol: str, *, keys: int = 1) -> Contract:
    names = ["id"] if keys == 1 else [f"key{number}" for number in range(keys)]
    alignment: Figures = {**PROTOCOLS[protocol], "keys": [{"name": name} for name in names]}
    if keys > 1:
        alignment["alternatives"] = [[name] for name in names]
    roles = {LABEL: "label", FEATURE: "feature"} | ({HELPER: "helper"} if LINKAGES[alignment["method"]].helper else {})
    parties = {name: {"role": role} for name, role in roles.items()}
    return parse_contract({"name": "bench", "parties": parties, "alignment": alignment, "target": {"type": "binary"}, "seed": 1})


def _bare_multiplications_per_s() -> float:
    """Measure libsodium's scalar multiplication in one process per core, with nothing else running."""
    cores = os.cpu_count() or 1
    # Not multiprocessing.Pool: it replaces a worker that died, and waits for the lost task for ever.
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
