"""Implement dropout that a run can repeat and resume."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """A layer that drops numbers at random in training, with its own generator, so that a run can be repeated and resumed."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self._generator = torch.Generator().manual_seed(int(torch.randint(1 << 62, ())))  # follows from the seed of the modules

    def forward(self, values: Tensor) -> Tensor:
        """Set some values to 0 in training, and scale up the others."""
        if not self.training or not self.share:
            return values
        scale = torch.rand(values.shape, generator=self._generator).ge_(self.share).div_(1 - self.share)
        return values * scale.to(values)

    def get_extra_state(self) -> Tensor:
        """Return the generator's state, for checkpoints."""
        return self._generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the generator's state."""
        self._generator.set_state(state)
