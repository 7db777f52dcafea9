"""Encode keys as the helper sees them, send them, and detect that two sides encoded them in different ways.

Shapes: N rows, D numbers of a key, W bytes of a filter, P bits of a filter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from tallystick.alignment.exchange import receive_list, send_list
from tallystick.alignment.federal import Packed, Pivots, block_tags, text_filters
from tallystick.alignment.nearest import Floats, Integers
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

PIECE = 256
"""Bytes of one row of a list. Wide rows cross as several of these, so that a message stays within its limit."""
TEXTS_A_MESSAGE = 512
MAX_TEXT = 1_000
"""Greatest number of characters of a text that crosses in the clear."""
MAX_FILTER_BYTES = 4 << 30
"""Limit of memory for one side's filters."""
MAX_NUMBER = 1e100
"""Greatest number that crosses in the clear, after scale and weight, so that squares of differences stay finite."""
CHECKED_ROWS = 50
"""Rows that a side needs before the bit frequencies of its filters are informative."""


class Texts(Message, frozen=True):
    """The next texts of the list ``of``, in the clear."""

    limit: ClassVar[int] = 4 << 20
    of: str
    texts: list[str]


@dataclass(frozen=True, kw_only=True)
class EncodedKeys:
    """One side's keys, encoded as the contract says. Encodings that the contract does not use are empty.

    Args:
        ranks_ND2: ranks of numbers, if the helper sees ranks; else D = 0.
        numbers_ND: scaled and weighted numbers, if the helper sees them in the clear; else D = 0.
        filters: for each dimension's name, its filters (N, W).
        texts: for each dimension's name, its texts in the clear.
        blocks_N16: tags of blocks, if texts are compared in blocks.
    """

    rows: int
    ranks_ND2: Integers
    numbers_ND: Floats
    filters: dict[str, Packed]
    texts: dict[str, list[str]]
    blocks_N16: Packed | None = None

    def gather(self, order_N: Integers) -> "EncodedKeys":
        """Return the rows in this order."""
        return EncodedKeys(
            rows=len(order_N),
            ranks_ND2=self.ranks_ND2[order_N],
            numbers_ND=self.numbers_ND[order_N],
            filters={name: packed_NW[order_N] for name, packed_NW in self.filters.items()},
            texts={name: [texts[row] for row in order_N] for name, texts in self.texts.items()},
            blocks_N16=None if self.blocks_N16 is None else self.blocks_N16[order_N],
        )


def encode_keys(keys: SimilarKeys, terms: SimilarityConfig, secret: bytes) -> EncodedKeys:
    """Encode keys under a secret that the helper does not have. Raises DataError if filters take too much memory."""
    sees, numbers = terms.helper_sees, terms.numbers
    check_filters(len(keys), terms)
    scaled_ND = keys.scaled(terms)
    numbers_ND = keys.scaled(terms, weighted=True) if sees == "clear" else np.empty((len(keys), 0))
    if (np.abs(numbers_ND) > MAX_NUMBER).any():
        raise DataError(
            f"alignment.similarity: a number of the keys is over {MAX_NUMBER:g} after scale and weight; leave its row out"
        )
    filters = {}
    if sees == "filters":
        for place, dimension in enumerate(numbers):
            filters[dimension.name] = Pivots.of(terms, dimension, secret).filters(scaled_ND[:, place])
    texts: dict[str, list[str]] = {}
    for dimension, column in zip(terms.texts, keys.texts, strict=True):
        if sees == "clear":
            texts[dimension.name] = [text[:MAX_TEXT] for text in column]
        else:
            filters[dimension.name] = text_filters(column, terms=terms, dimension=dimension, secret=secret)
    ranks = [Pivots.of(terms, d, secret).ranks(scaled_ND[:, i]) for i, d in enumerate(numbers)] if sees == "ranks" else []
    return EncodedKeys(
        rows=len(keys),
        ranks_ND2=np.stack(ranks, axis=1) if ranks else np.empty((len(keys), 0, 2), dtype=np.int64),
        numbers_ND=numbers_ND,
        filters=filters,
        texts=texts,
        blocks_N16=block_tags(keys.texts[0], terms=terms, secret=secret) if terms.block else None,
    )


def check_filters(rows: int, terms: SimilarityConfig) -> None:
    """Raise DataError if the filters of this many keys take too much memory."""
    bits = _filter_bits(terms)
    if rows > most_encoded_rows(terms):
        raise DataError(
            f"alignment.similarity.helper_sees = {terms.helper_sees}: filters of {bits:,} bits for {rows:,} rows take "
            f"{rows * bits / 8 / 2**30:.1f} GiB, over {MAX_FILTER_BYTES >> 30}; agree on ranks, or a larger deviation or window"
        )


def most_encoded_rows(terms: SimilarityConfig) -> int:
    """Return the largest number of rows whose filters fit into memory."""
    return 8 * MAX_FILTER_BYTES // max(_filter_bits(terms), 1)


def _filter_bits(terms: SimilarityConfig) -> int:
    """Count the bits of one row's filters."""
    bits = sum(terms.pivots(d) for d in terms.numbers) if terms.helper_sees == "filters" else 0
    return bits + (terms.text_bits * len(terms.texts) if terms.helper_sees != "clear" else 0)


def send_array(channel: Channel, of: str, array: np.ndarray[Any, Any]) -> None:
    """Send an array whose shape and type the peer already knows."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    padded = np.zeros(-(-len(flat) // PIECE) * PIECE, dtype=np.uint8)
    padded[: len(flat)] = flat
    send_list(channel, of, padded.reshape(-1, PIECE))


def receive_array(channel: Channel, of: str, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """Receive an array of this shape and type."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    pieces = receive_list(channel, of, -(-size // PIECE), shape=(PIECE,))
    return pieces.reshape(-1)[:size].view(dtype).reshape(shape)


def send_keys(channel: Channel, keys: EncodedKeys, terms: SimilarityConfig) -> None:
    """Send encoded keys to the helper, which already knows the number of rows."""
    if keys.ranks_ND2.shape[1]:
        send_array(channel, "ranks", keys.ranks_ND2.astype(np.int32))
    if keys.numbers_ND.shape[1]:
        send_array(channel, "numbers", keys.numbers_ND)
    for dimension in terms.dimensions:
        if dimension.name in keys.filters:
            send_array(channel, f"filters of {dimension.name}", keys.filters[dimension.name])
        if dimension.name in keys.texts:
            texts = keys.texts[dimension.name]
            for start in range(0, len(texts), TEXTS_A_MESSAGE):
                channel.send(Texts(of=dimension.name, texts=texts[start : start + TEXTS_A_MESSAGE]))
    if keys.blocks_N16 is not None:
        send_array(channel, "blocks", keys.blocks_N16)


def receive_keys(channel: Channel, rows: int, terms: SimilarityConfig) -> EncodedKeys:
    """Receive one side's encoded keys. Raises ProtocolError, which names side and list, for values that no key can have."""
    sees, numbers = terms.helper_sees, len(terms.numbers)
    ranks_ND2, numbers_ND = np.empty((rows, 0, 2), dtype=np.int64), np.empty((rows, 0))
    if numbers and sees == "ranks":
        ranks_ND2 = receive_array(channel, "ranks", (rows, numbers, 2), np.int32).astype(np.int64)
        pivots_D = np.array([terms.pivots(dimension) for dimension in terms.numbers])
        wrong_ND = (ranks_ND2[..., 0] < 0) | (ranks_ND2[..., 1] < ranks_ND2[..., 0]) | (ranks_ND2[..., 1] > pivots_D)
        if wrong_ND.any():
            raise ProtocolError(
                channel.peer, f"{channel.peer} sent 'ranks': {int(wrong_ND.sum())} of them lie outside the filter"
            )
    if numbers and sees == "clear":
        numbers_ND = receive_array(channel, "numbers", (rows, numbers), np.float64)
        if not (np.abs(numbers_ND) <= MAX_NUMBER).all():
            raise ProtocolError(channel.peer, f"{channel.peer} sent 'numbers' that are NaN, infinite or over {MAX_NUMBER:g}")
    filters, texts = {}, {}
    for dimension in terms.dimensions:
        if dimension.kind == "number" and sees == "filters":
            width = terms.pivots(dimension) // 8
        elif dimension.kind == "text" and sees != "clear":
            width = terms.text_bits // 8
        elif dimension.kind == "text":
            of, received = dimension.name, list[str]()
            while len(received) < rows:
                message = channel.receive(Texts)
                due = min(TEXTS_A_MESSAGE, rows - len(received))
                if message.of != of or len(message.texts) != due or not all(0 < len(text) <= MAX_TEXT for text in message.texts):
                    raise ProtocolError(
                        channel.peer,
                        f"{channel.peer} sent {len(message.texts)} texts of {message.of[:80]!r} where {due} of {of!r} are due, "
                        f"each of 1 to {MAX_TEXT} characters",
                    )
                received += message.texts
            texts[of] = received
            continue
        else:
            continue
        filters[dimension.name] = receive_array(channel, f"filters of {dimension.name}", (rows, width), np.uint8)
    blocks_N16 = receive_array(channel, "blocks", (rows, 16), np.uint8) if terms.block else None
    return EncodedKeys(rows=rows, ranks_ND2=ranks_ND2, numbers_ND=numbers_ND, filters=filters, texts=texts, blocks_N16=blocks_N16)


def require_one_secret(first: EncodedKeys, second: EncodedKeys, parties: Sequence[Channel], terms: SimilarityConfig) -> None:
    """Raise ProtocolError if two sides cannot have encoded their keys under the same secret.

    Ranks among the same pivots are monotone: a value that starts earlier does not end later. Filters under the same secret set
    the same bits often, so the bit frequencies of the two sides are correlated. Under different secrets a correlation is chance;
    the limit is six of its standard deviations.
    """
    names = " and ".join(channel.peer for channel in parties)
    if terms.helper_sees == "ranks":
        for place, dimension in enumerate(terms.numbers):
            ranks_L2 = np.concatenate((first.ranks_ND2[:, place], second.ranks_ND2[:, place]))
            ranks_L2 = ranks_L2[np.lexsort((ranks_L2[:, 1], ranks_L2[:, 0]))]
            if (np.diff(ranks_L2[:, 1]) < 0).any():
                raise ProtocolError(
                    parties[-1].peer,
                    f"ranks of {dimension.name} from {names} are not among the same pivots: their secrets differ",
                )
    if min(first.rows, second.rows) < CHECKED_ROWS:
        return
    for name in first.filters:
        weights = []  # for each side, how often each bit is set
        for packed_NW in (first.filters[name], second.filters[name]):
            weight_P = np.zeros(packed_NW.shape[1] * 8)
            for start, stop in pairwise([*range(0, len(packed_NW), 1024), len(packed_NW)]):
                weight_P += np.unpackbits(packed_NW[start:stop], axis=1).sum(axis=0, dtype=np.int64)
            weights.append(weight_P)
        if min(float(weight_P.std()) for weight_P in weights) == 0:
            continue
        correlation = float(np.corrcoef(weights[0], weights[1])[0, 1])
        if correlation < 6 / np.sqrt(len(weights[0])):
            raise ProtocolError(
                parties[-1].peer,
                f"filters of {name} from {names} set the same bits no more often than by chance (correlation "
                f"{correlation:.3f}): their secrets differ, or their keys have nothing in common",
            )
