"""tallystick audit of a contract on a Ray cluster of two machines, both of which are this one, with losses on the way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from ray_machines import two_machines
from test_audit import change, home_in
from tiny import PATIENCE_S

SWEEP = ("--seeds", "2", "--rows", "300", "--sweep", "label-dp=2", "--sweep", "marvell=1,4")


def worker_of(machine):
    """Return a process on one machine that works on a task."""
    (raylet,) = (info.process for info in machine.all_processes["raylet"])
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for child in Path(f"/proc/{raylet.pid}/task/{raylet.pid}/children").read_text().split():
            with suppress(OSError):
                if b"_perform_on_ray" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        time.sleep(0.01)
    raise AssertionError("no task was begun there")


def audited(home, after=()):
    """Return what a sweep finds; something is done ``after`` so many of its trials."""
    command = [
        "-m",
        "tallystick",
        "audit",
        home / "contract.yaml",
        "--party",
        home / "party.yaml",
        "--progress",
        "json",
        "--json",
    ]
    audit = subprocess.Popen([sys.executable, *command, *SWEEP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(2 * PATIENCE_S, audit.kill)
    limit.start()
    said, due = [], list(after)
    try:
        for line in audit.stderr:
            said.append(line)
            if '"say"' in line and "seed" in line and ": test " in line and due:
                due.pop(0)()
        out = audit.stdout.read()
        assert audit.wait() == 0, "".join(said)
    finally:
        limit.cancel()
        audit.kill()
        audit.wait()
    assert not due, "too few trials for what was to be done in between"
    return json.loads(out.splitlines()[-1])["sweep"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_trials_on_a_cluster_that_loses_a_worker_and_a_machine_come_to_the_same_bits(tmp_path):
    home = home_in(tmp_path)
    change(home / "party.yaml", compute={"workers": 2})
    local = audited(home)
    with two_machines() as (cluster, second):
        change(home / "party.yaml", compute={"engine": "ray", "address": cluster.address, "workers": 2})

        def kill_worker():
            os.kill(worker_of(cluster.head_node), signal.SIGKILL)

        def kill_machine():
            worker_of(second)
            cluster.remove_node(second, allow_graceful=False)

        assert audited(home, after=(kill_worker, kill_machine)) == local
    assert len(local["trials"]) == 4
