"""Dropout that a run can repeat and resume."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Leaves out numbers at random in training, by a generator of its own, so that a run can be repeated and resumed."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self._generator = torch.Generator().manual_seed(int(torch.randint(1 << 62, ())))  # of the seed that modules are made by

    def forward(self, values: Tensor) -> Tensor:
        """Set some values to 0 in training, and enlarge the others by as much."""
        if not self.training or not self.share:
            return values
        scale = torch.rand(values.shape, generator=self._generator).ge_(self.share).div_(1 - self.share)
        return values * scale.to(values)

    def get_extra_state(self) -> Tensor:
        """Return the generator's state, for checkpoints."""
        return self._generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Put the generator back."""
        self._generator.set_state(state)
