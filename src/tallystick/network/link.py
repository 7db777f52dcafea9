"""Define Link, the current carrier of a session's frames, and the ways it ends. tls.py makes links."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # messages import PyTorch, which certificates do not need
    from tallystick.network.messages import Buffer


class LinkBroken(Exception):
    """Raised if a link ended or failed. Its text says why."""


class FrameTooLarge(LinkBroken):
    """Raised if the peer announced a frame over the limit. The frame was not read."""


@dataclass(frozen=True, kw_only=True)
class Arriving:
    """A frame that is partly here: its size, and when its reading began."""

    size: int
    began: float


class Link(Protocol):
    """The current carrier of frames. Read and write raise LinkBroken."""

    @property
    def progress(self) -> float:
        """Return when bytes last arrived, by the monotonic clock, even if only a part of a frame or of a TLS record."""
        ...

    @property
    def arriving(self) -> Arriving | None:
        """Return the frame that is being read, if any."""
        ...

    @property
    def stalled(self) -> bool:
        """Tell whether the current write waits for the peer, or goes on without this thread."""
        ...

    async def read(self) -> "Buffer":
        """Wait for the next frame. Raises FrameTooLarge before reading one over the limit."""
        ...

    async def write(self, parts: "tuple[Buffer, ...]") -> None:
        """Send a frame that consists of these parts. Only one frame is sent at a time."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
