"""Compare Marvell with a generic constrained optimiser, Gaussian KL from matrices, and its own samples, with every
awkward batch.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tallystick.defenses.marvell import Marvell, MarvellNoise, TwoClasses, moments, optimal_noise, sum_kl
from tallystick.defenses.noise import NoiseStream
from tallystick.errors import ConfigError, DataError

shares = st.floats(0.01, 0.99)
magnitudes = st.floats(-4, 4).map(lambda exponent: 10**exponent)
widths = st.sampled_from([1, 2, 3, 16, 128, 1024])
problems = st.builds(
    lambda u, v, width, share: TwoClasses(u=u, v=v, gap=1.0, width=width, positive_share=share),
    magnitudes,
    magnitudes,
    widths,
    shares,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spent(classes: TwoClasses, noise: MarvellNoise) -> float:
    across = classes.width - 1
    negative, positive = noise.lam10 + across * noise.lam20, noise.lam11 + across * noise.lam21
    return (1 - classes.positive_share) * negative + classes.positive_share * positive


def generic_optimum(classes: TwoClasses, power: float, rng: np.random.Generator, starts: int) -> float:
    """Return the least sum of KLs that SLSQP finds from several starts, over all four variances, made exactly feasible."""
    p, across = classes.positive_share, classes.width - 1
    cost = np.array([1 - p, (1 - p) * across, p, p * across])

    def value(lam: np.ndarray) -> float:
        noisy = dict(zip(("lam10", "lam20", "lam11", "lam21"), lam * power, strict=True))
        return math.log(sum_kl(classes, **noisy) + 1e-300)

    found = math.inf
    for _ in range(starts):
        start = rng.dirichlet(np.full(4, 0.5)) / np.maximum(cost, 1e-12)
        start[1], start[3] = min(start[:2]), min(start[2:])
        result = minimize(
            value,
            start / (cost @ start),
            method="SLSQP",
            bounds=[(0, None)] * 4,
            constraints=[
                {"type": "eq", "fun": lambda lam: cost @ lam - 1},
                {"type": "ineq", "fun": lambda lam: np.array([lam[0] - lam[1], lam[2] - lam[3]])},
            ],
            options={"ftol": 1e-14, "maxiter": 500},
        )
        lam = np.clip(result.x, 0, None)
        lam[1], lam[3] = min(lam[:2]), min(lam[2:])
        if np.isfinite(lam).all() and cost @ lam > 0:
            found = min(found, math.exp(value(lam / (cost @ lam))))
    return found


@pytest.mark.long
def test_no_generic_optimiser_finds_less_noise_for_the_same_power() -> None:
    rng = np.random.default_rng(7)
    ratios = []
    for _ in range(40):
        classes = TwoClasses(
            u=10 ** rng.uniform(-3, 2),
            v=10 ** rng.uniform(-3, 2),
            gap=1.0,
            width=int(rng.choice([1, 2, 8, 128])),
            positive_share=rng.uniform(0.02, 0.98),
        )
        power = 10 ** rng.uniform(-1.5, 2.5)
        theirs = generic_optimum(classes, power, rng, starts=3)
        ours = optimal_noise(classes, power=power)
        assert ours.sum_kl <= theirs * (1 + 1e-6), (classes, power)
        ratios.append(theirs / ours.sum_kl)
    # The oracle is strong: it mostly finds the same optimum.
    assert np.median(ratios) < 1 + 1e-5


@given(problems, magnitudes)
def test_the_power_is_spent_exactly_and_no_direction_across_gets_more_than_the_one_along(
    classes: TwoClasses, power: float
) -> None:
    noise = optimal_noise(classes, power=power)
    assert spent(classes, noise) == pytest.approx(power, rel=1e-9)
    assert noise.lam10 >= noise.lam20 >= 0
    assert noise.lam11 >= noise.lam21 >= 0
    assert min(noise.lam20, noise.lam21) == 0


@given(problems, magnitudes)
def test_swapping_the_classes_swaps_the_noise(classes: TwoClasses, power: float) -> None:
    other = dataclasses.replace(classes, u=classes.v, v=classes.u, positive_share=1 - classes.positive_share)
    noise, mirrored = optimal_noise(classes, power=power), optimal_noise(other, power=power)
    assert mirrored.sum_kl == pytest.approx(noise.sum_kl, rel=1e-9)


@given(problems, st.floats(-30, 30), magnitudes)
def test_noise_scales_with_the_squared_size_of_gradients(classes: TwoClasses, exponent: float, power: float) -> None:
    scale = 10**exponent
    scaled = dataclasses.replace(classes, u=classes.u * scale, v=classes.v * scale, gap=scale)
    noise, other = optimal_noise(classes, power=power), optimal_noise(scaled, power=power * scale)
    assert other.sum_kl == pytest.approx(noise.sum_kl, rel=1e-6)


@given(problems, magnitudes)
def test_more_power_never_tells_more(classes: TwoClasses, power: float) -> None:
    assert optimal_noise(classes, power=2 * power).sum_kl <= optimal_noise(classes, power=power).sum_kl * (1 + 1e-9)


def gaussian_kl(difference_D: np.ndarray, covariance0_DD: np.ndarray, covariance1_DD: np.ndarray) -> float:
    inverse_DD = np.linalg.inv(covariance1_DD)
    _, log0 = np.linalg.slogdet(covariance0_DD)
    _, log1 = np.linalg.slogdet(covariance1_DD)
    distance = difference_D @ inverse_DD @ difference_D
    return float(np.trace(inverse_DD @ covariance0_DD) + distance - len(difference_D) + log1 - log0) / 2


def noise_covariance(noise: MarvellNoise, direction_D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    along_DD, all_DD = np.outer(direction_D, direction_D), np.eye(len(direction_D))
    return tuple(  # type: ignore[return-value]
        (lam1 - lam2) * along_DD + lam2 * all_DD for lam1, lam2 in ((noise.lam10, noise.lam20), (noise.lam11, noise.lam21))
    )


def batch(seed: int = 0, rows: int = 400, width: int = 6, share: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    """Make gradients of a mean loss: tiny, two classes of different spread around different means."""
    labels_B = (torch.arange(rows) < share * rows).float()
    spread_B1 = 0.3 + labels_B[:, None]
    grad_BD = torch.randn(rows, width, generator=generator(seed), dtype=torch.float64) * spread_B1
    grad_BD += labels_B[:, None] * torch.linspace(1, 2, width, dtype=torch.float64)
    return grad_BD / 8192, labels_B


def test_reported_sum_kl_is_that_of_the_two_gaussians() -> None:
    grad_BD, labels_B = batch()
    noise, direction_D = Marvell(power=2.0).plan(grad_BD, labels_B == 1)
    classes, difference_D = moments(grad_BD, labels_B == 1)
    assert direction_D is not None
    extra0_DD, extra1_DD = noise_covariance(noise, direction_D.numpy())
    identity_DD = np.eye(classes.width)
    covariance0_DD, covariance1_DD = classes.u * identity_DD + extra0_DD, classes.v * identity_DD + extra1_DD
    gap_D = difference_D.numpy()
    both = gaussian_kl(gap_D, covariance0_DD, covariance1_DD) + gaussian_kl(gap_D, covariance1_DD, covariance0_DD)
    assert noise.sum_kl == pytest.approx(both, rel=1e-9)


def test_moments_are_those_of_the_classes() -> None:
    grad_BD, labels_B = batch()
    classes, difference_D = moments(grad_BD, labels_B == 1)
    negative_BD, positive_BD = grad_BD[labels_B == 0].numpy(), grad_BD[labels_B == 1].numpy()
    assert classes.u == pytest.approx(negative_BD.var(axis=0).mean(), rel=1e-9)
    assert classes.v == pytest.approx(positive_BD.var(axis=0).mean(), rel=1e-9)
    assert np.allclose(difference_D.numpy(), positive_BD.mean(axis=0) - negative_BD.mean(axis=0), rtol=1e-9)
    assert classes.positive_share == pytest.approx(0.2)


@pytest.mark.parametrize("stream", [False, True])
def test_samples_have_the_planned_covariance_and_reach_the_reported_sum_kl(stream: bool) -> None:
    """10 batches of 40 rows, each 400 times: 32,000 noise vectors of the smaller class. A covariance entry has
    a standard error of at most sqrt(2 / 32,000) = 0.8 % of the largest variance; 4 % is five of them, and with 72 entries the
    chance of failing is below 1e-4."""
    grad_BD, labels_B = batch(rows=40)
    grad_BD, labels_B = grad_BD.repeat(400, 1), labels_B.repeat(400)
    positive_B = labels_B == 1
    defense = Marvell(power=1.0)
    noise, direction_D = defense.plan(grad_BD, positive_B)
    assert direction_D is not None
    secret = b"a secret of sixteen bytes, or more"
    noisy = [
        defense(grad_BD, labels_B, generator=NoiseStream(secret, step=step) if stream else generator(step)) - grad_BD
        for step in range(10)
    ]
    empirical = []
    for rows_B, expected_DD in zip((~positive_B, positive_B), noise_covariance(noise, direction_D.numpy()), strict=True):
        drawn_SD = torch.cat([part_BD[rows_B] for part_BD in noisy]).numpy()
        covariance_DD = drawn_SD.T @ drawn_SD / len(drawn_SD)
        assert np.abs(covariance_DD - expected_DD).max() < 0.04 * expected_DD.max()
        empirical.append(covariance_DD)
    classes, difference_D = moments(grad_BD, positive_B)
    identity_DD, gap_D = np.eye(classes.width), difference_D.numpy()
    covariance0_DD, covariance1_DD = classes.u * identity_DD + empirical[0], classes.v * identity_DD + empirical[1]
    both = gaussian_kl(gap_D, covariance0_DD, covariance1_DD) + gaussian_kl(gap_D, covariance1_DD, covariance0_DD)
    assert both == pytest.approx(noise.sum_kl, rel=0.05)


@settings(max_examples=30)
@given(st.floats(1e-4, 4.0), st.integers(0, 100))
def test_dynamic_mode_keeps_the_sum_kl_below_its_limit_without_wasting_power(limit: float, seed: int) -> None:
    grad_BD, labels_B = batch(seed)
    noise, _ = Marvell(max_sum_kl=limit).plan(grad_BD, labels_B == 1)
    assert noise.sum_kl <= limit
    assert noise.error_bound >= 0.5 - math.sqrt(limit) / 4 - 1e-12
    classes, _ = moments(grad_BD, labels_B == 1)
    power = spent(classes, noise)
    if power > 1.01 * classes.gap:
        assert optimal_noise(classes, power=power / 1.5).sum_kl > limit


def test_bounds_hold_for_the_best_detector_between_two_gaussians() -> None:
    """For N(0, 1) and N(d, 1) the best error and AUC are known: both bounds must be on the safe side."""
    normal = torch.distributions.Normal(0.0, 1.0)
    for distance in (0.1, 0.5, 1.0, 2.0, 5.0):
        noise = MarvellNoise(lam10=0.0, lam20=0.0, lam11=0.0, lam21=0.0, sum_kl=distance**2)
        assert noise.error_bound <= float(normal.cdf(torch.tensor(-distance / 2)))
        assert noise.auc_bound >= float(normal.cdf(torch.tensor(distance / math.sqrt(2))))


def mean_square(defense: Marvell, grad_BD: torch.Tensor, labels_B: torch.Tensor) -> float:
    """Return the mean squared norm of what is added to a row, over 300 batches."""
    added = [(defense(grad_BD, labels_B, generator=generator(seed)) - grad_BD).square().sum(dim=1).mean() for seed in range(300)]
    return float(torch.stack(added).mean())


AWKWARD: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "only negatives": (batch()[0][:80], torch.zeros(80)),
    "only positives": (batch()[0][:80], torch.ones(80)),
    "a single row": (batch()[0][:1], torch.ones(1)),
    "equal gradients": (batch()[0][:1].repeat(80, 1), (torch.arange(80) < 8).float()),
    "equal means": (
        torch.cat([torch.eye(6, dtype=torch.float64), -torch.eye(6, dtype=torch.float64)] * 2),
        (torch.arange(24) < 12).float(),
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("strength", [{"power": 4.0}, {"max_sum_kl": 0.16}])
def test_a_batch_without_a_difference_gets_isotropic_noise_in_units_of_its_largest_gradient(
    name: str, strength: dict[str, Any]
) -> None:
    """A single row in 300 draws of 6 coordinates: standard error sqrt(2 / 1,800) = 3.3 %; 20 % is six of them (chance 1e-9)."""
    grad_BD, labels_B = AWKWARD[name]
    largest = float(grad_BD.square().sum(dim=1).max())
    expected = 4.0 * largest if "power" in strength else 6 * largest / 0.16
    assert mean_square(Marvell(**strength), grad_BD, labels_B) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("strength", [{"power": 4.0}, {"max_sum_kl": 0.16}])
def test_one_positive_is_hidden_among_the_negatives(strength: dict[str, Any]) -> None:
    grad_BD, _ = batch()
    labels_B = torch.zeros(len(grad_BD))
    labels_B[17] = 1
    grad_BD[17] *= 20
    noise, _ = Marvell(**strength).plan(grad_BD, labels_B == 1)
    assert math.isfinite(noise.sum_kl)
    assert noise.lam21 > 0  # the positive's own spread is 0, so it needs noise in all directions
    if "max_sum_kl" in strength:
        assert noise.sum_kl <= 0.16


def test_two_rows_one_of_each_class() -> None:
    grad_BD = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], dtype=torch.float64)
    noise, _ = Marvell(power=4.0).plan(grad_BD, torch.tensor([False, True]))
    # Without spread the classes differ along the line only, so it gets all power, half for each class, |difference|^2 = 5.
    assert noise.lam10 == pytest.approx(20)
    assert noise.lam11 == pytest.approx(20)
    assert noise.sum_kl == pytest.approx(5 / 20)


def test_zero_gradients_are_sent_as_they_are_and_an_empty_batch_too() -> None:
    zeros_BD, labels_B = torch.zeros(10, 4), (torch.arange(10) < 3).float()
    assert torch.equal(Marvell(power=4.0)(zeros_BD, labels_B, generator=generator()), zeros_BD)
    empty_BD = torch.zeros(0, 4)
    assert Marvell(power=4.0)(empty_BD, torch.zeros(0), generator=generator()).shape == (0, 4)


def test_float32_in_and_out_and_one_generator_gives_the_same_bits() -> None:
    grad_BD, labels_B = batch()
    first, second = (Marvell(power=4.0)(grad_BD.float(), labels_B, generator=generator(3)) for _ in range(2))
    assert first.dtype == torch.float32
    assert torch.equal(first, second)
    assert not torch.equal(first, Marvell(power=4.0)(grad_BD.float(), labels_B, generator=generator(4)))


def test_tiny_float32_gradients_keep_their_noise() -> None:
    """Squares of 1e-25 are 0 in float32 (1e-50), so everything is planned in float64."""
    grad_BD, labels_B = batch()
    small_BD = (grad_BD / grad_BD.abs().max() * 1e-25).float()
    noisy_BD = Marvell(power=4.0)(small_BD, labels_B, generator=generator())
    gap = moments(small_BD.double(), labels_B == 1)[0].gap
    assert float((noisy_BD - small_BD).double().square().sum(dim=1).mean()) == pytest.approx(4 * gap, rel=0.5)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "give exactly one"),
        ({"power": 1.0, "max_sum_kl": 0.1}, "give exactly one"),
        ({"power": 0.0}, "marvell: power is 0.0; it must be a finite number above 0"),
        ({"power": math.nan}, "power is nan"),
        ({"power": math.inf}, "power is inf"),
        ({"max_sum_kl": 5.0}, "max_sum_kl is 5.0"),
        ({"max_sum_kl": 1e-9}, "max_sum_kl is 1e-09"),
    ],
)
def test_strengths_out_of_range_are_refused(keys: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Marvell(**keys)


def test_nan_other_labels_and_other_shapes_are_refused() -> None:
    grad_BD, labels_B = batch()
    broken_BD = grad_BD.clone()
    broken_BD[5, 2] = math.nan
    with pytest.raises(DataError, match=r"cut gradients: NaN or infinite in 1 of 400 rows, the first is row 5"):
        Marvell(power=1.0)(broken_BD, labels_B, generator=generator())
    with pytest.raises(DataError, match=r"marvell needs labels 0 and 1; found 2 in 80 of 400 rows"):
        Marvell(power=1.0)(grad_BD, 2 * labels_B, generator=generator())
    with pytest.raises(DataError, match="expected one label for each of 400 rows"):
        Marvell(power=1.0)(grad_BD, labels_B[:7], generator=generator())
    with pytest.raises(DataError, match=r"shape \(400,\)"):
        Marvell(power=1.0)(grad_BD[:, 0], labels_B, generator=generator())
