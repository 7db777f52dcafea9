"""Join the parts into one network: the label party's part of it, and the whole network in one process.

Shapes: B batch, D cut width, C outputs.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from tallystick.tables.features import Features


class LabelModel(nn.Module):
    """All modules of the label party: the top model, a bottom for its own columns if it has any, a wide part if asked for."""

    def __init__(self, top: nn.Module, *, bottom: nn.Module | None = None, wide: nn.Module | None = None) -> None:
        super().__init__()
        self.top = top
        self.bottom = bottom
        self.wide = wide

    def forward(self, cuts_BD: Sequence[Tensor], own: Features) -> Tensor:
        """Compute the logits, (B,) for one output, else (B, C), of cut embeddings as they crossed, one tensor per feature
        party.
        """
        return self.finish(self.by_example(cuts_BD, own), own)

    def by_example(self, cuts_BD: Sequence[Tensor], own: Features) -> list[Tensor]:  # noqa: ARG002
        """Return what crossed, one row per example: here it already is."""
        return list(cuts_BD)

    def finish(self, cuts_BD: Sequence[Tensor], own: Features) -> Tensor:
        """Compute the logits of ``by_example``'s result. The feature parties' cut embeddings come first, then the own one."""
        parts = list(cuts_BD)
        if self.bottom is not None:
            parts.append(self.bottom(own))
        return self.predict(parts, own)

    def apart(self) -> AbstractContextManager[None]:
        """Return, within this block, the logits by which weights are compared. Here they are the usual ones."""
        return nullcontext()

    def first_alone(self) -> AbstractContextManager[None]:
        """Return, within this block, the logits of parts that did not learn from validation rows. Here they are the
        usual ones.
        """
        return nullcontext()

    def predict(self, parts: Sequence[Tensor], own: Features) -> Tensor:
        """Compute the logits of all parts side by side, and of the own columns if there is a wide part.

        An ensemble in training returns the logits of each member: (B, M), or (B, M, C).
        """
        logits: Tensor = self.top(parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1))
        if self.wide is not None:
            wide = self.wide(own)
            logits = logits + (wide if logits.ndim == wide.ndim else wide[:, None])
        return logits.squeeze(-1) if logits.ndim > 1 and logits.shape[-1] == 1 else logits


class OwnColumnsModel(LabelModel):
    """The label model of a label party with columns of its own."""

    bottom: nn.Module

    def __init__(self, top: nn.Module, *, bottom: nn.Module) -> None:
        super().__init__(top, bottom=bottom)


class CentralizedModel(nn.Module):
    """The same network in one process. A federated run must equal it, bit for bit."""

    def __init__(self, bottoms: Sequence[nn.Module], label: LabelModel) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)
        self.label = label

    def forward(self, features: Sequence[Features], own: Features) -> Tensor:
        """Compute the logits of a batch, given each feature party's columns and the label party's."""
        cuts_BD = [bottom(columns) for bottom, columns in zip(self.bottoms, features, strict=True)]
        logits: Tensor = self.label(cuts_BD, own)
        return logits
