"""Define the error tree: what went wrong on our side, and what the peer did.

Every message names the thing, its value, what was expected and what to do. A local error's message may name private columns or
values, so a peer gets only its ``category_of``. A peer's words are data: they enter a message through ``printable``.
"""

import errno
import re
from pathlib import Path

MOST_CHARACTERS = 4000
"""Greatest number of characters kept of a peer's words, and of an error that may hold some."""


def printable(words: str, *, most: int = MOST_CHARACTERS) -> str:
    """Make a peer's words fit to show anywhere: one line of at most ``most`` characters, with nothing that acts on a terminal.

    Control and format characters (escapes, line breaks, changes of direction) and lone surrogates are shown by their code.
    """
    text = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in words[: most + 1]
    )
    return text if len(text) <= most else f"{text[: most - 4]} ..."


_FULL = "free some space"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: "make the file system writable again; a disk that fails is often made read-only, so look at the system's log",
    errno.ENOENT: "its folder is gone, removed while it was in use; start a new run",
    errno.EMFILE: "this process has too many files and connections open: raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many files and connections open: raise the limit (fs.file-max)",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.ENOTDIR: "a file stands where a folder should be: remove it, or choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def advice(error: OSError) -> str:
    """Say what helps against an error of the file system, for the end of a sentence. It is empty if nothing is known to help."""
    hint = _ADVICE.get(error.errno or 0)
    return f"; {hint}" if hint else ""


class TallystickError(Exception):
    """Base of every error that tallystick raises on purpose."""


class ConfigError(TallystickError, ValueError):
    """Raised if a party file, a contract, a certificate or a command-line argument is not usable."""


class Diverged(ConfigError):
    """Raised if training on this side gives numbers that are not finite, for instance because the learning rate is too high."""


class DataError(TallystickError, ValueError):
    """Raised if a table, a key column or a label is not usable."""


class SharedDataError(DataError):
    """Raised if the tables do not fit together, which every party may know. Peers get ``told``, which has no private values."""

    def __init__(self, message: str, *, told: str) -> None:
        super().__init__(message)
        self.told = told


class IdError(DataError):
    """Raised if the ids are not usable: they repeat, or none is common."""


class LabelError(DataError):
    """Raised if the labels, or their weights, are not usable."""


class FeatureError(DataError):
    """Raised if the feature columns are not usable."""


class StoreError(TallystickError):
    """Raised if a store for looking up rows cannot be reached, or its answer is not usable."""


class ComputeError(TallystickError):
    """Raised if the engine that runs a party's tasks is not available, or lost them."""


class StorageError(TallystickError, OSError):
    """Raised if a file of ours could not be written or read back. The earlier content is still there."""


class DamagedFile(StorageError):
    """Raised if a file of ours is missing, cannot be read, or does not hold what was written to it. ``path`` names it."""

    def __init__(self, path: Path, why: str, helps: str = "") -> None:
        super().__init__(f"{path} is damaged: {why}" + (f"; {helps}" if helps else ""))
        self.path = path
        self.why = why


class MachineError(TallystickError):
    """Raised if this machine has no more memory, threads, files or disk room, or keeps a file from this user."""


class WorkerLost(TallystickError):
    """Raised if a process that shares this party's training has ended."""


class PeerError(TallystickError):
    """Raised if the other side did something, or failed to. ``peer`` names it.

    The message may quote the peer, its certificate or the data that it sent. This class makes it printable and bounds its length.
    """

    def __init__(self, peer: str, message: str) -> None:
        super().__init__(printable(message))
        self.peer = peer


class PeerLost(PeerError):
    """Raised if the peer could not be reached for longer than the deadline."""


class PeerStopped(PeerError):
    """Raised if the peer ended the job and said why. ``final`` says that something must be put right before a resumption."""

    def __init__(self, peer: str, message: str, *, final: bool = False) -> None:
        super().__init__(peer, message)
        self.final = final


class ProtocolError(PeerError):
    """Raised if the peer sent something that the protocol does not allow here."""


def told_of(error: PeerError, to: str) -> str:
    """Return the text of an error that a peer gets.

    If another peer broke the protocol, the details may hold numbers that it sent to this side alone, such as how many ids it has.
    """
    if isinstance(error, ProtocolError) and error.peer != to:
        return f"{error.peer} did what the protocol does not allow here; its log says what"
    return str(error)


class IdentityError(PeerError):
    """Raised if the peer's certificate does not belong to the party that the contract names."""


class ContractMismatch(PeerError):
    """Raised if the two sides hold different contracts. ``differences`` lists the keys that differ."""

    def __init__(self, peer: str, message: str, differences: list[str]) -> None:
        super().__init__(peer, message)
        self.differences = [printable(difference) for difference in differences]


def of_the_machine(error: BaseException) -> MachineError | None:
    """Return an error for one by which the system or a library says that the machine is at its limits or keeps a file from this
    user.

    It is None for other errors.
    """
    if isinstance(error, OSError) and error.errno in _LIMITS:
        where = f"{error.filename}: " if error.filename is not None else ""
        return MachineError(f"{where}{error.strerror}{advice(error) or _MORE_MEMORY}")
    if isinstance(error, OSError) and error.errno in _OF_A_PATH and error.filename is not None:
        return MachineError(f"{error.filename}: {error.strerror}; check this path, and what this user may do there")
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        return MachineError(f"memory ran out ({printable(str(error), most=200) or type(error).__name__}){_MORE_MEMORY}")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return of_threads("no further thread could be started")
    return None


def of_threads(what: str) -> MachineError:
    """Return an error for a machine that gives no more threads."""
    return MachineError(f"{what}{_MORE_MEMORY}, and at how many processes this user may have (ulimit -u)")


_MORE_MEMORY = "; free some memory, or look at the limits that bound this process (ulimit -v, control groups)"
_NO_MEMORY = re.compile(r"DefaultCPUAllocator|not enough memory|[Cc]annot allocate memory|std::bad_alloc|malloc of size")
_OF_A_PATH = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO)
_LIMITS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def category_of(error: BaseException) -> str:
    """Say what a peer may know of a local error: one of a few fixed sentences, none of which holds anything private."""
    if isinstance(error, SharedDataError):
        return error.told
    # The system's error number, if the error is an OSError or was caused by one
    number: int | None = None
    cause: BaseException | None = error if isinstance(error, OSError) else None
    while number is None and cause is not None:
        number = cause.errno if isinstance(cause, OSError) else None
        cause = cause.__cause__ or cause.__context__
    if number in _OF_THE_SYSTEM:
        return _OF_THE_SYSTEM[number]
    error = of_the_machine(error) or error
    unknown = f"it failed unexpectedly ({type(error).__name__})"
    return next((words for kind, words in _CATEGORIES if isinstance(error, kind)), unknown)


_CATEGORIES: tuple[tuple[type[BaseException], str], ...] = (  # the first that fits
    (Diverged, "its training diverged"),
    (LabelError, "its labels are not usable"),
    (IdError, "its ids are not usable"),
    (FeatureError, "its feature columns are not usable"),
    (DataError, "its table or its run folder is not usable"),
    (ConfigError, "its settings, or what is left of its earlier runs, do not fit this job"),
    (StoreError, "its store of rows cannot be used"),
    (ComputeError, "its workers cannot be had, or were lost"),
    (StorageError, "one of its files could not be written or read back"),
    (WorkerLost, "a process that shares its training has ended"),
    (MachineError, "its machine ran out of memory, threads, files or room"),
)
_OF_THE_SYSTEM: dict[int | None, str] = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "its disk quota is used up",
    errno.EROFS: "its disk is read-only",
    errno.EACCES: "it may not read or write one of its files",
    errno.EPERM: "it may not read or write one of its files",
    errno.EIO: "its disk is failing",
    errno.EMFILE: "it has too many files open",
}
