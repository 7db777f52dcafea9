"""Tasks on processes of this machine: outputs, errors, killed workers, and that nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing

import msgspec
import pytest
from tiny import PATIENCE_S

from tallystick.check import check_party_file
from tallystick.compute import local
from tallystick.compute.local import LocalEngine
from tallystick.compute.task import ATTEMPTS, Work, output_of, perform
from tallystick.errors import ComputeError, ConfigError, DataError


def chores(folder, *asked, workers=2):
    """Return the outputs of chores, in the order in which they come."""
    work = Work(prepare="chores:prepare", shared=str(folder).encode())
    given = (json.dumps(each).encode() for each in asked)
    return LocalEngine(workers=workers).map(work, given, json.loads)


def begun(path):
    """Return the process that wrote its number there."""
    until = time.monotonic() + PATIENCE_S
    while not (path.exists() and (text := path.read_text())):
        assert time.monotonic() < until, f"{path.name} was never begun"
        time.sleep(0.02)
    return int(text)


def ended(number):
    """Tell whether a process ends in time."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_every_input_gets_its_output_from_few_workers(tmp_path):
    found = dict(chores(tmp_path, *(["square", number] for number in range(20))))
    assert [found[number][0] for number in range(20)] == [number**2 for number in range(20)]
    workers = {worker for _, worker in found.values()}
    assert 1 <= len(workers) <= 2
    assert os.getpid() not in workers
    assert all(map(ended, workers))
    assert list(chores(tmp_path)) == []


def test_a_worker_has_the_threads_that_it_is_given():
    ((_, found),) = LocalEngine(workers=1, threads=3).map(Work(prepare="chores:prepare_torch"), [b""], json.loads)
    assert found == [3, "3"]


def test_a_killed_worker_costs_its_task_which_is_done_again(tmp_path):
    asked = [["square", 1], ["die", ATTEMPTS - 1, "often"], ["square", 2]]
    found = dict(chores(tmp_path, *asked))
    assert (found[0][0], found[1], found[2][0]) == (1, "survived", 4)
    assert len(list(tmp_path.glob("often-*"))) == ATTEMPTS


def test_a_task_that_keeps_losing_its_worker_is_given_up(tmp_path):
    with pytest.raises(
        ComputeError, match=f"task 0 was begun {ATTEMPTS} times, and each time its worker died, the last by SIGKILL"
    ):
        list(chores(tmp_path, ["die", 99, "always"], workers=1))


def test_what_a_task_raises_is_raised_here_as_what_it_is(tmp_path):
    with pytest.raises(DataError, match="the column 'x' has no values") as caught:
        list(chores(tmp_path, ["raise", "data"]))
    assert "chores.py" in caught.value.__notes__[0]
    with pytest.raises(ComputeError, match="task 1 failed: ZeroDivisionError: a bug"):
        list(chores(tmp_path, ["square", 1], ["raise", "bug"]))
    with pytest.raises(ConfigError, match=r"compute.test = x: cannot be prepared"):
        list(LocalEngine(workers=1).map(Work(prepare="chores:unusable", shared=b"x"), [b""], bytes))
    with pytest.raises(ComputeError, match="No module named 'nowhere'"):
        list(LocalEngine(workers=1).map(Work(prepare="nowhere:prepare"), [b""], bytes))


def test_an_input_is_taken_when_a_worker_is_free_for_it(tmp_path):
    taken = []

    def inputs():
        for number in range(4):
            taken.append(number)
            yield json.dumps(["square", number]).encode()

    work = Work(prepare="chores:prepare", shared=str(tmp_path).encode())
    with closing(LocalEngine(workers=1).map(work, inputs(), bytes)) as outputs:
        for done, _ in enumerate(outputs):
            assert taken == list(range(done + 1))


def test_an_early_end_interrupts_what_runs_and_leaves_no_process(tmp_path):
    outputs = chores(tmp_path, ["square", 1], ["sleep", 600, "long"])
    assert next(outputs)[0] == 0
    worker = begun(tmp_path / "long")
    outputs.close()
    assert ended(worker)
    assert not (tmp_path / "long-tidy").exists()  # the task could clean up


PARENT = """
import json, sys
from tallystick.compute.local import LocalEngine
from tallystick.compute.task import Work
work = Work(prepare="chores:prepare", shared=sys.argv[1].encode())
list(LocalEngine(workers=2).map(work, [json.dumps(["sleep", 600, name]).encode() for name in ("one", "two")], bytes))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_began_them(tmp_path, how):
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=surroundings, stderr=subprocess.PIPE)
    workers = [begun(tmp_path / name) for name in ("one", "two")]
    parent.send_signal(how)
    parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == -how
    assert all(map(ended, workers))
    assert not list(tmp_path.glob("*-tidy"))


def test_a_worker_of_other_versions_refuses_every_task():
    work = Work(prepare="chores:prepare", shared=b"/")
    there = perform(work, b"[]", threads=1, versions="tallystick 0.1.0, Python 3.9.1, PyTorch 2.0.0")
    with pytest.raises(
        ComputeError, match=r"a worker on .* has tallystick .*, and this machine has .*, Python 3\.9\.1, PyTorch 2\.0\.0; install"
    ):
        output_of(there, 0, read=bytes)


def test_what_workers_are_sent_counts_before_they_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "free_memory", lambda: 2 * (local.LEAST_BYTES + 3000))
    engine, work = LocalEngine(workers=2), Work(prepare="chores:prepare", shared=bytes(4000))
    with pytest.raises(
        ComputeError, match=r"compute\.workers = 2: they take .* at the least, and .* are free here; use at most 1$"
    ):
        list(engine.map(work, [b"[]"], bytes))


def test_a_check_names_the_workers_that_memory_allows(tmp_path):
    (tmp_path / "party.yaml").write_text("party: bank\ncompute: {workers: 4096}\n")
    (problem,) = check_party_file(tmp_path / "party.yaml", None)["problems"]
    assert re.fullmatch(r"compute.workers = 4096: they take .* GiB are free here; use at most [1-9][0-9]*", problem)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0",
        b"\0no number",
        b"\2",
        b"\1",
        b"\1\xc1",
        b"\1\x93\xa0\xa0",
        b"\1" + msgspec.msgpack.encode(("SystemExit", "", "")),
    ],
)
def test_what_is_no_answer_of_ours_is_one_line_that_names_the_machine(answer):
    with pytest.raises(ComputeError, match=r"^task 3: node-7 answered with") as caught:
        output_of(answer, 3, read=int, machine="node-7")
    assert len(str(caught.value).splitlines()) == 1
