"""Several attacks put together: better than each if their errors differ, and a guess if all guess."""

import pytest
import torch
from planted import ROWS, generator, labels, planted_view

from tallystick.attacks.label_inference.attack_table import LabelInferenceAttack
from tallystick.attacks.label_inference.combined import CombinedAttack
from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics
from tallystick.attacks.view import Attack, Scores, View

TRUTH = labels()
ONCE = AttackEvaluator(replicates=1)


def noisy(seed: int, *, gap: float = 1.5, sign: int = 1) -> Attack:
    """Make an attack that knew every label, through noise of its own: an AUC of Phi(gap / sqrt 2), .856."""
    score_N = sign * (gap * TRUTH + torch.randn(ROWS, generator=generator(100 + seed))).double()

    def attack(view: View, *, generator: torch.Generator) -> Scores:
        rows = torch.arange(view.rows)
        return Scores(rows=(rows,), values=(score_N[rows],))

    return attack


def combined(*parts: Attack, gap: float = 0.0) -> AttackMetrics:
    row = LabelInferenceAttack(attack=CombinedAttack(parts=parts), description="", reads="cut_gradient", over_training=True)
    return evaluate_label_inference(planted_view(TRUTH, gap=gap), TRUTH, attacks={"it": row}, evaluator=ONCE)["it"]


@pytest.mark.parametrize("sign", [1, -1])
def test_together_parts_tell_more_than_each_also_where_one_of_them_is_turned_round(sign: int) -> None:
    """The sum of five scores of gap 1.5 has gap 3.35 and an AUC of .991, minus the loss by ranks and folds. Seeded."""
    assert combined(noisy(1, sign=sign), *(noisy(seed) for seed in range(2, 6))).auc.mean > 0.975


def test_what_gradients_tell_besides_is_learnt_from_the_surest_rows() -> None:
    """Two parts together have an AUC of .933. Gradients have a gap of 2 in one direction, hence .921, and all of it gives .98."""
    alone, beside = combined(noisy(1), noisy(2)), combined(noisy(1), noisy(2), gap=2.0)
    assert alone.auc.mean == pytest.approx(0.933, abs=0.015)
    assert beside.auc.mean > alone.auc.mean + 0.03


def test_parts_that_guess_are_a_guess_together() -> None:
    """A standard error of .012 over 3,000 rows: three and a half. Seeded."""
    parts = [noisy(seed, gap=0.0) for seed in range(1, 6)]
    assert combined(*parts).auc.mean == pytest.approx(0.5, abs=0.042)


def test_parts_that_say_nothing_say_nothing_together() -> None:
    def silent(view: View, *, generator: torch.Generator) -> Scores:
        return Scores(rows=(torch.arange(view.rows),), values=(torch.zeros(view.rows),))

    assert combined(silent, silent).auc.mean == 0.5
