"""Finished runs of a sweep as JSON lines, so that a sweep that was cut short goes on where it stopped."""

import json
import os
from pathlib import Path
from typing import Any

from tallystick import __version__
from tallystick.errors import ConfigError, DataError, StorageError


class SweepLog:
    """An append-only file: its first line is the setting, every other line one finished run.

    A last line that a crash cut short is dropped; its run is made again.
    """

    def __init__(self, path: Path, *, setting: dict[str, Any], resume: bool) -> None:
        """Start the file, or read it back.

        Raises:
            ConfigError: the file is there and ``resume`` is not asked for, or it is of another setting.
            DataError: the file holds something else.
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
        try:
            lines = [json.loads(line) for line in raw[:whole].splitlines()]
        except ValueError as error:
            raise DataError(f"{self.path} does not hold the runs of a sweep: {error}; choose another --out") from None
        if not all(isinstance(line, dict) for line in lines):
            raise DataError(f"{self.path} does not hold the runs of a sweep; choose another --out")
        return lines
