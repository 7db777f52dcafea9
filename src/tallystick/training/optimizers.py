"""Implement the contract's optimizers by PyTorch's own functions, and LAMB.

The classes of ``torch.optim`` would work as well. But the first one that is made imports PyTorch's compiler, a second of
processor time in which a peer hears nothing, and one of their steps takes longer than the update of a small network itself. The
functions behind them do neither, and give the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from tallystick.config.sections import TrainingConfig

BETAS = (0.9, 0.999)
EPSILON, LAMB_EPSILON = 1e-8, 1e-6
LARGEST_NORM = 10.0


class Optimizer(ABC):
    """A rule that updates weights by their gradients, with a state for each weight.

    Args:
        by_share: the weights, grouped by their share of the learning rate.
        weight_decay: weight decay per step.
    """

    def __init__(self, by_share: Mapping[float, Sequence[nn.Parameter]], *, weight_decay: float = 0.0) -> None:
        self.weights = [weight for weights in by_share.values() for weight in weights]
        self.kept: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._by_share = by_share
        self._weight_decay = weight_decay

    @abstractmethod
    def begun(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the optimizer's initial state of a weight, all zeros."""

    @abstractmethod
    def _update(self, weights: list[Tensor], gradients: list[Tensor], state: list[dict[str, Tensor]], rate: float) -> None:
        """Update these weights and their state in place."""

    def zero_grad(self) -> None:
        """Delete the gradients."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take a step with this learning rate for all weights that have a gradient."""
        for share, of_share in self._by_share.items():
            weights = [weight for weight in of_share if weight.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if weight not in self.kept:
                    self.kept[weight] = self.begun(weight)
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            self._update([*weights], gradients, [self.kept[weight] for weight in weights], share * rate)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015). Weight decay is added to the gradients."""

    decoupled = False

    def begun(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the number of steps, and the means of gradients and of their squares, by PyTorch's names."""
        return {
            "step": torch.zeros((), device=weight.device),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }

    def _update(self, weights: list[Tensor], gradients: list[Tensor], state: list[dict[str, Tensor]], rate: float) -> None:
        means, squares, steps = ([each[name] for each in state] for name in ("exp_avg", "exp_avg_sq", "step"))
        adam(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            decoupled_weight_decay=self.decoupled,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=self._weight_decay,
            eps=EPSILON,
            maximize=False,
        )


class AdamW(Adam):
    """Adam with weight decay separate from the gradients (Loshchilov and Hutter 2019)."""

    decoupled = True


class Sgd(Optimizer):
    """Stochastic gradient descent, without momentum."""

    def begun(self, weight: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Return no state."""
        return {}

    def _update(self, weights: list[Tensor], gradients: list[Tensor], state: list[dict[str, Tensor]], rate: float) -> None:
        sgd(
            weights,
            gradients,
            [None for _ in state],
            fused=True,
            weight_decay=self._weight_decay,
            momentum=0.0,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


class Lamb(Optimizer):
    """LAMB, the optimizer of FedSim's experiments: Adam's step, scaled for each tensor by the norm of its weights.

    You et al. (2020), "Large batch optimization for deep learning", algorithm 2, as FedSim's authors ran it: moments are not
    corrected for their start at 0, and a norm of weights counts as at most 10. For a tensor of zeros the step is not scaled.
    Weight decay is added to a tensor's step in proportion to its weights.
    """

    def begun(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the means of gradients and of their squares."""
        return {"mean": torch.zeros_like(weight), "square": torch.zeros_like(weight)}

    def _update(self, weights: list[Tensor], gradients: list[Tensor], state: list[dict[str, Tensor]], rate: float) -> None:
        for weight, gradient, of_weight in zip(weights, gradients, state, strict=True):
            mean, square = of_weight["mean"], of_weight["square"]
            mean.lerp_(gradient, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            step = mean / square.sqrt().add_(LAMB_EPSILON) + self._weight_decay * weight
            norm, step_norm = weight.norm().clamp(max=LARGEST_NORM), step.norm()
            ratio = torch.where((norm > 0) & (step_norm > 0), norm / step_norm, 1.0)
            weight.sub_(step * (rate * ratio))


_OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "lamb": Lamb, "sgd": Sgd}


def optimizer_of(training: TrainingConfig, module: nn.Module, rates: Mapping[str, float] | None = None) -> Optimizer | None:
    """Build the contract's optimizer for a module's parameters. Return None for a module without parameters.

    Args:
        training: the contract's settings.
        module: the parameters' owner.
        rates: share of the learning rate by the prefix of a parameter's name; 0 freezes it; all others have the full rate.
    """
    by_share: dict[float, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        share = next((share for start, share in (rates or {}).items() if name.startswith(start)), 1.0)
        if share > 0:
            by_share.setdefault(share, []).append(parameter)
    return optimizer_over(training, by_share) if by_share else None


def optimizer_over(training: TrainingConfig, by_share: Mapping[float, Sequence[nn.Parameter]]) -> Optimizer:
    """Build the contract's optimizer for some weights, grouped by their share of the learning rate."""
    return _OPTIMIZERS[training.optimizer](by_share, weight_decay=training.weight_decay)


def kept_of_a_weight(training: TrainingConfig) -> dict[str, bool]:
    """Return the names of the contract's optimizer state of each weight, initially zeros, and whether it has the
    weight's shape.
    """
    state = optimizer_over(training, {}).begun(torch.zeros(1))
    return {name: value.ndim > 0 for name, value in state.items()}
