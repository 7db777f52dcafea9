"""All that a party sees of a session, training and scoring together, fits any data of the other party, to the bit.

For other data of the other party there are coins of it with which this party receives the same words: each received word holds a
coin that no other one holds. Only the shares of what is opened differ: of scores by the difference of the scores, and of the
count at the edge not at all, for no score comes near it here.
"""

import numpy as np
import pytest

from tallystick.secret_sharing import head
from tallystick.secret_sharing.ring import MaskStream

from .sides3 import SEEDS, run
from .test_head import data, plan_of

PLAN = plan_of(rows=60, columns=(4, 5), epochs=1, batch=20, rate=0.3, weighted=True)
SCORED = 30


def coins_of_messages(*, of_feature):
    """Which draw of the other party hides each message that a party receives, and with which sign: its peer's, the helper's."""
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
    draws = [*matrices.items(), *list(exchanged.items()) * PLAN.steps, *edge.items(), *scoring.items()]
    draws = [(name, sign) for name, sign in draws if of_feature or not name.startswith("dealt")]  # the feature party draws them
    from_helper = ("product", "gradient", *(name for name, _ in draws if name.startswith("dealt")))
    numbered = [(name in from_helper, (number, sign)) for number, (name, sign) in enumerate(draws)]
    return {"helper": [coin for dealt, coin in numbered if dealt], "peer": [coin for dealt, coin in numbered if not dealt]}


def session(monkeypatch, label_ND, feature_NE, labels_NC, scored, decay, row_weights_N, *, coins, of_feature):
    """Train and score; the draws of one party have these words added, by the draw's number."""

    class Programmed(MaskStream):
        def __init__(self, seed):
            super().__init__(seed)
            self.number = 0 if seed == SEEDS[not of_feature] else None

        def draw(self, *shape):
            words = super().draw(*shape)
            if self.number is None:
                return words
            self.number += 1
            added = coins.get(self.number - 1)
            return words if added is None else words + added.reshape(shape)

    def label(side):
        weights, edge_E1 = head.train_head_label_party(label_ND, labels_NC, side, PLAN, decay=decay, row_weights_N=row_weights_N)
        scores_NC = head.open_scores_label_party(
            head.score_shares(lambda rows_B: scored[0][rows_B], SCORED, weights, side), side.peer
        )
        head.open_edge_label_party(edge_E1, side.peer)
        return scores_NC

    def feature(side):
        weights, edge_E1 = head.train_head_feature_party(feature_NE, side, PLAN)
        head.open_scores_feature_party(head.score_shares(lambda rows_B: scored[1][rows_B], SCORED, weights, side), side.peer)
        head.open_edge_feature_party(edge_E1, side.peer)

    def helper(dealer):
        head.deal_training(dealer, PLAN)
        head.deal_scoring(dealer, PLAN.columns, SCORED, PLAN.outputs)

    with monkeypatch.context() as patch:
        patch.setattr("tallystick.secret_sharing.sides.MaskStream", Programmed)
        scores_NC, _, views = run(label, feature, helper)
    view = views["label" if of_feature else "feature"]
    edges = [words.item() for kind, words in view["peer"] if kind == "EdgeShares"]
    return scores_NC, edges, view | {"peer": [each for each in view["peer"] if each[0] != "EdgeShares"]}


@pytest.mark.parametrize("of_feature", [True, False])
def test_a_party_s_whole_view_fits_other_data_of_the_other_party(of_feature, monkeypatch):
    label_ND, feature_NE, labels_NC = data(PLAN)
    rng = np.random.default_rng(5)
    scored = [rng.uniform(-2, 2, (SCORED, width)) for width in PLAN.columns]
    other = [rng.uniform(-2, 2, (SCORED, width)) for width in PLAN.columns]
    counts_N = rng.uniform(0.1, 2, PLAN.rows)
    own = label_ND, feature_NE, labels_NC, scored, 0.1, counts_N
    changed = (
        (label_ND, rng.uniform(-2, 2, feature_NE.shape), labels_NC, (scored[0], other[1]), 0.1, counts_N)
        if of_feature
        else (rng.uniform(-2, 2, label_ND.shape), feature_NE, 1 - labels_NC, (other[0], scored[1]), 0.4, counts_N**2)
    )
    places, coins = coins_of_messages(of_feature=of_feature), {}
    scores_NC, edges, seen = session(monkeypatch, *own, coins={}, of_feature=of_feature)
    while True:
        found_NC, other_edges, view = session(monkeypatch, *changed, coins=coins, of_feature=of_feature)
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
    left = {source: len(seen[source]) - len(each) for source, each in places.items()}
    assert left == {"helper": 0, "peer": int(of_feature)}, "each message but the scores has a coin"
    assert len(edges) == int(of_feature)
    assert [(one - two) % 2**64 for one, two in zip(edges, other_edges, strict=True)] in ([], [0])
    if of_feature:
        shares = [each["peer"][-1][1].view(np.int64) for each in (seen, view)]
        assert np.array_equal(shares[1] - shares[0], np.rint((found_NC - scores_NC) * 2**head.OPENED_BITS).astype(np.int64))
