"""Weights of an earlier network for one whose embedding tables have more rows: categories that were new to it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tallystick.models.tabular import EmbeddingTable
from tallystick.tables.categories import UNSEEN


def grown(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with as many rows in each embedding table as the module's. Whatever else differs stays as it is.

    A new category's row begins as that of unseen categories, which is what the earlier network took it for: before the first
    step it says of every row what it said before.
    """
    tables = [f"{name}.weight" for name, part in module.named_modules() if isinstance(part, EmbeddingTable)]
    now, weights_now = module.state_dict(), dict(weights)
    for name in tables:
        before = weights_now.get(name)
        if before is not None and before.ndim == 2 and 0 < len(before) < len(now[name]):
            weights_now[name] = torch.cat([before, before[UNSEEN].expand(len(now[name]) - len(before), -1)])
    return weights_now
