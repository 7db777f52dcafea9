"""Check and gather what attacks read from each step. A broken view is an error, never a low score.

Shapes: B rows of a step's batch, D cut width, N rows scored over a whole run, C classes.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from tallystick.attacks.label_inference.linear import standardised
from tallystick.attacks.matrix import k_means, rescaled
from tallystick.attacks.view import Received, Scores, View
from tallystick.errors import ConfigError, DataError


def matrices(view: View, target: Received) -> Iterator[Tensor]:
    """Yield each step's cut gradients or own cut embeddings, float64 (B, D).

    Raises DataError, naming the step, if they are missing, not a matrix with a row per example, or not all finite.
    """
    if view.received != "cut_gradient":
        raise DataError(f"label attack: the view's owner received {view.received}; only a feature party's view is attacked")
    for index, step in enumerate(view.steps):
        name = f"label attack: step {index} of the view (epoch {step.epoch})"
        matrix_BD = step.received_BD if target == "cut_gradient" else step.sent_BD
        if matrix_BD is None or matrix_BD.numel() == 0:
            raise DataError(f"{name} holds no {target}s; record them, or leave out the attacks that read them")
        if matrix_BD.ndim != 2 or len(matrix_BD) != len(step.rows_B):
            raise DataError(f"{name} has {target}s of shape {tuple(matrix_BD.shape)} for {len(step.rows_B)} rows")
        if not bool(torch.isfinite(matrix_BD).all()):
            raise DataError(f"{name} holds a {target} that is NaN or infinite; training diverged or the record is damaged")
        yield matrix_BD.double()


def observations(view: View, target: Received) -> tuple[Tensor, Tensor]:
    """Return the rows seen, in order, with the last cut embedding or the mean cut gradient of each, float32 (N, D).

    The last embedding comes from the most trained model. Gradients depend on the same label in all epochs, so their mean removes
    the noise of a defence. Each batch is first centred and divided by one scale, because between two batches the model changes
    and the rows do not. (On the Criteo sample this lifts clustering and model completion by 0.04 to 0.1 AUC in early epochs, and
    changes nothing later.) A batch of one row becomes 0.
    """
    if len(view.steps) == 1:
        (step,) = view.steps
        if target not in step.observed:
            (matrix_BD,) = matrices(view, target)
            order_B = step.rows_B.argsort()
            step.observed[target] = step.rows_B[order_B], rescaled(matrix_BD).float()[order_B]
        return step.observed[target]
    sum_ND, count_N = torch.zeros(0, 0), torch.zeros(view.rows)
    for step, matrix_BD in zip(view.steps, matrices(view, target), strict=True):
        if not len(sum_ND):
            sum_ND = torch.zeros(view.rows, matrix_BD.shape[1])
        if matrix_BD.shape[1] != sum_ND.shape[1]:
            raise DataError(f"label attack: {target}s of width {matrix_BD.shape[1]} follow some of width {sum_ND.shape[1]}")
        if target == "cut_embedding":
            sum_ND[step.rows_B], count_N[step.rows_B] = 0.0, 0.0
        sum_ND[step.rows_B] += rescaled(matrix_BD).float()
        count_N[step.rows_B] += 1
    rows = torch.nonzero(count_N).squeeze(1)
    return rows, sum_ND[rows] / count_N[rows, None]


def scaled_observations(view: View, target: Received, columns: Literal["alike", "each"]) -> tuple[Tensor, Tensor]:
    """Scale ``observations``, float32: all columns by one scale ("alike") or each by its own deviation. The result is cached."""
    rows, x_ND = observations(view, target)
    if len(view.steps) == 1 and columns == "alike":  # already scaled
        return rows, x_ND
    cache = view.steps[0].observed if len(view.steps) == 1 else {}
    if (target, columns) not in cache:
        cache[target, columns] = rows, (rescaled if columns == "alike" else standardised)(x_ND).float()
    return cache[target, columns]


def clusters_of_run(view: View, target: Received, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the rows seen, in order, and their clusters, int64 (N,): one per class, by k-means on ``observations``."""
    rows, x_ND = observations(view, target)
    cache = view.steps[0].observed if len(view.steps) == 1 else {}
    clustering = "clusters", target, view.classes, generator.get_state().numpy().tobytes()
    if clustering not in cache:
        cache[clustering] = rows, k_means(x_ND, view.classes, generator=generator)
    return cache[clustering]


def known_rows(view: View) -> Tensor:
    """Return the class of every row whose label the attacker knows in some step, and -1 for other rows, int64 (rows,)."""
    known_N = torch.full((view.rows,), -1, dtype=torch.int64)
    for index, step in enumerate(view.steps):
        label_B = view.known_label(index)
        told_B = label_B >= 0
        known_N[step.rows_B[told_B]] = label_B[told_B]
    return known_N


def unlabelled_per_step(view: View, values: Sequence[Tensor], *, named: bool = True) -> Scores:
    """Make Scores of one value (or one per class) per row and step, without the rows whose label the attacker knows there."""
    keep = [view.known_label(index) < 0 for index in range(len(view.steps))]
    return Scores(
        rows=tuple(step.rows_B[keep_B] for step, keep_B in zip(view.steps, keep, strict=True)),
        values=tuple(value[keep_B].double() for value, keep_B in zip(values, keep, strict=True)),
        named=named,
    )


def whole_run(view: View, rows: Tensor, values: Tensor, *, named: bool = True) -> Scores:
    """Make Scores of one group of rows, without those whose label the attacker knows in any step."""
    keep_N = known_rows(view)[rows] < 0
    return Scores(rows=(rows[keep_N],), values=(values[keep_N].double(),), named=named)


def binary_only(view: View, attack: str, instead: str) -> None:
    """Raise ConfigError if the target has more than two classes."""
    if view.classes != 2:
        raise ConfigError(f"{attack}: the target has {view.classes} classes, and this attack needs two; use {instead}")
