"""Training workers on a Ray cluster: the bits of one process that takes the parts one after the other, and a lost worker."""

import os
import signal
from pathlib import Path

import pytest
from loops import Setting, assert_same_bits, training
from ray_machines import two_machines
from test_workers import CASES, InParts, trained

from tallystick.compute.ray_cluster import RayEngine
from tallystick.errors import ComputeError, WorkerLost
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.workers.team import Team

SOURCE = Path(__file__).parents[2] / "src"


def on(cluster, *, threads=1):
    """Return a Team whose other workers are on this cluster."""
    return lambda module, plan: Team(module, plan, RayEngine(address=cluster.address, workers=plan.workers - 1, threads=threads))


def kill_workers(step):
    """Kill the cluster's workers, after some steps are committed."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::_Process"):
                os.kill(int(folder.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_workers_of_a_cluster_have_the_bits_of_parts_and_a_lost_one_ends_a_training_that_resumes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    with two_machines() as (cluster, _):
        for place, (setting, how, workers) in enumerate(CASES.values()):
            setting, how = Setting(**setting, validation=40), training(**how)
            found = [
                trained(kind, setting, how, workers, tmp_path / f"{place} {name}")
                for name, kind in (("cluster", on(cluster)), ("parts", InParts))
            ]
            assert_same_bits(*found)

        setting, how, workers, cut = Setting(validation=40), training(epochs=2), {"shop": 2}, tmp_path / "cut"
        with pytest.raises(WorkerLost, match=r"worker 1 of the 2 that train for shop is lost: Ray gave it up \(ActorDied"):
            trained(on(cluster), setting, how, workers, cut, committed={"shop": kill_workers})
        common = max(set.intersection(*(set(CheckpointStore(cut / party).steps()) for party in ("bank", "shop"))))
        assert common >= how.checkpoint_every
        again = trained(on(cluster), setting, how, workers, cut, resume_from=common)
        assert_same_bits(again, trained(InParts, setting, how, workers, tmp_path / "whole"))

        with pytest.raises(ComputeError, match=r"1 workers at a time are asked for; .*, with room for 0, each with CPU 2"):
            trained(on(cluster, threads=2), setting, how, workers, tmp_path / "crowded")
