"""Imputers of absent features: who is the donor, what is sent, what passes a gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import ConfigError, DataError
from tallystick.imputation.feature_imputers import GaussianFeatures, RandomFeatures, SamplingFeatures
from tallystick.imputation.moments import MovingMoments


def moments_of(cut_RD: torch.Tensor) -> MovingMoments:
    moments = MovingMoments(cut_RD.shape[1])
    moments.update(cut_RD)
    return moments


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_donors_are_own_rows_and_distinct_where_possible(data: st.DataObject) -> None:
    own_rows = data.draw(st.integers(1, 30))
    present = data.draw(st.lists(st.integers(0, own_rows - 1), unique=True, max_size=own_rows))
    own_B = torch.tensor(data.draw(st.permutations([*present, *[-1] * data.draw(st.integers(0 if present else 1, 30))])))
    uniform_B = torch.tensor(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=len(own_B), max_size=len(own_B))))
    donor_B = SamplingFeatures().inputs(own_B, own_rows=own_rows, uniform_B=uniform_B)
    assert torch.equal(donor_B[own_B >= 0], own_B[own_B >= 0])
    assert bool(((donor_B >= 0) & (donor_B < own_rows)).all())
    if len(own_B) <= own_rows:
        assert len(set(donor_B.tolist())) == len(own_B)


def test_donors_are_uniform() -> None:
    """Chi-square over 50 donors, 20,000 draws: the 1e-6 quantile of chi2(49) is 113."""
    own_B = torch.full((20_000,), -1)
    uniform_B = torch.rand(20_000, generator=generator(3))
    donor_B = SamplingFeatures(distinct=False).inputs(own_B, own_rows=50, uniform_B=uniform_B)
    count_N = torch.bincount(donor_B, minlength=50).double()
    assert float(((count_N - 400) ** 2 / 400).sum()) < 113


def test_sampling_without_any_row_is_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        SamplingFeatures().inputs(torch.tensor([-1]), own_rows=0, uniform_B=torch.zeros(1))


def test_sampling_leaves_embeddings_alone() -> None:
    cut_BD = torch.rand(4, 3)
    sent_BD = SamplingFeatures().cut(
        cut_BD, torch.tensor([True, False, True, False]), moments=moments_of(cut_BD), generator=generator()
    )
    assert sent_BD is cut_BD


@pytest.mark.parametrize("imputer", [GaussianFeatures(), RandomFeatures()])
def test_imputed_embeddings_keep_real_rows_and_pass_no_gradient(imputer: GaussianFeatures | RandomFeatures) -> None:
    cut_BD = torch.rand(6, 4, generator=generator(), requires_grad=True)
    present_B = torch.tensor([True, False, True, True, False, True])
    sent_BD = imputer.cut(cut_BD, present_B, moments=moments_of(cut_BD[present_B].detach()), generator=generator(1))
    assert torch.equal(sent_BD[present_B], cut_BD[present_B])
    assert not torch.equal(sent_BD[~present_B], cut_BD[~present_B])
    sent_BD.sum().backward()
    assert cut_BD.grad is not None
    assert cut_BD.grad.tolist() == [[float(here)] * 4 for here in present_B.tolist()]
    assert imputer.inputs(torch.tensor([2, -1]), own_rows=3, uniform_B=torch.zeros(2)).tolist() == [2, 0]


def test_scales_of_imputed_embeddings() -> None:
    """40,000 numbers per moment: 3 % is more than 5 standard errors of a deviation."""
    cut_BD = torch.cat([torch.randn(500, 80, generator=generator()) * 2 + 3, torch.zeros(500, 80)])
    present_B = torch.arange(1000) < 500
    gaussian_BD = GaussianFeatures(scale=2.0).cut(cut_BD, present_B, moments=moments_of(cut_BD[:500]), generator=generator(1))[
        500:
    ]
    largest = cut_BD[:500].norm(dim=1).max()
    assert float(gaussian_BD.std()) == pytest.approx(float(largest) * (2 / 80) ** 0.5, rel=0.03)
    random_BD = RandomFeatures().cut(cut_BD, present_B, moments=moments_of(cut_BD[:500]), generator=generator(1))[500:]
    assert float(random_BD.std()) == pytest.approx(2, rel=0.03)
    assert float(random_BD.mean()) == pytest.approx(3, abs=0.06)


def test_moving_moments_follow_real_rows_and_travel_with_a_checkpoint() -> None:
    moments = MovingMoments(1, momentum=0.25)
    moments.update(torch.tensor([[5.0]]))  # one row has no variance
    moments.update(torch.tensor([[1.0], [3.0]]))
    moments.update(torch.tensor([[5.0], [7.0]]))
    assert moments.mean_D.tolist() == [0.75 * 2 + 0.25 * 6]
    assert moments.variance_D.tolist() == [2.0]
    copy = MovingMoments(1)
    copy.load_state_dict(moments.state_dict())
    assert copy.mean_D.tolist() == moments.mean_D.tolist()


def test_unusable_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale=0"):
        GaussianFeatures(scale=0)
