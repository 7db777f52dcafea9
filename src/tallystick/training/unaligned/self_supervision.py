"""Pretrain a bottom model on its party's own rows by momentum contrast or SimSiam. Shapes: B batch, D cut width."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from tallystick.config.unaligned import FedHSSLConfig, SSVFLConfig
from tallystick.models.build import seeded, width_of
from tallystick.privacy.randomness import generator_of
from tallystick.tables.categories import MISSING
from tallystick.tables.features import Features
from tallystick.training.optimizers import Adam
from tallystick.training.unaligned.method import OwnPart

TEMPERATURE, MOMENTUM, QUEUE = 0.2, 0.999, 4096  # SS-VFL's; the queue is MoCo's idea, its length ours
PROJECTED, PREDICTED = 512, 128  # FedHSSL's projector and predictor


SHARE = 10  # self-supervision takes 1/SHARE of unaligned.epochs, because no validation stops it


@dataclass(frozen=True, kw_only=True)
class SelfSupervision:
    """Training of a bottom model on a party's own rows without labels, by two views of a row that hide some of its cells.

    Args:
        settings: the contract's settings.
        name: from whose start the heads are drawn: label or feature.
    """

    settings: SSVFLConfig | FedHSSLConfig
    name: str

    @property
    def epochs(self) -> int:
        """Count the passes over own rows."""
        return max(1, self.settings.epochs // SHARE)

    def view(self, features: Features, generator: torch.Generator) -> Features:
        """Augment rows: random cells become missing (for a number the mean), or those of another row of the batch."""
        hidden_BF = torch.rand(features.numeric_NF.shape, generator=generator) < self.settings.masked
        hidden_BG = torch.rand(features.categorical_NG.shape, generator=generator) < self.settings.masked
        return Features(
            numeric_NF=self._hidden(features.numeric_NF, hidden_BF, 0, generator),
            categorical_NG=self._hidden(features.categorical_NG, hidden_BG, MISSING, generator),
        )

    def _hidden(self, cells_BF: Tensor, hidden_BF: Tensor, missing: int, generator: torch.Generator) -> Tensor:
        if self.settings.masked_by == "missing":
            return cells_BF.masked_fill(hidden_BF, missing)
        donor_BF = torch.randint(max(1, len(cells_BF)), cells_BF.shape, generator=generator)
        return torch.where(hidden_BF, cells_BF.gather(0, donor_BF), cells_BF)


def momentum_contrast(bottom: nn.Module, own: OwnPart, how: SelfSupervision) -> None:
    """Pretrain by MoCo (He et al. 2020) with two views of a row: SS-VFL's pretraining of one party. It reads no label."""
    with seeded(own.start, how.name):
        head = nn.Linear(width_of(bottom), width_of(bottom))
        slow, slow_head = copy.deepcopy(bottom), copy.deepcopy(head)
        queue_QD = normalize(torch.randn(QUEUE, width_of(bottom)), dim=1)
    place = 0

    def loss_of(first: Features, second: Features) -> Tensor:
        nonlocal place
        query_BD = normalize(head(bottom(first)), dim=1)
        with torch.no_grad():
            _follow(slow, bottom)
            _follow(slow_head, head)
            key_BD = normalize(slow_head(slow(second)), dim=1)
        alike_B1 = (query_BD * key_BD).sum(dim=1, keepdim=True)
        scores_BK = torch.cat([alike_B1, query_BD @ queue_QD.clone().T], dim=1) / TEMPERATURE
        loss = cross_entropy(scores_BK, torch.zeros(len(scores_BK), dtype=torch.int64))
        rows = torch.arange(place, place + len(key_BD)) % QUEUE
        queue_QD[rows] = key_BD
        place = (place + len(key_BD)) % QUEUE
        return loss

    _train(own, [bottom, head], loss_of, how)


def simsiam(bottom: nn.Module, own: OwnPart, how: SelfSupervision) -> None:
    """Pretrain by SimSiam (Chen and He 2021) with two views of a row: FedHSSL's local stage. It reads no label."""
    width = width_of(bottom)
    with seeded(own.start, how.name):
        projector = nn.Sequential(
            nn.Linear(width, PROJECTED),
            nn.BatchNorm1d(PROJECTED),
            nn.ReLU(),
            nn.Linear(PROJECTED, PROJECTED),
            nn.BatchNorm1d(PROJECTED),
            nn.ReLU(),
            nn.Linear(PROJECTED, PROJECTED),
            nn.BatchNorm1d(PROJECTED),
        )
        predictor = nn.Sequential(nn.Linear(PROJECTED, PREDICTED), nn.ReLU(), nn.Linear(PREDICTED, PROJECTED))

    def loss_of(first: Features, second: Features) -> Tensor:
        first_BP, second_BP = projector(bottom(first)), projector(bottom(second))
        return (
            -(
                cosine_similarity(predictor(first_BP), second_BP.detach()).mean()
                + cosine_similarity(predictor(second_BP), first_BP.detach()).mean()
            )
            / 2
        )

    _train(own, [bottom, projector, predictor], loss_of, how)


def _train(own: OwnPart, modules: list[nn.Module], loss_of: Callable[[Features, Features], Tensor], how: SelfSupervision) -> None:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    rate = own.training.learning_rate * how.settings.self_supervision_rate
    optimizer = Adam({1.0: parameters})
    for module in modules:
        module.train()
    generator, batches = generator_of(own.start, "self-supervision"), list[Tensor]()
    for _ in range(how.epochs):
        order_N = own.train_N[torch.randperm(len(own.train_N), generator=generator)]
        # A last batch of one row has no variance for normalising.
        batches += [index_B for index_B in torch.split(order_N, own.training.batch_size) if len(index_B) > 1]
    for number, index_B in enumerate(batches):
        features = own.source(index_B)
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(how.view(features, generator), how.view(features, generator)))
        optimizer.step(rate)
        own.progress("self-supervision", number + 1, len(batches))


def _follow(slow: nn.Module, fast: nn.Module) -> None:
    for behind, ahead in zip(slow.parameters(), fast.parameters(), strict=True):
        behind.lerp_(ahead, 1 - MOMENTUM)
