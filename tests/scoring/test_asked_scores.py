"""A feature party that asks: what crosses shows no more of a row than was agreed, and hostile messages are refused."""

import threading

import numpy as np
import pytest
import torch
from listening import Listening
from torch import nn

from tallystick.cut.cut_messages import receive_embedding
from tallystick.cut.forward import send_embeddings
from tallystick.errors import PeerLost, ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array, encode
from tallystick.scoring.asking import Refused
from tallystick.scoring.feature_party_asks import (
    AgreedBatches,
    AskByAgreedBatch,
    AskByEmbedding,
    AskedLabelParty,
    BatchedRows,
    ScoresAsTheyCame,
    all_embedded,
    answer_with_scores,
)
from tallystick.scoring.scoring_messages import HERE, OVER_BUDGET, ScoreAnswer, ScoreQuestion
from tallystick.tables.features import Features

ROWS, WIDTH, RUN = 60, 3, "0123456789abcdef"
NAMES = [b"uid-%02d" % position for position in range(ROWS)]
COLUMN_N = torch.linspace(-1, 1, ROWS)
LABEL_PARTY_N = torch.linspace(2, -2, ROWS)
ONES = np.ones(1, dtype=np.uint8)


def source(column_N):
    def at(index_B):
        numeric = column_N[index_B][:, None]
        return Features(numeric_NF=numeric, categorical_NG=torch.zeros(len(index_B), 0, dtype=torch.int64))

    return at


class Bottom(nn.Module):
    def forward(self, features):
        return features.numeric_NF * torch.tensor([1.0, 2.0, -1.0])


class Scorer:
    """A share of the network by hand: its output depends on the embedding and on own columns, if there are any."""

    def joint(self, cuts_BD, own_B):
        own = own_B.numeric_NF[:, 0] if own_B is not None else 0.0
        return {"score": torch.sigmoid(cuts_BD[0].sum(dim=1) + own).numpy()}


class Daily:
    """A gate that allows each name so often."""

    def __init__(self, most):
        self.most, self.seen = most, []

    def allowed(self, names_B, *, run):  # noqa: ARG002
        is_allowed_B = np.array([self.seen.count(name) < self.most for name in names_B])
        self.seen += names_B
        return is_allowed_B


def batches(size=7):
    return AgreedBatches.of(NAMES, size=size)


@pytest.fixture
def asked():
    """Begin to answer. Return the asker's end, and what crosses."""
    threads, ends = [], []

    def begin(rows=None, **more):
        own, theirs = memory_channels("shop", "bank", timeout_s=20)
        listening = Listening(own)
        ends.append(AskedLabelParty(channel=listening, run=RUN, probabilities=True))
        keywords = {"width": WIDTH, "rows": rows, **more}
        threads.append(threading.Thread(target=answer_with_scores, args=(theirs, {RUN: Scorer()}), kwargs=keywords))
        threads[-1].start()
        return ends[-1], listening

    yield begin
    for end in ends:
        end.leave()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def by_batch(label_party, *, column_N=COLUMN_N, places=None):
    places = places if places is not None else {b"id-%d" % position: position for position in range(ROWS)}
    cut_ND = all_embedded(Bottom(), source(column_N), rows=ROWS, width=WIDTH)
    return AskByAgreedBatch(label_party=label_party, cut_ND=cut_ND, batches=batches(), places=places)


def all_batched(**more):
    return {"rows": BatchedRows(source=source(LABEL_PARTY_N), batches=batches()), **more}


def without_values(message):
    """Return what crosses without numbers: all bytes that depend on columns or labels are 0."""
    blank = Array.of(np.zeros(message.values.shape, dtype=np.float32))
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return bytes(encode(type(message)(**{**fields, "values": blank, "number": 0})))


def test_by_embedding_numbers_alone_cross_and_the_same_for_any_row(asked):
    label_party, crossed = asked()
    ask = AskByEmbedding(label_party=label_party, bottom=Bottom(), width=WIDTH)
    for key, position in ((b"a-customer-of-both", 3), (b"one-that-the-label-party-lacks", 8)):
        own = source(COLUMN_N)(torch.tensor([position]))
        answered = ask([key], own)
        assert torch.equal(answered.cuts_ED[0][:, 0], torch.from_numpy(Scorer().joint([Bottom()(own)], None)["score"]))
        assert ScoresAsTheyCame().joint(answered.cuts_ED, own)["score"].shape == (1,)
    both = crossed.sent[:2], crossed.received[:2]
    for one, other in both:
        assert without_values(one) == without_values(other)
    for message in crossed.sent:
        assert not any(word in bytes(encode(message)) for word in (b"customer", b"lacks"))
        assert message.batch is None


def test_by_embedding_the_order_of_a_request_does_not_cross(asked):
    """A request is often sorted by something important, such as a risk. An order is that of the request with a chance
    of 1 / 40!.
    """
    label_party, crossed = asked()
    ask = AskByEmbedding(label_party=label_party, bottom=Bottom(), width=WIDTH)
    rows_B = torch.from_numpy(np.random.default_rng(2).choice(ROWS, size=40, replace=False))
    own = source(COLUMN_N)(rows_B)
    answered = ask([b"id-%d" % row for row in rows_B.tolist()], own)
    score_B = torch.from_numpy(Scorer().joint([Bottom()(own)], None)["score"])  # its last bits depend on the place in a vector
    assert torch.allclose(answered.cuts_ED[0][:, 0], score_B, rtol=0, atol=1e-6)
    sent_BD, wanted_BD = crossed.sent[0].values.tensor(40, WIDTH), Bottom()(own)
    assert torch.equal(sent_BD.sort(dim=0).values, wanted_BD.sort(dim=0).values)
    assert not torch.equal(sent_BD, wanted_BD)


def test_a_row_that_was_embedded_in_evaluation_is_known_again_by_its_embedding(asked):
    """FLORIST says that the label party then does not know which row it is; but it has seen the same bits at a position
    before.
    """
    theirs, own = memory_channels("bank", "shop", timeout_s=20)
    send_embeddings(Bottom(), source(COLUMN_N), torch.split(torch.arange(ROWS), 32), own)
    seen_ND = torch.cat([receive_embedding(theirs, number, rows, WIDTH) for number, rows in enumerate((32, ROWS - 32))])
    label_party, crossed = asked()
    AskByEmbedding(label_party=label_party, bottom=Bottom(), width=WIDTH)([b"id-17"], source(COLUMN_N)(torch.tensor([17])))
    asked_D = crossed.sent[0].values.tensor(1, WIDTH)[0]
    assert torch.nonzero((seen_ND == asked_D).all(dim=1))[:, 0].tolist() == [17]


def test_in_a_batch_the_same_bits_cross_whichever_of_its_rows_is_wanted_and_only_once(asked):
    first = batches().members[0]
    expected_N = torch.sigmoid(Bottom()(source(COLUMN_N)(torch.arange(ROWS))).sum(dim=1) + LABEL_PARTY_N)
    crossed_of = []
    for position in first.tolist():
        label_party, crossed = asked(**all_batched())
        ask = by_batch(label_party)
        for _ in range(2):
            answered = ask([b"id-%d" % position], None)
            assert torch.equal(answered.cuts_ED[0][:, 0], expected_N[position : position + 1])
        assert len(crossed.sent) == 1  # a second time nothing crosses
        crossed_of.append([bytes(encode(message)) for message in (*crossed.sent, *crossed.received)])
    assert len(first) >= 7
    assert all(each == crossed_of[0] for each in crossed_of)


def test_kept_scores_are_given_only_while_the_session_stands(asked):
    label_party, crossed = asked(**all_batched())
    ask = by_batch(label_party)
    ask([b"id-5"], None)

    def gone():
        raise PeerLost("bank", "bank is gone")

    crossed.check = gone
    with pytest.raises(PeerLost):
        ask([b"id-5"], None)


def test_several_batches_keys_that_have_no_position_and_one_key_twice(asked):
    label_party, crossed = asked(**all_batched())
    answered = by_batch(label_party)([b"id-40", b"nobody", b"id-2", b"id-40"], None)
    expected_N = torch.sigmoid(Bottom()(source(COLUMN_N)(torch.arange(ROWS))).sum(dim=1) + LABEL_PARTY_N)
    assert answered.is_here.tolist() == [True, False, True, True]
    assert torch.equal(answered.cuts_ED[0][:, 0], expected_N[[40, 2, 40]])
    assert {message.batch for message in crossed.sent} == {int(batches().batch_N[position]) for position in (40, 2)}
    assert by_batch(label_party)([b"nobody"], None).is_here.tolist() == [False]


def test_a_batch_tells_not_which_of_its_rows_either_side_has(asked):
    """Stand-ins for rows that a side lacks change numbers alone."""
    own, stand_in = batches().members[1][:2].tolist()
    crossed_of = []
    for lacks in ([], [stand_in], [own]):
        column_N, label_N = COLUMN_N.clone(), LABEL_PARTY_N.clone()
        column_N[lacks], label_N[lacks] = 0.123, -0.456
        label_party, crossed = asked(rows=BatchedRows(source=source(label_N), batches=batches()))
        by_batch(label_party, column_N=column_N)([b"id-%d" % own], None)
        crossed_of.append([without_values(message) for message in (*crossed.sent, *crossed.received)])
    assert crossed_of[0] == crossed_of[1] == crossed_of[2]


def test_what_is_over_a_budget_has_no_score_and_is_asked_for_again(asked):
    gate = Daily(1)
    label_party, crossed = asked(**all_batched(gate=gate))
    assert by_batch(label_party)([b"id-5"], None).is_here.all()
    again = by_batch(label_party)  # a new session, and a row that was asked for today
    for _ in range(2):
        assert again([b"id-5"], None).state_B.tolist() == [OVER_BUDGET]
    assert len(crossed.sent) == 3
    assert set(gate.seen) == {NAMES[position] for position in batches().members[batches().batch_N[5]]}


def test_another_run_is_refused_and_a_probe_answered(asked):
    label_party, _ = asked()
    label_party.run = "f" * 16
    label_party.probe()
    with pytest.raises(Refused, match="run"):
        label_party.ask([(None, torch.zeros(1, WIDTH))])


def answer(*, number=0, state=ONES, values=None, **more):
    values = torch.full((1, 1), 0.5) if values is None else values
    return ScoreAnswer(number=number, state=Array.of(state), values=Array.of(values), **more)


WRONG_ANSWERS = {
    "another number": answer(number=7),
    "no score": answer(values=torch.zeros(0, 1)),
    "more scores": answer(values=torch.zeros(2, 1)),
    "embeddings": answer(values=torch.zeros(1, WIDTH)),
    "not finite": answer(values=torch.full((1, 1), torch.nan)),
    "no probability": answer(values=torch.full((1, 1), 1.5)),
    "below 0": answer(values=torch.full((1, 1), -1e-9)),
    "double": answer(values=torch.zeros(1, 1, dtype=torch.float64)),
    "absent": answer(state=np.zeros(1, np.uint8), values=torch.zeros(0, 1)),
    "an unknown state": answer(state=np.full(1, 255, np.uint8), values=torch.zeros(0, 1)),
    "more states": answer(state=np.ones(2, np.uint8), values=torch.zeros(2, 1)),
    "endless": answer(values=torch.full((1, 1), torch.inf)),
    "the largest": answer(values=torch.full((1, 1), torch.finfo(torch.float32).max)),
    "the largest number": answer(number=(1 << 64) - 1),
    "nothing": answer(state=np.zeros(0, np.uint8), values=torch.zeros(0, 0)),
}


@pytest.mark.parametrize("what", WRONG_ANSWERS)
def test_an_answer_that_does_not_fit_the_question_ends_the_session(what):
    own, theirs = memory_channels("shop", "bank", timeout_s=5)
    theirs.send(WRONG_ANSWERS[what])
    with pytest.raises(ProtocolError, match=r"^bank: ScoreAnswer"):
        AskedLabelParty(channel=own, run=RUN, probabilities=True).ask([(None, torch.zeros(1, WIDTH))])


def question(values, **more):
    return ScoreQuestion(**{"number": 0, "run": RUN, **more}, values=Array.of(values))


FIRST = len(batches().members[0])
WRONG_QUESTIONS = {
    "by a batch, of none": (False, question(torch.zeros(FIRST, WIDTH), batch=0)),
    "of none, by a batch": (True, question(torch.zeros(FIRST, WIDTH))),
    "a batch that there is not": (True, question(torch.zeros(FIRST, WIDTH), batch=len(batches().members))),
    "a batch beyond all numbers": (True, question(torch.zeros(FIRST, WIDTH), batch=(1 << 63) - 1)),
    "a part of a batch": (True, question(torch.zeros(FIRST - 1, WIDTH), batch=0)),
    "more than a batch": (True, question(torch.zeros(FIRST + 1, WIDTH), batch=0)),
    "another width": (False, question(torch.zeros(1, WIDTH + 1))),
    "no rows of some width": (False, question(torch.zeros(0, WIDTH + 1))),
    "a row of no width": (False, question(torch.zeros(1, 0))),
    "three dimensions": (False, question(torch.zeros(1, WIDTH, 1))),
    "no dimension": (False, question(torch.tensor(1.0))),
    "double": (False, question(torch.zeros(1, WIDTH, dtype=torch.float64))),
    "not finite": (False, question(torch.full((1, WIDTH), torch.inf))),
    "too many rows": (False, question(torch.zeros(1025, WIDTH))),
}
MALFORMED = {
    "a batch below 0": question(torch.zeros(FIRST, WIDTH), batch=-1),
    "a number below 0": question(torch.zeros(1, WIDTH), number=-1),
    "a long run": question(torch.zeros(1, WIDTH), run="0" * 17),
}
MALFORMED_ANSWERS = {"a number below 0": answer(number=-1), "another refusal": answer(refusal="later")}


@pytest.mark.parametrize("wrong", [*MALFORMED.values(), *MALFORMED_ANSWERS.values()], ids=[*MALFORMED, *MALFORMED_ANSWERS])
def test_what_does_not_match_its_schema_ends_the_session(wrong):
    own, theirs = memory_channels("shop", "bank", timeout_s=5)
    own.send(wrong)
    with pytest.raises(ProtocolError, match=r"does not match its schema"):
        theirs.receive(type(wrong))


@pytest.mark.parametrize("what", WRONG_QUESTIONS)
def test_a_question_that_was_not_agreed_on_ends_the_session(what):
    batched, asked_wrongly = WRONG_QUESTIONS[what]
    own, theirs = memory_channels("shop", "bank", timeout_s=5)
    own.send(asked_wrongly)
    own.send(question(torch.zeros(0, 0), last=True))
    with pytest.raises(ProtocolError, match=r"^shop: ScoreQuestion"):
        answer_with_scores(theirs, {RUN: Scorer()}, width=WIDTH, rows=all_batched()["rows"] if batched else None)


def test_the_largest_numbers_of_a_partner_are_scored_or_refused_and_never_infinite():
    """Embeddings of a partner's choice, finite and huge, may overflow in the top model; a score is still a probability."""
    own, theirs = memory_channels("shop", "bank", timeout_s=5)
    own.send(question(torch.full((1, WIDTH), torch.finfo(torch.float32).max)))
    own.send(question(torch.zeros(0, 0), last=True))
    answer_with_scores(theirs, {RUN: Scorer()}, width=WIDTH, rows=None)
    said = own.receive(ScoreAnswer)
    assert said.state.numpy(1).tolist() == [HERE]
    assert 0 <= float(said.values.tensor(1, 1)) <= 1


def test_embeddings_that_give_no_number_end_the_session():
    class Overflowing:
        def joint(self, _cuts_BD, _own_B):
            return {"score": np.array([np.nan], dtype=np.float32)}

    own, theirs = memory_channels("shop", "bank", timeout_s=5)
    own.send(question(torch.full((1, WIDTH), torch.finfo(torch.float32).max)))
    with pytest.raises(ProtocolError, match=r"^shop: ScoreQuestion: its embeddings give no finite score"):
        answer_with_scores(theirs, {RUN: Overflowing()}, width=WIDTH, rows=None)
