"""Find free addresses on this machine."""

import os
import socket
from itertools import count

FIRST, LAST = 10_000, 32_000  # systems give higher ports to programs that ask for any port, perhaps before we listen here
STRIDE = 1_009  # distance between processes that search at the same time

_asked = count()


def free_port() -> int:
    """Return a TCP port on loopback that is free now, and that other programs are unlikely to take before it is used.

    Raises OSError if none is free.
    """
    for _ in range(FIRST, LAST):
        port = FIRST + (os.getpid() * STRIDE + next(_asked)) % (LAST - FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {FIRST} to {LAST - 1} is free on 127.0.0.1")
