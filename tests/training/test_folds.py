"""Networks side by side, one for each fold: each learns like one that is trained alone on the other folds, and judges its own."""

import pytest
import torch
from lanes import by_turns
from loops import OWN, ROWS, SHAPES, Setting, assert_same_bits, training, weights_of, weights_of_joined
from safetensors.torch import load_file
from test_resume import Unplugged, Until

from tallystick.errors import ProtocolError
from tallystick.models.build import build_bottom, build_label_model
from tallystick.models.folds import FoldedLabelModel
from tallystick.models.split import CentralizedModel
from tallystick.network.channel import memory_channels
from tallystick.training.centralized import train_joined
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.folds import FoldedObjective, untaught, validation_losses
from tallystick.training.objective import Supervised
from tallystick.training.single_process import SplitNetwork
from tallystick.training.training_messages import CutWidth, receive_width

OPTIMIZERS = {"adam": {"optimizer": "adam"}, "sgd": {"optimizer": "sgd", "learning_rate": 0.1}}
KINDS = ("binary", "multiclass", "regression")


def alone(setting, member, how):
    """Train one member in plain PyTorch: on each batch without its fold's rows."""
    start, outputs = f"fold-{member}" if member else "", 3 if setting.kind == "multiclass" else 1
    bottom = build_bottom(setting.model, "shop", SHAPES["shop"], seed=1, name=start)
    name = f"bank/{start}" if start else "bank"
    label = build_label_model(setting.model, name, OWN, [bottom.width], outputs=outputs, seed=1)
    model = CentralizedModel([bottom], label).train()
    plain = Setting(kind=setting.kind, weights=setting.weights).objective
    optimizer = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[how.optimizer](model.parameters(), lr=how.learning_rate)
    for epoch in range(how.epochs):
        for batch in setting.schedule.epoch(epoch):
            taught_B = batch.index_B[setting.fold_N[batch.index_B] != member]
            optimizer.zero_grad()
            loss, _ = plain(model([setting.columns["shop"].rows(taught_B)], setting.own_columns.rows(taught_B)), taught_B)
            torch.autograd.backward(loss)
            optimizer.step()
    return model.eval()


@pytest.mark.parametrize(("kind", "optimizer"), by_turns(KINDS, OPTIMIZERS))
def test_each_member_learns_as_if_it_were_alone(kind, optimizer, tmp_path):
    optimizer = OPTIMIZERS[optimizer]
    setting, how = Setting(kind=kind, folds=3, weights=kind == "binary"), training(**{**optimizer, "epochs": 2})
    (bottoms, label), _ = setting.train(how, tmp_path)
    all_N = torch.arange(ROWS)
    models = [alone(setting, member, how) for member in range(3)]
    own, shop = setting.own_columns.rows(all_N), setting.columns["shop"].rows(all_N)
    with torch.no_grad():
        cut_BD = bottoms["shop"].eval()(shop)
        with label.eval().apart():
            each = label([cut_BD], own)
        mean = label([cut_BD], own)
        with label.first_alone():
            first = label([cut_BD], own)
        found = [model([shop], own) for model in models]
    for member, expected in enumerate(found):
        torch.testing.assert_close(each[:, member], expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(first, each[:, 0])
    torch.testing.assert_close(mean, torch.stack(found).mean(dim=0), rtol=1e-3, atol=1e-4)
    assert (found[0] - found[1]).abs().max() > 0.01, "they learnt from other rows, from other starts"


def test_no_gradient_of_a_rows_own_member_crosses():
    setting = Setting(folds=4)
    bottoms, label = setting.modules()
    network = SplitNetwork(
        bottoms=list(bottoms.values()),
        sources=setting.sources,
        model=label,
        own=setting.own_source,
        objective=setting.objective,
        training=training(epochs=1),
        schedule=setting.schedule,
    )
    for step in network.epoch(0):
        (grad_BD,), fold_B = step.answer.grads_BD, setting.fold_N[step.batch.index_B]
        is_zero_BM = (grad_BD.view(len(fold_B), 4, -1) == 0).all(dim=2)
        assert is_zero_BM[torch.arange(len(fold_B)), fold_B].all()
        assert is_zero_BM.float().mean() < 0.5, "but for a few units that are at rest, the other members learn"


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_judged_by_the_member_that_it_did_not_teach(kind):
    generator = torch.Generator().manual_seed(1)
    shape = (50, 3, 3) if kind == "multiclass" else (50, 3)
    logits, fold_N = torch.randn(shape, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    target_N = {
        "binary": torch.randint(0, 2, (60,), generator=generator).float(),
        "multiclass": torch.randint(0, 3, (60,), generator=generator),
        "regression": torch.randn(60, generator=generator),
    }[kind]
    plain, index_N = Supervised(kind, target_N), torch.randperm(60, generator=generator)[:50]
    each = [plain(logits[row : row + 1, fold_N[index]], index_N[row : row + 1])[0] for row, index in enumerate(index_N.tolist())]
    found = FoldedObjective(plain, fold_N, members=3).validation_loss(logits, index_N)
    torch.testing.assert_close(found, torch.stack(each).mean())


def test_a_batch_of_one_fold_teaches_its_member_nothing():
    logits = torch.randn(5, 2, requires_grad=True)
    objective = FoldedObjective(Supervised("binary", torch.ones(5)), torch.ones(5, dtype=torch.int64), members=2)
    loss, targets_B = objective(logits, torch.arange(5))
    torch.autograd.backward(loss)
    assert loss > 0
    assert (logits.grad[:, 0] != 0).all()
    assert (logits.grad[:, 1] == 0).all()
    assert torch.equal(targets_B, torch.ones(5))


def test_which_member_meets_no_row_of_a_class():
    labels_N, fold_N = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 1, 2, 2, 1, 1])
    assert untaught(labels_N, fold_N, classes=4, members=3) == [(1, 2), (2, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_compared_by_its_loss_on_the_fold_that_it_judges(kind):
    setting = Setting(kind=kind, folds=3, weights=True)
    shape = (ROWS, 3, 3) if kind == "multiclass" else (ROWS, 3)
    logits, index_N = torch.randn(shape, generator=torch.Generator().manual_seed(2)), torch.randperm(ROWS)
    found = validation_losses(setting.objective, logits, index_N)
    plain = Setting(kind=kind, weights=True).objective
    for member, loss in enumerate(found.each):
        own_N = setting.fold_N[index_N] == member
        assert loss == pytest.approx(plain.validation_loss(logits[own_N, member], index_N[own_N]).item(), rel=1e-6)
    assert found.common == setting.objective.validation_loss(logits, index_N).item()
    assert validation_losses(plain, logits[:, 0], index_N).each == [plain.validation_loss(logits[:, 0], index_N).item()]


class Scripted(FoldedObjective):
    """A loss of networks side by side whose validation losses are given, one validation after the other: the common
    one, and each.
    """

    def script(self, losses):
        self.losses = iter(losses)
        return self

    def validation_loss(self, *_):
        common, self.each_loss = next(self.losses)
        return torch.tensor(common)

    def validation_losses(self, *_):
        return list(self.each_loss)


LOSSES = [
    (0.5, (0.9, 0.9, 0.9)),
    (0.4, (0.7, 0.8, 0.9)),  # no better is not better
    (0.6, (0.8, 0.6, 0.8)),
    (0.7, (0.7, 0.7, 0.7)),  # patience counts from the epoch of the least common loss, and ends training here
    (0.0, (0.0, 0.0, 0.0)),
]
BEST = [2, 3, 4]  # the epoch, counted from 1, whose weights each network keeps


@pytest.mark.parametrize("ema", [None, 0.9], ids=["plain", "averaged"])
def test_each_network_keeps_the_weights_of_its_own_best_step(ema, tmp_path):
    setting, how = Setting(folds=3), training(epochs=5, patience=2, ema=ema)
    setting.objective = Scripted(setting.objective.each, setting.fold_N, members=3).script(LOSSES)
    modules, (label, feature) = setting.train(how, tmp_path)
    assert (label.epoch, label.stopped, label.best_epoch, label.network_losses) == (4, True, 1, [0.7, 0.6, 0.7])
    assert label.best_step == feature.best_step == 4 * setting.schedule.steps_per_epoch
    expected = {}
    for member, epochs in enumerate(BEST):
        joined = setting.joined()
        with_steps = {"training": how, "schedule": setting.schedule, "steps": epochs * setting.schedule.steps_per_epoch}
        train_joined(joined, [*setting.sources, setting.own_source], setting.objective, **with_steps)
        weights = weights_of_joined(joined, setting.parties)
        expected |= {
            name: weights[name] for name in weights if name.startswith((f"shop/members.{member}.", f"bank/top.{member}."))
        }
    assert_same_bits(weights_of(modules), expected)


def best_steps(folder):
    """Return, for both parties, after which steps weights were kept last, and before that."""
    steps = {name: sorted(int(path.stem[5:]) for path in (folder / name).glob("best-*")) for name in ("bank", "shop")}
    assert steps["bank"] == steps["shop"]
    return reversed(steps["bank"][-2:])


@pytest.mark.parametrize("how", [{}, {"mode": "pipelined", "staleness": 2, "ema": 0.9}], ids=["synchronous", "pipelined"])
def test_a_run_that_is_cut_goes_on_to_the_same_bits(how, tmp_path):
    setting, how = Setting(folds=3, validations=2), training(**how, epochs=5, patience=5, learning_rate=0.05)
    whole, (state, _) = setting.train(how, tmp_path / "whole")
    assert isinstance(whole[1], FoldedLabelModel)
    kept, before = (
        load_file(tmp_path / "whole" / "bank" / f"best-{step}.safetensors") for step in best_steps(tmp_path / "whole")
    )
    same = {name for name in kept if name.endswith("weight") and torch.equal(kept[name], before[name])}
    assert 0 < len(same) < len(kept) / 2, "the last step was the best one of some networks only"
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut", wrap=lambda channel: Until(channel, 50))
    common = max(set.intersection(*(set(CheckpointStore(tmp_path / "cut" / name).steps()) for name in ("bank", "shop"))))
    again, (resumed, _) = setting.train(how, tmp_path / "cut", resume_from=common)
    assert 0 < common < state.step
    assert (resumed.best_step, resumed.network_losses) == (state.best_step, state.network_losses)
    assert_same_bits(weights_of(whole), weights_of(again))


def test_a_width_that_the_networks_do_not_share_equally_is_refused():
    label, feature = memory_channels("bank", "shop", timeout_s=5)
    for width in (24, 26):
        feature.send(CutWidth(width=width))
    assert receive_width(label, rows=10, max_message_bytes=1 << 20, networks=3) == 24
    with pytest.raises(ProtocolError, match="a cut width of 26, which 3 networks side by side"):
        receive_width(label, rows=10, max_message_bytes=1 << 20, networks=3)
