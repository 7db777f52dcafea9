"""Normalise batches below the cut, separately for each branch.

With ``model.normalization: batch`` every layer of a built-in bottom model is Linear, batch normalisation (Ioffe and Szegedy 2015)
and ReLU. In training the batch's mean and deviation are used, otherwise running ones, which are part of the weights. Rows without
a partner's row have separate statistics (FedAds, section 5.1.4).

Top models have none: there, the batch's statistics would put other rows' labels into a row's cut gradient. Below the cut, during
training, a row's columns affect the embeddings of its whole batch, so it is refused together with ``gaussian-embeddings``. A
user's bottom that mixes rows is refused together with that defence, and a user's top that mixes rows together with ``gaussian``.
``check`` replaces each row by another one and compares.

Shapes: B batch, W width of a layer.
"""

from torch import Tensor, nn


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation (Ioffe and Szegedy 2015) that uses running statistics outside training.

    It accepts a batch of one row in training as well.
    """

    def forward(self, values_BW: Tensor) -> Tensor:
        """Normalise each unit."""
        if self.training and len(values_BW) > 1:
            return super().forward(values_BW)
        return nn.functional.batch_norm(
            values_BW, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics in a module by name. They are averaged over the steps like weights."""
    return {
        f"{name}.{what}".removeprefix("."): statistic
        for name, part in module.named_modules()
        if isinstance(part, BatchNorm)
        for what in ("running_mean", "running_var")
        if (statistic := getattr(part, what)) is not None
    }


def norms_like(bottom: nn.Module) -> nn.ModuleList:
    """Make normalisations for another branch of a bottom model's layers; empty if the layers have none."""
    layers = getattr(bottom, "layers", None)
    norms = [part for part in layers if isinstance(part, BatchNorm)] if isinstance(layers, nn.Sequential) else []
    return nn.ModuleList(BatchNorm(part.num_features) for part in norms)


def through(layers: nn.Sequential, values_BW: Tensor, norms: nn.ModuleList) -> Tensor:
    """Pass values through layers, with these normalisations in place of the layers' own."""
    remaining_norms = iter(norms)
    for layer in layers:
        values_BW = next(remaining_norms)(values_BW) if isinstance(layer, BatchNorm) else layer(values_BW)
    return values_BW
