"""Serve as a label party: get the cut embeddings of the wanted rows.

Shapes: B rows wanted, E of them that all partners have, N aligned positions, D cut width.
"""

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.cut.cut_messages import all_finite
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import MalformedMessage
from tallystick.scoring.scoring_messages import (
    ABSENT,
    HERE,
    MOST_ASKED,
    OVER_BUDGET,
    RowAnswer,
    RowQuestion,
    ScoreAnswer,
    Unanswered,
)
from tallystick.scoring.windows import windows
from tallystick.tables.features import Features

LATE_DEADLINES = 20
"""If a partner is connected and does not answer for this many deadlines of a request, the sessions are made again."""


def longest_wait_s(patience_s: float, deadline_s: float) -> float:
    """Return how long to wait for an answer: many deadlines of a request, and at least the deadline of the network."""
    return max(LATE_DEADLINES * patience_s, deadline_s)


class Refused(Exception):
    """Raised if a partner does not answer a question, with the reason in a few words."""

    def __init__(self, peer: str, why: Unanswered) -> None:
        super().__init__(f"{peer}: {why}")
        self.peer, self.why = peer, why


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Each wanted row's state (the worst of all partners') and the embeddings of rows that all have, a tensor per partner.

    If the label party is the one that is asked, it answers with scores instead. ``waited_s`` is how long the answers took; 0 if
    nothing crossed.
    """

    state_B: NDArray[np.uint8]
    cuts_ED: list[Tensor]
    waited_s: float = 0.0

    @property
    def is_here(self) -> NDArray[np.bool_]:
        """Mark the rows that all partners have."""
        is_here_B: NDArray[np.bool_] = self.state_B == HERE
        return is_here_B


class Asking(Protocol):
    """One way of asking. Raises Refused, and what a channel raises."""

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None) -> Answered:
        """Get the cut embeddings of the rows with these keys. Their own columns are known."""
        ...


class AskedParties(Protocol):
    """The asked parties, as seen by the code that waits for them."""

    @property
    def channels(self) -> Sequence[Channel]:
        """Return the channels to each of them."""
        ...

    def probe(self) -> None:
        """Ask for no rows, to see whether they answer."""
        ...


@dataclass(kw_only=True)
class Partners:
    """All feature parties, asked at the same time.

    Args:
        channels: in the contract's order.
        widths: widths of their cut embeddings.
        run: the run whose model they should answer with.
        turn: held from question to answer, because other threads use the same channels.
        within_s: how long to wait for each answer; None waits forever.
    """

    channels: Sequence[Channel]
    widths: Sequence[int]
    run: str
    within_s: float | None = None
    turn: AbstractContextManager[object] = field(default_factory=threading.Lock)
    number: int = field(default=0, init=False)

    @classmethod
    def of_nothing(
        cls, channels: Sequence[Channel], turn: AbstractContextManager[object], *, within_s: float | None = None
    ) -> "Partners":
        """Make partners that are asked for no rows, to see whether they answer."""
        return cls(channels=channels, widths=[0] * len(channels), run="", turn=turn, within_s=within_s)

    def ask(self, questions: Sequence[tuple[Sequence[bytes], Sequence[int]]]) -> list[Answered]:
        """Ask for rows by keys or positions. All questions are sent before the first answer is awaited."""
        first, began = self.number, time.monotonic()
        with self.turn:
            for keys, positions in questions:
                question = RowQuestion(number=self.number, run=self.run, keys=tuple(keys), positions=tuple(positions))
                self.number += 1
                for channel in self.channels:
                    channel.send(question)
            # Read all answers, whatever one of them says: the next question's answers come after them.
            received = [[channel.receive(RowAnswer, within_s=self.within_s) for channel in self.channels] for _ in questions]
        waited_s, answered = time.monotonic() - began, []
        for place, answers in enumerate(received):
            row_count = sum(map(len, questions[place]))
            parts = [
                checked_answer(channel.peer, answer, number=first + place, row_count=row_count, width=width)
                for channel, answer, width in zip(self.channels, answers, self.widths, strict=True)
            ]
            states_PB = np.stack([state_B for state_B, _ in parts])
            is_here_B, is_over_B = (states_PB == HERE).all(axis=0), (states_PB == OVER_BUDGET).any(axis=0)
            state_B = np.where(is_here_B, HERE, np.where(is_over_B, OVER_BUDGET, ABSENT)).astype(np.uint8)
            cuts_ED = [
                cut_ED if len(cut_ED) == is_here_B.sum() else cut_ED[torch.from_numpy(is_here_B[mine_B == HERE])]
                for mine_B, cut_ED in parts
            ]
            answered.append(Answered(state_B=state_B, cuts_ED=cuts_ED, waited_s=waited_s))
        return answered

    def probe(self) -> None:
        """Ask for no rows, to see whether the partners answer. A refusal is an answer."""
        with suppress(Refused):
            self.ask([((), ())])

    def leave(self) -> None:
        """Say that there are no more questions."""
        for channel in self.channels:
            channel.send(RowQuestion(number=self.number, last=True))


def checked_answer(
    peer: str, answer: RowAnswer | ScoreAnswer, *, number: int, row_count: int, width: int
) -> tuple[NDArray[np.uint8], Tensor]:
    """Check each row's state, and the numbers of rows that are HERE. Raises ProtocolError if they do not fit, and Refused."""
    what = f"{peer}: {type(answer).__name__}"
    if answer.number != number:
        raise ProtocolError(peer, f"{what} is to question {answer.number}, expected {number}; the two sides are out of step")
    if answer.refusal:
        raise Refused(peer, answer.refusal)
    try:
        if answer.state.dtype != "uint8":
            raise MalformedMessage(f"array has type {answer.state.dtype}, expected uint8")
        state_B = answer.state.numpy(row_count)
        if row_count and state_B.max() > OVER_BUDGET:
            raise MalformedMessage(f"a row's state is {state_B.max()}, at most {OVER_BUDGET} is known")
        cut_ED = answer.values.tensor(int((state_B == HERE).sum()), width, dtype=torch.float32)
    except MalformedMessage as error:
        raise ProtocolError(peer, f"{what}: {error}") from None
    if not all_finite(cut_ED):
        raise ProtocolError(peer, f"{what}: a number is not finite; it was not used")
    return state_B, cut_ED


@dataclass(frozen=True, kw_only=True)
class AskByKey:
    """Ask by key: the keys cross, each once and sorted, because the order of requests often says more, such as that of a risk."""

    partners: Partners

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None = None) -> Answered:  # noqa: ARG002
        """Ask for the keys."""
        keys_M = sorted(set(keys_B))
        place = {key: number for number, key in enumerate(keys_M)}
        (answered,) = self.partners.ask([(keys_M, ())])
        if len(keys_B) == 1:
            return answered
        return _of_wanted(answered, np.arange(len(keys_M)), np.array([place[key] for key in keys_B], dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class AskByPosition:
    """Ask by position: positions in the alignment cross, each once and ascending. A key outside it is not asked for."""

    partners: Partners
    places: Mapping[bytes, int]

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None = None) -> Answered:  # noqa: ARG002
        """Ask for the positions of those keys that have one."""
        place_B = np.array([self.places.get(key, -1) for key in keys_B], dtype=np.int64)
        is_linked_B = place_B >= 0
        if not is_linked_B.any():
            return nothing(self.partners, len(keys_B))
        position_M = np.unique(place_B[is_linked_B])
        (answered,) = self.partners.ask([((), position_M.tolist())])
        return _of_wanted(answered, position_M, place_B)


@dataclass(frozen=True, kw_only=True)
class AskByWindow:
    """Ask by window: whole windows of positions cross, whichever of their rows is wanted.

    A hash of the keys under the label party's secret determines which rows share a window (``windows.py``), so a row is always
    asked for together with the same other rows.

    Args:
        partners: the partners that are asked.
        places: position of each key.
        window_N: the window of each position; -1 if the position's key is asked for by another position.
        members: the positions of each window, ascending.
    """

    partners: Partners
    places: Mapping[bytes, int]
    window_N: NDArray[np.int64]
    members: Sequence[NDArray[np.int64]]

    @classmethod
    def of(cls, partners: Partners, places: Mapping[bytes, int], *, size: int, secret: bytes) -> "AskByWindow":
        """Draw windows of at least ``size`` rows. Raises DataError if there are fewer rows in total."""
        position_N = np.fromiter(places.values(), dtype=np.int64, count=len(places))
        members = [np.sort(position_N[window]) for window in windows(list(places), size=size, key=secret)]
        window_N = np.full(int(position_N.max()) + 1, -1, dtype=np.int64)
        for number, positions in enumerate(members):
            window_N[positions] = number
        return cls(partners=partners, places=places, window_N=window_N, members=members)

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None = None) -> Answered:  # noqa: ARG002
        """Ask for the windows that hold these keys, and keep the wanted rows."""
        place_B = np.array([self.places.get(key, -1) for key in keys_B], dtype=np.int64)
        is_linked_B = place_B >= 0
        if not is_linked_B.any():
            return nothing(self.partners, len(keys_B))
        windows = set(self.window_N[place_B[is_linked_B]].tolist())
        position_M = np.sort(np.concatenate([self.members[window] for window in windows]))
        starts = range(0, len(position_M), MOST_ASKED)
        answers = self.partners.ask([((), position_M[start : start + MOST_ASKED].tolist()) for start in starts])
        cuts_ED = [torch.cat(parts) for parts in zip(*(answer.cuts_ED for answer in answers), strict=True)]
        state_M = np.concatenate([answer.state_B for answer in answers])
        return _of_wanted(Answered(state_B=state_M, cuts_ED=cuts_ED, waited_s=answers[0].waited_s), position_M, place_B)


@dataclass(frozen=True, kw_only=True)
class AskAhead:
    """Ask in advance: all cut embeddings have crossed before, so nothing crosses for a request."""

    places: Mapping[bytes, int]
    state_N: NDArray[np.uint8]
    cuts_ED: list[Tensor]

    @classmethod
    def building(cls, partners: Partners, places: Mapping[bytes, int], *, rows: int) -> Generator[None, None, "AskAhead"]:
        """Ask for all positions in their order, one question per step."""
        parts = []
        for start in range(0, rows, MOST_ASKED):
            parts.append(partners.ask([((), range(start, min(start + MOST_ASKED, rows)))])[0])
            yield
        return cls(
            places=places,
            state_N=np.concatenate([np.empty(0, dtype=np.uint8), *(part.state_B for part in parts)]),
            cuts_ED=[torch.cat(cuts) for cuts in zip(*(part.cuts_ED for part in parts), strict=True)],
        )

    @property
    def is_over_budget(self) -> bool:
        """Tell whether a partner's budget did not allow all rows."""
        return bool((self.state_N == OVER_BUDGET).any())

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None = None) -> Answered:  # noqa: ARG002
        """Select the wanted rows."""
        place_B = np.array([self.places.get(key, -1) for key in keys_B], dtype=np.int64)
        return picked(np.arange(len(self.state_N)), self.state_N, self.cuts_ED, place_B)


def nothing(partners: Partners, rows: int) -> Answered:
    """Return the answer if no partner has any of the rows."""
    return Answered(state_B=np.full(rows, ABSENT, dtype=np.uint8), cuts_ED=[torch.empty(0, width) for width in partners.widths])


def _of_wanted(answered: Answered, positions_M: NDArray[np.int64], place_B: NDArray[np.int64]) -> Answered:
    """Return the answers for these ascending positions in the order of the wanted places; -1 means no position."""
    return picked(positions_M, answered.state_B, answered.cuts_ED, place_B, waited_s=answered.waited_s)


def picked(
    positions_M: NDArray[np.int64],
    state_M: NDArray[np.uint8],
    cuts_ED: Sequence[Tensor],
    place_B: NDArray[np.int64],
    *,
    waited_s: float = 0.0,
) -> Answered:
    """Select the answers for the wanted places from the answers for these ascending positions; -1 means no position."""
    if not len(positions_M):
        state_B = np.full(len(place_B), ABSENT, dtype=np.uint8)
        return Answered(state_B=state_B, cuts_ED=[cut_ED[:0] for cut_ED in cuts_ED], waited_s=waited_s)
    found_B = np.minimum(np.searchsorted(positions_M, place_B), len(positions_M) - 1)
    state_B = np.where(positions_M[found_B] == place_B, state_M[found_B], ABSENT).astype(np.uint8)
    row_M = np.cumsum(state_M == HERE) - 1
    index_E = torch.from_numpy(row_M[found_B[state_B == HERE]])
    cuts_ED = [cut_ED.index_select(0, index_E) for cut_ED in cuts_ED]
    return Answered(state_B=state_B, cuts_ED=cuts_ED, waited_s=waited_s)
