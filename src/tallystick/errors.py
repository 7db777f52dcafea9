"""The error tree: what went wrong on our side, and what the peer did.

Every message names the thing, its value, what was expected and what to do.
"""

import errno


def advice(error: OSError) -> str:
    """What to do about a file that could not be written."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "this process has too many files and connections open: raise the limit (ulimit -n)"
    if error.errno == errno.EROFS:
        return "the file system is read-only: have it mounted for writing"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "check who owns the folder and may write there"
    return "free some space"


class TallystickError(Exception):
    """Base of every error that tallystick raises on purpose."""


class ConfigError(TallystickError, ValueError):
    """A party file, a contract, a certificate or a command-line argument is not usable."""


class DataError(TallystickError, ValueError):
    """A table, a key column or a label is not usable."""


class StorageError(TallystickError, OSError):
    """A file of ours could not be written or read back; what was there before is still there."""


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
