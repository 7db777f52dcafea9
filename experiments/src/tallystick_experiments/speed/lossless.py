"""Show that federated training is lossless: ``tallystick bench lossless`` compares every weight with training in one process."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typer import Option

from tallystick.config.sections import NetworkModel, SynchronousTraining, TrainingConfig
from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, run_parties
from tallystick.models.build import build_bottom, build_label_model
from tallystick.models.split import CentralizedModel, LabelModel
from tallystick.storage import Origin
from tallystick.tables.features import FeatureShape
from tallystick.training.centralized import train_joined
from tallystick.training.checkpoint import CheckpointStore, read_tensors, write_tensors
from tallystick.training.feature_party import train_feature_party
from tallystick.training.label_party import FeaturePeer, train_label_party
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun
from tallystick_experiments.speed.training import drawn_features

EDGES = tuple(x / 8 for x in range(-16, 17))
FEATURE_SHAPE = FeatureShape(numeric=6, cardinalities=(50, 7, 300), numbers="piecewise-linear", edges=(EDGES,) * 6)
OWN_SHAPE = FeatureShape(numeric=4, cardinalities=(12,))
NETWORK = NetworkModel(hidden=(64, 32, 32), cut_after=2)
_WIDTH = NETWORK.hidden[NETWORK.cut_after - 1]
ROWS, BATCH, EPOCHS = 5_000, 250, 10


def measure_lossless(
    *, seed: Annotated[int, Option(help="Seed of data and weights.")] = 1, timeout_s: float = 300
) -> dict[str, Any]:
    """Train 200 steps as two processes and as one, and return the largest difference of any weight, and hashes of the weights."""
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        run_parties(Path(folder), lossless_party, PAIR, {"seed": seed}, timeout_s=timeout_s)
        federated = {role: kept_weights(Path(folder) / role) for role in (LABEL, FEATURE)}
    bottom, label = _modules(seed)
    data = _Data(seed)
    steps = EPOCHS * data.schedule.steps_per_epoch
    train_joined(
        CentralizedModel([bottom], label),
        [data.feature.rows, data.own.rows],
        data.objective,
        training=_training(),
        schedule=data.schedule,
        steps=steps,
    )
    joined = {LABEL: dict(label.state_dict()), FEATURE: dict(bottom.state_dict())}
    initial = {LABEL: _modules(seed)[1], FEATURE: _modules(seed)[0]}
    moved = max(
        (joined[role][name] - tensor).abs().max().item() for role in joined for name, tensor in initial[role].state_dict().items()
    )
    return {
        "max_abs_weight_difference": largest_difference(joined, federated),
        "max_abs_weight_change_by_training": moved,
        "steps": steps,
        "tensors": sum(len(tensors) for tensors in federated.values()),
        "weights": sum(tensor.numel() for tensors in federated.values() for tensor in tensors.values()),
        "sha256": {role: _digest(module) for role, module in ((FEATURE, bottom), (LABEL, label))},
    }


def lossless_party(stage: PartyContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one party's process."""
    bottom, label = _modules(arguments["seed"])
    data = _Data(arguments["seed"])
    (channel,) = stage.channels.values()
    run = TrainingRun(training=_training(), schedule=data.schedule, store=CheckpointStore(stage.home / "checkpoints"))
    if stage.name == LABEL:
        train_label_party(label, data.own.rows, data.objective, [FeaturePeer(channel=channel, width=_WIDTH)], run)
    else:
        train_feature_party(bottom, data.feature.rows, channel, run)
    keep_weights(label if stage.name == LABEL else bottom, stage.home)
    return {"done": True}


Weights = Mapping[str, Mapping[str, Tensor]]  # weights by party and name


def keep_weights(module: nn.Module, home: Path) -> None:
    """Write a party's trained weights into its home."""
    write_tensors(home / "model.safetensors", dict(module.state_dict()), {}, origin=Origin(folder=home))


def kept_weights(home: Path) -> Mapping[str, Tensor]:
    """Read the weights in a party's home."""
    return read_tensors(home / "model.safetensors", origin=Origin(folder=home))[0]


def largest_difference(some: Weights, others: Weights) -> float:
    """Return the largest difference of any weight in ``others``."""
    pairs = [(some[party][name], tensor) for party, of in others.items() for name, tensor in of.items()]
    return max((one.double() - other.double()).abs().max().item() for one, other in pairs)


class _Data:
    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.feature = drawn_features(FEATURE_SHAPE, ROWS, generator)
        self.own = drawn_features(OWN_SHAPE, ROWS, generator)
        logit_N = self.feature.numeric_NF.sum(dim=1) + self.own.numeric_NF.sum(dim=1)
        self.objective = Supervised("binary", (torch.rand(ROWS, generator=generator) < torch.sigmoid(logit_N)).float())
        empty = torch.empty(0, dtype=torch.int64)
        self.schedule = Schedule(train_N=torch.arange(ROWS), validation_N=empty, batch_size=BATCH, seed=seed)


def _modules(seed: int) -> tuple[nn.Module, LabelModel]:
    bottom = build_bottom(NETWORK, "feature", FEATURE_SHAPE, seed=seed)
    return bottom, build_label_model(NETWORK, LABEL, OWN_SHAPE, [_WIDTH], outputs=1, seed=seed)


def _training() -> TrainingConfig:
    terms = SynchronousTraining(epochs=EPOCHS, batch_size=BATCH, patience=None, checkpoint_every=50)
    return terms.resolved(ROWS)


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
