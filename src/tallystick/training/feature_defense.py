"""Apply a feature party's defences wherever rows are embedded, by a bottom model that wraps its bottom model.

Shapes: B batch, D cut width.

The only output of a feature party is its bottom's output: in training, for validation, in evaluation, for importance and for
predictions. So a defence around the bottom is active wherever an embedding crosses, and no loop knows about it.
"""

import hashlib
import secrets
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tallystick.defenses.chain import EmbeddingDefenses
from tallystick.defenses.noise import RowNoise
from tallystick.defenses.quantized_embeddings import QuantizedEmbeddings
from tallystick.models.build import width_of
from tallystick.models.tabular import reopening
from tallystick.tables.features import Features

SECRET_BYTES = 32
LEAST_TOGETHER = 64
"""Least number of rows that are embedded together if noise depends on embeddings. One to three rows get other last bits than many
rows. With them up to one row in a hundred would be on another point of the noise's grid, and so get another draw.
"""
KEPT = "kept"
"""Name of the weights that training leaves, with which rows are tested, predicted and served."""


class DefendedBottom(nn.Module):
    """A bottom model whose cut embeddings are defended before another party sees them.

    A penalty's gradient is added on the backward pass, to the cut gradient that came back. Noise depends on the party's secret,
    on the row, on its embedding and on the weights (``RowNoise``). If the same weights embed a row again, with any other rows, in
    a resumed run or in predictions, it gets the same noise as long as its embedding, rounded to the noise's grid, is the same.
    The noise of other weights is independent, whatever they embed: ``embeds_by`` names the weights. A digest distinguishes them
    in two copies of a run folder that are both resumed.

    Threat model: an honest-but-curious label party. Guarantee: that of ``defenses``, if any. Not protected: whether a row's
    embedding by the same weights equals one that was sent before, because equal embeddings stay equal. In floating point a bottom
    model may give a row slightly different embeddings in batches of different sizes, so few rows are never embedded alone
    (``LEAST_TOGETHER``). If a difference crosses the grid nevertheless, the row gets another draw.

    Args:
        bottom: the model; on a union the imputing one.
        defenses: the contract's defences.
        secret: 32 random bytes, the same for all runs of the party; by default drawn from the operating system.
        run: a name that distinguishes its weights from those of other runs; without it noise depends on embeddings alone.
    """

    def __init__(self, bottom: nn.Module, defenses: EmbeddingDefenses, *, secret: bytes | None = None, run: str = "") -> None:
        super().__init__()
        self.bottom = bottom
        self.width = width_of(bottom)
        if any(isinstance(each, QuantizedEmbeddings) for each in defenses.embeddings):
            reopening(bottom)
        self._defenses = defenses
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)
        self._run, self.weights = run, KEPT
        self._digest_of: tuple[tuple[tuple[int, int], ...], str] | None = None

    def forward(self, features: Features) -> Tensor:
        """Compute the cut embeddings (B, D) that are sent."""
        rows = len(features)
        if self._run and self._defenses.noisy and not torch.is_grad_enabled() and 0 < rows < LEAST_TOGETHER:
            features = features.rows(torch.arange(LEAST_TOGETHER, device=features.numeric_NF.device).clamp_max(rows - 1))
        cut_BD: Tensor = self.bottom(features)
        if self.training and cut_BD.requires_grad:
            penalty = self._defenses.penalty(cut_BD, features.numeric_NF, features.categorical_NG)
            if penalty is not None and penalty.requires_grad:
                cut_BD = _WithPenalty.apply(cut_BD, penalty)  # type: ignore[no-untyped-call]
        if not self._defenses.embeddings:
            return cut_BD
        who_B = np.arange(len(cut_BD)) if features.who_N is None else features.who_N.cpu().numpy()
        weights = f"{self.weights} of {self._run}: {self._digest()}" if self._run and self._defenses.noisy else ""
        return self._defenses.defend(cut_BD, RowNoise(secret=self._secret, who_B=who_B, weights=weights))[:rows]

    def _digest(self) -> str:
        """Return a digest of the weights. It is cached until they change."""
        values = [value.detach() for value in self.bottom.state_dict(keep_vars=True).values() if isinstance(value, Tensor)]
        versions = tuple((value.data_ptr(), value._version) for value in values)
        if self._digest_of is None or self._digest_of[0] != versions:
            digest = hashlib.sha256()
            for value in values:
                digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
            self._digest_of = versions, digest.hexdigest()
        return self._digest_of[1]


def embeds_by(bottom: nn.Module, weights: str) -> None:
    """Name the weights with which a feature party embeds from now on. A bottom without a defence needs no name."""
    if isinstance(bottom, DefendedBottom):
        bottom.weights, bottom._digest_of = weights, None


class _WithPenalty(torch.autograd.Function):
    """A function that returns embeddings unchanged, and on the backward pass sends a gradient of 1 into the penalty."""

    @staticmethod
    def forward(ctx: Any, cut_BD: Tensor, penalty: Tensor) -> Tensor:
        ctx.penalty = penalty.dtype, penalty.device
        return cut_BD.view_as(cut_BD)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, Tensor]:
        dtype, device = ctx.penalty
        return grad[0], torch.ones((), dtype=dtype, device=device)
