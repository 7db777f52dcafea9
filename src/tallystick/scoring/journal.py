"""Record what was asked in a day, at either side: a journal, and the contract's budgets, which follow from it.

A journal names no key. It holds a digest of each key under the side's secret, whose owner can search for one key. Shapes: B rows.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import StorageError
from tallystick.run_folder.answer_journal import row_digest
from tallystick.run_folder.line_file import LINES, LineFile, read_lines
from tallystick.storage import Origin

PREFIX = "serving-journal-"
PART_BYTES = 64 << 20
"""Greatest number of bytes of one file of a day; more lines go into another file."""


def now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


@dataclass(kw_only=True)
class Journal:
    """One side's journal, with files for each day (UTC), and the rest of the day's budgets. All runs share both.

    Counts survive a crash: each line is written before its rows are answered. Only one thread may use the journal.

    Args:
        origin: folder of the files.
        secret: key of the digests.
        a_day: limit of rows per day; None means no limit.
        a_day_per_row: limit of requests for one row per day; None means no limit.
        clock: returns the time.
    """

    origin: Origin
    secret: bytes = field(repr=False)
    a_day: int | None = None
    a_day_per_row: int | None = None
    clock: Callable[[], datetime] = now
    _day: date | None = field(default=None, init=False)
    _file: LineFile | None = field(default=None, init=False)
    _part: int = field(default=1, init=False)
    _rows: int = field(default=0, init=False)
    _of_row: Counter[str] = field(default_factory=Counter, init=False)

    def digest(self, name: bytes) -> str:
        """Return a row's name in the journal."""
        return row_digest(name, self.secret)

    def allowed(self, names_B: Sequence[bytes], *, run: str) -> NDArray[np.bool_]:
        """Count rows that are asked of a run, and tell which of them may be answered. Raises StorageError."""
        at = self.clock()
        if at.date() != self._day:
            self._begin(at.date())
        digests, is_allowed_B = [self.digest(name) for name in names_B], np.zeros(len(names_B), dtype=np.bool_)
        for place, digest in enumerate(digests):
            within = self.a_day is None or self._rows < self.a_day
            if within and (self.a_day_per_row is None or self._of_row[digest] < self.a_day_per_row):
                self._count(digest)
                is_allowed_B[place] = True
        answered = [digest for digest, is_allowed in zip(digests, is_allowed_B, strict=True) if is_allowed]
        line: dict[str, object] = {"at": at.isoformat(timespec="milliseconds"), "run": run, "rows": answered}
        assert self._file is not None
        assert self._day is not None
        if self._file.size >= PART_BYTES:
            following = LineFile(self._path(self._day, self._part + 1), origin=self.origin, each=lambda _line: None)
            self._file.close()
            self._file, self._part = following, self._part + 1
        self._file.append(
            json.dumps(
                line if len(answered) == len(digests) else {**line, "over_budget": len(digests) - len(answered)},
                separators=(",", ":"),
            ).encode()
        )
        return is_allowed_B

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = self._day = None

    def _count(self, digest: str) -> None:
        self._rows += 1
        if self.a_day_per_row is not None:
            self._of_row[digest] += 1

    def _begin(self, day: date) -> None:
        """Open the last of the day's files, and count the rows that the files already have."""
        self.close()
        self._rows, self._of_row = 0, Counter()
        # The numbers of the day's files, in order; a file that was moved away leaves a gap
        start = f"{PREFIX}{day.isoformat()}"
        marks = (path.name.removeprefix(start).removesuffix(LINES) for path in self.origin.folder.glob(f"{start}*{LINES}"))
        *former, last = sorted(
            int(mark[1:] or 1) for mark in marks if mark == "" or (mark[0] == "-" and mark[1:].isdecimal())
        ) or [1]

        def count(line: bytes) -> None:
            for digest in json.loads(line)["rows"]:
                self._count(digest)

        for part in former:
            path = self._path(day, part)
            with self._reading(path):
                for line in read_lines(path, origin=self.origin):
                    count(line)
        path = self._path(day, last)
        with self._reading(path):
            self._file = LineFile(path, origin=self.origin, each=count)
        self._day, self._part = day, last

    def _path(self, day: date, part: int) -> Path:
        return self.origin.folder / f"{PREFIX}{day.isoformat()}{f'-{part}' if part > 1 else ''}{LINES}"

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StorageError(
                f"{path} holds a line that is not a journal's; move the file away: the budgets of its day then start again"
            ) from None
