"""Isotropic noise and the per-step Gaussian mechanism: size, clipping, calibration; and the stream of noise."""

import math
import secrets

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_mechanism
from scipy.stats import chi2, kstest

from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.isotropic import Isotropic
from tallystick.defenses.noise import NoiseStream, standard_normal, uniform
from tallystick.errors import ConfigError, DataError

SECRET = b"sixteen bytes or more"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(rows: int = 2_000, width: int = 8) -> torch.Tensor:
    return torch.randn(rows, width, generator=generator(99), dtype=torch.float64) / rows


@pytest.mark.parametrize("power", [0.5, 25.0])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_isotropic_noise_has_the_power_it_says(power: float, scale: float) -> None:
    """16,000 squared normals: relative standard error 1.1 %; 6 % is more than five of them (chance 1e-7)."""
    grad_BD = gradients() * scale
    added_BD = Isotropic(power=power)(grad_BD, torch.zeros(2_000), generator=generator()) - grad_BD
    largest = float(grad_BD.square().sum(dim=1).max())
    assert float(added_BD.square().sum(dim=1).mean()) == pytest.approx(power * largest, rel=0.06)


def test_isotropic_noise_does_not_read_labels_and_covers_every_batch() -> None:
    grad_BD = gradients(5)
    for labels_B in (torch.zeros(5), torch.ones(5), torch.linspace(-3, 3, 5)):
        sent_BD = Isotropic(power=1.0)(grad_BD, labels_B, generator=generator())
        assert torch.equal(sent_BD, Isotropic(power=1.0)(grad_BD, torch.zeros(5), generator=generator()))
        assert bool((sent_BD != grad_BD).all())
    equal_BD = torch.ones(5, 3)
    assert bool((Isotropic(power=1.0)(equal_BD, torch.zeros(5), generator=generator()) != equal_BD).all())
    zeros_BD = torch.zeros(5, 3)
    assert torch.equal(Isotropic(power=1.0)(zeros_BD, torch.zeros(5), generator=generator()), zeros_BD)
    assert Isotropic(power=1.0)(torch.zeros(0, 3), torch.zeros(0), generator=generator()).shape == (0, 3)


def test_gaussian_clips_the_gradient_of_a_rows_own_loss() -> None:
    """The noise depends on the generator alone, so the difference from zero gradients under the same noise is the
    clipped gradient.
    """
    grad_BD = torch.diag(torch.tensor([0.1, 0.5, 1.0, 30.0], dtype=torch.float64)) / 4  # own losses: norms .1, .5, 1, 30
    defense = GaussianGradients(epsilon=1.0, delta=1e-5, clip=1.0)
    sent_BD, noise_BD = (defense(part_BD, torch.zeros(4), generator=generator()) for part_BD in (grad_BD, 0 * grad_BD))
    clipped_BD = torch.diag(torch.tensor([0.1, 0.5, 1.0, 1.0], dtype=torch.float64))
    assert torch.allclose((sent_BD - noise_BD) * 4, clipped_BD, atol=1 / 512)  # half a step of the grid: clip over 256 sqrt(D)


@pytest.mark.parametrize("rows", [50, 2_000])
def test_gaussian_noise_is_calibrated_to_twice_the_clip_over_the_batch(rows: int) -> None:
    """``rows`` * 200 normals: the relative standard error is at most .7 %; 4 % is more than five of them (chance 1e-7)."""
    grad_BD = torch.zeros(rows, 200, dtype=torch.float64)
    defense = GaussianGradients(epsilon=1.0, delta=1e-6, clip=0.5)
    sent_BD = defense(grad_BD, torch.zeros(rows), generator=generator())
    deviation = float(sent_BD.std()) * rows
    assert deviation == pytest.approx(defense.deviation, rel=0.04)
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(defense.deviation, sensitivity=2 * 0.5)
    assert loss.get_delta_for_epsilon(1.0) == pytest.approx(1e-6, rel=1e-4)


def test_gaussian_noise_covers_zero_gradients_single_rows_and_keeps_the_type() -> None:
    sent_BD = GaussianGradients(epsilon=1.0, delta=1e-6, clip=1.0)(torch.zeros(1, 4), torch.ones(1), generator=generator())
    assert sent_BD.dtype == torch.float32
    assert bool((sent_BD != 0).any())


def test_gaussian_and_isotropic_say_that_the_run_has_no_guarantee() -> None:
    for defense in (GaussianGradients(epsilon=1.0, delta=1e-6, clip=1.0), Isotropic(power=1.0)):
        assert defense.guarantee().text.startswith("no formal guarantee")
        assert defense.guarantee().event is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Isotropic(power=0.0), "isotropic: power is 0.0"),
        (lambda: Isotropic(power=math.nan), "isotropic: power is nan"),
        (lambda: GaussianGradients(epsilon=0.0, delta=1e-6, clip=1.0), "epsilon is 0.0"),
        (lambda: GaussianGradients(epsilon=1e8, delta=1e-6, clip=1.0), "gaussian: epsilon is 100000000.0; it must lie between"),
        (lambda: GaussianGradients(epsilon=1.0, delta=1.0, clip=1.0), "delta is 1.0"),
        (lambda: GaussianGradients(epsilon=1.0, delta=1e-25, clip=1.0), "gaussian: delta is 1e-25; it must be at least 1e-24"),
        (lambda: GaussianGradients(epsilon=1.0, delta=1e-6, clip=-1.0), "gaussian: clip is -1.0"),
        (lambda: NoiseStream(b"short"), "the noise secret has 5 bytes; it must have at least 16"),
    ],
)
def test_values_out_of_range_are_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("defense", [Isotropic(power=1.0), GaussianGradients(epsilon=1.0, delta=1e-6, clip=1.0)])
def test_nan_is_refused(defense: object) -> None:
    grad_BD = gradients(10)
    grad_BD[4, 1] = math.nan
    with pytest.raises(DataError, match="cut gradients: NaN or infinite in 1 of 10 rows, the first is row 4"):
        defense(grad_BD, torch.zeros(10), generator=generator())  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stream_is_standard_normal_and_uniform(dtype: torch.dtype) -> None:
    """Kolmogorov-Smirnov on 200,001 draws and chi-square of 200,000 products' signs: each fails with a chance of 1e-6."""
    stream = NoiseStream(SECRET)
    drawn = standard_normal(1, 200_001, stream, like=torch.empty(0, dtype=dtype))[0]
    assert drawn.dtype == dtype
    assert kstest(drawn.numpy(), "norm").pvalue > 1e-6
    assert kstest(uniform(200_000, stream).numpy(), "uniform").pvalue > 1e-6
    quadrants = np.bincount(2 * (drawn[:100_000] > 0).numpy() + (drawn[100_001:] > 0).numpy(), minlength=4)
    assert ((quadrants - 25_000) ** 2 / 25_000).sum() < chi2(3).ppf(1 - 1e-6)


def test_a_stream_is_fixed_by_secret_and_step_alone() -> None:
    """64 words of 32 bits of another stream equal these with a chance of 2^-2048; only one secret here is drawn."""

    def draw(secret: bytes, step: int) -> torch.Tensor:
        return NoiseStream(secret, step=step).words(64)

    assert torch.equal(draw(SECRET, 7), draw(SECRET, 7))
    others = [draw(SECRET, 8), draw(SECRET + b"!", 7), draw(secrets.token_bytes(32), 7)]  # the last is SECRET once in 2^256
    assert all(not torch.equal(draw(SECRET, 7), other) for other in others)
    stream = NoiseStream(SECRET)
    assert not torch.equal(stream.words(64), stream.words(64))


def test_why_jobs_need_a_stream_torch_keeps_32_bits_of_a_seed() -> None:
    first, second = (torch.randn(8, generator=generator(5 + high)) for high in (0, 1 << 32))
    assert torch.equal(first, second)


def test_empty_draws() -> None:
    assert standard_normal(0, 5, NoiseStream(SECRET), like=torch.empty(0)).shape == (0, 5)
    assert uniform(0, generator()).shape == (0,)
