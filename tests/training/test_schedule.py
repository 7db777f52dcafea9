"""Kinds of batches: steps in which nothing crosses, phases before the usual epochs, batches for which other rows cross."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from lanes import by_turns, short_lane_of
from loops import BATCH, Setting, assert_same_bits, training, weights_of, weights_of_joined
from test_resume import Unplugged, Until
from test_step import Wire, in_process

from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.plan import Phase, Schedule

LOCAL = 75  # positions that only the label party has: two batches and a part of one
MODES = [{}, {"mode": "pipelined", "staleness": 5}]


def scheduled(*, before=2, **how):
    """A network with some rows of the label party alone, after a phase of only these."""
    setting = Setting(parties=("club", "shop"), validation=40, **how)
    order_N = setting.schedule.train_N
    phases = (Phase(epochs=before, local_N=order_N[:LOCAL]),) if before else ()
    setting.schedule = replace(setting.schedule, train_N=order_N[LOCAL:], local_N=order_N[:LOCAL], before=phases)
    return setting


def plain(setting, how):
    """Do the same in plain PyTorch: one optimizer, zeros for absent values. Return the weights after every epoch."""
    joined = setting.joined()
    optimizer = torch.optim.Adam(joined.parameters(), lr=how.learning_rate, fused=True)
    after = []
    for epoch in range(setting.schedule.epochs_before + how.epochs):
        for batch in setting.schedule.epoch(epoch):
            index_B = batch.index_B
            optimizer.zero_grad()
            if set(index_B.tolist()) <= set(setting.schedule.local_N.tolist()):
                cuts_BD = [torch.zeros(len(index_B), bottom.width) for bottom in joined.bottoms]
                logits = joined.label(cuts_BD, setting.own_source(index_B))
            else:
                logits = joined([source(index_B) for source in setting.sources], setting.own_source(index_B))
            setting.objective(logits, index_B)[0].backward()
            optimizer.step()
        after.append({name: weight.clone() for name, weight in weights_of_joined(joined, setting.parties).items()})
    return after


def test_local_batches_and_a_phase_before_are_plain_training_to_the_bit(tmp_path):
    setting, how = scheduled(), training(patience=None)
    epochs = plain(setting, how)
    networked, (state, *_) = setting.train(how, tmp_path)
    steps = sum(len(list(setting.schedule.epoch(epoch))) for epoch in range(5))
    alone = in_process(setting, how.model_copy(update={"epochs": 5}), steps=steps)
    assert_same_bits(weights_of(alone), epochs[-1])
    assert_same_bits(weights_of(networked), epochs[state.best_epoch])
    assert state.best_epoch >= setting.schedule.epochs_before
    assert len(state.history) == 5
    bottoms = [name for name in epochs[0] if not name.startswith("bank/")]
    assert all(torch.equal(epochs[0][name], epochs[1][name]) for name in bottoms)
    assert not all(torch.equal(epochs[1][name], epochs[2][name]) for name in bottoms)


@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "pipelined"])
def test_nothing_of_a_local_batch_crosses(mode, tmp_path):
    setting, wires = scheduled(), []

    def wrapped(channel):
        wires.append(Wire(channel))
        return wires[-1]

    setting.train(training(**mode), tmp_path, wrap=wrapped)
    joint = [batch for epoch in range(5) for batch in setting.schedule.epoch(epoch) if not batch.is_local]
    assert len(wires) == 2
    for wire in wires:
        rows = sum(len(values_BD) for step, values_BD in wire.gradients.items())
        assert rows == sum(len(batch.index_B) for batch in joint) == 3 * len(setting.schedule.train_N)
        assert set(wire.gradients) <= {batch.step for batch in joint}
        assert min(wire.gradients) == 2 * 3 + 1 + (next(iter(setting.schedule.epoch(2))).is_local)


@pytest.mark.parametrize(
    ("sends", "mode"),
    [*by_turns([1, 13], MODES), *(pytest.param(sends, mode, marks=pytest.mark.long) for sends in (3, 6, 9) for mode in MODES)],
    ids=str,
)
def test_a_run_that_was_cut_goes_on_to_the_same_bits(mode, sends, tmp_path):
    setting, how = scheduled(), training(**mode, patience=3, checkpoint_every=2)
    whole, (state, *_) = setting.train(how, tmp_path / "whole")
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut", wrap=lambda channel: Until(channel, sends))
    resumed(setting, how, tmp_path / "cut", whole, state)


class Failing:
    """An objective that fails at one step, once."""

    def __init__(self, objective, step):
        self.objective, self.left = objective, step

    def __getattr__(self, name):
        return getattr(self.objective, name)

    def __call__(self, *arguments):
        self.left -= 1
        if self.left == 0:
            raise Unplugged
        return self.objective(*arguments)


@pytest.mark.parametrize("step", short_lane_of([2, 5, 8, 11, 19], 3))
def test_a_run_whose_label_party_failed_within_a_phase_goes_on_to_the_same_bits(step, tmp_path):
    """In a local phase the feature parties have nothing to do: they must not commit ahead of the label party."""
    setting, how = scheduled(before=3), training(patience=None, checkpoint_every=1)
    whole, (state, *_) = setting.train(how, tmp_path / "whole")
    sound, setting.objective = setting.objective, Failing(setting.objective, step)
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut")
    setting.objective = sound
    resumed(setting, how, tmp_path / "cut", whole, state, least=(step - 1) // 3 * 3 if step <= 9 else step - 4)


def resumed(setting, how, folder, whole, state, *, least=0):
    steps = [set(CheckpointStore(folder / party).steps()) for party in ("bank", "club", "shop")]
    common = max(set.intersection(*steps), default=0)
    assert common >= least
    found, (again, *_) = setting.train(how, folder, resume_from=common)
    assert_same_bits(weights_of(found), weights_of(whole))
    assert (state.step, state.best_epoch, state.best_loss) == (again.step, again.best_epoch, again.best_loss)
    timeless = [[{**epoch, "seconds": 0} for epoch in each.history] for each in (state, again)]
    assert timeless[0] == timeless[1]


class Scripted:
    """An objective whose validation loss is given, epoch by epoch."""

    def __init__(self, objective, losses):
        self.objective, self.losses = objective, iter(losses)

    def __call__(self, *arguments):
        return self.objective(*arguments)

    def validation_loss(self, *_):
        return torch.tensor(next(self.losses))

    def fitted(self):
        return {}


def test_an_epoch_of_a_phase_before_is_no_candidate_for_the_best(tmp_path):
    """If the usual epochs only make it worse, the best of them is still the best, and patience counts from there."""
    setting = scheduled(before=3)
    setting.objective = Scripted(setting.objective, [0.3, 0.1, 0.2, 0.9, 0.8, 0.85, 0.5])
    _, (state, other, _) = setting.train(training(epochs=6, patience=1), tmp_path)
    assert (state.epoch, state.best_epoch, state.stopped) == (6, 4, True)
    assert state.best_loss == pytest.approx(0.8)
    assert (other.epoch, other.best_epoch, other.stopped) == (6, 4, True)


@pytest.mark.parametrize("epochs", [(), (2,), (1, 3)])
def test_steps_are_numbered_through(epochs):
    before = tuple(Phase(epochs=count, joint_N=torch.arange(40 * (number + 1))) for number, count in enumerate(epochs))
    schedule = Schedule(
        train_N=torch.arange(100),
        validation_N=torch.arange(0),
        batch_size=BATCH,
        seed=3,
        local_N=torch.arange(100, 150),
        before=before,
    )
    batches = [batch for epoch in range(sum(epochs) + 3) for batch in schedule.epoch(epoch)]
    assert [batch.step for batch in batches] == list(range(1, len(batches) + 1))
    assert schedule.steps_before(sum(epochs) + 3) == len(batches)
    for batch, after in pairwise(batches):
        assert (after.number == 0) == (batch.epoch != after.epoch)
    usual = [batch for batch in batches if batch.epoch == sum(epochs)]
    assert [batch.is_local for batch in usual] == [False, True, False, False, True, False]
    positions = torch.cat([batch.index_B for batch in usual])
    assert sorted(positions.tolist()) == list(range(150))
