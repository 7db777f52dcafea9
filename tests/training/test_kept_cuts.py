"""Training on embeddings that crossed once equals training the joined network with frozen bottom models."""

import pytest
import torch
from loops import ROWS, Setting, training, weights_of, weights_of_joined

from tallystick.cut.forward import KeptCuts
from tallystick.training.centralized import train_joined
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.label_party import KeptPeer, train_label_party
from tallystick.training.run import TrainingRun

SETTINGS = {
    "two feature parties": Setting(parties=("club", "shop")),
    "three classes, no own columns, weights": Setting(own=False, kind="multiclass", weights=True),
    "wide, sequences": Setting(wide=True, sequences=True, kind="regression"),
}


@torch.no_grad()
def kept_of(bottom, columns, order_N):
    """Return the rows in another order than that of positions, which their numbers may have."""
    numbers_N = torch.argsort(order_N)
    return KeptCuts(
        numbers_R=torch.arange(len(columns)),
        embedding_RD=bottom(columns.rows(order_N)),
        numbers=lambda index_B: numbers_N[index_B],
    )


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_training_on_kept_embeddings_equals_a_joined_network_with_frozen_bottoms(setting, tmp_path):
    """Equal up to rounding: a matrix product over all rows may round otherwise than one over a batch."""
    how = training(ema=0.9)
    bottoms, label = setting.modules()
    order_N = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
    peers = [KeptPeer(name=name, kept=kept_of(bottoms[name], setting.columns[name], order_N)) for name in setting.parties]
    run = TrainingRun(training=how, schedule=setting.schedule, store=CheckpointStore(tmp_path))
    train_label_party(label, setting.own_source, setting.objective, peers, run)

    joined = setting.joined()
    for bottom in joined.bottoms:
        bottom.requires_grad_(False)
    untrained = weights_of_joined(setting.joined(), setting.parties)
    train_joined(
        joined,
        [*setting.sources, setting.own_source],
        setting.objective,
        training=how,
        schedule=setting.schedule,
        steps=how.epochs * setting.schedule.steps_per_epoch,
    )
    expected, found = weights_of_joined(joined, setting.parties), weights_of((bottoms, label))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    moved = {name.split("/")[0] for name, weight in found.items() if not torch.equal(weight, untrained[name])}
    assert moved == {"bank"}
