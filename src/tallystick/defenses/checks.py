"""Refuse input that defences cannot use: strengths, gradients, labels. Shapes: N rows, B batch, D cut width."""

import math

from tallystick.errors import ConfigError, DataError
from tallystick.lazy_torch import Tensor, torch
from tallystick.privacy.events import check_epsilon

LEAST_EPSILON, MOST_EPSILON = 1e-6, 100.0


def check_positive(name: str, value: float) -> None:
    """Refuse a strength that is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value!r}; it must be a finite number above 0")


def check_defense_epsilon(name: str, epsilon: float) -> None:
    """Refuse an unusable epsilon, or one that 64-bit coins cannot distinguish from 0."""
    check_epsilon(epsilon)
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise ConfigError(f"{name}: epsilon is {epsilon!r}; it must lie between {LEAST_EPSILON:g} and {MOST_EPSILON:g}")


def check_between(name: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside the open interval."""
    if not low < value < high:
        raise ConfigError(f"{name} is {value!r}; it must lie between {low:g} and {high:g}, both excluded")


def check_gradients(grad_BD: Tensor, labels_B: Tensor) -> None:
    """Refuse cut gradients that are not a matrix of finite numbers with one row per label."""
    if grad_BD.dim() != 2 or not grad_BD.is_floating_point() or grad_BD.shape[1] == 0:
        raise DataError(f"cut gradients have shape {tuple(grad_BD.shape)} and type {grad_BD.dtype}; expected floats (B, D)")
    check_labels(labels_B, len(grad_BD))
    # A sum is finite only if all terms are, except for an overflow, which the slow check then rules out.
    if not bool(grad_BD.sum(dtype=torch.float64).isfinite()):
        wrong_B = ~grad_BD.isfinite().all(dim=1)
        if bool(wrong_B.any()):
            raise DataError(
                f"cut gradients: NaN or infinite in {int(wrong_B.sum())} of {len(grad_BD)} rows, the first is row "
                f"{int(wrong_B.nonzero()[0])} of the batch; lower training.learning_rate, or look for NaN among the columns"
            )


def check_embeddings(cut_BD: Tensor) -> None:
    """Refuse cut embeddings that are not a matrix of finite numbers."""
    if cut_BD.dim() != 2 or not cut_BD.is_floating_point() or cut_BD.shape[1] == 0:
        raise DataError(f"cut embeddings have shape {tuple(cut_BD.shape)} and type {cut_BD.dtype}; expected floats (B, D)")
    if not bool(cut_BD.detach().sum(dtype=torch.float64).isfinite()) and not bool(cut_BD.isfinite().all()):
        raise DataError("cut embeddings: NaN or infinite; lower training.learning_rate, or look for NaN among the columns")


def check_labels(labels_B: Tensor, rows: int) -> None:
    """Refuse labels that are not one number per row, or not all finite."""
    if labels_B.shape != (rows,):
        raise DataError(f"labels have shape {tuple(labels_B.shape)}; expected one label for each of {rows} rows")
    if labels_B.is_floating_point() and not bool(labels_B.isfinite().all()):
        raise DataError(f"labels: NaN or infinite in {int((~labels_B.isfinite()).sum())} of {rows} rows; leave them out")


def positives(labels_B: Tensor, defense: str) -> Tensor:
    """Return which rows are positive. It refuses labels other than 0 and 1."""
    positive_B = labels_B == 1
    wrong_B = ~(positive_B | (labels_B == 0))
    if bool(wrong_B.any()):
        raise DataError(
            f"{defense} needs labels 0 and 1; found {float(labels_B[wrong_B][0]):g} "
            f"in {int(wrong_B.sum())} of {len(labels_B)} rows"
        )
    return positive_B


def class_numbers(labels_N: Tensor, classes: int, defense: str) -> Tensor:
    """Return labels as int64 class numbers. It refuses anything but whole numbers from 0 to ``classes`` - 1."""
    if classes < 2:
        raise ConfigError(f"{defense}: classes is {classes}; it must be at least 2")
    check_labels(labels_N, len(labels_N))
    numbers_N = labels_N.to(torch.int64)
    wrong_N = (numbers_N != labels_N) | (numbers_N < 0) | (numbers_N >= classes)
    if bool(wrong_N.any()):
        raise DataError(
            f"{defense} needs class numbers 0 to {classes - 1}; found {float(labels_N[wrong_N][0]):g} "
            f"in {int(wrong_N.sum())} of {len(labels_N)} rows"
        )
    return numbers_N
