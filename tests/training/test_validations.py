"""Weights are compared within an epoch: the best of them have the bits after that many steps, wherever a run is interrupted."""

from itertools import product

import pytest
import torch
from lanes import short_lane_of
from loops import Setting, assert_same_bits, training, weights_of, weights_of_joined
from test_resume import AVERAGED, Unplugged, Until

from tallystick.training.centralized import train_joined
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.objective import Supervised
from tallystick.training.plan import Batch, Schedule

PARTIES = ("club", "shop")
MODES = {"synchronous": {}, "pipelined": {"mode": "pipelined", "staleness": 2}, "averaged": AVERAGED}


def noisy(**given):
    """Use noise as labels, so that the best weights come early."""
    setting = Setting(parties=PARTIES, validation=100, validations=3, **given)
    target_N = torch.randint(0, 2, (330,), generator=torch.Generator().manual_seed(8)).float()
    setting.objective = Supervised("binary", target_N)
    return setting


def joined(setting, how, *, schedule, steps, first_epoch=0):
    model = setting.joined()
    train_joined(
        model,
        [*setting.sources, setting.own_source],
        setting.objective,
        training=how,
        schedule=schedule,
        steps=steps,
        first_epoch=first_epoch,
    )
    return weights_of_joined(model, PARTIES)


@pytest.mark.parametrize("how", [{}, AVERAGED], ids=["plain", "averaged"])
def test_the_best_weights_within_an_epoch_are_those_of_so_many_steps(how, tmp_path):
    setting, how = noisy(), training(**{**how, "learning_rate": 0.02}, epochs=12, patience=2)
    modules, (state, *others) = setting.train(how, tmp_path)
    assert state.best_step % setting.schedule.steps_per_epoch, "not at the end of an epoch"
    assert {(each.best_epoch, each.best_step, each.epoch) for each in others} == {
        (state.best_epoch, state.best_step, state.epoch)
    }
    assert state.epoch == state.best_epoch + 1 + 2 < 12
    assert min(epoch["validation_loss"] for epoch in state.history) == state.best_loss
    assert_same_bits(weights_of(modules), joined(setting, how, schedule=setting.schedule, steps=state.best_step))


def test_a_refit_takes_as_many_passes_as_were_best(tmp_path):
    setting, how = noisy(), training(**AVERAGED, learning_rate=0.02, epochs=12, patience=2)
    modules, (state, *others) = setting.train(how, tmp_path, refit=True)
    anew = setting.anew.after(setting.schedule, epochs=state.first_epochs)
    _, (first, *_) = setting.train(how, tmp_path / "first")
    assert state.refit_steps == round(first.best_step * 11 / 8)
    assert {each.step for each in (state, *others)} == {state.first_epochs * 8 + state.refit_steps}
    assert_same_bits(
        weights_of(modules),
        joined(setting, how, schedule=anew, steps=state.refit_steps, first_epoch=state.first_epochs),
    )


@pytest.fixture(scope="module")
def uncut(request, tmp_path_factory):
    """Return the setting, how it is trained, and the result without an interruption."""
    setting, how = noisy(), training(**MODES[request.param], learning_rate=0.02, epochs=6, patience=2, checkpoint_every=5)
    return setting, how, setting.train(how, tmp_path_factory.mktemp("whole"), refit=True)


@pytest.mark.parametrize(("uncut", "sends"), short_lane_of(product(MODES, [4, 9, 17, 23, 31, 42, 55]), 2), indirect=["uncut"])
def test_a_run_that_is_cut_goes_on_to_the_same_bits(uncut, sends, tmp_path):
    """Interrupted before, between and at comparisons, checkpoints and ends of epochs, and in the refit."""
    setting, how, (whole, (state, *_)) = uncut
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut", wrap=lambda channel: Until(channel, sends), refit=True)
    stores = [CheckpointStore(tmp_path / "cut" / party) for party in ("bank", *PARTIES)]
    common = max(set.intersection(*(set(store.intact()[0]) for store in stores)), default=0)
    assert common >= min(sends // 2 - 6, 20)
    resumed, (again, *_) = setting.train(how, tmp_path / "cut", resume_from=common, refit=True)
    assert_same_bits(weights_of(resumed), weights_of(whole))
    timeless = [[{**epoch, "seconds": 0} for epoch in found.history] for found in (state, again)]
    assert timeless[0] == timeless[1]
    assert (state.step, state.best_step, state.best_loss) == (again.step, again.best_step, again.best_loss)


@pytest.mark.parametrize(("steps", "times", "size", "after"), [
    (8, 1, 1, []),
    (8, 4, 1, [2, 4, 6]),
    (8, 3, 1, [3, 6]),
    (8, 64, 1, [1, 2, 3, 4, 5, 6, 7]),
    (8, 4, 3, [3, 6]),
    (1, 4, 1, []),
])  # fmt: skip
def test_where_an_epoch_compares(steps, times, size, after):
    rows = torch.arange(steps * 10)
    schedule = Schedule(train_N=rows, validation_N=rows[:1], batch_size=10, seed=1, validations=times)
    for epoch in (0, 3):
        groups = list(schedule.messages(epoch, size=size))
        assert [group[-1].number + 1 for group in groups if schedule.validates(group)] == after
    without = Schedule(train_N=rows, validation_N=rows[:0], batch_size=10, seed=1, validations=times)
    assert not any(without.validates(group) for group in without.messages(0, size=size))


def test_phases_before_compare_at_their_ends_alone():
    rows = torch.arange(80)
    first = Schedule(train_N=rows, validation_N=rows[:1], batch_size=10, seed=1, validations=4)
    later = first.after(first, epochs=2)
    batch = Batch(step=2, epoch=1, number=3, index_B=rows[:10])
    assert first.validates([batch])
    assert not later.validates([batch])
