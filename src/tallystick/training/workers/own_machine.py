"""The further processes of a training on the party's own machine, which share its memory."""

import contextlib
import json
import os
import select
import subprocess
import sys

from tallystick.errors import WorkerLost
from tallystick.training.workers.plan import WorkerPlan

ANSWER_S = 300.0
"""For a worker's part of a batch, and for its start: one that takes longer is stopped, or its machine is out of memory."""
_END_S = 5.0  # for a process whose input has ended
_KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
"""Has the C library keep what a step frees for the next one: asking the kernel for it again takes a tenth of a small step."""


class OwnMachine:
    """The further workers as processes of this machine. They end with this process, however it ends.

    ``adding`` counts the first workers that make the gradients of embedding tables and update them: those that share this memory.

    Args:
        plan: of the training.
        file: of the memory, which they are given open.
    """

    def __init__(self, plan: WorkerPlan, file: int) -> None:
        self.adding = plan.workers
        self._plan = plan
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            command = [sys.executable, "-P", "-m", "tallystick.training.workers.process"]
            pipe, path = subprocess.PIPE, os.pathsep.join(each for each in sys.path if each)
            environment = os.environ | {"PYTHONPATH": path} | _KEEPS_MEMORY
            for worker in range(1, self._plan.workers):
                self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[file], env=environment))
                task = {"plan": self._plan.to_json(), "file": file, "worker": worker}
                self._write(self._processes[-1], json.dumps(task).encode() + b"\n")
            self.hear()
        except BaseException:
            self.end()
            raise

    def tell(self, what: str, number: int, rows: int) -> None:
        """Let all begin with a batch's forward or backward pass, with adding up, or with the update. ``number`` names the batch.

        Raises WorkerLost where one is gone.
        """
        for process in self._processes:
            self._write(process, f"{what} {number} {rows}\n".encode())

    def hear(self) -> None:
        """Wait until all have done it, and what they made is in this process's memory. Raises WorkerLost where one is gone."""
        for process in self._processes:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], ANSWER_S)[0]:
                which = self._plan.named(1 + self._processes.index(process))
                raise WorkerLost(f"{which} has not answered for {ANSWER_S:g} s; it is stopped, or memory ran out")
            if (answer := process.stdout.readline()) != b"\n":
                raise self._lost(process, answer)

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):  # words that a process that has ended did not hear
                    stream.close()
        for process in self._processes:
            _ended(process)

    def largest(self) -> str:
        """Say the largest number that each has sent in this training: nothing, for they are on this machine."""
        return ""

    def _write(self, process: "subprocess.Popen[bytes]", line: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._lost(process, b"") from None

    def _lost(self, process: "subprocess.Popen[bytes]", answer: bytes) -> WorkerLost:
        which = self._plan.named(1 + self._processes.index(process))
        if answer.endswith(b"\n"):
            return WorkerLost(f"{which} failed: {json.loads(answer)}")
        code = _ended(process)
        how = f"was ended by signal {-code}; perhaps memory ran out" if code < 0 else f"ended with code {code}"
        return WorkerLost(f"{which} {how}")


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a process that is about to end, or end it, and return its exit code."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
