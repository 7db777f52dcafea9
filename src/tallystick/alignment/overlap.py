"""Count the intersection, by group if asked, and reveal nothing else: neither side learns which ids are common.

    permuting side, P                              comparing side, C
    its ids in a cuckoo table
    t_j for each bin                       <->     s_j for each bin, the same if C has what stands there
    a secret permutation of all bins
    its shares of the permuted s           <->     its shares
    its shares + the permuted t            <->     equal to C's shares? In so many places C has what P has
    the group of each place, permuted      ->      equal places of each group
                                           <-      the counts, if P is to learn them

Garimella, Mohassel, Rosulek, Sadeghian and Singh 2021 ("Private Set Operations from Oblivious Switching"): the permuted
characteristic, whose ones are counted. It is the first part of the union in ``psu_switching``, with hashes of ids instead of
pseudonyms, because no id is shown here.

A simulator that knows a side's ids, the sizes and the counts can produce everything that the side receives.

- P: stores of uniform slots (``programmed``), answers of uniform bits (``shuffle``), corrections of uniform bits, and the counts.
- C: corrections of uniform bits; the number of P's table, 0 except with a chance of 2^-40; function values that are its own in as
  many places as ids are common, and uniform elsewhere; and the group of every place. The permutation is uniform and C learns
  nothing about it, so the equal places and their groups are a uniform arrangement of the counts.

With noise, each side hides its own part of the count from the other. Each side has a pool of made-up ids for every group. Its
owner brings a secret number of them, and the other side brings all of them, so this number is added to the count. The owner
subtracts its own number, and the other side's remains. Junk ids keep the sizes equal to those with the whole pool.

An id that only one side has is counted as common with a chance of 2^-64 per place.

Shapes: M own ids, made-up ones included; G groups; J places of the network.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
import numpy as np

from tallystick.alignment.coin_toss import toss
from tallystick.alignment.exchange import MAX_ROWS, RESERVED, check_ids, exchange_sizes, notify_peers, receive_list, send_list
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import sorted_order
from tallystick.alignment.oprf.codes import fingerprints
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.switching.equality import answer_equal, learn_equal
from tallystick.alignment.switching.network import Bits, Network, route
from tallystick.alignment.switching.places import padded_values, steps_of
from tallystick.alignment.switching.programmed import Bins, program, receive_programmed
from tallystick.alignment.switching.shuffle import permute, share
from tallystick.alignment.switching.transfers import begin_as_receiver, begin_as_sender
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel, Progress, no_progress
from tallystick.network.messages import Message
from tallystick.privacy.events import ApproximateDP
from tallystick.privacy.exact import SequentialBits, draw_geometric

MOST_GROUPS = 64
WHAT = "overlap"
_PLACES = "groups of places"
_NONE = 255
"""The group of a place without an id."""

Counts = np.ndarray[Any, np.dtype[np.int64]]
GroupNumbers = np.ndarray[Any, np.dtype[np.uint8]]


class OverlapGroups(Message, frozen=True):
    """Sent by the permuting side: the names of its groups, at least one."""

    names: Annotated[list[Annotated[str, msgspec.Meta(max_length=200)]], msgspec.Meta(min_length=1, max_length=MOST_GROUPS)]


class OverlapCounts(Message, frozen=True):
    """Sent by the comparing side: how many ids of each group are common.

    The list is empty if the other side is not to learn the counts. -1 is a withheld count.
    """

    counts: Annotated[list[Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)]], msgspec.Meta(max_length=MOST_GROUPS)]


@dataclass(frozen=True, kw_only=True)
class OverlapNoise:
    """Noise on the size of an overlap: what each side learns is (epsilon, delta)-DP for the other side's ids, given their number.

    It is a discrete Laplace number of scale ``moved`` / epsilon (Ghosh, Roughgarden and Sundararajan 2009), drawn in whole
    numbers, and drawn again if beyond ``most``. Both sides know how many ids there are, so neighbours are tables in which one id
    is replaced by another. Delta bounds the chance of the outermost value, in each count that changes.

    Args:
        epsilon: of all counts together.
        delta: the chance that epsilon does not hold.
        groups: G, the number of counts.
    """

    epsilon: float
    delta: float
    groups: int = 1

    @property
    def moved(self) -> int:
        """Return how many counts one replaced id can change by 1: that of the group it leaves, and that of the group
        it enters.
        """
        return min(self.groups, 2)

    @property
    def most(self) -> int:
        """Return the largest noise: the least value that the outermost noise reaches with a chance of at most delta, shared by
        the counts that change.
        """
        return max(1, math.ceil(math.log(self.moved / self.delta) * self.moved / self.epsilon))

    @property
    def event(self) -> ApproximateDP:
        """Return the privacy cost of one answer to a side, for all groups together."""
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, unit="record")

    def draw(self, rng: SecureRandom) -> Counts:
        """Draw noise for each group (G), from -most to most."""
        noise_G, scale = np.empty(self.groups, dtype=np.int64), self.moved / self.epsilon
        for group in range(self.groups):
            while True:
                first, second = draw_geometric(scale, SequentialBits(rng.bytes, rows=1), columns=2)[0].tolist()
                if abs(first - second) <= self.most:
                    break
            noise_G[group] = first - second
        return noise_G


@dataclass(frozen=True, kw_only=True)
class IdGroups:
    """Groups of a side's ids that are counted separately: their names, and the number of each id's group."""

    names: tuple[str, ...]
    number_M: GroupNumbers


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Sizes of the two sides' sets and of their intersection, as this side knows them.

    Args:
        own: ids of this side.
        others: ids of the other.
        groups: their names; a single empty name without groups.
        counts: the common ids of each group, None for a withheld count; None instead of the list if this side does not learn
            them.
    """

    own: int
    others: int
    groups: tuple[str, ...]
    counts: tuple[int | None, ...] | None


@dataclass(frozen=True, kw_only=True)
class OverlapTerms:
    """The terms of a count that both sides agree on.

    Args:
        least: an exact count is withheld if it is below this, or within this of the size of a set.
        noise: if given, noise on every count instead.
        told: whether the permuting side learns the counts as well.
    """

    least: int = 0
    noise: OverlapNoise | None = None
    told: bool = True


def overlap_permuting_side(
    ids: Sequence[bytes],
    channel: Channel,
    *,
    rng: SecureRandom,
    terms: OverlapTerms,
    groups: IdGroups | None = None,
    leads: bool = True,
    max_rows: int = MAX_ROWS,
    progress: Progress = no_progress,
) -> Overlap:
    """Count the common ids with the other side, as the permuting side, which may have groups.

    Threat model: an honest-but-curious peer. Guarantee: under computational Diffie-Hellman on ristretto255, AES-128 as a
    pseudorandom function and as an ideal cipher, and BLAKE2b as a random oracle, a side learns the sizes of both sets, the names
    and sizes of the groups and the counts, nothing more. With noise all counts that a side learns are together (epsilon,
    delta)-DP for the other side's ids, given these sizes. Not protected: exact counts: two counts on sets that differ by one id
    show whether it is common (the comparing side's process sees the exact count even if it is withheld); a peer that lies about
    its ids or deviates.

    Args:
        ids: this side's ids (M), unique.
        channel: to the other side.
        rng: draws keys, the permutation and noise.
        terms: what both sides agree on.
        groups: of this side's ids; by default all are counted together, in one group without a name.
        leads: whether this is the label party, which commits first to its part of a common key.
        max_rows: most ids to accept from the peer, and to have.
        progress: called with how far this side is.

    Raises DataError if a side has no ids or ids repeat, and ProtocolError, which names peer and step, if the peer breaks the
    protocol.
    """
    with notify_peers([channel]):
        own_ids = check_ids(ids, max_rows=max_rows)
        (others,) = exchange_sizes(len(own_ids), [channel], max_rows=max_rows)
        if groups is None:
            groups = IdGroups(names=("",), number_M=np.zeros(len(own_ids), dtype=np.uint8))
        channel.send(OverlapGroups(names=list(groups.names)))
        pool = _Pool.of(terms, len(groups.names), rng=rng, permutes=True)
        print_M16 = fingerprints(Ids.of([*own_ids, *pool.ids]))
        number_M = np.concatenate((groups.number_M, pool.group_K)).astype(np.uint8)
        order_M = sorted_order(print_M16)  # otherwise places would follow the order of the table
        print_M16, number_M = print_M16[order_M], number_M[order_M]
        salt = toss(channel, rng, leads=leads)
        bins = Bins(table_ids=len(print_M16), programmed_ids=others + pool.size)
        network = Network(least=bins.count)
        report = steps_of(progress, bins, network, what=WHAT)
        target_J = rng.permutation(network.size)
        with ThreadPoolExecutor(1) as threads:
            routing = threads.submit(route, network, target_J.astype(np.int32))  # while the other side programs
            table_J, value_J = receive_programmed(channel, print_M16, bins, rng=rng, salt=_of(salt, b"bins"), progress=report)
            choices = routing.result()
        transfers = begin_as_receiver(channel, rng=rng, salt=_of(salt, b"switches"))
        share_J = permute(channel, transfers, network, choices, progress=report)
        share_J[target_J] ^= padded_values(value_J, network, rng)
        answer_equal(channel, share_J, rng=rng, salt=_of(salt, b"equal"), progress=report)
        place_group_J = np.full(network.size, _NONE, dtype=np.uint8)
        filled = np.flatnonzero(table_J >= 0)
        place_group_J[target_J[filled]] = number_M[table_J[filled]]
        send_list(channel, _PLACES, place_group_J)
        received = channel.receive(OverlapCounts).counts
        due = len(groups.names) if terms.told else 0
        size_G = np.bincount(number_M, minlength=len(groups.names))
        if len(received) != due or any(count > size + pool.size for count, size in zip(received, size_G.tolist(), strict=False)):
            raise ProtocolError(
                channel.peer, f"{channel.peer} sent counts {received}, which this side's {due} groups cannot have"
            )
    counts = pool.told(received) if terms.told else None
    return Overlap(own=len(own_ids), others=others, groups=groups.names, counts=counts)


def overlap_comparing_side(
    ids: Sequence[bytes],
    channel: Channel,
    *,
    rng: SecureRandom,
    terms: OverlapTerms,
    leads: bool = False,
    max_rows: int = MAX_ROWS,
    progress: Progress = no_progress,
) -> Overlap:
    """Count the common ids with the other side, as the comparing side. The rest is as for overlap_permuting_side."""
    with notify_peers([channel]):
        own_ids = check_ids(ids, max_rows=max_rows)
        (others,) = exchange_sizes(len(own_ids), [channel], max_rows=max_rows)
        groups = tuple(channel.receive(OverlapGroups).names)
        pool = _Pool.of(terms, len(groups), rng=rng, permutes=False)
        print_M16 = fingerprints(Ids.of([*own_ids, *pool.ids]))
        print_M16 = print_M16[sorted_order(print_M16)]
        salt = toss(channel, rng, leads=leads)
        bins = Bins(table_ids=others + pool.size, programmed_ids=len(print_M16))
        network = Network(least=bins.count)
        report = steps_of(progress, bins, network, what=WHAT)
        value_J = program(channel, print_M16, bins, rng=rng, salt=_of(salt, b"bins"), progress=report)
        transfers = begin_as_sender(channel, rng=rng, salt=_of(salt, b"switches"))
        share_J = share(channel, transfers, network, padded_values(value_J, network, rng), progress=report)
        equal_J = learn_equal(channel, share_J, rng=rng, salt=_of(salt, b"equal"), progress=report)
        group_J = receive_list(channel, _PLACES, network.size)
        size_G = np.bincount(group_J[group_J != _NONE], minlength=len(groups))
        common_G = np.bincount(group_J[equal_J], minlength=len(groups))
        if len(size_G) != len(groups) or size_G.sum() != others + pool.size or len(common_G) != len(groups):
            raise ProtocolError(channel.peer, f"{channel.peer} sent {_PLACES!r} that its {others} ids and its groups cannot have")
        if terms.noise is None:
            is_shown_G: Bits = (
                (common_G >= terms.least) & (size_G - common_G >= terms.least) & (len(own_ids) - common_G.sum() >= terms.least)
            )
            counts = np.where(is_shown_G, common_G, -1).tolist()
        else:
            counts = (common_G - pool.middle).tolist()  # it contains the noise of both sides
        channel.send(OverlapCounts(counts=counts if terms.told else []))
    return Overlap(own=len(own_ids), others=others, groups=groups, counts=pool.told(counts))


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """Made-up ids that a side brings: all of the other side's pool, as many of its own as its noise says, and junk ids as a
    filler.

    Args:
        ids: of both pools, and junk ids.
        group_K: the number of each one's group.
        noise_G: this side's own noise in each group; empty without noise.
        middle: how many ids noise of 0 adds.
    """

    ids: list[bytes]
    group_K: GroupNumbers
    noise_G: Counts
    middle: int

    @classmethod
    def of(cls, terms: OverlapTerms, groups: int, *, rng: SecureRandom, permutes: bool) -> "_Pool":
        """Draw this side's noise, if the terms have noise."""
        if terms.noise is None:
            none = np.empty(0, dtype=np.int64)
            return cls(ids=[], group_K=none.astype(np.uint8), noise_G=none, middle=0)
        noise = replace(terms.noise, groups=groups)
        noise_G, middle, ids = noise.draw(rng), noise.most, list[bytes]()
        for group in range(groups):
            brought = middle + int(noise_G[group])
            ids += [_made_up(not permutes, group, number) for number in range(2 * middle)]
            ids += [_made_up(permutes, group, number) for number in range(brought)]
            ids += [RESERVED + b"junk/" + rng.bytes(16) for _ in range(2 * middle - brought)]
        return cls(ids=ids, group_K=np.repeat(np.arange(groups, dtype=np.uint8), 4 * middle), noise_G=noise_G, middle=2 * middle)

    @property
    def size(self) -> int:
        """Count the made-up ids of a side."""
        return len(self.ids)

    def told(self, counts: Sequence[int]) -> tuple[int | None, ...]:
        """Return the counts as this side learns them: without its own noise, and None for a withheld count."""
        if len(self.noise_G):
            return tuple(count - noise for count, noise in zip(counts, self.noise_G.tolist(), strict=True))
        return tuple(count if count >= 0 else None for count in counts)


def _made_up(permutes: bool, group: int, number: int) -> bytes:
    return RESERVED + b"overlap/%d/%d/%d" % (permutes, group, number)


def _of(salt: bytes, part: bytes) -> bytes:
    """Derive a salt for one part of this run."""
    return blake2b(salt + part, digest_size=32, person=b"tally overlap").digest()
