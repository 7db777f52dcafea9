"""The backward pass of large embedding tables, several at a time.

PyTorch works out one table's gradient after the other, in one thread. But a table's gradient depends on no other table, so here
each of a party's threads takes a table. No sum is taken in another order: the bits stay the same.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LARGE_VALUES = 1 << 16
"""A table of so many values is worth a thread's while."""


@dataclass(kw_only=True, eq=False)
class Lookup:
    """Rows that a table gave in a forward pass, and once the backward pass has come so far, their gradient."""

    table: Tensor
    rows: Tensor
    grad: Tensor | None = None


class Tables:
    """A module's large embedding tables, whose part of the backward pass is put off and then shared among the threads.

    With a single thread, or on a GPU, there is nothing to share, and PyTorch does it all. So it does for parties that are
    threads of one process: they would fight over the number of threads, which PyTorch keeps once for all threads to come.
    """

    def __init__(self, module: nn.Module) -> None:
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._tables = _large_tables(module) if in_main_thread and torch.get_num_threads() > 1 else []
        self._pool = ThreadPoolExecutor(initializer=torch.set_num_threads, initargs=(1,))

    @contextmanager
    def forward(self) -> Iterator[list[Lookup]]:
        """Gives a list in which a forward pass of the module leaves its lookups; backward() needs it."""
        lookups: list[Lookup] = []

        def put_off(table: nn.Module, _codes: Any, rows: Tensor) -> Tensor | None:
            if not rows.requires_grad:
                return None
            assert isinstance(table, nn.Embedding)
            lookups.append(Lookup(table=table.weight, rows=rows))
            seen: Tensor = _PutOff.apply(rows.detach().requires_grad_(), lookups[-1])  # type: ignore[no-untyped-call]
            return seen

        hooks = [table.register_forward_hook(put_off) for table in self._tables]
        try:
            yield lookups
        finally:
            for hook in hooks:
                hook.remove()

    def backward(self, lookups: list[Lookup]) -> None:
        """Take these lookups' gradients, at which the backward pass has stopped, back to the tables."""
        waiting: dict[Tensor, list[Lookup]] = {}
        for lookup in lookups:
            if lookup.grad is not None:
                waiting.setdefault(lookup.table, []).append(lookup)
        if not waiting:
            return

        def work() -> None:
            while True:
                try:
                    _, found = waiting.popitem()
                except KeyError:
                    return
                torch.autograd.backward([lookup.rows for lookup in found], [lookup.grad for lookup in found])

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            others = [self._pool.submit(work) for _ in range(min(threads, len(waiting)) - 1)]
            work()
            for other in others:
                other.result()
        finally:
            torch.set_num_threads(threads)


class _PutOff(torch.autograd.Function):
    """The identity; the backward pass ends here and leaves the gradient with the lookup."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, lookup: Lookup) -> Tensor:
        ctx.lookup = lookup
        return rows.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        ctx.lookup.grad = grad
        return None, None


def _large_tables(module: nn.Module) -> list[nn.Embedding]:
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    return [
        table
        for table in module.modules()
        if isinstance(table, nn.Embedding)
        and table.weight.numel() >= LARGE_VALUES
        and table.weight.device.type == "cpu"
        and uses[id(table.weight)] == 1  # another use's share of the gradient would be added in another order
    ]
