"""Two lists split into buckets, so that memory follows a bucket and not a list, and a broken alignment goes on after the last.

Both sides put an id where a hash says, under a key that neither chose alone. Every bucket runs as if it held as many ids as it
has room for. The room follows from how many ids each side announced, so the number and the sizes of buckets tell nothing else.

Where a bucket is done, a side keeps what it came to. A later process takes the first bucket that is not done on both sides. It
makes new base transfers: no secret of these is ever kept, and no stream of them is used twice. A peer that claims to have lost
a bucket can run it again with other ids, as it could in a new alignment, and this side says so. Where sides settle on tags, this
ends with the commitments to them: from then on an alignment goes on with all of its buckets and the same tags, or not at all.

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
"""A bucket of an honest side has more ids than room with a chance of 2^-40 at most, over all buckets of both sides."""
NAME_BYTES = 16
_NEW_RUN = (
    "a side that has seen tags could now choose other ids, so the alignment cannot start again: agree with all sides on a new run"
)
_LN_2 = 0.6931471805599453

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Cutting of two lists into buckets, so that the larger one has ``per_bucket`` ids in each on average.

    ``nested``: the shorter list is not cut further than it needs to be. Each of its parts stands for ``span`` buckets, so that
    it has hardly more room than ids. An alignment that breaks within such buckets goes on at the first of them.
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
        """Return for how many buckets a part stands of a list of so many ids."""
        return self.span if ids == min(self.label_ids, self.feature_ids) else 1

    def parts(self, ids: int) -> int:
        """Return how many parts a list of so many ids has."""
        return self.count // self.span_of(ids)

    def room(self, ids: int) -> int:
        """Return for how many ids a part has room, on a side that has so many: the same on every machine.

        Bernstein's inequality: of ids that fall independently, with a mean of m in a bucket, m + t or more fall into it by a
        chance of at most exp(-t^2 / (2 m + 2 t / 3)). This t makes it 2^-(41 + b), where fewer than 2^b buckets are.
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
        """Sort rows by their buckets. Raises DataError if one, or ``span`` of them together, has more than room."""
        sizes = np.bincount(bucket_N, minlength=count)
        if (most := int(sizes.reshape(-1, span).sum(axis=1).max())) > room:
            raise DataError(
                f"{most} ids of this side fell into a bucket that has room for {room}, which does not happen by chance; start "
                "a new run without --resume, and report this"
            )
        return cls(order_N=np.argsort(bucket_N, kind="stable").astype(np.int32), ends=np.cumsum(sizes).tolist())

    def rows(self, bucket: int, *, span: int = 1) -> Index:
        """Return the own rows of a bucket (B,), or of so many from this one."""
        return self.order_N[self.ends[bucket - 1] if bucket else 0 : self.ends[bucket + span - 1]]


class BucketStore(Protocol):
    """Store of the finished buckets of a side's alignment with one peer."""

    def note(self) -> bytes:
        """Return the last note. It is empty if there is none, or if it cannot be read."""
        ...

    def write_note(self, note: bytes) -> None:
        """Note this in place of what was noted."""
        ...

    def done(self, alignment: str) -> int:
        """Count the buckets of an alignment, from the first, that are kept and intact."""
        ...

    def put(self, alignment: str, bucket: int, arrays: Arrays) -> None:
        """Keep what a bucket came to."""
        ...

    def get(self, bucket: int) -> Arrays:
        """Return what a bucket came to."""
        ...

    def drop(self, first: int) -> None:
        """Forget all buckets from the first."""
        ...


class Nowhere:
    """A store that keeps nothing: an alignment that breaks begins anew."""

    def note(self) -> bytes:
        """Hold no note."""
        return b""

    def write_note(self, note: bytes) -> None:
        """Keep nothing."""

    def done(self, alignment: str) -> int:  # noqa: ARG002
        """Return 0: no part is done."""
        return 0

    def put(self, alignment: str, bucket: int, arrays: Arrays) -> None:
        """Keep nothing."""

    def get(self, bucket: int) -> Arrays:
        """Refuse the question, because no part is done."""
        raise AssertionError(f"bucket {bucket} was not kept")

    def drop(self, first: int) -> None:
        """Do nothing, because nothing is there."""


class Standing(Message, frozen=True):
    """Both sides', at the start: the alignment of which a side has kept buckets, how many, and whether both settled on tags."""

    alignment: Annotated[bytes, msgspec.Meta(max_length=NAME_BYTES)]
    done: Annotated[int, msgspec.Meta(ge=0)]
    settled: bool


class TagsCommitment(Message, frozen=True):
    """A hash of a side's tags and a coin, sent before it sees any of the other's.

    It is kept, so that a later process shows the same tags.
    """

    digest: Annotated[bytes, msgspec.Meta(min_length=COIN_BYTES, max_length=COIN_BYTES)]


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """Notes of an alignment beside its buckets: the coin of a side's commitment to tags, and the peer's commitment."""

    key: bytes
    about: bytes
    coin: bytes = b""
    promised: bytes = b""
    settled: bool = False


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """An alignment in buckets that begins, or goes on.

    Args:
        key: that of the hash, which neither side chose alone.
        first: the first bucket that is not done on both sides.
        store: of this side's buckets, in which those before are.
        coin: of this side's commitment to its tags, if it made one before the alignment broke off.
        promised: the peer's commitment, if it has come.
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
        """Keep what a bucket came to: it is done."""
        self.store.put(_name(self.key).hex(), bucket, arrays)

    def settle(self, channel: Channel, rng: SecureRandom, *, own: Tags | None, from_peer: bool) -> "Settled":
        """Exchange commitments to the tags that sides are about to show: ``own`` ones, if given, and the peer's if ``from_peer``.

        Both are kept before any tag is shown. Raises ProtocolError for a peer that had settled on others before.
        """
        coin, promised = self.coin, self.promised
        if not coin:  # what was noted before stays as it is, until a peer has kept to it
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
        """Tell whether the peer's tags, and the coin that it shows, are those that it settled on."""
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
    """Settle with the peer whether an alignment goes on, and from which bucket. ``agree`` makes a key where it does not.

    It goes on where both sides kept buckets of the same alignment, by the same protocol, of the same ids here and of as many
    there. Once a side has settled on its tags it goes on with all buckets, or ends: whoever saw tags could choose other ids.
    Raises DataError where this side cannot go on so, ProtocolError where the peer does not, or claims more buckets than there
    are.
    """
    sizes = f"{buckets.label_ids} {buckets.feature_ids} {buckets.per_bucket} ".encode()
    about = hashlib.blake2b(protocol + sizes + prints_N16.tobytes(), digest_size=32, person=b"tally/buckets").digest()
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
    """Refuse to run again what is to be gone on with whole, and say who has lost what."""
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
    """Raise ProtocolError for a peer that leaves a bucket out, or runs one twice."""
    if got != due:
        raise ProtocolError(channel.peer, f"{channel.peer} began bucket {got} of the alignment where bucket {due} is due")


def _commitment(key: bytes, coin: bytes, tags: Tags) -> bytes:
    return hashlib.blake2b(key + coin + tags.tobytes(), digest_size=COIN_BYTES, person=b"tally/tags").digest()


def _name(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=NAME_BYTES, person=b"tally/standing").digest()
