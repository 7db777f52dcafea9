"""Unite sets of ids privately by oblivious switching: pseudonyms that each side can make of its own ids only, and their union.

    side with fewer ids, S                         the other side, R
    a pseudonym of every own id            <->     the same: equal for equal ids, and random to whoever lacks the id
    its pseudonyms in a cuckoo table
    t_j for each bin                       <->     s_j for each bin, the same if R has what stands there
    a secret permutation of all bins
    its shares of the permuted s           <->     its shares
    its shares + the permuted t            <->     equal to R's shares? In so many places R has what S has
                                           <-      so the union's size, at which both may stop
    S's pseudonyms in that order,          <->     those that R lacks, and 0 for an empty bin: R takes nothing
    one transfer for each                          where the values were equal
    universal ids                          <-      all pseudonyms, sorted

Garimella, Mohassel, Rosulek, Sadeghian and Singh 2021 ("Private Set Operations from Oblivious Switching"), private-ID: pseudonyms
by pseudorandom functions in both directions, and the union of these, which both learn. A pseudonym is half of a tag of
``psi_malicious``: a hash of the id and of both sides' functions of it. The rest is in ``switching``.

A simulator that knows only a side's ids and secrets and the sizes can produce everything that the side receives.

- Both sides, for the pseudonyms: base transfers, corrections and checks that are uniform or made from uniform data
  (``psi_malicious``). A pseudonym of an id that a side lacks is an output of a random oracle at a point of which the side lacks
  128 bits.
- S: stores of uniform slots (``programmed``), answers of uniform bits (``shuffle``), corrections of uniform bits for the equality
  and for the transfers; the union's size; and its own pseudonyms among random ones, sorted. t is uniform whether or not R has the
  id in a bin, so nothing before the sorted list depends on R's ids.
- R: corrections of uniform bits for stores, switches and transfers, and the number of S's table, 0 except with a chance of 2^-40.
  Then function values, which are its own in as many places as ids are common and uniform elsewhere. Elsewhere it takes random
  pseudonyms, or 0 from an empty bin. The permutation is uniform and R learns nothing about it, so all of these places are
  shuffled.

Equality is not decided by S's shares in the clear, or by their hashes: R could compute s_j + t_j for the three bins of every
pseudonym that it takes, and so learn which bins hold them.

Each switch takes one oblivious transfer: 26 million for a million ids. Pseudonyms are tags of ``psi_malicious``, so even a side
that deviates learns nothing about ids that it did not bring.

Two ids share a pseudonym with a chance below 2^-74 for 50 million ids on either side. A 64-bit value that should differ from the
other side's equals it with a chance of 2^-64 per place: below 2^-40 for 10^7 ids on either side, below 2^-37.9 for 50 million. An
id that only one side has then counts as common, and is missing from the union.

Shapes: M own ids; N ids of the union; J places of the network.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import numpy as np

from tallystick.alignment import union
from tallystick.alignment.exchange import send_list, send_size
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import TAG_BYTES, Tags, repeated, sorted_order
from tallystick.alignment.oprf.codes import CODE_BITS
from tallystick.alignment.oprf.linear_code import COLUMNS
from tallystick.alignment.pairwise import LocalOptions, Side
from tallystick.alignment.psi_malicious import pseudonyms
from tallystick.alignment.switching.delivery import receive_hidden_rows, send_hidden_rows
from tallystick.alignment.switching.equality import answer_equal, learn_equal
from tallystick.alignment.switching.network import Network, route
from tallystick.alignment.switching.places import padded_values, steps_of
from tallystick.alignment.switching.programmed import Bins, program, receive_programmed
from tallystick.alignment.switching.shuffle import permute, share
from tallystick.alignment.switching.transfers import TRANSFERS, begin_as_receiver, begin_as_sender
from tallystick.alignment.union import UIDS, WHAT, Named, UnionSide
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel

MULTIPLICATIONS = 4 * COLUMNS + 4 * CODE_BITS + 4 * TRANSFERS + 3
"""Scalar multiplications of the base transfers of either side. Each of the three batches that it sends takes a key."""
_MERGED = "merged union"
_HIDDEN = "hidden pseudonyms"


def permute_by_switching(members: Sequence[bytes], others: int, channel: Channel, side: UnionSide) -> Named:
    """Assign every id of the union a universal id, as the side with fewer ids, S, which permutes.

    Threat model: an honest-but-curious peer. Guarantee: under computational Diffie-Hellman on ristretto255, AES-128 as a
    pseudorandom function and (under public keys, for the transfers of switches) as an ideal cipher, and BLAKE2b as a random
    oracle, a side learns the sizes of both sets and of the intersection and the positions of its own ids, nothing more. Not
    protected: a peer that deviates can learn which ids are common.

    Raises DataError if the sizes reveal who is in the intersection; ProtocolError, which names peer and step, if the peer breaks
    the protocol.
    """
    rng, own = side.rng, len(members)
    own_M16, salt = _pseudonyms(members, others, channel, side)
    bins = Bins(table_ids=own, programmed_ids=others)
    network = Network(least=bins.count)
    report = steps_of(side.progress, bins, network, what=WHAT)
    target_J = rng.permutation(network.size)
    with ThreadPoolExecutor(1) as pool:
        routing = pool.submit(route, network, target_J.astype(np.int32))  # while the other side programs
        table_J, value_J = receive_programmed(channel, own_M16, bins, rng=rng, salt=_of(salt, b"bins"), progress=report)
        choices = routing.result()
    transfers = begin_as_receiver(channel, rng=rng, salt=_of(salt, b"switches"))
    shares_J = permute(channel, transfers, network, choices, progress=report)
    del choices
    shares_J[target_J] ^= padded_values(value_J, network, rng)
    answer_equal(channel, shares_J, rng=rng, salt=_of(salt, b"equal"), progress=report)

    size = union.receive_union(channel, _MERGED, own, others)
    union.check_union(size, own, others, channel.peer)
    hidden_J16 = np.zeros((network.size, TAG_BYTES), dtype=np.uint8)
    filled_M = np.flatnonzero(table_J >= 0)
    hidden_J16[target_J[filled_M]] = own_M16[table_J[filled_M]]
    send_hidden_rows(channel, begin_as_sender(channel, rng=rng, salt=_of(salt, b"rows")), hidden_J16)
    uids_N16 = union.receive_uids(channel, size)
    position_M = union.places(own_M16, uids_N16, channel, UIDS)
    return Named(uids_N16=uids_N16, position_M=position_M, multiplications=MULTIPLICATIONS)


def merge_by_switching(members: Sequence[bytes], others: int, channel: Channel, side: UnionSide) -> Named:
    """Assign every id of the union a universal id, as the side with more ids, R, which merges.

    Protocol, threat model, guarantee and errors as for permute_by_switching.
    """
    rng, own = side.rng, len(members)
    own_M16, salt = _pseudonyms(members, others, channel, side)
    bins = Bins(table_ids=others, programmed_ids=own)
    network = Network(least=bins.count)
    report = steps_of(side.progress, bins, network, what=WHAT)
    value_J = program(channel, own_M16, bins, rng=rng, salt=_of(salt, b"bins"), progress=report)
    transfers = begin_as_sender(channel, rng=rng, salt=_of(salt, b"switches"))
    shares_J = share(channel, transfers, network, padded_values(value_J, network, rng), progress=report)
    equal_J = learn_equal(channel, shares_J, rng=rng, salt=_of(salt, b"equal"), progress=report)

    common = int(equal_J.sum())
    if common > others:
        raise ProtocolError(channel.peer, f"{channel.peer} has {others} ids, but values for {common} that are this side's, too")
    size = own + others - common
    send_size(channel, _MERGED, size)
    union.check_union(size, own, others, channel.peer)
    hidden_J16 = receive_hidden_rows(channel, begin_as_receiver(channel, rng=rng, salt=_of(salt, b"rows")), equal_J)
    taken_K16 = hidden_J16[~equal_J]
    merged_N16 = np.concatenate((own_M16, taken_K16[taken_K16.any(axis=1)]))
    if len(merged_N16) != size:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} sent {len(merged_N16) - own} {_HIDDEN!r} that this side lacks, where {size - own} are due",
        )
    if count := repeated(merged_N16):
        raise ProtocolError(channel.peer, f"{channel.peer} sent, among {_HIDDEN!r}, {count} duplicates; its ids must be unique")
    order_N = sorted_order(merged_N16)
    send_list(channel, UIDS, merged_N16[order_N])
    rank_N = np.empty(size, dtype=np.int64)
    rank_N[order_N] = np.arange(size)
    return Named(uids_N16=merged_N16[order_N], position_M=rank_N[:own], multiplications=MULTIPLICATIONS)


def _pseudonyms(members: Sequence[bytes], others: int, channel: Channel, side: UnionSide) -> tuple[Tags, bytes]:
    """Return the pseudonym of every own id (M, 16), and a salt that neither side chose alone."""

    def progress(_: str, completed: int, total: int) -> None:
        side.progress(UIDS, completed, total)

    no_prints = np.empty((0, TAG_BYTES), dtype=np.uint8)
    local = LocalOptions(threads=side.threads, progress=progress)
    of = Side(unsorted=Ids.of(members), row_N=np.arange(len(members)), prints_N16=no_prints, rng=side.rng, local=local)
    return pseudonyms(of, channel, others, leads=side.label)


def _of(salt: bytes, part: bytes) -> bytes:
    """Derive a salt for one part of this run."""
    return blake2b(salt + part, digest_size=32, person=b"tallystick union").digest()
