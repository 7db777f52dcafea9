"""Append lines to a file of a run folder, such as a journal. If the folder is encrypted, each line is encrypted separately.

Guarantee, if encrypted: someone with the disk and without the key learns the number, times and lengths of lines, and cannot
change, swap or leave out a line before the last one unnoticed. Not protected: lines that are cut off at the end; in a folder
without a key, everything.
"""

import binascii
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tallystick.encryption import NotDecrypted
from tallystick.errors import DamagedFile, StorageError, advice
from tallystick.storage import Origin, write_bytes


class LineFile:
    """A file to which lines are added, readable by its owner alone.

    Args:
        path: path of the file; it is made if it is not there. An incomplete last line, which a kill can leave, is cut off.
        origin: folder that contains it.
        each: called with each line that is already there.

    Raises StorageError, and DamagedFile for a line that cannot be decrypted.
    """

    def __init__(self, path: Path, *, origin: Origin, each: Callable[[bytes], None]) -> None:
        self.path, self._origin = path, origin
        self._count = self.size = 0
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(path, error) from None
        try:
            for line, size in _lines_of(path, origin):
                each(line)
                self._count, self.size = self._count + 1, self.size + size
            os.ftruncate(self._handle, self.size)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, StorageError):
                raise _unwritable(path, error) from None
            raise

    def append(self, line: bytes) -> None:
        """Add a line, completely or not at all. Raises StorageError."""
        line = _stored(line, self.path, self._origin, self._count)
        try:
            written = os.write(self._handle, line + b"\n")
            if written < len(line) + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._handle, self.size)
            raise _unwritable(self.path, error) from None
        self._count, self.size = self._count + 1, self.size + written

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


LINES = ".jsonl"
"""End of such a file's name."""


def read_lines(path: Path, *, origin: Origin) -> Iterator[bytes]:
    """Yield the complete lines of such a file, while another process may add lines. Raises DamagedFile."""
    try:
        for line, _ in _lines_of(path, origin):
            yield line
    except StorageError:
        raise
    except OSError as error:
        raise DamagedFile(path, f"it cannot be read: {error.strerror}") from None


def rewrite_lines(path: Path, *, origin: Origin, rewritten: Callable[[bytes], bytes]) -> None:
    """Replace each line in a file to which no process adds lines. Raises DamagedFile and StorageError.

    Another process that reads the file at the same time sees all old lines or all new ones.
    """
    lines = []
    for number, line in enumerate(read_lines(path, origin=origin)):
        lines += [_stored(rewritten(line), path, origin, number), b"\n"]
    write_bytes(path, *lines, private=True)


def _lines_of(path: Path, origin: Origin) -> Iterator[tuple[bytes, int]]:
    """Yield each complete line, and the number of bytes that it takes in the file."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                return
            yield _plain(line[:-1], path, origin, number), len(line)


def _stored(line: bytes, path: Path, origin: Origin, number: int) -> bytes:
    """Return a line as it is stored: encrypted if the folder's files are."""
    if origin.key is None:
        return line
    return binascii.b2a_base64(b"".join(origin.key.encrypted(line, place=_place(origin, path, number))), newline=False)


def _plain(line: bytes, path: Path, origin: Origin, number: int) -> bytes:
    if origin.key is None:
        return line
    try:
        return origin.key.decrypted(binascii.a2b_base64(line, strict_mode=True), place=_place(origin, path, number))
    except (NotDecrypted, binascii.Error) as error:
        why = str(error) if isinstance(error, NotDecrypted) else "it is not encrypted, in a folder whose files are"
        raise DamagedFile(path, f"line {number + 1}: {why}") from None


def _place(origin: Origin, path: Path, number: int) -> str:
    return f"line {number} of {origin.place_of(path)}"


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot write {path}: {error.strerror}{advice(error)}")
