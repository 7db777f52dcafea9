"""Give scores to a feature party that asks for them (FLORIST, appendix D): it sends embeddings and gets scores back.

Shapes: B rows whose scores are wanted, M rows of a batch, N aligned positions, D cut width.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tallystick.alignment.randomness import SecureRandom
from tallystick.cut.cut_messages import all_finite
from tallystick.cut.forward import FeatureSource
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Array, MalformedMessage
from tallystick.scoring.answering import OPEN, Gate, embedded
from tallystick.scoring.asking import Answered, checked_answer, picked
from tallystick.scoring.scoring import Columns, Scorer
from tallystick.scoring.scoring_messages import ABSENT, HERE, MOST_ASKED, OVER_BUDGET, ScoreAnswer, ScoreQuestion, Unanswered
from tallystick.scoring.windows import windows
from tallystick.tables.features import Features

SCORE = "score"


@dataclass(frozen=True, kw_only=True)
class AgreedBatches:
    """Batches of an alignment that both sides cut in the same way, with every row in one batch.

    No party chooses them. A row is in the same batch whenever it is asked for, under every text of a contract. While it stays
    aligned, its batch changes only by rows that are added or removed (``windows.py``), if its name stays the same: on a union, a
    new alignment gives all rows other positions.

    Args:
        members: the positions of each batch, ascending.
        batch_N: the batch of each position.
        names_N: the names of positions in budgets.
    """

    members: Sequence[NDArray[np.int64]]
    batch_N: NDArray[np.int64]
    names_N: Sequence[bytes]

    @classmethod
    def of(cls, names_N: Sequence[bytes], *, size: int) -> "AgreedBatches":
        """Cut batches of at least ``size`` rows by names that both sides have. Raises DataError if there are fewer rows in total.

        The hash has no key. If its key were the contract's, another text of the contract would cut other batches. A row that was
        asked for under both texts would then be in both batches, mostly as the only common row.
        """
        members = [np.sort(window) for window in windows(names_N, size=size, key=b"")]
        batch_N = np.empty(len(names_N), dtype=np.int64)
        for number, position_M in enumerate(members):
            batch_N[position_M] = number
        return cls(members=members, batch_N=batch_N, names_N=names_N)


# The feature party


@dataclass(kw_only=True)
class AskedLabelParty:
    """The label party, as seen by the feature party that asks it.

    Args:
        channel: channel to it.
        run: the run whose model should score.
        probabilities: whether a score is a probability, and so from 0 to 1.
        within_s: how long to wait for each answer; None waits forever.
    """

    channel: Channel
    run: str
    probabilities: bool
    within_s: float | None = None
    number: int = field(default=0, init=False)

    @property
    def channels(self) -> Sequence[Channel]:
        """Return the channels of all asked parties: one."""
        return (self.channel,)

    def ask(self, questions: Sequence[tuple[int | None, Tensor]]) -> list[Answered]:
        """Ask for scores of embeddings (B, D), of a batch or of none. All questions are sent before an answer is awaited."""
        first, began = self.number, time.monotonic()
        for batch, cut_BD in questions:
            self.channel.send(ScoreQuestion(number=self.number, run=self.run, batch=batch, values=Array.lend(cut_BD)))
            self.number += 1
        answers = [self.channel.receive(ScoreAnswer, within_s=self.within_s) for _ in questions]
        waited_s, answered = time.monotonic() - began, []
        for place, answer in enumerate(answers):
            row_count = len(questions[place][1])
            state_B, score_E1 = checked_answer(self.channel.peer, answer, number=first + place, row_count=row_count, width=1)
            wrong = "its state is none of a score's" if bool((state_B == ABSENT).any()) else ""
            if self.probabilities and not bool(((score_E1 >= 0) & (score_E1 <= 1)).all()):
                wrong = "a score is not a number from 0 to 1"
            if wrong:
                raise ProtocolError(self.channel.peer, f"{self.channel.peer}: ScoreAnswer: {wrong}; it was not used")
            answered.append(Answered(state_B=state_B, cuts_ED=[score_E1], waited_s=waited_s))
        return answered

    def probe(self) -> None:
        """Ask for no scores, to see whether the label party answers."""
        self.ask([(None, torch.empty(0, 0))])

    def leave(self) -> None:
        """Say that there are no more questions."""
        self.channel.send(ScoreQuestion(number=self.number, values=Array.of(torch.empty(0, 0)), last=True))


@dataclass(frozen=True, kw_only=True)
class AskByEmbedding:
    """Ask by embedding: the embeddings of the wanted rows cross in a random order, and nothing else about them.

    Threat model: an honest-but-curious label party. No formal guarantee: a row that was embedded before, in training, evaluation,
    a prediction or an earlier request, has the same or a similar embedding, and so can be recognised.

    Args:
        label_party: the label party that is asked.
        bottom: this party's model, in evaluation mode.
        width: D.
    """

    label_party: AskedLabelParty
    bottom: nn.Module
    width: int

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None) -> Answered:
        """Ask for the rows with these columns."""
        assert own_B is not None, "a feature party has columns"
        order_B = SecureRandom().permutation(len(keys_B))
        cut_BD = embedded(self.bottom, own_B, width=self.width)[torch.from_numpy(order_B)]
        (answered,) = self.label_party.ask([(None, cut_BD)])
        places_B = np.arange(len(order_B))
        return picked(places_B, answered.state_B, answered.cuts_ED, np.argsort(order_B), waited_s=answered.waited_s)


@torch.inference_mode()
def all_embedded(bottom: nn.Module, source: FeatureSource, *, rows: int, width: int) -> Tensor:
    """Compute the embeddings of all positions (N, D), always in this order, so that values for absent rows are the same."""
    parts = [embedded(bottom, source(index_B), width=width) for index_B in torch.split(torch.arange(rows), MOST_ASKED)]
    return torch.cat([torch.empty(0, width), *parts])


@dataclass(frozen=True, kw_only=True)
class AskByAgreedBatch:
    """Ask by agreed batch: the embeddings of whole agreed batches cross, whichever of their rows is wanted.

    Rows are as they were when the sessions began. So a batch crosses once per session, with the same bits whichever row is
    wanted, and its scores are kept. Another request for its rows crosses nothing.

    Threat model: an honest-but-curious label party. No formal guarantee: it learns which batch holds a wanted row, and other
    knowledge about these rows may reveal which one it was.

    Args:
        label_party: the label party that is asked.
        cut_ND: embeddings of this party's rows at all positions, or of replacements for rows that it lacks.
        batches: the agreed batches.
        places: position of each own key.
    """

    label_party: AskedLabelParty
    cut_ND: Tensor
    batches: AgreedBatches
    places: Mapping[bytes, int]
    kept: dict[int, Answered] = field(default_factory=dict, init=False)

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None) -> Answered:  # noqa: ARG002
        """Ask for the batches that hold these keys, except those with kept scores, and return the wanted rows."""
        for channel in self.label_party.channels:
            channel.check()  # if all scores are kept, nothing else would show that the session has ended
        place_B = np.array([self.places.get(key, -1) for key in keys_B], dtype=np.int64)
        batches_needed = sorted(set(self.batches.batch_N[place_B[place_B >= 0]].tolist()))
        new = [batch for batch in batches_needed if batch not in self.kept]
        questions = [(batch, self.cut_ND[torch.from_numpy(self.batches.members[batch])]) for batch in new]
        new_answers = dict(zip(new, self.label_party.ask(questions), strict=True))
        self.kept.update({batch: answer for batch, answer in new_answers.items() if answer.is_here.all()})
        waited_s = max((answer.waited_s for answer in new_answers.values()), default=0.0)
        answers = [new_answers[batch] if batch in new_answers else self.kept[batch] for batch in batches_needed]
        if not answers:
            absent_B = np.full(len(place_B), ABSENT, dtype=np.uint8)
            return Answered(state_B=absent_B, cuts_ED=[torch.empty(0, 1)], waited_s=waited_s)
        # Join the answers for these batches at the wanted positions; -1 means no position
        position_M = np.concatenate([self.batches.members[batch] for batch in batches_needed])
        score_M = torch.full((len(position_M), 1), torch.nan)
        state_M = np.concatenate([answer.state_B for answer in answers])
        score_M[torch.from_numpy(state_M == HERE)] = torch.cat([answer.cuts_ED[0] for answer in answers])
        order_M = np.argsort(position_M)
        state_M = state_M[order_M]
        values_E1 = score_M[torch.from_numpy(order_M)][torch.from_numpy(state_M == HERE)]
        return picked(position_M[order_M], state_M, [values_E1], place_B, waited_s=waited_s)


class ScoresAsTheyCame:
    """The Scorer of a feature party: the answers are scores already, and it has no labels."""

    names = (SCORE,)
    alone = None

    def joint(self, scores_B1: Sequence[Tensor], own_B: Features | None) -> Columns:  # noqa: ARG002
        """Return the scores."""
        return {SCORE: scores_B1[0][:, 0].numpy()}


# The label party


@dataclass(frozen=True, kw_only=True)
class BatchedRows:
    """Rows with which the label party scores agreed batches: its columns at their positions, or replacements for absent rows."""

    source: FeatureSource
    batches: AgreedBatches


def answer_with_scores(
    channel: Channel, scorers: Mapping[str, Scorer], *, width: int, rows: BatchedRows | None, gate: Gate = OPEN
) -> None:
    """Answer one ScoreQuestion after the other with scores until the feature party says that there are no more.

    Threat model: an honest-but-curious feature party; no formal guarantee. It learns the score of each row that it embeds, which
    estimates the row's label as well as the model does, for all rows of a batch; on a union also scores of rows that only the
    label party has, by position. With embeddings of its own choice it learns the top model, and by a position how the label
    party's columns affect that row's score. Not protected: all of it. The contract's budgets limit how much in a day.

    Args:
        channel: channel to the feature party.
        scorers: of each run that is served.
        width: D.
        rows: the rows for way ``agreed-batch``; None for way ``embedding``.
        gate: budgets and the journal.

    Raises ProtocolError for a question that was not agreed on, PeerLost and PeerStopped.
    """
    while True:
        question = channel.receive(ScoreQuestion, within_s=math.inf)
        if question.last:
            return
        cut_BD = _asked(question, channel.peer, rows, width)
        scorer = scorers.get(question.run)
        if not len(cut_BD) or scorer is None:
            refusal: Unanswered = "run" if len(cut_BD) else ""
            nothing = Array.of(np.empty(0, dtype=np.uint8)), Array.of(torch.empty(0, 1))
            channel.send(ScoreAnswer(number=question.number, state=nothing[0], values=nothing[1], refusal=refusal))
            continue
        # Budgets and the journal identify rows by name, or by embedding if they have no name
        if rows is None:
            names_B = [row.numpy().tobytes() for row in cut_BD]
        else:
            names_B = [rows.batches.names_N[position] for position in _members(question, rows).tolist()]
        is_allowed_B = gate.allowed(names_B, run=question.run)
        state_B = np.where(is_allowed_B, HERE, OVER_BUDGET).astype(np.uint8)
        index_E = torch.from_numpy(np.flatnonzero(is_allowed_B))
        score_E = np.empty(0, dtype=np.float32)
        if len(index_E):
            own_E = rows.source(_members(question, rows)[index_E]) if rows is not None else None
            score_E = scorer.joint([cut_BD.index_select(0, index_E)], own_E)[SCORE]
            if not np.isfinite(score_E).all():
                raise ProtocolError(channel.peer, f"{channel.peer}: ScoreQuestion: its embeddings give no finite score")
        answer = ScoreAnswer(number=question.number, state=Array.lend(state_B), values=Array.of(score_E.reshape(-1, 1)))
        channel.send(answer)


def _asked(question: ScoreQuestion, peer: str, rows: BatchedRows | None, width: int) -> Tensor:
    """Return the embeddings of a question. Raises ProtocolError for one that was not agreed on."""
    shape = question.values.shape
    if shape == (0, 0):
        return torch.empty(0, width)
    what = f"{peer}: ScoreQuestion"
    if (question.batch is None) != (rows is None):
        raise ProtocolError(peer, f"{what} asks by another way than both sides agreed on")
    if rows is not None and question.batch is not None and question.batch >= len(rows.batches.members):
        raise ProtocolError(peer, f"{what} is of batch {question.batch}, and there are {len(rows.batches.members)}")
    count = len(_members(question, rows)) if rows is not None else next(iter(shape), 0)
    if rows is None and count > MOST_ASKED:
        raise ProtocolError(peer, f"{what} has {count} rows; at most {MOST_ASKED} are taken")
    try:
        cut_BD = question.values.tensor(count, width, dtype=torch.float32)
    except MalformedMessage as error:
        raise ProtocolError(peer, f"{what}: {error}") from None
    if not all_finite(cut_BD):
        raise ProtocolError(peer, f"{what}: a cut embedding is not finite; it was not used")
    return cut_BD


def _members(question: ScoreQuestion, rows: BatchedRows) -> Tensor:
    assert question.batch is not None, "it was looked at"
    return torch.from_numpy(rows.batches.members[question.batch])
