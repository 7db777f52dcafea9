"""Which of two candidates can one output exclude? Tried on all noise that claims an epsilon."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.noise import NoiseStream
from tallystick.privacy.exact import DiscreteGaussian
from tallystick.privacy.grid import GridGaussian

TRIES, WIDTH = 2_000, 16


def released(method, epsilon, values_BD, *, step=0):
    """Return what is sent of rows one by one, and the grid that it is claimed to be on."""
    noise = NoiseStream(bytes(32), step=step)
    if method == "embeddings":
        defense = GaussianEmbeddings(epsilon=epsilon, delta=1e-6, clip=1.0)
        grid = GridGaussian(radius=1.0, multiplier=defense.multiplier, width=values_BD.shape[1])
        return defense(values_BD, generator=noise), grid
    defense = GaussianGradients(epsilon=epsilon, delta=1e-6, clip=1.0)
    grid = GridGaussian(radius=1.0 / len(values_BD), multiplier=defense.deviation / 2, width=values_BD.shape[1])
    return defense(values_BD / len(values_BD), torch.zeros(len(values_BD)), generator=noise), grid


def reach(grid):
    """Return the largest possible noise, in steps."""
    parts = DiscreteGaussian.hiding(grid.deviation).parts
    return sum(factor * max(table.masses()) for factor, table in parts)


@pytest.mark.parametrize("method", ["embeddings", "gradients"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0])
def test_no_candidate_is_excluded_by_one_output(method, epsilon):
    """Either of two candidates can have sent every output, and its last bits favour neither.

    The last two and four bits are guessed right in half of 2,000 tries, within the bounds of a fair coin at a chance of 1e-7.
    """
    draws = torch.Generator().manual_seed(3)
    candidates = [torch.randn(TRIES, WIDTH, generator=draws) for _ in range(2)]
    is_first = torch.rand(TRIES, generator=draws) < 0.5
    sent_BD, grid = released(method, epsilon, torch.where(is_first[:, None], *candidates))
    integers_BD = sent_BD.double().numpy() / grid.step
    assert (integers_BD == np.rint(integers_BD)).all()
    rows = 1 if method == "embeddings" else TRIES
    needed = [integers_BD - grid.on_grid((each_BD / rows).numpy()) for each_BD in candidates]
    excluded = [(np.abs(each_BD) > reach(grid)).any(axis=1).sum() for each_BD in needed]
    assert excluded == [0, 0]
    low, high = binom(TRIES, 0.5).ppf([5e-8, 1 - 5e-8])
    for bits in (2, 4):  # multiples of these are no likelier than other noise
        multiples = [(each_BD % bits == 0).sum(axis=1) for each_BD in needed]
        guess = (multiples[0] > multiples[1]) | ((multiples[0] == multiples[1]) & (np.arange(TRIES) % 2 == 0))
        assert low <= (guess == is_first.numpy()).sum() <= high


@pytest.mark.parametrize("epsilon", [30.0, 100.0])
def test_the_tail_reaches_as_far_as_a_large_epsilon_needs(epsilon):
    """What the far neighbour sends is possible for the near one, except with a chance far below delta."""
    ends = torch.full((TRIES, 1), 9.0), torch.full((TRIES, 1), -9.0)
    (sent_BD, grid), there = released("embeddings", epsilon, ends[0]), ends[1]
    assert np.abs(sent_BD.double().numpy() / grid.step - grid.on_grid(there.numpy())).max() <= reach(grid)
    beyond = (reach(grid) - 2 / grid.step) / grid.deviation  # deviations, on the far side
    assert math.erfc(beyond / math.sqrt(2)) < 1e-24
