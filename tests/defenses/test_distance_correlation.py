"""Compare the closed form of distance correlation with the definition, by value and by gradient, with every awkward batch."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tallystick.defenses import pairwise
from tallystick.defenses.distance_correlation import FLOOR, DistanceCorrelation, squared_distance_correlation
from tallystick.errors import ConfigError, DataError


def by_definition(cut_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Compute Szekely's dCor^2 with all n x n matrices, by autograd; labels of different classes have distance 1."""

    def centred(d_BB: Tensor) -> Tensor:
        return d_BB - d_BB.mean(dim=0) - d_BB.mean(dim=1, keepdim=True) + d_BB.mean()

    distance_BB = centred(torch.cdist(cut_BD, cut_BD, compute_mode="donot_use_mm_for_euclid_dist"))
    label_BB = centred((labels_B[:, None] != labels_B[None, :]).to(cut_BD.dtype))
    variances = (distance_BB * distance_BB).mean() * (label_BB * label_BB).mean()
    return (distance_BB * label_BB).mean() / variances.sqrt()


def embeddings(rows: int, width: int, classes: int, *, seed: int, signal: float = 0.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels_B = torch.randint(0, classes, (rows,), generator=generator)
    labels_B[:classes] = torch.arange(classes)
    cut_BD = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return cut_BD + signal * labels_B[:, None], labels_B


def value_and_gradient(function: object, cut_BD: Tensor, labels_B: Tensor) -> tuple[float, Tensor]:
    leaf_BD = cut_BD.clone().requires_grad_()
    value = function(leaf_BD, labels_B)  # type: ignore[operator]
    return value.item(), torch.autograd.grad(value, leaf_BD)[0]


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles do not divide the batch, so all their borders are crossed."""
    monkeypatch.setattr(pairwise, "ROWS", 7)
    monkeypatch.setattr(pairwise, "COLUMNS", 11)


@pytest.mark.usefixtures("_small_tiles")
@settings(max_examples=60)
@given(st.integers(5, 60), st.integers(1, 9), st.integers(2, 5), st.integers(0, 10**6), st.floats(0, 3))
def test_value_and_gradient_are_those_of_the_definition(rows: int, width: int, classes: int, seed: int, signal: float) -> None:
    """Another test has rows that are nearly equal: a distance of 2e-5 as a root of differing squares keeps 4 digits."""
    cut_BD, labels_B = embeddings(rows, width, classes, seed=seed, signal=signal)
    assume(torch.pdist(cut_BD).min() > 3e-4)  # of 60 rows in one column one batch in four is not
    expected, expected_BD = value_and_gradient(by_definition, cut_BD, labels_B)
    found, found_BD = value_and_gradient(squared_distance_correlation, cut_BD, labels_B)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert float((found_BD - expected_BD).abs().max()) <= 1e-6 * float(expected_BD.abs().max())


@pytest.mark.parametrize("classes", [2, 4])
def test_full_tiles_too(classes: int) -> None:
    cut_BD, labels_B = embeddings(1_300, 16, classes, seed=classes)
    expected, expected_BD = value_and_gradient(by_definition, cut_BD, labels_B)
    found, found_BD = value_and_gradient(squared_distance_correlation, cut_BD, labels_B)
    assert found == pytest.approx(expected, rel=1e-9)
    assert float((found_BD - expected_BD).abs().max()) <= 1e-9 * float(expected_BD.abs().max())


@pytest.mark.parametrize("form", ["log", "plain"])
def test_gradcheck_of_the_penalty(form: str) -> None:
    cut_BD, labels_B = embeddings(9, 3, 3, seed=1)
    penalty = DistanceCorrelation(weight=0.7, form=form)  # type: ignore[arg-type]
    assert torch.autograd.gradcheck(lambda leaf_BD: penalty(leaf_BD, labels_B), cut_BD.requires_grad_())


def test_forms_and_warm_up() -> None:
    cut_BD, labels_B = embeddings(50, 4, 2, seed=2)
    correlation = float(by_definition(cut_BD, labels_B))
    assert float(DistanceCorrelation(weight=2.0, form="plain")(cut_BD, labels_B)) == pytest.approx(2 * correlation)
    log = DistanceCorrelation(weight=2.0, form="log", warm_up=4.0)
    assert float(log(cut_BD, labels_B)) == pytest.approx(2 * math.log(correlation + FLOOR))
    assert float(log(cut_BD, labels_B, epoch=1.0)) == pytest.approx(0.5 * math.log(correlation + FLOOR))
    assert float(log(cut_BD, labels_B, epoch=0.0)) == 0.0
    assert float(log(cut_BD, labels_B, epoch=9.0)) == float(log(cut_BD, labels_B))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(-12, 12), st.floats(-3, 3))
def test_scale_shift_order_and_names_of_classes_do_not_matter(seed: int, exponent: float, shift: float) -> None:
    cut_BD, labels_B = embeddings(40, 5, 3, seed=seed)
    order_B = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    value, gradient_BD = value_and_gradient(squared_distance_correlation, cut_BD, labels_B)
    scale = 10**exponent
    other, other_BD = value_and_gradient(squared_distance_correlation, scale * (cut_BD + shift)[order_B], 7 - labels_B[order_B])
    assert other == pytest.approx(value, rel=1e-7, abs=1e-12)
    assert torch.allclose(other_BD * scale, gradient_BD[order_B], rtol=1e-6, atol=1e-7 * float(gradient_BD.abs().max()))


def test_float32_is_close_to_float64_far_from_the_origin_and_with_duplicates() -> None:
    cut_BD, labels_B = embeddings(2_000, 32, 2, seed=3)
    cut_BD = (cut_BD.relu() + 20).float()
    cut_BD[::3] = cut_BD[0]
    expected, expected_BD = value_and_gradient(squared_distance_correlation, cut_BD.double(), labels_B)
    found, found_BD = value_and_gradient(squared_distance_correlation, cut_BD, labels_B)
    assert found_BD.dtype == torch.float32
    assert found == pytest.approx(expected, rel=2e-5)
    assert float((found_BD - expected_BD).norm() / expected_BD.norm()) < 2e-5


def test_duplicates_have_a_finite_gradient_as_if_they_did_not_push_each_other() -> None:
    cut_BD, labels_B = embeddings(30, 4, 2, seed=4)
    cut_BD[10:20] = cut_BD[3]
    _, found_BD = value_and_gradient(squared_distance_correlation, cut_BD, labels_B)
    _, expected_BD = value_and_gradient(by_definition, cut_BD, labels_B)  # cdist's gradient at distance 0 is 0 as well
    assert torch.allclose(found_BD, expected_BD, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("cut_BD", "labels_B"),
    [
        (torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.ones(20)),
        (torch.ones(20, 3), torch.arange(20) % 2),
        (torch.zeros(20, 3), torch.arange(20) % 2),
        (torch.full((20, 3), 1e6) * (1 + 1e-7), torch.arange(20) % 2),
        (torch.ones(1, 3), torch.zeros(1)),
        (torch.ones(0, 3), torch.zeros(0)),
    ],
    ids=["one class", "equal", "zero", "equal and large", "one row", "no row"],
)
@pytest.mark.parametrize("form", ["log", "plain"])
def test_where_there_is_no_correlation_the_penalty_is_zero_and_pushes_nothing(
    form: str, cut_BD: Tensor, labels_B: Tensor
) -> None:
    leaf_BD = cut_BD.clone().requires_grad_()
    penalty = DistanceCorrelation(weight=1.0, form=form)(leaf_BD, labels_B)  # type: ignore[arg-type]
    assert penalty.item() == 0
    if penalty.requires_grad:
        assert float(torch.autograd.grad(penalty, leaf_BD)[0].abs().sum()) == 0


def test_independent_embeddings_have_the_floor_of_chance() -> None:
    """For independent rows the mean of n dCov^2 is (mean distance) (mean label distance): about sqrt(2 D) 2 p q. The mean of 50
    batches has a relative standard error near 2 %; 15 % allows for the ratio's own bias."""
    generator = torch.Generator().manual_seed(5)
    n, width = 300, 8
    labels_B = (torch.arange(n) < n // 4).long()
    values = [
        float(squared_distance_correlation(torch.randn(n, width, generator=generator, dtype=torch.float64), labels_B))
        for _ in range(50)
    ]
    sample_nD = torch.randn(2_000, width, generator=generator, dtype=torch.float64)
    distance_nn = torch.cdist(sample_nD, sample_nD)
    centred_nn = distance_nn - distance_nn.mean(0) - distance_nn.mean(1, keepdim=True) + distance_nn.mean()
    expected = float(distance_nn.mean()) / n / float(centred_nn.square().mean().sqrt())
    assert sum(values) / 50 == pytest.approx(expected, rel=0.15)


def test_no_matrix_of_all_pairs_is_stored() -> None:
    """The largest tensor that is ever allocated stays far below n^2."""
    n = 4_000
    cut_BD, labels_B = embeddings(n, 8, 2, seed=6)
    with torch.profiler.profile(profile_memory=True) as profile:
        value_and_gradient(squared_distance_correlation, cut_BD.float(), labels_B)
    largest = max(abs(event.cpu_memory_usage) for event in profile.events())
    assert 0 < largest < n * n * 4 / 4


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"weight": 0.0}, "distance-correlation: weight is 0.0"),
        ({"weight": math.nan}, "weight is nan"),
        ({"weight": 1.0, "form": "square"}, "form is 'square'; it must be log or plain"),
        ({"weight": 1.0, "warm_up": -1.0}, "warm_up is -1.0"),
    ],
)
def test_values_out_of_range_are_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DistanceCorrelation(**keys)  # type: ignore[arg-type]


def test_nan_and_wrong_shapes_are_refused() -> None:
    cut_BD, labels_B = embeddings(10, 3, 2, seed=7)
    cut_BD[2, 1] = math.inf
    with pytest.raises(DataError, match="cut embeddings: NaN or infinite"):
        squared_distance_correlation(cut_BD, labels_B)
    with pytest.raises(DataError, match="expected one label for each of 10 rows"):
        squared_distance_correlation(cut_BD, labels_B[:4])
