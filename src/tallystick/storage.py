"""Write a party's own files completely or not at all, put them safely on disk, and read them back only as they were written.

A file is written next to its place, flushed to disk and renamed, and then its folder is flushed. So a full disk, a kill or a
power cut leaves the last good version. A *sealed* file carries a ``seal`` in its JSON or in a safetensors file's header. The seal
has the SHA-256 of all bytes of the file, with zeros in place of the digest, and says what the file is: its run, its party and its
place in the run's folder, which gives kind and step. Code that reads a sealed file back checks both first.

If the party file names a key, sealed files are encrypted as a whole (``tallystick.encryption``), except ``origin.json``.

Guarantee: damage to a sealed file on disk is noticed, and so is a file of another run, party, kind or step in its place. If the
party file names a key, nobody without it can make a folder or a sealed file that is accepted: ``origin.json`` has a keyed hash,
and an unencrypted folder is refused unless the party file lists it. Not protected: without a key, somebody who writes to the disk
can write a seal too; an older copy of a file in its own place is still accepted.
"""

import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import BinaryIO

from tallystick.encryption import MAGIC, FolderKey, NotDecrypted
from tallystick.errors import ConfigError, DamagedFile, StorageError, advice, printable

SEAL = "seal"
ORIGIN = "origin.json"
LOCK = "lock"
PARTIAL = ".partial"
_BLANK = "0" * 64
_FIELD = b'"seal":"'
_JSON_START = b"{" + _FIELD
_MOST_HEADER = 100 << 20  # limit of a safetensors file's header, which is also that of its own reader
_CHUNK = 1 << 20
_SCRATCH = "tallystick-scratch-"
_MOST_PLACE = 500  # bytes that say what a file is


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Identify the owner and the run of a folder's files. Every sealed file in the folder or below it states them.

    If there is no run, a file is bound to its name alone.

    Args:
        folder: the run's folder; a file's place is relative to it.
        run: drawn at random when the folder is made, so that no two runs share it.
        party: the party that owns the folder.
        contract: hash of the run's contract.
        only: what the only file sealed with this is, used instead of its place, so that it may be moved.
        key: the key that encrypts the folder's files; None if they are not encrypted.
    """

    folder: Path
    run: str = ""
    party: str = ""
    contract: str = ""
    only: str = ""
    key: FolderKey | None = field(default=None, repr=False, compare=False)

    @classmethod
    def create(cls, folder: Path, *, party: str, contract: str, key: FolderKey | None) -> "Origin":
        """State in a new folder who owns it and which key encrypts its files. Raises StorageError."""
        origin = cls(folder=folder, run=secrets.token_hex(8), party=party, contract=contract)
        facts = {"run": origin.run, "party": party, "contract": contract}
        if key is not None:
            facts |= {"key": key.id}
            facts |= {"proof": key.proof(_stated(facts))}
        write_json(folder / ORIGIN, json.dumps(facts).encode(), origin=origin)
        return replace(origin, key=key)

    @classmethod
    def of(cls, folder: Path, *, key: FolderKey | None = None) -> "Origin":
        """Read an origin that ``create`` wrote.

        Raises DamagedFile, and ConfigError if the folder's files need another key, or are unencrypted although a key is given
        that does not list the folder as clear.
        """
        path = folder / ORIGIN
        place, key_id, proof, stated = check_digest(path), "", "", b""
        try:
            facts = json.loads(unsealed(path.read_bytes()))
            proof = str(facts.pop("proof", ""))
            stated = _stated(facts)
            key_id = str(facts.pop("key", ""))
            origin = cls(folder=folder, **facts)
        except OSError as error:
            raise _unreadable(path, error) from None
        except (AttributeError, TypeError, ValueError):
            origin = cls(folder=folder)
        if not origin.run or place != origin.place_of(path):
            raise DamagedFile(
                path, f"it is another file, written as {printable(place)}; expected one that says whose run this is"
            )
        if key_id and (key is None or key.id != key_id):
            key_here = "none is given here" if key is None else f"here is key {key.id}"
            raise ConfigError(
                f"{folder}: its files are encrypted with key {printable(key_id)}, and {key_here}; name that key as "
                "encryption.key in the party file, or work on a copy that `tallystick decrypt` makes"
            )
        if key_id and key is not None and not hmac.compare_digest(proof.encode(), key.proof(stated).encode()):
            raise DamagedFile(path, "it was not written with this party's key")
        if key is not None and not key_id and folder.name not in key.clear:
            raise ConfigError(
                f"{folder}: its files are not encrypted, and the party file names a key: anybody who writes to this disk can "
                f"have made them; if it is a run from before the key, list {folder.name!r} as encryption.clear"
            )
        return replace(origin, key=key if key_id else None)

    def place_of(self, path: Path) -> str:
        """Say what a file of this folder is, which is the second half of its seal."""
        if self.only:
            return self.only
        place = path.relative_to(self.folder).as_posix()
        return f"{place} of run {self.run} of {self.party}" if self.run else place

    def blank_seal(self, path: Path) -> str:
        """Return the seal to write a file with. ``write_sealed`` puts the digest in its place."""
        return f"{_BLANK} {self.place_of(path)}"


def _stated(facts: Mapping[str, str]) -> bytes:
    return json.dumps(facts, sort_keys=True).encode()


def write_bytes(path: Path, *parts: bytes | memoryview, private: bool = False) -> None:
    """Write a file completely or not at all. Its folder must exist. Only the owner can read a ``private`` file.

    Raises StorageError; then the earlier content is still there.
    """
    with written(path, private=private) as file:
        for part in parts:
            file.write(part)


@contextmanager
def written(path: Path, *, private: bool = False, shared: bool = False) -> Iterator[BinaryIO]:
    """Provide a file to write, which takes ``path``'s place once the block ends without an error.

    If the block fails, the earlier content stays.

    Until then the file lies next to ``path``. In a ``shared`` folder it has a name that nobody can guess. In a folder of this
    party's own it has a name that the next writer finds and removes, if a kill left it behind. Raises StorageError.
    """
    partial = path.with_name(f".{path.name}{f'.{secrets.token_hex(8)}' if shared else ''}{PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; the last good version is untouched" + advice(error)
        ) from None
    except BaseException:  # also for an interrupt: no half-written file stays behind
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_sealed(path: Path, content: bytes, *, origin: Origin, private: bool = False) -> None:
    """Write content that has a blank seal, with the digest put in. One rename brings both. Raises StorageError like
    write_bytes.
    """
    at = content.index(_FIELD + _BLANK.encode()) + len(_FIELD)
    digest = hashlib.sha256(content).hexdigest().encode()
    whole = memoryview(content)
    write_own(path, whole[:at], digest, whole[at + len(digest) :], origin=origin, private=private)


def write_own(path: Path, *parts: bytes | memoryview, origin: Origin, private: bool = False) -> None:
    """Write a file of a run's folder, encrypted if the folder's files are. Raises StorageError like write_bytes."""
    if origin.key is not None:
        parts = tuple(origin.key.encrypted(b"".join(parts), place=origin.place_of(path)))
    write_bytes(path, *parts, private=private)


def read_own(path: Path, *, origin: Origin) -> bytes:
    """Read a file of a run's folder, and decrypt it if the folder's files are encrypted. Raises DamagedFile."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if origin.key is None:
        return content
    try:
        return origin.key.decrypted(content, place=origin.place_of(path))
    except NotDecrypted as error:
        raise DamagedFile(path, str(error)) from None


def is_encrypted(path: Path) -> bool:
    """Tell whether a file begins like an encrypted one. Raises DamagedFile if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise _unreadable(path, error) from None


def write_json(path: Path, content: bytes, *, origin: Origin, private: bool = False) -> None:
    """Write a JSON object, sealed. Raises StorageError like write_bytes."""
    rest = content.lstrip()[1:]
    between = b'"' if rest.lstrip().startswith(b"}") else b'",'
    write_sealed(path, _JSON_START + origin.blank_seal(path).encode() + between + rest, origin=origin, private=private)


def read_json(path: Path, *, origin: Origin) -> bytes:
    """Read a sealed JSON object back, without its seal. Raises DamagedFile if it is another file, or not as it was written."""
    check_sealed(path, origin=origin)
    return unsealed(read_own(path, origin=origin))


def unsealed(content: bytes) -> bytes:
    """Return a sealed JSON object without its seal, unchecked. Return other content unchanged."""
    if not content.startswith(_JSON_START):
        return content
    end = content.find(b'"', len(_JSON_START)) + 1
    return b"{" + content[end:].removeprefix(b",")


def check_sealed(path: Path, *, origin: Origin) -> None:
    """Raise DamagedFile unless a sealed file is there, holds what was written to it, and belongs in its place."""
    place = check_digest(path) if origin.key is None else _checked(path, *_seal_of(BytesIO(read_own(path, origin=origin))))
    expected = origin.place_of(path)
    if place != expected:
        raise DamagedFile(path, f"it is another file, written as {printable(place)}; expected {expected}; put the right one back")


def check_digest(path: Path) -> str:
    """Check that a sealed file is there and holds what was written to it, and return what it is. Raises DamagedFile if not."""
    try:
        with path.open("rb") as file:
            digests = _seal_of(file)
    except OSError as error:
        raise _unreadable(path, error) from None
    return _checked(path, *digests)


def _checked(path: Path, whole: str, seal: str | None) -> str:
    if seal is None:
        raise DamagedFile(path, "it has no digest")
    digest, _, place = seal.partition(" ")
    if whole != digest:
        raise DamagedFile(path, "its content does not match its digest")
    return place


def _seal_of(file: BinaryIO) -> tuple[str, str | None]:
    """Compute the digest of a sealed file and read the seal that it states, or None if it states none."""
    head = file.read(len(_JSON_START))
    if head != _JSON_START:
        size = int.from_bytes(head[:8], "little")
        if size > _MOST_HEADER:
            return "", None
        head += file.read(max(0, 8 + size - len(head)))
    at = head.find(_FIELD) + len(_FIELD)
    if at < len(_FIELD):
        return "", None
    head += file.read(max(0, at + len(_BLANK) + _MOST_PLACE - len(head)))
    end = head.find(b'"', at)
    digest = hashlib.sha256(head[:at] + _BLANK.encode() + head[at + len(_BLANK) :])
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest(), head[at:end].decode("ascii", "replace") if end > at else ""


def _unreadable(path: Path, error: OSError) -> DamagedFile:
    return DamagedFile(path, "it is missing" if error.errno == errno.ENOENT else f"it cannot be read: {error.strerror}")


def refuse_pipe(path: Path) -> None:
    """Raise ConfigError for a pipe, a socket or a device: reading one may never end. The reader reports a missing path."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError(f"{path}: is a pipe or a device, whose length is unknown; write its content to a file and name that")


def remove(path: Path) -> None:
    """Remove a file if it is there. Raises StorageError if it stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}{advice(error)}") from None


def make_folder(path: Path) -> None:
    """Make one folder that only its owner can use, unless it exists. It makes no folders above it. Raises StorageError."""
    try:
        path.mkdir(mode=0o700)
        sync_folder(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise StorageError(f"cannot make the folder {path}: {error.strerror}{advice(error)}") from None


def make_folders(path: Path, *, mode: int = 0o777) -> None:
    """Make a folder and those above it, unless they exist. Raises StorageError."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        hint = advice(NotADirectoryError(errno.ENOTDIR, "") if isinstance(error, FileExistsError) else error)
        raise StorageError(f"cannot make the folder {path}: {error.strerror}{hint}") from None


@contextmanager
def files_together() -> Iterator[Callable[..., None]]:
    """Provide ``write_bytes`` for files that belong together. If the block fails, the files written in it are removed."""
    paths: list[Path] = []

    def write(path: Path, *parts: bytes | memoryview, private: bool = False) -> None:
        write_bytes(path, *parts, private=private)
        paths.append(path)

    try:
        yield write
    except BaseException:
        for path in paths:
            with suppress(OSError):
                path.unlink()
        raise


def sync_folder(path: Path) -> None:
    """Flush a folder's names to disk. A file system that does not support this is left alone."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path, *, doing: str = "works in this run folder") -> Iterator[None]:
    """Hold a folder for this process alone. The system releases it when the process ends, however it ends.

    Raises ConfigError if another process holds it, StorageError if it cannot be locked at all.
    """
    path = folder / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot lock {folder}: {error.strerror}{advice(error)}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace") or "unknown"
            raise ConfigError(f"{folder}: another process (id {holder}) {doing}; wait until it has ended, or end it") from None
        except OSError as error:
            raise StorageError(f"cannot lock {folder}: {error.strerror}; keep run folders on a disk that has locks") from None
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        except OSError as error:
            raise StorageError(f"cannot lock {folder}: {error.strerror}{advice(error)}") from None
        yield
    finally:
        os.close(handle)


def require_locks(folder: Path) -> None:
    """Raise StorageError if a folder's file system cannot lock files: two processes would then overwrite each other's data."""
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    except OSError:  # the code that writes there reports it
        return
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                f"{folder}: its file system has no locks on files ({error.strerror}), without which two processes would write "
                "over each other; keep it on a local disk, or mount the network's with locks (NFS: without nolock)"
            ) from None


@contextmanager
def scratch_folder(place: Path | None = None) -> Iterator[Path]:
    """Provide a temporary folder for this user alone, and remove it at the end. It also removes folders that a kill left behind.

    The folder lies in ``place``, or in the system's folder for temporary files. It is locked before it gets its name, so a folder
    of such a name without a lock is left over. Raises StorageError.
    """
    place = place or Path(tempfile.gettempdir())
    for path in place.glob(f"{_SCRATCH}*"):
        with suppress(OSError, ConfigError, StorageError):  # held, or removed by its owner meanwhile
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                with locked(path):
                    shutil.rmtree(path)
    with ExitStack() as cleanup:
        try:
            new = Path(tempfile.mkdtemp(prefix="tallystick-", dir=place))
            cleanup.callback(shutil.rmtree, new, ignore_errors=True)
            # The name has this process's id, so that no other process can choose the same name.
            folder = place / f"{_SCRATCH}{os.getpid()}-{new.name.removeprefix('tallystick-')}"
            cleanup.enter_context(locked(new))
            (new / "files").mkdir(mode=0o700)
            # Before it has its name, because an interrupt may come at once; a folder that had the name already is not ours.
            cleanup.callback(lambda: None if new.exists() else shutil.rmtree(folder, ignore_errors=True))
            new.rename(folder)
        except StorageError:  # about the lock; it says why
            raise
        except OSError as error:
            raise StorageError(f"cannot make a temporary folder in {place}: {error.strerror}{advice(error)}") from None
        yield folder / "files"


def new_folder(runs: Path, prefix: str, *, number: int = 1) -> Path:
    """Make the folder ``prefix-number``, or the first free one after it. Raises StorageError if that fails."""
    while True:
        path = runs / f"{prefix}-{number}"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
            sync_folder(runs)
        except FileExistsError:
            number += 1
            continue
        except OSError as error:
            raise StorageError(f"cannot make the run folder {path}: {error.strerror}{advice(error)}") from None
        return path


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """Provide a folder to fill, which becomes ``path`` once the block ends without an error.

    If the block fails, nothing is left. Raises StorageError.
    """
    make_folders(path.parent)
    with scratch_folder(path.parent) as filled:
        yield filled
        sync_folder(filled)
        try:
            filled.rename(path)
            sync_folder(path.parent)
        except OSError as error:
            raise StorageError(f"cannot make the folder {path}: {error.strerror}{advice(error)}") from None


def new_whole_folder(runs: Path, prefix: str, fill: Callable[[Path], None]) -> Path:
    """Make the first free folder ``prefix-number`` with everything that ``fill`` writes into it. If that fails, make none.

    Raises StorageError, and the errors of ``fill``.
    """
    make_folders(runs)
    with scratch_folder(runs) as filled:
        fill(filled)
        sync_folder(filled)
        for number in count(1):
            path = runs / f"{prefix}-{number}"
            try:
                if not path.exists():
                    filled.rename(path)
                    sync_folder(runs)
                    break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
                    raise StorageError(f"cannot make the run folder {path}: {error.strerror}{advice(error)}") from None
    return path
