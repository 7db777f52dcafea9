"""Handle SIGINT and SIGTERM in a command: the same, at any moment, with one line and one exit code."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from tallystick.errors import of_threads

EXIT_FAILED, EXIT_INTERRUPTED = 3, 130
AGAIN_S = 0.05
NOTHING_BEGUN = "interrupted before anything began"
_ASKS_FOR_THE_END = (signal.SIGINT, signal.SIGTERM)


def interruptible() -> None:
    """Have either signal raise KeyboardInterrupt from here on."""
    for number in _ASKS_FOR_THE_END:
        signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """Ignore both signals from here on: the process is ending."""
    for number in _ASKS_FOR_THE_END:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_noted() -> Iterator[None]:
    """Raise KeyboardInterrupt at the block's end if a signal came within it, where it could tear the import of a module.

    OpenBLAS sends this process SIGINT where the system gives it no thread as it is loaded: that is a MachineError. Only Linux
    tells who sent a signal.
    """
    signals: list[int] = []
    for number in _ASKS_FOR_THE_END:
        signal.signal(number, lambda number, _: signals.append(number))
    tells = sys.platform == "linux"
    if tells:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        sender = signal.sigtimedwait([signal.SIGINT], 0) if tells else None
        if tells:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        interruptible()
    if sender is not None and sender.si_pid == os.getpid():
        raise of_threads("a library could not start its threads as it was loaded")
    if signals or sender is not None:
        raise KeyboardInterrupt


def load(modules: Sequence[str]) -> None:
    """Import modules one after the other, so that a signal need not wait for all of them."""
    for module in modules:
        with signals_noted():
            importlib.import_module(module)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.unraisablehook = _unraised
    raise KeyboardInterrupt


def _unraised(torn: "sys.UnraisableHookArgs") -> None:
    """Silence what the signal left half made, which complains when it is collected; repeat a signal that Python drops."""
    if isinstance(torn.exc_value, KeyboardInterrupt):  # it came amid a destructor, out of which nothing is raised
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
