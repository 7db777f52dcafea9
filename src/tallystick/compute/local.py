"""Run tasks on worker processes of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe, wait
from types import TracebackType
from typing import Any, Self

import msgspec

from tallystick.compute.task import ATTEMPTS, Output, Work, idle_work, numbered, output_of, own_versions
from tallystick.compute.worker import GRACE_S
from tallystick.errors import ComputeError
from tallystick.machine import free_memory, size_in_words

LEAST_BYTES = 300 << 20
"""Least memory of a worker, after loading everything that training needs."""
COPIES = 2
"""Copies in each worker of what all share: as received, and as the work reads it."""


@dataclass(frozen=True, kw_only=True)
class LocalEngine:
    """Worker processes, started as tasks come and ended after the last. Each has its own Python.

    If a worker is killed, another one does its task again. Workers end with this process, however it ends.

    Args:
        workers: how many processes run at the same time.
        threads: how many threads each computes with.
    """

    workers: int
    threads: int = 1

    def map(self, work: Work, inputs: Iterable[bytes | None], read: Callable[[bytes], Output]) -> Iterator[tuple[int, Output]]:
        """Yield the number and the output of each input, as they are done. See ``Engine``."""
        self._require_memory(LEAST_BYTES + COPIES * len(work.shared), "at the least")
        with _Pool(self, work) as pool:
            yield from pool.outputs(inputs, read)

    def check(self, loads: str) -> str:
        """Run one task that loads a module. Raises ComputeError if there is too little memory for all workers."""
        ((_, worker_bytes),) = self.map(idle_work(loads), [b""], int)
        cores = os.cpu_count() or 1
        self._require_memory(worker_bytes, "before any data")
        answer = f"a local worker answers, and takes {size_in_words(worker_bytes)} before any data; {self.workers} are asked for"
        crowded = (
            f"; {self.workers * self.threads} threads are more than the {cores} cores here, which does not make anything faster"
        )
        return answer + (crowded if self.workers * self.threads > cores else "")

    def _require_memory(self, each: int, when: str) -> None:
        free = free_memory()
        if free is not None and self.workers * each > free:
            raise ComputeError(
                f"compute.workers = {self.workers}: they take {size_in_words(self.workers * each)} {when}, and "
                f"{size_in_words(free)} are free here; use at most {free // each}"
            )


@dataclass(kw_only=True)
class _Task:
    """A task that is not done, and how often it was started."""

    number: int
    given: bytes = field(repr=False)
    begun: int = 0


class _Worker:
    """A process, this side of its connection, and its current task."""

    def __init__(self, work: Work, threads: int) -> None:
        self.connection, child_end = Pipe()
        self.task: _Task | None = None
        command = [sys.executable, "-P", "-m", "tallystick.compute.worker", str(child_end.fileno())]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[child_end.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            start_new_session=True,  # so that Ctrl-C reaches only this process, which ends the workers
        )
        child_end.close()
        with suppress(OSError):  # the code that waits for an answer finds out that it is dead
            self.connection.send_bytes(msgspec.msgpack.encode((work.prepare, threads, own_versions())))
            self.connection.send_bytes(work.shared)

    def begin(self, task: _Task) -> None:
        """Give the worker a task."""
        task.begun += 1
        self.task = task
        with suppress(OSError):
            self.connection.send_bytes(task.given)

    def answer(self) -> bytes | None:
        """Return the worker's answer, or None if it died."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            return None


class _Pool:
    """The workers of one map, and the tasks that lost their workers."""

    def __init__(self, engine: LocalEngine, work: Work) -> None:
        self._engine, self._work = engine, work
        self._workers: list[_Worker] = []
        self._again: deque[_Task] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _end(self._workers)

    def outputs(self, inputs: Iterable[bytes | None], read: Callable[[bytes], Output]) -> Iterator[tuple[int, Output]]:
        """Yield outputs as they arrive. Raises ComputeError for a task whose workers died each time that it was started."""
        fresh = (_Task(number=each[0], given=each[1]) if each is not None else None for each in numbered(inputs))
        while busy := self._hand_out(fresh):
            for ready in wait(list(busy)):
                worker = busy[ready]
                task, worker.task = worker.task, None
                assert task is not None, "only workers with a task are waited for"
                answer = worker.answer()
                if answer is not None:
                    yield task.number, output_of(answer, task.number, read=read)
                    continue
                # Remove the dead worker, and start its task again, if that was not done too often
                self._workers.remove(worker)
                _end([worker])
                if task.begun >= ATTEMPTS:
                    code = worker.process.returncode
                    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                    raise ComputeError(
                        f"task {task.number} was begun {task.begun} times, and each time its worker died, the last by {how}; "
                        "SIGKILL often means too little memory: use fewer workers"
                    )
                self._again.append(task)

    def _hand_out(self, fresh: Iterator[_Task | None]) -> dict[Any, _Worker]:
        """Give a task to every free worker, first those that lost their workers. Return the busy workers."""
        busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
        while len(busy) < self._engine.workers:
            task = self._again.popleft() if self._again else next(fresh, None)
            if task is None:
                break
            worker = next((each for each in self._workers if each.task is None), None)
            if worker is None:
                worker = _Worker(self._work, self._engine.threads)
                self._workers.append(worker)
            worker.begin(task)
            busy[worker.connection] = worker
        return busy


def _end(workers: list[_Worker]) -> None:
    """End processes, with a moment to clean up after an interrupted task."""
    for worker in workers:
        worker.connection.close()
    until = time.monotonic() + GRACE_S
    try:
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(until - time.monotonic(), 0.0))
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                os.killpg(worker.process.pid, signal.SIGKILL)
                worker.process.wait()
