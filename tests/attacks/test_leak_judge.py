"""The judge of label attacks against sklearn and theory."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from tallystick.attacks.leakage.judge import LeakJudge, LeakVerdict, name_clusters
from tallystick.attacks.view import Scores
from tallystick.errors import ConfigError, DataError


def judged(
    truth: np.ndarray, *values: np.ndarray, classes: int = 2, named: bool = True, judge: LeakJudge | None = None
) -> LeakVerdict | None:
    """Judge equally long groups: ``values`` are scores of consecutive stretches of ``truth``."""
    rows = tuple(torch.arange(len(truth)).split(len(truth) // len(values)))
    scores = Scores(rows=rows, values=tuple(torch.from_numpy(np.asarray(value, dtype=float)) for value in values), named=named)
    return (judge or LeakJudge(replicates=20))(scores, torch.from_numpy(truth), classes=classes, rng=np.random.default_rng(0))


def test_every_figure_against_sklearn() -> None:
    rng = np.random.default_rng(1)
    for fpr in (0.0, 0.1, 0.4):
        truth = (rng.random(80) < 0.3).astype(int)
        score = rng.integers(0, 9, 80) + 2.0 * truth  # ties
        verdict = judged(truth, score, judge=LeakJudge(fpr=fpr))
        assert verdict is not None
        assert verdict.auc.mean == pytest.approx(roc_auc_score(truth, score))
        fprs, tprs, _ = roc_curve(truth, score, drop_intermediate=False)
        assert verdict.tpr_at_fpr.mean == pytest.approx(tprs[fprs <= fpr].max())
        hard = (score > score.mean()).astype(float)
        told = judged(truth, hard)
        assert told is not None
        assert told.hard_auc.mean == pytest.approx(told.auc.mean) == pytest.approx(balanced_accuracy_score(truth, hard))


def test_several_classes_are_the_mean_of_one_against_the_rest() -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 4, 200)
    score = rng.normal(size=(200, 4)) + np.eye(4)[truth]
    verdict = judged(truth, score, classes=4)
    assert verdict is not None
    assert verdict.auc.mean == pytest.approx(np.mean([roc_auc_score(truth == c, score[:, c]) for c in range(4)]))
    best = score.argmax(axis=1)
    assert verdict.hard_auc.mean == pytest.approx(np.mean([balanced_accuracy_score(truth == c, best == c) for c in range(4)]))
    present = judged(np.where(truth == 3, 0, truth), score, classes=4)  # class 3 is absent: it is left out of the mean
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
    plain, shuffled, turned = judged(truth, score), judged(truth[permutation], score[permutation]), judged(truth, -score)
    assert plain is not None
    assert shuffled is not None
    assert turned is not None
    for name in ("auc", "folded", "hard_auc", "tpr_at_fpr"):
        assert getattr(plain, name).mean == pytest.approx(getattr(shuffled, name).mean)
    assert plain.auc.mean == pytest.approx(1 - turned.auc.mean)
    assert plain.folded.mean == pytest.approx(turned.folded.mean) == pytest.approx(max(plain.auc.mean, turned.auc.mean))
    stretched = judged(truth, np.exp(score))  # a monotone map changes no rank
    assert stretched is not None
    assert stretched.auc.mean == pytest.approx(plain.auc.mean)
    assert stretched.tpr_at_fpr.mean == pytest.approx(plain.tpr_at_fpr.mean)


def test_scores_near_one_are_not_squashed() -> None:
    """Two scores that a sigmoid would both round to 1 stay apart."""
    verdict = judged(np.array([0, 1, 0, 1]), np.array([700.0, 701.0, 650.0, 702.0]))
    assert verdict is not None
    assert verdict.auc.mean == 1.0


def test_binormal_scores_have_the_auc_of_theory() -> None:
    """40 batches of 500: the mean AUC has a standard error of about 0.004; four of them, 6e-5 to fail were it not seeded."""
    rng = np.random.default_rng(3)
    truth = (rng.random(20_000) < 0.25).astype(int)
    gap = 1.3
    score = rng.normal(size=20_000) + gap * truth
    verdict = judged(truth, *np.split(score, 40), judge=LeakJudge())
    assert verdict is not None
    assert verdict.auc.mean == pytest.approx(norm.cdf(gap / 2**0.5), abs=0.016)
    assert verdict.groups == 40
    assert verdict.auc.low < verdict.auc.mean < verdict.auc.high


@pytest.mark.parametrize("groups", [1, 20])
def test_intervals_cover(groups: int) -> None:
    """80 repetitions at a nominal 95 % (percentile bootstrap: a little less); 84 % is more than three deviations below."""
    rng = np.random.default_rng(4)
    gap, covered = 1.0, 0
    for _ in range(80):
        truth = (rng.random(2000) < 0.3).astype(int)
        score = rng.normal(size=2000) + gap * truth
        verdict = judged(truth, *np.split(score, groups), judge=LeakJudge(replicates=100))
        assert verdict is not None
        covered += verdict.auc.low <= norm.cdf(gap / 2**0.5) <= verdict.auc.high
    assert 0.84 <= covered / 80 < 1


def test_folding_is_the_lift_of_a_guess() -> None:
    """1,000 batches of 40 rows: folded AUC is one half plus ``folding`` within 0.006, more than three standard errors."""
    rng = np.random.default_rng(6)
    truth = np.tile([0, 0, 0, 1], 10_000)
    verdict = judged(truth, *np.split(rng.random(40_000), 1000))
    assert verdict is not None
    assert verdict.folded.mean == pytest.approx(0.5 + verdict.folding, abs=0.006)
    assert verdict.auc.mean == pytest.approx(0.5, abs=0.012)


def test_single_class_batches_are_skipped_and_counted() -> None:
    verdict = judged(np.array([0, 0, 0, 0, 1, 0]), *np.split(np.arange(6.0), 3))
    assert verdict is not None
    assert (verdict.groups, verdict.skipped, verdict.auc.mean) == (1, 2, 0.0)
    assert judged(np.zeros(6, dtype=int), np.arange(6.0)) is None


def test_unnamed_clusters_are_named_as_fits_best_and_chance_says_what_that_lifts() -> None:
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 3, 300)
    renamed = np.eye(3)[np.array([2, 0, 1])[truth]]
    found = judged(truth, renamed, classes=3, named=False)
    assert found is not None
    assert found.auc.mean == found.hard_auc.mean == 1.0
    assert judged(truth, renamed, classes=3).auc.mean < 0.5  # type: ignore[union-attr]
    guess = judged(truth, np.eye(3)[rng.integers(0, 3, 300)], classes=3, named=False)
    assert guess is not None
    assert 0.5 < guess.chance < 0.56
    assert guess.auc.mean == pytest.approx(guess.chance, abs=0.04)


def test_naming_finds_the_best_of_all_permutations() -> None:
    rng = np.random.default_rng(8)
    truth, cluster = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    named = name_clusters(truth, np.eye(4)[cluster]).argmax(axis=1)
    assert (named == truth).sum() == max((np.array(p)[cluster] == truth).sum() for p in permutations(range(4)))


def test_judge_refuses_what_it_cannot_use() -> None:
    truth = np.array([0, 1])
    with pytest.raises(DataError, match="NaN"):
        judged(truth, np.array([0.0, np.nan]))
    with pytest.raises(DataError, match="shape"):
        judged(truth, np.zeros((2, 3)))
    with pytest.raises(DataError, match="shape"):
        judged(truth, np.zeros(2), classes=3)
    with pytest.raises(DataError, match="row 7"):
        LeakJudge()(
            Scores(rows=(torch.tensor([7]),), values=(torch.zeros(1).double(),)),
            torch.tensor([0, 1]),
            rng=np.random.default_rng(0),
        )
    for bad in ({"fpr": 1.0}, {"level": 0.0}, {"replicates": 0}):
        with pytest.raises(ConfigError, match="leak judge"):
            LeakJudge(**bad)


def test_figures_are_plain_numbers() -> None:
    verdict = judged(np.array([0, 1, 0, 1]), np.arange(4.0))
    assert verdict is not None
    figures = verdict.as_figures()
    assert figures["auc"] == 0.75
    assert figures["auc_interval"] == [verdict.auc.low, verdict.auc.high]
    assert {"folded", "hard_auc", "tpr_at_fpr", "fpr", "folding", "chance", "groups", "skipped"} <= set(figures)
