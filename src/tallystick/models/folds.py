"""Build networks side by side, one per fold of the rows. None learns from its own fold, and the mean of their logits predicts.

Shapes: B batch, M members, D cut width of one member, C outputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from tallystick.config.sections import NetworkModel
from tallystick.models.build import build_bottom, build_label_model, width_of
from tallystick.models.split import LabelModel
from tallystick.privacy.randomness import Seed
from tallystick.tables.features import Features, FeatureShape


class FoldedBottom(nn.Module):
    """A feature party's bottom models, one for each member, with their cut embeddings side by side: (B, M D)."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.width = sum(map(width_of, members))

    def forward(self, features: Features) -> Tensor:
        """Embed a batch by each member."""
        return torch.cat([member(features) for member in self.members], dim=1)


class FoldedLabelModel(LabelModel):
    """The label party's part of several networks, each of which reads its own part of every cut embedding.

    It follows Breiman (1996), "Bagging predictors", with folds instead of draws, so that each row is judged by a member that did
    not learn from it. Threat model: a feature party sees which member did not learn from a row, which follows from the row's id.
    It can infer labels from the other members' gradients as from a single network's. No formal guarantee.

    Args:
        members: label models of the same width, which share nothing.
    """

    def __init__(self, members: Sequence[LabelModel]) -> None:
        super().__init__(nn.ModuleList(members))
        self._gives: Literal["mean", "first", "each"] = "mean"

    @property
    def members(self) -> list[LabelModel]:
        """Return each fold's model."""
        assert isinstance(self.top, nn.ModuleList)
        members = [member for member in self.top if isinstance(member, LabelModel)]
        assert len(members) == len(self.top), "they were given as label models"
        return members

    def finish(self, cuts_BD: Sequence[Tensor], own: Features) -> Tensor:
        """Average the members' logits. In training return each member's: (B, M), or (B, M, C)."""
        members = self.members
        parts = [cut_BD.chunk(len(members), dim=1) for cut_BD in cuts_BD]
        gives = "each" if self.training else self._gives
        places = range(1 if gives == "first" else len(members))
        logits = torch.stack([members[place].finish([part[place] for part in parts], own) for place in places], dim=1)
        return logits if gives == "each" else logits.mean(dim=1)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Return each member's logits within this block in evaluation as well, for rows that not all members may judge."""
        with self._giving("each"):
            yield

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Predict within this block by the first member only. It did not learn from the contract's validation part."""
        with self._giving("first"):
            yield

    @contextmanager
    def _giving(self, what: Literal["first", "each"]) -> Iterator[None]:
        before, self._gives = self._gives, what
        try:
            yield
        finally:
            self._gives = before


def networks_in(module: nn.Module) -> int:
    """Count the networks side by side in a party's module, or 1 if it is a single network."""
    return len(module.members) if isinstance(module, FoldedBottom | FoldedLabelModel) else 1


def network_of_weight(name: str, module: nn.Module) -> int:
    """Return which network the weight of this name belongs to, or 0 if there is a single one."""
    return int(name.split(".")[1]) if isinstance(module, FoldedBottom | FoldedLabelModel) else 0


def build_folded_bottom(
    model: NetworkModel, party: str, shape: FeatureShape, *, seed: Seed, folds: int, cut_width: int | None = None
) -> nn.Module:
    """Build a party's bottom model, or one for each fold, each with its own start. The first is that of a single network."""
    names = ["", *(f"fold-{place}" for place in range(1, folds))]
    members = [build_bottom(model, party, shape, seed=seed, name=name, cut_width=cut_width) for name in names]
    return FoldedBottom(members) if folds > 1 else members[0]


def build_folded_label_model(
    model: NetworkModel,
    party: str,
    own: FeatureShape | None,
    cut_widths: Sequence[int],
    *,
    outputs: int,
    seed: Seed,
    folds: int,
) -> LabelModel:
    """Build the label party's part of one network, or of one per fold. Cut widths are then multiples of the number of folds."""
    widths = [width // folds for width in cut_widths]
    names = [party, *(f"{party}/fold-{place}" for place in range(1, folds))]
    members = [build_label_model(model, name, own, widths, outputs=outputs, seed=seed) for name in names]
    return FoldedLabelModel(members) if folds > 1 else members[0]
