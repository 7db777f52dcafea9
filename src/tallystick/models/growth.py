"""Adapt weights of an earlier network to one whose embedding tables have more rows, for new categories."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tallystick.models.tabular import EmbeddingTable
from tallystick.tables.categories import UNSEEN


def grown(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with as many rows in each embedding table as in the module's. Other differences stay.

    A new category's row starts as that of unseen categories, because the earlier network treated it as unseen. So before the
    first step its predictions do not change for any row.
    """
    tables = [f"{name}.weight" for name, part in module.named_modules() if isinstance(part, EmbeddingTable)]
    now, weights_now = module.state_dict(), dict(weights)
    for name in tables:
        before = weights_now.get(name)
        if before is not None and before.ndim == 2 and 0 < len(before) < len(now[name]):
            weights_now[name] = torch.cat([before, before[UNSEEN].expand(len(now[name]) - len(before), -1)])
    return weights_now
