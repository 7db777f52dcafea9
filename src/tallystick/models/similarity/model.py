"""Build the label party's model if several candidate rows are linked to each of its own (FedSim, section 4.2).

Shapes: B batch, R distinct candidates that cross, K candidates of a row, D cut width, E width of the own embedding, L width of a
link's output.

    cut_RD -> cut_BKD            each link's candidate                        tables/linked_columns.py
    own_BE, cut_BKD -> o_BKL     aggregator: a link's output                  LinkModel
    s_BK -> w_BK                 weight gate                                  gates.py
    sorted by s_BK               sort gate                                    gates.py
    o_BKL, w_BK -> merged        merge gate, per feature party                merges.py
    all merged -> logits         top
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tallystick.config.merge import MergeConfig
from tallystick.models.branches import BranchedModel
from tallystick.models.similarity.merges import ACTIVATIONS, MERGES, WEIGHTS, LearntWeight, ascending
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.tables.linked_columns import CandidateLinks, LinkedFeatures


class LinkModel(nn.Module):
    """A model that turns the links to one feature party's candidates into one merged row.

    Args:
        own: width of the label party's own embedding, 0 without one.
        cut: width of the feature party's cut embedding.
        links: candidates of a row, including padding.
        hidden: widths of the aggregator's layers.
        settings: the contract's settings.
    """

    def __init__(self, *, own: int, cut: int, links: int, hidden: Sequence[int], settings: MergeConfig) -> None:
        super().__init__()
        first, *others = [*hidden, settings.width]
        self.own = own
        self.first = nn.Linear(own + cut + settings.similarity_input, first)
        self.others = nn.Sequential()
        for before, after in pairwise([first, *others]):
            self.others.extend([nn.ReLU(), nn.Linear(before, after)])
        self.others.append(ACTIVATIONS[settings.activation]())
        self.weight = WEIGHTS[settings.weight]()
        self.merge = MERGES[settings.method](links, settings.width, settings)
        self.sorts = settings.sort
        self.reads_similarity = settings.similarity_input

    @property
    def width(self) -> int:
        """Return the width of the merged row."""
        width = self.merge.width
        assert isinstance(width, int)
        return width

    def forward(self, own_BE: Tensor | None, cut_BKD: Tensor, linked: CandidateLinks) -> Tensor:
        """Compute the merged rows, one per example."""
        similarity_BK, present_BK = linked.similarity_BK, linked.present
        link_BKD = torch.cat([cut_BKD, similarity_BK[:, :, None]], dim=2) if self.reads_similarity else cut_BKD
        first_BKH = linear(link_BKD, self.first.weight[:, self.own :], self.first.bias)
        if own_BE is not None:  # the contribution of the own columns is the same for all links of an example
            first_BKH = first_BKH + linear(own_BE, self.first.weight[:, : self.own])[:, None]
        output_BKL = self.others(first_BKH)
        weight_BK = self.weight(similarity_BK)
        if self.sorts:
            order_BK = ascending(similarity_BK, present_BK)
            output_BKL = output_BKL.gather(1, order_BK[:, :, None].expand_as(output_BKL))
            weight_BK, present_BK = weight_BK.gather(1, order_BK), present_BK.gather(1, order_BK)
        merged: Tensor = self.merge(output_BKL, weight_BK, present_BK)
        return merged


LOOKED_AT = tuple(index / 2 for index in range(-6, 7))
"""Similarities for which a weight gate is shown, in standard deviations."""


class SimilarityLabelModel(BranchedModel):
    """All modules of the label party if rows are linked by similarity: links and merge per feature party, and the top.

    Rows without a link are scored by ``own_rows``, if the contract leaves some rows without a link.
    """

    own_rows_part = "alone"

    def __init__(
        self,
        links: Sequence[LinkModel],
        top: nn.Module,
        *,
        bottom: nn.Module | None,
        wide: nn.Module | None,
        own_columns: bool,
    ) -> None:
        super().__init__(top, bottom=bottom, wide=wide)
        self.links = nn.ModuleList(links)
        self.own_columns = own_columns

    def local(self, own: Features) -> Tensor:
        """Compute logits by the own columns' model. It has no branch through which it would train the joint model."""
        assert self.own_rows is not None, "the contract leaves rows without a link"
        logits: Tensor = self.own_rows([], own)
        return logits

    def by_example(self, cuts_BD: Sequence[Tensor], own: Features) -> list[Tensor]:
        """Return the candidates of each example (B, K, D), from the distinct ones that crossed (R, D)."""
        assert isinstance(own, LinkedFeatures), "a merging model's batch comes from a dataset of candidates"
        return [linked.gather(cut_RD) for linked, cut_RD in zip(own.linked, cuts_BD, strict=True)]

    def finish(self, cuts_BD: Sequence[Tensor], own: Features) -> Tensor:
        """Compute the logits of each example's candidates."""
        assert isinstance(own, LinkedFeatures), "a merging model's batch comes from a dataset of candidates"
        own_BE = self.bottom(own) if self.bottom is not None else None
        parts = [links(own_BE, cut_BKD, linked) for links, cut_BKD, linked in zip(self.links, cuts_BD, own.linked, strict=True)]
        if own_BE is not None and self.own_columns:
            parts.append(own_BE)
        return self.predict(parts, own)


@torch.no_grad()
def learnt_weights(model: LabelModel) -> list[list[float]]:
    """Return each feature party's learnt weights for ``LOOKED_AT`` similarities (FedSim, Figure 10); empty if none is learnt."""
    links = model.links if isinstance(model, SimilarityLabelModel) else ()
    gates = [link.weight for link in links if isinstance(link, LinkModel) and isinstance(link.weight, LearntWeight)]
    weights_of_parties = []
    for gate in gates:
        similarities_BK = torch.tensor(LOOKED_AT, device=next(gate.parameters()).device)[None]
        weights_of_parties.append(gate(similarities_BK)[0].tolist())
    return weights_of_parties
