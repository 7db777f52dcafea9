"""Handle SIGINT and SIGTERM in a command in the same way at any moment, with one line and one exit code."""

import importlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tallystick.errors import of_threads
from tallystick.lazy_torch import load_torch
from tallystick.machine import require_address_space

EXIT_FAILED, EXIT_INTERRUPTED = 3, 130
AGAIN_S = 0.05
NOTHING_BEGUN = "interrupted before anything began"
HANGS = (
    "error: a library hung while it was loaded, and was stopped after a signal; free some memory or raise its limit (ulimit -v)\n"
)
HANGS_S, HANGS_BUSILY_S = 20.0, 5.0
"""How long loading a module may delay a signal, and how many seconds of processor time: a busy machine loads slowly."""
LOOK_S = 0.25
_ASKS_FOR_THE_END = (signal.SIGINT, signal.SIGTERM)
_LARGE = frozenset(["polars", "torch"])
_ON_LINUX = sys.platform == "linux"


def interruptible() -> None:
    """Make both signals raise KeyboardInterrupt from now on."""
    for number in _ASKS_FOR_THE_END:
        signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """Ignore both signals from now on, because the process is ending."""
    for number in _ASKS_FOR_THE_END:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_noted() -> Iterator[None]:
    """Raise KeyboardInterrupt at the block's end if a signal came within it, where it could break the import of a module.

    OpenBLAS sends this process SIGINT if the system gives it no thread while it is loaded: that is a MachineError. Only Linux
    shows who sent a signal, and which signals wait.
    """
    signals: list[int] = []
    for number in _ASKS_FOR_THE_END:
        signal.signal(number, lambda number, _: signals.append(number))
    if _ON_LINUX:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ASKS_FOR_THE_END)
    senders = []
    try:
        yield
    finally:
        if _ON_LINUX:
            while (sent := signal.sigtimedwait(_ASKS_FOR_THE_END, 0)) is not None:
                senders.append(sent.si_pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKS_FOR_THE_END)
        interruptible()
    if os.getpid() in senders:
        raise of_threads("a library could not start its threads while it was loaded")
    if signals or senders:
        raise KeyboardInterrupt


def load(modules: Sequence[str]) -> None:
    """Import modules one after the other, so that a signal need not wait for all of them. Raises MachineError if large libraries
    are among them and lack address space.
    """
    if not _LARGE.isdisjoint(modules):
        require_address_space()
    with _ended_from_outside():
        for module in modules:
            with signals_noted():
                if module == "torch":
                    load_torch()
                else:
                    importlib.import_module(module)


@contextmanager
def _ended_from_outside() -> Iterator[None]:
    """Start a separate process that ends this one, with a line, if a signal waits too long within the block.

    C code that holds Python's lock does not react to signals: OpenBLAS asks for memory forever while it is loaded, if there is
    none. Only this thread may run yet, and only Linux shows which signals wait.
    """
    if not _ON_LINUX or len(list(Path("/proc/self/task").iterdir())) > 1:
        yield
        return
    own_end, other_end = os.pipe()
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # no more processes are possible
        os.close(own_end)
        os.close(other_end)
        yield
        return
    if child == 0:
        try:
            os.close(other_end)
            _end_if_hanging(parent, own_end)
        finally:
            os._exit(0)
    os.close(own_end)
    try:
        yield
    finally:
        os.close(other_end)
        os.waitpid(child, 0)


def _end_if_hanging(process: int, over: int) -> None:
    """Watch a process until the other end of a pipe is closed."""
    ignore_signals()
    folder, ticks, first_seen = Path("/proc", str(process)), os.sysconf("SC_CLK_TCK"), None
    while not select.select([over], [], [], LOOK_S)[0]:
        lines = (folder / "status").read_text().splitlines()
        waiting = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
        if not any(each >> (number - 1) & 1 for each in waiting for number in _ASKS_FOR_THE_END):
            continue
        times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        now = time.monotonic(), sum(map(int, times)) / ticks
        first_seen = first_seen or now
        if now[0] - first_seen[0] > HANGS_S or now[1] - first_seen[1] > HANGS_BUSILY_S:
            os.write(2, HANGS.encode())
            os.kill(process, signal.SIGKILL)
            return


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.unraisablehook = _unraised
    raise KeyboardInterrupt


def _unraised(torn: "sys.UnraisableHookArgs") -> None:
    """Silence objects that the signal left half made, which complain when they are collected, and repeat a signal that Python
    dropped.
    """
    if isinstance(torn.exc_value, KeyboardInterrupt):  # it came during a destructor, from which nothing is raised
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
