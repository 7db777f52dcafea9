"""Two lists split into buckets, so that memory follows a bucket and not a list, and a broken alignment goes on after the last.

Both sides put an id where a hash says, under a key that neither chose alone. Every bucket runs as if it held as many ids as it
has room for. The room follows from how many ids each side announced, so the number and the sizes of buckets tell nothing else.

Where a bucket is done, a side keeps what it came to. A later process takes the first bucket that is not done on both sides. It
makes new base transfers: no secret of these is ever kept, and no stream of them is used twice. A peer that claims to have lost
a bucket can run it again with other ids, as it could in a new alignment, and this side says so.

Shapes: N ids; B of them in a bucket.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np

from tallystick.alignment.matching import Index, Tags
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

FAILURE_BITS = 40
"""A bucket of an honest side has more ids than room with a chance of 2^-40 at most, over all buckets of both sides."""
NAME_BYTES = 16
_LN_2 = 0.6931471805599453

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """How many buckets two lists have, if the larger one is to have ``per_bucket`` ids in each on average."""

    label_ids: int
    feature_ids: int
    per_bucket: int
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", -(-max(self.label_ids, self.feature_ids) // self.per_bucket))

    def room(self, ids: int) -> int:
        """For how many ids a bucket has room, of a side that has so many: the same on every machine.

        Bernstein's inequality: of ids that fall independently, with a mean of m in a bucket, m + t or more fall into it by a
        chance of at most exp(-t^2 / (2 m + 2 t / 3)). This t makes it 2^-(41 + b), where fewer than 2^b buckets are.
        """
        mean = ids / self.count
        exponent = (FAILURE_BITS + 1 + self.count.bit_length()) * _LN_2
        return min(ids, math.ceil(mean + exponent / 3 + math.sqrt(exponent * exponent / 9 + 2 * exponent * mean)))


@dataclass(frozen=True, kw_only=True)
class Split:
    """Own rows in the order of their buckets."""

    order_N: Index = field(repr=False)
    ends: list[int]

    @classmethod
    def by(cls, bucket_N: "np.ndarray[Any, Any]", *, count: int, room: int) -> "Split":
        """Sort rows by their buckets; raises DataError if one has more than room."""
        sizes = np.bincount(bucket_N, minlength=count)
        if (most := int(sizes.max())) > room:
            raise DataError(
                f"{most} ids of this side fell into a bucket that has room for {room}, which chance does not do; start a new run "
                "without --resume, and report this"
            )
        return cls(order_N=np.argsort(bucket_N, kind="stable").astype(np.int32), ends=np.cumsum(sizes).tolist())

    def rows(self, bucket: int) -> Index:
        """Give the own rows of a bucket (B,)."""
        return self.order_N[self.ends[bucket - 1] if bucket else 0 : self.ends[bucket]]


class BucketStore(Protocol):
    """Where a side keeps the finished buckets of its alignment with one peer."""

    def note(self) -> bytes:
        """What was noted last; empty if nothing was, or if it cannot be read."""
        ...

    def write_note(self, note: bytes) -> None:
        """Note this in place of what was noted."""
        ...

    def done(self, alignment: str) -> int:
        """How many buckets of an alignment, from the first, are kept and intact."""
        ...

    def put(self, alignment: str, bucket: int, arrays: Arrays) -> None:
        """Keep what a bucket came to."""
        ...

    def get(self, bucket: int) -> Arrays:
        """Give what a bucket came to."""
        ...

    def drop(self, first: int) -> None:
        """Forget all buckets from the first."""
        ...


class Nowhere:
    """A store that keeps nothing: an alignment that breaks begins anew."""

    def note(self) -> bytes:
        """Nothing."""
        return b""

    def write_note(self, note: bytes) -> None:
        """Forget it."""

    def done(self, alignment: str) -> int:  # noqa: ARG002
        """None."""
        return 0

    def put(self, alignment: str, bucket: int, arrays: Arrays) -> None:
        """Forget it."""

    def get(self, bucket: int) -> Arrays:
        """Nobody asks, for none is done."""
        raise AssertionError(f"bucket {bucket} was not kept")

    def drop(self, first: int) -> None:
        """Nothing is there."""


class Standing(Message, frozen=True):
    """Both sides', at the start: the alignment of which a side has kept buckets, how many, and whether it has shown tags."""

    alignment: Annotated[bytes, msgspec.Meta(max_length=NAME_BYTES)]
    done: Annotated[int, msgspec.Meta(ge=0)]
    shown: bool


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """What a side keeps of an alignment beside its buckets."""

    key: bytes
    about: bytes
    shown: bool = False


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """An alignment in buckets that begins, or goes on.

    Args:
        key: that of the hash, which neither side chose alone.
        first: the first bucket that is not done on both sides.
        store: of this side's buckets, in which those before are.
    """

    key: bytes = field(repr=False)
    first: int
    store: BucketStore = field(repr=False)
    about: bytes = field(repr=False)

    def kept(self) -> Iterable[Arrays]:
        """What the buckets came to that are done."""
        return (self.store.get(bucket) for bucket in range(self.first))

    def keep(self, bucket: int, **arrays: "np.ndarray[Any, Any]") -> None:
        """Keep what a bucket came to: it is done."""
        self.store.put(_name(self.key).hex(), bucket, arrays)

    def show(self) -> None:
        """Note that this side is about to show its tags: from now on no bucket is run again."""
        self.store.write_note(msgspec.msgpack.encode(_Note(key=self.key, about=self.about, shown=True)))


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
    """Settle with the peer whether an alignment goes on, and from which bucket; ``agree`` makes a key where it does not.

    It goes on where both sides kept buckets of the same alignment, by the same protocol, of the same ids here and of as many
    there. Where a side has shown its tags, it goes on only if no bucket is to be run again: each side's ids are settled
    before it sees tags. Raises ProtocolError for more buckets than there are.
    """
    sizes = f"{buckets.label_ids} {buckets.feature_ids} {buckets.per_bucket} ".encode()
    about = hashlib.blake2b(protocol + sizes + prints_N16.tobytes(), digest_size=32, person=b"tally/buckets").digest()
    note, kept = _note_of(store), 0
    if note is not None and note.about != about:
        say(f"the buckets that were kept of an alignment with {channel.peer} are of other ids or other sizes: it begins anew")
        note = None
    if note is not None:
        kept = min(store.done(_name(note.key).hex()), buckets.count)
    name, shown = (_name(note.key), note.shown) if note is not None else (b"", False)
    channel.send(Standing(alignment=name, done=kept, shown=shown))
    theirs = channel.receive(Standing)
    if theirs.done > buckets.count:
        raise ProtocolError(
            channel.peer, f"{channel.peer} claims to have done {theirs.done} buckets of an alignment that has {buckets.count}"
        )
    first = min(kept, theirs.done)
    again = (shown or theirs.shown) and first < buckets.count
    if note is None or theirs.alignment != name or again:
        if note is not None:
            why = "buckets were lost after tags were shown" if theirs.alignment == name else "that side has kept none of it"
            say(f"the alignment with {channel.peer} begins anew, though {kept} of {buckets.count} buckets were done here: {why}")
        store.drop(0)
        key = agree()
        store.write_note(msgspec.msgpack.encode(_Note(key=key, about=about)))
        return TakenUp(key=key, first=0, store=store, about=about)
    anew = f"; it runs {kept - first} again that were done here" if kept > first else ""
    say(f"the alignment with {channel.peer} goes on: {first} of {buckets.count} buckets are done on both sides{anew}")
    store.drop(first)
    return TakenUp(key=note.key, first=first, store=store, about=about)


def require_bucket(channel: Channel, got: int, due: int) -> None:
    """Raise ProtocolError for a peer that leaves a bucket out, or runs one twice."""
    if got != due:
        raise ProtocolError(channel.peer, f"{channel.peer} began bucket {got} of the alignment where bucket {due} is due")


def _note_of(store: BucketStore) -> _Note | None:
    try:
        return msgspec.msgpack.decode(store.note(), type=_Note)
    except msgspec.DecodeError:
        return None


def _name(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=NAME_BYTES, person=b"tally/standing").digest()
