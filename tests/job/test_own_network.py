"""The share of the labels' variance that a network of own columns leaves. The weight decay of a head on shares depends on it."""

import pytest
import torch

from tallystick.run_folder.own_network import unexplained_share

LABELS = torch.tensor([0.0, 0.0, 1.0, 1.0, 2.0, 2.0])


def test_right_logits_leave_next_to_nothing_and_the_mean_leaves_all():
    numbers_N1 = LABELS.unsqueeze(1)
    assert unexplained_share(numbers_N1, numbers_N1, "regression") == pytest.approx(0.01)
    assert unexplained_share(torch.ones(6, 1), numbers_N1, "regression") == pytest.approx(1.0)
    assert unexplained_share((numbers_N1 + 1) / 2, numbers_N1, "regression") == pytest.approx(0.25)


def test_of_classes_chances_are_compared():
    one_hot_NC = torch.nn.functional.one_hot(LABELS.long(), 3).float()
    assert unexplained_share(one_hot_NC * 40, one_hot_NC, "multiclass") == pytest.approx(0.01)
    assert unexplained_share(torch.zeros(6, 3), one_hot_NC, "multiclass") == pytest.approx(1.0)
    half_N1 = (LABELS > 0.5).float().unsqueeze(1)
    assert unexplained_share(torch.full((6, 1), 0.6931472), half_N1, "binary") == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_network_that_diverged_leaves_all(wrong):
    assert unexplained_share(torch.full((6, 1), wrong), LABELS.unsqueeze(1), "regression") == 1.0
