"""Look up embedding tables in training, and compute their gradients, several tables at the same time.

PyTorch processes one table after the other, and mostly in one thread. But tables are independent, so here each of a party's
threads takes a table. No sum is computed in another order: the bits are those of models/tabular.py: one_by_one. Training in one
process keeps to that function, so that it stays a reference which shares no code with this one.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tallystick.models.tabular import Columns, one_by_one
from tallystick.tables.features import Features

WORTH_LOOKUPS = 100_000
"""Lookups of a batch, rows times tables. Below this, coordinating threads costs more than it saves."""

ParallelFor = Callable[[Callable[[int], None], Iterable[int]], None]


@contextmanager
def parallel_embedding_lookup(module: nn.Module) -> Iterator[None]:
    """Embed large batches of a module's columns with all threads within this block, and run backward passes in the same way.

    With a single thread nothing changes. The same holds for parties that are threads of one process: they would compete for the
    number of threads, which PyTorch keeps once for all later threads.
    """
    helpers = torch.get_num_threads() - 1 if threading.current_thread() is threading.main_thread() else 0
    shared = [columns for columns in module.modules() if isinstance(columns, Columns)] if helpers else []
    if not shared:
        yield
        return
    with ThreadPoolExecutor(helpers) as pool:
        for columns in shared:
            columns.embed = partial(_embed, partial(_share, pool))
        try:
            yield
        finally:
            for columns in shared:
                columns.embed = one_by_one


def _share(pool: ThreadPoolExecutor, do: Callable[[int], None], places: Iterable[int]) -> None:
    """Look up all places, the last ones first, in this thread and in others."""
    waiting = list(places)
    threads = torch.get_num_threads()

    def work() -> None:
        torch.set_num_threads(1)
        while True:
            try:
                place = waiting.pop()
            except IndexError:
                return
            do(place)

    futures = [pool.submit(work) for _ in range(min(threads, len(waiting)) - 1)]
    try:
        work()
        for other in futures:
            other.result()
    finally:
        waiting.clear()
        wait(futures)
        torch.set_num_threads(threads)


def _embed(share: ParallelFor, columns: Columns, features: Features) -> Tensor:
    numeric_BF, codes_BG = features.numeric_NF, features.categorical_NG
    if codes_BG.numel() < WORTH_LOOKUPS:
        return one_by_one(columns, features)
    weights = [columns.table(place) for place in range(len(columns.embeddings))]
    as_made = (numeric_BF.shape[1], codes_BG.shape[1]) == (columns.numeric, sum(columns.codes))
    plain = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in (numeric_BF, *weights))
    if not as_made or not plain:
        return one_by_one(columns, features)
    # The last comes first, as in an ordinary backward pass, because this determines the order in which a weight's gradients are
    # added.
    joined_BW: Tensor = _Lookup.apply(share, numeric_BF, codes_BG, *reversed(weights))  # type: ignore[no-untyped-call]
    return joined_BW


class _Lookup(torch.autograd.Function):
    """Numbers followed by the rows of the tables, (B, F + G E)."""

    @staticmethod
    def forward(ctx: Any, share: ParallelFor, numeric_BF: Tensor, codes_BG: Tensor, *last_first: Tensor) -> Tensor:
        weights = last_first[::-1]
        codes_GB = codes_BG.t().contiguous()
        ctx.share, ctx.shapes = share, [weight.shape for weight in weights]
        ctx.ends = list(accumulate((width for _, width in ctx.shapes), initial=numeric_BF.shape[1]))
        ctx.save_for_backward(codes_GB)
        joined_BW = numeric_BF.new_empty(len(numeric_BF), ctx.ends[-1])
        joined_BW[:, : ctx.ends[0]] = numeric_BF

        def look_up(place: int) -> None:
            part_BE = joined_BW[:, ctx.ends[place] : ctx.ends[place + 1]]
            torch.index_select(weights[place].detach(), 0, codes_GB[place], out=part_BE)

        share(look_up, _smallest_first(ctx.shapes))
        return joined_BW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BW: Tensor) -> tuple[Tensor | None, ...]:
        (codes_GB,) = ctx.saved_tensors
        grads: list[Tensor | None] = [None for _ in ctx.shapes]

        def add_up(place: int) -> None:
            part_BE = grad_BW[:, ctx.ends[place] : ctx.ends[place + 1]]
            grads[place] = part_BE.new_zeros(ctx.shapes[place]).index_add_(0, codes_GB[place], part_BE)

        needed = ctx.needs_input_grad[3:][::-1]
        ctx.share(add_up, (place for place in _smallest_first(ctx.shapes) if needed[place]))
        grad_BF = grad_BW[:, : ctx.ends[0]] if ctx.needs_input_grad[1] else None
        return None, grad_BF, None, *reversed(grads)


def _smallest_first(shapes: Sequence[torch.Size]) -> list[int]:
    return sorted(range(len(shapes)), key=lambda place: shapes[place].numel())
