"""What the benchmarks share: statistics over seeds, one thread, a log that resumes, and what ``--out FOLDER`` leaves."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from tallystick import __version__
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.network.channel import Progress, no_progress
from tallystick.storage import write_bytes
from tallystick_experiments.page import Benchmark, pictures, render_benchmark

PLAIN_ADAM: dict[str, Any] = {"optimizer": "adam", "schedule": "constant", "ema": None}
"""Training as the papers have it: Adam at one rate, and the weights of the last step."""


def summarize_seeds(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation over seeds, and a Student 95 % interval of the mean (no interval from one seed)."""
    array = np.asarray(values, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return {"mean": mean, "n": count}
    deviation = float(array.std(ddof=1))
    half = float(student.ppf(0.975, count - 1)) * deviation / count**0.5
    return {"mean": mean, "sd": deviation, "low": mean - half, "high": mean + half, "n": count}


def evenly(count: int, most: int) -> list[int]:
    """Give at most ``most`` of ``count`` indices, at least one, evenly spread."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, max(1, most)))})


@contextmanager
def one_thread() -> Iterator[None]:
    """Train on one thread within the block: the papers' layers are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class SweepLog:
    """An append-only file: its first line is the setting, every other line one finished run.

    A last line that a crash cut short is dropped; its run is made again.
    """

    def __init__(self, path: Path, *, setting: dict[str, Any], resume: bool) -> None:
        """Start the file, or read it back.

        Raises:
            ConfigError: the file is there and ``resume`` is not asked for, or it is of another setting or version.
            DataError: a line is damaged, or the file holds something else; it is left as it was.
            StorageError: it cannot be read or written.
        """
        self.path = path
        self.runs: list[dict[str, Any]] = []
        setting = {**setting, "tallystick": __version__}  # another version may note other figures
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

    def add(self, run: dict[str, Any]) -> None:
        """Keep a finished run; on disk when this returns."""
        self._append(run)
        self.runs.append(run)

    def _append(self, line: dict[str, Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}; make room, then go on by --resume") from None

    def _whole_lines(self) -> list[dict[str, Any]]:
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
                found = json.loads(line)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                mend = "delete it and go on by --resume, which makes its run again, or " if number > 1 else ""  # 1: the setting
                raise DataError(f"{self.path}: line {number} is not a run of a sweep; {mend}choose another --out")
            lines.append(found)
        return lines


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How a sweep keeps its runs as they come.

    Args:
        log: the file; nowhere if left out.
        resume: take the runs that it already holds from there.
        progress: called after every run.
    """

    log: Path | None = None
    resume: bool = False
    progress: Progress = no_progress

    def open(self, setting: dict[str, Any]) -> SweepLog | None:
        """Start the log, or read it back; raises as SweepLog does."""
        return None if self.log is None else SweepLog(self.log, setting=setting, resume=self.resume)


# --- what a benchmark leaves behind: result.json, and report.html that shows it


def make_output_folder(folder: Path) -> Path:
    """Make the folder if it is not there; before the measurement, so that a path that will not do costs nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--out {folder}: cannot make this folder: {error.strerror}; choose another") from None
    return folder


def write_folder(folder: Path, found: dict[str, Any], page: Benchmark) -> dict[str, str]:
    """Write both files, with this machine's facts and versions on the page, and an SVG per curve; gives the paths of the two."""
    result = make_output_folder(folder) / "result.json"
    write_bytes(result, json.dumps(found, indent=1).encode())
    shown = replace(page, started=page.started or now(), facts={**page.facts, **machine_facts()})
    for name, picture in pictures(shown).items():
        write_bytes(folder / name, picture.encode())
    return {"result": str(result), "report": str(render_benchmark(shown, folder / "report.html"))}


def machine_facts() -> dict[str, str]:
    """Versions, and what a figure depends on of the machine."""
    return {
        "tallystick": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }


def command() -> str:
    """The command line that is running, for the page."""
    return shlex.join(["tallystick", *sys.argv[1:]])


def now() -> str:
    """This moment, as the page wants it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
