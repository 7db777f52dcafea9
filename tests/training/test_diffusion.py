"""Compare the diffusion's formulas with closed forms: the best denoiser of a Gaussian is known, and so is the sampler's result
with it.
"""

import math

import pytest
import torch

from tallystick.training.unaligned.diffusion import Denoiser, NoiseSchedule

SCHEDULE = NoiseSchedule()
MEAN, DEVIATION = 1.5, 0.4


def best_denoiser(prediction):
    """Return E[. | noisy] for x_0 ~ N(MEAN, DEVIATION^2): with a the kept share, E[x_0 | x] is linear in x (Gaussian
    conditioning).
    """
    kept_T = SCHEDULE.kept

    def predict(noisy_BD, step_B):
        kept = kept_T[step_B][:, None].float()
        gain = kept.sqrt() * DEVIATION**2 / (kept * DEVIATION**2 + 1 - kept)
        clean = MEAN + gain * (noisy_BD - kept.sqrt() * MEAN)
        noise = (noisy_BD - kept.sqrt() * clean) / (1 - kept).sqrt()
        return {"epsilon": noise, "x0": clean, "v": kept.sqrt() * noise - (1 - kept).sqrt() * clean}[prediction]

    return predict


def test_the_schedule_is_ddpms():
    beta_T = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    product = 1.0
    for step, beta in enumerate(beta_T.tolist()):
        product *= 1 - beta
        assert SCHEDULE.kept[step].item() == pytest.approx(product, rel=1e-12)
    assert SCHEDULE.kept[-1] < 1e-4


def test_noise_added_at_once_is_noise_added_step_by_step():
    """Compute mean and variance after t steps of x <- sqrt(1 - beta) x + sqrt(beta) noise, step by step."""
    mean, variance = 1.0, 0.0
    for step in range(300):
        beta = SCHEDULE.variances[step].item()
        mean, variance = math.sqrt(1 - beta) * mean, (1 - beta) * variance + beta
    at = torch.tensor([299])
    one = torch.ones(1, 1, dtype=torch.float64)
    assert SCHEDULE.noisy(one, 0 * one, at).item() == pytest.approx(mean, rel=1e-9)
    assert SCHEDULE.noisy(0 * one, one, at).item() ** 2 == pytest.approx(variance, rel=1e-9)


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
def test_what_is_predicted_gives_back_clean_and_noise(prediction):
    generator = torch.Generator().manual_seed(1)
    clean_BD, noise_BD = torch.randn(2, 5, 3, generator=generator)
    step_B = torch.full((5,), 417)
    noisy_BD = SCHEDULE.noisy(clean_BD, noise_BD, step_B)
    target_BD = SCHEDULE.target(clean_BD, noise_BD, step_B, prediction)
    found = SCHEDULE.clean_and_noise(noisy_BD, target_BD, SCHEDULE.kept[417].item(), prediction)
    torch.testing.assert_close(found[0], clean_BD, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[1], noise_BD, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
def test_ddim_with_the_best_denoiser_gives_the_gaussian(prediction):
    """Its flow maps N(0, 1) onto the Gaussian row by row: x_0 = MEAN + DEVIATION x_T, up to the steps' width."""
    noise_BD = torch.linspace(-2, 2, 41)[:, None]
    found = SCHEDULE.sample(best_denoiser(prediction), noise_BD, evaluations=1000, prediction=prediction)
    torch.testing.assert_close(found, MEAN + DEVIATION * noise_BD, atol=0.03, rtol=0)


def test_ddpm_with_the_best_denoiser_gives_the_gaussian_whatever_it_starts_from():
    """Mean and deviation of 4,000 samples are within six of their standard errors, except with a chance below 1e-8."""
    count = 4000
    found = SCHEDULE.sample(
        best_denoiser("epsilon"),
        torch.zeros(count, 1),  # fresh noise alone spreads them
        evaluations=1000,
        prediction="epsilon",
        fresh=torch.Generator().manual_seed(2),
    )
    assert found.mean().item() == pytest.approx(MEAN, abs=6 * DEVIATION / math.sqrt(count))
    assert found.std().item() == pytest.approx(DEVIATION, abs=6 * DEVIATION / math.sqrt(2 * count))


def test_ddpms_step_by_hand():
    """One step from 999 to 0: the posterior's mean and variance are equations 6 and 7 of DDPM, by that step's beta."""
    kept, kept_after = SCHEDULE.kept[999].item(), SCHEDULE.kept[0].item()
    beta, clean, noisy = 1 - kept / kept_after, 0.7, 1.3
    mean = math.sqrt(kept_after) * beta / (1 - kept) * clean
    mean += math.sqrt(1 - beta) * (1 - kept_after) / (1 - kept) * noisy
    variance = (1 - kept_after) / (1 - kept) * beta
    asked = []

    def predict(noisy_BD, step_B):
        asked.append(noisy_BD)
        return torch.full_like(noisy_BD, clean)

    start, fresh = torch.full((3, 2), noisy), torch.Generator().manual_seed(5)
    SCHEDULE.sample(predict, start, evaluations=2, prediction="x0", fresh=fresh)
    drawn = torch.randn((3, 2), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(asked[1], mean + math.sqrt(variance) * drawn)


@pytest.mark.parametrize("evaluations", [1, 7, 20, 50])
def test_ddim_takes_as_many_evaluations_as_it_is_given_and_keeps_the_mean(evaluations):
    steps = []

    def counted(noisy_BD, step_B):
        steps.append(int(step_B[0]))
        return best_denoiser("epsilon")(noisy_BD, step_B)

    noise_BD = torch.linspace(-2, 2, 41)[:, None]
    found = SCHEDULE.sample(counted, noise_BD, evaluations=evaluations, prediction="epsilon")
    assert len(steps) == evaluations
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 999
    assert found.mean().item() == pytest.approx(MEAN, abs=0.05)
    if evaluations > 1:
        assert steps[-1] == 0
        assert found.std().item() == pytest.approx(DEVIATION * noise_BD.std().item(), rel=0.2 if evaluations >= 20 else 0.5)


def test_a_denoiser_learns_a_conditional_mean():
    """x_0 = 2 c exactly, so samples for a condition equal its value."""
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    network = Denoiser(1, 1, hidden=32)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(600):
        condition = torch.randn(256, 1, generator=generator)
        clean, noise = 2 * condition, torch.randn(256, 1, generator=generator)
        step = torch.randint(1000, (256,), generator=generator)
        optimizer.zero_grad()
        loss = (network(SCHEDULE.noisy(clean, noise, step), step, condition) - clean).square().mean()
        loss.backward()
        optimizer.step()
    wanted = torch.tensor([[-1.0], [0.0], [1.0]])
    with torch.no_grad():
        found = SCHEDULE.sample(
            lambda noisy, step: network(noisy, step, wanted),
            torch.randn(3, 1, generator=generator),
            evaluations=20,
            prediction="x0",
        )
    torch.testing.assert_close(found, 2 * wanted, atol=0.4, rtol=0)
