"""A refit is the joined network's training over all rows, to the bit, and has the same bits wherever it is interrupted."""

from itertools import product

import pytest
import torch
from lanes import short_lane_of
from loops import Setting, assert_same_bits, training, weights_of, weights_of_joined
from test_resume import Unplugged, Until

from tallystick.training.centralized import train_joined
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule

ALL = {"optimizer": "adamw", "schedule": "cosine", "warm_up": 0.2, "ema": 0.9, "clip": 0.1}
HOWS = {"plain": {}, "all": ALL}


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
def test_a_refit_is_the_joined_training_of_all_rows_for_the_best_number_of_epochs(how, tmp_path):
    """Use noise as labels, so that the best epoch is not the last one."""
    setting = Setting(parties=("club", "shop"), validation=60)
    target_N = torch.randint(0, 2, (330,), generator=torch.Generator().manual_seed(0)).float()
    setting.objective = Supervised("binary", target_N)
    how = training(**how, epochs=20, patience=2)
    modules, (state, *_) = setting.train(how, tmp_path, refit=True)
    assert 0 < state.refit_epochs < state.first_epochs < 20
    joined = setting.joined()
    train_joined(
        joined,
        [*setting.sources, setting.own_source],
        setting.objective,
        training=how,
        schedule=setting.anew.after(setting.schedule, epochs=state.first_epochs),
        steps=state.refit_epochs * setting.anew.steps_per_epoch,
        first_epoch=state.first_epochs,
    )
    assert_same_bits(weights_of(modules), weights_of_joined(joined, setting.parties))


def test_the_validated_training_is_that_of_a_run_without_a_refit(tmp_path):
    setting, how = Setting(validation=60), training(patience=2)
    plain, (without, *_) = setting.train(how, tmp_path / "plain")
    refitted, (state, *_) = setting.train(how, tmp_path / "refit", refit=True)
    first = [{**epoch, "seconds": 0} for epoch in state.history[: state.first_epochs]]
    assert first == [{**epoch, "seconds": 0} for epoch in without.history]
    assert (state.refit_epochs - 1, state.best_loss) == (without.best_epoch, without.best_loss)
    assert all("validation_loss" not in epoch for epoch in state.history[state.first_epochs :])
    assert not torch.equal(weights_of(plain)["bank/top.output.weight"], weights_of(refitted)["bank/top.output.weight"])


MODES = {"synchronous": {}, "pipelined": {"mode": "pipelined", "staleness": 2}, "averaged": ALL}


@pytest.fixture(scope="module")
def uncut(request, tmp_path_factory):
    """Return the setting, how it is trained, and the result without an interruption."""
    setting, how = Setting(parties=("club", "shop"), validation=40), training(**MODES[request.param], patience=3)
    return setting, how, setting.train(how, tmp_path_factory.mktemp("whole"), refit=True)


@pytest.mark.parametrize(("uncut", "sends"), short_lane_of(product(MODES, [11, 36, 46, 60]), 2), indirect=["uncut"])
def test_a_refit_that_is_cut_goes_on_to_the_same_bits(uncut, sends, tmp_path):
    """Interrupted in the first training, at its end, and in the refit, between and at checkpoints."""
    setting, how, (whole, (state, *_)) = uncut
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut", wrap=lambda channel: Until(channel, sends), refit=True)
    stores = [CheckpointStore(tmp_path / "cut" / party) for party in ("bank", "club", "shop")]
    common = max(set.intersection(*(set(store.intact()[0]) for store in stores)), default=0)
    resumed, (again, *_) = setting.train(how, tmp_path / "cut", resume_from=common, refit=True)
    assert_same_bits(weights_of(resumed), weights_of(whole))
    timeless = [[{**epoch, "seconds": 0} for epoch in found.history] for found in (state, again)]
    assert timeless[0] == timeless[1]


def test_epochs_and_steps_count_on():
    """Noise depends on a step's number, and kept views on an epoch's: neither may be repeated."""
    rows = torch.arange(100)
    first = Schedule(train_N=rows[:80], validation_N=rows[80:], batch_size=32, seed=1)
    anew = Schedule(train_N=rows, validation_N=rows[:0], batch_size=32, seed=1).after(first, epochs=5)
    batches = [batch for epoch in (5, 6) for batch in anew.epoch(epoch)]
    assert [batch.step for batch in batches] == list(range(5 * 3 + 1, 5 * 3 + 1 + 2 * 4))
    assert [batch.epoch for batch in batches] == [5] * 4 + [6] * 4
    assert torch.cat([batch.index_B for batch in batches[:4]]).sort().values.equal(rows)
    assert not torch.equal(batches[0].index_B, batches[4].index_B)
