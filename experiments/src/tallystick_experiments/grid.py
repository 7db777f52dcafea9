"""Run the cases of all experiments: each case with each seed, logged when it is done, and read from the log if it is there.

A case is plain data. Its fields distinguish it from the others of the sweep, and its line from the others in the log.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from tallystick import __version__
from tallystick.compute.threads import limited_threads
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.network.channel import Progress, no_progress
from tallystick_experiments.stats import Row

Made = TypeVar("Made")
Given = ParamSpec("Given")
Trial = Callable[..., Mapping[str, Any]]
Maker = Callable[[Trial, Sequence[Row], Sequence[int], Row], Iterator[tuple[int, Row]]]


def grid(**fields: Iterable[Any]) -> list[Row]:
    """Return every combination of the fields' values, as cases. The first field is the outermost loop."""
    return [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]


def run_cases(
    cases: Iterable[Row],
    trial: Trial,
    keeping: "Keeping",
    setting: Row,
    *,
    usual: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Make every case that the log lacks, on one thread each, and return the rows of all cases in their order.

    Args:
        cases: the fields that distinguish the runs, as plain data; they come first in a row, and all cases have the same fields.
        trial: takes a case's fields by their names, and makes the rest of its row.
        keeping: where rows are kept, and how they are made.
        setting: what the rows of one log must agree on.
        usual: values of fields that older logs leave out.

    Raises ConfigError for a case that is declared twice, DataError for a log that lacks a field or holds a run twice, and the
    errors of SweepLog and of the trial.
    """
    cases, log = list(cases), keeping.open(setting)
    logged = _by_key(log, tuple(cases[0]), usual or {}) if log is not None and cases else {}
    places: dict[str, int] = {}
    for number, case in enumerate(cases):
        if places.setdefault(place_of(case), number) != number:
            raise ConfigError(f"this sweep has the run {_in_words(case)} twice; name each case once")
    rows = {number: logged[place] for place, number in places.items() if place in logged}
    for done, number in enumerate(rows, start=1):
        keeping.progress(_in_words(cases[number]), done, len(cases))
    missing = [number for number in range(len(cases)) if number not in rows]
    for number, made in keeping.made(trial, cases, missing, setting):
        rows[number] = {**cases[number], **made}
        if log is not None:
            log.add(rows[number])
        keeping.progress(_in_words(cases[number]), len(rows), len(cases))
    return [rows[number] for number in range(len(cases))]


def made_here(trial: Trial, cases: Sequence[Row], missing: Sequence[int], _setting: Row) -> Iterator[tuple[int, Row]]:
    """Make cases one after the other in this process."""
    with limited_threads(1):  # the papers' layers are too small for more
        for number in missing:
            yield number, dict(trial(**cases[number]))


def place_of(case: Row) -> str:
    """Return a key that identifies a case in its sweep."""
    return json.dumps(list(case.values()))


def _by_key(log: "SweepLog", fields: tuple[str, ...], usual: Mapping[str, Any]) -> dict[str, Row]:
    """Return the log's rows by their keys."""
    by_place: dict[str, Row] = {}
    lines: dict[str, int] = {}
    for number, row in enumerate(log.runs, start=2):  # 1 is the setting
        if lacking := [name for name in fields if name not in row and name not in usual]:
            raise DataError(
                f"{log.path}: line {number} has no {', '.join(lacking)}; it is of another sweep: choose another --out"
            )
        key = {name: row.get(name, usual.get(name)) for name in fields}
        place = place_of(key)
        if place in by_place:
            raise DataError(
                f"{log.path}: line {number} has the run {_in_words(key)} of line {lines[place]} again; delete one, then --resume"
            )
        by_place[place], lines[place] = {**key, **row}, number
    return by_place


def _in_words(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in key.items())


class Latest(Generic[Given, Made]):
    """Keep the last result of a function. Cases in a row share a split or a training, and two results at once are too large."""

    def __init__(self, make: Callable[Given, Made]) -> None:
        self._make = make
        self._kept: list[tuple[Any, Made]] = []

    def __call__(self, *given: Given.args, **named: Given.kwargs) -> Made:
        """Return the function's result, computed again unless the last call had the same arguments."""
        arguments = (given, named)
        if not self._kept or self._kept[0][0] != arguments:
            self._kept.clear()  # before the next result is made
            self._kept.append((arguments, self._make(*given, **named)))
        return self._kept[0][1]


class SweepLog:
    """Append-only file: the first line is the setting, and every other line is one finished run.

    A last line that a crash cut short is dropped, and its run is made again.
    """

    def __init__(self, path: Path, *, setting: Row, resume: bool) -> None:
        """Start the file, or read it back.

        Raises:
            ConfigError: the file exists without ``resume``, or it has another setting or version.
            DataError: a line is damaged, or the file holds something else; it stays as it was.
            StorageError: it cannot be read or written.
        """
        self.path = path
        self.runs: list[Row] = []
        setting = {**setting, "tallystick": __version__}  # another version may log other figures
        if not path.exists():
            self._append(setting)
            return
        if not resume:
            raise ConfigError(f"{path} holds the runs of an earlier sweep; go on with it by --resume, or choose another --out")
        lines, setting = self._whole_lines(), json.loads(json.dumps(setting))
        if lines and (other := lines[0].get("tallystick")) not in (None, __version__):
            raise ConfigError(f"{path} was written by tallystick {other}, this is {__version__}; choose another --out")
        if lines and lines[0] != setting:
            differing = sorted(key for key in {*lines[0], *setting} if lines[0].get(key) != setting.get(key))
            raise ConfigError(f"{path} is of another sweep: {', '.join(differing)} differ; choose another --out")
        if not lines:
            self._append(setting)
        self.runs = lines[1:]

    def add(self, run: Row) -> None:
        """Keep a finished run. It is on disk when this returns."""
        self._append(run)
        self.runs.append(run)

    def _append(self, line: Row) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}; make room, then go on by --resume") from None

    def _whole_lines(self) -> list[Row]:
        try:
            raw = self.path.read_bytes()
            whole = raw.rfind(b"\n") + 1
            if whole < len(raw):
                with self.path.open("r+b") as file:
                    file.truncate(whole)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from None
        lines = []
        for number, line in enumerate(raw[:whole].splitlines(), start=1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                mend = "delete it and go on by --resume, which makes its run again, or " if number > 1 else ""  # 1: the setting
                raise DataError(f"{self.path}: line {number} is not a run of a sweep; {mend}choose another --out")
            lines.append(row)
        return lines


def make_output_folder(folder: Path) -> Path:
    """Make the output folder if it does not exist, after all checks and before long work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--out {folder}: cannot make this folder: {error.strerror}; choose another") from None
    return folder


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Say how a sweep's runs are kept.

    Args:
        log: the log file; None keeps no log.
        resume: whether to take the runs that the log already holds.
        progress: called after every run.
        made: makes the cases of these numbers, and yields each number with its row when it is done.
    """

    log: Path | None = None
    resume: bool = False
    progress: Progress = no_progress
    made: Maker = made_here

    def open(self, setting: Row, *, mark: str = "") -> SweepLog | None:
        """Start the log, or read it back. ``mark`` distinguishes logs of one folder. Raises the errors of SweepLog."""
        if self.log is None:
            return None
        make_output_folder(self.log.parent)
        return SweepLog(self.log.with_stem(self.log.stem + mark), setting=setting, resume=self.resume)


NOWHERE = Keeping()
