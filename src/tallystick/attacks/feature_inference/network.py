"""Rebuild columns by a small network from embeddings to columns. Shapes: N rows, K known rows, D inputs, T targets."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from tallystick.attacks.descent import Descent
from tallystick.attacks.feature_inference.inputs import Reads, Targets, inputs
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class InversionNetwork:
    """Train a decoder of one hidden layer on the known rows: squared error of numbers, cross-entropy of categories.

    He et al. 2019 (Model inversion attacks against collaborative inference), section 4.3: the inverse network, with known rows
    instead of queries, for tables instead of images.

    Args:
        reads: last embeddings, mean ones, those of several epochs side by side, or all.
        own_columns: whether to use the label party's own columns, if the view has them.
        hidden: width of the hidden layer, at least 1.
        steps: number of Adam steps, at least 1.
        batch: number of known rows per step, at least 1; all if there are fewer.
        decay: weight decay, at least 0.
    """

    reads: Reads = "all"
    own_columns: bool = False
    hidden: int = 64
    steps: int = 300
    batch: int = 100
    decay: float = 0.3

    def __post_init__(self) -> None:
        if not (min(self.hidden, self.steps, self.batch) >= 1 and self.decay >= 0):
            raise ConfigError(
                f"inversion network: hidden={self.hidden}, steps={self.steps}, batch={self.batch}, decay={self.decay}; "
                "expected at least 1, 1, 1 and 0"
            )

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. ``generator`` draws the first weights, and the batches if there are more rows."""
        x_ND = inputs(view, self.reads, own_columns=self.own_columns).float()
        targets = Targets.of(view.columns_K)
        mean_F = view.columns_K.numeric_NF.float().mean(dim=0)
        deviation_F = (view.columns_K.numeric_NF.float() - mean_F).square().mean(dim=0).sqrt()
        deviation_F = torch.where(deviation_F > 0, deviation_F, 1.0)
        outputs = nn.Linear(self.hidden, targets.y_KT.shape[1])
        network = nn.Sequential(nn.Linear(x_ND.shape[1], self.hidden), nn.ReLU(), outputs)
        with torch.no_grad():
            for parameter in network.parameters():
                bound = parameter.shape[-1] ** -0.5
                parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)
        optimizer = Descent(network.parameters(), rate=1e-2, steps=self.steps, decay=self.decay)
        x_KD, loss_of = x_ND[view.known_K], _Loss(targets, (view.columns_K.numeric_NF.float() - mean_F) / deviation_F)
        known_count = len(x_KD)
        for _ in range(self.steps):
            some = (
                torch.randperm(known_count, generator=generator)[: self.batch]
                if known_count > self.batch
                else torch.arange(known_count)
            )
            optimizer.down(loss_of(network(x_KD[some]), some))
        with torch.no_grad():
            reconstruction = targets.reconstruction(network(x_ND).double().T)
        numeric_NF = reconstruction.numeric_NF * deviation_F.double() + mean_F.double()
        return replace(reconstruction, numeric_NF=numeric_NF)


class _Loss:
    """Mean squared error of the numbers plus the mean cross-entropy of the categorical columns, computed for all at once.

    S counts the indicators of all G categorical columns side by side.
    """

    def __init__(self, targets: Targets, scaled_KF: Tensor) -> None:
        self.scaled_KF, self.numeric = scaled_KF, targets.numeric
        _, *indicators = targets.split(targets.y_KT)
        sizes = [indicator_KC.shape[1] for indicator_KC in indicators]
        self.column_S = torch.repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
        first = [sum(sizes[:place]) for place in range(len(sizes))]
        codes = [indicator_KC.argmax(dim=1) + start for indicator_KC, start in zip(indicators, first, strict=True)]
        self.place_KG = torch.stack(codes, dim=1) if codes else torch.zeros(len(scaled_KF), 0, dtype=torch.int64)

    def __call__(self, output_BT: Tensor, some: Tensor) -> Tensor:
        """Compute the loss of the outputs for these B of the known rows."""
        numeric_BF, score_BS = output_BT[:, : self.numeric], output_BT[:, self.numeric :]
        loss = mse_loss(numeric_BF, self.scaled_KF[some]) if self.numeric else output_BT.new_zeros(())
        if not self.place_KG.shape[1]:
            return loss
        place_BG, column_BS = self.place_KG[some], self.column_S.expand(len(some), -1)
        top_BG = score_BS.new_zeros(place_BG.shape).scatter_reduce(1, column_BS, score_BS.detach(), "amax", include_self=False)
        total_BG = torch.zeros_like(top_BG).scatter_add(1, column_BS, (score_BS - top_BG[:, self.column_S]).exp())
        return loss + (total_BG.log() + top_BG - score_BS.gather(1, place_BG)).mean()
