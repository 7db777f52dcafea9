"""A process that runs a campaign's cases, and can be killed where one hangs or takes it along."""

import faulthandler
import itertools
import multiprocessing
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tallystick.errors import TallystickError
from tallystick_robustness.memory import resident_mib
from tallystick_robustness.outcome import Campaign, CaseOutcome

_START_S = 300.0
CASE_S = 60.0  # and nobody hears of a case: it hangs
WARM_CASES = 200  # before what a process holds is taken for its baseline
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Played:
    """Outcomes of cases, what a reader must know of their fixture, and what the process that ran them held."""

    outcomes: Sequence[CaseOutcome]
    facts: dict[str, Any]
    memory_mib: int = 0
    baseline_mib: int = 0


class Worker:
    """The starter's end of a worker process."""

    def __init__(self, campaign: type[Campaign], seed: int, scratch: Path) -> None:
        """Start the worker and wait until its campaign is set up."""
        self._scratch = scratch
        scratch.mkdir()
        self._pipe, child_end = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_work, args=(campaign, seed, scratch, child_end), daemon=True)
        self._process.start()
        child_end.close()
        self.memory_mib, self.baseline_mib = 0, 0
        self.facts = self._heard(_START_S)
        if self.facts is None:
            last_words = self.said
            self.close()
            raise TallystickError(f"a worker of campaign {campaign.name} did not come up: {last_words}")

    @property
    def said(self) -> str:
        """The end of what it wrote to standard error."""
        words = self._scratch / "words"
        return words.read_text(errors="replace")[-3000:] if words.exists() else ""

    def run(self, cases: range) -> tuple[list[CaseOutcome], CaseOutcome | None]:
        """Run cases one after the other, and return their outcomes, and that of the case that took the process with it."""
        outcomes: list[CaseOutcome] = []
        began = time.monotonic()
        with suppress(OSError):
            self._pipe.send(cases)
        while len(outcomes) < len(cases):
            heard = self._heard(CASE_S)
            if heard is None:
                return outcomes, self._lost(cases.start + len(outcomes), time.monotonic() - began)
            outcome, self.memory_mib, self.baseline_mib = heard
            outcomes.append(outcome)
        return outcomes, None

    def _lost(self, case: int, seconds: float) -> CaseOutcome:
        """Say where a process that hangs stands, or how one that has gone ended."""
        self._process.join(0.5)  # its last words are out a moment before it is over
        code = self._process.exitcode
        if code is None:
            self.send_signal(signal.SIGUSR1)  # it then says where it stands
            time.sleep(1.0)
        why = "a hang" if code is None else f"the process died ({signal.Signals(-code).name if code < 0 else code})"
        return CaseOutcome(case=case, what="lost", how="", ended="failed", seconds=seconds, failure=why, detail=self.said)

    def _heard(self, seconds: float) -> Any:
        """Return what it says next, or None if it says nothing, or has gone."""
        try:
            return self._pipe.recv() if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            return None

    def send_signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def close(self) -> None:
        """End the worker and remove what it left."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """As many workers as there are threads that ask for one. One that hangs or dies fails its case, and another goes on."""

    def __init__(self, campaign: type[Campaign], seed: int, scratch: Path) -> None:
        self._campaign, self._seed, self._scratch = campaign, seed, scratch
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def play(self, cases: range) -> Played:
        """Run cases in a process."""
        outcomes: list[CaseOutcome] = []
        memory = 0
        while True:
            worker = self._worker()
            some, lost = worker.run(cases[len(outcomes) :])
            outcomes += some
            memory = max(memory, worker.memory_mib)
            if lost is None:
                self._idle.put(worker)
                break
            outcomes.append(lost)
            worker.close()
            if len(outcomes) == len(cases):
                break
        return Played(outcomes=outcomes, facts=worker.facts, memory_mib=memory, baseline_mib=0 if lost else worker.baseline_mib)

    def _worker(self) -> Worker:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            with self._lock:
                scratch = self._scratch / f"worker-{next(self._numbers)}"
            return Worker(self._campaign, self._seed, scratch)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()


def _work(campaign: type[Campaign], seed: int, scratch: Path, pipe: Connection) -> None:
    """Run the cases that the pipe names."""
    os.setsid()  # an interrupt at the terminal is for the starter, who ends what runs
    with (scratch / "words").open("wb") as words:
        for stream in (1, 2):
            os.dup2(words.fileno(), stream)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2)
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    work = scratch / "campaign"
    work.mkdir()
    with campaign(work, seed=seed) as running:
        pipe.send(running.facts())
        cases_done, baseline = 0, 0
        while True:
            for number in pipe.recv():
                outcome = running.case(number)
                cases_done += 1
                baseline = baseline or (resident_mib() if cases_done >= WARM_CASES else 0)
                pipe.send((outcome, resident_mib(), baseline))
