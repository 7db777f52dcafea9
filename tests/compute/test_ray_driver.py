"""The process that belongs to a Ray cluster for a party: what it can see, and how it may end, with a stand-in for Ray itself."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest
from test_local import begun, ended
from tiny import PATIENCE_S

from tallystick.compute import ray_cluster
from tallystick.compute.ray_cluster import RayEngine
from tallystick.compute.ray_messages import Keep
from tallystick.compute.ray_processes import RayProcesses, ray_processes
from tallystick.compute.task import Work
from tallystick.errors import ComputeError

STAND_IN = '''
"""Does as RAY_TEST says, a call and what happens in it, and else answers with the pickle in a file."""
import os, pickle, signal, time
from pathlib import Path
from tallystick.compute import ray_driver

FOLDER = Path(os.environ["RAY_TEST_FOLDER"])
WHERE, _, WHAT = os.environ.get("RAY_TEST", "").partition(" ")
ray_driver.LOOK_S = 0.05
ray_driver.LEAVE_S = 0.5

def called(name):
    if name == WHERE:
        {"hangs": lambda: time.sleep(600), "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
         "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP), "leaves": lambda: os._exit(3),
         "fails": lambda: exec("raise OSError(28, 'no\\\\x1b[31mspace')"), "waits": lambda: None}[WHAT]()

class Task:
    def __init__(self, function, *given):
        self.function, self.given = function, given
    def remote(self, *given):
        return Task(self.function, *given)
    def options(self, **_):
        return self
    @property
    def do(self):
        return Task(lambda *_: b"\\0")

class Context:
    gcs_address = os.environ.get("RAY_TEST_HEAD", "127.0.0.1:1")
    get_node_id = staticmethod(lambda: "1")

def init(**_):
    (FOLDER / "pid").write_text(str(os.getpid()))
    called("init")
def put(block):
    called("put")
    return block
def remote(function=None, **_):
    return Task(function) if function is not None else Task
def wait(tasks, num_returns, timeout):
    called("wait")
    if WHAT == "waits":
        time.sleep(timeout)
        return [], tasks
    return tasks[:1], tasks[1:]
def get(task):
    called("get")
    planted = FOLDER / "planted"
    return pickle.loads(planted.read_bytes()) if planted.exists() else task.function(*task.given)
def nodes():
    called("nodes")
    return [{"Alive": True, "NodeID": "1", "Resources": {"CPU": 4.0}}]
def cancel(task, force):
    called("cancel")
def get_runtime_context():
    return Context
def shutdown():
    called("shutdown")
'''

HEAD = """
import os
from pathlib import Path
PULSES = Path(os.environ["RAY_TEST_FOLDER"]) / "pulses"

def _internal_kv_get(name):
    file = PULSES / name.rpartition(":")[2]
    return file.read_bytes() if file.exists() else None
def _internal_kv_put(name, pulse, overwrite):
    pass
def _internal_kv_del(name):
    pass
"""

SPY = """
import json, os, sys
seen = {"pid": os.getpid(), "environment": dict(os.environ), "arguments": sys.argv, "command": open("/proc/self/cmdline").read()}
files = ["/proc/self/fd/" + each for each in os.listdir("/proc/self/fd")]
seen["files"] = {os.path.basename(each): os.readlink(each) for each in files if os.path.lexists(each)}
seen["modules"] = sorted(sys.modules)
open(PATH, "w").write(json.dumps(seen))
"""


class Planted:
    """Runs a program where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (SPY.replace("PATH", repr(str(self.path))), {})


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Make ``ray`` the stand-in, and return its folder."""
    (tmp_path / "modules" / "ray").mkdir(parents=True)
    (tmp_path / "modules" / "ray" / "__init__.py").write_text(STAND_IN)
    (tmp_path / "modules" / "ray" / "experimental").mkdir()
    (tmp_path / "modules" / "ray" / "experimental" / "__init__.py").touch()
    (tmp_path / "modules" / "ray" / "experimental" / "internal_kv.py").write_text(HEAD)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("RAY_TEST_FOLDER", str(tmp_path))
    return tmp_path


def squares(folder, *numbers, workers=2):
    work = Work(prepare="chores:prepare", shared=str(folder).encode())
    given = (json.dumps(["square", number]).encode() for number in numbers)
    return RayEngine(workers=workers).map(work, given, json.loads)


def process_of(folder):
    return int((folder / "pid").read_text())


def test_what_a_machine_returns_is_unpickled_in_a_process_without_secrets(stand_in, monkeypatch):
    import pickle

    monkeypatch.setenv("PARTY_PASSWORD", "a party's secret")
    (stand_in / "key.pem").write_text("a key")
    (stand_in / "planted").write_bytes(pickle.dumps(Planted(stand_in / "seen")))
    with (stand_in / "key.pem").open() as key:
        os.set_inheritable(key.fileno(), True)
        with pytest.raises(
            ComputeError,
            match=r"^task 0: a machine of the Ray cluster at auto answered with bytes that are not an answer to this task",
        ):
            list(squares(stand_in, 1, workers=1))
    seen = json.loads((stand_in / "seen").read_text())
    assert seen["pid"] == process_of(stand_in) != os.getpid()
    assert "a party's secret" not in json.dumps(seen)
    assert {name for name in seen["environment"] if not name.startswith(("RAY_", "GRPC_"))} <= {
        *ray_cluster._ENVIRONMENT,
        "PYTHONPATH",
        "KMP_DUPLICATE_LIB_OK",  # which threadpoolctl sets
        "LC_CTYPE",  # which Python does
    }
    assert not any("key.pem" in str(value) for value in (seen["files"], seen["arguments"], seen["command"]))
    kinds = {target.partition(":")[0] for name, target in seen["files"].items() if int(name) > 2}
    assert kinds <= {"socket", "pipe", "anon_inode", "/dev/null"}, seen["files"]
    assert not [name for name in seen["modules"] if name.startswith(("tallystick.network", "tallystick.config", "torch"))]
    assert ended(seen["pid"])


def test_tasks_and_processes_answer_in_bytes(stand_in):
    assert {number: output[0] for number, output in squares(stand_in, 1, 2, 3)} == {0: 1, 1: 4, 2: 9}
    with ray_processes(RayEngine(workers=2), "chores:prepare", [b"/", b"/"]) as processes:
        processes.share(b"weights")
        for number in (1, 0):
            processes.ask(number, b"one", b"two", shared=True)
        assert list(processes.answers(lambda number, answer: (number, answer), limit_s=PATIENCE_S, late="late")) == [
            (1, b""),
            (0, b""),
        ]
    assert ended(process_of(stand_in))


ENDS = {
    "hangs": "the process that belongs to the Ray cluster .* for 1 s, and was ended; the cluster's head may hang",
    "stops": "the process that belongs to the Ray cluster .* for 1 s, and was ended; the cluster's head may hang",
    "dies": "the process that belongs to the Ray cluster ended by SIGKILL",
    "leaves": "the process that belongs to the Ray cluster ended with exit code 3",
    "fails": r"(Ray could not join|Ray failed: OSError|abandoned by Ray: OSError): .*no ?space",
}
CASES = [(call, "hangs") for call in ("init", "nodes", "put", "wait", "get")]
CASES += [("get", "stops"), ("init", "dies"), ("wait", "dies"), ("get", "leaves")]
CASES += [(call, "fails") for call in ("init", "put", "wait", "get")]


@pytest.mark.parametrize(("call", "what"), CASES)
def test_each_end_within_a_call_is_one_line_in_time(stand_in, monkeypatch, call, what):
    monkeypatch.setenv("RAY_TEST", f"{call} {what}")
    if what in ("hangs", "stops"):
        monkeypatch.setattr(ray_cluster, "JOIN_S", 1.0 if call in ("init", "nodes") else PATIENCE_S)
        monkeypatch.setattr(ray_cluster, "SILENT_S", 1.0)
    began = time.monotonic()
    with pytest.raises(ComputeError, match=ENDS[what]) as caught:
        list(squares(stand_in, 1))
    assert time.monotonic() - began < PATIENCE_S
    assert len(str(caught.value).splitlines()) == 1
    assert "\x1b" not in str(caught.value)
    if (stand_in / "pid").exists():
        assert ended(process_of(stand_in))


@pytest.mark.parametrize("what", ["hangs", "stops", "dies"])
def test_leaving_has_a_deadline_and_keeps_what_was_answered(stand_in, monkeypatch, what):
    monkeypatch.setenv("RAY_TEST", f"shutdown {what}")
    monkeypatch.setattr(ray_cluster, "LEAVE_S", 0.5)
    assert len(dict(squares(stand_in, 1, 2))) == 2
    assert ended(process_of(stand_in))


def test_a_process_that_does_not_answer_is_given_up(stand_in, monkeypatch):
    """Its machine may hang, or it is stopped: otherwise this side would wait for ever, and so would the peer."""
    monkeypatch.setenv("RAY_TEST", "wait waits")
    with RayEngine(workers=1).joined(room=1) as cluster:
        cluster.tell(Keep(number=0, prepare="chores:prepare"), b"/")
        processes = RayProcesses(RayEngine(workers=1), cluster)
        processes.ask(0)
        with pytest.raises(ComputeError, match=r"a process of the Ray cluster has not answered for 0\.2 s; it is stopped"):
            next(processes.answers(lambda _number, answer: answer, limit_s=0.2, late="it is stopped"))
    assert ended(process_of(stand_in))


@pytest.mark.parametrize("pulse", [b"7.1 1 node-a,process=12", b"rubbish \xff"])
def test_a_task_whose_worker_stands_still_is_named(stand_in, monkeypatch, pulse):
    """Ray waits for ever for a worker that is stopped. What it left on the head is read like a peer's data."""
    monkeypatch.setenv("RAY_TEST", "wait waits")
    monkeypatch.setenv("RAY_USE_TLS", "1")  # the head of the stand-in accepts connections, and does nothing else
    (stand_in / "pulses").mkdir()
    (stand_in / "pulses" / "1").write_bytes(pulse)
    with closing(socket.create_server(("127.0.0.1", 0))) as head:
        monkeypatch.setenv("RAY_TEST_HEAD", f"127.0.0.1:{head.getsockname()[1]}")
        monkeypatch.setattr(ray_cluster, "NO_PULSE_S", 0.5)
        where = "node-a,process=12" if b"node" in pulse else "a machine"
        with pytest.raises(ComputeError, match=f"the worker of task 1 on {where} has not answered for"):
            list(squares(stand_in, 1, 2))
    assert ended(process_of(stand_in))


def test_a_head_that_is_away_is_named(stand_in, monkeypatch):
    monkeypatch.setenv("RAY_TEST", "wait waits")
    monkeypatch.setattr(ray_cluster, "HEAD_S", 0.2)
    with pytest.raises(
        ComputeError, match="the Ray cluster is lost: its head does not answer; start it again, and then this command"
    ):
        list(squares(stand_in, 1))
    assert ended(process_of(stand_in))


PARENT = """
import json, sys
from tallystick.compute.ray_cluster import RayEngine
from tallystick.compute.task import Work
list(RayEngine(workers=1).map(Work(prepare="chores:prepare", shared=b"/"), [b"[]"], bytes))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_the_process_that_began_it_even_within_a_call(stand_in, monkeypatch, how):
    monkeypatch.setenv("RAY_TEST", "wait hangs")
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=surroundings, stderr=subprocess.PIPE)
    child = begun(stand_in / "pid")
    parent.send_signal(how)
    parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == -how
    assert ended(child)


ROGUE = """
import socket, struct, time
from tallystick.compute.ray_messages import *
connection = socket.socket(fileno=0)
def frame(head, body=b""):
    return struct.pack(">IQ", len(head), len(body)) + head + body
join, _ = receive(connection, JoinCluster)
{before}
connection.sendall({sent})
{after}
"""
JOINED = "send(connection, Joined()); receive(connection, Share); receive(connection, Task); receive(connection, Wait)"


@pytest.mark.parametrize(
    ("before", "sent", "after", "line"),
    [
        ("", "frame(b'\\xc1')", "", "not a message of tallystick"),
        ("", "struct.pack('>IQ', 1 << 31, 0)", "time.sleep(600)", "not a message of tallystick"),
        ("", "struct.pack('>IQ', 1, 1 << 60)", "time.sleep(600)", "not a message of tallystick"),
        ("", "frame(msgspec.msgpack.encode(Share()))", "", "not a message of tallystick"),
        ("", "frame(msgspec.msgpack.encode({'type': 'Joined', 'more': 1}))", "", "not a message of tallystick"),
        ("", "struct.pack('>IQ', 30, 0)", "", "ended with exit code 0"),
        ("", "b'\\0'", "[(time.sleep(.2), connection.sendall(b'\\0')) for _ in range(3000)]", "did not join for 1 s|no message"),
        (JOINED, "frame(msgspec.msgpack.encode(TaskAnswer(number=1)))", "", "not a message of tallystick"),
        (JOINED, "frame(msgspec.msgpack.encode(Machines(took=[1], memory=1)))", "", "not a message of tallystick"),
        (JOINED, "frame(msgspec.msgpack.encode(TaskAnswer(number=0)), b'\\2')", "", "bytes that are not an answer to this task"),
        (
            JOINED,
            "frame(msgspec.msgpack.encode(TaskAnswer(number=0)), b'\\0' + b'\\xff' * 99)",
            "",
            "bytes that are not an answer",
        ),
        (JOINED, "frame(msgspec.msgpack.encode(Lost(why='\\x1b[2J' + 'a' * 3000)))", "", r"^\\x1b\[2Jaaa"),
        (JOINED, "frame(msgspec.msgpack.encode(Lost(why='a' * 5000)))", "", "not a message of tallystick"),
        (JOINED, "b''", "[send(connection, Alive()) for _ in range(100)]", "ended with exit code 0"),
    ],
)
def test_whatever_that_process_sends_is_one_line(tmp_path, monkeypatch, before, sent, after, line):
    """A machine of the cluster may have taken it over."""
    monkeypatch.setattr(ray_cluster, "_DRIVER", "import msgspec\n" + ROGUE.format(before=before, sent=sent, after=after))
    if "sleep" in after:
        monkeypatch.setattr(ray_cluster, "JOIN_S", 1.0)
    pytest.importorskip("ray")
    with pytest.raises(ComputeError, match=line) as caught:
        list(squares(tmp_path, 1))
    assert len(str(caught.value).splitlines()) == 1
