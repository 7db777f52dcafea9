"""Run an event loop in the thread that waits for it.

The thread that sends and receives drives the loop itself, which saves two thread switches per message. While that thread
computes, a housekeeping thread sends and receives heartbeats, and finishes frames that are half sent or half read.
"""

import asyncio
import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

IDLE_S = 0.02
HURRY_S = 2.0
"""Seconds that a normal end may still take after the operator asks for the end."""
LOOK_S = 0.001


class Loop:
    """An asyncio loop with at most one driver. ``with loop:`` makes the calling thread the driver."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._wanted = False
        self._drivers: set[int] = set()  # threads that drive or are about to
        self._last_driven = time.monotonic()
        self._spinning = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._handed_over = threading.Event()
        self._keeping = False
        self._half_done = 0  # frames that are half read
        self._urgent_tasks: set[asyncio.Task[None]] = set()
        self._parked: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._interrupted = False
        self._closing = False
        self.hurried_until = math.inf
        self._closed = False
        self._housekeeper: threading.Thread | None = None
        self._former_handlers: dict[signal.Signals, Any] = {}

    def begin(self) -> None:
        """Start the housekeeper, and catch the signals that ask for the end."""
        if threading.current_thread() is threading.main_thread():
            # Raised between turns of the loop, never within one, because KeyboardInterrupt could break a half-sent frame.
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former_handlers[number] = signal.signal(number, self._on_signal)
        self._housekeeper = threading.Thread(target=self._keep_house, name="tallystick-network", daemon=True)
        self._housekeeper.start()

    # Driving

    def __enter__(self) -> Self:
        """Take the loop from the housekeeper for the calling thread."""
        # This comes first: from here to the end of __exit__ a signal is noted, not raised. Otherwise the lock could stay taken
        # forever.
        self._drivers.add(threading.get_ident())
        if not self._lock.acquire(blocking=False):
            # Set before the stop: a housekeeper that gets the lock after that stop, on a busy machine, then gives it back.
            self._wanted = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._lock.acquire()
            self._wanted = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release the loop."""
        self._last_driven = time.monotonic()
        urgent = self._is_urgent
        self._lock.release()
        if urgent:
            self._handed_over.set()
        self._drivers.discard(threading.get_ident())

    def turn(self) -> None:
        """Run what is ready, without waiting. Writes that were queued start before reads."""
        self._unpark()
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def spin(self, until: float = math.inf) -> None:
        """Run until wake() is called, or until that time; seldom it returns earlier."""
        if until < self._alarm_at:
            # An alarm stays when the wait ends, and the next wait, which often has a later end, shares it: a timer for each
            # message would cost more than the message.
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = until
            self._alarm = self._loop.call_at(self._loop.time() + max(until - time.monotonic(), 0), self._ring)
        self._unpark()
        self._spinning = True
        try:
            self._loop.run_forever()
        finally:
            self._spinning = False

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        self.wake()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, before the loop has begun or as its driver, and return its result."""
        task = self._loop.create_task(coroutine)
        task.add_done_callback(lambda _: self._loop.stop())
        # Not run_until_complete: an interrupted turn() may have left a stop, which would end it early.
        while not task.done():
            self._loop.run_forever()
        return task.result()

    def wake(self) -> None:
        """Make spin() return, because something happened."""
        if self._spinning:
            self._loop.stop()

    def start(self, coroutine: Coroutine[Any, Any, None], *, urgent: bool = False) -> None:
        """Run a coroutine concurrently. An error that it does not handle ends the job."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if urgent:
            self._urgent_tasks.add(task)
            task.add_done_callback(self._less_urgent)

    def later(self, do: Callable[..., None], *arguments: object) -> None:
        """Schedule a call in the loop, for the next driver. For a thread that does not drive."""
        if not self._closed:
            self._loop.call_soon_threadsafe(do, *arguments)

    async def delivery(self) -> None:
        """Give a waiting thread its message before the next read is prepared, which takes time that the peer would
        have to wait.
        """
        if self._spinning:
            self._parked.append(self._loop.create_future())
            await self._parked[-1]

    def raise_pending(self) -> None:
        """Raise KeyboardInterrupt if the operator asked for the end, or the error of a coroutine that failed."""
        if self._closing:
            return
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        if self._fault is not None:
            raise self._fault

    def _unpark(self) -> None:
        for reader in self._parked:
            if not reader.done():
                reader.set_result(None)
        self._parked.clear()

    def fail(self, error: BaseException) -> None:
        """End the job with an error that is not about a session."""
        self._fault = self._fault or error
        self.wake()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread that waits here, now or later, and shorten a normal end. Any thread
        may call it.
        """
        with contextlib.suppress(RuntimeError):  # the loop has just ended
            self.later(self._hurry)
            self.later(self.fail, KeyboardInterrupt())

    def _hurry(self) -> None:
        self.hurried_until = min(self.hurried_until, time.monotonic() + HURRY_S)
        self.wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._closing:
            self._loop.call_soon_threadsafe(self._hurry)
            return
        if threading.get_ident() not in self._drivers:
            raise KeyboardInterrupt
        self._interrupted = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    @contextlib.contextmanager
    def urgent(self) -> Iterator[None]:
        """Mark something as half done: while the driver computes, the housekeeper goes on with it."""
        self._half_done += 1
        try:
            yield
        finally:
            self._half_done -= 1
            self._end_look()

    def _less_urgent(self, task: asyncio.Task[None]) -> None:
        self._urgent_tasks.discard(task)
        self._end_look()

    @property
    def _is_urgent(self) -> bool:
        # The callback of a task that has ended comes one turn later. Handing over for it would cost two thread switches per
        # message.
        return self._half_done > 0 or any(not task.done() for task in self._urgent_tasks)

    def _keep_house(self) -> None:
        while not self._closed:
            handed_over = self._handed_over.wait(IDLE_S)
            self._handed_over.clear()
            if (handed_over or time.monotonic() - self._last_driven > IDLE_S) and self._lock.acquire(blocking=False):
                try:
                    if not (self._wanted or self._closed):
                        # Drive for a moment, or as long as something is urgent: a driver that comes back should seldom have to
                        # wait
                        self._unpark()
                        self._keeping = True
                        timer = self._loop.call_later(LOOK_S, self._end_look)
                        try:
                            self._loop.run_forever()
                        finally:
                            self._keeping = False
                            timer.cancel()
                finally:
                    self._lock.release()

    def _end_look(self) -> None:
        if self._keeping and not self._is_urgent:
            self._loop.stop()

    # Ending

    @property
    def closed(self) -> bool:
        """Tell whether end() was called."""
        return self._closed

    def ignore_interrupts(self) -> None:
        """Ignore interrupts from now on, because the job is ending. A request to end only limits a normal end to HURRY_S."""
        self._closing = True

    def end(self, first: Coroutine[Any, Any, None]) -> None:
        """Run ``first``, which prevents new tasks, cancel all tasks, and close the loop."""
        with self:
            self._closed = True
            self.run(self._cancel_all(first))
        if self._housekeeper is not None:
            self._housekeeper.join()
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._former_handlers.items():
                signal.signal(number, handler)
        self._loop.close()

    async def _cancel_all(self, first: Coroutine[Any, Any, None]) -> None:
        await first
        while running := set(self._tasks):
            for task in running:
                task.cancel()
            # More than once: before Python 3.12 wait_for() swallows a cancellation that arrives together with its result.
            await asyncio.wait(running, timeout=0.1)
