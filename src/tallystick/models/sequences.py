"""Pool a row's items into one vector, by attention if the row names a target item.

Shapes: B batch, L items of a row, E embedding width, A width of the activation unit.
"""

import torch
from torch import Tensor, nn

from tallystick.tables.categories import MISSING
from tallystick.tables.features import SequenceShape

_UNIT = 16


class SequencePooling(nn.Module):
    """A layer that embeds items by one table and pools them: weighted by their match with the target item, or their mean.

    With a target: Zhou et al. (2018), "Deep interest network for click-through rate prediction", equation 3. A small network
    weighs each item by its embedding, the target's, their difference and their product; weights are not normalised. Without a
    target: Covington, Adams and Sargin (2016), "Deep neural networks for YouTube recommendations", section 3.2. Padding is
    ignored in both; a row without items gives zeros.

    Args:
        table: table of the items' codes, (codes, E).
        shape: shape of the sequence.
    """

    def __init__(self, table: nn.Embedding, shape: SequenceShape) -> None:
        super().__init__()
        width = table.embedding_dim
        self.table = table
        self.unit = nn.Sequential(nn.Linear(4 * width, _UNIT), nn.ReLU(), nn.Linear(_UNIT, 1)) if shape.has_target else None
        self.width = 2 * width if shape.has_target else width

    def forward(self, codes_BL: Tensor) -> Tensor:
        """Pool the items (B, E). With a target, whose code is then the first, add its embedding (B, 2 E)."""
        embedded_BLE = self.table(codes_BL.flatten()).view(*codes_BL.shape, -1)
        if self.unit is None:
            present_BL = (codes_BL != MISSING).to(embedded_BLE.dtype)
            mean_BE: Tensor = (embedded_BLE * present_BL[:, :, None]).sum(dim=1) / present_BL.sum(dim=1, keepdim=True).clamp(
                min=1
            )
            return mean_BE
        target_BE, item_BLE = embedded_BLE[:, 0], embedded_BLE[:, 1:]
        beside_BLE = target_BE[:, None].expand_as(item_BLE)
        pair_BLP = torch.cat([item_BLE, beside_BLE, item_BLE - beside_BLE, item_BLE * beside_BLE], dim=2)
        weight_BL = self.unit(pair_BLP).squeeze(2) * (codes_BL[:, 1:] != MISSING)
        return torch.cat([(weight_BL[:, :, None] * item_BLE).sum(dim=1), target_BE], dim=1)
