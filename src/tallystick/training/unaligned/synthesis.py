"""Make up cut embeddings for rows without a partner's row: the shared parts of generators, and training with their output.

Shapes: N training positions, B batch, D cut width, W width of the own embedding, C width of a condition.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tallystick.cut.forward import FeatureSource
from tallystick.errors import ConfigError
from tallystick.models.branches import BranchedModel, Synthesizing
from tallystick.models.build import BranchParts, width_of
from tallystick.models.split import LabelModel
from tallystick.privacy.randomness import Seed, generator_of
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.optimizers import Adam
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import LocalBatches

HIDDEN = 128  # width of a generator's layers, which FedAds does not state
GENERATOR_RATE = 1e-3
SMALLEST_DEVIATION = 1e-3  # otherwise units that are always off would become huge when standardised


class Conditioned(nn.Module):
    """A network on an embedding's condition: the own embedding h_L (B, W), by the weights of the fit, and y.

    ``bottom`` is a copy of the label party's bottom model at the time of the fit: the model's own bottom continues to learn, and
    the network would soon get embeddings unlike those that it saw.
    """

    def __init__(self, bottom: nn.Module, *, cut_width: int, classes: int, with_label: bool) -> None:
        super().__init__()
        self.bottom = bottom
        self.with_label = with_label
        self.classes = classes
        self.width = width_of(bottom) + (classes if with_label else 0)
        self.register_buffer("mean_D", torch.zeros(cut_width))
        self.register_buffer("deviation_D", torch.ones(cut_width))
        self.register_buffer("condition_mean_W", torch.zeros(width_of(bottom)))
        self.register_buffer("condition_deviation_W", torch.ones(width_of(bottom)))

    mean_D: Tensor
    deviation_D: Tensor
    condition_mean_W: Tensor
    condition_deviation_W: Tensor

    def train(self, mode: bool = True) -> "Conditioned":
        """Switch to training, except for the copy of the bottom model."""
        super().train(mode)
        self.bottom.eval()
        return self

    def take_moments(self, cuts_ND: Tensor, embedded_NW: Tensor) -> None:
        """Standardise by the moments of these embeddings from now on."""
        self.mean_D.copy_(cuts_ND.mean(dim=0))
        self.deviation_D.copy_(cuts_ND.std(dim=0).clamp_min(SMALLEST_DEVIATION))
        self.condition_mean_W.copy_(embedded_NW.mean(dim=0))
        deviation_W = embedded_NW.std(dim=0)
        # A unit that is off on nearly all aligned rows taught the network nothing, but other rows switch it on: scaled by its own
        # deviation they would be hundreds out. So no unit is scaled up by more than a unit of mean deviation.
        self.condition_deviation_W.copy_(deviation_W.clamp_min(max(SMALLEST_DEVIATION, deviation_W.mean().item())))

    def standardised(self, cuts_BD: Tensor) -> Tensor:
        """Express cut embeddings in units of their deviation."""
        return (cuts_BD - self.mean_D) / self.deviation_D

    def in_units(self, standardised_BD: Tensor) -> Tensor:
        """Convert standardised cut embeddings back."""
        return standardised_BD * self.deviation_D + self.mean_D

    def condition(self, embedded_BW: Tensor, targets_B: Tensor) -> Tensor:
        """Build the condition (B, C)."""
        standardised_BW = (embedded_BW - self.condition_mean_W) / self.condition_deviation_W
        if not self.with_label:
            return standardised_BW
        return torch.cat([standardised_BW, one_hot(targets_B, self.classes)], dim=1)


def one_hot(targets_B: Tensor, classes: int) -> Tensor:
    """Write classes as 0 and 1, (B, classes). A single number does not change, (B, 1)."""
    if classes == 1:
        return targets_B[:, None].to(torch.float32)
    return nn.functional.one_hot(targets_B.long(), classes).to(torch.float32)


@dataclass(frozen=True, kw_only=True)
class Synthesis(LocalBatches):
    """Base of methods whose generator is fitted to the aligned rows' embeddings after joint epochs, for use in local batches.

    FedAds, section 4.1 and Algorithm 1. The local branch has its own top on [made-up h_N, h_L] and shares the bottom; a top on
    h_L alone, which does not train the bottom, scores rows without a partner's row. Two things differ: batches of both kinds are
    mixed evenly, not drawn with p = |aligned| / |all|; and an embedding is made up again whenever its row is used, so that memory
    does not grow with the rows.

    Threat model: honest-but-curious parties. The label party receives the training rows' cut embeddings once more, with the
    weights after the joint epochs; the feature parties see nothing of unaligned rows. No formal guarantee. Not protected: a
    generator is a model of the feature parties' embeddings, which stays with the label party.
    """

    @property
    def rates(self) -> Mapping[str, float]:
        """Return the rates. The generator is already fitted when local batches begin."""
        local = self.local_rate
        return {"generator": 0.0, "bottom": local, "synthetic_top": local, "local_top": local}

    @abstractmethod
    def generator(self, parts: BranchParts) -> nn.Module:
        """Build the generator of embeddings."""

    @abstractmethod
    def made(self, model: Synthesizing, own: Features, targets_B: Tensor, *, generator: torch.Generator) -> Tensor:
        """Make embeddings (B, D) for these rows."""

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build one bottom below three tops, and the generator."""
        joint = parts.joint()
        width = width_of(joint.bottom)
        synthetic_top = parts.top(parts.cut_width + width, "synthetic-top")
        return Synthesizing(joint, parts.top(width, "local-top"), synthetic_top, self.generator(parts))

    def local_loss(self, model: LabelModel, objective: Objective, batch: Batch, own: Features) -> tuple[Tensor, Tensor]:
        """Compute the loss with made-up embeddings, and that of the top that scores rows without one."""
        assert isinstance(model, Synthesizing)
        embedded_BW = model.embedded(own, local=True)
        alone, targets_B = objective(model.alone(embedded_BW.detach()), batch.index_B)
        generator = generator_of(self.seed, "made-up embeddings", batch.step)
        with torch.no_grad():
            made_BD = self.made(model, own, targets_B, generator=generator)
        loss, _ = objective(model.synthetic(made_BD, embedded_BW), batch.index_B)
        return loss + alone, targets_B


def embedded_rows(bottom: nn.Module, own: FeatureSource, index_N: Tensor, *, batch_size: int) -> Tensor:
    """Compute own embeddings (N, W) at these positions, without training."""
    bottom.eval()
    with torch.no_grad():
        return torch.cat([bottom(own(index_B)) for index_B in torch.split(index_N, batch_size)])


def targets_at(objective: Objective, model: LabelModel, own: FeatureSource, index_N: Tensor, *, batch_size: int) -> Tensor:
    """Compute the targets (N,) of a loss at these positions."""
    assert isinstance(model, BranchedModel)
    model.eval()
    with torch.no_grad():
        targets_N = torch.cat([objective(model.local(own(index_B)), index_B)[1] for index_B in torch.split(index_N, batch_size)])
    model.train()
    return targets_N


def fit_network(
    network: nn.Module,
    loss_of: Callable[[Tensor, torch.Generator], Tensor],
    *,
    rows: int,
    epochs: int,
    batch_size: int,
    seed: Seed,
) -> None:
    """Train a generator's network by Adam on batches of row numbers. ``loss_of`` returns their loss."""
    optimizer = Adam({1.0: [*network.parameters()]})
    generator = generator_of(seed, "fitting")
    network.train()
    for _ in range(epochs):
        for rows_B in torch.split(torch.randperm(rows, generator=generator), batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(rows_B, generator))
            optimizer.step(GENERATOR_RATE)
    optimizer.zero_grad()


def named_group(columns: "tuple[str, ...] | list[str]", group: str | None) -> int | None:
    """Return the place of the grouping column among the categorical ones, or None if all rows are one group.

    Raises ConfigError for an unknown column.
    """
    if group is None:
        return None
    if group not in columns:
        raise ConfigError(
            f"unaligned.group = {group}: is not a categorical column of the label party that training uses; it has "
            f"{', '.join(columns) or 'none'}"
        )
    return list(columns).index(group)
