"""Batch normalisation below the cut, one for each branch.

With ``model.normalization: batch`` every layer of a built-in bottom model is Linear, batch normalisation (Ioffe and Szegedy 2015)
and ReLU. In training the batch's mean and deviation count, elsewhere running ones, which are part of the weights. Rows without a
partner's row have statistics of their own (FedAds, section 5.1.4).

Top models stay without: there, the batch's statistics would put other rows' labels into a row's cut gradient. Below the cut, a
row's columns are in the embeddings of its whole batch while it trains, so it is refused beside ``gaussian-embeddings``. A bottom
of one's own that mixes rows is refused beside that defence, and a top of one's own that mixes rows beside ``gaussian``. ``check``
puts another row in each row's place and compares.

Shapes: B batch, W width of a layer.
"""

from torch import Tensor, nn


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation (Ioffe and Szegedy 2015), with running statistics in use.

    It takes a batch of one row in training, too.
    """

    def forward(self, values_BW: Tensor) -> Tensor:
        """Normalise each unit."""
        if self.training and len(values_BW) > 1:
            return super().forward(values_BW)
        return nn.functional.batch_norm(
            values_BW, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics in a module by name, which are averaged over the steps as weights are."""
    return {
        f"{name}.{what}".removeprefix("."): statistic
        for name, part in module.named_modules()
        if isinstance(part, BatchNorm)
        for what in ("running_mean", "running_var")
        if (statistic := getattr(part, what)) is not None
    }


def norms_like(bottom: nn.Module) -> nn.ModuleList:
    """Make normalisation for another branch over a bottom model's layers. It is empty where they have none."""
    layers = getattr(bottom, "layers", None)
    norms = [part for part in layers if isinstance(part, BatchNorm)] if isinstance(layers, nn.Sequential) else []
    return nn.ModuleList(BatchNorm(part.num_features) for part in norms)


def through(layers: nn.Sequential, values_BW: Tensor, norms: nn.ModuleList) -> Tensor:
    """Pass values through layers, with these in place of their own normalisations."""
    remaining_norms = iter(norms)
    for layer in layers:
        values_BW = next(remaining_norms)(values_BW) if isinstance(layer, BatchNorm) else layer(values_BW)
    return values_BW
