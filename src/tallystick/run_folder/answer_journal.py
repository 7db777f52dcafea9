"""Keep a label party's online answers in the run's folder, a file for each day (UTC), so that `monitor` can analyse them later.

It holds no key, only a digest of each under the side's secret, which is in the same folder. No formal guarantee: the owner of the
folder and of a list of keys finds each of them with its scores, and can read the sampled columns by the folder's encoder.

Shapes: B rows.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tallystick.config.serving import AnswersConfig
from tallystick.errors import DamagedFile
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.line_file import LINES, LineFile, read_lines
from tallystick.storage import Origin, remove
from tallystick.tables.features import Features

SERVING = "serving"
PREFIX = "served-"
DIGEST_BYTES = 8


def serving_secret(folder: RunFolder) -> bytes:
    """Return 32 bytes from which digests of keys and windows follow; they stay the same as long as the run is served."""
    secret_text = folder.noted(SERVING).get("secret")
    if isinstance(secret_text, str):
        return bytes.fromhex(secret_text)
    secret = folder.draw(SERVING)
    folder.note(SERVING, {**folder.noted(SERVING), "secret": secret.hex()}, private=True)
    return secret


def row_digest(name: bytes, secret: bytes) -> str:
    """Return a row's name in a journal and in the answers."""
    return hashlib.blake2b(name, key=secret, digest_size=DIGEST_BYTES, person=b"serving journal").hexdigest()


class AnsweredRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to one row.

    Args:
        row: digest of its key.
        why: joint, or the reason for no joint score: unknown, absent, budget, store or away.
        by: the model that scored it; None if none did.
        scores: one score, or one for each class.
        numbers, codes: its own columns as the network read them, if they were sampled.
    """

    row: str
    why: str = "joint"
    by: str | None = None
    scores: tuple[float, ...] = ()
    numbers: tuple[float, ...] | None = None
    codes: tuple[int, ...] | None = None


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The kept answer to one request.

    Args:
        at: time of the answer.
        ms: milliseconds by part: ``all``, and for the batch ``waiting`` for it, ``partners`` and ``scoring``.
        rows: the answers to its rows.
        full: whether the day's file had no room for later answers.
    """

    at: datetime
    ms: dict[str, float] = {}
    rows: tuple[AnsweredRow, ...] = ()
    full: bool = False


_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(KeptAnswer)
_FULL_BYTES = 1 << 10  # room for the line that says that the file is full


@dataclass(kw_only=True)
class AnswerLog:
    """The files of answers, as a server writes them. Their size is limited, and old files are deleted. One thread may use them.

    Args:
        origin: folder of the run.
        secret: key of the digests.
        config: how much is kept.
        clock: returns the time.
        draw: returns numbers in [0, 1), which sample requests and own columns.
    """

    origin: Origin
    secret: bytes = field(repr=False)
    config: AnswersConfig
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    draw: Callable[[], float] = secrets.SystemRandom().random
    _day: date | None = field(default=None, init=False)
    _file: LineFile | None = field(default=None, init=False)
    _is_full: bool = field(default=False, init=False)

    def takes(self) -> bool:
        """Tell whether to keep the next request."""
        return self.config.requests == 1 or self.draw() < self.config.requests

    def samples(self) -> bool:
        """Tell whether to keep its own columns as well."""
        return self.draw() < self.config.columns

    def digest(self, key: bytes) -> str:
        """Return a row's name."""
        return row_digest(key, self.secret)

    def keep(self, rows: list[AnsweredRow], ms: dict[str, float]) -> None:
        """Write one request. Raises StorageError."""
        at = self.clock()
        if at.date() != self._day:
            day = at.date()
            self.close()
            oldest = day - timedelta(days=self.config.days)
            for former, path in _files_in(self.origin.folder):
                if former <= oldest:
                    remove(path)
            self._is_full = False

            def look(line: bytes) -> None:
                self._is_full = self._is_full or b'"full":true' in line

            path = self.origin.folder / f"{PREFIX}{day.isoformat()}{LINES}"
            self._file, self._day = LineFile(path, origin=self.origin, each=look), day
        if self._is_full:
            return
        assert self._file is not None
        line = _ENCODER.encode(KeptAnswer(at=at, ms={name: round(value, 3) for name, value in ms.items()}, rows=tuple(rows)))
        # Encryption makes a line a third and a few bytes longer.
        self._is_full = self._file.size + 2 * len(line) + _FULL_BYTES > self.config.mib_a_day << 20
        self._file.append(_ENCODER.encode(KeptAnswer(at=at, full=True)) if self._is_full else line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = self._day = None


def read_answers(folder: RunFolder, *, since: date | None = None) -> Iterator[KeptAnswer]:
    """Read all kept answers of a run from a day (UTC) on, the oldest first. Raises DamagedFile."""
    for day, path in _files_in(folder.path):
        if since is not None and day < since:
            continue
        for line in read_lines(path, origin=folder.origin):
            try:
                yield _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise DamagedFile(
                    path, "it holds a line that is not an answer", "move the file away; the other days remain"
                ) from None


def kept_columns(features: Features, place: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return a row's own columns in the form that is kept."""
    return short(features.numeric_NF[place].numpy()), tuple(features.categorical_NG[place].tolist())


def short(values: NDArray[np.float32]) -> tuple[float, ...]:
    """Return the numbers with as few digits as give the same 32-bit numbers when read back."""
    return tuple(float(str(value)) for value in values.astype(np.float32))


def _files_in(folder: Path) -> list[tuple[date, Path]]:
    files = []
    for path in folder.glob(f"{PREFIX}*{LINES}"):
        if match := re.fullmatch(re.escape(PREFIX) + r"(\d{4}-\d\d-\d\d)" + re.escape(LINES), path.name):
            with suppress(ValueError):
                files.append((date.fromisoformat(match[1]), path))
    return sorted(files)
