"""Serve as a feature party: answer the label party's questions with cut embeddings.

Shapes: B rows asked for, E of them that exist, D cut width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from tallystick.cut.cut_messages import all_finite
from tallystick.cut.forward import FeatureSource, whole_tiles
from tallystick.errors import ProtocolError, StoreError
from tallystick.models.build import width_of
from tallystick.network.channel import Channel
from tallystick.network.messages import Array
from tallystick.scoring.scoring_messages import OVER_BUDGET, RowAnswer, RowQuestion, Unanswered, WayOfAsking
from tallystick.scoring.stores.store import KeyedRows, StoredRows
from tallystick.tables.features import Features


def receive_way(channel: Channel, allowed: Sequence[str]) -> str:
    """Receive how the other party will ask. Raises ProtocolError for a way that the contract does not allow."""
    way = channel.receive(WayOfAsking).way
    if way not in allowed:
        raise ProtocolError(
            channel.peer, f"{channel.peer} asks by {way[:20]!r}, which the contract does not allow: {', '.join(allowed)}"
        )
    return way


class Finder(Protocol):
    """A lookup of a question's rows in the agreed way."""

    def names(self, question: RowQuestion, peer: str) -> Sequence[bytes]:
        """Return a name for each row that is asked for. Raises ProtocolError for a question of another way."""
        ...

    def find(self, names_B: Sequence[bytes]) -> StoredRows:
        """Look up rows. Raises StoreError."""
        ...


@dataclass(frozen=True, kw_only=True)
class FindByKey:
    """Rows looked up by the key that crosses."""

    store: KeyedRows

    def names(self, question: RowQuestion, peer: str) -> Sequence[bytes]:
        """Return the keys."""
        if question.positions:
            raise ProtocolError(peer, f"{peer} asks by position where both sides agreed on keys")
        return question.keys

    def find(self, names_B: Sequence[bytes]) -> StoredRows:
        """Look up the keys."""
        return self.store.find(names_B)


@dataclass(frozen=True, kw_only=True)
class FindByPosition:
    """Rows looked up by their position in the alignment. Their current columns come from the store."""

    store: KeyedRows
    key_at: Sequence[bytes]

    def names(self, question: RowQuestion, peer: str) -> Sequence[bytes]:
        """Return the keys at these positions."""
        check_positions(question, peer, len(self.key_at))
        return [self.key_at[position] for position in question.positions]

    def find(self, names_B: Sequence[bytes]) -> StoredRows:
        """Look up the keys."""
        return self.store.find(names_B)


@dataclass(frozen=True, kw_only=True)
class FindInUnion:
    """Rows of a union looked up by their position, with replacements for those that this side lacks, as in a prediction."""

    source: FeatureSource
    rows: int

    def names(self, question: RowQuestion, peer: str) -> Sequence[bytes]:
        """Return the positions."""
        check_positions(question, peer, self.rows)
        return [b"%d" % position for position in question.positions]

    def find(self, names_B: Sequence[bytes]) -> StoredRows:
        """Return the rows at these positions. Every position has a row, or a replacement."""
        index_B = torch.tensor([int(name) for name in names_B], dtype=torch.int64)
        return StoredRows(is_found_B=np.ones(len(names_B), dtype=np.bool_), features_E=self.source(index_B))


def check_positions(question: RowQuestion, peer: str, rows: int) -> None:
    """Refuse keys, and positions that do not exist."""
    if question.keys:
        raise ProtocolError(peer, f"{peer} asks by key where both sides agreed on positions")
    if question.positions and max(question.positions) >= rows:
        raise ProtocolError(peer, f"{peer} asks for position {max(question.positions)} of {rows}")


class Gate(Protocol):
    """Budgets and the journal of one side."""

    def allowed(self, names_B: Sequence[bytes], *, run: str) -> NDArray[np.bool_]:
        """Count rows that are asked of a run, and tell which of them may be answered."""
        ...


class Open:
    """A gate that counts nothing."""

    def allowed(self, names_B: Sequence[bytes], *, run: str) -> NDArray[np.bool_]:  # noqa: ARG002
        """Allow all rows."""
        return np.ones(len(names_B), dtype=np.bool_)


OPEN = Open()


@dataclass(frozen=True, kw_only=True, eq=False)
class AnsweringRun:
    """A run that a feature party has loaded.

    Args:
        bottom: its bottom model, in evaluation mode.
        finder: looks up rows in the agreed way, encoded by this run's encoder.
    """

    bottom: nn.Module
    finder: Finder


class Runs(Protocol):
    """The runs for which questions are answered. The set of runs may change between two questions."""

    def __getitem__(self, run_id: str) -> AnsweringRun:
        """Return the run of this id. Raises KeyError if it is not answered."""
        ...


def answer_questions(channel: Channel, runs: Runs, *, gate: Gate = OPEN, agree: Callable[[Channel], None] | None = None) -> None:
    """Answer one question after the other until the label party says that there are no more.

    Threat model: an honest-but-curious label party; no formal guarantee protects the cut embeddings beyond the contract's
    defences. This side learns which rows are asked for, and when, depending on the way of asking (``disclosure.serving_lines``).

    Args:
        channel: channel to the label party.
        runs: the runs that are answered.
        gate: budgets and the journal.
        agree: continues if the label party wants to discuss versions; None if that was not agreed on.

    Raises ProtocolError for a question that was not agreed on, PeerLost and PeerStopped.
    """
    while True:
        question = channel.receive(RowQuestion, within_s=math.inf)
        if question.last:
            return
        if question.versions and agree is not None:
            agree(channel)
            continue
        try:
            run = runs[question.run]
        except KeyError:
            channel.send(_answer(question, [], torch.empty(0, 0), refusal="run"))
            continue
        width, names_B = width_of(run.bottom), run.finder.names(question, channel.peer)
        if not names_B:
            channel.send(_answer(question, [], torch.empty(0, width)))
            continue
        is_allowed_B = gate.allowed(names_B, run=question.run)
        try:
            rows_found = run.finder.find([name for name, allowed in zip(names_B, is_allowed_B, strict=True) if allowed])
            assert rows_found.features_E is not None, "a feature party has columns"
            values_ED = embedded(run.bottom, rows_found.features_E, width=width)
        except StoreError:
            channel.send(_answer(question, [], torch.empty(0, width), refusal="store"))
            continue
        state_B = np.full(len(names_B), OVER_BUDGET, dtype=np.uint8)
        state_B[is_allowed_B] = rows_found.is_found_B  # HERE or ABSENT
        channel.send(_answer(question, state_B, values_ED))


def _answer(question: RowQuestion, state_B: ArrayLike, values_ED: Tensor, *, refusal: Unanswered = "") -> RowAnswer:
    return RowAnswer(
        number=question.number,
        state=Array.lend(np.asarray(state_B, dtype=np.uint8)),
        values=Array.lend(values_ED),
        refusal=refusal,
    )


@torch.inference_mode()
def embedded(bottom: nn.Module, features_E: Features, *, width: int) -> Tensor:
    """Compute the cut embeddings of some rows, each with the same bits as in a prediction."""
    rows = len(features_E)
    if not rows:
        return torch.empty(0, width)
    cut_ED: Tensor = bottom(features_E.rows(whole_tiles(torch.arange(rows))))[:rows]
    if not all_finite(cut_ED):
        raise StoreError("a cut embedding is not finite and was not sent; look for extreme values among the columns")
    return cut_ED
