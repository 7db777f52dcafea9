"""Define what crosses between two sides that serve. Shapes: B rows asked for, E of them that have a row, D cut width."""

from typing import Annotated, Literal

import msgspec

from tallystick.network.messages import MEBIBYTE, Array, Message

MOST_ASKED = 1024
"""Rows of a question."""
KEY_BYTES = 1024


def key_problem(key: bytes) -> str:
    """Say why bytes are not a key; the answer is empty for a key. A key is text in UTF-8 without NUL, of at most KEY_BYTES."""
    if len(key) > KEY_BYTES:
        return f"a key is {len(key)} bytes long; at most {KEY_BYTES} are accepted"
    if b"\0" in key:
        return "a key contains the character NUL"
    try:
        key.decode()
    except UnicodeDecodeError:
        return "a key is not text in UTF-8"
    return ""


ABSENT, HERE, OVER_BUDGET = 0, 1, 2
"""What an answer says of a row."""

Unanswered = Literal["", "run", "store"]
"""Why a whole question is not answered: a run that is not served there, a store that is away."""


class WayOfAsking(Message, frozen=True):
    """Whoever asks to the other, after the handshake: how it is going to ask."""

    way: str


class RowQuestion(Message, frozen=True):
    """Label party to feature party: the rows it wants, by normalised key or by aligned position.

    A question of neither is a probe.

    The ``last`` one wants nothing: the label party leaves in peace. With a ``versions`` one it goes on about versions.
    """

    number: Annotated[int, msgspec.Meta(ge=0)]
    run: Annotated[str, msgspec.Meta(max_length=16)] = ""
    keys: Annotated[tuple[Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)], ...], msgspec.Meta(max_length=MOST_ASKED)] = ()
    positions: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MOST_ASKED)] = ()
    last: bool = False
    versions: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no key. Raises ValueError, of which the reader of a message makes a ProtocolError."""
        for key in self.keys:
            if problem := key_problem(key):
                raise ValueError(problem)


class RowAnswer(Message, frozen=True):
    """Feature party to label party: each row's state, uint8 (B,), and the embeddings of those that are HERE, float32 (E, D)."""

    limit = 32 * MEBIBYTE
    number: Annotated[int, msgspec.Meta(ge=0)]
    state: Array
    values: Array
    refusal: Unanswered = ""


class ScoreQuestion(Message, frozen=True):
    """Feature party to label party: embeddings whose scores it wants, float32 (B, D). A question without rows is a probe.

    They are those of the rows of an agreed batch, in the order of their positions, or of rows of which nothing else is said. The
    ``last`` one wants nothing: the feature party leaves in peace.
    """

    limit = 32 * MEBIBYTE
    number: Annotated[int, msgspec.Meta(ge=0)]
    values: Array
    run: Annotated[str, msgspec.Meta(max_length=16)] = ""
    batch: Annotated[int, msgspec.Meta(ge=0)] | None = None
    last: bool = False


class ScoreAnswer(Message, frozen=True):
    """Label party to feature party: each row's state, uint8 (B,), and the scores of those that are HERE, float32 (E, 1)."""

    limit = MEBIBYTE
    number: Annotated[int, msgspec.Meta(ge=0)]
    state: Array
    values: Array
    refusal: Unanswered = ""


class AlignmentKept(Message, frozen=True):
    """Feature party to label party, when they meet: the alignment that it has kept for its present keys. It is empty for none."""

    name: Annotated[str, msgspec.Meta(max_length=32)]


class AlignmentNext(Message, frozen=True):
    """Label party to all: the alignment that they go on with, ``again`` if all have kept it, or the name of a new one."""

    name: Annotated[str, msgspec.Meta(max_length=32)]
    again: bool
