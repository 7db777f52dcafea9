"""LAMB against its formula, written out number by number."""

import math

import torch

from tallystick.training.lamb import Lamb


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
    optimizer = Lamb([weight], lr=lr, weight_decay=decay)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    return weight.detach()


def test_steps_are_those_of_the_formula():
    gradients = torch.randn(7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    for start in ([0.3, -1.0, 2.0, 0.0, 0.7], [30.0, -40.0, 0.0, 1.0, 2.0], [0.0] * 5):  # usual, over the limit, zeros
        expected = torch.tensor(slow(start, gradients, lr=0.01, decay=0.1), dtype=torch.float64)
        torch.testing.assert_close(steps_of(start, gradients), expected, rtol=1e-12, atol=1e-12)


def test_without_gradient_nothing_moves():
    weight = torch.nn.Parameter(torch.ones(2))
    Lamb([weight], lr=0.1).step()
    assert weight.tolist() == [1.0, 1.0]


def test_a_state_put_back_goes_on_alike():
    gradients = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    whole, first = (Lamb([weight], lr=0.1, weight_decay=0.01) for weight in weights)
    for gradient in gradients:
        weights[0].grad = gradient
        whole.step()
    for gradient in gradients[:3]:
        weights[1].grad = gradient
        first.step()
    second = Lamb([weights[1]], lr=0.1, weight_decay=0.01)
    second.load_state_dict(first.state_dict())
    for gradient in gradients[3:]:
        weights[1].grad = gradient
        second.step()
    assert torch.equal(*(weight.detach() for weight in weights))
