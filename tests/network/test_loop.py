"""The loop runs in the thread that waits for it."""

import asyncio
import threading
import time

import pytest

from tallystick.network.loop import IDLE_S, Loop


@pytest.fixture
def loop():
    made = Loop()
    yield made
    if not made.closed:
        made.end(asyncio.sleep(0))


def test_the_housekeeper_leaves_the_loop_to_a_thread_that_waits_for_it(loop):
    """On a busy machine it may get the lock after its stop, and would then run for ever."""
    loop._wanted = True
    loop.begin()
    time.sleep(10 * IDLE_S)
    assert loop._lock.acquire(timeout=5)
    loop._lock.release()
    loop._wanted = False


def test_an_idle_loop_is_driven_by_the_housekeeper_and_given_up_at_once(loop):
    loop.begin()
    ticked = threading.Event()

    async def tick():
        await asyncio.sleep(0.05)
        ticked.set()

    with loop:
        loop.start(tick())
    assert ticked.wait(5)
    for _ in range(20):
        time.sleep(2 * IDLE_S)
        began = time.monotonic()
        with loop:
            assert time.monotonic() - began < 5


def test_an_error_that_nobody_handles_is_raised_to_whoever_waits(loop):
    loop.begin()

    async def fail():
        raise ZeroDivisionError

    with loop:
        loop.start(fail())
        loop.spin(until=time.monotonic() + 5)
        with pytest.raises(ZeroDivisionError):
            loop.raise_pending()
