"""Provide Adam for attacks that learn by gradients."""

from collections.abc import Iterable
from math import cos, pi

import torch
from torch import Tensor
from torch.optim.adam import adam

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Descent:
    """Adam (Kingma and Ba 2015) with decoupled weight decay. The rate can fall to 0 along a cosine.

    It calls the function behind PyTorch's class Adam, because the first object of that class imports PyTorch's compiler, which
    takes a tenth of a small run's processor time.

    Args:
        weights: updated in place by their gradients.
        rate: learning rate of the first step.
        steps: the rate falls to 0 over this many steps; None keeps it constant.
        decay: weight decay, in units of the rate.
    """

    def __init__(self, weights: Iterable[Tensor], *, rate: float, steps: int | None = None, decay: float = 0.0) -> None:
        self.weights = list(weights)
        self.rate, self.steps, self.decay, self.taken = rate, steps, decay, 0
        self.means, self.squares = ([torch.zeros_like(each) for each in self.weights] for _ in range(2))
        self.counts = [torch.zeros(()) for _ in self.weights]

    def down(self, loss: Tensor) -> None:
        """Take a step that lowers the loss."""
        self.step(torch.autograd.grad(loss, self.weights, materialize_grads=True))

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor]) -> None:
        """Take a step by these gradients."""
        share = 1.0 if self.steps is None else (1 + cos(pi * self.taken / self.steps)) / 2
        self.taken += 1
        adam(
            self.weights,
            [each.contiguous() for each in gradients],  # the fused kernel ignores strides
            self.means,
            self.squares,
            [],
            self.counts,
            fused=True,
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=share * self.rate,
            weight_decay=self.decay,
            eps=EPSILON,
            maximize=False,
        )
