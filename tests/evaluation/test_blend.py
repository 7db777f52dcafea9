"""A blend of two models: the second one adds what it knows, nothing if it knows nothing, and few rows change little."""

import numpy as np
import pytest

from tallystick import metrics
from tallystick.evaluation.blend import blended

ROWS = 4_000


def halves(target, rng):
    """Make labels of two independent halves, and logits of a model of each."""
    both = rng.normal(size=(2, ROWS))
    if target == "multiclass":
        logits = np.stack([np.stack([-side, np.zeros(ROWS), side], axis=1) for side in both])
        labels = (logits.sum(axis=0) + rng.gumbel(size=(ROWS, 3))).argmax(axis=1)
        return labels, logits
    score = both.sum(axis=0)
    labels = score + rng.normal(size=ROWS) if target == "regression" else (score + rng.logistic(size=ROWS) > 0).astype(float)
    return labels, both


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_a_second_model_adds_what_only_it_knows(target):
    rng = np.random.default_rng(1)
    labels, (own, joint) = halves(target, rng)
    mixed = blended(target, own, joint, labels, generator=rng)
    best = own + joint  # the true logits
    name = "rmse" if target == "regression" else "auc"
    alone, blend, oracle = (metrics.metric(target, name, labels, each) for each in (own, mixed, best))
    # 4,000 rows determine three numbers: the blend reaches the possible gain to a part in a hundred
    assert abs(blend - oracle) < 0.02 * abs(alone - oracle)


@pytest.mark.parametrize("rows", [100, 800])
def test_a_model_of_noise_adds_nothing(rows):
    gains = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        own = rng.normal(size=rows)
        labels = (own + rng.logistic(size=rows) > 0).astype(float)
        mixed = blended("binary", own, rng.normal(size=rows), labels, generator=rng)
        gains.append(metrics.auc(labels, mixed) - metrics.auc(labels, own))
    # It can only lose, by weights that luck chose: 40 draws, seeded
    assert np.mean(gains) < 0.001
    assert np.mean(gains) > -0.03


def test_no_row_is_judged_by_weights_that_its_own_label_settled():
    rng = np.random.default_rng(2)
    labels, (own, joint) = halves("binary", rng)
    before = blended("binary", own, joint, labels, generator=np.random.default_rng(5))
    turned = labels.copy()
    turned[0] = 1 - turned[0]
    after = blended("binary", own, joint, turned, generator=np.random.default_rng(5))
    assert after[0] == before[0]
    assert (after != before).sum() == ROWS // 2  # those of the other half


@pytest.mark.parametrize("worthless", [np.full(ROWS, np.nan), np.full(ROWS, np.inf)])
def test_a_model_that_diverged_leaves_the_first(worthless):
    rng = np.random.default_rng(3)
    labels, (own, _) = halves("binary", rng)
    mixed = blended("binary", own, worthless, labels, generator=rng)
    assert np.array_equal(mixed, own)


def test_labels_of_one_class_and_one_row_are_no_error():
    rng = np.random.default_rng(4)
    assert np.isfinite(blended("binary", rng.normal(size=30), rng.normal(size=30), np.zeros(30), generator=rng)).all()
    assert np.isfinite(blended("binary", [0.5], [0.2], [1.0], generator=rng)).all()
