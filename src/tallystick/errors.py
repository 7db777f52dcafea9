"""The error tree: what went wrong on our side, and what the peer did.

Every message names the thing, its value, what was expected and what to do.
"""

from pathlib import Path


class TallystickError(Exception):
    """Base of every error that tallystick raises on purpose."""


class ConfigError(TallystickError, ValueError):
    """A party file, a contract, a certificate or a command-line argument is not usable."""


class DataError(TallystickError, ValueError):
    """A table, a key column or a label is not usable."""


class StorageError(TallystickError, OSError):
    """A file of ours could not be written or read back; what was there before is still there."""


class DamagedFile(StorageError):
    """A file of ours is not there, cannot be read, or does not hold what was written to it; ``path`` names it."""

    def __init__(self, path: Path, why: str, helps: str = "") -> None:
        super().__init__(f"{path} is damaged: {why}" + (f"; {helps}" if helps else ""))
        self.path = path
        self.why = why


class PeerError(TallystickError):
    """Something that the other side did, or failed to do; ``peer`` names it."""

    def __init__(self, peer: str, message: str) -> None:
        super().__init__(message)
        self.peer = peer


class PeerLost(PeerError):
    """The peer could not be reached for longer than the deadline."""


class PeerStopped(PeerError):
    """The peer ended the job and said why."""


class ProtocolError(PeerError):
    """The peer sent something that the protocol does not allow here."""


class IdentityError(PeerError):
    """The peer's certificate does not belong to the party that the contract names."""


class ContractMismatch(PeerError):
    """The two sides hold different contracts; ``differences`` lists the keys that differ."""

    def __init__(self, peer: str, message: str, differences: list[str]) -> None:
        super().__init__(peer, message)
        self.differences = differences
