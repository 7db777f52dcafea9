"""What `tallystick serve` loads: each module takes memory for as long as it serves."""

import subprocess
import sys

SCRIPT = """
import importlib, sys
from tallystick.cli.serve import LOADS

for name in (*LOADS, "tallystick.serving.http", "tallystick.serving.metrics"):
    importlib.import_module(name)
print(*sorted(name for name in sys.modules if name.startswith("tallystick.")))
"""
OF_SHARES = ("tallystick.secret_sharing", "tallystick.serving.opened_scores", "tallystick.job.phases.shared_head")


def test_serving_loads_nothing_of_the_head_on_shares_():
    """Where the head is shared it loads them: 35 MiB, which no other label party's process holds."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    assert "tallystick.serving.label_party" in loaded
    assert [name for name in loaded if name.startswith(OF_SHARES)] == []
