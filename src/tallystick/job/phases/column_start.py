"""A feature party's bottom model as it was before training, as far as anybody who has the contract can make it."""

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.view import FirstBatch
from tallystick.config.contract import Contract
from tallystick.data.encoder import Encoder
from tallystick.dataset.dataset import Dataset
from tallystick.models.build import build_bottom
from tallystick.models.tabular import TabularBottom


def first_positions(contract: Contract, dataset: Dataset) -> Tensor:
    """Which positions are embedded first; none where a row may stand for others, so that a position is no row."""
    if contract.linkage.imputes or contract.linkage.similar:
        return torch.empty(0, dtype=torch.int64)
    schedule = dataset.schedule(dataset.settled(contract.training), seed=contract.seed)
    return next(batch.index_B.cpu() for batch in schedule.epoch(0) if not batch.is_local)


def first_batch(contract: Contract, party: str, encoder: Encoder | None, rows_B: Tensor, cut_BD: Tensor) -> FirstBatch | None:
    """The first batch beside the model that embedded it, if weights started from the contract's seed.

    Number and kinds of the columns come from this party's own encoder: few numbers, which an attacker tries in turn. None where
    the contract does not say how the bottom is made, or a row's embedding is not of that row's cells alone.
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
