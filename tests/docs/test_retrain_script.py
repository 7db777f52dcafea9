"""The script of the how-to on retraining, with a stand-in for our command: how it ends, and what is in use then."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "retrain.md"
STANDS_IN = """#!/bin/sh
echo "$@" >> calls
case $1 in
  run) echo '{"run_id": "new", "folder": "runs/new"}'; exit $RUN_ENDS ;;
  compare) exit $COMPARE_ENDS ;;
esac
"""


@pytest.fixture
def script(tmp_path):
    """Run the script in a folder where the run "old" is in use. Return its exit code, what is in use and what was called."""
    text = PAGE.read_text()
    (found,) = [block for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if block.startswith("#!/bin/sh")]
    (tmp_path / "retrain.sh").write_text(found)
    (tmp_path / "tallystick").write_text(STANDS_IN)
    (tmp_path / "tallystick").chmod(0o700)
    (tmp_path / "in-use").write_text("old\n")
    (tmp_path / "in-use-folder").write_text("runs/old\n")

    def run(*, run_ends=0, compare_ends=0):
        more = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUN_ENDS": str(run_ends), "COMPARE_ENDS": str(compare_ends)}
        ended = subprocess.run(["/bin/sh", "retrain.sh"], cwd=tmp_path, env=os.environ | more, capture_output=True)
        in_use = [(tmp_path / name).read_text().strip() for name in ("in-use", "in-use-folder")]
        return ended.returncode, in_use, (tmp_path / "calls").read_text().splitlines()

    return run


def test_a_better_run_is_promoted_and_comes_into_use(script):
    code, in_use, calls = script()
    assert (code, in_use) == (0, ["new", "runs/new"])
    assert calls == [
        "run contract.yaml --party party.yaml --start-from old --json",
        "compare runs/old runs/new --decide --party party.yaml",
        "runs contract.yaml --party party.yaml promote new",
    ]


@pytest.mark.parametrize(("ends", "code"), [({"compare_ends": 4}, 4), ({"compare_ends": 2}, 2), ({"run_ends": 3}, 3)])
def test_a_run_that_is_no_better_or_failed_leaves_the_old_one_in_use_and_says_which_it_was(script, ends, code):
    ended, in_use, calls = script(**ends)
    assert (ended, in_use) == (code, ["old", "runs/old"])
    assert not any("promote" in call for call in calls)
