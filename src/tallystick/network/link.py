"""Link: what carries a session's frames at the moment, and how it ends. tls.py makes them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # messages bring PyTorch, which certificates do without
    from tallystick.network.messages import Buffer


class LinkBroken(Exception):
    """A link ended or failed. Its text says why."""


class FrameTooLarge(LinkBroken):
    """The peer announced a frame over the limit, which was not read."""


@dataclass(frozen=True, kw_only=True)
class Arriving:
    """A frame of which a part may be here: its size, and since when it is read."""

    size: int
    began: float


class Link(Protocol):
    """Carrier of frames at the moment. Read and write raise LinkBroken."""

    @property
    def progress(self) -> float:
        """Return when bytes last arrived, by the monotonic clock, were they but a part of a frame or of a TLS record."""
        ...

    @property
    def arriving(self) -> Arriving | None:
        """Return the frame that is being read, if any."""
        ...

    @property
    def stalled(self) -> bool:
        """Tell whether what is being written waits for the peer, or goes on without this thread."""
        ...

    async def read(self) -> "Buffer":
        """Wait for the next frame. Raises FrameTooLarge before it takes in one over the limit."""
        ...

    async def write(self, parts: "tuple[Buffer, ...]") -> None:
        """Send a frame that consists of these parts. One is sent at a time."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...
