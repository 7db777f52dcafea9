"""Jobs that predict a count are compared with the rate that made the data and with scikit-learn's regression."""

import json

import numpy as np
import polars as pl
import pytest
from lanes import short_lane_of
from tiny import columns, contract_values, tables

from tallystick.simulation import Silent, simulate

PARTIES = ("bank", "shop")
ROWS = 4000


@pytest.fixture(scope="module")
def counted():
    """Make tables whose label is Poisson with a rate that both sides' columns determine: exp(.4 + .5 x_bank + .5 x_shop)."""
    frames = tables(PARTIES, rows=ROWS)
    joined = (
        frames["bank"].select("id", "x").join(frames["shop"].select("id", shop="x"), on="id", how="left", maintain_order="left")
    )
    rate = np.exp(0.4 + 0.5 * joined["x"].to_numpy() + 0.5 * joined["shop"].fill_null(0).to_numpy())
    frames["bank"] = frames["bank"].with_columns(y=np.random.default_rng(5).poisson(rate), rate=rate)
    return frames


def run(folder, frames, **changes):
    values = contract_values(PARTIES, target={"type": "count"}, evaluation={"bootstrap": 20}, **changes)
    return simulate(values, frames, columns(PARTIES), watcher=Silent(), folder=folder)


@pytest.mark.long
@pytest.mark.parametrize("changes", short_lane_of([{}, {"training__gradients": "none"}, {"model__ensemble": 4}], 1), ids=str)
def test_a_count_is_learnt_about_as_well_as_by_the_model_that_made_it(changes, counted, tmp_path):
    """At most 3 % above the deviance of scikit-learn's Poisson regression on the joined columns.

    The label party alone is 20 % above it, because it lacks half of what determines the rate.
    """
    from sklearn.linear_model import PoissonRegressor
    from sklearn.metrics import mean_poisson_deviance

    result = run(tmp_path, counted, training__epochs=30, **changes)
    metrics = result.evaluation["joint"]
    joined = counted["bank"].join(counted["shop"].select("id", shop="x"), on="id", how="inner")
    x_N2, y_N = joined.select("x", "shop").to_numpy(), joined["y"].to_numpy()
    oracle = mean_poisson_deviance(y_N, PoissonRegressor(alpha=0).fit(x_N2, y_N).predict(x_N2))
    assert metrics["deviance"]["value"] < 1.12 * oracle  # 500 test rows: a standard error of 4 %
    assert metrics["d2"]["value"] > 0.2
    assert result.evaluation["local_baseline"]["deviance"]["value"] > metrics["deviance"]["value"]


def test_a_count_that_is_none_stops_the_run_before_anything_is_sent(counted, tmp_path):
    from tallystick.errors import TallystickError

    frames = counted | {"bank": counted["bank"].with_columns(y=pl.when(pl.col("y") == 0).then(-1).otherwise(pl.col("y")))}
    with pytest.raises(
        TallystickError, match=r"label column .y.: not a count in .* rows; target.type = count needs whole numbers"
    ):
        run(tmp_path, frames)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"defense": [{"method": "label-dp", "epsilon": 1.0}]},
            r"or multilabel targets; target\.type = count",
        ),
        ({"unaligned": {"method": "fedcvt"}}, r"needs two classes; target\.type = count"),
        ({"evaluation__privacy": {"epsilon": 1.0}}, r"releases an AUC, which target\.type = count does not have"),
    ],
)
def test_what_is_for_classes_refuses_counts_by_name(changes, message):
    from tallystick.config.contract import parse_contract
    from tallystick.errors import ConfigError

    with pytest.raises(ConfigError, match=message):
        parse_contract(contract_values(PARTIES, target={"type": "count"}, **changes))


def test_results_name_the_target(counted, tmp_path):
    few = {name: frame.head(400) for name, frame in counted.items()}
    result = run(tmp_path, few, training__epochs=1, evaluation__own_columns_baseline=False)
    assert json.loads(result.to_json())["evaluation"]["target"] == "count"


def test_a_predicted_score_is_the_expected_count():
    import torch

    from tallystick.scoring.predict import score_columns
    from tallystick.tables.target import LabelCoder

    coder = LabelCoder(type="count", mean=2.5)
    outputs_N = torch.tensor([0.0, -1.0, 2.0])
    np.testing.assert_allclose(score_columns(coder, outputs_N)["score"], 2.5 * np.exp(outputs_N.numpy()), rtol=1e-6)


@pytest.mark.parametrize("mean", [1e-6, 2.5, 1e12])
def test_a_predicted_count_is_at_most_the_largest_that_a_label_may_be(mean):
    import torch

    from tallystick.scoring.predict import score_columns
    from tallystick.tables.target import MOST_COUNTED, LabelCoder

    coder = LabelCoder(type="count", mean=mean)
    outputs_N = torch.tensor([-1e4, 80.0, 1e4, 3e38])
    for values_N in (score_columns(coder, outputs_N)["score"], coder.predictions(outputs_N.numpy())):
        np.testing.assert_allclose(values_N, [0.0, *[MOST_COUNTED] * 3], rtol=1e-5)
