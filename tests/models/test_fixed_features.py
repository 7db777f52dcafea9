"""Features that no training changes: their range, their scale, and a width that no value affects."""

import pytest
import torch

from tallystick.models.fixed_features import FixedFeatures
from tallystick.tables.features import Features, FeatureShape

SHAPE = FeatureShape(numeric=3, cardinalities=(4, 70))


def rows(count, *, seed=1, constant=False):
    generator = torch.Generator().manual_seed(seed)
    numeric_NF = torch.randn(count, 3, generator=generator)
    codes = [torch.randint(0, codes, (count,), generator=generator) for codes in SHAPE.cardinalities]
    return Features(
        numeric_NF=torch.ones(count, 3) if constant else numeric_NF**3,
        categorical_NG=torch.stack(codes, dim=1) * (0 if constant else 1),
    )


@pytest.mark.parametrize(("count", "constant"), [(2000, False), (40, False), (1, False), (300, True)])
def test_features_are_numbers_within_their_range_and_their_width_is_the_shape_s(count, constant):
    features = FixedFeatures(SHAPE, most=200, constant=False).fit(rows(count, constant=constant), seed=1)
    values_ND = features(rows(500, seed=2))
    assert values_ND.shape == (500, 200)
    assert torch.isfinite(values_ND).all()
    assert values_ND.abs().max() <= features.LIMIT


def test_no_axis_has_a_second_moment_beyond_one():
    # For this reason one learning rate fits all tables; the clamp at 3 only lessens it.
    training = rows(3000)
    values_ND = FixedFeatures(SHAPE, most=200, constant=False).fit(training, seed=1)(training).double()
    largest = torch.linalg.eigvalsh(values_ND.T @ values_ND / len(values_ND))[-1]
    assert 0.5 < largest < 1.01


def test_zeros_stand_for_axes_that_there_are_not_and_the_strongest_come_last():
    numbers = Features(numeric_NF=torch.linspace(-1, 1, 300)[:, None], categorical_NG=torch.empty(300, 0, dtype=torch.int64))
    shape = FeatureShape(numeric=1, cardinalities=())
    values_ND, fewer_ND = (FixedFeatures(shape, most=most, constant=False).fit(numbers, seed=1)(numbers) for most in (512, 47))
    assert values_ND.shape == (300, 512)
    assert not values_ND[:, :-47].any()
    assert torch.equal(values_ND[:, -47:], fewer_ND)


def test_a_wide_table_has_coarse_hats_alone_and_a_label_party_without_columns_a_constant():
    wide = FixedFeatures(FeatureShape(numeric=40, cardinalities=()), most=256, constant=True)
    assert (len(wide.mean_R), wide.width) == (40 * 10 + 512, 257)
    nothing = Features(numeric_NF=torch.empty(5, 0), categorical_NG=torch.empty(5, 0, dtype=torch.int64))
    alone = FixedFeatures(None, most=256, constant=True).fit(nothing, seed=1)
    assert torch.equal(alone(nothing), torch.ones(5, 1))


def test_large_categories_share_the_codes_of_their_party():
    def codes(cardinalities, most):
        return FixedFeatures(FeatureShape(numeric=0, cardinalities=cardinalities), most=8, constant=False, codes=most).codes

    assert codes((3, 1000), 0) == [3, 64]
    assert codes((3, 1000), 512) == [3, 512]
    assert codes((3, 1000, 200, 80), 512) == [3, 170, 170, 80]
    assert codes((1000,) * 20, 512) == [64] * 20


def test_codes_that_a_large_category_has_are_told_apart():
    generator = torch.Generator().manual_seed(1)
    code_N1 = torch.randint(0, 200, (4000, 1), generator=generator)
    rows = Features(numeric_NF=torch.empty(4000, 0), categorical_NG=code_N1)
    last = Features(numeric_NF=torch.empty(2, 0), categorical_NG=torch.tensor([[150], [160]]))
    shape = FeatureShape(numeric=0, cardinalities=(200,))
    first_D, second_D = FixedFeatures(shape, most=256, constant=False, codes=512).fit(rows, seed=1)(last)
    assert not torch.equal(first_D, second_D)
    few_D, same_D = FixedFeatures(shape, most=256, constant=False).fit(rows, seed=1)(last)
    assert torch.equal(few_D, same_D)
