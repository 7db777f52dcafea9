"""What recurs from epoch to epoch is read through fresh noise of the gradients' own shape, and nothing is found if
nothing recurs.
"""

from dataclasses import replace

import pytest
import torch
from numpy.linalg import inv
from planted import ROWS, generator, labels, planted_view
from scipy.linalg import sqrtm

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.row_sums import RowSums
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics
from tallystick.attacks.second_moments import SecondMoments, StepRows
from tallystick.attacks.view import View

TRUTH = labels()


def view(longer: float, *, epochs: int = 5) -> View:
    """Rows point anywhere, the same way in every epoch, and those of the rarer class further; noise has the gradients' own shape.

    Directions vary between 5 and 1, and the noise is twice the constant part of a row of the frequent class.
    """
    source, shape_D = generator(3), torch.tensor([5.0, 4.0, 3.0, 2.0, 1.5, 1.0])
    stays_ND = torch.randn(ROWS, 6, generator=source) * torch.where(TRUTH == 1, longer, 1.0)[:, None]
    base = planted_view(TRUTH, gap=0.0, epochs=epochs)
    steps = [
        replace(each, received_BD=(stays_ND[each.rows_B] + 2 * torch.randn(len(each.rows_B), 6, generator=source)) * shape_D)
        for each in base.steps
    ]
    return replace(base, steps=tuple(steps))


def found(name: str, of: View) -> AttackMetrics:
    attacks = {name: LABEL_INFERENCE_ATTACKS[name]}
    return evaluate_label_inference(of, TRUTH, attacks=attacks, evaluator=AttackEvaluator(replicates=1))[name]


def test_it_reads_behind_shaped_noise_what_no_side_and_no_mean_tells() -> None:
    """Two and a half times as long. Six directions together show more than the first, and than the length that it
    dominates. Seeded.
    """
    planted = view(2.5)
    told = found("paired-energy", planted).auc.mean
    assert told > 0.82
    for name in ("spectral-averaged", "clusters-averaged", "norm-averaged", "low-energy", "high-energy"):
        assert found(name, planted).symmetric_auc.mean < told - 0.03


def test_noise_that_is_drawn_once_for_each_row_of_one_class_names_the_other() -> None:
    """What hides the shorter class from one batch makes it the longer one of the run, if it is not fresh in each epoch.

    Without it the rarer class is the longer one. Seeded.
    """
    base, source = planted_view(TRUTH, gap=0.0, epochs=4), generator(9)
    stays_ND = torch.randn(ROWS, 6, generator=source) * torch.where(TRUTH == 1, 1.5, 1.0)[:, None]
    once_ND = 5 * torch.randn(ROWS, 6, generator=source) * (TRUTH == 0)[:, None]
    for kept_ND in (stays_ND, stays_ND + once_ND):
        noisy = [kept_ND[each.rows_B] + 0.1 * torch.randn(len(each.rows_B), 6, generator=source) for each in base.steps]
        steps = tuple(replace(each, received_BD=grad_BD) for each, grad_BD in zip(base.steps, noisy, strict=True))
        assert found("paired-energy", replace(base, steps=steps)).auc.mean > 0.7


def test_it_reads_nothing_where_both_classes_are_as_long() -> None:
    """A standard error of .012: three and a half. Seeded."""
    assert found("paired-energy", view(1.0)).auc.mean == pytest.approx(0.5, abs=0.042)


def test_the_sum_over_pairs_is_that_of_every_pair() -> None:
    """Compared with the inner products of every pair of epochs, whitened by NumPy's covariance."""
    planted = view(2.0, epochs=3)
    scores = LABEL_INFERENCE_ATTACKS["paired-energy"].attack(planted, generator=generator())
    white = torch.zeros(3, ROWS, 6, dtype=torch.float64)
    for epoch in range(3):
        steps = planted.epoch(epoch).steps
        centred = torch.cat([step.received_BD.double() - step.received_BD.double().mean(dim=0) for step in steps])
        root = torch.from_numpy(inv(sqrtm((centred.T @ centred / len(centred)).numpy())).real)
        white[epoch, torch.cat([step.rows_B for step in steps])] = centred @ root
    pairs_N = sum((white[a] * white[b]).sum(dim=1) for a in range(3) for b in range(3) if a != b)
    torch.testing.assert_close(scores.values[0], pairs_N[scores.rows[0]] / 6, rtol=1e-3, atol=1e-3)


def sums_of(whole: View) -> View:
    sums = RowSums.zero("cut_gradient", torch.arange(ROWS), 6)
    for epoch in whole.epochs:
        for step in whole.epoch(epoch).steps:
            sums.add(step.rows_B, step.received_BD, step.received_BD)
        sums.epoch_ended(epoch)
    return sums.view()


def test_sums_over_a_long_training_tell_more_than_five_recorded_epochs() -> None:
    """Half of the pairs' signal, in 30 epochs: 406 pairs instead of 10. Nothing if both classes are equally long. Seeded."""
    attacks = {"paired-energy": LABEL_INFERENCE_ATTACKS["paired-energy"]}

    def told(longer: float, *, whole: bool) -> float:
        every = view(longer, epochs=30)
        summed = sums_of(every) if whole else None
        few = replace(every, steps=tuple(step for step in every.steps if step.epoch < 5))
        return evaluate_label_inference(few, TRUTH, whole=summed, attacks=attacks)["paired-energy"].auc.mean

    assert told(1.6, whole=True) > told(1.6, whole=False) + 0.05
    assert told(1.0, whole=True) == pytest.approx(0.5, abs=0.042)


def test_running_sums_whiten_by_the_last_steps() -> None:
    """In each epoch other directions vary the most. Whitening by the whole epoch before gives .70, and by the last steps .86.
    Seeded.
    """
    source, spread_D = generator(5), torch.logspace(0, -2, 6)
    stays_ND = torch.randn(ROWS, 6, generator=source) * torch.where(TRUTH == 1, 1.7, 1.0)[:, None]
    sums = RowSums.zero("cut_gradient", torch.arange(ROWS), 6)
    for epoch in range(6):
        turn_DD = torch.linalg.qr(torch.randn(6, 6, generator=source)).Q
        shape_DD = (turn_DD * spread_D) @ turn_DD.T
        for rows_B in torch.randperm(ROWS, generator=source).split(25):
            gradient_BD = (stays_ND[rows_B] + 0.3 * torch.randn(len(rows_B), 6, generator=source)) @ shape_DD
            sums.add(rows_B, gradient_BD, gradient_BD)
        sums.epoch_ended(epoch)
    assert found("paired-energy", sums.view()).auc.mean > 0.8


def test_what_whitens_survives_a_file_of_sums() -> None:
    """A resumed run whitens by the last steps before, like one that was never stopped."""
    every = view(2.0, epochs=3)
    whole, first = (RowSums.zero("cut_gradient", torch.arange(ROWS), 6) for _ in range(2))
    for epoch in range(3):
        if epoch == 2:
            first = replace(first)  # made anew from its fields, as from a file
        for sums in (whole, first):
            for step in every.epoch(epoch).steps:
                sums.add(step.rows_B, step.received_BD, step.received_BD)
            sums.epoch_ended(epoch)
    assert torch.equal(whole.white_ND, first.white_ND)
    assert whole.white_count_N.tolist() == [2] * ROWS


def test_one_epoch_has_no_pair() -> None:
    attacks = {"paired-energy": LABEL_INFERENCE_ATTACKS["paired-energy"]}
    assert evaluate_label_inference(view(2.0, epochs=1), TRUTH, attacks=attacks) == {}


def test_gradients_whose_squares_are_zero_are_whitened_as_others_are():
    """A network has learnt its rows by heart: each batch has one scale. If its rows are alike it shows nothing."""
    moments = SecondMoments()
    rows_BD = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))

    def whitened(rows_BD: torch.Tensor) -> torch.Tensor | None:
        return moments(StepRows.of(rows_BD[None]))[1]

    assert whitened(rows_BD) is None
    moments.epoch_ended()
    white_BD = whitened(rows_BD)
    assert white_BD is not None
    assert white_BD.square().sum(dim=1).mean().item() == pytest.approx(4)
    torch.testing.assert_close(whitened(rows_BD * 1e-29), white_BD)
    assert not whitened(torch.ones(64, 4)).any()
