"""What a party receives is uniform, given everything that it holds itself, and the same for other columns and labels of the other
side.

Each message alone may look uniform while it reveals something together with own shares and own coins. So each received word is
looked at alone, and also added to and subtracted from the word that this party sent in the same exchange, which holds its share
and its coins.
"""

from functools import cache

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from tallystick.secret_sharing import head
from tallystick.secret_sharing.ring import MaskStream
from tallystick.secret_sharing.sides import ShareHolder
from tallystick.secret_sharing.sine import TURN_BITS

from .sides3 import run
from .test_head import DECAY, data, plan_of, trained

BINS = 64
PLACES = {"MaskedScores": TURN_BITS}
"""Places of a message's words, if they are not 64."""
CHANCE = 1e-7
"""The chance that one of the some 60 tests of a case fails although all is uniform is below 1e-5."""


def exchanges(monkeypatch, label_ND, feature_ND, labels_NC, plan, decay=DECAY, weights_N=None):
    """Return what each party sent and received in each exchange of a training, by the message's kind, in order."""
    sent, exchange, exchange_each = {"label": [], "feature": []}, ShareHolder.exchange, ShareHolder.exchange_each

    def watched(side, kind, words, **named):
        received = exchange(side, kind, words, **named)
        sent["label" if side.is_label else "feature"].append((kind.__name__, words, received))
        return received

    def watched_each(side, kind, words, shapes):
        (received,) = exchange_each(side, kind, words, shapes)
        # Few words, which are judged separately: the weight decay, weights of rows, factors
        sent["label" if side.is_label else "feature"].append((f"{kind.__name__}, each", words, received))
        return [received]

    rng = np.random.default_rng(7)
    with monkeypatch.context() as patch:
        patch.setattr(ShareHolder, "exchange", watched)
        patch.setattr(ShareHolder, "exchange_each", watched_each)
        seeds = {who: rng.bytes(32) for who in (True, False)}
        *_, views = trained(plan, label_ND, feature_ND, labels_NC, decay, weights_N, seeds=seeds)
    return sent, views


def joint_words(kind, exchanged):
    """Return the words of a view by how they are combined, each as its first six places."""
    places = PLACES.get(kind, 64)
    alone = [received for name, _, received in exchanged if name == kind]
    sums, differences = [], []
    for name, sent, received in exchanged:
        if name == kind and sent.shape == received.shape:
            sums.append(received + sent)
            differences.append(received - sent)
    for how, words in (("alone", alone), ("plus what was sent", sums), ("less what was sent", differences)):
        if words:
            flat = np.concatenate([each.ravel() for each in words]) & np.uint64(2**places - 1)
            yield how, flat, (flat >> np.uint64(places - 6)).astype(int)


def uniform_chance(bins):
    counts = np.bincount(bins, minlength=BINS)
    expected = len(bins) / BINS
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), BINS - 1)


def same_chance(first, second):
    counts = np.array([np.bincount(each, minlength=BINS) for each in (first, second)], dtype=float)
    counts = counts[:, counts.sum(axis=0) > 0]
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), counts.shape[1] - 1)


@cache
def usual(weighted):
    """Return what crosses in a training of the usual data."""
    plan = plan_of(rows=600, epochs=4, weighted=weighted)
    with pytest.MonkeyPatch.context() as patch:
        return exchanges(patch, *data(plan), plan)[0]


def problems_of(monkeypatch, plan, *, changed, first=None):
    """List the views that are not uniform, or differ between the data and data in which one side is another."""
    label_ND, feature_ND, labels_NC = data(plan)
    other = {
        "labels": (label_ND, feature_ND, 1 - labels_NC),
        "weight decay": (label_ND, feature_ND, labels_NC),
        "weights of rows": (label_ND, feature_ND, labels_NC),
        "label party's columns": (-label_ND, feature_ND, labels_NC),
        "feature party's columns": (label_ND, feature_ND**2 / 2 - 1, labels_NC),
    }[changed]
    decay = 0.5 if changed == "weight decay" else DECAY
    weights_N = np.arange(plan.rows) % 7.0 if changed == "weights of rows" else None
    first = first or exchanges(monkeypatch, label_ND, feature_ND, labels_NC, plan)[0]
    second, _ = exchanges(monkeypatch, *other, plan, decay, weights_N)
    problems = []
    for party in ("label", "feature"):
        for kind in sorted({name for name, *_ in first[party]}):
            pairs = zip(joint_words(kind, first[party]), joint_words(kind, second[party]), strict=True)
            for (how, words, bins), (_, _, others) in pairs:
                limit = 2 ** PLACES.get(kind, 64)
                if int(words.max()) >= limit or min(uniform_chance(bins), uniform_chance(others)) < CHANCE:
                    problems.append(f"{party}: {kind} {how} is not uniform")
                if same_chance(bins, others) < CHANCE:
                    problems.append(f"{party}: {kind} {how} differs")
    return problems


CHANGES = ("labels", "weight decay", "weights of rows", "label party's columns", "feature party's columns")


@pytest.mark.parametrize("changed", CHANGES)
def test_what_a_party_receives_is_uniform_beside_what_it_holds(changed, monkeypatch):
    plan = plan_of(rows=600, epochs=4, weighted=changed == "weights of rows")
    assert problems_of(monkeypatch, plan, changed=changed, first=usual(plan.weighted)) == []


def test_what_the_helper_deals_is_uniform(monkeypatch):
    plan = plan_of(rows=600, epochs=4)
    _, views = exchanges(monkeypatch, *data(plan), plan)
    words = np.concatenate([each.ravel() for name, each in views["label"]["helper"] if name == "Correction"])
    assert uniform_chance((words >> np.uint64(58)).astype(int)) > CHANCE
    assert views["feature"]["helper"] == []  # it has its draws


def test_the_helper_is_sent_sizes_and_a_seed_and_nothing_else(monkeypatch):
    sent = []
    send = head.send_words
    monkeypatch.setattr(head, "send_words", lambda channel, kind, words: sent.append(channel.peer) or send(channel, kind, words))
    plan = plan_of()
    label_ND, feature_ND, labels_NC = data(plan)
    to_helper = []

    class Watched:
        def __init__(self, channel):
            self._channel, self.peer = channel, channel.peer

        def send(self, message):
            to_helper.append(type(message).__name__)
            self._channel.send(message)

        def receive(self, kind):
            return self._channel.receive(kind)

    begin = ShareHolder.begin.__func__

    def watched(cls, peers, helper, *, place, seed):
        return begin(cls, peers, Watched(helper), place=place, seed=seed)

    monkeypatch.setattr(ShareHolder, "begin", classmethod(watched))
    trained(plan, label_ND, feature_ND, labels_NC)
    assert to_helper == ["MaskSeed", "MaskSeed"]


UNMASKED = {
    "no mask of errors": "gradients",
    "no mask of factors": "share_products",
    "no mask of the decay": "scaled",
    "no mask of the rows' weights": "_weighted",
}


@pytest.mark.parametrize("planted", ["masks that are not reduced", "one mask twice", *UNMASKED])
def test_planted_leaks_are_found(planted, monkeypatch):
    if planted == "masks that are not reduced":
        # The prototype's leak: z + r as 64-bit words, where r has few places
        monkeypatch.setattr(MaskStream, "draw_below", lambda masks, bits, *shape: masks.draw(*shape) >> np.uint64(64 - bits + 6))
    elif planted == "one mask twice":
        draw = MaskStream.draw

        def repeated(masks, *shape):
            words = draw(masks, *shape)
            return np.broadcast_to(words.ravel()[:1], shape).copy() if len(shape) == 2 and shape[1] == 1 else words

        monkeypatch.setattr(MaskStream, "draw", repeated)
    else:
        step = UNMASKED[planted]
        monkeypatch.setattr(head, step, with_small_masks(getattr(head, step)))
    plan = plan_of(rows=600, epochs=4, weighted=planted == "no mask of the rows' weights")
    assert problems_of(monkeypatch, plan, changed="labels")


def with_small_masks(step):
    """A step of the protocol whose masks have few places."""

    def leaking(side, *arguments, **named):
        draw = side.masks.draw
        side.masks.draw = lambda *shape: draw(*shape) >> np.uint64(60)
        try:
            return step(side, *arguments, **named)
        finally:
            side.masks.draw = draw

    return leaking


def test_scores_cross_to_the_label_party_alone():
    plan = plan_of()
    label_ND, feature_ND, labels_NC = data(plan)
    of_label, of_feature, _ = trained(plan, label_ND, feature_ND, labels_NC)
    *_, views = run(
        lambda side: head.open_scores_label_party(
            head.score_shares(label_ND.__getitem__, plan.rows, of_label, plan.columns, side), side.peers
        ),
        lambda side: head.open_scores_feature_party(
            head.score_shares(feature_ND.__getitem__, plan.rows, of_feature, plan.columns, side), *side.peers
        ),
        lambda dealer: head.deal_scoring(dealer, plan.columns, plan.rows, 1),
    )
    assert "ScoreShares" in {name for name, _ in views["label"]["peer"]}
    assert "ScoreShares" not in {name for name, _ in views["feature"]["peer"]}


def auc_of_labels(sent, plan, labels_NC):
    """Return what 200 known labels show of the others by all words that crossed for a row: alone, sums, differences,
    over epochs.
    """
    batches = [rows_B for rows_B in plan.batches() for _ in range(2)]
    of_rows = [each for each in sent["feature"] if each[0] in ("MaskedScores", "MaskedErrors")]
    epochs = len(batches) // (2 * -(-plan.rows // len(batches[0])))
    words_NEF = np.zeros((plan.rows, epochs, 8))
    seen_N = np.zeros((2, plan.rows), dtype=int)
    for rows_B, (kind, own_B1, received_B1) in zip(batches, of_rows, strict=True):
        place = int(kind == "MaskedErrors")
        scale = 2.0 ** PLACES.get(kind, 64)
        parts = np.concatenate([own_B1, received_B1, own_B1 + received_B1, received_B1 - own_B1], axis=1)
        words_NEF[rows_B, seen_N[place, rows_B], 4 * place : 4 * place + 4] = (parts & np.uint64(int(scale) - 1)).astype(
            float
        ) / scale
        seen_N[place, rows_B] += 1
    looks_NF = np.concatenate([words_NEF.mean(axis=1), words_NEF[:, 0], words_NEF[:, -1]], axis=1)
    known = np.random.default_rng(3).permutation(plan.rows)
    model = LogisticRegression(C=10.0, max_iter=2000).fit(looks_NF[known[:200]] - 0.5, labels_NC[known[:200], 0])
    return roc_auc_score(labels_NC[known[200:], 0], model.decision_function(looks_NF[known[200:]] - 0.5))


def test_a_feature_party_reads_no_label_off_all_that_it_received(monkeypatch):
    # A guess is .5 with a deviation of .011 over 2,800 rows of equal classes: 5 of them, chance of failing 6e-7
    plan = plan_of(rows=3000, columns=(5, 7), epochs=5, batch=128)
    label_ND, feature_ND, labels_NC = data(plan)
    labels_NC = (np.random.default_rng(9).random(labels_NC.shape) < 0.5).astype(float)  # which own columns tell nothing of
    sent, _ = exchanges(monkeypatch, label_ND, feature_ND, labels_NC, plan)
    assert abs(auc_of_labels(sent, plan, labels_NC) - 0.5) < 0.055


def test_the_same_attack_reads_labels_off_a_planted_leak(monkeypatch):
    monkeypatch.setattr(head, "gradients", with_small_masks(head.gradients))
    plan = plan_of(rows=3000, columns=(5, 7), epochs=5, batch=128)
    label_ND, feature_ND, labels_NC = data(plan)
    labels_NC = (np.random.default_rng(9).random(labels_NC.shape) < 0.5).astype(float)
    sent, _ = exchanges(monkeypatch, label_ND, feature_ND, labels_NC, plan)
    assert auc_of_labels(sent, plan, labels_NC) > 0.9
