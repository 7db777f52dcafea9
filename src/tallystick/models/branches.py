"""Build label models with a branch for rows without a partner's row. Shapes: B batch, D cut width, C outputs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor, nn

from tallystick.models.dropout import Dropout
from tallystick.models.normalization import norms_like
from tallystick.models.split import LabelModel, OwnColumnsModel
from tallystick.tables.features import Features


class BranchedModel(LabelModel, ABC):
    """A label model that can also score a row by the label party's own columns."""

    own_rows_part: ClassVar[str] = "scorer"
    """Name of ``own_rows`` among its weights."""

    @abstractmethod
    def local(self, own: Features) -> Tensor:
        """Compute the logits of rows without a partner's row, by the branch that trains the joint model: (B,) for one output,
        else (B, C).
        """

    @property
    def own_rows(self) -> LabelModel | None:
        """Return a model of own columns that is trained on all own rows after the joint model, or None if there is none."""
        part = self._modules.get(self.own_rows_part)
        assert part is None or isinstance(part, LabelModel)
        return part

    def scores_by(self, own_rows: LabelModel) -> "BranchedModel":
        """Return the same model, which now scores rows without a partner's row by ``own_rows``."""
        self.add_module(self.own_rows_part, own_rows)
        return self

    def first_alone(self) -> AbstractContextManager[None]:
        """Score own rows within this block by the part that did not learn from validation rows."""
        return self.own_rows.first_alone() if self.own_rows is not None else super().first_alone()

    def score_alone(self, own: Features) -> Tensor:
        """Compute the logits for scoring rows without a partner's row, in the shape of ``local``."""
        if self.own_rows is None:
            return self.local(own)
        logits: Tensor = self.own_rows([], own)
        return logits


class SharedBottom(BranchedModel):
    """One bottom model below two tops: the joint one, and one for own columns alone."""

    bottom: nn.Module

    def __init__(self, joint: OwnColumnsModel, local_top: nn.Module) -> None:
        super().__init__(joint.top, bottom=joint.bottom)
        self.local_top = local_top
        self.bottom_norms = norms_like(joint.bottom)  # FedAds, section 5.1.4: branches share layers, not batch normalisation

    def local(self, own: Features) -> Tensor:
        """Compute logits by the top for own columns."""
        return self.alone(self.embedded(own, local=True))

    def alone(self, embedded_BD: Tensor) -> Tensor:
        """Compute the logits of own embeddings alone."""
        return _squeezed(self.local_top(embedded_BD))

    def embedded(self, own: Features, *, local: bool = False) -> Tensor:
        """Embed the own columns, h_L (B, width of the bottom), in the joint branch or in the local one."""
        cut_BD: Tensor = self.bottom(own, self.bottom_norms) if local and self.bottom_norms else self.bottom(own)
        return cut_BD


class Synthesizing(SharedBottom):
    """A SharedBottom with a third top, for embeddings that are made up for rows without a partner's row.

    ``generator`` makes them. The run's optimizer does not train its weights.
    """

    def __init__(self, joint: OwnColumnsModel, local_top: nn.Module, synthetic_top: nn.Module, generator: nn.Module) -> None:
        super().__init__(joint, local_top)
        self.synthetic_top = synthetic_top
        self.generator = generator

    def joined(self, cut_BD: Tensor, embedded_BD: Tensor) -> Tensor:
        """Compute the joint logits of embeddings."""
        return _squeezed(self.top(torch.cat([cut_BD, embedded_BD], dim=1)))

    def synthetic(self, made_BD: Tensor, embedded_BD: Tensor) -> Tensor:
        """Compute the logits of own embeddings together with made-up cut embeddings."""
        return _squeezed(self.synthetic_top(torch.cat([made_BD, embedded_BD], dim=1)))


class FromLocal(BranchedModel):
    """A joint model next to a fixed one of own columns alone, whose logit is the joint one's offset, if asked for.

    ``dropout`` drops some of the joint top's inputs in training; a ``frozen`` bottom is fixed as well. ``cut_top`` reads only the
    cut embeddings. It is for training; predictions do not use it.
    """

    bottom: nn.Module

    def __init__(
        self,
        joint: OwnColumnsModel,
        alone: OwnColumnsModel,
        *,
        offset: bool,
        dropout: Dropout | None = None,
        frozen: bool = False,
        cut_top: nn.Module | None = None,
    ) -> None:
        super().__init__(joint.top, bottom=joint.bottom)
        self.cut_top = cut_top
        self.alone = alone
        self.offset = offset
        self.dropout = dropout
        self.frozen = frozen

    def train(self, mode: bool = True) -> "FromLocal":
        """Switch to training, except for fixed parts: their running statistics are used and do not change."""
        super().train(mode)
        self.alone.eval()
        if self.frozen:
            self.bottom.eval()
        return self

    def predict(self, parts: Sequence[Tensor], own: Features) -> Tensor:
        """Compute the joint logits of all parts."""
        return super().predict([self.dropout(torch.cat(list(parts), dim=1))] if self.dropout is not None else parts, own)

    def finish(self, cuts_BD: Sequence[Tensor], own: Features) -> Tensor:
        """Compute the joint logits."""
        logits = super().finish(cuts_BD, own)
        if not self.offset:
            return logits
        with torch.no_grad():
            offset = self.alone([], own)
        joint: Tensor = logits + offset
        return joint

    def of_cut(self, cuts_BD: Sequence[Tensor]) -> Tensor:
        """Compute logits from the cut embeddings alone."""
        assert self.cut_top is not None
        return _squeezed(self.cut_top(torch.cat(list(cuts_BD), dim=1)))

    def local(self, own: Features) -> Tensor:
        """Compute logits by the model of own columns."""
        logits: Tensor = self.alone([], own)
        return logits


class Averaged(BranchedModel):
    """Two branched models on the same cut embeddings. The logits are their mean.

    ``cut_top`` reads only the cut embeddings. It is for training; predictions do not use it.
    """

    def __init__(self, first: BranchedModel, second: BranchedModel, cut_top: nn.Module) -> None:
        nn.Module.__init__(self)
        self.first = first
        self.second = second
        self.cut_top = cut_top

    def of_cut(self, cuts_BD: Sequence[Tensor]) -> Tensor:
        """Compute logits from the cut embeddings alone."""
        return _squeezed(self.cut_top(torch.cat(list(cuts_BD), dim=1)))

    def finish(self, cuts_BD: Sequence[Tensor], own: Features) -> Tensor:
        """Average both."""
        logits: Tensor = (self.first(cuts_BD, own) + self.second(cuts_BD, own)) / 2
        return logits

    def local(self, own: Features) -> Tensor:
        """Average both."""
        return (self.first.local(own) + self.second.local(own)) / 2

    def score_alone(self, own: Features) -> Tensor:
        """Average the model of all own rows and ``local``: trained in different ways, they make different errors."""
        alone = super().score_alone(own)
        return alone if self.own_rows is None else (alone + self.local(own)) / 2


def _squeezed(logits: Tensor) -> Tensor:
    return logits.squeeze(1) if logits.ndim == 2 and logits.shape[1] == 1 else logits
