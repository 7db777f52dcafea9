"""Load tallystick once, and fork commands from this process on request, because PyTorch's import takes longer than the job.

``python -m tallystick_robustness.fork_server`` reads one JSON line per request from standard input and writes one per event to
standard output. Each fork is a separate process that runs ``python -m MODULE ARGUMENTS`` to the very end of the interpreter.
"""

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import sys
import time
from typing import Any

PRELOADED = ("tallystick_robustness.preloaded", "tallystick_robustness.proxy")
POLL_S = 0.02


def main() -> None:
    """Serve until standard input ends, then kill the processes that still run."""
    for name in PRELOADED:
        importlib.import_module(name)
    _say({"ready": True})
    children: set[int] = set()
    buffered = b""
    while True:
        readable, _, _ = select.select([0], [], [], POLL_S)
        _reap(children)
        if not readable:
            continue
        heard = os.read(0, 1 << 16)
        if not heard:
            break
        *lines, buffered = (buffered + heard).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "signal" in request:
                if request["pid"] in children:  # it is not reaped yet, so the number is still its own
                    os.kill(request["pid"], request["signal"])
                continue
            pid = os.fork()
            if pid == 0:
                _become(request)
                return
            children.add(pid)
            _say({"started": request["request"], "pid": pid, "at": time.monotonic()})
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            _say({"ended": pid, "code": os.waitstatus_to_exitcode(status), "at": time.monotonic()})


def _become(request: dict[str, Any]) -> None:
    """Run the command, and return or raise SystemExit at its end, so that the interpreter ends as usual."""
    os.chdir(request["folder"])
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["COLUMNS"] = "200"
    for number, name in ((1, request["out"]), (2, request["err"])):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.argv = ["tallystick", *request["arguments"]]
    if request.get("tally") or request.get("die_at"):
        _watch_files(request.get("tally"), request.get("die_at"))
    if request.get("cold"):  # for a process that loads everything itself, like a user's
        os.execv(  # noqa: S606 - no shell is wanted
            sys.executable, [sys.executable, "-m", request["module"], *request["arguments"]]
        )
    runpy.run_module(request["module"], run_name="__main__", alter_sys=False)


def _watch_files(tally: str | None, die_at: int | None) -> None:
    """Count changes of files, with one byte of ``tally`` each. Kill this process just before change ``die_at``."""
    file = os.open(tally, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if tally is not None else -1
    file_count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal file_count
        if not (
            event in ("os.rename", "os.remove", "os.mkdir")
            or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        ):
            return
        file_count += 1
        if file >= 0:
            os.write(file, b".")
        if file_count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _say(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main()
