"""A party's training in several processes: each batch's rows are shared out, and what they make of it is put together again.

The protocol, the loops and whatever looks at a whole batch know nothing of it. The party's own process is the first worker and
the only one that talks to peers. The sum of a weight's gradients is taken in the workers' order, so that bits hang on their
number and not on who is ready first.

Shapes: B rows of a batch, D cut width.
"""

import contextlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from tallystick.data.features import Features
from tallystick.errors import WorkerLost
from tallystick.models.split import LabelModel
from tallystick.training.workers.plan import Layout, WorkerPlan
from tallystick.training.workers.shard import Shard

_END_S = 5.0  # for a process whose input has ended


class Team:
    """Within this block a module takes training batches by all workers of the plan; its weights are those it had, and has after.

    What it gives without gradients, for validation and in use, is computed by the party's own process, as without workers.

    Threat model: none beside the party's own; the processes are of one machine and one user, and what they share has no name in
    the file system. Raises WorkerLost where one of them ends, ConfigError where the system has no such memory.
    """

    def __init__(self, module: nn.Module, plan: WorkerPlan) -> None:
        self._module, self._plan = module, plan.balanced(module)
        self._method = "finish" if isinstance(module, LabelModel) else "forward"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begun = 0

    def __enter__(self) -> Self:
        layout = Layout(self._plan, self._module)
        file = os.memfd_create("tallystick-training")
        try:
            os.ftruncate(file, layout.size)
            self._memory = layout.tensors(memoryview(mmap.mmap(file, layout.size)))
            for name, weight in self._module.named_parameters():
                self._memory[f"weight/{name}"].copy_(weight.detach())
            self._shard = Shard(self._module, self._plan, self._memory, worker=0)
            try:
                self._start(file)
            except BaseException:
                self._end()
                raise
        finally:
            os.close(file)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(self._plan.threads)
        setattr(self._module, self._method, self._call)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        delattr(self._module, self._method)
        torch.set_num_threads(self._threads)
        self._end()

    def _start(self, file: int) -> None:
        command = [sys.executable, "-P", "-m", "tallystick.training.workers.process"]
        pipe, path = subprocess.PIPE, os.pathsep.join(each for each in sys.path if each)
        for worker in range(1, self._plan.workers):
            self._processes.append(
                subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[file], env=os.environ | {"PYTHONPATH": path})
            )
            told = {"plan": self._plan.to_json(), "file": file, "worker": worker}
            self._write(self._processes[-1], json.dumps(told).encode() + b"\n")
        self._hear()

    def _end(self) -> None:
        """End the other processes, and take the weights back into memory of this one's own."""
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):  # words that a process that has ended did not hear
                    stream.close()
        for process in self._processes:
            _ended(process)
        for weight in self._module.parameters():
            weight.data, weight.grad = weight.data.clone(), None

    # What takes the place of the module's own method

    def _call(self, *given: Any) -> Tensor:
        *cuts, own = given
        cuts_BD: Sequence[Tensor] = cuts[0] if cuts else ()
        if not (torch.is_grad_enabled() and self._module.training):
            alone: Tensor = getattr(type(self._module), self._method)(self._module, *given)
            return alone
        anchor = torch.zeros((), requires_grad=True)  # so that autograd comes back, where no cut asks for it
        output: Tensor = _Together.apply(self, own, anchor, *cuts_BD)  # type: ignore[no-untyped-call]
        return output

    def forward(self, own: Features, cuts_BD: Sequence[Tensor]) -> tuple[int, Tensor]:
        """Take a batch forward by all workers; gives its number and the output."""
        self._begun += 1
        number, rows, memory = self._begun, len(own), self._memory
        memory["numeric"][:rows] = own.numeric_NF
        memory["codes"][number % self._plan.in_flight, :, :rows] = own.categorical_NG.t()
        for place, cut_BD in enumerate(cuts_BD):
            memory[f"cut/{place}"][:rows] = cut_BD.detach()
        self._tell(b"forward", number, rows)
        shape = self._shard.forward(number, rows)
        self._hear()
        return number, memory["output"][:rows].clone().view(rows, *shape)

    def backward(self, number: int, gradient: Tensor) -> list[Tensor]:
        """Take a batch back: leaves the weights' gradients with the module, gives those of the cuts."""
        rows, memory, plan = len(gradient), self._memory, self._plan
        memory["output gradient"][:rows] = gradient.reshape(rows, -1)
        self._tell(b"backward", number, rows)
        taught = self._shard.backward(number, rows)
        self._hear()
        if self._shard.tables:
            self._tell(b"add", number, rows)
            self._shard.add_up(number, rows)
        for name in taught:
            total = memory[f"gradient/{name}/0"].clone()
            for worker in range(1, min(plan.workers, rows)):  # fewer rows than workers leave the last ones without any
                total += memory[f"gradient/{name}/{worker}"]
            self._shard.dense[name].grad = total
        if self._shard.tables:
            self._hear()
        for name, table in self._shard.tables.items():
            table.grad = memory[f"gradient/{name}"]
        return [memory[f"cut gradient/{place}"][:rows].clone() for place in range(len(plan.cut_widths or ()))]

    # The other processes

    def _tell(self, what: bytes, number: int, rows: int) -> None:
        for process in self._processes:
            self._write(process, b"%s %d %d\n" % (what, number, rows))

    def _write(self, process: "subprocess.Popen[bytes]", line: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._lost(process, b"") from None

    def _hear(self) -> None:
        """Wait until all have done what they were told."""
        for process in self._processes:
            assert process.stdout is not None
            if (answer := process.stdout.readline()) != b"\n":
                raise self._lost(process, answer)

    def _lost(self, process: "subprocess.Popen[bytes]", answer: bytes) -> WorkerLost:
        which = f"worker {1 + self._processes.index(process)} of the {self._plan.workers} that train for {self._plan.party}"
        if answer.endswith(b"\n"):
            return WorkerLost(f"{which} failed: {json.loads(answer)}")
        code = _ended(process)
        how = f"was ended by signal {-code}; perhaps memory ran out" if code < 0 else f"ended with code {code}"
        return WorkerLost(f"{which} {how}")


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """The exit code of a process that is about to end, or else is ended."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class _Together(torch.autograd.Function):
    """A module's pass by all workers, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, team: Team, own: Features, _anchor: Tensor, *cuts_BD: Tensor) -> Tensor:
        ctx.team = team
        ctx.number, output = team.forward(own, cuts_BD)
        return output

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.team.backward(ctx.number, gradient[0])
