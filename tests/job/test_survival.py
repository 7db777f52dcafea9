"""Jobs that predict the time until something happens: compared with a slow count, a likelihood by hand, and the true model."""

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lanes import short_lane_of
from tiny import columns, contract_values, tables

from tallystick.audit.labels import EVENTS, TIMES
from tallystick.config.contract import parse_contract
from tallystick.config.sections import SurvivalTarget
from tallystick.errors import ConfigError, LabelError, TallystickError
from tallystick.metrics import concordance_statistic
from tallystick.metrics.survival import MOST_LOG, brier_scores, brier_statistic, survival_curves
from tallystick.report.leaks import leak_headline
from tallystick.scoring.predict import score_columns
from tallystick.simulation import Silent, simulate
from tallystick.tables.target import SURVIVAL_SHIFT, LabelCoder
from tallystick.training.objective import log_logistic_loss

PARTIES = ("bank", "shop")
ROWS = 4000
TARGET = {"type": "survival"}
LABELS = st.integers(1, 6).flatmap(lambda time: st.sampled_from([float(time), -float(time)]))


def slow_concordance(labels, predictions, weights):
    """Look at every pair."""
    agreeing = pairs = 0.0
    for one, label in enumerate(labels):
        for other, later in enumerate(labels):
            if label > 0 and (abs(later) > label or (abs(later) == label and later < 0)):
                weight = weights[one] * weights[other]
                pairs += weight
                agreeing += weight * ((predictions[one] < predictions[other]) + (predictions[one] == predictions[other]) / 2)
    return agreeing / pairs if pairs else np.nan


@given(st.lists(st.tuples(LABELS, st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=24))
def test_concordance_is_that_of_all_pairs(rows):
    labels, predictions, weights = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    figure, slow = concordance_statistic(labels, predictions)(weights), slow_concordance(labels, predictions, weights)
    assert figure == pytest.approx(slow, abs=1e-12, nan_ok=True)


def test_concordance_is_that_of_lifelines():
    """Return lifelines' `concordance_index` of these rows, version 0.30.3."""
    rng = np.random.default_rng(0)
    time_N, has_event_N = np.round(rng.exponential(20, 500) + 1), rng.random(500) < 0.6
    predicted_N = np.round(time_N + rng.normal(0, 15, 500))
    labels_N = np.where(has_event_N, time_N, -time_N)
    assert concordance_statistic(labels_N, predicted_N)(np.ones(500)) == pytest.approx(0.7431328728159284, abs=1e-12)


def test_brier_scores_are_those_of_scikit_survival():
    """Its `brier_score` of these rows, version 0.28.0."""
    rng = np.random.default_rng(0)
    time_N, has_event_N = rng.exponential(20, 500) + 1, rng.random(500) < 0.6
    predicted_N = np.maximum(1, np.round(time_N + rng.normal(0, 15, 500)))
    times_T = np.array([2.0, 5.0, 10.0, 20.0, 30.0, 45.0])
    survival_TN = 1 / (1 + (times_T[:, None] / predicted_N) ** 1.5)
    expected = [0.11189768722444711, 0.17938268484447736, 0.19884649344789307]
    expected += [0.16950018246032778, 0.1396024408191888, 0.12262612918406418]
    scores_of = brier_scores(np.where(has_event_N, time_N, -time_N), survival_TN, times_T)
    assert scores_of(np.ones(500)) == pytest.approx(expected, abs=1e-12)


def test_a_row_of_weight_two_counts_as_two_rows_in_a_brier_score():
    rng = np.random.default_rng(1)
    labels_N, times_T = np.round(rng.exponential(5, 60)) * rng.choice([1, -1], 60) + 0.5, np.array([1.0, 4.0, 9.0])
    weights_N, survival_TN = rng.integers(0, 4, 60), rng.random((3, 60))
    repeated = brier_scores(np.repeat(labels_N, weights_N), np.repeat(survival_TN, weights_N, axis=1), times_T)
    weighted = brier_scores(labels_N, survival_TN, times_T)(weights_N.astype(float))
    assert weighted == pytest.approx(repeated(np.ones(int(weights_N.sum()))), abs=1e-12)


def test_chances_are_those_of_the_model_that_made_the_times_whatever_their_unit_and_order():
    """4,000 times of scale .5, censored if beyond their limit. Predictions are off by a factor of 3."""
    rng = np.random.default_rng(2)
    middle_N = np.exp(rng.normal(size=4000))
    time_N, until_N = middle_N * np.exp(0.5 * rng.logistic(size=4000)), 3 * np.exp(rng.logistic(size=4000))
    labels_N, times_T = np.where(time_N < until_N, time_N, -until_N), np.array([0.5, 1.0, 3.0])
    chances_TN = survival_curves(labels_N, 3 * middle_N, times_T)
    assert chances_TN == pytest.approx(1 / (1 + (times_T[:, None] / middle_N) ** 2), abs=0.05)  # errors of 3 %, 2 % and less
    order_N = rng.permutation(4000)
    assert survival_curves(labels_N[order_N], middle_N[order_N], times_T) == pytest.approx(chances_TN[:, order_N], abs=1e-4)
    assert brier_statistic(labels_N, middle_N)(np.ones(4000)) < brier_statistic(labels_N, middle_N**0)(np.ones(4000)) - 0.02


def test_a_brier_score_without_events_in_a_half_has_no_value():
    assert np.isnan(brier_statistic([1.0, -2.0, -3.0], [1.0, 1.0, 1.0])(np.ones(3)))


def test_the_loss_is_the_likelihood_of_the_log_logistic_distribution():
    """By scipy's logistic distribution of logarithms."""
    from scipy.stats import logistic

    output_B = torch.tensor([0.3, -2.0, 5.0, 0.0])
    z_B = torch.tensor([0.5, -3.0, 4.0, 9.0])
    target_B = (SURVIVAL_SHIFT + z_B) * torch.tensor([1.0, -1.0, 1.0, -1.0])
    density, survival = -logistic.logpdf(z_B - output_B), -logistic.logsf(z_B - output_B)
    expected = np.where(target_B > 0, density, survival)
    assert log_logistic_loss(output_B, target_B, reduction="none").numpy() == pytest.approx(expected, abs=1e-5)


def test_a_coder_finds_the_distribution_that_made_times_and_gives_them_back():
    """5,000 times, censored beyond 40: the median is off by at most 4 of its standard errors of 2.6 %."""
    rng = np.random.default_rng(3)
    time_R = 20 * np.exp(0.7 * rng.logistic(size=5000))
    label_R = np.where(time_R < 40, time_R, -40.0)
    coder = LabelCoder.fit(pl.Series("y", label_R), SurvivalTarget(type="survival"), np.arange(5000))
    assert coder.mean == pytest.approx(20, rel=0.1)
    assert coder.deviation == pytest.approx(0.7, rel=0.1)
    assert coder.in_units(coder.encode(pl.Series("y", label_R)).numpy()) == pytest.approx(label_R, rel=1e-4)
    assert LabelCoder.from_json(coder.to_json()) == coder


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, 0.0, -2.0], r"label column .y.: is 0 in 1 .*rows; target.type = survival needs a time above 0"),
        ([-1.0, -2.0, -2.0], r"label column .y. has no event on the training rows"),
        ([1.0, float("inf"), -2.0], r"infinite in 1"),
        (["a", "b", "c"], r"label column|column 'y'"),
    ],
)
def test_times_that_are_none_are_refused_by_name(labels, message):
    with pytest.raises(TallystickError, match=message):
        LabelCoder.fit(pl.Series("y", labels), SurvivalTarget(type="survival"), np.arange(3))


@pytest.mark.parametrize("labels", [[5.0, 5.0, 5.0], [5.0, -1e9, -1e9], [1e-9, 1e9, -1e9], [7.0]])
def test_times_that_hardly_tell_a_distribution_give_a_coder_that_works(labels):
    coder = LabelCoder.fit(pl.Series("y", labels), SurvivalTarget(type="survival"), np.arange(len(labels)))
    outputs = np.array([-1e6, 0.0, 1e6])
    assert np.isfinite(coder.predictions(outputs)).all()
    assert np.isfinite(coder.encode(pl.Series("y", labels)).numpy()).all()


def test_a_predicted_score_is_the_time_by_which_half_have_had_their_event():
    coder = LabelCoder(type="survival", mean=20.0, deviation=0.5)
    scores = score_columns(coder, torch.tensor([0.0, 2.0, -1e9]))["score"]
    assert scores == pytest.approx([20.0, 20 * np.exp(1), 20 * np.exp(-MOST_LOG)], rel=1e-6)
    assert coder.predictions(np.array([2.0])) == pytest.approx([20 * np.exp(1)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"defense": [{"method": "label-dp", "epsilon": 1.0}]},
            r"or multilabel targets; target\.type = survival",
        ),
        ({"unaligned": {"method": "warm-start"}}, r"which is not possible for target\.type = survival"),
        ({"evaluation__privacy": {"epsilon": 1.0}}, r"releases an AUC, which target\.type = survival does not have"),
        ({"evaluation__share_metrics": ["rmse"]}, r"is not a metric of survival targets; allowed: concordance, brier"),
    ],
)
def test_what_has_no_way_for_survival_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_contract(contract_values(PARTIES, target=TARGET, **changes))


@pytest.fixture(scope="module")
def followed():
    """Make tables whose times are log-logistic around exp(2 + .8 x_bank + .8 x_shop). A third are censored."""
    frames = tables(PARTIES, rows=ROWS)
    joined = (
        frames["bank"].select("id", "x").join(frames["shop"].select("id", shop="x"), on="id", how="left", maintain_order="left")
    )
    middle_R = 2 + 0.8 * joined["x"].to_numpy() + 0.8 * joined["shop"].fill_null(0).to_numpy()
    rng = np.random.default_rng(5)
    time_R = np.exp(middle_R + 0.4 * rng.logistic(size=len(middle_R)))
    until_R = np.exp(middle_R.mean() + 0.5 + rng.logistic(size=len(middle_R)))
    frames["bank"] = frames["bank"].with_columns(y=np.where(time_R < until_R, time_R, -until_R), middle=middle_R)
    return frames


def run(folder, frames, **changes):
    values = contract_values(PARTIES, target=TARGET, evaluation={"bootstrap": 20}, **changes)
    return simulate(values, frames, columns(PARTIES), watcher=Silent(), folder=folder)


@pytest.mark.parametrize("changes", short_lane_of([{}, {"model__ensemble": 4}, {"training__gradients": "none"}], 1), ids=str)
def test_times_are_ranked_about_as_well_as_by_the_model_that_made_them(changes, followed, tmp_path):
    """The true medians set the bar on all rows. 760 test rows have a standard error of .009, so .03 below it is far."""
    result = run(tmp_path, followed, training__epochs=10, **changes)
    joint, own = (result.evaluation[model]["concordance"]["value"] for model in ("joint", "local_baseline"))
    joined = followed["bank"].join(followed["shop"].select("id"), on="id", how="inner")
    oracle = concordance_statistic(joined["y"].to_numpy(), joined["middle"].to_numpy())(np.ones(len(joined)))
    assert joint > oracle - 0.03
    assert own < joint - 0.05
    brier = {model: result.evaluation[model]["brier"] for model in ("joint", "local_baseline")}
    assert brier["joint"]["low"] < brier["joint"]["value"] < brier["joint"]["high"]
    assert brier["joint"]["value"] < brier["local_baseline"]["value"] - 0.02
    true_score = brier_statistic(joined["y"].to_numpy(), np.exp(joined["middle"].to_numpy()))(np.ones(len(joined)))
    assert brier["joint"]["value"] < true_score + 0.02


def test_a_time_of_zero_stops_the_run_before_anything_is_sent(followed, tmp_path):
    frames = followed | {"bank": followed["bank"].with_columns(y=pl.when(pl.int_range(pl.len()) < 3).then(0.0).otherwise("y"))}
    with pytest.raises(LabelError, match=r"label column .y.: is 0 in 3 .*rows"):
        run(tmp_path, frames)


def test_an_audit_judges_times_and_events_by_themselves(followed, tmp_path):
    """A label is a time, or minus one. So a rank correlation with it misses an attack that finds only times or only events."""
    few = {name: frame.head(1000) for name, frame in followed.items()}
    audit = run(tmp_path, few, audit="quick", training__epochs=2, evaluation__own_columns_baseline=False).sections.leakage
    best = {note: max(each.spearman for each in audit.attacks if each.note == note) for note in ("", EVENTS, TIMES)}
    assert min(best[EVENTS], best[TIMES]) > best[""] + 0.1
    assert any(line.startswith("Through cut gradients, yes: shop") and TIMES in line for line in leak_headline(audit))
