"""Train a network on the label party's own columns, whose logits are features of a head on shares.

Each training row's logit comes from the member that did not learn from it. Any other row's logit is the mean of the members'.

Shapes: N positions, M members, C outputs.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tallystick.cut.forward import SCORED_AT_A_TIME, FeatureSource, logits_over
from tallystick.metrics import TargetType
from tallystick.models.fixed_features import FixedFeatures
from tallystick.models.folds import FoldedLabelModel
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import Architecture
from tallystick.tables.encoder import Encoder
from tallystick.training.checkpoint import load_weights, read_tensors, write_tensors

MEMBERS = 4
_WEIGHTS, _SPREAD = "own-network.safetensors", "own-network-spread.safetensors"


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """The trained members, and the mean and deviation of the training rows' logits.

    Args:
        model: returns (B, M) or (B, M, C).
        mean_C: mean of the logits.
        deviation_C: deviation of the logits.
    """

    model: FoldedLabelModel
    mean_C: Tensor
    deviation_C: Tensor

    @classmethod
    def of(cls, model: FoldedLabelModel, source: FeatureSource, train_N: Tensor, fold_N: Tensor) -> tuple["OwnNetwork", Tensor]:
        """Wrap a trained network, and return the logits of its training rows, (N, C), each by the member that did not learn from
        it.
        """
        judged_NC = member_logits(model, source, train_N)[torch.arange(len(train_N)), fold_N]
        network = cls(model=model, mean_C=judged_NC.mean(dim=0), deviation_C=judged_NC.std(dim=0, correction=0).clamp(min=1e-6))
        return network, judged_NC

    def features(self, source: FeatureSource, index_N: Tensor) -> Tensor:
        """Return the features of rows from which it did not learn, (N, C), within -3 to 3."""
        return self.scaled(member_logits(self.model, source, index_N).mean(dim=1))

    def keep(self, folder: RunFolder) -> None:
        """Write the network into the folder."""
        write_tensors(folder.path / _WEIGHTS, dict(self.model.state_dict()), {}, origin=folder.origin)
        write_tensors(folder.path / _SPREAD, {"mean": self.mean_C, "deviation": self.deviation_C}, {}, origin=folder.origin)

    @classmethod
    def load(cls, folder: RunFolder, architecture: Architecture, encoder: Encoder | None) -> "OwnNetwork":
        """Read the network back. Raises DamagedFile for a damaged one."""
        model = build_own_network(architecture, encoder)
        load_weights(model, folder.path / _WEIGHTS, origin=folder.origin)
        tensors, _ = read_tensors(folder.path / _SPREAD, origin=folder.origin)
        return cls(model=model, mean_C=tensors["mean"], deviation_C=tensors["deviation"])

    def scaled(self, logits_NC: Tensor) -> Tensor:
        """Scale logits. If a network diverged, its logits become 0: the number of its rows counts, and no other party
        may notice.
        """
        return ((logits_NC - self.mean_C) / self.deviation_C).clamp(-FixedFeatures.LIMIT, FixedFeatures.LIMIT).nan_to_num(0.0)


def unexplained_share(logits_NC: Tensor, labels_NC: Tensor, target: TargetType, row_weights_N: Tensor | None = None) -> float:
    """Return the share of the labels' variance that a network leaves unexplained, by logits of rows that it did not learn from.

    It is between .01 and 1.
    """
    weight_N1 = torch.ones(len(labels_NC), 1) if row_weights_N is None else row_weights_N[:, None]
    mean_C = (weight_N1 * labels_NC).sum(dim=0) / weight_N1.sum()
    chances_NC = logits_NC
    if target != "regression":
        chances_NC = torch.sigmoid(logits_NC) if target == "binary" else torch.softmax(logits_NC, dim=1)
    unexplained_share = (weight_N1 * (chances_NC - labels_NC).square()).sum() / (weight_N1 * (labels_NC - mean_C).square()).sum()
    return float(unexplained_share.nan_to_num(1.0, posinf=1.0).clamp(0.01, 1.0))


def build_own_network(architecture: Architecture, encoder: Encoder | None) -> FoldedLabelModel:
    """Build the network's members, untrained."""
    model = replace(architecture, folds=MEMBERS).label_model(encoder, [])
    assert isinstance(model, FoldedLabelModel), "it has several members"
    return model


def member_logits(model: FoldedLabelModel, source: FeatureSource, index_N: Tensor) -> Tensor:
    """Return each member's logits, (N, M, C)."""
    with torch.no_grad(), model.apart():
        logits = logits_over(model, source, torch.split(index_N, SCORED_AT_A_TIME), [])
    return logits if logits.dim() == 3 else logits.unsqueeze(2)
