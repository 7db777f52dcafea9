"""The modules that `tallystick serve` loads: each takes memory for as long as it serves."""

from tiny import said_by

SCRIPT = """
import importlib, sys
for name in [name for name in sys.modules if name.startswith("tallystick")]:
    del sys.modules[name]  # loaded again below, if serving loads it
from tallystick.cli.serve import LOADS

for name in (*LOADS, "tallystick.serving.http", "tallystick.serving.metrics"):
    importlib.import_module(name)
print(*sorted(name for name in sys.modules if name.startswith("tallystick.")))
"""
OF_SHARES = ("tallystick.secret_sharing", "tallystick.serving.opened_scores", "tallystick.job.phases.shared_head")


def test_serving_loads_nothing_of_the_head_on_shares_():
    """With a shared head it loads them: 35 MiB, which no other label party's process holds."""
    loaded = said_by(SCRIPT).split()
    assert "tallystick.serving.label_party" in loaded
    assert [name for name in loaded if name.startswith(OF_SHARES)] == []
