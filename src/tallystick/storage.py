"""A party's own files: whole or not at all, safe on disk before they count, and read back only as they were written.

A file is written beside its place, flushed to disk and renamed, and then its folder is flushed: a full disk, a kill or a power
cut leaves the last good version. A *sealed* file carries the SHA-256 of all its bytes as a field ``digest`` of its JSON (in a
safetensors file, of the header's metadata), taken with zeros in that field's place: so it stays plain JSON or safetensors, and
one rename brings content and digest together. Whatever reads a sealed file back checks it first.

Guarantee: what a disk did to a sealed file is noticed. Not protected: somebody who writes to the disk can write a digest too.
"""

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tallystick.errors import ConfigError, DamagedFile, StorageError, advice

BLANK = "0" * 64
_FIELD = b'"digest":"'
_JSON_START = b"{" + _FIELD
_MOST_HEADER = 100 << 20  # of a safetensors file; its own reader takes no more
_CHUNK = 1 << 20


def write_bytes(path: Path, *parts: bytes | memoryview, private: bool = False) -> None:
    """Write a file whole or not at all; its folder must be there. A ``private`` one is readable by its owner alone.

    Raises StorageError; then what was there before still is.
    """
    with written(path, private=private) as file:
        for part in parts:
            file.write(part)


@contextmanager
def written(path: Path, *, private: bool = False, shared: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write that takes ``path``'s place once the block ends well; else what was there before still is.

    Until then it lies beside it, in a ``shared`` folder under a name that nobody can guess, in one of this party's own under one
    that the next writer finds and removes, should a kill leave it behind. Raises StorageError.
    """
    partial = path.with_name(f".{path.name}{f'.{secrets.token_hex(8)}' if shared else ''}.partial")
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
        raise StorageError(f"cannot write {path}: {error.strerror}; the last good version is untouched" + advice(error)) from None
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_sealed(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write content that has BLANK as its digest, with the digest in its place; raises StorageError like write_bytes."""
    at = content.index(_FIELD + BLANK.encode()) + len(_FIELD)
    digest = hashlib.sha256(content).hexdigest().encode()
    whole = memoryview(content)
    write_bytes(path, whole[:at], digest, whole[at + len(digest) :], private=private)


def write_json(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a JSON object, sealed; raises StorageError like write_bytes."""
    rest = content.lstrip()[1:]
    between = b'"' if rest.lstrip().startswith(b"}") else b'",'
    write_sealed(path, _JSON_START + BLANK.encode() + between + rest, private=private)


def read_json(path: Path) -> bytes:
    """Read a sealed JSON object back, without its digest; raises DamagedFile if it is not as it was written."""
    check_sealed(path)
    try:
        return unsealed(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from None


def unsealed(content: bytes) -> bytes:
    """Give a sealed JSON object without its digest, unchecked; any other content as it is."""
    end = len(_JSON_START) + len(BLANK) + 1
    return b"{" + content[end:].removeprefix(b",") if content.startswith(_JSON_START) else content


def check_sealed(path: Path) -> None:
    """Raise DamagedFile unless a sealed file is there, can be read and holds what was written to it."""
    try:
        with path.open("rb") as file:
            whole, digest = _digest_of(file)
    except OSError as error:
        raise _unreadable(path, error) from None
    if digest is None:
        raise DamagedFile(path, "it carries no digest of itself")
    if whole != digest:
        raise DamagedFile(path, "its content does not have the digest that it was written with")


def _digest_of(file: BinaryIO) -> tuple[str, str | None]:
    """The digest that a sealed file has, and the one that it states; None if it states none."""
    head = file.read(len(_JSON_START))
    if head != _JSON_START:
        size = int.from_bytes(head[:8], "little")
        if size > _MOST_HEADER:
            return "", None
        head += file.read(max(0, 8 + size - len(head)))
    at = head.find(_FIELD) + len(_FIELD)
    head += file.read(max(0, at + len(BLANK) - len(head)))
    if at < len(_FIELD):
        return "", None
    digest = hashlib.sha256(head[:at] + BLANK.encode() + head[at + len(BLANK) :])
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest(), head[at : at + len(BLANK)].decode("ascii", "replace")


def _unreadable(path: Path, error: OSError) -> DamagedFile:
    return DamagedFile(path, "it is missing" if error.errno == errno.ENOENT else f"it cannot be read: {error.strerror}")


def remove(path: Path) -> None:
    """Remove a file if it is there; raises StorageError if it stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}{advice(error)}") from None


def make_folder(path: Path) -> None:
    """Make one folder, for its owner alone, unless it is there; never the folders above it. Raises StorageError."""
    try:
        path.mkdir(mode=0o700)
        sync_folder(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise StorageError(f"cannot make the folder {path}: {error.strerror}{advice(error)}") from None


def sync_folder(path: Path) -> None:
    """Have a folder's names on disk; a file system that cannot is left to its own ways."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; the system lets go of it when the process ends, however it ends.

    Raises ConfigError if another process holds it, StorageError if it cannot be locked at all.
    """
    path = folder / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot lock {folder}: {error.strerror}{advice(error)}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace") or "unknown"
            raise ConfigError(
                f"{folder}: another process (id {holder}) works in this run folder; wait until it has ended, or end it"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot lock {folder}: {error.strerror}; keep run folders on a disk that has locks") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)
