"""What a transport is: it carries links between two parties whose certificates both sides have checked.

There are two, either one a stream of frames: plain TLS 1.3 (tls.py) and gRPC (grpc.py). What holds a session together while
its links come and go is in session.py.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from tallystick.network.session import Link

Meet = Callable[[Link], Awaitable[None]]
"""Called with a dialled link; returns when the link has served its time."""

Welcome = Callable[[Link, list[str]], Awaitable[None]]
"""Called with a caller's link and the names that its certificate is issued to; likewise."""


class Transport(Protocol):
    """Dials and listens; its coroutines run in the network's loop."""

    async def listen(self, address: str, welcome: Welcome) -> int:
        """Take calls at ``host:port`` from now on and give the port; raises OSError or RuntimeError."""
        ...

    async def dial(self, address: str, peer: str, meet: Meet) -> None:
        """Call ``peer`` once and hang up after ``meet``.

        Raises LinkBroken for what may be better next time, a PeerError for what will not.
        """
        ...

    async def stop(self) -> None:
        """Take no more calls and hang up on all callers."""
        ...
