"""Batch normalisation below the cut: resumed to the same bits, averaged with the weights, and separate for each branch."""

import pytest
import torch
from loops import Setting, assert_same_bits, training, weights_of
from test_resume import AVERAGED, Unplugged, Until

from tallystick.config.sections import NetworkModel
from tallystick.config.unaligned import CLASSES, WarmStartConfig
from tallystick.models.branches import FromLocal, SharedBottom
from tallystick.models.build import BranchParts, build_bottom
from tallystick.models.normalization import BatchNorm, statistics_of
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.objective import Supervised
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method_table import method_of
from tallystick.training.unaligned.warm_start import WarmStart
from tallystick.training.updates import Updates, decay_at

SHAPE = FeatureShape(numeric=3, cardinalities=())
MODEL = NetworkModel(hidden=(5, 4, 3), cut_after=2, normalization="batch")


def rows(count, seed=1):
    numbers = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return Features(numeric_NF=numbers, categorical_NG=torch.empty(count, 0, dtype=torch.int64))


def parts():
    return BranchParts(model=MODEL, party="bank", own=SHAPE, cut_width=2, outputs=1, seed=1)


def copied(module):
    return {name: statistic.clone() for name, statistic in statistics_of(module).items()}


def changed(before, module):
    return {name for name, statistic in statistics_of(module).items() if not torch.equal(before[name], statistic)}


@pytest.mark.parametrize("mode", [{}, {"mode": "pipelined", "staleness": 2}], ids=["synchronous", "pipelined"])
def test_resumed_training_equals_training_that_was_never_interrupted(mode, tmp_path):
    setting = Setting(normalization="batch", validation=40)
    how = training(**AVERAGED, **mode)
    whole, (state, _) = setting.train(how, tmp_path / "whole")
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut", wrap=lambda channel: Until(channel, 12))
    steps = [set(CheckpointStore(tmp_path / "cut" / party).steps()) for party in ("bank", "shop")]
    resumed, (again, _) = setting.train(how, tmp_path / "cut", resume_from=max(set.intersection(*steps)))
    assert_same_bits(weights_of(resumed), weights_of(whole))
    assert [epoch["validation_loss"] for epoch in again.history] == [epoch["validation_loss"] for epoch in state.history]
    assert any("running_mean" in name for name in weights_of(whole))


def test_in_use_a_row_does_not_depend_on_the_rows_beside_it():
    bottom = build_bottom(MODEL, "bank", SHAPE, seed=1)
    for _ in range(50):
        bottom(rows(64))
    together_BD = bottom.eval()(rows(6))
    torch.testing.assert_close(torch.cat([bottom(rows(6).rows(torch.tensor([row]))) for row in range(6)]), together_BD)
    # in training it does, except for a batch of one row
    before = copied(bottom.train())
    torch.testing.assert_close(bottom(rows(6).rows(torch.tensor([2]))), together_BD[2:3])
    assert not changed(before, bottom)
    assert not torch.allclose(bottom(rows(6)), together_BD)
    assert changed(before, bottom) == set(before)


def test_a_layer_is_normalised_before_its_relu():
    bottom = build_bottom(MODEL, "bank", SHAPE, seed=1)
    linear, norm, relu = bottom.layers[:3]
    assert isinstance(norm, BatchNorm)
    values_BW = linear(rows(40).numeric_NF)
    scaled_BW = (values_BW - values_BW.mean(dim=0)) / (values_BW.var(dim=0, unbiased=False) + norm.eps).sqrt()
    torch.testing.assert_close(relu(norm(values_BW)), scaled_BW.clamp(min=0))


def test_statistics_are_averaged_as_the_weights_are():
    bottom = build_bottom(MODEL, "bank", SHAPE, seed=1)
    updates = Updates(training(ema=0.9), bottom, steps=4)
    expected = copied(bottom)
    for step in range(1, 5):
        updates.zero_grad()
        bottom(rows(20, seed=step)).sum().backward()
        updates.step(step)
        kept = decay_at(0.9, step)
        expected = {name: kept * expected[name] + (1 - kept) * now for name, now in copied(bottom).items()}
    present = copied(bottom)
    with updates.averaged():
        for name, statistic in statistics_of(bottom).items():
            torch.testing.assert_close(statistic, expected[name])
            assert not torch.equal(statistic, present[name])
    assert not changed(present, bottom)


def test_each_branch_over_one_bottom_has_statistics_of_its_own():
    joint = parts().joint()
    model = SharedBottom(joint, parts().top(4, "local-top"))
    names = set(statistics_of(model))
    before = copied(model)
    model.local(rows(20))
    local = {name for name in names if name.startswith("bottom_norms.")}
    assert len(local) == 4
    assert changed(before, model) == local
    before = copied(model)
    model([torch.randn(20, 2)], rows(20, seed=2))
    assert changed(before, model) == names - local
    before = copied(model.eval())
    alone = model.local(rows(20))
    assert not changed(before, model)
    assert not torch.allclose(alone, model.alone(model.embedded(rows(20))))


def test_a_model_of_unaligned_rows_that_stays_as_it_is_keeps_its_statistics():
    model = FromLocal(parts().joint(), parts().alone("unaligned"), offset=True)
    model.alone.train()
    model.alone([], rows(20))
    before = copied(model.train())
    with torch.no_grad():
        model([torch.randn(20, 2)], rows(20, seed=2))
    assert changed(before, model) == {name for name in before if name.startswith("bottom.")}


def test_a_warm_starts_prior_goes_by_the_first_models_statistics_and_leaves_them():
    """A simulated network is started before it is put into training mode, a job's after that. Both get the same probabilities."""
    method = WarmStart(settings=WarmStartConfig(method="warm-start"), batch_size=20, seed=1)
    model, own, index_N = method.model(parts()), rows(20, seed=2), torch.arange(20)
    model.alone.train()([], rows(50, seed=3))  # statistics of other rows, as after training
    before = copied(model.alone)
    objective = Supervised("binary", (own.numeric_NF.sum(dim=1) > 0).float())
    losses = []
    for start_N in (index_N, index_N.flip(0)[:19]):
        method.start(model, own.rows, start_N)
        model.alone.train()  # as it was made
        assert not changed(before, model.alone)
        batch = Batch(step=1, epoch=0, number=0, index_B=index_N[1:])
        losses.append(method.loss(model.eval(), objective, batch, [torch.ones(19, 2)], own.rows(index_N[1:]))[0])
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize(("rate", "frozen"), [(0.0, True), (0.2, False)])
@pytest.mark.parametrize("method", ["warm-start", "average"])
def test_a_bottom_at_rate_zero_keeps_its_statistics_and_goes_by_them(method, rate, frozen):
    model = method_of(CLASSES[method](method=method, warm_rate=rate), batch_size=20, seed=1).model(parts())
    bottom = (model if method == "warm-start" else model.first).train().bottom
    before = copied(bottom)
    model([torch.randn(20, 2)], rows(20, seed=2))
    assert bool(changed(before, bottom)) is not frozen
    assert torch.allclose(bottom(rows(6)), bottom.eval()(rows(6))) is frozen
