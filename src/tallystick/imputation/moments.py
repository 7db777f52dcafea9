"""Keep moving moments of cut embeddings. Shapes: D cut width, R real rows of a batch."""

import torch
from torch import Tensor, nn


class MovingMoments(nn.Module):
    """Keep the moving mean and variance of real cut embeddings, as buffers, so that a checkpoint includes them."""

    mean_D: Tensor
    variance_D: Tensor
    steps: Tensor

    def __init__(self, width: int, *, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean_D", torch.zeros(width))
        self.register_buffer("variance_D", torch.ones(width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, real_RD: Tensor) -> None:
        """Take in one batch's real rows. Fewer than two have no variance and are left out. The first batch sets the moments."""
        if real_RD.shape[0] < 2:
            return
        weight = 1.0 if self.steps == 0 else self.momentum
        self.mean_D.lerp_(real_RD.mean(dim=0), weight)
        self.variance_D.lerp_(real_RD.var(dim=0), weight)
        self.steps += 1
