"""Protocols over channels: K client threads and a server, plain and securely summed, and what happens when one misbehaves."""

import math
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tallystick.errors import ConfigError, DataError, PeerError, PeerLost, PeerStopped, ProtocolError
from tallystick.evaluation.private.aggregation import SecureSum
from tallystick.evaluation.private.bins import RANK_GRID_BINS, Population
from tallystick.evaluation.private.histogram import LabelHistogram, RecordHistogram
from tallystick.evaluation.private.protocol import (
    NoisyScoreRows,
    PublicBins,
    PublicResult,
    client,
    noisy_scores_client,
    noisy_scores_server,
    server,
)
from tallystick.evaluation.private.ranks import RandomisedResponse, TwoStatistics
from tallystick.evaluation.private.scores import NoisyScores
from tallystick.evaluation.private.thresholds import ThresholdCounts
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array
from tallystick.privacy.events import NotPrivate, PureDP
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.masks import Join, MaskedTerms, Roster, Term
from tallystick.privacy.noise import SecureNoise

pytestmark = pytest.mark.unseeded
CLIENTS = 4
ROWS = 4000
ASSUMED = Population(rows=ROWS, positive_rate=0.3, auc=0.75)


def scored_rows(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    labels = rng.random(rows) < ASSUMED.positive_rate
    return labels, ASSUMED.score(rng.normal(size=rows) + labels * ASSUMED.separation)


def pairs(clients=CLIENTS, timeout_s=120.0):
    both = [memory_channels("server", f"client{k}", timeout_s=timeout_s) for k in range(clients)]
    return [first for first, _ in both], [second for _, second in both]


def run(mechanism, parts, *, ledgers=None):
    at_server, at_clients = pairs(len(parts))
    with ThreadPoolExecutor(len(parts)) as pool:
        answers = [
            pool.submit(
                client,
                *part,
                channel,
                mechanism=mechanism,
                noise=SecureNoise(),
                ledger=ledgers[k] if ledgers else None,
                dataset="test",
            )
            for k, (part, channel) in enumerate(zip(parts, at_clients, strict=True))
        ]
        result = server(at_server, mechanism=mechanism, assumed=ASSUMED)
        return result, [answer.result() for answer in answers]


def split(labels, scores, clients=CLIENTS):
    owner = np.arange(len(labels)) % clients
    return [(labels[owner == k], scores[owner == k]) for k in range(clients)]


# The noise comes from the operating system. The tolerances of an AUC are at least 41 of its predicted standard deviations, plus
# the paper grid's error: Laplace tails pass them with a chance below exp(-41 sqrt(2)) < 1e-25. What is asserted of messages,
# counts and errors holds whatever the noise, the keys and the masks are, except where a test says its chance, and but for noise
# that takes all positives away, so that no AUC is released: 100 or more of them at an epsilon of 5, a chance below exp(-100).
MECHANISMS = {
    "thresholds": (ThresholdCounts(epsilon=2000), 0.01),
    "thresholds-gaussian": (ThresholdCounts(epsilon=200, kind="gaussian", delta=1e-6), 0.01),
    "randomised-response": (RandomisedResponse(epsilon=8), 0.02),
    "label-histogram": (LabelHistogram(epsilon=50), 0.002),
    "record-histogram": (RecordHistogram(epsilon=50), 0.005),
    "two-statistics": (TwoStatistics(epsilon=50), 0.002),
    "secure-sum-ranks": (SecureSum(inner=TwoStatistics(epsilon=50)), 0.002),
    "secure-sum-histogram": (SecureSum(inner=LabelHistogram(epsilon=50)), 0.002),
    "secure-sum-records": (SecureSum(inner=RecordHistogram(epsilon=50), honest=3), 0.005),
    "secure-sum-thresholds": (SecureSum(inner=ThresholdCounts(epsilon=2000)), 0.01),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_party_learns_an_auc_close_to_the_exact_one_and_the_ledgers_hold_the_event(name, tmp_path):
    """Tolerances are in ``MECHANISMS``: at least 41 predicted deviations, exceeded with a chance below 1e-25."""
    mechanism, tolerance = MECHANISMS[name]
    labels, scores = scored_rows()
    ledgers = [Ledger.create(tmp_path / f"{k}.ledger", party=f"client{k}") for k in range(CLIENTS)]
    result, answers = run(mechanism, split(labels, scores), ledgers=ledgers)
    assert result.auc == pytest.approx(roc_auc_score(labels, scores), abs=tolerance)
    assert result.rows == ROWS
    assert result.clients == CLIENTS
    assert {answer.auc for answer in answers} == {result.auc}
    assert [[entry.event for entry in ledger.entries("test")] for ledger in ledgers] == [[mechanism.event]] * CLIENTS


def test_a_small_epsilon_works_securely_summed_and_is_spent_once(tmp_path):
    labels, scores = scored_rows(rows=20_000)
    ledgers = [Ledger.create(tmp_path / f"{k}.ledger", party=f"client{k}") for k in range(2)]
    mechanism = SecureSum(inner=TwoStatistics(epsilon=0.5))
    result, _ = run(mechanism, split(labels, scores, 2), ledgers=ledgers)
    assert result.auc == pytest.approx(roc_auc_score(labels, scores), abs=20 * result.predicted_sd)  # exp(-20 sqrt(2)) < 1e-12
    assert result.predicted_sd < 0.003
    assert [ledger.total("test") for ledger in ledgers] == [0.5, 0.5]


@pytest.mark.parametrize(
    "inner",
    [TwoStatistics(epsilon=1e-4), ThresholdCounts(epsilon=0.01), LabelHistogram(epsilon=5e-5), RecordHistogram(epsilon=1e-4)],
)
def test_an_epsilon_too_small_for_shares_is_refused_before_there_is_anything_to_send(inner):
    with pytest.raises(ConfigError, match=r"epsilon is .* take a larger epsilon, at least"):
        SecureSum(inner=inner)


def test_client_without_rows_and_clients_of_one_class_take_part():
    """The tolerance is that of ``MECHANISMS``, with a chance below 1e-25."""
    labels, scores = scored_rows()
    parts = [(labels[labels], scores[labels]), (labels[~labels], scores[~labels]), (labels[:0], scores[:0])]
    result, _ = run(SecureSum(inner=TwoStatistics(epsilon=50)), parts)
    assert result.auc == pytest.approx(roc_auc_score(labels, scores), abs=0.002)


class Recorder:
    """A channel that keeps what is received over it."""

    def __init__(self, channel):
        self.channel, self.peer, self.received, self.terms = channel, channel.peer, [], []

    def send(self, message):
        self.channel.send(message)

    def receive(self, kind):
        message = self.channel.receive(kind)
        self.received.append(message)
        if kind is Term:
            self.terms.append(message.values.numpy())
        return message


def test_a_secure_sum_hides_each_clients_number_of_rows():
    """The words' size fails it with a chance below 4e-7, as stated there."""
    labels, scores = scored_rows(rows=1300)
    counts = (37, 863, 400)
    parts = list(zip(np.split(labels, np.cumsum(counts)[:2]), np.split(scores, np.cumsum(counts)[:2]), strict=True))
    at_server, at_clients = pairs(3)
    seen = [Recorder(channel) for channel in at_server]
    mechanism = SecureSum(inner=RecordHistogram(epsilon=5))
    assert "the number of rows" in mechanism.reveals
    with ThreadPoolExecutor(3) as pool:
        for part, channel in zip(parts, at_clients, strict=True):
            pool.submit(client, *part, channel, mechanism=mechanism, noise=SecureNoise())
        assert server(seen, mechanism=mechanism, assumed=ASSUMED).rows == 1300
    for channel in seen:
        assert {type(message) for message in channel.received} == {Join, Term}
        # Uniform words: one of three clients' 258 is below 2^32 in size with probability 774 / 2^31, below 4e-7.
        assert min(np.abs(term.astype(np.float64)).min() for term in channel.terms) > 2**32


@pytest.mark.parametrize("rows", [-5, 2**60])
def test_a_number_of_rows_that_cannot_be_is_refused(rows):
    at_server, at_client = memory_channels("server", "client", timeout_s=1)
    at_client.send(Term(values=Array.of(np.array([rows]))))
    with pytest.raises(ProtocolError, match=f"row counts add up to {rows}"):
        server([at_server], mechanism=RecordHistogram(epsilon=1), assumed=ASSUMED)


def test_masked_terms_look_nothing_like_the_counts_and_cancel_in_the_sum():
    """A small word, or two equal ones, fail it with a chance below 3e-9, as stated there; the sum holds for all masks."""
    labels, scores = scored_rows(rows=400)
    at_server, at_clients = pairs(3)
    seen = [Recorder(channel) for channel in at_server]
    mechanism = SecureSum(inner=LabelHistogram(epsilon=5))
    with ThreadPoolExecutor(3) as pool:
        for part, channel in zip(split(labels, scores, 3), at_clients, strict=True):
            pool.submit(client, *part, channel, mechanism=mechanism, noise=SecureNoise())
        server(seen, mechanism=mechanism, assumed=ASSUMED)
    histograms = [channel.terms[0] for channel in seen]
    for histogram in histograms:
        # Uniform 64-bit words: one of three clients' 4,096 is below 2^20 in size with probability 3 * 4096 / 2^43, below 2e-9;
        # two of a client's are the same with probability 3 * 4096^2 / 2^65, below 2e-12.
        assert np.abs(histogram.astype(np.float64)).min() > 2**20
        assert len(np.unique(histogram)) == len(histogram)
    total = sum(histogram.view(np.uint64) for histogram in histograms).view(np.int64)
    assert total.sum() == 400
    assert total.min() >= 0


def test_a_client_that_drops_out_between_the_rounds_ends_it_for_all_by_name():
    """It holds for all keys and masks: no sum is released, so no noise can make it fail."""
    labels, scores = scored_rows(rows=400)
    patient, brief = pairs(2), pairs(3, timeout_s=2.0)
    at_server, at_clients = [*patient[0], brief[0][2]], [*patient[1], brief[1][2]]
    mechanism = SecureSum(inner=TwoStatistics(epsilon=5))

    def leave(channel):
        MaskedTerms(channel).send(np.zeros(RANK_GRID_BINS, dtype=np.int64))  # then nothing more

    with ThreadPoolExecutor(3) as pool:
        stay = [pool.submit(client, labels, scores, at_clients[k], mechanism=mechanism, noise=SecureNoise()) for k in (0, 1)]
        pool.submit(leave, at_clients[2])
        with pytest.raises(PeerLost, match="client2") as caught:
            server(at_server, mechanism=mechanism, assumed=ASSUMED)
        (note,) = caught.value.__notes__  # once
        assert "the server knows the score histogram over all clients" in note
        assert "a new round without client2 would show client2's own exact score histogram" in note
        for future, channel in zip(stay, at_clients[:2], strict=True):
            with pytest.raises(PeerStopped, match=re.escape(note)):
                future.result()
            assert channel._inbox.empty()  # told once


def test_a_client_that_drops_out_before_the_first_sum_may_be_left_out_of_a_new_round():
    """It holds for all keys: no sum is released, so no noise can make it fail."""
    labels, scores = scored_rows(rows=400)
    patient, brief = pairs(2), pairs(3, timeout_s=2.0)
    at_server, at_clients = [*patient[0], brief[0][2]], [*patient[1], brief[1][2]]
    mechanism = SecureSum(inner=TwoStatistics(epsilon=5))
    with ThreadPoolExecutor(3) as pool:
        stay = [pool.submit(client, labels, scores, at_clients[k], mechanism=mechanism, noise=SecureNoise()) for k in (0, 1)]
        pool.submit(MaskedTerms, at_clients[2])  # a key, then nothing more
        with pytest.raises(PeerLost, match="client2"):
            server(at_server, mechanism=mechanism, assumed=ASSUMED)
        for future in stay:
            with pytest.raises(PeerStopped, match="nothing was released, start a new round without it"):
                future.result()
    result, _ = run(mechanism, split(labels, scores, 2))
    assert result.clients == 2


def test_too_few_clients_for_the_stated_honest_number_is_refused_by_the_clients():
    labels, scores = scored_rows(rows=100)
    at_server, at_clients = pairs(2, timeout_s=2.0)
    mechanism = SecureSum(inner=TwoStatistics(epsilon=5), honest=3)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(client, labels, scores, c, mechanism=mechanism, noise=SecureNoise()) for c in at_clients]
        with pytest.raises(PeerLost):
            server(at_server, mechanism=mechanism, assumed=ASSUMED)
        for future in futures:
            with pytest.raises(ProtocolError, match="at least 3 are due"):
                future.result()


@pytest.mark.parametrize("keys", [(b"\0" * 32,), (b"\0" * 31, b"\1" * 32), (b"x" * 32, b"x" * 32)])
def test_a_roster_without_the_clients_own_key_is_refused(keys):
    at_server, at_client = memory_channels("server", "client", timeout_s=1)
    at_server.send(Roster(public_keys=keys, position=0))
    with pytest.raises(ProtocolError, match=r"roster|at least"):
        client(*scored_rows(rows=10), at_client, mechanism=SecureSum(inner=TwoStatistics(epsilon=1)), noise=SecureNoise())


def test_a_public_key_of_small_order_is_refused():
    at_server, at_client = memory_channels("server", "client", timeout_s=5)
    with ThreadPoolExecutor(1) as pool:
        mechanism = SecureSum(inner=TwoStatistics(epsilon=1))
        future = pool.submit(client, *scored_rows(rows=10), at_client, mechanism=mechanism, noise=SecureNoise())
        own = at_server.receive(Join).public_key
        at_server.send(Roster(public_keys=(own, bytes(32)), position=0))
        with pytest.raises(ProtocolError, match="usable X25519"):
            future.result()


def test_an_answer_of_the_wrong_length_is_the_clients_fault():
    at_server, at_client = memory_channels("server", "client", timeout_s=1)
    at_client.send(Term(values=Array.of(np.zeros(17, dtype=np.int64))))
    with pytest.raises(ProtocolError, match="client broke the protocol"):
        server([at_server], mechanism=LabelHistogram(epsilon=1), assumed=ASSUMED)


@pytest.mark.parametrize(
    ("edges", "totals"),
    [
        ([0.5, 0.4], [1, 1, 1]),
        ([0.5], [1, -1]),
        ([0.5], [1, 1, 1]),
        ([float("nan")], [1, 1]),
        ([0.3, 0.6], [2**62] * 3),  # their sum overflows, and with it the ranks leave [-1/2, 1/2]
        ([0.3, 0.6], [2**62, 2**62, 0]),
    ],
)
def test_bins_that_would_break_the_sensitivity_are_refused(edges, totals):
    at_server, at_client = memory_channels("server", "client", timeout_s=1)
    at_server.send(PublicBins(edges=Array.of(np.array(edges)), totals=Array.of(np.array(totals))))
    with pytest.raises(ProtocolError, match="bin"):
        client(*scored_rows(rows=10), at_client, mechanism=TwoStatistics(epsilon=1), noise=SecureNoise())


@pytest.mark.parametrize("totals", [-1, 2**61])
def test_histograms_that_cannot_add_up_end_the_round(totals):
    pairs_of = [memory_channels("server", f"client{k}", timeout_s=1) for k in range(2)]
    for _, at_client in pairs_of:
        at_client.send(Term(values=Array.of(np.full(RANK_GRID_BINS, totals, dtype=np.int64))))
    with pytest.raises(ProtocolError, match="one of them is not honest"):
        server([at_server for at_server, _ in pairs_of], mechanism=TwoStatistics(epsilon=1), assumed=ASSUMED)


def test_no_positives_over_all_clients_ends_in_a_clear_error_for_everyone():
    _, scores = scored_rows(rows=300)
    at_server, at_clients = pairs(2)
    mechanism = LabelHistogram(epsilon=20, count=4)  # its noise adds up to a positive with a chance below 1e-7
    labels = np.zeros(150, dtype=bool)
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(client, labels, scores[:150], channel, mechanism=mechanism, noise=SecureNoise()) for channel in at_clients
        ]
        with pytest.raises(DataError, match="too few"):
            server(at_server, mechanism=mechanism, assumed=ASSUMED)
        for future in futures:
            with pytest.raises(PeerStopped, match="too few"):
                future.result()


def test_noisy_scores_pool_over_channels_and_count_as_not_private(tmp_path):
    labels, scores = scored_rows()
    at_server, at_clients = pairs(2)
    mechanism = NoisyScores(epsilon=1000)
    ledger = Ledger.create(tmp_path / "ledger", party="client0")
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(
                noisy_scores_client, *part, channel, mechanism=mechanism, noise=SecureNoise(), ledger=ledger, dataset="test"
            )
            for part, channel in zip(split(labels, scores, 2), at_clients, strict=True)
        ]
        auc = noisy_scores_server(at_server, mechanism=mechanism)
        assert {future.result() for future in futures} == {auc}
    assert auc == pytest.approx(roc_auc_score(labels, scores), abs=0.002)  # 26 predicted sds: below 1e-20
    assert [entry.event for entry in ledger.entries()] == [NotPrivate(), NotPrivate()]
    assert ledger.not_private("test") == ledger.entries()
    assert ledger.total("test") == 0


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, math.nan], [0, 1], "noisy score 1 is nan"),
        ([-math.inf, 0.5], [0, 1], "noisy score 0 is -inf"),
        ([0.1, 0.5], [0, 2], "a label is neither"),
        ([[0.1, 0.5]], [0, 1], "array has shape"),
    ],
)
def test_noisy_scores_that_are_none_end_the_round_by_name(scores, labels, message):
    at_server, at_clients = pairs(2)
    for channel, rows in zip(at_clients, ([0.2, 0.8], scores), strict=True):
        as_sent = np.array(labels, dtype=np.uint8).view(bool)
        channel.send(NoisyScoreRows(scores=Array.of(np.array(rows)), labels=Array.of(as_sent)))
    at_server, at_clients = at_server[::-1], at_clients[::-1]  # the one that is wrong answers first
    with pytest.raises(ProtocolError, match=f"client1 broke the protocol: {message}"):
        noisy_scores_server(at_server, mechanism=NoisyScores(epsilon=1))
    with pytest.raises(PeerStopped, match="client1 dropped out"):
        at_clients[1].receive(PublicResult)


def test_noisy_scores_of_one_class_end_in_a_clear_error_for_everyone():
    at_server, at_clients = pairs(2)
    for channel in at_clients:
        channel.send(NoisyScoreRows(scores=Array.of(np.array([0.2, 0.8])), labels=Array.of(np.array([False, False]))))
    with pytest.raises(DataError, match="all of one class"):
        noisy_scores_server(at_server, mechanism=NoisyScores(epsilon=1))
    for channel in at_clients:
        with pytest.raises(PeerStopped, match="all of one class"):
            channel.receive(PublicResult)


def test_a_masked_sum_over_one_client_and_a_sum_over_none_are_refused():
    at_server, _ = pairs(1)
    with pytest.raises(ConfigError, match="at least 2 clients"):
        server(at_server, mechanism=SecureSum(inner=TwoStatistics(epsilon=1)), assumed=ASSUMED)
    with pytest.raises(ConfigError, match="no client"):
        server([], mechanism=TwoStatistics(epsilon=1), assumed=ASSUMED)


def test_a_cap_refuses_before_the_answer_leaves(tmp_path):
    from tallystick.privacy.ledger import BudgetExceeded, Cap

    ledger = Ledger.create(tmp_path / "ledger", party="client0")
    ledger.set_cap("test", Cap(epsilon=1.5))
    ledger.spend("test", PureDP(epsilon=1), what="earlier")
    at_server, at_client = memory_channels("server", "client0", timeout_s=1)
    mechanism = RecordHistogram(epsilon=1)
    with pytest.raises(BudgetExceeded, match=r"cap of 1\.5"):
        client(*scored_rows(rows=10), at_client, mechanism=mechanism, noise=SecureNoise(), ledger=ledger, dataset="test")
    with pytest.raises(PeerError):
        server([at_server], mechanism=mechanism, assumed=ASSUMED)
    assert ledger.total("test") == 1
