"""Fit a logistic head to known labels, for the few-label attack and the linear probe.

Shapes: N rows, D columns, C classes, O outputs (1 for two classes, else C).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, softplus

from tallystick.attacks.matrix import centred

DAMPED = 0.1  # damping, as a share of the bound's mean curvature


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """Weights and biases of one logit for two classes, or of one per class."""

    weight_DO: Tensor
    bias_O: Tensor

    def __call__(self, x_ND: Tensor) -> Tensor:
        """Return the log odds of class 1 (N,), or of each class against the rest (N, C)."""
        return log_odds(x_ND @ self.weight_DO.to(x_ND.dtype) + self.bias_O.to(x_ND.dtype))


def log_odds(logit_NO: Tensor) -> Tensor:
    """Return log odds of class 1 (one logit) or of each class against the rest, without rounding a probability to 0 or 1."""
    if logit_NO.shape[1] == 1:
        return logit_NO.squeeze(1)
    other_odds = [torch.cat([logit_NO[:, :c], logit_NO[:, c + 1 :]], dim=1).logsumexp(dim=1) for c in range(logit_NO.shape[1])]
    return logit_NO - torch.stack(other_odds, dim=1)


def fit_linear(x_ND: Tensor, label_N: Tensor, classes: int, *, penalty: float) -> LinearHead:
    """Minimise the mean cross-entropy plus ``penalty`` / 2 times the squared weights, by L-BFGS in float64.

    Args:
        x_ND: float64 features.
        label_N: int64 class numbers; if all are equal, the head is 0.
        classes: number of classes.
        penalty: greater than 0, so that a minimum exists; biases have no penalty.
    """
    outputs, width = (1 if classes == 2 else classes), x_ND.shape[1]
    zero = LinearHead(weight_DO=torch.zeros(width, outputs).double(), bias_O=torch.zeros(outputs).double())
    if len(label_N) == 0 or bool((label_N == label_N[0]).all()):
        return zero
    target_NO = (label_N[:, None] if classes == 2 else one_hot(label_N, classes)).double()
    # L-BFGS needs fewer steps if the loss has about the same curvature in every direction, so scale by a bound on its Hessian
    # (Böhning 1992). The damping is there because the curvature falls below this bound where classes are separated.
    bound_DD = x_ND.T @ x_ND / (4 * len(x_ND))
    bound_DD.diagonal().add_(penalty + DAMPED * bound_DD.diagonal().mean())
    factor_DD = torch.linalg.cholesky(bound_DD)

    def unpack(flat: NDArray[np.float64]) -> LinearHead:
        values = torch.from_numpy(flat.copy())
        walked_DO, bias_O = values[: width * outputs].view(width, outputs), values[width * outputs :]
        return LinearHead(weight_DO=torch.linalg.solve_triangular(factor_DD.T, walked_DO, upper=True), bias_O=bias_O)

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        head = unpack(flat)
        logit_NO = x_ND @ head.weight_DO + head.bias_O
        if classes == 2:
            loss = (softplus(logit_NO) - target_NO * logit_NO).mean()
            error_NO = torch.sigmoid(logit_NO) - target_NO
        else:
            loss = cross_entropy(logit_NO, label_N)
            error_NO = logit_NO.softmax(dim=1) - target_NO
        error_NO = error_NO / len(x_ND)
        slope_DO = x_ND.T @ error_NO + penalty * head.weight_DO
        value = float(loss + penalty / 2 * head.weight_DO.square().sum())
        along_DO = torch.linalg.solve_triangular(factor_DD, slope_DO, upper=False)
        return value, torch.cat([along_DO.flatten(), error_NO.sum(dim=0)]).numpy()

    start = np.zeros(width * outputs + outputs)
    return unpack(minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)


def standardised(x_ND: Tensor) -> Tensor:
    """Centre and scale each column by its own deviation, and cut at 10 deviations, as float64. A constant column becomes 0."""
    scaled_ND = centred(x_ND)
    deviation_D = torch.linalg.vector_norm(scaled_ND, dim=0) / len(x_ND) ** 0.5
    scaled_ND.div_(torch.where(deviation_D > 1e-6 * deviation_D.max(), deviation_D, torch.inf))
    return scaled_ND.clamp_(-10, 10)  # else a unit that is active on few rows would dominate them
