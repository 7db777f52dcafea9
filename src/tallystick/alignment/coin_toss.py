"""Toss for a random key that neither side can choose, or influence by waiting for the other side's half.

    label party                                    feature party
    a hash of its coin                     ->
                                           <-      its coin
    its coin                               ->      is it that of the hash?
    key: a hash of both coins                      the same

Guarantee: with BLAKE2b as a random oracle, a side that deviates can stop when it sees the result, and can do nothing else.
"""

from hashlib import blake2b
from typing import Annotated

import msgspec

from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

COIN_BYTES = 32


class CoinCommitment(Message, frozen=True):
    """The label party's hash of its coin, sent before it sees the feature party's coin."""

    digest: Annotated[bytes, msgspec.Meta(min_length=COIN_BYTES, max_length=COIN_BYTES)]


class Coin(Message, frozen=True):
    """A coin that its side committed to by a hash, or the feature party's half of a toss."""

    coin: Annotated[bytes, msgspec.Meta(min_length=COIN_BYTES, max_length=COIN_BYTES)]


def toss(channel: Channel, rng: SecureRandom, *, leads: bool) -> bytes:
    """Return a key (32 bytes) made from both sides' coins. With ``leads``, act as the label party, which commits to its coin
    first.

    Raises ProtocolError if the label party shows another coin than it had committed to.
    """
    own = rng.bytes(COIN_BYTES)
    if leads:
        channel.send(CoinCommitment(digest=_derived(own, b"coin")))
        their_coin = channel.receive(Coin).coin
        channel.send(Coin(coin=own))
        return _derived(own + their_coin, b"salt")
    promised = channel.receive(CoinCommitment).digest
    channel.send(Coin(coin=own))
    their_coin = channel.receive(Coin).coin
    if _derived(their_coin, b"coin") != promised:
        raise ProtocolError(channel.peer, f"{channel.peer} sent another coin than it had committed to before it saw this side's")
    return _derived(their_coin + own, b"salt")


def _derived(about: bytes, use: bytes) -> bytes:
    return blake2b(about, digest_size=COIN_BYTES, person=b"tally/" + use).digest()
