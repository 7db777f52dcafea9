"""The page of explorations: gains in points, and their ranks, by hand."""

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments.explore import explore_experiment, explore_page, gain_in_points


def figures(own, joint, metric="auc"):
    gain = joint - own
    return {
        "metric": metric,
        "own": own,
        "joint": joint,
        "gain": [gain, gain - 0.01, gain + 0.01],
        "test_rows": 800,
        "seconds": 9.0,
    }


def test_a_point_is_a_hundredth_of_auc_or_a_tenth_of_own_rmse():
    value = gain_in_points("binary", figures(0.7, 0.75))
    assert (value.value, value.low, value.high) == pytest.approx((5.0, 4.0, 6.0))
    value = gain_in_points("regression", figures(2.0, 1.5, "rmse"))  # a quarter less
    assert (value.value, value.low, value.high) == pytest.approx((2.5, 2.45, 2.55))


def test_the_page_ranks_tables_and_says_by_how_much_estimates_are_off():
    gains = {"moss": (0.72, 0.76), "fern": (0.75, 0.745), "alga": (0.80, 0.85)}
    rows = [
        {"seed": 1, "table": name, "target": "binary", "estimate": figures(0.7, estimate), "final": figures(0.7, final)}
        for name, (estimate, final) in gains.items()
    ]
    page = explore_page({"sample": 4_000, "rows": dict.fromkeys(gains, 9_000)}, rows)
    values = dict(page.tables[0].rows)
    assert values["Spearman's rank correlation"] == pytest.approx(0.5)  # ranks 1, 2, 3 beside 2, 1, 3
    assert values["estimate below the final gain, tables"] == 2
    assert values["off by, points, most"] == pytest.approx(5.0)
    assert values["final gain within the estimate's interval, tables"] == 1
    assert len(page.tables[1].rows) == 3


def test_an_unknown_table_is_refused():
    with pytest.raises(ConfigError, match="--tables moss"):
        explore_experiment(tables=["moss"])
