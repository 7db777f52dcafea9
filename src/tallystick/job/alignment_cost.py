"""Estimate the time and traffic of an alignment by a short trial of the contract's protocol on made-up ids, in this process."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tallystick.alignment.choice import sooner
from tallystick.alignment.exchange import MAX_ROWS
from tallystick.alignment.ids import Ids
from tallystick.alignment.linkages import AlignmentInput
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.network.channel import memory_channels
from tallystick.network.line_speed import MeasuredLine

MANY_IDS = 50_000
"""With fewer ids, an alignment is over before anybody asks."""
LINK_BYTES_PER_S = 12.5e6
_HASHED, _MULTIPLIED = (1_000, 21_000), (50, 450)
"""Ids of the two trials. Their difference gives the cost of an id: of hashing, and of multiplying in the group."""
_WARMS = 5
"""Ids of a trial before these. It loads the libraries of the protocol, and is not counted."""


@dataclass(frozen=True, kw_only=True)
class _Cost:
    cpu_seconds: float
    sent_bytes: float


def alignment_cost(contract: Contract, ids: int) -> str | None:
    """Say what aligning this many ids with as many of another party will take. Return None for few ids, or if a helper does the
    work.

    Nothing is sent. The trial runs both roles here, so the estimate holds if the other side's machine is like this one.
    """
    linkage = contract.linkage
    if ids < MANY_IDS or contract.helper is not None or linkage.similar:
        return None
    hashes = linkage.protocols and contract.alignment.protocol != "diffie-hellman"
    sizes = _HASHED if hashes else _MULTIPLIED
    _trial(contract, _WARMS, hashes=hashes)
    few, many = (_trial(contract, size, hashes=hashes) for size in sizes)
    work = [
        size * (math.log2(size) if hashes and linkage.imputes else 1) for size in (*sizes, ids)
    ]  # a union has n log n switches
    share = (work[2] - work[0]) / (work[1] - work[0])
    seconds = few.cpu_seconds + share * (many.cpu_seconds - few.cpu_seconds)
    if many.cpu_seconds <= few.cpu_seconds:  # something else disturbed the small trial: use the large one alone
        seconds = many.cpu_seconds * ids / sizes[1]
    message_bytes = few.sent_bytes + share * (many.sent_bytes - few.sent_bytes)
    return (
        f"with {ids} ids on the other side, too: about {seconds:.2g} s of processor time of both sides together, if its machine "
        f"is like this one, and {message_bytes / 1e6:.2g} MB of messages ({message_bytes / LINK_BYTES_PER_S:.2g} s at 100 Mbit/s)"
    )


def line_note(contract: Contract, ids: int, *, round_trip_s: float) -> str:
    """Say how long a round trip to a peer takes, and which protocol ``auto`` chooses for these numbers of ids."""
    far = f"a round trip takes some {1000 * round_trip_s:.2g} ms"
    alignment = contract.alignment
    plain = alignment.method == "intersection" and alignment.protocol == "auto" and alignment.security != "malicious"
    if not plain or not ids or len(contract.feature_parties) > 1:
        return far
    protocol = sooner(ids, ids, MeasuredLine(round_trip_s=round_trip_s, bytes_per_s=LINK_BYTES_PER_S))
    return f"{far}: with as many ids there, and at 100 Mbit/s, alignment.protocol: auto takes {protocol} (a run measures both)"


def _trial(contract: Contract, ids: int, *, hashes: bool) -> _Cost:
    """Align this many made-up ids with as many, half of them common."""
    linkage = contract.linkage
    ends = memory_channels("label", "feature")
    started = time.process_time()
    with ThreadPoolExecutor(2) as pool:
        roles = zip((linkage.label_party, linkage.feature_party), ends, (0, ids // 2), strict=True)
        running = [
            pool.submit(
                role,
                AlignmentInput(
                    ids=Ids.of([b"made up %d" % number for number in range(first, first + ids)]),
                    peers=[end],
                    rng=SecureRandom(),
                    max_rows=MAX_ROWS,
                    protocol="oblivious-transfer" if hashes else "diffie-hellman",
                    local=LocalOptions(threads=1),
                ),
            )
            for role, end, first in roles
        ]
        for each in running:
            each.result()
    bytes_sent = sum(end.traffic.bytes_sent for end in ends)
    return _Cost(cpu_seconds=time.process_time() - started, sent_bytes=bytes_sent)
