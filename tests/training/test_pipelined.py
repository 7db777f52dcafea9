"""Pipelined training equals a slow reference in one process, which computes each stale gradient from kept weights."""

import copy
import gc
import weakref

import pytest
import torch
from lanes import by_turns
from loops import Setting, assert_same_bits, training, weights_of

from tallystick.errors import PeerLost
from tallystick.network.channel import memory_channels
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.feature_party import train_feature_party
from tallystick.training.optimizers import optimizer_of
from tallystick.training.run import TrainingRun


def reference(setting, how):
    """Compute stale gradients explicitly: step s updates a bottom with the gradient at the weights with which its batch was
    embedded.

    Batch s is embedded when the gradients of all batches up to s - 1 - staleness are applied; at a checkpoint, and at an epoch's
    end, gradients in flight are applied first.
    """
    bottoms, label = setting.modules()
    optimizers = {name: optimizer_of(how, bottom) for name, bottom in bottoms.items()}
    label_optimizer = optimizer_of(how, label)
    for epoch in range(how.epochs):
        in_flight = []

        def apply_oldest(in_flight=in_flight):
            then, features, grads = in_flight.pop(0)
            for name, bottom in bottoms.items():
                old = copy.deepcopy(bottom)
                old.load_state_dict(then[name])
                found = torch.autograd.grad(old(features[name]), list(old.parameters()), grads[name])
                for parameter, grad in zip(bottom.parameters(), found, strict=True):
                    parameter.grad = grad
                optimizers[name].step(how.learning_rate)

        for batch in setting.schedule.epoch(epoch):
            then = {name: copy.deepcopy(bottom.state_dict()) for name, bottom in bottoms.items()}
            features = {name: columns.rows(batch.index_B) for name, columns in setting.columns.items()}
            cuts = [bottom(features[name]).detach().requires_grad_() for name, bottom in bottoms.items()]
            own = setting.own_columns.rows(batch.index_B) if setting.own else None
            loss, _ = setting.objective(label(cuts, own), batch.index_B)
            label_optimizer.zero_grad()
            loss.backward()
            label_optimizer.step(how.learning_rate)
            in_flight.append((then, features, {name: cut.grad for name, cut in zip(bottoms, cuts, strict=True)}))
            if len(in_flight) > how.staleness:
                apply_oldest()
            if batch.step % how.checkpoint_every == 0:
                while in_flight:
                    apply_oldest()
        while in_flight:
            apply_oldest()
    return weights_of((bottoms, label))


@pytest.mark.parametrize(
    ("staleness", "how"), by_turns([1, 2, 3], [{}, {"parties": ("club", "shop"), "own": False, "kind": "multiclass"}]), ids=str
)
def test_pipelined_training_equals_the_reference(how, staleness, tmp_path):
    setting = Setting(**how)
    how = training(mode="pipelined", staleness=staleness, checkpoint_every=7)
    modules, _ = setting.train(how, tmp_path)
    found, expected = weights_of(modules), reference(setting, how)
    assert_same_bits(found, expected)


def test_staleness_matters(tmp_path):
    setting = Setting()
    synchronous, _ = setting.train(training(), tmp_path / "synchronous")
    pipelined, _ = setting.train(training(mode="pipelined", staleness=2), tmp_path / "pipelined")
    name = "shop/layers.0.weight"
    assert not torch.equal(weights_of(synchronous)[name], weights_of(pipelined)[name])


def test_a_user_module_with_dropout_and_reused_weights_runs(tmp_path):
    """Weights are kept per batch even if a module reads one in two places."""

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3, bias=False)
            self.width = 3

        def forward(self, features):
            return torch.tanh(self.layer(torch.tanh(self.layer(features.numeric_NF))))

    setting = Setting(own=False)
    how = training(mode="pipelined", staleness=2, checkpoint_every=100, epochs=1)

    def modules():
        from tallystick.models.build import build_label_model

        torch.manual_seed(0)
        return {"shop": Twice()}, build_label_model(setting.model, "bank", None, [3], outputs=1, seed=1)

    trained, _ = setting.train(how, tmp_path, modules=modules())
    setting.modules = modules
    assert_same_bits(weights_of(trained), reference(setting, how))


def test_a_training_that_ends_with_batches_in_flight_leaves_no_model_behind(tmp_path):
    setting = Setting()
    bottom = setting.modules()[0]["shop"]
    channel, _ = memory_channels("bank", "shop", timeout_s=0.0)
    with pytest.raises(PeerLost):
        train_feature_party(
            bottom,
            setting.columns["shop"].rows,
            channel,
            TrainingRun(
                training=training(mode="pipelined", staleness=2),
                schedule=setting.schedule,
                store=CheckpointStore(tmp_path),
            ),
        )
    held = [weakref.ref(bottom), *map(weakref.ref, bottom.parameters())]
    del bottom
    gc.collect()
    assert [reference() for reference in held] == [None] * len(held)
