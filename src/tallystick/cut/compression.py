"""Write the numbers of a training step for the wire, in full or in fewer bytes. Shapes: B batch, D cut width, R bytes.

Compression is not a defence: fewer bytes reveal nearly as much, and there is no guarantee. Its loss is the same for both sides,
separate for each row, and without randomness, so a run with it has the same bits again.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from tallystick.config.sections import CompressionName
from tallystick.network.messages import MalformedMessage


class Compression(Protocol):
    """Write float32 rows in fewer bytes, in one way."""

    def row_bytes(self, width: int) -> int:
        """Count the bytes of a row of ``width`` numbers."""
        ...

    def packed(self, values_BD: Tensor) -> Tensor:
        """Write rows: uint8 (B, R)."""
        ...

    def unpacked(self, packed_BR: Tensor, width: int) -> Tensor:
        """Read rows: float32 (B, D). Raises MalformedMessage for bytes that no writer makes."""
        ...


class BFloat16:
    """Write each number in two bytes, which keep the range of float32 and 3 decimal digits."""

    def row_bytes(self, width: int) -> int:
        """Count two bytes for each number."""
        return 2 * width

    def packed(self, values_BD: Tensor) -> Tensor:
        """Round to the nearest."""
        return values_BD.to(torch.bfloat16).contiguous().view(torch.uint8)

    def unpacked(self, packed_BR: Tensor, width: int) -> Tensor:  # noqa: ARG002
        """Read the bytes as numbers."""
        return packed_BR.view(torch.bfloat16).float()


class Int8:
    """Write each number in one byte: the nearest of 255 steps between the row's largest magnitude and its negative (4 bytes a
    row).
    """

    def row_bytes(self, width: int) -> int:
        """Count one byte for each number, and the row's step."""
        return width + 4

    def packed(self, values_BD: Tensor) -> Tensor:
        """Write the step, then each number's count of steps."""
        step_B1 = values_BD.abs().amax(dim=1, keepdim=True) / 127
        steps_BD = torch.where(step_B1 > 0, values_BD / step_B1, 0.0).round().clamp(-127, 127).to(torch.int8)
        return torch.cat([step_B1.contiguous().view(torch.uint8), steps_BD.view(torch.uint8)], dim=1)

    def unpacked(self, packed_BR: Tensor, width: int) -> Tensor:  # noqa: ARG002
        """Multiply."""
        # Flat first: a single row keeps the stride of all its bytes.
        step_B1 = packed_BR[:, :4].flatten().view(torch.float32).view(len(packed_BR), 1)
        if (step_B1 < 0).any():
            raise MalformedMessage("a row's step is negative")
        return packed_BR[:, 4:].view(torch.int8).float() * step_B1


COMPRESSIONS: Mapping[CompressionName, Compression | None] = {
    "none": None,
    "bfloat16": BFloat16(),
    "int8": Int8(),
}
"""The contract's names; None sends float32 as it is."""
