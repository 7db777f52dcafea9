"""Compute group operations on every core, while the protocol goes on exchanging messages with its peer.

A protocol's channel belongs to one thread. That thread only sends and receives. All arithmetic is started here as futures, as
soon as its input is there, so that neither the network nor the cores wait for each other.

Shapes: B elements of a chunk.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np

from tallystick.alignment.group import Elements, Scalar, hash_to_group, multiply
from tallystick.network.channel import Progress, no_progress


class Workers:
    """A pool of threads for group operations, which counts scalar multiplications. Use it as a context manager.

    ``progress`` is called with (``what``, multiplications done, ``total``) by one thread at a time.
    """

    def __init__(self, *, threads: int | None, what: str, total: int, progress: Progress = no_progress) -> None:
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="tallystick-group")
        self._lock = threading.Lock()
        self._what, self._total, self._progress = what, total, progress
        self._done = 0

    @property
    def multiplications(self) -> int:
        """Count the scalar multiplications made so far."""
        return self._done

    def blind(self, ids_B: Sequence[bytes], key: Scalar) -> "Future[Elements]":
        """Start hashing ids into the group and multiplying them by ``key``."""
        return self._pool.submit(lambda: self._counted(hash_to_group(ids_B), key))

    def multiply(
        self, elements_B32: Elements, key: Scalar, *, keep: Callable[[Elements], Elements] = lambda elements_B32: elements_B32
    ) -> "Future[Elements]":
        """Start multiplying elements by ``key``. ``keep`` reduces the product to the part that is needed."""
        return self._pool.submit(lambda: keep(self._counted(elements_B32, key)))

    def _counted(self, elements_B32: Elements, key: Scalar) -> Elements:
        product_B32 = multiply(elements_B32, key)
        with self._lock:
            self._done += len(product_B32)
            self._progress(self._what, self._done, max(self._total, self._done))
        return product_B32

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def results(futures: "Iterable[Future[Elements]]") -> Iterator[Elements]:
    """Yield the results in order, each as soon as it is there, and drop it afterwards."""
    waiting = deque(futures)
    del futures  # otherwise a list of them would hold every result
    while waiting:
        yield waiting.popleft().result()


def gathered(futures: "Iterable[Future[Elements]]", count: int, *, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Wait for all results and join them into one array of ``count`` rows of ``width`` bytes."""
    waiting = results(futures)
    del futures
    rows_NW = np.empty((count, width), dtype=np.uint8)
    filled = 0
    for rows_BW in waiting:
        rows_NW[filled : filled + len(rows_BW)] = rows_BW
        filled += len(rows_BW)
    assert filled == count
    return rows_NW
