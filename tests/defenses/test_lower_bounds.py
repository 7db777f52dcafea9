"""Each epsilon that a defence claims is above its empirical lower bound, by draws through the defence itself.

A bound holds with 1 - 1e-7, and every draw is seeded. Each test can fail: twice the claim is found to exceed it.
"""

import numpy as np
import pytest
import torch
from lower_bounds import epsilon_lower_bound, epsilon_lower_bound_of_outcomes

from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.gaussian_labels import GaussianLabels
from tallystick.defenses.label_dp import LabelDP
from tallystick.defenses.noise import NoiseStream
from tallystick.privacy.composition import total_epsilon
from tallystick.privacy.ledger import Ledger

ROWS = 100_000
DELTA = 0.1  # large, so that an event at the edge of the guarantee is drawn often enough to be counted
NEAR = 0.75  # a bound must reach so much of the claim, or it could not distinguish a right defence from a weak one


def bytes_of(seed):
    return np.random.default_rng(seed).bytes


def noise(*, side, step=0):
    return NoiseStream(bytes([side]) * 16, step=step)


def charged(event, *, delta=0.0):
    return total_epsilon([event], delta=delta, unit=event.unit)


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 1.0), (5, 1.0), (2, 0.5)])
def test_randomised_response_of_one_label(classes, epsilon):
    """Return a row whose label is 0 and the same row with label 1."""

    def bound(budget):
        defense = LabelDP(epsilon=budget)
        sides = (torch.full((ROWS,), label) for label in (0, 1))
        drawn = [defense(labels_N, classes=classes, random_bytes=bytes_of(seed)) for seed, labels_N in enumerate(sides)]
        return epsilon_lower_bound_of_outcomes(*(each_N.numpy() for each_N in drawn))

    claimed = charged(LabelDP(epsilon=epsilon).guarantee().event)
    assert NEAR * epsilon < bound(epsilon) <= claimed == epsilon < bound(2 * epsilon)


def test_gaussian_noise_on_one_label():
    """Send rows of both labels through one call, so that the share of positives, which all targets read, is the same."""

    def bound(epsilon):
        labels_N = (torch.arange(2 * ROWS) % 2).double()
        target_N = GaussianLabels(epsilon=epsilon, delta=DELTA)(labels_N, classes=2, random_bytes=bytes_of(0)).numpy()
        return epsilon_lower_bound(target_N[1::2], target_N[::2], DELTA)

    claimed = charged(GaussianLabels(epsilon=1.0, delta=DELTA).guarantee().event, delta=DELTA)
    assert claimed == pytest.approx(1.0, rel=0.01)
    assert NEAR < bound(1.0) <= 1.0 <= claimed < bound(2.0)


def gradients(label, width=2):
    """Return cut gradients of so many equal rows of one batch, whose own losses' gradients are longer than the clip."""
    cut_BD, weights_D = torch.zeros(ROWS, width, requires_grad=True), torch.linspace(1, 7, width)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(cut_BD @ weights_D, torch.full((ROWS,), label))
    return torch.autograd.grad(loss, cut_BD)[0], weights_D


def gradient_bound(epsilon, *, steps=1):
    """Return what so many steps show the feature party of a row's label; the top's weights separate the two."""
    defense, seen = GaussianGradients(epsilon=epsilon, delta=DELTA, clip=2.0), []
    for side, label in enumerate((1.0, 0.0)):
        grad_BD, weights_D = gradients(label)
        labels_B = torch.full((ROWS,), label)
        sent = [defense(grad_BD, labels_B, generator=noise(side=side, step=step)) @ -weights_D for step in range(steps)]
        seen.append(torch.stack(sent).sum(0).numpy())
    return epsilon_lower_bound(*seen, DELTA)


def test_one_step_of_gaussian_gradients():
    assert NEAR < gradient_bound(1.0) <= 1.0 < gradient_bound(2.0)


def test_a_second_step_of_gaussian_gradients_is_not_within_the_epsilon_of_one():
    """The reason why its guarantee says that the run has none."""
    assert gradient_bound(1.0, steps=2) > 1.0


def test_a_run_of_gaussian_embeddings_costs_what_the_ledger_is_charged(tmp_path):
    """Worst neighbours, at opposite ends of the clip, are sent in each of four epochs. Sent in eight they exceed the charge."""
    epochs, defense = 4, GaussianEmbeddings(epsilon=1.0, delta=DELTA, clip=2.0)
    ends = torch.tensor([3.0, -6.0]), torch.tensor([-6.0, 12.0])  # both longer than the clip
    seen_N, bounds = [torch.zeros(ROWS), torch.zeros(ROWS)], []
    for step in range(2 * epochs):
        for side, end_D in enumerate(ends):
            seen_N[side] += defense(end_D.expand(ROWS, -1), generator=noise(side=side, step=step)) @ ends[0]
        if step + 1 in (epochs, 2 * epochs):
            bounds.append(epsilon_lower_bound(*(each_N.numpy() for each_N in seen_N), DELTA))

    ledger = Ledger.create(tmp_path / "ledger.sqlite", party="shop")
    ledger.spend("embeddings", defense.event(epochs), what="a run")
    claimed = ledger.total("embeddings", delta=DELTA, unit="record")
    assert claimed == defense.over(epochs)
    assert NEAR * claimed < bounds[0] <= claimed < bounds[1]
