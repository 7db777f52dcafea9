"""Tasks on a Ray cluster of two machines, both of which are this one."""

import importlib.util
import json
import os
import platform
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest
from ray_machines import two_machines
from test_local import begun, ended

from tallystick.compute import ray_cluster
from tallystick.compute.ray_cluster import RayEngine
from tallystick.compute.task import ATTEMPTS, Work
from tallystick.errors import ComputeError, ConfigError, DataError


def chores(engine, folder, *asked):
    """Return the outputs of chores, in the order in which they come."""
    work = Work(prepare="chores:prepare", shared=str(folder).encode())
    return engine.map(work, (json.dumps(each).encode() for each in asked), json.loads)


def test_without_ray_a_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"compute.engine = ray: Ray is not installed; run: pip install 'tallystick\[ray\]'"):
        list(chores(RayEngine(workers=1), tmp_path, ["square", 1]))


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_does_not_answer_is_given_up_in_time(tmp_path, monkeypatch, scheme):
    pytest.importorskip("ray")
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.3)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # it accepts connections, and speaks no protocol
        address = f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ComputeError, match=rf"compute.address = {address}: no Ray cluster answered within 0.3 s"):
            RayEngine(address=address, workers=1).check("tallystick.simulation")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_cluster_does_tasks_again_that_lost_their_worker_or_their_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # of the machines' workers, which find the chores there
    with two_machines() as (cluster, second):
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        engine = RayEngine(address=cluster.address, workers=2)
        assert "answers with 2 machine(s)" in engine.check("tallystick.simulation")
        asked = [["square", 1], ["die", ATTEMPTS - 1, "often"], *(["square", number] for number in range(2, 8))]
        found = dict(chores(engine, tmp_path, *asked))
        assert found.pop(1) == "survived"
        assert [found[number][0] for number in (0, *range(2, 8))] == [number**2 for number in range(1, 8)]
        assert os.getpid() not in {worker for _, worker in found.values()}

        with pytest.raises(ComputeError, match="task 0 was abandoned by Ray: WorkerCrashedError"):
            list(chores(engine, tmp_path, ["die", 99, "always"]))
        with pytest.raises(DataError, match="the column 'x' has no values"):
            list(chores(engine, tmp_path, ["raise", "data"]))
        with pytest.raises(
            ComputeError, match=f"task 0: a machine of the Ray cluster at {cluster.address} answered with bytes that"
        ):
            list(chores(engine, tmp_path, ["plant", "planted"]))
        assert int((tmp_path / "planted").read_text()) != os.getpid()
        with pytest.raises(ComputeError, match=r"3 workers at a time are asked for; .* 2 machine.*, with room for 2, each"):
            RayEngine(address=cluster.address, workers=3).check("tallystick.simulation")
        with pytest.raises(ComputeError, match="with room for 0, each with CPU 1, gpu 1; start more machines"):
            list(chores(RayEngine(address=cluster.address, workers=1, resources={"gpu": 1}), tmp_path, ["square", 1]))

        outputs = chores(engine, tmp_path, ["square", 1], ["sleep", 600, "early"])
        assert next(outputs)[0] == 0
        worker = begun(tmp_path / "early")
        outputs.close()
        assert ended(worker)

        asked = [["once", 4.0, "one"], ["once", 4.0, "two"], ["square", 3]]
        outputs = chores(engine, tmp_path, *asked)
        first = next(outputs)
        cluster.remove_node(second, allow_graceful=False)
        found = dict([first, *outputs])
        assert (found[0], found[1], found[2][0]) == ("done", "done", 9)

        alone = RayEngine(address=cluster.address, workers=1)
        monkeypatch.setattr(ray_cluster, "NO_PULSE_S", 12.0)
        outputs = chores(alone, tmp_path, ["once", 25.0, "long"])  # its worker gives signs, however long it takes
        assert list(outputs) == [(0, "done")]
        outputs = chores(alone, tmp_path, ["square", 1], ["sleep", 600, "stopped"])
        assert next(outputs)[0] == 0
        threading.Thread(target=lambda: os.kill(begun(tmp_path / "stopped"), signal.SIGSTOP)).start()
        with pytest.raises(ComputeError, match=rf"the worker of task 1 on {platform.node()},process=\d+ has not answered for"):
            next(outputs)
        assert ended(int((tmp_path / "stopped").read_text()))
        monkeypatch.setattr(ray_cluster, "NO_PULSE_S", 120.0)

        lost = RayEngine(address=cluster.address, workers=1, threads=2)
        with pytest.raises(ComputeError, match="with room for 0, each with CPU 2"):
            list(chores(lost, tmp_path, ["square", 1]))
        assert {number: signal.getsignal(number) for number in before} == before

        monkeypatch.setattr(ray_cluster, "HEAD_S", 1.0)
        (head,) = (each.process.pid for each in cluster.head_node.all_processes["gcs_server"])
        for how in (signal.SIGSTOP, signal.SIGKILL):
            outputs = chores(RayEngine(address=cluster.address, workers=1), tmp_path, ["square", 1], ["sleep", 600, "late"])
            assert next(outputs)[0] == 0
            os.kill(head, how)
            with pytest.raises(
                ComputeError, match=r"the Ray cluster is lost: its head does not answer; start it again, and then this command"
            ):
                next(outputs)
            if how == signal.SIGSTOP:
                monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.3)
                with pytest.raises(ComputeError, match=r"no Ray cluster answered within 0.3 s"):
                    RayEngine(address=cluster.address, workers=1).check("tallystick.simulation")
                monkeypatch.undo()
                monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
                monkeypatch.setattr(ray_cluster, "HEAD_S", 1.0)
                os.kill(head, signal.SIGCONT)
