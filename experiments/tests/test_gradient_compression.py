"""Gradient compression compared with a plain sort, and what it does not hide."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tallystick.errors import ConfigError
from tallystick_experiments.defenses.gradient_compression import GradientCompression

ANY = torch.Generator()
sizes = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 2.0, 3.0])
numbers = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=sizes)


@given(numbers, st.floats(0.01, 0.99))
def test_the_largest_coordinates_are_sent_as_a_sort_finds_them(grad: np.ndarray, keep: float) -> None:
    sent = GradientCompression(keep=keep)(torch.from_numpy(grad), torch.zeros(len(grad)), generator=ANY).numpy()
    least = np.sort(np.abs(grad), axis=None)[::-1][math.ceil(keep * grad.size) - 1]
    np.testing.assert_array_equal(sent, np.where(np.abs(grad) >= least, grad, 0.0))


def test_an_empty_batch_is_sent_as_it_is() -> None:
    assert GradientCompression(keep=0.5)(torch.zeros(0, 3), torch.zeros(0), generator=ANY).shape == (0, 3)


def test_the_norms_of_large_gradients_still_tell_the_rarer_class() -> None:
    """The docs say that this is not covered: positives whose gradients are three times as long."""
    generator = torch.Generator().manual_seed(1)
    labels_B = (torch.rand(512, generator=generator) < 0.2).float()
    grad_BD = torch.randn(512, 8, generator=generator) * (1 + 2 * labels_B)[:, None]
    norm_B = GradientCompression(keep=0.1)(grad_BD, labels_B, generator=ANY).norm(dim=1)
    higher = (norm_B[labels_B == 1][:, None] > norm_B[labels_B == 0]).float().mean()
    assert float(higher) > 0.9


@pytest.mark.parametrize("keep", [0.0, 1.0, -0.1, math.nan])
def test_a_share_out_of_range_is_refused(keep: float) -> None:
    with pytest.raises(ConfigError, match="gradient-compression: keep is"):
        GradientCompression(keep=keep)
