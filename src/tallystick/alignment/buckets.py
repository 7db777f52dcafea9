"""Split two lists into buckets. Memory then depends on a bucket and not on a list, and a broken alignment can go on.

A hash of an id chooses its bucket, under a key that neither side chose alone. Every bucket runs as if it were full. Its room
follows from how many ids each side announced, so the number and the sizes of buckets reveal nothing else.

When a bucket is done, a side keeps its result. A later process starts with the first bucket that is not done on both sides. It
makes new base transfers: their secrets are never kept, and their streams are never used twice. A peer that claims to have lost a
bucket can run it again with other ids, as it could in a new alignment, and this side reports it. If the sides commit to tags, a
bucket cannot run again after that: the alignment goes on with all of its buckets and the same tags, or ends.

Shapes: N ids; B of them in a bucket.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np

from tallystick.alignment.coin_toss import COIN_BYTES
from tallystick.alignment.matching import Index, Tags
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

FAILURE_BITS = 40
"""The chance that any bucket of an honest side has more ids than room is at most 2^-40, over all buckets of both sides."""
NAME_BYTES = 16
_NEW_RUN = (
    "a side that has seen tags could now choose other ids, so the alignment cannot start again: agree with all sides on a new run"
)
_LN_2 = 0.6931471805599453

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """A plan that cuts two lists into buckets, so that the larger list has ``per_bucket`` ids in each on average.

    ``nested``: the shorter list is cut no further than it needs to be. Each of its parts covers ``span`` buckets, so it has
    hardly more room than ids. An alignment that breaks within such buckets goes on at the first of them.
    """

    label_ids: int
    feature_ids: int
    per_bucket: int
    nested: bool = False
    count: int = field(init=False)
    span: int = field(init=False)

    def __post_init__(self) -> None:
        least, most = (-(-ids // self.per_bucket) for ids in sorted((self.label_ids, self.feature_ids)))
        span = most // least if self.nested else 1
        object.__setattr__(self, "span", span)
        object.__setattr__(self, "count", -(-most // span) * span)

    def span_of(self, ids: int) -> int:
        """Return how many buckets one part of a list of this many ids covers."""
        return self.span if ids == min(self.label_ids, self.feature_ids) else 1

    def parts(self, ids: int) -> int:
        """Return how many parts a list of this many ids has."""
        return self.count // self.span_of(ids)

    def room(self, ids: int) -> int:
        """Return how many ids fit into a part, for a side with this many ids: the same number on every machine.

        Bernstein's inequality: if ids fall independently, m of them into a bucket on average, then m + t or more fall into it
        with a chance of at most exp(-t^2 / (2 m + 2 t / 3)). This t makes the chance 2^-(41 + b), for fewer than 2^b buckets.
        """
        parts = self.parts(ids)
        mean = ids / parts
        exponent = (FAILURE_BITS + 1 + parts.bit_length()) * _LN_2
        return min(ids, math.ceil(mean + exponent / 3 + math.sqrt(exponent * exponent / 9 + 2 * exponent * mean)))


@dataclass(frozen=True, kw_only=True)
class Split:
    """Own rows in the order of their buckets."""

    order_N: Index = field(repr=False)
    ends: list[int]

    @classmethod
    def by(cls, bucket_N: "np.ndarray[Any, Any]", *, count: int, room: int, span: int = 1) -> "Split":
        """Sort rows by their buckets. Raises DataError if a bucket, or ``span`` of them together, has more rows than room."""
        sizes = np.bincount(bucket_N, minlength=count)
        if (most := int(sizes.reshape(-1, span).sum(axis=1).max())) > room:
            raise DataError(
                f"{most} ids of this side fell into a bucket that has room for {room}, which does not happen by chance; start "
                "a new run without --resume, and report this"
            )
        return cls(order_N=np.argsort(bucket_N, kind="stable").astype(np.int32), ends=np.cumsum(sizes).tolist())

    def rows(self, bucket: int, *, span: int = 1) -> Index:
        """Return the own rows of a bucket (B,), or of ``span`` buckets from this one."""
        return self.order_N[self.ends[bucket - 1] if bucket else 0 : self.ends[bucket + span - 1]]


class BucketStore(Protocol):
    """A store of a side's finished buckets in its alignment with one peer."""

    def note(self) -> bytes:
        """Return the last note. It is empty if there is none, or if it cannot be read."""
        ...

    def write_note(self, note: bytes) -> None:
        """Keep this note in place of the last one."""
        ...

    def done(self, alignment: str) -> int:
        """Count the buckets of an alignment that are kept and intact, up to the first that is not."""
        ...

    def put(self, alignment: str, bucket: int, arrays: Arrays) -> None:
        """Keep the result of a bucket."""
        ...

    def get(self, bucket: int) -> Arrays:
        """Return the result of a bucket."""
        ...

    def drop(self, first: int) -> None:
        """Delete this bucket and all later ones."""
        ...


class Nowhere:
    """A store that keeps nothing: an alignment that breaks starts again."""

    def note(self) -> bytes:
        """Return an empty note."""
        return b""

    def write_note(self, note: bytes) -> None:
        """Keep nothing."""

    def done(self, alignment: str) -> int:  # noqa: ARG002
        """Return 0: no bucket is done."""
        return 0

    def put(self, alignment: str, bucket: int, arrays: Arrays) -> None:
        """Keep nothing."""

    def get(self, bucket: int) -> Arrays:
        """Refuse, because no bucket is done."""
        raise AssertionError(f"bucket {bucket} was not kept")

    def drop(self, first: int) -> None:
        """Do nothing, because nothing is there."""


class Standing(Message, frozen=True):
    """Sent by both sides at the start: which alignment has kept buckets, how many, and whether both sides committed to tags."""

    alignment: Annotated[bytes, msgspec.Meta(max_length=NAME_BYTES)]
    done: Annotated[int, msgspec.Meta(ge=0)]
    settled: bool


class TagsCommitment(Message, frozen=True):
    """A hash of a side's tags and a coin. It is sent before the side sees any of the other side's tags.

    It is kept, so that a later process shows the same tags.
    """

    digest: Annotated[bytes, msgspec.Meta(min_length=COIN_BYTES, max_length=COIN_BYTES)]


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """Notes of an alignment, kept next to its buckets: the coin of this side's commitment to tags, and the peer's commitment."""

    key: bytes
    about: bytes
    coin: bytes = b""
    promised: bytes = b""
    settled: bool = False


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """An alignment in buckets that begins or is resumed.

    Args:
        key: of the hash; neither side chose it alone.
        first: the first bucket that is not done on both sides.
        store: this side's buckets, with those before ``first``.
        coin: of this side's commitment to its tags, if it made one before the alignment broke.
        promised: the peer's commitment, if it has arrived.
    """

    key: bytes = field(repr=False)
    first: int
    store: BucketStore = field(repr=False)
    about: bytes = field(repr=False)
    coin: bytes = field(default=b"", repr=False)
    promised: bytes = field(default=b"", repr=False)

    def kept(self) -> Iterable[Arrays]:
        """Yield the results of the buckets that are done."""
        return (self.store.get(bucket) for bucket in range(self.first))

    def keep(self, bucket: int, **arrays: "np.ndarray[Any, Any]") -> None:
        """Keep the result of a bucket, which is then done."""
        self.store.put(_name(self.key).hex(), bucket, arrays)

    def settle(self, channel: Channel, rng: SecureRandom, *, own: Tags | None, from_peer: bool) -> "Settled":
        """Exchange commitments to the tags that the sides will show next: ``own`` tags, if given, and the peer's if
        ``from_peer``.

        Both commitments are kept before any tag is shown. Raises ProtocolError if the peer had committed to other tags before.
        """
        coin, promised = self.coin, self.promised
        if not coin:  # an earlier note stays until the peer has proved to be consistent with it
            coin = rng.bytes(COIN_BYTES)
            self.store.write_note(msgspec.msgpack.encode(_Note(key=self.key, about=self.about, coin=coin)))
        if own is not None:
            channel.send(TagsCommitment(digest=_commitment(self.key, coin, own)))
        if from_peer:
            promised = channel.receive(TagsCommitment).digest
            if self.promised not in (b"", promised):
                raise ProtocolError(
                    channel.peer, f"{channel.peer} committed to other tags than before the alignment was interrupted; {_NEW_RUN}"
                )
        note = _Note(key=self.key, about=self.about, coin=coin, promised=promised, settled=True)
        self.store.write_note(msgspec.msgpack.encode(note))
        return Settled(key=self.key, coin=coin, promised=promised)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The coin of this side's commitment to its tags, and the peer's commitment."""

    key: bytes = field(repr=False)
    coin: bytes = field(repr=False)
    promised: bytes = field(repr=False)

    def holds(self, coin: bytes, tags: Tags) -> bool:
        """Tell whether the peer's tags, and the coin that it shows, match its commitment."""
        return _commitment(self.key, coin, tags) == self.promised


def take_up(
    channel: Channel,
    buckets: Buckets,
    store: BucketStore,
    *,
    prints_N16: Tags,
    protocol: bytes,
    agree: Callable[[], bytes],
    say: Callable[[str], None],
) -> TakenUp:
    """Agree with the peer whether an alignment goes on, and from which bucket. ``agree`` makes a key for a new alignment.

    An alignment goes on if both sides kept buckets of the same alignment, by the same protocol, of the same own ids and of as
    many ids of the peer. After a side has committed to its tags, the alignment goes on with all buckets or ends, because a side
    that saw tags could choose other ids. Raises DataError if this side cannot go on in this way, ProtocolError if the peer
    cannot, or if it claims more buckets than there are.
    """
    sizes = f"{buckets.label_ids} {buckets.feature_ids} {buckets.per_bucket} ".encode()
    digest = hashlib.blake2b(protocol + sizes, digest_size=32, person=b"tally/buckets")
    digest.update(np.ascontiguousarray(prints_N16).data)  # in place: a copy would be 16 bytes an id
    about = digest.digest()
    try:
        note = msgspec.msgpack.decode(store.note(), type=_Note)
    except msgspec.DecodeError:
        note = None
    kept_buckets = 0
    if note is not None and note.about != about:
        if note.settled:
            raise DataError(
                f"this side's ids, or the number of {channel.peer}'s, have changed since the alignment was interrupted, after "
                f"both had committed to tags; {_NEW_RUN}"
            )
        say(f"the buckets that were kept of an alignment with {channel.peer} are of other ids or other sizes: it starts again")
        note = None
    if note is not None:
        kept_buckets = min(store.done(_name(note.key).hex()), buckets.count)
    name, has_tags = (_name(note.key), note.settled) if note is not None else (b"", False)
    channel.send(Standing(alignment=name, done=kept_buckets, settled=has_tags))
    their_standing = channel.receive(Standing)
    if their_standing.done > buckets.count:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} claims to have done {their_standing.done} buckets of an alignment that has {buckets.count}",
        )
    first = min(kept_buckets, their_standing.done) // buckets.span * buckets.span
    same = note is not None and their_standing.alignment == name
    if has_tags or their_standing.settled:
        _require_whole(
            channel, same=same, is_settled=has_tags, own_count=kept_buckets, standing=their_standing, count=buckets.count
        )
    if note is None or not same:
        if note is not None:
            say(
                f"the alignment with {channel.peer} starts again, although {kept_buckets} of {buckets.count} buckets were "
                "done here: that side has saved none of them"
            )
        store.drop(0)
        key = agree()
        store.write_note(msgspec.msgpack.encode(_Note(key=key, about=about)))
        return TakenUp(key=key, first=0, store=store, about=about)
    anew = f"; it runs {kept_buckets - first} buckets again that were done here" if kept_buckets > first else ""
    say(f"the alignment with {channel.peer} goes on: {first} of {buckets.count} buckets are done on both sides{anew}")
    store.drop(first)
    return TakenUp(key=note.key, first=first, store=store, about=about, coin=note.coin, promised=note.promised)


def _require_whole(channel: Channel, *, same: bool, is_settled: bool, own_count: int, standing: Standing, count: int) -> None:
    """Refuse to run buckets again if the alignment must go on with all of them, and say who lost which."""
    if (is_settled and not same) or (same and standing.done < count):
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} has kept {standing.done if same else 'none'} of {count} buckets of an alignment in which both "
            f"had committed to tags; {_NEW_RUN}",
        )
    if own_count < count:
        raise DataError(
            f"this side has kept {own_count} of {count} buckets of its alignment with {channel.peer}, in which both had "
            f"committed to tags; {_NEW_RUN}"
        )


def require_bucket(channel: Channel, got: int, due: int) -> None:
    """Raise ProtocolError if a peer leaves a bucket out or runs one twice."""
    if got != due:
        raise ProtocolError(channel.peer, f"{channel.peer} began bucket {got} of the alignment where bucket {due} is due")


def _commitment(key: bytes, coin: bytes, tags: Tags) -> bytes:
    return hashlib.blake2b(key + coin + tags.tobytes(), digest_size=COIN_BYTES, person=b"tally/tags").digest()


def _name(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=NAME_BYTES, person=b"tally/standing").digest()
