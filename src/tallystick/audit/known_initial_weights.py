"""Rebuild both sides' models as they were before training, as far as anyone who has the contract can."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tallystick.attacks.feature_inference.view import FirstBatch
from tallystick.attacks.view import Start
from tallystick.config.contract import Contract
from tallystick.dataset.dataset import Dataset
from tallystick.models.build import build_bottom, top_at_start
from tallystick.models.tabular import TabularBottom
from tallystick.tables.encoder import Encoder


@dataclass(frozen=True, kw_only=True)
class KnownStart:
    """Facts that, with the contract, give the top model's starting weights. They are a few numbers, so an attacker can try all
    of them.

    Args:
        widths: of the feature parties' cuts, in the contract's order.
        own_width: of the label party's own part; 0 if it has no columns.
    """

    widths: tuple[int, ...]
    own_width: int

    @classmethod
    def of(
        cls, contract: Contract, dataset: Dataset, widths: Sequence[int], *, given_modules: bool = False
    ) -> "KnownStart | None":
        """Collect these facts. Return None if the weights also depend on a secret, a party's own modules, merged links or
        several branches.

        ``given_modules`` says that a simulation was given its own modules instead of the contract's.
        """
        model = contract.model
        own_modules = given_modules or model.top is not None or contract.label_party in model.bottoms
        if contract.training.starts == "secret" or own_modules or dataset.candidates or contract.unaligned.used:
            return None
        own = dataset.encoder is not None and dataset.encoder.feature_shape is not None
        return cls(widths=tuple(widths), own_width=model.hidden[model.cut_after - 1] if own else 0)

    @classmethod
    def read(cls, facts: dict[str, Any] | None) -> "KnownStart | None":
        """Read the value of ``facts`` back. Raises KeyError, TypeError or ValueError if it is something else."""
        if facts is None:
            return None
        return cls(widths=tuple(int(width) for width in facts["widths"]), own_width=int(facts["own_width"]))

    def facts(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {"widths": list(self.widths), "own_width": self.own_width}

    def seen_by(self, number: int, contract: Contract) -> Start:
        """Return the model as a feature party simulates it: it takes that party's own cut embeddings, and 0 for everything that
        others send.
        """
        outputs = contract.target.outputs
        settings = {"own_width": self.own_width, "outputs": outputs, "seed": contract.seed}
        top = top_at_start(contract.model, contract.label_party, self.widths, **settings)
        before, after = sum(self.widths[:number]), sum(self.widths[number + 1 :]) + self.own_width

        def start(cut_BD: Tensor) -> Tensor:
            logits: Tensor = top(pad(cut_BD, (before, after)))
            return logits

        return start


def first_positions(contract: Contract, dataset: Dataset) -> Tensor:
    """Return the positions that are embedded first. Return none if one row may stand in for others, because then a position is
    not a row.
    """
    if contract.linkage.imputes or contract.linkage.similar:
        return torch.empty(0, dtype=torch.int64)
    schedule = dataset.schedule(dataset.resolved(contract.training), seed=contract.seed)
    return next(batch.index_B.cpu() for batch in schedule.epoch(0) if not batch.is_local)


def first_batch(contract: Contract, party: str, encoder: Encoder | None, rows_B: Tensor, cut_BD: Tensor) -> FirstBatch | None:
    """Return the first batch and the model that embedded it, if the weights started from the contract's seed.

    The number and kinds of the columns come from this party's own encoder. They are a few numbers, so an attacker can try all
    of them. Return None if the contract does not say how the bottom model is made, or if a row's embedding also depends on
    other rows.
    """
    model = contract.feature_model
    shape = encoder.feature_shape if encoder is not None else None
    if shape is None or shape.sequences or party in model.bottoms or model.normalization == "batch" or not len(rows_B):
        return None
    bottom = build_bottom(model, party, shape, seed=contract.seed, cut_width=model.cut_width)
    assert isinstance(bottom, TabularBottom)
    bottom = bottom.double().eval().requires_grad_(False)
    columns, layers = bottom.columns, bottom.layers[:-1]  # up to the last ReLU

    def embed(value_BT: Tensor) -> Tensor:
        parts = [value_BT]
        if columns.numbers is not None:
            parts.append(columns.numbers(value_BT[:, : shape.numeric]))
        before_BD: Tensor = layers(torch.cat(parts, dim=1))
        return before_BD

    tables = tuple(columns.table(place).detach() for place in range(len(shape.cardinalities)))
    return FirstBatch(rows_B=rows_B, cut_BD=cut_BD, embed=embed, numeric=shape.numeric, tables=tables)
