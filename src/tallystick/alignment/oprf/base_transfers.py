"""Run base oblivious transfers: for each, the sender gets two random seeds, and the receiver the one that it chose.

    receiver, choice c                      sender, key a
                               <-           g^a
    r_(1-c) at random
    r_c = g^b - H(1-c, r_(1-c))    ->       for both j: seed_j = KDF((r_j + H(1-j, r_(1-j)))^a)
    seed_c = KDF((g^a)^b)

Written additively, as ristretto255 is. Shapes: T transfers.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from tallystick.alignment.exchange import attribute_errors, receive_list, send_list
from tallystick.alignment.group import (
    ELEMENT_BYTES,
    Elements,
    add,
    elements_of,
    generated,
    multiply,
    subtract,
)
from tallystick.alignment.randomness import SecureRandom
from tallystick.network.channel import Channel

SEED_BYTES = 16
_KEY = "base transfers: the sender's key"
_CHOICES = "base transfers: the receiver's choices"

Seeds = np.ndarray[Any, np.dtype[np.uint8]]
Choices = np.ndarray[Any, np.dtype[np.bool_]]


def transfer_sender(channel: Channel, transfers: int, *, rng: SecureRandom, context: bytes = b"") -> tuple[Seeds, Seeds]:
    """Return both seeds of every transfer, each (T, 16).

    Endemic oblivious transfer (Masny and Rindal 2019), one key for the whole batch (McQuoid, Rosulek and Roy 2021), on
    ristretto255.

    Threat model: a receiver that deviates as it likes. Guarantee: under computational Diffie-Hellman, with the hashes as random
    oracles, the receiver cannot distinguish one of the two seeds of each transfer from random bytes, and this side learns nothing
    about its choices. Not protected: a receiver may choose the seed that it gets, which does no harm to an extension.

    ``context`` separates these transfers from all others: if a run has two batches, messages of one are useless in the other.

    Raises ProtocolError for another number of elements, for the identity, and for an element that is not canonical.
    """
    key = rng.scalar()
    public_1 = generated([key])
    send_list(channel, _KEY, public_1)
    asked_2T = receive_list(channel, _CHOICES, 2 * transfers, shape=(ELEMENT_BYTES,))
    points_2 = asked_2T[:transfers], asked_2T[transfers:]
    with attribute_errors(channel, _CHOICES):
        shared = [
            multiply(add(points_2[side], _masks(points_2[1 - side], side=1 - side, context=context)), key) for side in (0, 1)
        ]
    first, second = (
        _seeds(shared[side], asked_2T, public_1, side=np.full(transfers, side == 1), context=context) for side in (0, 1)
    )
    return first, second


def transfer_receiver(channel: Channel, choices_T: Choices, *, rng: SecureRandom, context: bytes = b"") -> Seeds:
    """Return the chosen seed of every transfer (T, 16).

    Protocol, threat model and errors as for transfer_sender, but here the sender may deviate.
    """
    public_1 = receive_list(channel, _KEY, 1, shape=(ELEMENT_BYTES,))
    keys = [rng.scalar() for _ in choices_T]
    other_T = elements_of([rng.bytes(64) for _ in choices_T])
    # A mask's hash depends on the side where it is used: that of the other choice.
    of_0, of_1 = (_masks(other_T, side=side, context=context) for side in (0, 1))
    masks_T = np.where(choices_T[:, None], of_0, of_1)
    chosen_T = subtract(generated(keys), masks_T)
    asked_2T = np.concatenate((np.where(choices_T[:, None], other_T, chosen_T), np.where(choices_T[:, None], chosen_T, other_T)))
    send_list(channel, _CHOICES, asked_2T)
    with attribute_errors(channel, _KEY):
        shared_T = np.concatenate([multiply(public_1, key) for key in keys])
    return _seeds(shared_T, asked_2T, public_1, side=choices_T, context=context)


def _masks(elements_T: Elements, *, side: int, context: bytes = b"") -> Elements:
    """Compute H: a group element whose logarithm no one knows, for each transfer and side."""
    return elements_of(
        [
            _hash(b"mask", side.to_bytes(1, "big") + place.to_bytes(4, "big") + element.tobytes() + context, 64)
            for place, element in enumerate(elements_T)
        ]
    )


def _seeds(shared_T: Elements, asked_2T: Elements, public_1: Elements, *, side: Choices, context: bytes) -> Seeds:
    """Derive seeds from the transcript, so that a seed belongs to one transfer, side and run."""
    transcript = _hash(b"transcript", public_1.tobytes() + np.ascontiguousarray(asked_2T).tobytes() + context, 32)
    seeds: Sequence[bytes] = [
        _hash(b"seed", transcript + bytes([chosen]) + place.to_bytes(4, "big") + element.tobytes(), SEED_BYTES)
        for place, (element, chosen) in enumerate(zip(shared_T, side.tolist(), strict=True))
    ]
    return np.frombuffer(b"".join(seeds), dtype=np.uint8).reshape(-1, SEED_BYTES)


def _hash(use: bytes, about: bytes, size: int) -> bytes:
    return blake2b(about, digest_size=size, person=b"ot/" + use).digest()
