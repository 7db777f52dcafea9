"""Define the messages between two sides that serve. Shapes: B rows asked for, E of them that exist, D cut width."""

from typing import Annotated, Literal

import msgspec

from tallystick.network.messages import MEBIBYTE, Array, Message

MOST_ASKED = 1024
"""Greatest number of rows of a question."""
KEY_BYTES = 1024


def key_problem(key: bytes) -> str:
    """Say why bytes are not a key; the text is empty for a key. A key is UTF-8 text without NUL, of at most KEY_BYTES."""
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
"""States of a row in an answer."""

Unanswered = Literal["", "run", "store"]
"""Why a whole question is not answered: the run is not served there, or a store is away."""


class WayOfAsking(Message, frozen=True):
    """Sent by the asking side after the handshake: how it will ask."""

    way: str


class RowQuestion(Message, frozen=True):
    """Sent by the label party: the rows that it wants, by normalised key or by aligned position.

    A question without rows is a probe.

    The ``last`` question wants nothing: the label party ends normally. A ``versions`` question starts an exchange about versions.
    """

    number: Annotated[int, msgspec.Meta(ge=0)]
    run: Annotated[str, msgspec.Meta(max_length=16)] = ""
    keys: Annotated[tuple[Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)], ...], msgspec.Meta(max_length=MOST_ASKED)] = ()
    positions: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MOST_ASKED)] = ()
    last: bool = False
    versions: bool = False

    def __post_init__(self) -> None:
        """Refuse bytes that are not a key. Raises ValueError, which the reader of a message turns into a ProtocolError."""
        for key in self.keys:
            if problem := key_problem(key):
                raise ValueError(problem)


class RowAnswer(Message, frozen=True):
    """Sent by the feature party: each row's state, uint8 (B,), and the embeddings of those that are HERE, float32 (E, D)."""

    limit = 32 * MEBIBYTE
    number: Annotated[int, msgspec.Meta(ge=0)]
    state: Array
    values: Array
    refusal: Unanswered = ""


class ScoreQuestion(Message, frozen=True):
    """Sent by the feature party: embeddings whose scores it wants, float32 (B, D). A question without rows is a probe.

    They belong to the rows of an agreed batch, in the order of their positions, or to rows that are not named. The ``last``
    question wants nothing: the feature party ends normally.
    """

    limit = 32 * MEBIBYTE
    number: Annotated[int, msgspec.Meta(ge=0)]
    values: Array
    run: Annotated[str, msgspec.Meta(max_length=16)] = ""
    batch: Annotated[int, msgspec.Meta(ge=0)] | None = None
    last: bool = False


class ScoreAnswer(Message, frozen=True):
    """Sent by the label party: each row's state, uint8 (B,), and the scores of those that are HERE, float32 (E, 1)."""

    limit = MEBIBYTE
    number: Annotated[int, msgspec.Meta(ge=0)]
    state: Array
    values: Array
    refusal: Unanswered = ""


class AlignmentKept(Message, frozen=True):
    """Sent by the feature party at the start: the alignment that it has kept for its current keys; empty for none."""

    name: Annotated[str, msgspec.Meta(max_length=32)]


class AlignmentNext(Message, frozen=True):
    """Sent by the label party: the alignment to use, ``again`` if all have kept it, or the name of a new one."""

    name: Annotated[str, msgspec.Meta(max_length=32)]
    again: bool
