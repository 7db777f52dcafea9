"""Run a campaign's cases in a process that can be killed if a case hangs or crashes it."""

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
CASE_S = 60.0  # without an answer for a case: then it hangs
WARM_CASES = 200  # before a process's memory is taken as its baseline
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Played:
    """Keep the outcomes of cases, facts about their fixture, and the memory of the process that ran them."""

    outcomes: Sequence[CaseOutcome]
    facts: dict[str, Any]
    memory_mib: int = 0
    baseline_mib: int = 0


class Worker:
    """Talk to a worker process from the process that started it."""

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
        """Return the end of the worker's standard error."""
        words = self._scratch / "words"
        return words.read_text(errors="replace")[-3000:] if words.exists() else ""

    def run(self, cases: range) -> tuple[list[CaseOutcome], CaseOutcome | None]:
        """Run cases in turn. Return their outcomes, and the outcome of the case that ended the process, or None."""
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
        """Say where a process hangs, or how it ended."""
        self._process.join(0.5)  # a process may end a moment after it has written its last output
        code = self._process.exitcode
        if code is None:
            self.send_signal(signal.SIGUSR1)  # then it prints where it is
            time.sleep(1.0)
        why = "a hang" if code is None else f"the process died ({signal.Signals(-code).name if code < 0 else code})"
        return CaseOutcome(case=case, what="lost", how="", ended="failed", seconds=seconds, failure=why, detail=self.said)

    def _heard(self, seconds: float) -> Any:
        """Return the worker's next message, or None if none comes or the worker has gone."""
        try:
            return self._pipe.recv() if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            return None

    def send_signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def close(self) -> None:
        """End the worker and remove its files."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Keep as many workers as threads ask for one. If one hangs or dies, its case fails and another worker continues."""

    def __init__(self, campaign: type[Campaign], seed: int, scratch: Path) -> None:
        self._campaign, self._seed, self._scratch = campaign, seed, scratch
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def play(self, cases: range) -> Played:
        """Run cases in a worker process."""
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
    """Run the cases that arrive through the pipe."""
    os.setsid()  # an interrupt at the terminal is for the starter, which ends the workers
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
