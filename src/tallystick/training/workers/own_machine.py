"""Run a training's additional processes on the party's own machine, where they share its memory."""

import contextlib
import json
import os
import select
import subprocess
import sys

from tallystick.errors import WorkerLost
from tallystick.training.workers.plan import WorkerPlan

ANSWER_S = 300.0
"""Time limit for a worker's part of a batch, and for its start. A slower worker is stopped, or its machine is out of memory."""
_END_S = 5.0  # for a process whose input has ended
_KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
"""Make the C library keep memory that a step frees: getting it from the kernel again takes a tenth of a small step."""


class OwnMachine:
    """The additional workers as processes of this machine. They end with this process, however it ends.

    ``adding`` counts the first workers that compute the gradients of embedding tables and update them: those that share this
    memory.

    Args:
        plan: plan of the training.
        file: file of the memory, which they receive open.
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
        """Start a batch's forward or backward pass, the adding, or the update, in all workers. ``number`` names the batch.

        Raises WorkerLost if one is gone.
        """
        for process in self._processes:
            self._write(process, f"{what} {number} {rows}\n".encode())

    def hear(self) -> None:
        """Wait until all are done and their results are in this process's memory. Raises WorkerLost if one is gone."""
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
                with contextlib.suppress(BrokenPipeError):  # output that an ended process did not read
                    stream.close()
        for process in self._processes:
            _ended(process)

    def largest(self) -> str:
        """Return an empty text: the workers are on this machine, so their largest numbers need not be reported."""
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
    """Wait for a process that is about to end, or end it. Return its exit code."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
