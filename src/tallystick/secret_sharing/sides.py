"""The three sides of a computation on shares: two parties that hold a share each, and the helper that deals randomness.

Beaver 1997, "Commodity-based cryptography": a helper deals correlated randomness, receives no data and sends nothing that depends
on any. Here each party draws its part of it from a seed of its own, and tells the helper the seed. The helper repeats the draws
and sends what they lack.

Threat model: all three follow the protocol, and the helper works with neither party. Guarantee: what a party receives is uniform
and independent of the other's inputs, as long as AES-256 in counter mode is a pseudorandom generator. Not protected: a helper
that works with one party has the other's columns, labels and weights, now or later from the seeds; a party that deviates can
change results, and read what it should not.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class ShareHolder:
    """One of the two parties.

    Args:
        is_label: whether it is the label party; of dealt numbers the feature party's shares are its own draws.
        peer: to the other party.
        helper: to the helper.
        masks: what it draws.
    """

    is_label: bool
    peer: Channel
    helper: Channel
    masks: MaskStream

    @classmethod
    def begin(cls, peer: Channel, helper: Channel, *, is_label: bool, seed: bytes) -> "ShareHolder":
        """Tell the helper the seed of this session's masks, and begin.

        Args:
            peer: to the other party.
            helper: to the helper.
            is_label: whether this is the label party.
            seed: 32 bytes from the operating system's generator, for this session alone.
        """
        helper.send(MaskSeed(seed=seed))
        return cls(is_label=is_label, peer=peer, helper=helper, masks=MaskStream(seed))

    def exchange(self, kind: type[WordsMessage], words: Words, shape: tuple[int, ...] | None = None) -> Words:
        """Send words and receive the other's, of the same shape unless another is given."""
        send_words(self.peer, kind, words)
        return receive_words(self.peer, kind, *(words.shape if shape is None else shape))

    def open(self, kind: type[WordsMessage], share: Words) -> Words:
        """Send a share and return the sum with the other's: whatever this hides must be masked."""
        return share + self.exchange(kind, share)

    def correction(self, *shape: int) -> Words:
        """Receive the next correction."""
        return receive_words(self.helper, Correction, *shape)


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A party as the helper has it: the channel, and its masks."""

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
    """The helper's two parties."""

    label: Dealt
    feature: Dealt

    @classmethod
    def begin(cls, label: Channel, feature: Channel) -> "Dealer":
        """Receive both seeds."""
        return cls(label=Dealt.begin(label), feature=Dealt.begin(feature))

    @property
    def both(self) -> tuple[tuple[Dealt, Dealt], tuple[Dealt, Dealt]]:
        """Return each party with the other one."""
        return (self.label, self.feature), (self.feature, self.label)


def draw_dealt(side: ShareHolder, *shape: int) -> Words:
    """Return this party's shares of what the helper deals next: the feature party draws its own, and the label party gets the
    rest.
    """
    return side.correction(*shape) if side.is_label else side.masks.draw(*shape)


def deal(dealer: Dealer, words: Words) -> None:
    """Deal shares of these words."""
    dealer.label.correct(words - dealer.feature.masks.draw(*words.shape))
