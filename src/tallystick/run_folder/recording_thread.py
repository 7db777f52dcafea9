"""Run recorders in a thread, so that training does not wait for its audit."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

MOST_WAITING = 2  # greatest number of tasks whose tensors stay in memory


class RecordingThread:
    """A thread that does tasks in their order, while the training goes on.

    Leaving it waits for the last task. An error of a task is raised with a later task, or at the end.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tallystick-recording")
        self._waiting: deque[Future[None]] = deque()

    def __call__(self, task: Callable[..., None], *arguments: Any) -> None:
        """Schedule a task. Its arguments must not change from now on."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= MOST_WAITING):
            self._waiting[0].result()
            self._waiting.popleft()
        self._waiting.append(self._pool.submit(task, *arguments))

    def __enter__(self) -> Self:
        """Start to accept tasks."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait for the last task."""
        self._pool.shutdown()
        while kind is None and self._waiting:
            self._waiting.popleft().result()
