"""tallystick audit of a contract on worker processes; in its own file, because workers do not see a test's patches."""

import pytest
from test_audit import change, found, home_in, swept

from tallystick.results import read_result


@pytest.mark.long
def test_trials_on_workers_come_to_the_same_bits(tmp_path):
    home = home_in(tmp_path)
    sweep = ("--seeds", 1, "--rows", 300, "--sweep", "label-dp=2", "--json")
    alone = found(swept(home, *sweep))
    change(home / "party.yaml", compute={"workers": 2})
    shared = found(swept(home, *sweep))
    assert shared["sweep"] == alone["sweep"]
    first, second = (read_result(path.read_bytes()) for path in sorted((home / "runs").glob("*/result.json")))
    assert first.label_audit == second.label_audit
