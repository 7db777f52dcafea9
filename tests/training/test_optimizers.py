"""Compare the optimizers with PyTorch's classes, bit for bit, and LAMB with its formula, number by number."""

import math

import pytest
import torch
from loops import training

from tallystick.training.optimizers import Lamb, kept_of_a_weight, optimizer_of, optimizer_over

PYTORCH = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@pytest.mark.parametrize("name", PYTORCH)
def test_steps_are_those_of_pytorch(name):
    how = training(optimizer=name, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(size, generator=generator) for size in ((7, 3), (5,), (2, 2))]
    ours, theirs = ([torch.nn.Parameter(weight.clone()) for weight in start] for _ in range(2))
    optimizer = optimizer_over(how, {1.0: ours[:2], 0.3: ours[2:]})
    pytorch = PYTORCH[name]([{"params": theirs[:2]}, {"params": theirs[2:]}], lr=1.0, weight_decay=0.1, fused=True)
    for step in range(1, 6):
        rate = 0.1 / step
        pytorch.param_groups[0]["lr"], pytorch.param_groups[1]["lr"] = rate, 0.3 * rate
        for place, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            if place != 1 or step != 2:  # a weight without a gradient stays
                our.grad = torch.randn(our.shape, generator=generator)
                their.grad = our.grad.clone()
        optimizer.step(rate)
        pytorch.step()
        optimizer.zero_grad()
        pytorch.zero_grad()
        assert all(torch.equal(our, their) for our, their in zip(ours, theirs, strict=True))
        assert all(weight.grad is None for weight in ours)
    for our, their in zip(ours, theirs, strict=True):
        kept, expected = optimizer.kept[our], pytorch.state[their]
        assert kept.keys() == kept_of_a_weight(how).keys()
        assert all(torch.equal(kept[key], expected[key]) for key in kept)


def test_a_module_without_weights_has_no_optimizer():
    assert optimizer_of(training(), torch.nn.ReLU()) is None
    assert optimizer_of(training(), torch.nn.Linear(2, 2), {"": 0.0}) is None


def slow(weight, gradients, *, lr, decay):
    mean, square = [0.0] * len(weight), [0.0] * len(weight)
    weight = list(weight)
    for gradient in gradients:
        step = []
        for i, slope in enumerate(gradient):
            mean[i] = 0.9 * mean[i] + 0.1 * slope
            square[i] = 0.999 * square[i] + 0.001 * slope**2
            step.append(mean[i] / (math.sqrt(square[i]) + 1e-6) + decay * weight[i])
        of_weight = min(10.0, math.sqrt(sum(each**2 for each in weight)))
        of_step = math.sqrt(sum(each**2 for each in step))
        ratio = of_weight / of_step if of_weight > 0 and of_step > 0 else 1.0
        weight = [each - lr * ratio * change for each, change in zip(weight, step, strict=True)]
    return weight


def steps_of(start, gradients, *, lr=0.01, decay=0.1):
    weight = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = Lamb({1.0: [weight]}, weight_decay=decay)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step(lr)
    return weight.detach()


def test_steps_of_lamb_are_those_of_the_formula():
    gradients = torch.randn(7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    for start in ([0.3, -1.0, 2.0, 0.0, 0.7], [30.0, -40.0, 0.0, 1.0, 2.0], [0.0] * 5):  # usual, over the limit, zeros
        expected = torch.tensor(slow(start, gradients, lr=0.01, decay=0.1), dtype=torch.float64)
        torch.testing.assert_close(steps_of(start, gradients), expected, rtol=1e-12, atol=1e-12)


def test_without_gradient_nothing_moves():
    weight = torch.nn.Parameter(torch.ones(2))
    Lamb({1.0: [weight]}).step(0.1)
    assert weight.tolist() == [1.0, 1.0]
