"""Set the number of threads of a process: workers share a machine, and a sum's last bits depend on the number of threads."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Limit every library to this many threads, including those that are loaded later."""
    os.environ.update(dict.fromkeys(_VARIABLES, str(threads)))
    if "torch" in sys.modules:  # otherwise it reads the environment when it is loaded
        sys.modules["torch"].set_num_threads(threads)
    threadpool_limits(threads)


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Set the same limit within a block."""
    import torch

    before = {name: os.environ.get(name) for name in _VARIABLES}
    torch_threads = torch.get_num_threads()
    try:
        with threadpool_limits():  # restores the former limits
            limit_threads(threads)
            yield
    finally:
        torch.set_num_threads(torch_threads)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
