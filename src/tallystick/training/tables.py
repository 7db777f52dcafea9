"""Large embedding tables while a party trains: looked up, and their gradients worked out, several at a time.

PyTorch takes one table after the other, in one thread. But tables do not depend on each other, so here each of a party's threads
takes a table. No sum is taken in another order: the bits are those of the ordinary forward and backward pass, which the model
itself keeps to (models/tabular.py), so that training in one process stays a reference that shares nothing with this.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tallystick.data.features import Features
from tallystick.models.tabular import Columns

LARGE_VALUES = 1 << 16
"""Columns whose tables hold so many values are worth the threads' while."""


@dataclass(kw_only=True, eq=False)
class Lookup:
    """The codes of a batch, column by column, and once the backward pass has come so far, the gradient of what they gave."""

    columns: Columns
    codes_GB: Tensor
    grad_BW: Tensor | None = None


class Tables:
    """A module's columns with large tables, which are shared among the threads; the backward pass stops there until asked.

    With a single thread, or on a GPU, there is nothing to share, and PyTorch does it all. So it does for parties that are
    threads of one process: they would fight over the number of threads, which PyTorch keeps once for all threads to come.
    """

    def __init__(self, module: nn.Module) -> None:
        shared = threading.current_thread() is threading.main_thread() and torch.get_num_threads() > 1
        self._columns = _with_large_tables(module) if shared else []
        self._pool = ThreadPoolExecutor(initializer=torch.set_num_threads, initargs=(1,))

    @contextmanager
    def forward(self) -> Iterator[list[Lookup]]:
        """Gives a list in which a forward pass of the module leaves its lookups; backward() needs it."""
        lookups: list[Lookup] = []
        for columns in self._columns:
            columns.embed = partial(self._embed, columns, lookups)
        try:
            yield lookups
        finally:
            for columns in self._columns:
                columns.embed = None

    def _embed(self, columns: Columns, lookups: list[Lookup], features: Features) -> Tensor:
        numeric_BF, codes_GB = features.numeric_NF, features.categorical_NG.t().contiguous()
        joined_BW = torch.empty(len(numeric_BF), columns.width)
        joined_BW[:, : numeric_BF.shape[1]] = numeric_BF

        def look_up(place: int) -> None:
            torch.index_select(columns.table(place).detach(), 0, codes_GB[place], out=columns.part(joined_BW, place))

        self._share(look_up, range(len(columns.embeddings)))
        lookups.append(Lookup(columns=columns, codes_GB=codes_GB))
        seen_BW: Tensor = _PutOff.apply(joined_BW.requires_grad_(), lookups[-1])  # type: ignore[no-untyped-call]
        return seen_BW

    def backward(self, lookups: Sequence[Lookup]) -> None:
        """Take these lookups' gradients, at which the backward pass has stopped, back to the tables."""
        for lookup in lookups:
            if lookup.grad_BW is not None:
                self._share(partial(_backward, lookup, lookup.grad_BW), range(len(lookup.columns.embeddings)))

    def _share(self, do: Callable[[int], None], places: Iterable[int]) -> None:
        waiting = list(places)

        def work() -> None:
            while True:
                try:
                    place = waiting.pop()
                except IndexError:
                    return
                do(place)

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            others = [self._pool.submit(work) for _ in range(min(threads, len(waiting)) - 1)]
            work()
            for other in others:
                other.result()
        finally:
            torch.set_num_threads(threads)


def _backward(lookup: Lookup, grad_BW: Tensor, place: int) -> None:
    weight = lookup.columns.table(place)
    if weight.requires_grad:
        found = torch.zeros_like(weight).index_add_(0, lookup.codes_GB[place], lookup.columns.part(grad_BW, place))
        weight.grad = found if weight.grad is None else weight.grad + found


class _PutOff(torch.autograd.Function):
    """The identity; the backward pass ends here and leaves the gradient with the lookup."""

    @staticmethod
    def forward(ctx: Any, joined_BW: Tensor, lookup: Lookup) -> Tensor:
        ctx.lookup = lookup
        return joined_BW.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BW: Tensor) -> tuple[None, None]:
        ctx.lookup.grad_BW = grad_BW
        return None, None


def _with_large_tables(module: nn.Module) -> list[Columns]:
    return [columns for columns in module.modules() if isinstance(columns, Columns) and _are_large(list(columns.parameters()))]


def _are_large(tables: Sequence[Tensor]) -> bool:
    on_cpu = all(table.device.type == "cpu" and table.dtype == torch.float32 for table in tables)
    return on_cpu and sum(table.numel() for table in tables) >= LARGE_VALUES
