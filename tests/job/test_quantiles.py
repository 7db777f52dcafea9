"""Jobs that predict quantiles are compared with scikit-learn's losses and regressions, and with the true quantiles."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from lanes import short_lane_of
from scipy.stats import norm
from serving_job import Served, predicted
from test_serve import bits, in_several_requests
from tiny import columns, contract_values, lay_out, tables

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.config.sections import QuantileTarget
from tallystick.config.unaligned import METHODS
from tallystick.errors import ConfigError, DataError
from tallystick.job.prediction_output import check_columns
from tallystick.metrics import MetricSettings, metric
from tallystick.scoring.predict import score_columns
from tallystick.simulation import Silent, simulate
from tallystick.tables.target import LabelCoder
from tallystick.training.objective import Supervised, quantile_loss

PARTIES = ("bank", "shop")
ROWS = 4000
LEVELS = (0.1, 0.5, 0.9)
TARGET = {"type": "quantile"}


@pytest.mark.parametrize("levels", [LEVELS, (0.9,)])
def test_the_loss_is_that_of_scikit_learn(levels):
    from sklearn.metrics import mean_pinball_loss

    rng = np.random.default_rng(1)
    target_B, output_BL = rng.normal(size=50), rng.normal(size=(50, len(levels)))
    expected = np.mean([mean_pinball_loss(target_B, output_BL[:, i], alpha=level) for i, level in enumerate(levels)])
    output = torch.from_numpy(output_BL.squeeze(1) if len(levels) == 1 else output_BL)
    assert quantile_loss(output, torch.from_numpy(target_B), levels=levels).item() == pytest.approx(expected)


@pytest.mark.parametrize("levels", [LEVELS, (0.9,)])
def test_the_loss_of_an_ensemble_is_the_mean_of_its_members_losses(levels):
    generator, index_B = torch.Generator().manual_seed(1), torch.arange(20)
    target_N, weight_N = torch.randn(20, generator=generator), torch.rand(20, generator=generator)
    logits = torch.randn(20, 4, len(levels), generator=generator)
    objective = Supervised("quantile", target_N, weight_N, levels=levels)
    given_logits = logits if len(levels) > 1 else logits.squeeze(2)
    each = [objective(given_logits[:, member], index_B)[0].item() for member in range(4)]
    assert objective(given_logits, index_B)[0].item() == pytest.approx(np.mean(each), rel=1e-5)


def test_quantiles_of_labels_mixed_with_another_models_quantiles_are_these_mixed():
    """For labels y and another model's q the best constant is (1 - s) Q(y) + s q, for each level."""
    target_N = torch.randn(2001, generator=torch.Generator().manual_seed(2))
    prior_NL, share = torch.tensor([[-3.0, 1.0, 4.0]]).expand(2001, 3), 0.4
    best_L = 0.6 * torch.quantile(target_N, torch.tensor(LEVELS)) + 0.4 * prior_NL[0]
    objective, index_N = Supervised("quantile", target_N, levels=LEVELS), torch.arange(2001)

    def loss(constants_L):
        return objective.towards(constants_L.expand(2001, 3), index_N, prior_NL, share=share)[0].item()

    assert all(loss(best_L) <= loss(best_L + step * torch.eye(3)[level]) for level in range(3) for step in (-0.05, 0.05))


def test_linear_quantiles_by_this_loss_have_the_loss_of_scikit_learns():
    """Within 10^-5 of QuantileRegressor, which solves the linear program."""
    from sklearn.linear_model import QuantileRegressor

    rng = np.random.default_rng(4)
    x_N2 = rng.normal(size=(200, 2))
    y_N = x_N2.sum(axis=1) + np.exp(0.5 * x_N2[:, 0]) * rng.normal(size=200)
    oracle_NL = np.stack([QuantileRegressor(quantile=level, alpha=0).fit(x_N2, y_N).predict(x_N2) for level in LEVELS], axis=1)
    inputs_N2, target_N = torch.from_numpy(x_N2).float(), torch.from_numpy(y_N).float()
    model, objective, index_N = torch.nn.Linear(2, 3), Supervised("quantile", target_N, levels=LEVELS), torch.arange(200)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.985)
    for _ in range(500):
        optimizer.zero_grad()
        objective(model(inputs_N2), index_N)[0].backward()
        optimizer.step()
        schedule.step()
    settings = MetricSettings(levels=LEVELS)
    own, oracle = (
        metric("quantile", "pinball", y_N, each, settings=settings) for each in (model(inputs_N2).detach().numpy(), oracle_NL)
    )
    assert own == pytest.approx(oracle, rel=1e-5)


@given(arrays(np.float32, (5, 3), elements=st.floats(-1e6, 1e6, width=32)), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_predicted_quantiles_never_cross(outputs, deviation, mean):
    coder = LabelCoder(type="quantile", mean=mean, deviation=deviation, levels=LEVELS)
    scores = score_columns(coder, torch.from_numpy(outputs))
    assert list(scores) == ["score_0.1", "score_0.5", "score_0.9"]
    for values_NL in (np.stack(list(scores.values()), axis=1), coder.predictions(outputs)):
        assert (np.diff(values_NL, axis=1) >= 0).all()


@given(arrays(np.float64, (6, 3), elements=st.floats(-100, 100)), arrays(np.float64, 6, elements=st.floats(-100, 100)))
def test_sorting_never_makes_the_loss_larger(outputs, labels):
    settings = MetricSettings(levels=LEVELS)
    raw, ordered = (
        metric("quantile", "pinball", labels, each, settings=settings) for each in (outputs, np.sort(outputs, axis=1))
    )
    assert ordered <= raw + 1e-9


def test_a_coder_gives_labels_back_and_far_ones_hardly_move_it():
    labels = np.append(np.random.default_rng(1).normal(50, 2, 1000), 1e4)
    coder = LabelCoder.fit(pl.Series("y", labels), QuantileTarget(type="quantile"), np.arange(1001))
    assert coder.mean == pytest.approx(np.median(labels))
    assert coder.deviation == pytest.approx(np.abs(labels - np.median(labels)).mean())
    assert coder.in_units(coder.encode(pl.Series("y", labels)).numpy()) == pytest.approx(labels, rel=1e-5)
    assert coder.levels == LEVELS
    assert LabelCoder.from_json(coder.to_json()) == coder


@pytest.mark.parametrize(
    ("labels", "message"),
    [([3.0, 3.0], r"label column .y. is constant"), ([1.0, float("inf")], "infinite in 1"), (["a", "b"], "'y'")],
)
def test_labels_without_quantiles_are_refused_by_name(labels, message):
    with pytest.raises(DataError, match=message):
        LabelCoder.fit(pl.Series("y", labels), QuantileTarget(type="quantile"), np.arange(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"type": "quantile", "levels": [0.9, 0.1]}}, r"target\.levels.*are 0\.9, 0\.1, in six digits; give each"),
        ({"target": {"type": "quantile", "levels": [0.5, 0.5]}}, r"target\.levels.*give each level once, the lowest first"),
        # Scores of both would have one name.
        ({"target": {"type": "quantile", "levels": [0.1234567, 0.1234568]}}, r"are 0\.123457, 0\.123457, in six digits"),
        (
            {"target": {"type": "quantile", "levels": [0.5]}, "serving": {"ways": ["agreed-batch"]}},
            "serving.ways: agreed-batch give one number for a row, and target.type = quantile has one of a level",
        ),
        ({"target": {"type": "quantile", "levels": [10, 90]}}, r"target\.levels\.0"),
        ({"target": {"type": "quantile", "levels": [0.5, 1.0]}}, r"target\.levels\.1"),
        ({"target": {"type": "quantile", "levels": []}}, r"target\.levels"),
        (
            {"defense": [{"method": "label-dp", "epsilon": 1.0}]},
            r"or multilabel targets; target\.type = quantile",
        ),
        ({"unaligned": {"method": "fedcvt"}}, r"needs two classes; target\.type = quantile"),
        ({"evaluation__privacy": {"epsilon": 1.0}}, r"releases an AUC, which target\.type = quantile does not have"),
        ({"evaluation__share_metrics": ["rmse"]}, r"is not a metric of quantile targets; allowed: pinball, d2, level_error"),
        ({"serving": {"ways": ["embedding"]}}, r"give one number for a row, and target\.type = quantile has several"),
    ],
)
def test_what_has_no_way_for_quantiles_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_contract(contract_values(PARTIES, **{"target": TARGET, **changes}))


@pytest.fixture(scope="module")
def spread():
    """Make tables whose label is normal around 10 (x_bank + x_shop), with a deviation of 5 exp(.5 x_bank)."""
    frames = tables(PARTIES, rows=ROWS)
    joined = (
        frames["bank"].select("id", "x").join(frames["shop"].select("id", shop="x"), on="id", how="left", maintain_order="left")
    )
    own_R = joined["x"].to_numpy()
    middle_R, deviation_R = 10 * (own_R + joined["shop"].fill_null(0).to_numpy()), 5 * np.exp(0.5 * own_R)
    label_R = middle_R + deviation_R * np.random.default_rng(5).normal(size=len(own_R))
    frames["bank"] = frames["bank"].with_columns(y=label_R, middle=middle_R, deviation=deviation_R)
    return frames


JOINT_ALONE = {"evaluation__own_columns_baseline": False}


def run(folder, frames, target=TARGET, **changes):
    values = contract_values(PARTIES, target=target, evaluation={"bootstrap": 20}, **changes)
    return simulate(values, frames, columns(PARTIES), watcher=Silent(), folder=folder)


WAYS = [{}, {"model__ensemble": 4}, {"training__gradients": "none"}, {"unaligned__method": "average"}, {"training__folds": 3}]


@pytest.mark.long
@pytest.mark.parametrize("changes", short_lane_of(WAYS, 1), ids=str)
def test_quantiles_are_learnt_about_as_well_as_the_model_that_made_the_labels_has_them(changes, spread, tmp_path):
    """At most 12 % above the loss of the true quantiles; on 720 test rows it has a standard error of 3 %.

    A share of .8 has one of .015 there, and .07 is more than four of these.
    """
    result = run(tmp_path, spread, training__epochs=30, **changes)
    joint, own = (result.evaluation[model]["pinball"]["value"] for model in ("joint", "local_baseline"))
    joined = spread["bank"].join(spread["shop"].select("id"), on="id", how="inner")
    edges_NL = joined["middle"].to_numpy()[:, None] + joined["deviation"].to_numpy()[:, None] * norm.ppf(LEVELS)
    bar = metric("quantile", "pinball", joined["y"].to_numpy(), edges_NL, settings=MetricSettings(levels=LEVELS))
    assert joint < 1.12 * bar
    assert own > 1.3 * joint
    shares = result.evaluation["curves"]["joint"]["quantiles"]
    assert shares["level"] == list(LEVELS)
    assert [each["value"] for each in shares["observed"]] == pytest.approx(LEVELS, abs=0.07)
    assert shares["between"]["value"] == pytest.approx(0.8, abs=0.07)
    assert shares["between"]["low"] < shares["between"]["value"] < shares["between"]["high"]
    assert shares["width"] < result.evaluation["curves"]["local_baseline"]["quantiles"]["width"]
    assert json.loads(result.to_json())["evaluation"]["target"] == "quantile"


@pytest.mark.long
@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"none", "fedcvt"}))
def test_every_method_for_unaligned_rows_trains_quantiles(method, spread, tmp_path):
    """Far better than own columns alone within a few epochs. Warm-start slows its top down, also for regression."""
    unaligned = {"method": method, **({"group": "kind"} if method == "heuristic" else {})}
    result = run(tmp_path, spread, training__epochs=10, unaligned=unaligned)
    joint, own = (result.evaluation[model]["pinball"]["value"] for model in ("joint", "local_baseline"))
    assert joint < 0.95 * own


def test_one_level_has_one_score_and_no_interval(spread, tmp_path):
    result = run(tmp_path, spread, {"type": "quantile", "levels": [0.9]}, training__epochs=10, model__ensemble=2, **JOINT_ALONE)
    shares = result.evaluation["curves"]["joint"]["quantiles"]
    assert shares["between"] is None
    assert shares["observed"][0]["value"] == pytest.approx(0.9, abs=0.08)


def test_an_audit_finds_numbers_in_gradients_of_quantiles_and_noise_hides_them(spread, tmp_path):
    """A gradient shows on which side of each quantile a label is. Without noise the rank correlation is far above chance."""
    leaks, few = {}, {name: frame.head(1000) for name, frame in spread.items()}
    noise = [{"method": "gaussian", "epsilon": 1.0, "delta": 1e-6, "clip": 1.0}]
    one_level = {"type": "quantile", "levels": [0.5]}  # two values a row, from one line, which the prediction's place moves
    for name, more in {"open": {}, "one level": {"target": one_level}, "noisy": {"defense": noise}}.items():
        result = run(tmp_path / name, few, audit="quick", training__epochs=2, **JOINT_ALONE, **more)
        leaks[name] = max(attack.spearman for attack in result.sections.leakage.attacks)
    assert min(leaks["open"], leaks["one level"]) > 0.3
    assert leaks["noisy"] < leaks["open"] - 0.1


def test_scores_of_levels_are_predicted_in_a_column_each_and_served_with_the_same_bits(spread, tmp_path):
    frames = {name: frame.head(400) for name, frame in spread.items()}
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES, target=TARGET, serving={"ways": ["key"]}), frames)
    job.change("bank", report={"subgroups": ["kind"], "smallest_group": 20})
    job.run_all()
    scores = predicted(job)
    names = [f"score_{level}" for level in LEVELS]
    assert [name for name in scores.columns if name.startswith("score_0")] == names
    served = Served(job)
    try:
        served.start().until_ready()
        answers = in_several_requests(served, scores, ["id"])
    finally:
        served.close()
    for name in names:
        assert bits([answer[name] for answer in answers]) == bits(scores[name].to_numpy())


def test_a_key_column_with_the_name_of_a_score_is_refused(tmp_path):
    values = contract_values(PARTIES, target=TARGET)
    frame = pl.DataFrame({"score_0.5": ["a"]})
    party = parse_party(
        {"party": "bank", "table": {"path": "bank.csv"}, "keys": {"id": "score_0.5"}, "label": "y"}, folder=tmp_path
    )
    with pytest.raises(ConfigError, match=r"keys: column 'score_0\.5' has a name that the file of scores needs itself"):
        check_columns(parse_contract(values), party, frame, tmp_path / "scores.parquet")
