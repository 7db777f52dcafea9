"""Define a task, which is the same on every engine: a named function prepares a worker and returns a function of bytes.

Tasks and answers consist of our names and bytes. A worker runs only what the names say, and no pickle enters a party's process. A
Ray cluster wraps both in its own pickles, which a separate process reads (``ray_driver``).
"""

import importlib
import platform
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from typing import Protocol, TypeVar, cast

import msgspec

from tallystick.compute.threads import limit_threads
from tallystick.errors import ComputeError, ConfigError, DataError, StorageError, StoreError, TallystickError, printable

ATTEMPTS = 3
"""How often a task is started, if its workers die, before it is given up."""
_DONE, _FAILED = b"\0", b"\1"
_PASSED_ON: dict[str, type[TallystickError]] = {
    kind.__name__: kind for kind in (ComputeError, ConfigError, DataError, StorageError, StoreError)
}

Output = TypeVar("Output")
TaskFunction = Callable[..., bytes]
"""A function of a task's input. A process that stays (``ray_processes``) gets several blocks of bytes, or none."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The parts that all tasks of one kind share.

    Args:
        prepare: ``module:function``, which a worker calls once with ``shared``; it returns the function from input to output.
        shared: bytes with which each worker is prepared; they may be private.
    """

    prepare: str
    shared: bytes = field(default=b"", repr=False)


class Engine(Protocol):
    """A place where tasks run."""

    @property
    def workers(self) -> int:
        """Return how many tasks run at the same time."""
        ...

    def map(self, work: Work, inputs: Iterable[bytes | None], read: Callable[[bytes], Output]) -> Iterator[tuple[int, Output]]:
        """Yield the number and the output of each input, as they are done. An input is taken when a worker is free for it.

        ``read`` turns an output's bytes into a result.

        Inputs may wait for outputs: None means that the next input is not available before a running task ends. A task whose
        worker dies is started again, up to ``ATTEMPTS`` times in total. After the iterator is closed, nothing runs.

        Raises what a task raised, or ComputeError for a lost engine, a task that lost its worker too often, or an output that
        ``read`` cannot read.
        """
        ...

    def check(self, loads: str) -> str:
        """Try the engine with tasks that load a module, and describe the result. Raises ComputeError if no work can run."""
        ...


@cache
def own_versions() -> str:
    """Say on which versions results of this process depend: those of tallystick, Python and PyTorch."""
    return f"tallystick {metadata.version('tallystick')}, Python {platform.python_version()}, PyTorch {metadata.version('torch')}"


def numbered(inputs: Iterable[bytes | None]) -> Iterator[tuple[int, bytes] | None]:
    """Yield the inputs with their numbers. None stays None, and has no number."""
    number = 0
    for given in inputs:
        yield None if given is None else (number, given)
        number += given is not None


def idle_work(loads: str) -> Work:
    """Return a task that only loads the module ``loads``. Its output is its worker's peak memory in bytes."""
    return Work(prepare="tallystick.compute.task:prepare_idle", shared=loads.encode())


def prepare_idle(loads: bytes) -> TaskFunction:
    """Prepare ``idle_work``."""

    def idle(_: bytes) -> bytes:
        importlib.import_module(loads.decode())
        unit = 1 if sys.platform == "darwin" else 1024
        return str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit).encode()

    return idle


def perform(work: Work, *given: bytes, threads: int, versions: str) -> bytes:
    """Run one task in a worker with this many threads. Return its output or its error as an answer for ``output_of``.

    ``versions`` are those of the process that sent the task.
    """
    try:
        return _DONE + _prepared(work, threads, versions)(*given)
    except Exception as error:
        name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _PASSED_ON), "")
        message = str(error) if name else f"{type(error).__name__}: {error}"
        return _FAILED + msgspec.msgpack.encode((name, message, traceback.format_exc()))


def output_of(answer: bytes, number: int, *, read: Callable[[bytes], Output], machine: str = "a worker") -> Output:
    """Return a task's result, as ``read`` makes it from the bytes.

    Raises what the task raised, and ComputeError, which names the machine, for bytes that are not a valid answer.
    """
    try:
        if answer[:1] == _DONE:
            return read(answer[1:])
        if answer[:1] != _FAILED:
            raise ValueError(answer[:1])
        name, message, trace = msgspec.msgpack.decode(answer[1:], type=tuple[str, str, str])
        kind = _PASSED_ON[name] if name else None
    except Exception as error:  # each library raises its own types
        raise ComputeError(
            f"task {number}: {machine} answered with bytes that are not an answer to this task ({type(error).__name__}); "
            "install the same versions on all machines, and check who else can reach it"
        ) from None
    message, trace = ("\n".join(map(printable, words.splitlines())) for words in (message, trace))
    failure = kind(message) if kind is not None else ComputeError(f"task {number} failed: {message}")
    failure.add_note(trace)
    raise failure


@lru_cache(maxsize=1)
def _prepared(work: Work, threads: int, versions: str) -> TaskFunction:
    """Load and call the function that prepares the work, once in a worker."""
    if versions != (own := own_versions()):
        raise ComputeError(
            f"a worker on {platform.node()} has {own}, and this machine has {versions}; install the same versions on all machines"
        )
    limit_threads(threads)
    module, _, name = work.prepare.partition(":")
    prepare = cast(Callable[[bytes], TaskFunction], getattr(importlib.import_module(module), name))
    function = prepare(work.shared)
    limit_threads(threads)  # also for the libraries that this loaded
    return function
