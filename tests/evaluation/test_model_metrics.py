"""Compare metrics with scikit-learn and slow references."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import ks_2samp
from sklearn import metrics as oracle

from tallystick.errors import DataError
from tallystick.metrics import (
    METRICS,
    MetricSettings,
    TargetType,
    UndefinedMetric,
    ace,
    auc,
    equal_mass_bins,
    log_softmax,
    metric,
    precision_recall_curve,
    roc_curve,
    sigmoid,
)
from tallystick.metrics.survival import brier_times, survival_curves

CLOSE = pytest.approx
LEVELS = (0.1, 0.5, 0.9)


def rows(seed: int, n: int = 500, tied: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.3).astype(float)
    logits = rng.normal(size=n) + labels
    return labels, np.round(logits, 1) if tied else logits, rng.integers(0, 4, n) * rng.random(n)


def slow_auc(labels, scores, weights) -> float:
    won = total = 0.0
    for i in np.flatnonzero(labels == 1):
        for j in np.flatnonzero(labels == 0):
            pair = weights[i] * weights[j]
            total += pair
            won += pair * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
    return won / total


def slow_ace(labels, predictions, bins) -> float:
    """Split every row into ``bins`` equal parts (so that bins divide the mass), then bin by slicing."""
    order = np.argsort(predictions, kind="stable")
    predictions, labels = predictions[order], labels[order].astype(float)
    for value in np.unique(predictions):
        labels[predictions == value] = labels[predictions == value].mean()
    predictions, labels = np.repeat(predictions, bins), np.repeat(labels, bins)
    parts = range(0, len(labels), len(labels) // bins)
    width = len(labels) // bins
    return float(np.mean([abs(labels[p : p + width].mean() - predictions[p : p + width].mean()) for p in parts]))


def slow_weighted_ace(labels, predictions, weights, bins=20) -> float:
    times = np.ones(len(labels), dtype=int) if weights is None else weights.astype(int)
    return slow_ace(np.repeat(labels, times), np.repeat(predictions, times), bins)


def weighted_ks(labels, scores, weights) -> float:
    fpr, tpr, _ = oracle.roc_curve(labels, scores, sample_weight=weights, drop_intermediate=False)
    return float(np.abs(tpr - fpr).max())


def per_class(one, labels, logits) -> float:
    probabilities = np.exp(log_softmax(logits))
    return float(np.mean([one(labels == c, probabilities[:, c]) for c in range(logits.shape[1])]))


def per_label(one, patterns, logits) -> float:
    return float(np.mean([one((patterns >> k) & 1, logits[:, k]) for k in range(logits.shape[1])]))


# A row per metric: what it is checked against, given labels, logits (of numbers, predictions) and weights or None.
ORACLES = {
    ("binary", "auc"): lambda y, f, w: oracle.roc_auc_score(y, f, sample_weight=w),
    ("binary", "nll"): lambda y, f, w: oracle.log_loss(y, sigmoid(f), sample_weight=w),
    ("binary", "ace"): lambda y, f, w: slow_weighted_ace(y, sigmoid(f), w),
    ("binary", "accuracy"): lambda y, f, w: oracle.accuracy_score(y, f > 0, sample_weight=w),
    ("binary", "ap"): lambda y, f, w: oracle.average_precision_score(y, f, sample_weight=w),
    ("binary", "gini"): lambda y, f, w: 2 * oracle.roc_auc_score(y, f, sample_weight=w) - 1,
    ("binary", "ks"): weighted_ks,
    ("multiclass", "accuracy"): lambda y, f, w: oracle.accuracy_score(y, f.argmax(1), sample_weight=w),
    ("multiclass", "auc"): lambda y, f, w: per_class(lambda one, p: oracle.roc_auc_score(one, p, sample_weight=w), y, f),
    ("multiclass", "nll"): lambda y, f, w: oracle.log_loss(y, np.exp(log_softmax(f)), sample_weight=w),
    ("multiclass", "ace"): lambda y, f, w: per_class(lambda one, p: slow_weighted_ace(one, p, w), y, f),
    ("multilabel", "auc"): lambda y, f, w: per_label(lambda one, s: oracle.roc_auc_score(one, s, sample_weight=w), y, f),
    ("multilabel", "nll"): lambda y, f, w: per_label(lambda one, s: oracle.log_loss(one, sigmoid(s), sample_weight=w), y, f),
    ("multilabel", "ace"): lambda y, f, w: per_label(lambda one, s: slow_weighted_ace(one, sigmoid(s), w), y, f),
    ("multilabel", "ap"): lambda y, f, w: per_label(lambda one, s: oracle.average_precision_score(one, s, sample_weight=w), y, f),
    ("regression", "rmse"): lambda y, f, w: oracle.root_mean_squared_error(y, f, sample_weight=w),
    ("regression", "mae"): lambda y, f, w: oracle.mean_absolute_error(y, f, sample_weight=w),
    ("regression", "r2"): lambda y, f, w: oracle.r2_score(y, f, sample_weight=w),
    ("count", "deviance"): lambda y, f, w: oracle.mean_poisson_deviance(y, f, sample_weight=w),
    ("count", "d2"): lambda y, f, w: oracle.d2_tweedie_score(y, f, sample_weight=w, power=1),
    ("count", "rmse"): lambda y, f, w: oracle.root_mean_squared_error(y, f, sample_weight=w),
    ("count", "mae"): lambda y, f, w: oracle.mean_absolute_error(y, f, sample_weight=w),
    ("survival", "concordance"): lambda y, f, w: slow_concordance(y, f, w),
    ("survival", "brier"): lambda y, f, w: slow_brier(y, f, w),
    ("quantile", "pinball"): lambda y, f, w: np.mean([pinball(y, f[:, i], w, level) for i, level in enumerate(LEVELS)]),
    ("quantile", "d2"): lambda y, f, w: 1 - np.sum([pinball(y, f[:, i], w, a) for i, a in enumerate(LEVELS)]) / least(y, w),
    ("quantile", "level_error"): lambda y, f, w: np.mean(np.abs(np.average(y[:, None] <= f, axis=0, weights=w) - LEVELS)),
}


def slow_brier(labels, predictions, weights) -> float:
    """Follow Graf et al. row by row, with the chance of being followed by a loop over rows that were not followed to the end."""
    weights = np.ones(len(labels)) if weights is None else weights
    times, grid = np.abs(labels), brier_times(labels)
    survival = survival_curves(labels, predictions, grid)

    @cache
    def followed(until, *, at_the_time: bool) -> float:
        chance = 1.0
        for each in np.unique(times[labels < 0]):
            if each < until or (at_the_time and each == until):
                ends = weights[(times == each) & (labels < 0)].sum()
                chance *= 1 - ends / (weights[times > each].sum() + ends)
        return chance

    scores = [0.0]
    for time, chances in zip(grid, survival, strict=True):
        total = 0.0
        for label, chance, weight in zip(labels, chances, weights, strict=True):
            if 0 < label <= time:
                total += weight * chance**2 / followed(label, at_the_time=False)
            elif abs(label) > time:
                total += weight * (1 - chance) ** 2 / followed(time, at_the_time=True)
        scores.append(total / weights.sum())
    return float(np.trapezoid(scores, np.append(0, grid)) / grid[-1])


def pinball(labels, predictions, weights, level) -> float:
    return oracle.mean_pinball_loss(labels, predictions, sample_weight=weights, alpha=level)


def least(labels, weights) -> float:
    """Return the least losses of constants: one of the labels is best."""
    return sum(min(pinball(labels, np.full(len(labels), each), weights, level) for each in labels) for level in LEVELS)


def slow_concordance(labels, predictions, weights) -> float:
    """Look at every pair of an event and a row that is known to be later."""
    weights = np.ones(len(labels)) if weights is None else weights
    times = np.abs(labels)
    later = (times > times[:, None]) | ((times == times[:, None]) & (labels < 0))
    pair_weights = np.outer(np.where(labels > 0, weights, 0), weights) * later
    agrees = (predictions > predictions[:, None]) + 0.5 * (predictions == predictions[:, None])
    return float((pair_weights * agrees).sum() / pair_weights.sum())


def case(target: str, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    if target == "binary":
        return rows(1, tied=tied)[:2]
    if target == "multiclass":
        labels, logits = rng.integers(0, 4, 600), rng.normal(size=(600, 4))
        logits[np.arange(600), labels] += 1
    elif target == "multilabel":
        labels = rng.integers(0, 8, 500)
        logits = (labels[:, None] >> np.arange(3) & 1) + rng.normal(size=(500, 3))
    elif target == "count":
        logits = rng.gamma(2.0, size=300) + 0.1
        labels = rng.poisson(logits).astype(float)
    elif target == "quantile":
        labels = rng.normal(size=100)
        logits = np.sort(labels[:, None] + rng.normal(size=(100, 3)), axis=1)
        labels = np.round(labels, 1) if tied else labels
    elif target == "survival":
        logits = rng.gamma(2.0, size=300) + 0.1
        labels = np.round(logits * rng.exponential(size=300), 1) + 0.1
        labels[::3] *= -1
    else:
        labels, logits = rng.normal(size=300) + 1e4, rng.normal(size=300)
    return labels, np.round(logits, 1) if tied else logits


def test_every_metric_has_an_oracle() -> None:
    assert {(target, name) for target, table in METRICS.items() for name in table} == set(ORACLES)


@pytest.mark.parametrize(("target", "name"), ORACLES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_metric_matches_its_oracle(target: TargetType, name: str, tied: bool, weighted: bool) -> None:
    labels, logits = case(target, tied)
    w = np.random.default_rng(3).integers(0, 4, len(labels)).astype(float) if weighted else None
    settings = MetricSettings(levels=LEVELS)
    assert metric(target, name, labels, logits, settings=settings, weights_N=w) == CLOSE(ORACLES[target, name](labels, logits, w))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_roc_curve_matches_scikit_learn(tied: bool, weighted: bool) -> None:
    labels, logits, weights = rows(1, tied=tied)
    w = weights if weighted else None
    fpr, tpr, _ = oracle.roc_curve(labels, logits, sample_weight=w, drop_intermediate=False)
    there = weights > 0 if weighted else slice(None)  # scikit-learn drops rows without weight, and their points
    ours = roc_curve(labels[there], logits[there], weights_N=None if w is None else w[there])
    np.testing.assert_allclose(ours[0], fpr, atol=1e-12)
    np.testing.assert_allclose(ours[1], tpr, atol=1e-12)
    assert np.trapezoid(ours[1], ours[0]) == CLOSE(auc(labels, logits, weights_N=w))


few_scores = st.integers(2, 30).flatmap(
    lambda n: st.tuples(
        arrays(np.int64, n, elements=st.integers(0, 1)),
        arrays(np.float64, n, elements=st.sampled_from([-1e300, -2.0, -1e-300, 0.0, 0.5, 0.25, 1.0, 3e5])),
        arrays(np.float64, n, elements=st.sampled_from([0.0, 0.5, 1.0, 3.0])),
    )
)


@given(few_scores)
def test_auc_of_tied_scores_is_the_share_of_pairs_won(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    labels, scores, weights = case
    if not (weights[labels == 1].any() and weights[labels == 0].any()):
        with pytest.raises(UndefinedMetric, match="one class"):
            auc(labels, scores, weights_N=weights)
        return
    assert auc(labels, scores, weights_N=weights) == CLOSE(slow_auc(labels, scores, weights))


@given(few_scores, st.integers(1, 12))
def test_calibration_error_matches_the_slow_reference(case: tuple[np.ndarray, np.ndarray, np.ndarray], bins: int) -> None:
    labels, scores, _ = case
    predictions = sigmoid(scores)
    found = ace(labels, predictions, bins=bins)
    assert found == CLOSE(slow_ace(labels, predictions, min(bins, len(labels))), abs=1e-12)
    backwards = ace(labels[::-1], predictions[::-1], bins=bins)
    assert found == CLOSE(backwards, abs=1e-12), "the order of tied rows must not matter"


def test_ks_matches_scipy_with_and_without_ties() -> None:
    for tied in (False, True):
        labels, logits, _ = rows(6, tied=tied)
        assert metric("binary", "ks", labels, logits) == CLOSE(ks_2samp(logits[labels == 1], logits[labels == 0]).statistic)


@settings(deadline=None)
@given(few_scores)
def test_ranking_metrics_of_tied_and_weighted_rows_match_scikit_learn(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    labels, scores, weights = case
    if not (weights[labels == 1].any() and weights[labels == 0].any()):
        with pytest.raises(UndefinedMetric, match="one class"):
            metric("binary", "ks", labels, scores, weights_N=weights)
        return
    found = {name: metric("binary", name, labels, scores, weights_N=weights) for name in ("ap", "gini", "ks")}
    assert found["ap"] == CLOSE(oracle.average_precision_score(labels, scores, sample_weight=weights))
    assert found["gini"] == CLOSE(2 * slow_auc(labels, scores, weights) - 1, abs=1e-12)
    fpr, tpr, _ = oracle.roc_curve(labels, scores, sample_weight=weights, drop_intermediate=False)
    assert found["ks"] == CLOSE(np.abs(tpr - fpr).max())
    there = weights > 0
    precision, recall, thresholds = precision_recall_curve(labels, scores, weights_N=weights)
    theirs = oracle.precision_recall_curve(labels[there], scores[there], sample_weight=weights[there])
    np.testing.assert_allclose(precision[::-1], theirs[0][:-1], atol=1e-12)  # theirs ends in a made-up point at recall 0
    np.testing.assert_allclose(recall[::-1], theirs[1][:-1], atol=1e-12)
    np.testing.assert_array_equal(thresholds[::-1], theirs[2])


def test_constant_predictions_are_off_by_the_rate() -> None:
    labels = np.array([0, 0, 0, 1] * 25)
    assert ace(labels, np.full(100, 0.4), bins=10) == CLOSE(0.15)
    assert auc(labels, np.full(100, 0.4)) == 0.5


def test_whole_weights_mean_repeated_rows() -> None:
    labels, logits, _ = rows(4, 60, tied=True)
    times = np.random.default_rng(5).integers(0, 4, 60)
    repeated = np.repeat(labels, times), np.repeat(sigmoid(logits), times)
    assert ace(labels, sigmoid(logits), bins=8, weights_N=times) == CLOSE(ace(*repeated, bins=8))
    bins = equal_mass_bins(labels, sigmoid(logits), bins=8)(times.astype(float))
    assert bins is not None
    assert bins.mass * 8 == CLOSE(times.sum())
    assert bins.observed.mean() == CLOSE(repeated[0].mean())
    assert (np.diff(bins.predicted) >= 0).all()


def test_losses_are_stable_for_huge_logits() -> None:
    assert metric("binary", "nll", [1, 0], [-1e5, -1e5]) == CLOSE(5e4)
    assert metric("multiclass", "nll", [0, 1], [[0, 1e5], [0, 1e5]]) == CLOSE(5e4)
    assert sigmoid([-1e6, 0, 1e6]).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(
    ("target", "labels", "logits", "message"),
    [
        ("binary", [0, 2], [0.0, 1.0], "neither 0 nor 1"),
        ("binary", [0, 1], [[0.0, 1.0], [0.0, 1.0]], "one number per row"),
        ("binary", [0, 1, 1], [0.0, 1.0], "3 labels and 2 rows"),
        ("multiclass", [0, 3], [[0.0, 1.0], [0.0, 1.0]], r"numbered 0\.\.1"),
        ("multiclass", [0, 0.5], [[0.0, 1.0], [0.0, 1.0]], "numbered"),
        ("multiclass", [0, 1], [0.0, 1.0], "rows, classes"),
    ],
)
def test_rows_that_do_not_fit_are_refused(target, labels, logits, message) -> None:
    with pytest.raises(DataError, match=message):
        metric(target, "accuracy", labels, logits)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, np.nan]])
def test_weights_that_do_not_fit_are_refused(weights) -> None:
    with pytest.raises(DataError, match="weight"):
        auc([0, 1], [0.0, 1.0], weights_N=weights)


def test_metrics_without_a_value_say_why() -> None:
    with pytest.raises(UndefinedMetric, match="one class"):
        auc([1, 1], [0.0, 1.0])
    with pytest.raises(UndefinedMetric, match="1 of 2 logits are NaN"):
        metric("binary", "nll", [0, 1], [0.0, np.nan])
    with pytest.raises(UndefinedMetric, match="constant"):
        metric("regression", "r2", [2.0, 2.0], [1.0, 2.0])
    with pytest.raises(UndefinedMetric, match="no rows"):
        metric("binary", "nll", [], [])
    with pytest.raises(DataError, match="at least 1"):
        ace([0, 1], [0.2, 0.4], bins=0)
