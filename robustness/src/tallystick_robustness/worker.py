"""A process that runs cases of messages or files, and can be killed: ``python -m ...faults.worker NAME SEED DIR``.

It says which case it begins before it begins it, so that one that hangs or takes the process with it is known.
"""

import faulthandler
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tallystick.errors import TallystickError
from tallystick_robustness.files import Files
from tallystick_robustness.folders import Folders
from tallystick_robustness.messages import Messages, MethodMessages, resident_mib
from tallystick_robustness.outcome import CaseOutcome
from tallystick_robustness.processes import Piped

_START_S = 300.0
CASE_S = 60.0  # and nobody hears of a case: it hangs
WARM_CASES = 200  # before what a process holds is taken for its baseline
CAMPAIGNS: dict[str, type[Messages] | type[Files] | type[Folders]] = {
    "messages": Messages,
    "methods": MethodMessages,
    "files": Files,
    "folders": Folders,
}


class Worker:
    """The starter's end of a worker process."""

    module = "tallystick_robustness.worker"

    def __init__(self, campaign: str, seed: int, scratch: Path) -> None:
        """Start it and wait until its campaign is set up."""
        self._scratch = scratch
        scratch.mkdir()
        self._words = scratch / "words"
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.memory_mib, self.baseline_mib = 0, 0
        with self._words.open("wb") as words:
            self._process = Piped(self.module, campaign, str(seed), str(scratch), stderr=words)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self._next(_START_S)
        if line is None:
            said = self.said
            self.close()
            raise TallystickError(f"a worker of campaign {campaign} did not come up: {said}")
        self.facts = line["facts"]

    @property
    def said(self) -> str:
        """The end of what it wrote to standard error."""
        return self._words.read_text(errors="replace")[-3000:]

    def run(self, cases: range) -> tuple[list[CaseOutcome], CaseOutcome | None]:
        """Run cases one after the other; gives their outcomes, and that of the case that took the process with it."""
        outcomes: list[CaseOutcome] = []
        began = time.monotonic()
        try:
            self._process.stdin.write(json.dumps([cases.start, cases.stop]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        while len(outcomes) < len(cases):
            line = self._next(CASE_S)
            if line is None:
                return outcomes, self._lost(cases.start + len(outcomes), time.monotonic() - began)
            if "outcome" in line:
                outcomes.append(CaseOutcome(**line["outcome"]))
            else:
                self.memory_mib = line["memory"]
                self.baseline_mib = line["baseline"]
        return outcomes, None

    def _lost(self, case: int, seconds: float) -> CaseOutcome:
        """Say where a process that hangs stands, or how one that has gone ended."""
        try:
            code = self._process.wait(0.5)  # its last words are out a moment before it is over
        except subprocess.TimeoutExpired:
            code = None
            self._process.send_signal(signal.SIGUSR1)  # it then says where it stands
            time.sleep(1.0)
        why = "a hang" if code is None else f"the process died ({signal.Signals(-code).name if code < 0 else code})"
        return CaseOutcome(case=case, what="lost", how="", ended="failed", seconds=seconds, failure=why, detail=self.said)

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def send_signal(self, number: int) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End it and remove what it left."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        shutil.rmtree(self._scratch, ignore_errors=True)


def main(campaign: str, seed: int, scratch: Path) -> None:
    """Run the cases that standard input names."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no outcome
    work = scratch / "campaign"
    work.mkdir()
    with CAMPAIGNS[campaign](work, seed=seed) as running:
        _say(out, {"facts": running.facts()})
        done, baseline = 0, 0
        for line in sys.stdin:
            first, stop = json.loads(line)
            for number in range(first, stop):
                outcome = running.case(number)
                done += 1
                baseline = baseline or (resident_mib() if done >= WARM_CASES else 0)
                if number == stop - 1:
                    _say(out, {"memory": resident_mib(), "baseline": baseline})
                _say(out, {"outcome": outcome.to_dict()})


def _say(out: int, line: dict[str, Any]) -> None:
    os.write(out, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
