"""Define the sides of a computation on shares: parties, each with a share, and the helper, who deals randomness.

Beaver 1997, "Commodity-based cryptography": a helper deals correlated randomness. It receives no data and sends nothing that
depends on data. Here each party draws its part from its own seed, and tells the helper the seed. The helper repeats the draws,
and sends the label party a correction. A feature party uses its draws without a correction.

Feature parties have no connection to each other. If there are several, the label party adds up the others' words and passes the
sum on: each feature party sees the sum of all others' words, as if they were one party.

Threat model: all sides follow the protocol, and the helper works with no party. Guarantee: even if all other parties work
together, what they receive is uniform and independent of a party's inputs, if AES-256 in counter mode is a pseudorandom
generator. Not protected: a helper that works with one party has the others' columns, labels and weights, now or later from the
seeds. A party that deviates can change results and read others' data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallystick.network.channel import Channel
from tallystick.secret_sharing.ring import MaskStream, Words
from tallystick.secret_sharing.share_messages import (
    Correction,
    MaskSeed,
    WordsMessage,
    receive_seed,
    receive_words,
    send_words,
)

Places = Sequence[NDArray[np.int64]]
"""For each party, the label party first, places along an axis."""


@dataclass(frozen=True, kw_only=True)
class ShareHolder:
    """One of the parties.

    Args:
        place: 0 for the label party, then the feature parties in order. A feature party's shares of dealt numbers are its
            draws.
        peers: to the feature parties in order; at a feature party to the label party alone.
        helper: to the helper.
        masks: the stream of its draws.
    """

    place: int
    peers: Sequence[Channel]
    helper: Channel
    masks: MaskStream

    @classmethod
    def begin(cls, peers: Sequence[Channel], helper: Channel, *, place: int, seed: bytes) -> "ShareHolder":
        """Send the helper the seed of this session's masks, and begin.

        Args:
            peers: to the feature parties in order; at a feature party to the label party alone.
            helper: to the helper.
            place: 0 for the label party, then the feature parties in order.
            seed: 32 bytes from the operating system's generator, for this session alone.
        """
        helper.send(MaskSeed(seed=seed))
        return cls(place=place, peers=peers, helper=helper, masks=MaskStream(seed))

    @property
    def is_label(self) -> bool:
        """Tell whether this is the label party."""
        return self.place == 0

    def exchange(
        self,
        kind: type[WordsMessage],
        words: Words,
        *,
        shown: Places | None = None,
        seen: Places | None = None,
        axis: int = 0,
        bits: int = 64,
    ) -> Words:
        """Send own words to the other parties, and return the sum of theirs.

        Args:
            kind: of the messages.
            words: this party's; along the axis only the places that it shows.
            shown: the places along the axis that each party shows; all by default.
            seen: the places that each party sees; all by default.
            axis: of the places.
            bits: the words are summed modulo 2^bits.
        """
        if len(self.peers) == 1:  # it sees exactly these words
            send_words(self.peers[0], kind, words)
            return receive_words(self.peers[0], kind, *_shape(words, seen[self.place] if seen is not None else None, axis))
        lowest = np.uint64((1 << bits) - 1)
        received = [
            receive_words(peer, kind, *_shape(words, shown[place] if shown is not None else None, axis))
            for place, peer in enumerate(self.peers, start=1)
        ]
        if shown is None or seen is None:
            total = words + _sum(received)
            for peer, theirs in zip(self.peers, received, strict=True):
                send_words(peer, kind, (total - theirs) & lowest)
            return _sum(received) & lowest
        whole = 1 + max(int(places.max(initial=-1)) for places in (*shown, *seen))
        spread = [_spread(each, places, axis, whole) for each, places in zip((words, *received), shown, strict=True)]
        total = _sum(spread)
        for place, peer in enumerate(self.peers, start=1):
            send_words(peer, kind, np.take(total - spread[place], seen[place], axis=axis) & lowest)
        return np.take(_sum(spread[1:]), seen[0], axis=axis) & lowest

    def exchange_each(self, kind: type[WordsMessage], words: Words, shapes: Sequence[tuple[int, ...]]) -> list[Words]:
        """Send each peer its words, and return each peer's, of these shapes: between the label party and each feature party."""
        for peer in self.peers:
            send_words(peer, kind, words)
        return [receive_words(peer, kind, *shape) for peer, shape in zip(self.peers, shapes, strict=True)]

    def open(self, kind: type[WordsMessage], share: Words, *, bits: int = 64) -> Words:
        """Send a share to all, and return the sum of all shares modulo 2^bits. The shared value must be masked."""
        opened: Words = (share + self.exchange(kind, share, bits=bits)) & np.uint64((1 << bits) - 1)
        return opened

    def correction(self, *shape: int) -> Words:
        """Receive the next correction."""
        return receive_words(self.helper, Correction, *shape)


def _sum(each: Sequence[Words]) -> Words:
    total: Words = np.stack(each).sum(axis=0, dtype=np.uint64)
    return total


def _shape(words: Words, places: NDArray[np.int64] | None, axis: int) -> tuple[int, ...]:
    """Return the shape that words would have with these places along the axis."""
    shape = list(words.shape)
    if places is not None:
        shape[axis] = len(places)
    return tuple(shape)


def _spread(words: Words, places: NDArray[np.int64], axis: int, whole: int) -> Words:
    """Put words at their places along an axis, and 0 elsewhere."""
    shape = list(words.shape)
    shape[axis] = whole
    spread = np.zeros(shape, dtype=np.uint64)
    np.moveaxis(spread, axis, 0)[places] = np.moveaxis(words, axis, 0)
    return spread


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A party, as the helper sees it: its channel, and its masks."""

    channel: Channel
    masks: MaskStream

    @classmethod
    def begin(cls, channel: Channel) -> "Dealt":
        """Receive the party's seed."""
        return cls(channel=channel, masks=MaskStream(receive_seed(channel)))

    def correct(self, words: Words) -> None:
        """Send the next correction."""
        send_words(self.channel, Correction, words)


@dataclass(frozen=True, kw_only=True)
class Dealer:
    """The helper's view of all parties, the label party first."""

    parties: Sequence[Dealt]

    @classmethod
    def begin(cls, label: Channel, features: Sequence[Channel]) -> "Dealer":
        """Receive all seeds."""
        return cls(parties=[Dealt.begin(channel) for channel in (label, *features)])

    @property
    def label(self) -> Dealt:
        """Return the label party."""
        return self.parties[0]

    @property
    def features(self) -> Sequence[Dealt]:
        """Return the feature parties."""
        return self.parties[1:]


def draw_dealt(side: ShareHolder, *shape: int) -> Words:
    """Return own shares of what the helper deals next: a feature party draws them, and the label party receives a correction."""
    return side.correction(*shape) if side.is_label else side.masks.draw(*shape)


def deal(dealer: Dealer, words: Words, *, among: Sequence[Dealt] | None = None) -> None:
    """Deal shares of these words to the label party and to all or some feature parties."""
    for each in dealer.features if among is None else among:
        words = words - each.masks.draw(*words.shape)
    dealer.label.correct(words)
