"""What a feature party's defences do, seen from whatever embeds rows: a bottom model around its bottom model.

Shapes: B batch, D cut width.

All that leaves a feature party is its bottom's output, in training, for validation, in evaluation, for importance and for
predictions; so a defence around the bottom is on wherever an embedding crosses, and no loop knows of it.
"""

import secrets
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from tallystick.data.features import Features
from tallystick.defenses.chain import EmbeddingDefenses
from tallystick.defenses.noise import NoiseStream
from tallystick.models.build import width_of

SECRET_BYTES = 32


class DefendedBottom(nn.Module):
    """A bottom model whose cut embeddings are defended before anybody sees them.

    A penalty's gradient is added on the backward pass, to the cut gradient that came back. Noise comes from a secret, which is
    part of this module's state so that a resumed run and later predictions have it, and from what it hides: other embeddings
    get other noise, and the same ones, sent again, the same.

    Threat model: an honest-but-curious label party. Guarantee: that of ``defenses``, if any.

    Args:
        bottom: the model; on a union the one that imputes.
        defenses: what the contract asks for.
        secret: 32 random bytes; drawn from the operating system if left out.
    """

    def __init__(self, bottom: nn.Module, defenses: EmbeddingDefenses, *, secret: bytes | None = None) -> None:
        super().__init__()
        self.bottom = bottom
        self.width = width_of(bottom)
        self._defenses = defenses
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)

    def forward(self, features: Features) -> Tensor:
        """The cut embeddings (B, D) that are sent."""
        cut_BD: Tensor = self.bottom(features)
        if self.training and cut_BD.requires_grad:
            penalty = self._defenses.penalty(cut_BD, features.numeric_NF, features.categorical_NG)
            if penalty is not None and penalty.requires_grad:
                cut_BD = _WithPenalty.apply(cut_BD, penalty)  # type: ignore[no-untyped-call]
        if not self._defenses.embeddings:
            return cut_BD
        hides = blake2b(cut_BD.detach().cpu().contiguous().numpy().tobytes()).digest()
        return self._defenses.defend(cut_BD, NoiseStream(self._secret, hides=hides))

    def get_extra_state(self) -> Tensor:
        """The secret, for checkpoints and the trained model."""
        return torch.frombuffer(bytearray(self._secret), dtype=torch.uint8).clone()

    def set_extra_state(self, state: Tensor) -> None:
        """Put the secret back."""
        self._secret = state.cpu().numpy().tobytes()


class _WithPenalty(torch.autograd.Function):
    """Passes embeddings on, and on the way back sends a gradient of 1 into the penalty beside."""

    @staticmethod
    def forward(ctx: Any, cut_BD: Tensor, penalty: Tensor) -> Tensor:
        ctx.penalty = penalty.dtype, penalty.device
        return cut_BD.view_as(cut_BD)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, Tensor]:
        dtype, device = ctx.penalty
        return grad[0], torch.ones((), dtype=dtype, device=device)
