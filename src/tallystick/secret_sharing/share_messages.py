"""Messages of a head on shares: every word in them is uniform, whatever it hides. Shapes: R rows, D columns, B batch."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message
from tallystick.secret_sharing.ring import SEED_BYTES, Words


class MaskSeed(Message, frozen=True):
    """Party to helper: the seed of this party's masks in this session."""

    seed: bytes


class MaskedFeatures(Message, frozen=True):
    """Party to party: some rows (R, D) of its features, each number less a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedWeights(Message, frozen=True):
    """Party to party: its shares of weights (D, C), or the label party's weight decay (1, 1), less a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedScores(Message, frozen=True):
    """Party to party: its shares (B, C) of a batch's scores, plus a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedErrors(Message, frozen=True):
    """Party to party: its shares of a batch's errors, or the label party's weights of its rows, masked; (B, C), or (B, 1)."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class MaskedSteps(Message, frozen=True):
    """Party to party: its shares (D, C) of the weights' next step, plus a mask."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class ScoreShares(Message, frozen=True):
    """Feature party to label party: its shares (B, C) of final scores, which the label party learns by them."""

    limit = MAX_MESSAGE_BYTES
    words: Array


class EdgeShares(Message, frozen=True):
    """Feature party to label party: its share (1, 1) of how often training scores came near the edge of the range."""

    words: Array


class UnscoredRows(Message, frozen=True):
    """Label party to feature party: which common rows of a prediction (N,) it has no score of. Only these are scored."""

    limit = MAX_MESSAGE_BYTES
    rows: Array


class SharesKept(Message, frozen=True):
    """Party to party: whether it keeps its shares of the scores that are due."""

    kept: bool


class Correction(Message, frozen=True):
    """Helper to party: what this party's masks lack to be shares of a product, of a number cut off, or of sines."""

    limit = MAX_MESSAGE_BYTES
    words: Array


WordsMessage: TypeAlias = (
    MaskedFeatures | MaskedWeights | MaskedScores | MaskedErrors | MaskedSteps | EdgeShares | ScoreShares | Correction
)


def send_words(channel: Channel, kind: type[WordsMessage], words: Words) -> None:
    """Send words in a message of this kind."""
    channel.send(kind(words=Array.of(words.view(np.int64))))


def receive_words(channel: Channel, kind: type[WordsMessage], *shape: int) -> Words:
    """Receive words. Raises ProtocolError for another shape or type than is due."""
    array = channel.receive(kind).words
    try:
        words = array.numpy(*shape)
        if words.dtype != np.int64:
            raise MalformedMessage(f"array has type {words.dtype}, expected int64")
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{channel.peer}: {kind.__name__}: {error}") from None
    return words.view(np.uint64)


def receive_seed(channel: Channel) -> bytes:
    """Receive a party's seed. Raises ProtocolError for one of another length."""
    seed = channel.receive(MaskSeed).seed
    if len(seed) != SEED_BYTES:
        raise ProtocolError(channel.peer, f"{channel.peer} sent a seed of {len(seed)} bytes; {SEED_BYTES} are due")
    return seed


class FeatureCount(Message, frozen=True):
    """Party to party: how many features it brings, and whether it is a label party whose rows have weights."""

    columns: int
    weighted: bool = False


class HeadSizes(Message, frozen=True):
    """Party to helper: what there is to deal for. Both parties say the same."""

    training: int
    scored: int
    label_columns: int
    feature_columns: int
    outputs: int
    weighted: bool


MOST_FEATURES = 1 << 16
_MOST_ROWS = 1 << 31


def exchange_counts(channel: Channel, own: FeatureCount) -> FeatureCount:
    """Tell the other party what this one brings, and learn it of the other; raises ProtocolError for a wrong number."""
    channel.send(own)
    other = channel.receive(FeatureCount)
    if not 1 <= other.columns <= MOST_FEATURES:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} brings {other.columns} features to a head on shares; 1 to {MOST_FEATURES:,} are allowed",
        )
    return other


def receive_sizes(label: Channel, feature: Channel) -> HeadSizes:
    """Receive both parties' sizes, as the helper. Raises ProtocolError where they differ, or are beyond all tables."""
    first, second = label.receive(HeadSizes), feature.receive(HeadSizes)
    if first != second:
        raise ProtocolError(
            feature.peer, f"{feature.peer} and {label.peer} want other shares of the helper: {second} and {first}"
        )
    columns = first.label_columns, first.feature_columns
    sizes = first.training, first.scored
    if not (all(1 <= each <= MOST_FEATURES for each in columns) and all(0 <= each <= _MOST_ROWS for each in sizes)):
        raise ProtocolError(label.peer, f"{label.peer} asks for shares of {first}, which no table needs")
    if not 1 <= first.outputs <= MOST_FEATURES:
        raise ProtocolError(
            label.peer, f"{label.peer} wants shares of {first.outputs} outputs; 1 to {MOST_FEATURES:,} are allowed"
        )
    return first


def send_unscored(channel: Channel, is_unscored_N: NDArray[np.bool_]) -> None:
    """Say which rows are to be scored, as the label party."""
    channel.send(UnscoredRows(rows=Array.of(is_unscored_N.astype(np.uint8))))


def receive_unscored(channel: Channel, rows: int) -> NDArray[np.bool_]:
    """Receive it, as the feature party. Raises ProtocolError for another number of rows, or another type."""
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


def exchange_kept(channel: Channel, *, kept: bool) -> bool:
    """Tell the other party whether this one keeps its shares of the scores that are due, and learn it of the other."""
    channel.send(SharesKept(kept=kept))
    return channel.receive(SharesKept).kept
