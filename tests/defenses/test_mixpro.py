"""MixPro: the promised cosine, equation 11 as printed, and the batches for which the paper's formula fails."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta
from torch import Tensor

from tallystick.defenses.mixpro import MixPro
from tallystick.defenses.noise import NoiseStream
from tallystick.errors import ConfigError, DataError

goals = st.floats(0.05, 0.99)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(seed: int = 0, rows: int = 50, width: int = 6) -> Tensor:
    return torch.randn(rows, width, generator=generator(seed), dtype=torch.float64) + 0.3


def cosines(sent_BD: Tensor, grad_BD: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(sent_BD, grad_BD.mean(dim=0, keepdim=True), dim=1)


def paper(mixed_D: Tensor, mean_D: Tensor, goal: float) -> Tensor:
    """Equations 11 and 12 as printed."""
    phi = float(mixed_D @ mean_D / mixed_D.norm() / mean_D.norm())
    if phi >= goal:
        return mixed_D
    other = math.sqrt(1 - goal**2)
    factor = mixed_D.norm() * (goal * math.sqrt(1 - phi**2) - phi * other) / (mean_D.norm() * other)
    return mixed_D + factor * mean_D


@given(st.integers(0, 10**6), goals, st.floats(-12, 3))
def test_every_row_reaches_the_goal_and_a_turned_row_lies_exactly_at_it(seed: int, goal: float, exponent: float) -> None:
    grad_BD = gradients(seed) * 10**exponent
    sent_BD = MixPro(goal=goal)(grad_BD, torch.zeros(50), generator=generator(seed))
    phi_B = cosines(sent_BD / 10**exponent, grad_BD / 10**exponent)
    assert float(phi_B.min()) >= goal - 1e-9
    mixed_BD = MixPro(goal=goal)._mixed(grad_BD, torch.zeros(len(grad_BD)), generator(seed))
    turned_B = cosines(mixed_BD / 10**exponent, grad_BD / 10**exponent) < goal - 1e-9
    assert torch.allclose(phi_B[turned_B], torch.tensor(goal, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(sent_BD[~turned_B], mixed_BD[~turned_B], rtol=1e-9, atol=1e-9 * 10**exponent)


@given(st.integers(0, 10**6), goals)
def test_equation_11_wherever_it_does_not_shrink_a_row(seed: int, goal: float) -> None:
    grad_BD = gradients(seed)
    defense, mean_D = MixPro(goal=goal), gradients(seed).mean(dim=0)
    sent_BD = defense(grad_BD, torch.zeros(50), generator=generator(seed))
    mixed_BD = defense._mixed(grad_BD, torch.zeros(len(grad_BD)), generator(seed))
    for sent_D, mixed_D in zip(sent_BD, mixed_BD, strict=True):
        expected_D = paper(mixed_D, mean_D, goal)
        if expected_D.norm() >= mixed_D.norm():
            assert torch.allclose(sent_D, expected_D, atol=1e-9)
        else:
            assert float(sent_D.norm()) == pytest.approx(float(mixed_D.norm()), rel=1e-9)


def test_mixing_weights_are_beta_and_partners_are_other_rows() -> None:
    """Row b is the unit vector b, so a mixed row shows weight and partner. 4,000 draws: the mean of the larger of two
    Beta(.6, .6) weights has a standard error of .0023; .012 is five of them (chance 6e-7)."""
    defense, rows = MixPro(), 4_000
    mixed_BD = defense._mixed(torch.eye(rows, dtype=torch.float64), torch.zeros(rows), generator())
    weight_B = mixed_BD.diagonal()
    assert float(weight_B.min()) >= 0.5
    assert torch.allclose(mixed_BD.sum(dim=1), torch.ones(rows, dtype=mixed_BD.dtype))
    assert int((mixed_BD > 0).sum(dim=1).max()) == 2
    # E[max(X, 1 - X)] = 2 E[X; X > 1/2], and x times the density of Beta(a, a) is that of Beta(a + 1, a) over 2.
    assert float(weight_B.mean()) == pytest.approx(beta(1.6, 0.6).sf(0.5), abs=0.012)
    partner_B = (mixed_BD - torch.diag(weight_B)).argmax(dim=1)[weight_B < 1 - 1e-9]
    assert len(torch.unique(partner_B)) > 0.55 * rows  # of n draws with replacement 1 - 1/e = 63 % are distinct


def test_antiparallel_rows_keep_their_norm_instead_of_vanishing() -> None:
    """A single linear top gives collinear gradients: the paper's projection sends 0 for every row against the mean."""
    direction_D = torch.tensor([3.0, 4.0, 0.0, 0.0], dtype=torch.float64)
    sizes_B = torch.tensor([1.0] * 15 + [-0.5] * 5, dtype=torch.float64)
    grad_BD = sizes_B[:, None] * direction_D
    # The printed equation gives about 0; rounding decides its last digits.
    assert float(paper(grad_BD[-1], grad_BD.mean(dim=0), 0.5).norm()) < 1e-6
    defense = MixPro(goal=0.5)
    sent_BD, mixed_BD = (
        defense(grad_BD, torch.zeros(20), generator=generator(1)),
        defense._mixed(grad_BD, torch.zeros(len(grad_BD)), generator(1)),
    )
    assert bool((cosines(mixed_BD, grad_BD) < 0).any())
    assert torch.allclose(sent_BD.norm(dim=1), mixed_BD.norm(dim=1))
    assert float(cosines(sent_BD, grad_BD).min()) >= 0.5 - 1e-9
    turned_BD = sent_BD[cosines(mixed_BD, grad_BD) < 0]
    assert int(torch.linalg.matrix_rank(turned_BD - turned_BD[0])) > 1  # each left the line in a direction of its own


def test_a_mean_of_zero_is_replaced_by_a_random_direction() -> None:
    grad_BD = torch.cat([torch.eye(4), -torch.eye(4)])
    first, second = (MixPro(goal=0.9)(grad_BD, torch.zeros(8), generator=generator(seed)) for seed in (1, 2))
    for sent_BD in (first, second):
        directions_BD = torch.nn.functional.normalize(sent_BD, dim=1)
        assert float((directions_BD @ directions_BD.T).min()) > 2 * 0.9**2 - 1 - 1e-6  # all within one cone
    assert float(cosines(first, second).abs().min()) < 0.99  # another cone for other randomness


def test_one_row_is_sent_as_zeros_and_zero_gradients_stay_zero() -> None:
    assert torch.equal(MixPro()(torch.ones(1, 4), torch.ones(1), generator=generator()), torch.zeros(1, 4))
    assert torch.equal(MixPro()(torch.zeros(5, 4), torch.ones(5), generator=generator()), torch.zeros(5, 4))
    assert MixPro()(torch.zeros(0, 4), torch.ones(0), generator=generator()).shape == (0, 4)


def test_width_one_and_equal_gradients() -> None:
    line_BD = torch.tensor([[1.0], [2.0], [-0.5]])
    sent_BD = MixPro()(line_BD, torch.zeros(3), generator=generator())
    assert bool(sent_BD.isfinite().all())
    equal_BD = torch.full((5, 3), 0.25)
    assert torch.allclose(MixPro()(equal_BD, torch.zeros(5), generator=generator()), equal_BD)


def test_a_noise_stream_does_as_well_and_float32_stays() -> None:
    grad_BD = gradients().float()
    sent_BD = MixPro()(grad_BD, torch.zeros(50), generator=NoiseStream(b"0123456789abcdef", step=3))
    assert sent_BD.dtype == torch.float32
    assert float(cosines(sent_BD, grad_BD).min()) >= math.sqrt(0.75) - 1e-5


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"goal": 1.0}, "mixpro: goal is 1.0; it must lie between 0 and 1"),
        ({"goal": 0.0}, "goal is 0.0"),
        ({"goal": math.nan}, "goal is nan"),
        ({"alpha": 0.0}, "mixpro: alpha is 0.0"),
    ],
)
def test_values_out_of_range_are_refused(keys: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MixPro(**keys)


def test_nan_is_refused() -> None:
    grad_BD = gradients()
    grad_BD[3] = math.nan
    with pytest.raises(DataError, match="row 3"):
        MixPro()(grad_BD, torch.zeros(50), generator=generator())
