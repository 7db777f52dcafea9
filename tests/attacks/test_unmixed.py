"""Several labels that every gradient mixes: each is found in a component of its own, whatever its share."""

from dataclasses import replace

import pytest
import torch

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.evaluate import LabelInferenceEvaluation, evaluate_label_inference
from tallystick.attacks.label_inference.unmixed import UnmixedAttack
from tallystick.attacks.scoring import AttackEvaluator
from tallystick.attacks.view import StepView, View
from tallystick.errors import ConfigError

ROWS, WIDTH = 1200, 6


def mixed(shares, *, width=WIDTH, told=True, seed=1):
    """Make a feature party's view of one epoch: each label's direction if the row has it, and noise."""
    source = torch.Generator().manual_seed(seed)
    label_NK = (torch.rand(ROWS, len(shares), generator=source) < torch.tensor(shares)).long()
    direction_KD = torch.randn(len(shares), width, generator=source) * 4 if told else torch.zeros(len(shares), width)
    gradient_ND = label_NK.float() @ direction_KD + torch.randn(ROWS, width, generator=source)
    step = StepView(epoch=0, rows_B=torch.arange(ROWS), own_B=torch.ones(ROWS, dtype=torch.bool), received_BD=gradient_ND)
    return View(received="cut_gradient", steps=(step,), labels=len(shares)), label_NK


def found(view, label_NK):
    """Return the AUC of each label, the rarest first, as the attack names components."""
    order_K = label_NK.double().mean(dim=0).argsort().tolist()
    evaluator, row = AttackEvaluator(replicates=1), LABEL_INFERENCE_ATTACKS["unmixed"]
    aucs = []
    for place, label in enumerate(order_K):
        of_label = replace(view, rarer_labels=place)
        aucs.append(LabelInferenceEvaluation(of_label, label_NK[:, label], evaluator=evaluator)(row).symmetric_auc.mean)
    return aucs


@pytest.mark.parametrize("shares", [(0.4, 0.21), (0.45, 0.25, 0.1), (0.03, 0.2, 0.35, 0.48)])
def test_each_label_has_a_component_of_its_own(shares):
    assert min(found(*mixed(shares))) > 0.95


def test_gradients_that_tell_no_label_give_none():
    """Three AUCs of 1,200 rows, the better side of each: a deviation of at most .019, and .6 is five of these."""
    assert max(found(*mixed((0.4, 0.2, 0.3), told=False))) < 0.6


def test_a_cut_narrower_than_labels_or_equal_rows_end_in_scores():
    view, label_NK = mixed((0.4, 0.3, 0.2), width=1)
    assert len(found(view, label_NK)) == 3
    (step,) = view.steps
    equal = replace(view, steps=(replace(step, received_BD=torch.ones(ROWS, 4)),))
    assert found(equal, label_NK) == [0.5] * 3


def test_of_one_label_it_is_not_run_and_no_start_is_refused():
    view, label_NK = mixed((0.4, 0.3))
    assert "unmixed" in evaluate_label_inference(view, label_NK[:, 0])
    assert "unmixed" not in evaluate_label_inference(replace(view, labels=1), label_NK[:, 0])
    with pytest.raises(ConfigError, match="unmixed attack: starts=0"):
        UnmixedAttack(starts=0)
