"""Fork pytest-xdist's workers from one process that has loaded what each of them would load: half of a worker's start.

pytest-xdist starts a worker as ``PYTHON -u -c PROGRAM`` and speaks with it through standard input and output. In place of Python
this file is started: it hands its streams and the program to the process that forks, and ends when the worker does.
"""

import importlib
import json
import multiprocessing
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, util
from pathlib import Path

PRELOADED = "tallystick_robustness.preloaded"
LOADED = (PRELOADED, "httpx", "optuna", "pandas", "sklearn.ensemble", "typer.testing", "uvicorn")
"""Nothing here may start a thread, for a forked process has only the thread that forked."""
SERVE = "import sys; sys.path.insert(0, {folder!r}); import worker_server; exec(worker_server.serve({listener}))"
_MOST_BYTES = 1 << 16


@contextmanager
def worker_server():
    """Start the process that workers are forked from. Provide the command that stands for Python."""
    with tempfile.TemporaryDirectory(prefix="workers-") as folder:
        with socket.socket(socket.AF_UNIX) as listener:  # closed here, so that nobody waits for a server that has died
            listener.bind(f"{folder}/socket")
            listener.listen()
            server = subprocess.Popen(
                [sys.executable, "-c", SERVE.format(folder=str(Path(__file__).parent), listener=listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                env={"OMP_NUM_THREADS": "1", **os.environ},  # a process per core: PyTorch's threads would be in each other's way
            )
        try:
            yield shlex.join([sys.executable, "-S", __file__, f"{folder}/socket"])
        finally:
            server.stdin.close()  # ends it
            server.wait()


def serve(listener):
    """Fork a process for each request until standard input ends. Return what this process is to run: nothing in the end."""
    listener, until = socket.socket(fileno=listener), os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the workers hear it, and then standard input ends
    for name in LOADED:
        with suppress(ModuleNotFoundError):  # of an extra that is not installed
            importlib.import_module(name)
    workers = []
    while until not in select.select([until, listener], [], [])[0]:
        connection, _ = listener.accept()
        program, streams, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        workers.append(os.fork())
        if workers[-1] == 0:
            os.close(until)
            listener.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _start_fork_server()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            connection.detach()  # which closes as the process ends
            return json.loads(program)
        for each in (*streams, connection.detach()):
            os.close(each)
    for worker in workers:
        if os.waitpid(worker, os.WNOHANG) == (0, 0):  # asked to end long ago
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    return ""


def _start_fork_server():
    """Make what multiprocessing forks processes from a copy of this process: elsewhere it is one that loads all anew."""
    spawn = util.spawnv_passfds

    def fork(path, arguments, kept):
        program = arguments[-1]
        if "forkserver" not in program:
            return spawn(path, arguments, kept)
        if pid := os.fork():
            return pid
        first, *others = sorted({0, 1, 2, *kept})
        for number in others:
            os.closerange(first + 1, number)
            first = number
        os.closerange(first + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            exec(program, {})
        finally:
            os._exit(0)

    util.spawnv_passfds = fork
    multiprocessing.set_forkserver_preload([PRELOADED])
    forkserver.ensure_running()
    util.spawnv_passfds = spawn


def main(address, program):
    """Have a worker forked with this process's streams, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(program).encode()], [0, 1, 2])
        os.closerange(0, 2)  # the worker's end is to be the end of its streams
        connection.recv(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[-1])
