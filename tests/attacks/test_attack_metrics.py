"""Compare attack metrics with sklearn and theory."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics, Bootstrap, name_clusters
from tallystick.attacks.view import Scores
from tallystick.errors import ConfigError, DataError


def evaluated(
    truth: np.ndarray, *values: np.ndarray, classes: int = 2, named: bool = True, evaluator: AttackEvaluator | None = None
) -> AttackMetrics | None:
    """Evaluate equally long groups: ``values`` are scores of consecutive stretches of ``truth``."""
    rows = tuple(torch.arange(len(truth)).split(len(truth) // len(values)))
    scores = Scores(rows=rows, values=tuple(torch.from_numpy(np.asarray(value, dtype=float)) for value in values), named=named)
    return (evaluator or AttackEvaluator(replicates=20))(scores, torch.from_numpy(truth), classes=classes, bootstrap=Bootstrap(0))


def test_every_figure_against_sklearn() -> None:
    rng = np.random.default_rng(1)
    for fpr in (0.0, 0.1, 0.4):
        truth = (rng.random(80) < 0.3).astype(int)
        score = rng.integers(0, 9, 80) + 2.0 * truth  # ties
        metrics = evaluated(truth, score, evaluator=AttackEvaluator(fpr=fpr))
        assert metrics is not None
        assert metrics.auc.mean == pytest.approx(roc_auc_score(truth, score))
        fprs, tprs, _ = roc_curve(truth, score, drop_intermediate=False)
        assert metrics.tpr_at_fpr.mean == pytest.approx(tprs[fprs <= fpr].max())
        hard = (score > score.mean()).astype(float)
        told = evaluated(truth, hard)
        assert told is not None
        assert told.balanced_accuracy.mean == pytest.approx(told.auc.mean) == pytest.approx(balanced_accuracy_score(truth, hard))


def test_several_classes_are_the_mean_of_one_against_the_rest() -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 4, 200)
    score = rng.normal(size=(200, 4)) + np.eye(4)[truth]
    metrics = evaluated(truth, score, classes=4)
    assert metrics is not None
    assert metrics.auc.mean == pytest.approx(np.mean([roc_auc_score(truth == c, score[:, c]) for c in range(4)]))
    best = score.argmax(axis=1)
    assert metrics.balanced_accuracy.mean == pytest.approx(
        np.mean([balanced_accuracy_score(truth == c, best == c) for c in range(4)])
    )
    present = evaluated(np.where(truth == 3, 0, truth), score, classes=4)  # class 3 is absent: it is left out of the mean
    assert present is not None
    merged = np.where(truth == 3, 0, truth)
    assert present.auc.mean == pytest.approx(np.mean([roc_auc_score(merged == c, score[:, c]) for c in range(3)]))


GROUP = st.lists(st.tuples(st.booleans(), st.integers(-5, 5)), min_size=3, max_size=40).filter(
    lambda pairs: len({label for label, _ in pairs}) == 2
)


@settings(max_examples=60, deadline=None)
@given(pairs=GROUP, order=st.randoms(use_true_random=False))
def test_order_does_not_matter_and_turning_scores_round_complements(pairs: list[tuple[bool, int]], order) -> None:
    truth, score = (np.array(column, dtype=int) for column in zip(*pairs, strict=True))
    permutation = np.array(order.sample(range(len(pairs)), len(pairs)))
    plain, shuffled, turned = evaluated(truth, score), evaluated(truth[permutation], score[permutation]), evaluated(truth, -score)
    assert plain is not None
    assert shuffled is not None
    assert turned is not None
    for name in ("auc", "symmetric_auc", "balanced_accuracy", "tpr_at_fpr"):
        assert getattr(plain, name).mean == pytest.approx(getattr(shuffled, name).mean)
    assert plain.auc.mean == pytest.approx(1 - turned.auc.mean)
    assert (
        plain.symmetric_auc.mean
        == pytest.approx(turned.symmetric_auc.mean)
        == pytest.approx(max(plain.auc.mean, turned.auc.mean))
    )
    stretched = evaluated(truth, np.exp(score))  # a monotone map changes no rank
    assert stretched is not None
    assert stretched.auc.mean == pytest.approx(plain.auc.mean)
    assert stretched.tpr_at_fpr.mean == pytest.approx(plain.tpr_at_fpr.mean)


def test_scores_near_one_are_not_squashed() -> None:
    """Two scores that a sigmoid would both round to 1 stay different."""
    metrics = evaluated(np.array([0, 1, 0, 1]), np.array([700.0, 701.0, 650.0, 702.0]))
    assert metrics is not None
    assert metrics.auc.mean == 1.0


def test_binormal_scores_have_the_auc_of_theory() -> None:
    """40 batches of 500: the mean AUC has a standard error of about 0.004. Four of them have a chance of 6e-5, but it
    is seeded.
    """
    rng = np.random.default_rng(3)
    truth = (rng.random(20_000) < 0.25).astype(int)
    gap = 1.3
    score = rng.normal(size=20_000) + gap * truth
    metrics = evaluated(truth, *np.split(score, 40), evaluator=AttackEvaluator())
    assert metrics is not None
    assert metrics.auc.mean == pytest.approx(norm.cdf(gap / 2**0.5), abs=0.016)
    assert metrics.groups == 40
    assert metrics.auc.low < metrics.auc.mean < metrics.auc.high


@pytest.mark.long
@pytest.mark.parametrize("groups", [1, 20])
def test_intervals_cover(groups: int) -> None:
    """80 repetitions at a nominal 95 % (a percentile bootstrap has a little less); 84 % is more than three deviations below."""
    rng = np.random.default_rng(4)
    gap, covered = 1.0, 0
    for _ in range(80):
        truth = (rng.random(2000) < 0.3).astype(int)
        score = rng.normal(size=2000) + gap * truth
        metrics = evaluated(truth, *np.split(score, groups), evaluator=AttackEvaluator(replicates=100))
        assert metrics is not None
        covered += metrics.auc.low <= norm.cdf(gap / 2**0.5) <= metrics.auc.high
    assert 0.84 <= covered / 80 < 1


def over_epochs(rng: np.random.Generator, *, gap: float, rows: int = 300, epochs: int = 3) -> tuple[Scores, torch.Tensor]:
    """Make scores of the same rows in batches of a hundred, epoch after epoch. Nine tenths of their variance belong to
    the row.
    """
    truth_N, stays_N = rng.random(rows) < 0.3, rng.normal(size=rows)
    groups, values = [], []
    for _ in range(epochs):
        score_N = gap * truth_N + 0.9**0.5 * stays_N + 0.1**0.5 * rng.normal(size=rows)
        for rows_B in np.array_split(rng.permutation(rows), rows // 100):
            groups.append(torch.from_numpy(rows_B))
            values.append(torch.from_numpy(score_N[rows_B]))
    return Scores(rows=tuple(groups), values=tuple(values)), torch.from_numpy(truth_N.astype(int))


def test_intervals_cover_where_the_same_rows_come_again() -> None:
    """Of 100 repetitions 95 % are 95, with a deviation of 2.2; resampled batches cover about 75. Seeded."""
    rng, once = np.random.default_rng(8), AttackEvaluator(replicates=1)
    gap, covered = 1.0, 0
    for _ in range(100):
        scores, truth_N = over_epochs(rng, gap=gap)
        metrics = once(scores, truth_N, bootstrap=Bootstrap(0))
        assert metrics is not None
        covered += metrics.auc.low <= norm.cdf(gap / 2**0.5) <= metrics.auc.high
    assert 89 <= covered <= 99


def test_the_interval_of_one_group_is_delongs() -> None:
    """Compared with the sum over positives and negatives of DeLong et al. (1988); 0 if all is certain."""
    rng = np.random.default_rng(9)
    truth = np.arange(60) % 3 == 0
    score = np.round(rng.normal(size=60) + truth, 1)
    metrics = evaluated(truth.astype(int), score)
    assert metrics is not None
    right = (score[truth][:, None] > score[~truth]) + 0.5 * (score[truth][:, None] == score[~truth])
    by_positive, by_negative = right.mean(axis=1), right.mean(axis=0)
    variance = by_positive.var() / truth.sum() + by_negative.var() / (~truth).sum()
    half = student.ppf(0.975, truth.sum() - 1) * variance**0.5
    assert metrics.auc.low == pytest.approx(right.mean() - half)
    certain = evaluated(truth.astype(int), 1.0 * truth)
    assert certain is not None
    assert (certain.auc.low, certain.auc.high) == (1.0, 1.0)


def test_symmetric_auc_of_a_guess_is_as_stated() -> None:
    """1,000 batches of 40 rows: symmetric AUC is its chance level within 0.006, more than three standard errors."""
    rng = np.random.default_rng(6)
    truth = np.tile([0, 0, 0, 1], 10_000)
    metrics = evaluated(truth, *np.split(rng.random(40_000), 1000))
    assert metrics is not None
    assert metrics.symmetric_auc.mean == pytest.approx(metrics.chance_symmetric_auc, abs=0.006)
    assert metrics.auc.mean == pytest.approx(0.5, abs=0.012)


def test_single_class_batches_are_skipped_and_counted() -> None:
    metrics = evaluated(np.array([0, 0, 0, 0, 1, 0]), *np.split(np.arange(6.0), 3))
    assert metrics is not None
    assert (metrics.groups, metrics.skipped, metrics.auc.mean) == (1, 2, 0.0)
    assert evaluated(np.zeros(6, dtype=int), np.arange(6.0)) is None


def test_unnamed_clusters_are_named_as_fits_best_and_chance_says_what_that_lifts() -> None:
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 3, 300)
    renamed = np.eye(3)[np.array([2, 0, 1])[truth]]
    found = evaluated(truth, renamed, classes=3, named=False)
    assert found is not None
    assert found.auc.mean == found.balanced_accuracy.mean == 1.0
    assert evaluated(truth, renamed, classes=3).auc.mean < 0.5  # type: ignore[union-attr]
    guess = evaluated(truth, np.eye(3)[rng.integers(0, 3, 300)], classes=3, named=False)
    assert guess is not None
    assert 0.5 < guess.chance_auc < 0.56
    assert guess.auc.mean == pytest.approx(guess.chance_auc, abs=0.04)


def test_naming_finds_the_best_of_all_permutations() -> None:
    rng = np.random.default_rng(8)
    truth, cluster = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    named = name_clusters(truth, np.eye(4)[cluster]).argmax(axis=1)
    assert (named == truth).sum() == max((np.array(p)[cluster] == truth).sum() for p in permutations(range(4)))


def test_evaluator_refuses_what_it_cannot_use() -> None:
    truth = np.array([0, 1])
    with pytest.raises(DataError, match="NaN"):
        evaluated(truth, np.array([0.0, np.nan]))
    with pytest.raises(DataError, match="shape"):
        evaluated(truth, np.zeros((2, 3)))
    with pytest.raises(DataError, match="shape"):
        evaluated(truth, np.zeros(2), classes=3)
    with pytest.raises(DataError, match="row 7"):
        AttackEvaluator()(
            Scores(rows=(torch.tensor([7]),), values=(torch.zeros(1).double(),)),
            torch.tensor([0, 1]),
            bootstrap=Bootstrap(0),
        )
    for bad in ({"fpr": 1.0}, {"level": 0.0}, {"replicates": 0}):
        with pytest.raises(ConfigError, match="attack evaluator"):
            AttackEvaluator(**bad)


def test_figures_are_plain_numbers() -> None:
    metrics = evaluated(np.array([0, 1, 0, 1]), np.arange(4.0))
    assert metrics is not None
    figures = metrics.as_figures()
    assert figures["auc"] == 0.75
    assert figures["auc_interval"] == [metrics.auc.low, metrics.auc.high]
    assert {
        "symmetric_auc",
        "balanced_accuracy",
        "tpr_at_fpr",
        "fpr",
        "chance_auc",
        "chance_symmetric_auc",
        "groups",
        "skipped",
    } <= set(figures)


def test_replicates_of_a_class_hold_as_many_rows_as_it_has_and_are_drawn_once() -> None:
    bootstrap, sizes = Bootstrap(3), ((5, 2), (4,))
    drawn = bootstrap.within_classes(50, sizes)
    assert [[len(one) for one in each] for each in drawn] == [[2] * 50, [1] * 50]
    for each, group in zip(drawn, sizes, strict=True):
        for one in each:
            assert tuple(len(count) for count in one) == tuple(int(count.sum()) for count in one) == group
    assert bootstrap.within_classes(50, sizes) is drawn
    again = Bootstrap(3).within_classes(50, sizes)
    assert all(
        (a == b).all()
        for x, y in zip(drawn, again, strict=True)
        for one, other in zip(x, y, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    assert len({tuple(one[0].tolist()) for one in drawn[0]}) > 10  # replicates differ
