"""What a party does around its optimizer: the rate of each step, clipping, averaged weights, with PyTorch's own as oracles."""

import pytest
import torch
from loops import ROWS, Setting, assert_same_bits, training, weights_of
from test_step import in_process

from tallystick.training.updates import Updates, decay_at, rate_at


def test_the_rate_rises_and_falls_as_pytorch_has_it():
    steps, rising = 50, 10
    how = training(schedule="cosine", warm_up=rising / steps)
    ours = [rate_at(how, step, steps) for step in range(1, steps + 1)]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=how.learning_rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - rising)
    expected = [how.learning_rate * step / rising for step in range(1, rising + 1)]
    for _ in range(steps - rising):
        expected += falling.get_last_lr()
        optimizer.step()
        falling.step()
    assert ours == pytest.approx(expected, rel=1e-9)
    assert 0 < ours[-1] < how.learning_rate / 100
    assert {rate_at(training(), step, steps) for step in (1, steps)} == {training().learning_rate}
    assert rate_at(training(schedule="cosine"), 1, 1) == how.learning_rate


def test_weights_are_averaged_as_pytorch_has_it():
    module = torch.nn.Linear(3, 2)
    updates = Updates(training(optimizer="sgd", ema=0.99), module, steps=40)
    mean = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=None, avg_fn=lambda *_: None)
    mean.update_parameters(module)
    for step in range(1, 41):
        mean.avg_fn = torch.optim.swa_utils.get_ema_avg_fn(decay_at(0.99, step))
        updates.zero_grad()
        (module(torch.randn(8, 3, generator=torch.Generator().manual_seed(step))) ** 2).sum().backward()
        updates.step(step)
        mean.update_parameters(module)
    present = module.weight.detach().clone()
    with updates.averaged():
        assert not torch.allclose(module.weight, present, atol=1e-4)
        assert torch.allclose(module.weight, mean.module.weight, atol=1e-6)
    assert torch.equal(module.weight, present)
    assert decay_at(0.99, 10_000) == 0.99


@pytest.mark.parametrize(("clip", "expected"), [(0.5, 0.5), (1e6, 10.0)])
def test_gradients_are_clipped_to_a_norm(clip, expected):
    module = torch.nn.Linear(2, 1, bias=False)
    before = module.weight.detach().clone()
    updates = Updates(training(optimizer="sgd", learning_rate=1.0, clip=clip), module, steps=1)
    (module.weight @ torch.tensor([6.0, 8.0])).sum().backward()
    updates.step(1)
    assert (module.weight - before).norm().item() == pytest.approx(expected, rel=1e-5)


def test_one_process_and_the_parties_keep_the_same_averages(tmp_path):
    setting = Setting(parties=("club", "shop"))
    how = training(optimizer="adamw", schedule="cosine", ema=0.95, clip=0.2)
    networked, _ = setting.train(how, tmp_path)
    modules = in_process(setting, how, averaged=True)
    assert_same_bits(weights_of(networked), weights_of(modules))


def test_validation_is_of_the_averaged_weights(tmp_path):
    """The weights hardly move any more, and are averaged from the start. Their loss is that of the kept model, not of
    the last step.
    """
    setting = Setting(validation=100)
    how = training(epochs=1, ema=0.999, learning_rate=0.05)
    (bottoms, label), (state, _) = setting.train(how, tmp_path)
    index_V = setting.schedule.validation_N
    with torch.no_grad():
        cuts_BD = [bottoms["shop"](setting.columns["shop"].rows(index_V))]
        logits = label(cuts_BD, setting.own_columns.rows(index_V))
    kept = setting.objective.validation_loss(logits, index_V).item()
    assert state.history[0]["validation_loss"] == pytest.approx(kept, rel=1e-5)
    _, (other, _) = setting.train(how.model_copy(update={"ema": None}), tmp_path / "plain")
    assert abs(other.history[0]["validation_loss"] - kept) > 1e-3
    assert len(index_V) < ROWS
