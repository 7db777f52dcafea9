"""Implement heuristic: a row's missing embedding is its group's mean. Shapes: N rows, B batch, D cut width, K groups."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tallystick.config.unaligned import HeuristicConfig
from tallystick.cut.forward import FeatureSource
from tallystick.models.branches import Synthesizing
from tallystick.models.build import BranchParts
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.unaligned.synthesis import Synthesis, named_group


class GroupMeans(nn.Module):
    """A mean embedding for each category of a column, and the mean of all for categories without an aligned row."""

    def __init__(self, groups: int, cut_width: int) -> None:
        super().__init__()
        self.register_buffer("mean_KD", torch.zeros(groups, cut_width))

    mean_KD: Tensor


@dataclass(frozen=True, kw_only=True)
class Heuristic(Synthesis):
    """HeuristicVFL: the mean embedding of the aligned rows of the same user, given by ``unaligned.group``.

    FedAds, section 5.1.3. It does not mention users without aligned rows: here the mean of all rows replaces their embedding, as
    for every row if no column is named. Threat model and guarantee are those of Synthesis.
    """

    settings: HeuristicConfig

    def generator(self, parts: BranchParts) -> nn.Module:
        """Build the table of means."""
        place = self._place()
        return GroupMeans(parts.own.cardinalities[place] if place is not None else 1, parts.cut_width)

    def fit(
        self,
        model: LabelModel,
        objective: Objective,  # noqa: ARG002
        own: FeatureSource,
        index_N: Tensor,
        cuts_ND: Tensor,
    ) -> None:
        """Compute the means."""
        assert isinstance(model, Synthesizing)
        assert isinstance(model.generator, GroupMeans)
        means = model.generator.mean_KD
        group_N = torch.cat([self._groups(own(index_B)) for index_B in torch.split(index_N, self.batch_size)])
        rows_K = torch.zeros(len(means)).index_add_(0, group_N, torch.ones(len(group_N)))
        sums_KD = torch.zeros_like(means).index_add_(0, group_N, cuts_ND)
        means.copy_(torch.where(rows_K[:, None] > 0, sums_KD / rows_K[:, None].clamp_min(1), cuts_ND.mean(dim=0)))

    def made(self, model: Synthesizing, own: Features, targets_B: Tensor, *, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Return the mean of each row's group."""
        assert isinstance(model.generator, GroupMeans)
        return model.generator.mean_KD[self._groups(own)]

    def _place(self) -> int | None:
        return named_group(tuple(self.columns), self.settings.group)

    def _groups(self, own: Features) -> Tensor:
        place = self._place()
        return own.categorical_NG[:, place] if place is not None else torch.zeros(len(own), dtype=torch.int64)
