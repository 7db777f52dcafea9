"""A thread in which recorders work: a training that waits for nobody would wait for its audit."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

MOST_WAITING = 2  # tasks, whose tensors stay in memory until then


class RecordingThread:
    """Does what it is given in the order in which it is given, while the training goes on.

    Leaving it waits for the last task. What a task raises comes with a later one, or at the end.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tallystick-recording")
        self._waiting: deque[Future[None]] = deque()

    def __call__(self, task: Callable[..., None], *arguments: Any) -> None:
        """Have a task done later, whose arguments nobody changes from then on."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= MOST_WAITING):
            self._waiting[0].result()
            self._waiting.popleft()
        self._waiting.append(self._pool.submit(task, *arguments))

    def __enter__(self) -> Self:
        """Take tasks."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait for the last one."""
        self._pool.shutdown()
        while kind is None and self._waiting:
            self._waiting.popleft().result()
