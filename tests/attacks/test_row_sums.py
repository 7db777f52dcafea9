"""Running sums per row hold what a view of every step of every epoch shows of a row."""

from dataclasses import replace

import pytest
import torch
from lanes import but_costly, short_lane_of
from planted import labels, noisy_class, planted_view

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.label_inference.observations import observations
from tallystick.attacks.matrix import rescaled
from tallystick.attacks.row_sums import RowSums, chosen_rows, epochs_in_words, most_looks, spread_over
from tallystick.errors import DataError

TRUTH = labels()
OVER_TRAINING = {name: row for name, row in LABEL_INFERENCE_ATTACKS.items() if row.over_training and row.binary}
# by attacks that take a moment
OVER_TRAINING = {name: row for name, row in OVER_TRAINING.items() if row.quick or not row.from_flip}
del OVER_TRAINING["low-energy-unflipped"]  # low-energy guesses at a gap, and un-flipping a guess is luck
del OVER_TRAINING["combined"]  # reads what its parts and combined-gradient do, and takes as long as surrogate-top

ELSEWHERE = ("norm-averaged", "low-energy", "high-energy", "paired-energy")  # they read sums of their own, not of gradients


def summed(view, rows_N):
    sums = RowSums.zero("cut_gradient", rows_N, view.steps[0].received_BD.shape[1])
    for epoch in view.epochs:
        for step in view.epoch(epoch).steps:
            sums.add(step.rows_B, step.sent_BD, step.received_BD)
        sums.epoch_ended(epoch)
    return sums


def test_sums_are_those_of_all_steps():
    """All rows of some batches represent their batch. Of a larger batch some do, spread over it."""
    view = planted_view(TRUTH, gap=1.0, epochs=4, batch=60)
    sums = summed(view, torch.arange(len(TRUTH)))
    assert sums.epochs == (0, 1, 2, 3)
    assert sums.count_N.tolist() == [4] * len(TRUTH)
    for target in ("cut_gradient", "cut_embedding"):
        rows, expected_ND = observations(view, target)
        found, mean_ND = observations(sums.view(), target)
        assert torch.equal(rows, found)
        scale = (expected_ND - expected_ND.mean(dim=0)).square().mean().sqrt()
        torch.testing.assert_close(mean_ND, (expected_ND - expected_ND.mean(dim=0)) / scale, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", but_costly(short_lane_of(OVER_TRAINING, 4), ["surrogate-top"]))
def test_an_attack_on_sums_finds_what_it_finds_on_every_step(name):
    """All rows and all epochs, in a ninth of the numbers: the AUC differs by rounding, and a little if starts are drawn.

    Paired energy is whitened by the steps before, and has an epoch less. Low energy guesses at a gap, so it reads a silent class.
    """
    view = noisy_class(TRUTH, share=0.5) if name == "low-energy" else planted_view(TRUTH, gap=1.2, epochs=9)
    attacks = {name: LABEL_INFERENCE_ATTACKS[name]}
    whole = replace(summed(view, torch.arange(len(TRUTH))).view(), flip=view.flip)
    everything = evaluate_label_inference(view, TRUTH, attacks=attacks)[name]
    sums = evaluate_label_inference(view.epoch(0), TRUTH, whole=whole, attacks=attacks)[name]
    if name == "unflipped":  # the side of a mean gradient has less noise than the mean of each gradient's side
        assert sums.symmetric_auc.mean > everything.symmetric_auc.mean - 0.01
        return
    assert sums.symmetric_auc.mean == pytest.approx(
        everything.symmetric_auc.mean, abs=0.02 if name.startswith("paired-energy") else 0.01
    )


def test_chosen_rows_are_spread_and_recur_in_every_epoch():
    """A third of the rows, each in all epochs, and not the first of a shuffled order, of which few recur."""
    view = planted_view(TRUTH, gap=1.0, epochs=3)
    rows_N = chosen_rows(torch.arange(len(TRUTH)).flip(0), most=1000)
    assert len(rows_N) == 1000
    assert int(rows_N.diff().max()) <= 4
    assert (int(rows_N[0]), int(rows_N[-1])) == (0, len(TRUTH) - 1)
    sums = summed(view, rows_N)
    assert sums.count_N.tolist() == [3] * 1000
    assert torch.equal(sums.view().steps[0].rows_B, rows_N)
    assert torch.equal(chosen_rows(torch.tensor([7, 3]), most=5), torch.tensor([7, 3]))
    assert sums.nbytes < 1000 * (3 * 4 * 6 + 52) + 4 * 6 * 6 + 4 * len(TRUTH)


def test_embeddings_that_the_label_party_receives_are_kept_as_they_came():
    sums = RowSums.zero("cut_embedding", torch.tensor([4, 2]), 3)
    sums.add(torch.tensor([2, 9, 4]), torch.arange(9.0).view(3, 3), torch.full((3, 3), torch.nan))
    sums.add(torch.tensor([2]), torch.full((1, 3), 10.0), torch.zeros(1, 3))
    sums.add(torch.tensor([9]), torch.zeros(1, 3), torch.zeros(1, 3))  # nobody's row
    (step,) = sums.view().steps
    assert step.rows_B.tolist() == [2, 4]
    torch.testing.assert_close(step.received_BD, torch.tensor([[10.0] * 3, [6.0, 7.0, 8.0]]))
    torch.testing.assert_close(step.mean_BD, torch.tensor([[5.0, 5.5, 6.0], [6.0, 7.0, 8.0]]))
    assert step.sightings_B.tolist() == [2, 1]


def test_rows_that_were_never_seen_are_no_view():
    with pytest.raises(DataError, match="none of the chosen rows was seen"):
        RowSums.zero("cut_gradient", torch.tensor([1]), 2).view()


def test_a_training_that_diverged_is_an_error_and_not_a_guess():
    view = planted_view(TRUTH[:300], gap=1.0, epochs=1)
    sums = summed(view, torch.arange(300))
    sums.sum_ND[5, 1] = torch.inf
    for name, row in OVER_TRAINING.items():
        if row.reads == "cut_gradient" and name.removesuffix("-unflipped") not in ELSEWHERE:
            with pytest.raises(DataError, match="training diverged"):
                evaluate_label_inference(view, TRUTH, whole=replace(sums.view(), flip=view.flip), attacks={name: row})
    sums.length_N[5] = sums.energy_NH[5] = sums.square_N[5] = torch.nan
    sums.white_count_N[5] = 2
    (step,) = sums.view().steps
    seen_twice = replace(sums.view(), steps=(replace(step, sightings_B=torch.full((300,), 2)),), flip=view.flip)
    for name in (*ELSEWHERE, *(f"{name}-unflipped" for name in ELSEWHERE)):
        with pytest.raises(DataError, match="NaN or infinite"):
            evaluate_label_inference(
                view,
                TRUTH,
                whole=seen_twice,
                attacks={name: LABEL_INFERENCE_ATTACKS[name]},
            )


def test_looks_at_a_row_are_few_for_a_wide_cut_and_spread_over_the_training():
    assert [most_looks(width) for width in (1, 4, 32, 128, 4096)] == [64, 64, 8, 2, 2]
    sums = RowSums.zero("cut_embedding", torch.tensor([3]), 128)
    for epoch in range(9):
        sums.add(torch.tensor([3]), torch.full((1, 128), float(epoch)), torch.zeros(1, 128))
        sums.epoch_ended(epoch)
    assert sums.look_epochs == (0, 8)
    (step,) = sums.view().steps
    assert step.looks_BE.shape == (1, 256)
    assert step.looks_BE[0, [0, 128]].tolist() == [0.0, 8.0]
    kept = []
    for epoch in range(40):
        kept = spread_over([*kept, epoch], most=5)
    assert (kept[0], kept[-1], len(kept)) == (0, 39, 5)


def test_epochs_in_words():
    assert epochs_in_words([0]) == "1"
    assert epochs_in_words(range(30)) == "1 to 30"
    assert epochs_in_words([0, 1, 2, 6, 8, 9]) == "1 to 3, 7 and 9 to 10"


def test_some_rows_of_sums_are_the_sums_of_these_rows():
    view = planted_view(TRUTH, gap=1.0, epochs=3)
    every = summed(view, torch.arange(len(TRUTH)))
    some = every.some(100)
    rows_N = chosen_rows(torch.arange(len(TRUTH)), most=100)
    alone = summed(view, rows_N)
    assert torch.equal(some.rows_N, rows_N)
    assert (some.epochs, some.count_N.tolist()) == (alone.epochs, alone.count_N.tolist())
    for name in ("sum_ND", "last_ND", "length_N"):
        assert torch.equal(getattr(some, name), getattr(alone, name))
    assert torch.equal(every.some(10**6).sum_ND, every.sum_ND)


def test_a_row_that_stands_twice_in_a_batch_counts_twice():
    """Its mean is that of both."""
    rows_B, gradient_BD = torch.tensor([0, 1, 1, 2, 3]), torch.randn(5, 4)
    sums = RowSums.zero("cut_gradient", torch.arange(4), 4)
    sums.add(rows_B, torch.randn(5, 4), gradient_BD)
    sums.epoch_ended(0)
    assert sums.count_N.tolist() == [1, 2, 1, 1]
    expected_BD = rescaled(gradient_BD, dtype=torch.float32)
    torch.testing.assert_close(sums.sum_ND[1] / 2, (expected_BD[1] + expected_BD[2]) / 2)
    torch.testing.assert_close(sums.sum_ND[3], expected_BD[4])


@pytest.mark.parametrize("received", ["cut_gradient", "cut_embedding"])
def test_steps_summed_together_are_those_summed_one_by_one(received, monkeypatch):
    """Batches have any sizes: the last one of an epoch is smaller, and one without a chosen row is left out."""
    source, found = torch.Generator().manual_seed(3), []
    sizes = (*20 * [40], 7, 40, 1)
    steps = [(torch.randperm(300, generator=source)[:size], torch.randn(2, size, 5, generator=source)) for size in sizes]
    steps.insert(3, (torch.arange(1000, 1040), torch.randn(2, 40, 5, generator=source)))
    for together in (1, 16):
        monkeypatch.setattr("tallystick.attacks.row_sums.PENDING_STEPS", together)
        sums = RowSums.zero(received, torch.arange(0, 300, 3), 5)
        for rows_B, (embedding_BD, gradient_BD) in steps:
            sums.add(rows_B, embedding_BD, gradient_BD)
        sums.epoch_ended(0)
        found.append(sums)
    one_by_one, whole = found
    for name in ("sum_ND", "last_ND", "length_N", "count_N", "looks_LND", "looks_at_LN"):
        torch.testing.assert_close(getattr(whole, name), getattr(one_by_one, name))
    assert int(whole.count_N.sum()) == sum(int((rows_B % 3 == 0).sum()) for rows_B, _ in steps[:3] + steps[4:])
