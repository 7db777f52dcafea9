"""Define the messages of a head on shares. Every word in them is uniform, whatever it hides. Shapes: R rows, D columns, B
batch.
"""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message
from tallystick.secret_sharing.ring import SEED_BYTES, Words

MOST_FEATURES = 1 << 16
_MOST_ROWS = 1 << 31
MOST_PARTIES = 64


class MaskSeed(Message, frozen=True):
    """Party to helper: the seed of this party's masks in this session."""

    seed: bytes


class MaskedFeatures(Message, frozen=True):
    """Party to party: some rows (R, D) of its features, each number minus a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedWeights(Message, frozen=True):
    """Party to party: its shares of weights (D, C), or the label party's weight decay (1, 1), minus a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedScores(Message, frozen=True):
    """Party to party: its shares (B, C) of a batch's scores, plus a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedErrors(Message, frozen=True):
    """Party to party, masked: its shares of a batch's errors (B, C), or the label party's row weights (B, 1)."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedSteps(Message, frozen=True):
    """Party to party: its shares (D, C) of the weights' next step, plus a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class ScoreShares(Message, frozen=True):
    """Feature party to label party: its shares (B, C) of final scores, with which the label party computes the scores."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class EdgeShares(Message, frozen=True):
    """Feature party to label party: its share (1, 1) of how often training scores came near the edge of the range."""

    words: Array


class UnscoredRows(Message, frozen=True):
    """Label party to feature party: which common rows of a prediction (N,) have no score yet. Only these are scored."""

    limit = MAX_MESSAGE_BYTES
    rows: Array


class SharesKept(Message, frozen=True):
    """Between label party and feature party: whether the sender, or all others, have saved their shares of the due scores."""

    kept: bool


class Correction(Message, frozen=True):
    """Helper to party: the difference between this party's masks and its shares of a product, of a truncated number, or of
    sines.
    """

    limit = MAX_MESSAGE_BYTES
    words: Array


WordsMessage: TypeAlias = (
    MaskedFeatures | MaskedWeights | MaskedScores | MaskedErrors | MaskedSteps | EdgeShares | ScoreShares | Correction
)


def send_words(channel: Channel, kind: type[WordsMessage], words: Words) -> None:
    """Send words in a message of this kind."""
    channel.send(kind(words=Array.of(words.view(np.int64))))


def receive_words(channel: Channel, kind: type[WordsMessage], *shape: int) -> Words:
    """Receive words. Raises ProtocolError for an unexpected shape or type."""
    array = channel.receive(kind).words
    try:
        words = array.numpy(*shape)
        if words.dtype != np.int64:
            raise MalformedMessage(f"array has type {words.dtype}, expected int64")
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{channel.peer}: {kind.__name__}: {error}") from None
    return words.view(np.uint64)


def receive_seed(channel: Channel) -> bytes:
    """Receive a party's seed. Raises ProtocolError for a wrong length."""
    seed = channel.receive(MaskSeed).seed
    if len(seed) != SEED_BYTES:
        raise ProtocolError(channel.peer, f"{channel.peer} sent a seed of {len(seed)} bytes; {SEED_BYTES} are due")
    return seed


class FeatureCount(Message, frozen=True):
    """Feature party to label party: how many features it brings."""

    columns: int


class FeatureCounts(Message, frozen=True):
    """Label party to feature party: how many features each party brings, itself first, and whether rows have weights."""

    columns: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_PARTIES)]
    weighted: bool


class HeadSizes(Message, frozen=True):
    """Party to helper: the sizes of what it has to deal. All parties send the same."""

    training: int
    scored: int
    columns: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_PARTIES)]
    outputs: int
    weighted: bool


def exchange_counts_label_party(peers: Sequence[Channel], own: int, *, weighted: bool) -> FeatureCounts:
    """Receive each feature party's number of features, and send all numbers to all. Raises ProtocolError for a wrong number."""
    columns = [own]
    for peer in peers:
        columns.append(peer.receive(FeatureCount).columns)
        _check_count(peer, peer.peer, columns[-1])
    counts = FeatureCounts(columns=tuple(columns), weighted=weighted)
    for peer in peers:
        peer.send(counts)
    return counts


def exchange_counts_feature_party(peer: Channel, own: int, *, place: int, parties: int) -> FeatureCounts:
    """Send this party's number of features, and receive all parties' numbers. Raises ProtocolError for a wrong number.

    Args:
        peer: the label party.
        own: this party's number of features.
        place: of this party among all parties with features.
        parties: number of parties with features.
    """
    peer.send(FeatureCount(columns=own))
    counts = peer.receive(FeatureCounts)
    if len(counts.columns) != parties or counts.columns[place] != own:
        raise ProtocolError(
            peer.peer,
            f"{peer.peer} says that the {parties} parties of a head on shares bring {counts.columns} features, and this party "
            f"brings {own}",
        )
    for count in counts.columns:
        _check_count(peer, f"{peer.peer} says that a party", count)
    return counts


def _check_count(peer: Channel, who: str, count: int) -> None:
    if not 1 <= count <= MOST_FEATURES:
        raise ProtocolError(peer.peer, f"{who} brings {count} features to a head on shares; 1 to {MOST_FEATURES:,} are allowed")


def receive_sizes(label: Channel, features: Sequence[Channel]) -> HeadSizes:
    """Receive all parties' sizes, as the helper. Raises ProtocolError if they differ, or are larger than any table."""
    sizes, *others = (channel.receive(HeadSizes) for channel in (label, *features))
    for channel, other in zip(features, others, strict=True):
        if other != sizes:
            raise ProtocolError(
                channel.peer, f"{channel.peer} and {label.peer} want other shares of the helper: {other} and {sizes}"
            )
    if len(sizes.columns) != 1 + len(features):
        raise ProtocolError(label.peer, f"{label.peer} asks for shares of {sizes}, and there are {1 + len(features)} parties")
    rows = sizes.training, sizes.scored
    if not (all(1 <= each <= MOST_FEATURES for each in sizes.columns) and all(0 <= each <= _MOST_ROWS for each in rows)):
        raise ProtocolError(label.peer, f"{label.peer} asks for shares of {sizes}, which no table needs")
    if not 1 <= sizes.outputs <= MOST_FEATURES:
        raise ProtocolError(
            label.peer, f"{label.peer} wants shares of {sizes.outputs} outputs; 1 to {MOST_FEATURES:,} are allowed"
        )
    return sizes


def exchange_kept_label_party(peers: Sequence[Channel], *, kept: bool) -> list[str]:
    """Find out which parties have not saved their shares of the due scores, and tell each party whether all others have."""
    is_kept = [kept, *(peer.receive(SharesKept).kept for peer in peers)]
    for place, peer in enumerate(peers, start=1):
        peer.send(SharesKept(kept=all(is_kept[:place] + is_kept[place + 1 :])))
    return [peer.peer for peer, keeps in zip(peers, is_kept[1:], strict=True) if not keeps]


def exchange_kept_feature_party(peer: Channel, *, kept: bool) -> bool:
    """Tell the label party whether this party has saved its shares of the due scores, and find out whether all others have."""
    peer.send(SharesKept(kept=kept))
    return peer.receive(SharesKept).kept


def send_unscored(channel: Channel, is_unscored_N: NDArray[np.bool_]) -> None:
    """Send, as the label party, which rows have no score yet."""
    channel.send(UnscoredRows(rows=Array.of(is_unscored_N.astype(np.uint8))))


def receive_unscored(channel: Channel, rows: int) -> NDArray[np.bool_]:
    """Receive, as the feature party, which rows have no score yet. Raises ProtocolError for a wrong number of rows, or a wrong
    type.
    """
    try:
        array = channel.receive(UnscoredRows).rows
        if array.dtype != "uint8":
            raise MalformedMessage(f"array has type {array.dtype}, expected uint8")
        marks_N = array.numpy(rows)
        if rows and marks_N.max() > 1:
            raise MalformedMessage(f"a row's mark is {marks_N.max()}, and 0 or 1 are known")
        is_unscored_N: NDArray[np.bool_] = marks_N == 1
        return is_unscored_N
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{channel.peer}: UnscoredRows: {error}") from None
