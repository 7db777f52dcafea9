"""A head on shares does what the same steps in floats do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import by_turns
from sklearn.metrics import roc_auc_score

from tallystick.errors import DataError
from tallystick.secret_sharing import head
from tallystick.secret_sharing.columns import HeadColumns
from tallystick.secret_sharing.feature_products import deal_products, factors_of, share_products
from tallystick.secret_sharing.head import HeadPlan
from tallystick.secret_sharing.matrix_products import (
    MaskMatrices,
    Matrices,
    deal_gradients,
    deal_scaled,
    deal_scores,
    gradients,
    scaled,
    scores,
)
from tallystick.secret_sharing.ring import to_numbers, to_words
from tallystick.secret_sharing.share_messages import MaskedScores
from tallystick.secret_sharing.sigmoid import COEFFICIENTS, PERIOD, RANGE
from tallystick.secret_sharing.sine import sines
from tallystick.secret_sharing.truncation import cut_places, deal_truncation

from .sides3 import opened, run

WORDS = st.integers(0, 2**64 - 1)
DECAY = 0.003


def plan_of(loss="logistic", *, rows=600, columns=(5, 7), outputs=1, epochs=3, batch=64, **more):
    order_N = np.random.default_rng(3).permutation(rows)
    parts = [order_N[start : start + batch] for _ in range(epochs) for start in range(0, rows, batch)]
    columns = HeadColumns(counts=columns)
    return HeadPlan(columns=columns, rows=rows, outputs=outputs, loss=loss, batches=lambda: iter(parts), steps=len(parts), **more)


def data(plan, seed=1):
    """Make columns of each party, and labels."""
    rng = np.random.default_rng(seed)
    counts = plan.columns.counts
    columns = [rng.normal(size=(plan.rows, width)).clip(-2, 2) for width in counts]
    scores_NC = np.concatenate(columns, axis=1) @ rng.normal(size=(sum(counts), plan.outputs))
    noise_NC = rng.normal(size=scores_NC.shape)
    labels_NC = (scores_NC + noise_NC > 0).astype(float) if plan.loss == "logistic" else ((scores_NC + noise_NC) / 4).clip(-8, 8)
    return *columns, labels_NC


def row_weights(plan, seed=6):
    """Make weights of rows from none to four times another's, if the plan has any."""
    rng = np.random.default_rng(seed)
    return rng.uniform(1, 4, plan.rows) * rng.integers(0, 2, plan.rows) if plan.weighted else None


def with_products(label_ND, *features):
    """Return all columns that a head has: the parties', and the products of their last ones, which are rounded to 8
    places first.
    """
    of_label_NA, *others = (
        np.rint(columns_ND[:, -most:] * 0.5 * 256) / 256
        for columns_ND, most in ((label_ND, 8), *((feature_ND, 32) for feature_ND in features))
    )
    products = [(of_label_NA[:, :, None] * each_NB[:, None, :]).reshape(len(label_ND), -1) for each_NB in others]
    return np.concatenate([label_ND, *features, *products], axis=1)


def logistic(scores_BC):
    return 1 / (1 + np.exp(-scores_BC))


def by_sines(scores_BC):
    """Compute the sum of sines that replaces the logistic function."""
    orders_K = np.arange(1, len(COEFFICIENTS) + 1)
    return 0.5 + np.sin(2 * np.pi * scores_BC[..., None] * orders_K / PERIOD) @ np.array(COEFFICIENTS)


def in_floats(label_ND, feature_ND, labels_NC, plan, function=logistic, seen=list, more=()):
    """Make the same steps in floats, with the exact logistic function or another one; ``seen`` is given each step's scores."""
    rows_ND = with_products(label_ND, feature_ND, *more)
    counts_N = row_weights(plan) if plan.weighted else np.ones(plan.rows)
    weights_DC = step_DC = np.zeros((rows_ND.shape[1], plan.outputs))
    for number, rows_B in enumerate(plan.batches()):
        scores_BC = rows_ND[rows_B] @ weights_DC
        seen(scores_BC)
        values_BC = function(scores_BC) if plan.loss == "logistic" else scores_BC
        count_B1 = (
            counts_N[rows_B][:, None]
            * len(rows_B)
            / (counts_N[rows_B].sum() or 1.0)
            / max(len(rows_B), head.LEAST_ROWS[plan.loss])
        )
        gradient_DC = rows_ND[rows_B].T @ (count_B1 * (values_BC - labels_NC[rows_B])) + DECAY * weights_DC
        step_DC = plan.momentum * step_DC - plan.rate_at(number) * gradient_DC
        weights_DC = weights_DC + step_DC
    return rows_ND, weights_DC


def trained(plan, label_ND, feature_ND, labels_NC, decay=DECAY, weights_N=None, *, further=(), **more):
    return run(
        lambda side: head.train_head_label_party(
            label_ND, labels_NC, side, plan, decay=decay, row_weights_N=row_weights(plan) if weights_N is None else weights_N
        )[0],
        [
            lambda side, columns_ND=columns_ND: head.train_head_feature_party(columns_ND, side, plan)[0]
            for columns_ND in (feature_ND, *further)
        ],
        lambda dealer: head.deal_training(dealer, plan),
        **more,
    )


def edge_count(plan, label_ND, feature_ND, labels_NC, decay=DECAY):
    """Train, and learn how often scores came near the edge."""

    def label(side):
        _, edge_E1 = head.train_head_label_party(label_ND, labels_NC, side, plan, decay=decay)
        return head.open_edge_label_party(edge_E1, side.peers)

    def feature(side):
        _, edge_E1 = head.train_head_feature_party(feature_ND, side, plan)
        head.open_edge_feature_party(edge_E1, *side.peers)

    count, *_ = run(label, feature, lambda dealer: head.deal_training(dealer, plan))
    return count


@pytest.mark.parametrize(
    ("head_of", "weighted"),
    by_turns([("logistic", 1, 0.1), ("logistic", 3, 0.1), ("squared", 1, 0.1), ("squared", 2, 0.1)], [False, True]),
)
def test_a_head_on_shares_is_the_head_in_floats(head_of, weighted):
    loss, outputs, rate = head_of
    # Scores differ by the sum of sines (.0036 in a probability) and by randomly rounded places.
    plan = plan_of(loss, outputs=outputs, rate=rate, weighted=weighted)
    label_ND, feature_ND, labels_NC = data(plan)
    label, feature, _ = trained(plan, label_ND, feature_ND, labels_NC)
    rows_ND, weights_DC = in_floats(label_ND, feature_ND, labels_NC, plan)
    found_NC = rows_ND @ to_numbers(opened(label, feature), bits=head.WEIGHT_BITS)
    assert np.abs(found_NC - rows_ND @ weights_DC).max() < 0.01 * (rows_ND @ weights_DC).std()
    if loss == "logistic":
        for label_N, on_shares_N, in_floats_N in zip(labels_NC.T, found_NC.T, (rows_ND @ weights_DC).T, strict=True):
            assert abs(roc_auc_score(label_N, on_shares_N) - roc_auc_score(label_N, in_floats_N)) < 0.0005


@pytest.mark.parametrize(("rate", "loss"), by_turns([0.01, 0.001, 1e-4], ["logistic", "squared"]))
def test_a_low_rate_keeps_the_precision(loss, rate):
    plan = plan_of(loss, rate=rate, epochs=6)
    label_ND, feature_ND, labels_NC = data(plan)
    label, feature, _ = trained(plan, label_ND, feature_ND, labels_NC)
    rows_ND, weights_DC = in_floats(label_ND, feature_ND, labels_NC, plan, by_sines)
    found_NC = rows_ND @ to_numbers(opened(label, feature), bits=head.WEIGHT_BITS)
    assert np.abs(found_NC - rows_ND @ weights_DC).max() < 0.01 * (rows_ND @ weights_DC).std()


def test_a_batch_of_weight_0_and_one_of_one_heavy_row_are_within_the_range():
    plan = plan_of(rows=192, epochs=2, rate=0.1, weighted=True)
    label_ND, feature_ND, labels_NC = data(plan)
    first, second, _ = list(plan.batches())[:3]
    weights_N = np.ones(plan.rows)
    weights_N[first] = 0.0
    weights_N[second] = 1e-9
    weights_N[second[0]] = 1e12
    label, feature, _ = trained(plan, label_ND, feature_ND, labels_NC, weights_N=weights_N)
    assert np.abs(to_numbers(opened(label, feature), bits=head.WEIGHT_BITS)).max() < 2


@pytest.mark.parametrize(("size", "is_near"), [(3.0, False), (12.0, False), (24.0, True), (31.0, True), (36.0, True)])
def test_training_scores_near_the_edge_are_counted(size, is_near):
    # Two features of 2, their product as 1, and a rate that brings their scores to this size in one step
    plan = plan_of(rows=64, columns=(1, 1), epochs=4, batch=64, rate=size / 4.5, momentum=0.0)
    ones_N1, labels_NC = np.full((64, 1), 2.0), np.full((64, 1), 1.0)
    count = edge_count(plan, ones_N1, ones_N1, labels_NC, decay=0.0)
    assert (count > 2) == is_near, count


def test_the_count_at_the_edge_is_that_of_the_scores_in_floats():
    plan = plan_of(rows=300, columns=(4, 4), epochs=8, batch=64, rate=8.0)
    label_ND, feature_ND, labels_NC = data(plan)
    count = edge_count(plan, label_ND, feature_ND, labels_NC)
    seen = []
    in_floats(label_ND, feature_ND, labels_NC, plan, by_sines, seen.append)
    expected = (np.sin(np.pi * np.concatenate(seen) / PERIOD) ** 32).sum()
    assert expected > 10
    assert abs(count - expected) < 2 + 0.05 * expected


def test_a_last_batch_of_one_row_does_not_make_squared_loss_diverge():
    # 32 features of 1 or -1: by its own mean one row's step of rate .5 would turn its score sixteen times too far.
    plan = plan_of("squared", rows=257, columns=(16, 16), epochs=8, rate=0.1)
    label_ND, feature_ND, labels_NC = data(plan)
    label_ND, feature_ND = np.sign(label_ND), np.sign(feature_ND)
    label, feature, _ = trained(plan, label_ND, feature_ND, labels_NC)
    rows_ND, weights_DC = in_floats(label_ND, feature_ND, labels_NC, plan)
    scores_NC = rows_ND @ to_numbers(opened(label, feature), bits=head.WEIGHT_BITS)
    assert np.abs(scores_NC - labels_NC).max() < 8
    assert np.abs(scores_NC - rows_ND @ weights_DC).max() < 0.01 * (rows_ND @ weights_DC).std()


def test_small_batches_of_many_features_do_not_make_squared_loss_diverge():
    # A hundred features of 1 or -1 at the usual rate: by the mean of its 128 rows a step would turn scores four times too far.
    plan = plan_of("squared", rows=384, columns=(40, 60), epochs=30, batch=128, rate=0.5)
    label_ND, feature_ND, labels_NC = data(plan)
    label_ND, feature_ND = np.sign(label_ND), np.sign(feature_ND)
    label, feature, _ = trained(plan, label_ND, feature_ND, labels_NC)
    scores_NC = with_products(label_ND, feature_ND) @ to_numbers(opened(label, feature), bits=head.WEIGHT_BITS)
    assert np.abs(scores_NC - labels_NC).max() < 8


def test_scores_are_those_of_the_shared_weights_to_their_last_place():
    plan = plan_of()
    label_ND, feature_ND, _ = data(plan)
    rng = np.random.default_rng(5)
    count = 12 + 5 * 7
    shares = [rng.integers(0, 2**64, size=(count, 1), dtype=np.uint64)]
    weights_DC = rng.normal(size=(count, 1))
    shares.append(to_words(weights_DC, bits=head.WEIGHT_BITS, limit=8, what="weights") - shares[0])
    found_NC, nothing, _ = run(
        lambda side: head.open_scores_label_party(
            head.score_shares(label_ND.__getitem__, plan.rows, shares[0], plan.columns, side), side.peers
        ),
        lambda side: head.open_scores_feature_party(
            head.score_shares(feature_ND.__getitem__, plan.rows, shares[1], plan.columns, side), *side.peers
        ),
        lambda dealer: head.deal_scoring(dealer, plan.columns, plan.rows, 1),
    )
    assert nothing is None
    # A feature is off by 2^-17 at most, and there are twelve; a product by nothing; a weight by 2^-25, a last place by 2^-12.
    exact_NC = with_products(label_ND, feature_ND) @ weights_DC
    assert np.abs(found_NC - exact_NC).max() <= 2**-12 + 12 * 4 * 2**-17 + count * 3 * 2**-25


@settings(max_examples=40, deadline=None)
@given(
    numbers=st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1, max_size=8),
    shares=st.lists(WORDS, min_size=8, max_size=8),
    bits=st.integers(1, 60),
)
def test_a_truncated_number_is_the_quotient_or_one_more(numbers, shares, bits):
    first = np.array(shares[: len(numbers)], dtype=np.uint64)
    second = np.array([number % 2**64 for number in numbers], dtype=np.uint64) - first
    label, feature, _ = run(
        lambda side: cut_places(side, MaskedScores, first, bits=bits),
        lambda side: cut_places(side, MaskedScores, second, bits=bits),
        lambda dealer: deal_truncation(dealer, len(numbers), bits=bits),
    )
    found = (label + feature).view(np.int64)
    for number, value in zip(numbers, found.tolist(), strict=True):
        assert value - (number >> bits) in (0, 1)


COUNTS = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple)
"""Make columns of a label party and of one to three feature parties."""


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 9), counts=COUNTS)
def test_shares_of_products_of_factors_add_up_to_the_products(seed, rows, counts):
    rng, columns = np.random.default_rng(seed), HeadColumns(counts=counts)
    own = [rng.uniform(-3, 3, (rows, count)) for count in counts]
    label, *features, _ = run(
        lambda side: share_products(side, factors_of(own[0], counts[0]), columns),
        [lambda side, own_NB=own_NB: share_products(side, factors_of(own_NB, own_NB.shape[1]), columns) for own_NB in own[1:]],
        lambda dealer: deal_products(dealer, rows, columns),
    )
    exact_NP = with_products(*own)[:, sum(counts) :]
    assert np.array_equal(to_numbers(label + np.concatenate(features, axis=1), bits=head.FEATURE_BITS), exact_NP)


def test_a_truncation_is_right_on_the_mean():
    # Of a number with .25 of its last place a quarter is rounded up: 20,000 draws, 6 deviations, chance of failing 2e-9.
    numbers = np.full(20_000, (7 << 10) + 256, dtype=np.uint64)
    label, feature, _ = run(
        lambda side: cut_places(side, MaskedScores, numbers, bits=10),
        lambda side: cut_places(side, MaskedScores, np.zeros_like(numbers), bits=10),
        lambda dealer: deal_truncation(dealer, len(numbers), bits=10),
    )
    assert abs((label + feature).astype(float).mean() - 7.25) < 6 * np.sqrt(0.25 * 0.75 / 20_000)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 9), counts=COUNTS, outputs=st.integers(1, 3))
def test_products_on_shares_are_products(seed, rows, counts, outputs):
    rng, columns = np.random.default_rng(seed), HeadColumns(counts=counts)

    def words(*shape):
        return rng.integers(0, 2**64, size=shape, dtype=np.uint64)

    batch = np.arange(rows)[::-1].copy()
    held = [words(rows, len(each)) for each in columns.held]
    weights, errors = [words(columns.all, outputs) for _ in counts], [words(rows, outputs) for _ in counts]
    factor = words(1, 1)

    def party(side):
        shown = Matrices.exchange(side, held[side.place], columns)
        return (
            scores(side, shown, batch, weights[side.place]),
            gradients(side, shown, batch, errors[side.place]),
            scaled(side, MaskedScores, weights[side.place], factor if side.is_label else None, count=1),
        )

    def helper(dealer):
        masks = MaskMatrices.draw(dealer, rows, columns)
        deal_scores(masks, batch, outputs)
        deal_gradients(masks, batch, outputs)
        deal_scaled(dealer, columns.all, outputs, count=1)

    *parties, _ = run(party, [party] * (len(counts) - 1), helper)
    found = [opened(*each) for each in zip(*parties, strict=True)]

    def times(matrix, vectors):
        return np.array(
            [[sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) % 2**64 for column in vectors.T] for row in matrix],
            dtype=np.uint64,
        ).reshape(len(matrix), vectors.shape[1])

    columns_NW = np.zeros((rows, columns.all), dtype=np.uint64)
    for each, held_X in zip(held, columns.held, strict=True):
        columns_NW[:, held_X] += each
    assert np.array_equal(found[0], times(columns_NW[batch], opened(*weights)))
    assert np.array_equal(found[1], times(columns_NW[batch].T, opened(*errors)))
    assert np.array_equal(found[2], opened(*weights) * factor)


@pytest.mark.parametrize(("loss", "rate"), [("logistic", 0.1), ("squared", 0.02)])
def test_a_head_of_several_feature_parties_is_the_head_in_floats(loss, rate):
    plan = plan_of(loss, columns=(5, 7, 3, 1), rate=rate, weighted=True)
    label_ND, *features, labels_NC = data(plan)
    *shares, _ = trained(plan, label_ND, features[0], labels_NC, further=features[1:])
    rows_ND, weights_DC = in_floats(label_ND, features[0], labels_NC, plan, more=features[1:])
    found_NC = rows_ND @ to_numbers(opened(*shares), bits=head.WEIGHT_BITS)
    assert np.abs(found_NC - rows_ND @ weights_DC).max() < 0.01 * (rows_ND @ weights_DC).std()


def test_the_sum_of_sines_is_the_logistic_function_within_its_range_and_a_chance_everywhere():
    orders = np.arange(1, len(COEFFICIENTS) + 1)

    def value(scores):
        return 0.5 + np.sin(2 * np.pi * np.outer(scores, orders) / PERIOD) @ np.array(COEFFICIENTS)

    inside, period = np.linspace(-RANGE, RANGE, 20_001), np.linspace(-PERIOD / 2, PERIOD / 2, 20_001)
    assert np.abs(value(inside) - 1 / (1 + np.exp(-inside))).max() < 0.0036
    assert value(period).min() > -0.0013
    assert value(period).max() < 1.0013


def test_sines_are_right_to_two_to_the_minus_28():
    angles = np.concatenate([np.random.default_rng(1).integers(0, 2**46, 20_000), [0, 1, 2**44, 2**45, 2**46 - 1]])
    sine, cosine = sines(angles)
    turned = 2 * np.pi * angles / 2**46
    assert np.abs(sine / 2**30 - np.sin(turned)).max() < 2**-28
    assert np.abs(cosine / 2**30 - np.cos(turned)).max() < 2**-28


@pytest.mark.parametrize("number", [3.5, -9, np.nan, np.inf])
def test_features_out_of_range_are_refused_before_anything_is_sent(number):
    plan = plan_of()
    label_ND, _, labels_NC = data(plan)
    label_ND[3, 2] = number
    with pytest.raises(DataError, match=r"features of a head on shares: .* is outside -3 to 3"):
        head.train_head_label_party(label_ND, labels_NC, None, plan, decay=DECAY)


def test_a_rate_whose_steps_would_leave_the_ring_is_refused():
    with pytest.raises(DataError, match="rate 40 with momentum"):
        plan_of(rate=40.0)
