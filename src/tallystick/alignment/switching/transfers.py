"""Run oblivious transfers by the million: for each, the sender gets two pads, the receiver the one that its choice c names.

    receiver                                       sender, a secret place p of 16 for each of 32 groups
    16 seeds for each group, of base transfers     the 15 of these that are not at p
    u: sum of the group's 16 streams
    v_i: sum of the streams whose place has bit i  w_i: sum of those known whose place differs from p in bit i
    u + c                                  ->      w_i + p_i (u + c)  =  v_i + p_i c
    row t of all v_i, 128 bits                     row q of all these  =  t + (c and the bits of all p)
    its pad is H(t)                                pads H(q) for choice 0, H(q + the bits of all p) for choice 1

Roy 2022 ("SoftSpokenOT: Quieter OT Extension from Small-Field Silent VOLE in the Minicrypt Model"), without its check against
cheaters; + is exclusive or. It sends a quarter of the bytes of Ishai, Kilian, Nissim and Petrank 2003, whose groups have two
seeds.

H(x) = AES(x) + x under a public key, a new one for every piece. H is correlation robust if AES-128 is an ideal cipher (Guo, Katz,
Wang and Yu 2020, "Efficient and Secure Multiparty Computation from Fixed-Key Block Ciphers"). With 2^80 calls of AES, the chance
of distinguishing a pad from random bits is 2^-31 for a piece of 2^15 transfers. A call is made under one piece's key, so it
reveals nothing about other pieces.

Threat model: honest but curious. Guarantee: the receiver cannot distinguish the other pad from random bits. The sender learns
nothing about the choices, because it lacks one of the streams that make u (AES-128 in counter mode as a pseudorandom generator).
Not protected: a receiver that sends wrong seeds or other sums learns bits of p.

Shapes: G groups; B transfers of a piece; W words of a column.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.alignment.exchange import receive_list, send_list
from tallystick.alignment.oprf.base_transfers import SEED_BYTES, Seeds, transfer_receiver, transfer_sender
from tallystick.alignment.oprf.bit_matrix import Words, turned
from tallystick.alignment.oprf.extension import Streams
from tallystick.alignment.randomness import SecureRandom
from tallystick.network.channel import Channel

GROUP_BITS, GROUPS = 4, 32
TRANSFERS = GROUP_BITS * GROUPS
"""Number of base transfers, and of bits in a row."""
LEAVES = 1 << GROUP_BITS
_SEEDS = "seeds of transfers"
_LEAF_BITS = np.array([[leaf >> bit & 1 for leaf in range(LEAVES)] for bit in range(GROUP_BITS)], dtype=bool)
"""Bit i of each place (4, 16)."""

Bits = np.ndarray[Any, np.dtype[np.bool_]]


class TransferReceiver:
    """The side that chooses. ``seeds`` are all seeds of every group (G * 16, 16)."""

    def __init__(self, seeds: Seeds, *, salt: bytes) -> None:
        self._streams, self._hash = Streams(seeds), _Hash(salt)

    def next_transfers(self, choices_B: Bits) -> tuple[Words, Words]:
        """Return what to send (G, W), and the chosen pads (B, 2)."""
        sum_GW, secret_TW = _summed(self._streams.next_words(len(choices_B)))
        packed = np.zeros(8 * words_of(len(choices_B)), dtype=np.uint8)
        packed[: -(-len(choices_B) // 8)] = np.packbits(choices_B, bitorder="little")
        sum_GW ^= packed.view("<u8")
        return sum_GW, self._hash.next_key(turned(secret_TW)[: len(choices_B)].view("<u8"))[0]


class TransferSender:
    """The side that has both pads. ``seeds`` (G * 16, 16) are ordered by how their place differs from p; the first of 16 is
    unused.
    """

    def __init__(self, seeds: Seeds, place_T: Bits, *, salt: bytes) -> None:
        self._streams, self._hash = Streams(seeds), _Hash(salt)
        self._place_T1 = np.where(place_T[:, None], ~np.uint64(0), np.uint64(0))
        self._place_2 = np.packbits(place_T, bitorder="little").view("<u8")

    def next_transfers(self, correction_GW: Words, transfers: int) -> tuple[Words, Words]:
        """Return the pads of choice 0 and of choice 1 (B, 2)."""
        _, secret_TW = _summed(self._streams.next_words(transfers))
        secret_TW ^= np.repeat(correction_GW, GROUP_BITS, axis=0) & self._place_T1
        rows_B2 = turned(secret_TW)[:transfers].view("<u8")
        first_B2, second_B2 = self._hash.next_key(rows_B2, rows_B2 ^ self._place_2)
        return first_B2, second_B2


def words_of(transfers: int) -> int:
    """Return how many words a column of this many transfers has."""
    return -(-transfers // 64)


def begin_as_receiver(channel: Channel, *, rng: SecureRandom, salt: bytes) -> TransferReceiver:
    """Run the base transfers, as the side that will choose."""
    first, second = transfer_sender(channel, TRANSFERS, rng=rng, context=salt)
    leaves_GL16 = np.frombuffer(rng.bytes(GROUPS * LEAVES * SEED_BYTES), dtype=np.uint8).reshape(GROUPS, LEAVES, SEED_BYTES)
    # The pad of one bit value of a place opens all seeds whose place has that bit.
    pads_2T = np.stack((_leaf_pads(first), _leaf_pads(second)))
    pads_TL16 = np.where(np.tile(_LEAF_BITS, (GROUPS, 1))[:, :, None], pads_2T[1], pads_2T[0])
    closed_TL16 = pads_TL16 ^ np.repeat(leaves_GL16, GROUP_BITS, axis=0)
    send_list(channel, _SEEDS, closed_TL16.reshape(-1, SEED_BYTES))
    return TransferReceiver(leaves_GL16.reshape(-1, SEED_BYTES), salt=salt)


def begin_as_sender(channel: Channel, *, rng: SecureRandom, salt: bytes) -> TransferSender:
    """Run the base transfers, as the side that will have both pads.

    Raises ProtocolError for messages of other sizes.
    """
    place_T = np.unpackbits(np.frombuffer(rng.bytes(TRANSFERS // 8), dtype=np.uint8)).astype(bool)
    pads_TL16 = _leaf_pads(transfer_receiver(channel, ~place_T, rng=rng, context=salt))
    closed = receive_list(channel, _SEEDS, TRANSFERS * LEAVES, shape=(SEED_BYTES,))
    opened_GBL = (pads_TL16 ^ closed.reshape(TRANSFERS, LEAVES, SEED_BYTES)).reshape(GROUPS, GROUP_BITS, LEAVES, SEED_BYTES)
    seeds_GL16 = np.zeros((GROUPS, LEAVES, SEED_BYTES), dtype=np.uint8)
    weights = 1 << np.arange(GROUP_BITS)
    for group, place_B in enumerate(place_T.reshape(GROUPS, GROUP_BITS)):
        place = int(weights @ place_B)
        for apart in range(1, LEAVES):
            bit = (apart & -apart).bit_length() - 1
            seeds_GL16[group, apart] = opened_GBL[group, bit, place ^ apart]
    return TransferSender(seeds_GL16.reshape(-1, SEED_BYTES), place_T, salt=salt)


def _leaf_pads(seeds_T16: Seeds) -> Seeds:
    """Expand each base transfer's seed to a pad for each place of its group (T, 16, 16)."""
    return Streams(seeds_T16).next_words(8 * SEED_BYTES * LEAVES).view(np.uint8).reshape(TRANSFERS, LEAVES, SEED_BYTES)


def _summed(streams: Words) -> tuple[Words, Words]:
    """Return the sum of each group's streams (G, W), and, for every bit, of those whose place has that bit (G * 4, W)."""
    rows_GLW = streams.reshape(GROUPS, LEAVES, -1)
    sums_TW = np.empty((GROUPS, GROUP_BITS, rows_GLW.shape[2]), dtype=np.uint64)
    for bit in reversed(range(GROUP_BITS)):
        with_bit = rows_GLW[:, 1 << bit :]
        np.bitwise_xor.reduce(with_bit, axis=1, out=sums_TW[:, bit])
        rows_GLW = rows_GLW[:, : 1 << bit] ^ with_bit
    return rows_GLW[:, 0].copy(), sums_TW.reshape(TRANSFERS, -1)


class _Hash:
    """H, under a new key for each piece. Both sides derive the same key."""

    def __init__(self, salt: bytes) -> None:
        self._salt, self._pieces = salt, 0

    def next_key(self, *inputs: Words) -> list[Words]:
        """Hash rows (B, 2), all under the next piece's key."""
        key = blake2b(self._pieces.to_bytes(8, "big") + self._salt, digest_size=16, person=b"tallystick pads").digest()
        self._pieces += 1
        encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - single blocks, as a permutation
        pads = []
        for rows_B2 in inputs:
            pad_B2 = np.frombuffer(encryptor.update(rows_B2.view(np.uint8).reshape(-1).data), dtype="<u8").reshape(-1, 2)
            pads.append(pad_B2 ^ rows_B2)
        return pads
