"""Imputers of absent labels: exact rules, rates, the expected gradient, a slow neighbour search."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from tallystick.errors import ConfigError
from tallystick.imputation.draws import Draws
from tallystick.imputation.imputer import LabelBatch
from tallystick.imputation.imputer_table import (
    FEATURE_STRATEGIES,
    LABEL_IMPUTERS,
    LABEL_STRATEGIES,
    feature_strategy,
    label_strategy,
)
from tallystick.imputation.label_imputers import MajorityLabels, NeighborLabels, RandomPositiveLabels, RandomPredictedLabels


def batch_of(rows: int, *, seed: int = 1, present: float = 0.5, positive_rate: float = 0.25) -> LabelBatch:
    generator = torch.Generator().manual_seed(seed)
    return LabelBatch(
        labels_B=(torch.rand(rows, generator=generator) < positive_rate).float(),
        present_B=torch.rand(rows, generator=generator) < present,
        logits_B=torch.randn(rows, generator=generator) * 2,
        cut_BD=torch.randn(rows, 6, generator=generator),
        positive_rate=positive_rate,
        settled_B=(torch.rand(rows, generator=generator) < positive_rate).float(),
    )


def uniforms(rows: int, k: int, *, seed: int = 2) -> torch.Tensor:
    return torch.rand(rows, k, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(LABEL_IMPUTERS)), rows=st.integers(1, 40), seed=st.integers(0, 99), present=st.floats(0, 1))
def test_real_labels_stay_and_targets_are_probabilities(name: str, rows: int, seed: int, present: float) -> None:
    imputer = LABEL_IMPUTERS[name]()
    batch = batch_of(rows, seed=seed, present=present)
    targets_B = imputer(batch, uniform_BK=uniforms(rows, imputer.draws, seed=seed))
    assert torch.equal(targets_B[batch.present_B], batch.labels_B[batch.present_B])
    assert targets_B.shape == batch.labels_B.shape
    assert bool(((targets_B >= 0) & (targets_B <= 1)).all())


@pytest.mark.parametrize(
    ("name", "rate", "value"), [("majority", 0.2, 0), ("majority", 0.8, 1), ("minority", 0.2, 1), ("minority", 0.8, 0)]
)
def test_constant_imputers(name: str, rate: float, value: float) -> None:
    imputer = LABEL_IMPUTERS[name]()
    batch = batch_of(50, positive_rate=rate)
    targets_B = imputer(batch, uniform_BK=uniforms(50, 0))
    assert set(targets_B[~batch.present_B].tolist()) == {value}
    assert imputer.imputed_rate(rate) == value


def test_random_labels_have_the_stated_rates() -> None:
    """20,000 draws, 5 standard errors: chance of failing below 1e-5 each."""
    rows = 20_000
    batch = batch_of(rows, present=0.0, positive_rate=0.25)
    drawn_B = RandomPositiveLabels()(batch, uniform_BK=uniforms(rows, 1))
    assert float(drawn_B.mean()) == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / rows) ** 0.5)
    predicted_B = RandomPredictedLabels()(batch, uniform_BK=uniforms(rows, 1))
    residual_B = predicted_B - torch.sigmoid(batch.logits_B)
    assert abs(float(residual_B.mean())) < 5 * 0.5 / rows**0.5


def test_more_draws_shrink_the_gradient_as_one_over_root_k() -> None:
    """Appendix H: the gradient p - target has mean 0 and variance p(1-p)/k; 20,000 rows, 10 % tolerance (> 8 standard errors)."""
    rows = 20_000
    batch = batch_of(rows, present=0.0)
    p_B = torch.sigmoid(batch.logits_B)
    for k in (1, 4, 10):
        residual_B = p_B - RandomPredictedLabels(k=k)(batch, uniform_BK=uniforms(rows, k))
        assert float(residual_B.var()) == pytest.approx(float((p_B * (1 - p_B)).mean()) / k, rel=0.1)


def test_neighbours_vote_like_sklearn() -> None:
    batch = batch_of(200, positive_rate=0.4)
    targets_B = NeighborLabels(k=3)(batch, uniform_BK=uniforms(200, 0))
    oracle = KNeighborsClassifier(n_neighbors=3, metric="cosine")
    oracle.fit(batch.cut_BD[batch.present_B].numpy(), batch.labels_B[batch.present_B].numpy())
    expected = oracle.predict(batch.cut_BD[~batch.present_B].numpy())
    assert targets_B[~batch.present_B].tolist() == expected.tolist()


def test_neighbours_with_few_or_no_real_rows() -> None:
    batch = LabelBatch(
        labels_B=torch.tensor([1.0, 0.0, 0.0]),
        present_B=torch.tensor([True, True, False]),
        logits_B=torch.zeros(3),
        cut_BD=torch.eye(3),
        positive_rate=0.2,
    )
    assert NeighborLabels(k=3)(batch, uniform_BK=uniforms(3, 0)).tolist() == [1.0, 0.0, 0.5]  # one vote each
    alone = LabelBatch(
        labels_B=batch.labels_B,
        present_B=torch.zeros(3, dtype=torch.bool),
        logits_B=batch.logits_B,
        cut_BD=batch.cut_BD,
        positive_rate=0.2,
    )
    assert NeighborLabels()(alone, uniform_BK=uniforms(3, 0)).tolist() == [0.0, 0.0, 0.0]


def test_draws_once_repeat_and_draws_per_step_do_not() -> None:
    rows_B = torch.tensor([3, 1, 4])
    once = Draws.of(rows=5, k=2, redraw="once", generator=torch.Generator().manual_seed(1))
    assert torch.equal(once.at(rows_B), once.at(rows_B))
    assert torch.equal(once.at(rows_B)[1], once.at(torch.tensor([1]))[0])
    fresh = Draws.of(rows=5, k=2, redraw="step", generator=torch.Generator().manual_seed(1))
    assert not torch.equal(fresh.at(rows_B), fresh.at(rows_B))
    assert fresh.at(rows_B).shape == (3, 2)


def test_names() -> None:
    assert set(LABEL_STRATEGIES) == {
        "majority", "majority-tr", "majority-te", "majority-fit", "minority", "random-pos", "random-pred", "neighbors", "settled",
    }  # fmt: skip
    calibrated = {name + suffix for name in ("sampling", "splice") for suffix in ("", "-tr", "-te", "-fit")}
    assert set(FEATURE_STRATEGIES) == {"gaussian", "random", *calibrated}
    assert label_strategy("majority-tr") == (MajorityLabels(), "training")
    for name in LABEL_STRATEGIES:
        imputer, when = label_strategy(name)
        assert when == "never" or imputer.imputed_rate(0.2) is not None  # what is calibrated has a rate to calibrate with
    for name in FEATURE_STRATEGIES:
        feature_strategy(name)


def test_unusable_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="k=0"):
        RandomPredictedLabels(k=0)
    with pytest.raises(ConfigError, match="k=0"):
        NeighborLabels(k=0)
    with pytest.raises(ConfigError, match=r"'best'.*majority"):
        label_strategy("best")
    with pytest.raises(ConfigError, match=r"'majority'.*sampling"):
        feature_strategy("majority")
