"""Gradient boosting on encoded columns equals scikit-learn's, in a network's terms."""

import numpy as np
import pytest
import torch
from lanes import short_lane_of
from scipy.stats import expon, lognorm, norm, uniform

from tallystick.evaluation import boosting
from tallystick.evaluation.boosting import Boosted, boosted_places
from tallystick.metrics import NUMBERS, pinball_loss
from tallystick.tables.features import Features

pytest.importorskip("sklearn")
ROWS = 400


def columns(codes=6):
    generator = torch.Generator().manual_seed(1)
    categorical = torch.randint(0, codes, (ROWS, 1), generator=generator)
    return Features(numeric_NF=torch.randn(ROWS, 2, generator=generator), categorical_NG=categorical)


@pytest.mark.parametrize("codes", short_lane_of([6, 1_000], 1))
@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "count", "quantile"])
def test_logits_are_those_of_the_estimator(kind, codes):
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    features = columns(codes)
    score_N = features.numeric_NF[:, 0] * 2 + (features.categorical_NG[:, 0] % 2)
    labels = {"binary": (score_N > 0).float(), "multiclass": (score_N > 0).long() * 2, "regression": score_N}.get(
        kind, score_N.exp().round()
    )
    weights = torch.linspace(0.5, 2, ROWS)
    levels = (0.2, 0.7) if kind == "quantile" else ()
    boosted = Boosted(kind, features, labels, weights, levels=levels, seed=3)
    found = boosted.logits(features.rows, torch.arange(len(features)), classes=3)
    table = np.hstack([features.numeric_NF.numpy(), features.categorical_NG.numpy()]).astype(np.float64)
    estimator = HistGradientBoostingRegressor if kind in NUMBERS else HistGradientBoostingClassifier
    loss = {"count": {"loss": "poisson"}, "quantile": {"loss": "quantile", "quantile": 0.7}}.get(kind, {})
    model = estimator(categorical_features=[2] if codes < 256 else [], random_state=3, **loss)
    model.fit(table, labels.numpy(), sample_weight=weights.numpy())
    if kind in NUMBERS:
        numbers = torch.from_numpy(model.predict(table)).float()
        found = found[:, 1] if kind == "quantile" else found
        assert torch.allclose(found, numbers.log() if kind == "count" else numbers, atol=1e-5)
        return
    chances = torch.from_numpy(model.predict_proba(table)).float()
    if kind == "binary":
        assert torch.allclose(torch.sigmoid(found), chances[:, 1], atol=1e-5)
        return
    assert found.shape == (ROWS, 3)
    assert torch.allclose(torch.softmax(found, dim=1)[:, [0, 2]], chances, atol=1e-5)
    assert (torch.softmax(found, dim=1)[:, 1] < 1e-5).all()  # a class that no training row has


def test_of_many_levels_some_are_boosted_and_those_between_lie_on_lines(monkeypatch):
    """Over the quantiles of a standard normal. On other draws their loss is within 3 % of that of a model for each."""
    monkeypatch.setattr(boosting, "MOST_LEVELS", 3)
    features, levels = columns(), (0.1, 0.2, 0.5, 0.7, 0.9)
    label_N = features.numeric_NF[:, 0] + torch.randn(ROWS, generator=torch.Generator().manual_seed(2))
    few = Boosted("quantile", features, label_N, levels=levels, seed=1)
    monkeypatch.undo()
    each = Boosted("quantile", features, label_N, levels=levels, seed=1)
    some_NL, all_NL = (model.logits(features.rows, torch.arange(ROWS), classes=2).numpy() for model in (few, each))
    assert len(few._models) == 3
    np.testing.assert_array_equal(some_NL[:, [0, 2, 4]], all_NL[:, [0, 2, 4]])
    share = norm.ppf(0.2) / norm.ppf(0.1)
    np.testing.assert_allclose(some_NL[:, 1], share * some_NL[:, 0] + (1 - share) * some_NL[:, 2], rtol=1e-4, atol=1e-5)
    others_N = features.numeric_NF[:, 0] + torch.randn(ROWS, generator=torch.Generator().manual_seed(3))
    losses = [pinball_loss(others_N, np.sort(values_NL, axis=1), levels=levels).mean() for values_NL in (some_NL, all_NL)]
    assert losses[0] < 1.03 * losses[1]


@pytest.mark.parametrize("label", [norm(), uniform(), expon(), lognorm(1)])
def test_a_quantile_on_a_line_has_the_share_of_labels_below_it_that_its_level_says(label):
    """Within .015, with labels whose distribution is known, at each of 99 levels."""
    levels = np.arange(1, 100) / 100
    places = boosted_places(levels)
    assert len(places) == boosting.MOST_LEVELS
    assert {places[0], places[-1]} == {0, 98}
    on_lines_L = np.interp(norm.ppf(levels), norm.ppf(levels[places]), label.ppf(levels[places]))
    assert np.abs(label.cdf(on_lines_L) - levels).max() < 0.015


def test_few_levels_are_all_boosted():
    assert boosted_places((0.1, 0.5, 0.9)).tolist() == [0, 1, 2]
