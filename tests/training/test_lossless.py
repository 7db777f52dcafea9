"""Synchronous training is lossless: every bit of every weight is that of the joined model in one process."""

import pytest
import torch
from lanes import by_turns
from loops import Setting, assert_same_bits, training, weights_of, weights_of_joined

from tallystick.training.centralized import train_joined

SETTINGS = {
    "binary": Setting(),
    "multiclass": Setting(kind="multiclass"),
    "regression": Setting(kind="regression"),
    "weights": Setting(weights=True),
    "two feature parties": Setting(parties=("club", "shop")),
    "no own columns": Setting(own=False),
    "two feature parties, no own columns, three classes, weights": Setting(
        parties=("club", "shop"), own=False, kind="multiclass", weights=True
    ),
    "wide": Setting(wide=True),
    "sequences": Setting(sequences=True),
    "ensemble": Setting(ensemble=3, wide=True),
    "ensemble, three classes, weights": Setting(ensemble=3, kind="multiclass", weights=True),
    "folds, three classes, weights": Setting(parties=("club", "shop"), folds=3, kind="multiclass", weights=True),
    "normalised": Setting(parties=("club", "shop"), normalization="batch"),
}


OPTIMIZERS = {
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "sgd": {"optimizer": "sgd"},
    "lamb": {"optimizer": "lamb", "weight_decay": 0.01},
    "all": {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine", "warm_up": 0.2, "ema": 0.9, "clip": 0.1},
}


@pytest.mark.parametrize(("setting", "optimizer"), by_turns(SETTINGS, OPTIMIZERS))
def test_federated_training_equals_joined_training(setting, optimizer, tmp_path):
    setting, how = SETTINGS[setting], training(**OPTIMIZERS[optimizer])
    modules, _ = setting.train(how, tmp_path)
    joined = setting.joined()
    before = {name: tensor.clone() for name, tensor in weights_of_joined(joined, setting.parties).items()}
    train_joined(
        joined,
        [*setting.sources, setting.own_source],
        setting.objective,
        training=how,
        schedule=setting.schedule,
        steps=how.epochs * setting.schedule.steps_per_epoch,
    )
    after = weights_of_joined(joined, setting.parties)
    assert_same_bits(weights_of(modules), after)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved >= {name for name in after if "weight" in name}


def test_weights_weigh(tmp_path):
    plain, weighted = Setting(), Setting(weights=True)
    one, _ = plain.train(training(epochs=1), tmp_path / "plain")
    other, _ = weighted.train(training(epochs=1), tmp_path / "weighted")
    assert not torch.equal(weights_of(one)["bank/top.output.weight"], weights_of(other)["bank/top.output.weight"])
