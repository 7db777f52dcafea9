"""All that a party sees of a session, training and scoring together, is consistent with any data of another party, to the bit.

For other data that party has coins with which all the others, together, receive the same words: each word that it sends contains
a coin that no other word contains. Only the shares of opened values differ: those of scores by the difference of the scores, and
those of the count at the edge not at all, because no score comes near it here.
"""

import numpy as np
import pytest

from tallystick.secret_sharing import head
from tallystick.secret_sharing.ring import MaskStream
from tallystick.secret_sharing.sides import ShareHolder

from .sides3 import SEEDS, run
from .test_head import data, plan_of

PLANS = {
    parties: plan_of(rows=60, columns=columns, epochs=1, batch=20, rate=0.3, weighted=True)
    for parties, columns in ((2, (4, 5)), (4, (4, 5, 2, 3)))
}
SCORED = 30


def coins_of_messages(steps, *, of_feature):
    """Return which draw of a party hides each message of its own, and each correction, and with which sign."""
    exchanged = {
        "weights": -1,
        "product": -1,
        "sigmoid": 1,
        "dealt": -1,
        "row weights": -1,
        "dealt row weights": -1,
        "weighted errors": 1,
        "dealt weighted errors": -1,
        "errors": -1,
        "gradient": -1,
        "decay": -1,
        "dealt decay": -1,
        "step": 1,
        "dealt step": -1,
    }
    edge = {"edge": 1, "dealt edge": -1}
    matrices = {"factors": -1, "dealt products": -1, "features": -1}
    scoring = {**matrices, "weights": -1, "product": -1, "scores": 1, "dealt scores": -1}
    draws = [*matrices.items(), *list(exchanged.items()) * steps, *edge.items(), *scoring.items()]
    from_helper = {"product", "gradient", *(name for name, _ in draws if name.startswith("dealt"))}
    draws = [(name, sign) for name, sign in draws if of_feature or name not in from_helper]  # feature parties draw these
    numbered = [(name in from_helper, (number, sign)) for number, (name, sign) in enumerate(draws)]
    return {"helper": [coin for dealt, coin in numbered if dealt], "peer": [coin for dealt, coin in numbered if not dealt]}


def session(monkeypatch, plan, columns, labels_NC, scored, decay, row_weights_N, *, coins, hidden):
    """Train and score.

    These words are added to the draws of the party at the place ``hidden``, by the draw's number. Return the scores, the hidden
    party's shares of the count at the edge, what it showed and what the helper dealt to another, and all that the others
    received.
    """
    seed = SEEDS[hidden == 0] if hidden < 2 else bytes([hidden]) * 32

    class Programmed(MaskStream):
        def __init__(self, given):
            super().__init__(given)
            self.number = 0 if given == seed else None

        def draw(self, *shape):
            words = super().draw(*shape)
            if self.number is None:
                return words
            self.number += 1
            added = coins.get(self.number - 1)
            return words if added is None else words + added.reshape(shape)

    def scores(side, weights_WC):
        return head.score_shares(lambda rows_B: scored[side.place][rows_B], SCORED, weights_WC, plan.columns, side)

    def label(side):
        weights_WC, edge_E1 = head.train_head_label_party(
            columns[0], labels_NC, side, plan, decay=decay, row_weights_N=row_weights_N
        )
        scores_NC = head.open_scores_label_party(scores(side, weights_WC), side.peers)
        head.open_edge_label_party(edge_E1, side.peers)
        return scores_NC

    def feature(side):
        weights_WC, edge_E1 = head.train_head_feature_party(columns[side.place], side, plan)
        head.open_scores_feature_party(scores(side, weights_WC), *side.peers)
        head.open_edge_feature_party(edge_E1, *side.peers)

    def helper(dealer):
        head.deal_training(dealer, plan)
        head.deal_scoring(dealer, plan.columns, SCORED, plan.outputs)

    shown = []

    def watched(exchange):
        def watch(side, kind, words, *more, **named):
            if side.place == hidden:
                shown.append((kind.__name__, words))
            return exchange(side, kind, words, *more, **named)

        return watch

    with monkeypatch.context() as patch:
        patch.setattr("tallystick.secret_sharing.sides.MaskStream", Programmed)
        for name in ("exchange", "exchange_each"):
            patch.setattr(ShareHolder, name, watched(getattr(ShareHolder, name)))
        scores_NC, *_, views = run(label, [feature] * (len(columns) - 1), helper)
    names = list(views)
    told = views["label"]["peers"][hidden - 1] if hidden else []
    edges = [words.item() for kind, words in told if kind == "EdgeShares"]
    dealt = views["label"]["helper"] if hidden else []
    several = len(columns) - 1  # corrections of products, of training and of scoring, of which each is one feature party's
    products = [*range(several), *range(len(dealt) - several - 2, len(dealt) - 2)]
    not_its_own = {number for place, number in enumerate(products) if place % several != hidden - 1}
    view = {
        "peer": [*shown, *(each for each in told if each[0] == "ScoreShares")],
        "helper": [each for number, each in enumerate(dealt) if number not in not_its_own],
    }
    others = [
        words
        for name in names
        if name != names[hidden]
        for kind, words in (*views[name]["peer"], *views[name]["helper"])
        if "Shares" not in kind
    ]
    return scores_NC, edges, view, others


@pytest.mark.parametrize(
    ("parties", "hidden"), [*(pytest.param(2, hidden, marks=pytest.mark.long) for hidden in (0, 1)), (4, 0), (4, 2)]
)
def test_the_whole_view_of_all_other_parties_together_fits_other_data_of_a_party(parties, hidden, monkeypatch):
    plan = PLANS[parties]
    *columns, labels_NC = data(plan)
    rng = np.random.default_rng(5)
    scored = [rng.uniform(-2, 2, (SCORED, width)) for width in plan.columns.counts]
    counts_N = rng.uniform(0.1, 2, plan.rows)

    def with_other(matrices, rows):
        other = rng.uniform(-2, 2, (rows, plan.columns.counts[hidden]))
        return [other if place == hidden else each for place, each in enumerate(matrices)]

    own = columns, labels_NC, scored, 0.1, counts_N
    known = (labels_NC, 0.1, counts_N) if hidden else (1 - labels_NC, 0.4, counts_N**2)
    changed = with_other(columns, plan.rows), known[0], with_other(scored, SCORED), *known[1:]
    places, coins = coins_of_messages(plan.steps, of_feature=hidden > 0), {}
    scores_NC, edges, seen, others = session(monkeypatch, plan, *own, coins={}, hidden=hidden)
    while True:
        found_NC, other_edges, view, then = session(monkeypatch, plan, *changed, coins=coins, hidden=hidden)
        different = [
            (coin, (wanted - words).ravel())
            for source, each in places.items()
            for coin, (_, wanted), (_, words) in zip(each, seen[source], view[source], strict=False)
            if not np.array_equal(wanted, words)
        ]
        if not different:
            break
        (number, sign), difference = min(different, key=lambda each: each[0])
        assert number not in coins, "a coin hides two messages"
        coins[number] = difference if sign > 0 else np.uint64(0) - difference
    assert all(np.array_equal(*each) for each in zip(others, then, strict=True))
    left = {source: len(seen[source]) - len(each) for source, each in places.items()}
    assert left == {"helper": 0, "peer": int(hidden > 0)}, "each message but the scores has a coin"
    assert len(edges) == int(hidden > 0)
    assert [(one - two) % 2**64 for one, two in zip(edges, other_edges, strict=True)] in ([], [0])
    if hidden:
        shares = [each["peer"][-1][1].view(np.int64) for each in (seen, view)]
        assert np.array_equal(shares[1] - shares[0], np.rint((found_NC - scores_NC) * 2**head.OPENED_BITS).astype(np.int64))
