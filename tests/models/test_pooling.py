"""Compare pooled sequences with sums by hand, and with what a bottom model had before."""

import pytest
import torch

from tallystick.models.build import seeded
from tallystick.models.sequences import SequencePooling
from tallystick.models.tabular import Columns, TabularBottom
from tallystick.tables.features import Features, FeatureShape, SequenceShape

CODES_BL = torch.tensor([[3, 2, 2, 4], [1, 5, 0, 0], [4, 0, 0, 0], [0, 3, 0, 5]])


def pooling(*, has_target: bool) -> SequencePooling:
    with seeded(1, "pooling"):
        length = CODES_BL.shape[1] - has_target
        return SequencePooling(torch.nn.Embedding(6, 3), SequenceShape(codes=6, length=length, has_target=has_target))


def test_without_a_target_the_mean_of_the_items() -> None:
    found = pooling(has_target=False)
    table = found.table.weight
    expected = [torch.stack([table[code] for code in row if code]).mean(dim=0) for row in CODES_BL.tolist()]
    torch.testing.assert_close(found(CODES_BL), torch.stack(expected))
    assert not found(torch.zeros(2, 4, dtype=torch.int64)).any()


def test_with_a_target_every_item_is_weighed_by_how_it_goes_with_it() -> None:
    found = pooling(has_target=True)
    table, unit = found.table.weight, found.unit
    assert unit is not None
    expected = []
    for target, *items in CODES_BL.tolist():
        v = table[target]
        total = torch.zeros(3)
        for e in (table[code] for code in items if code):
            total = total + unit(torch.cat([e, v, e - v, e * v])) * e
        expected.append(torch.cat([total, v]))
    torch.testing.assert_close(found(CODES_BL), torch.stack(expected))
    # the padding's row of the table learns nothing from padding
    found(CODES_BL[:3]).sum().backward()
    assert table.grad is not None
    assert not table.grad[0].any()


@pytest.mark.parametrize("width", [3, "auto"])
def test_sequences_stand_behind_what_a_bottom_model_had(width: int) -> None:
    sequences = (SequenceShape(codes=9, length=3, has_target=True), SequenceShape(codes=4, length=2, has_target=False))
    generator = torch.Generator().manual_seed(1)
    plain = FeatureShape(numeric=2, cardinalities=(5, 3))
    shape = FeatureShape(numeric=2, cardinalities=(5, 3), sequences=sequences)
    assert shape.codes == (5, 3, 9, 9, 9, 9, 4, 4)
    codes_BG = torch.stack([torch.randint(0, size, (7,), generator=generator) for size in shape.codes], dim=1)
    features = Features(numeric_NF=torch.randn(7, 2, generator=generator), categorical_NG=codes_BG)
    with seeded(1, "columns"):
        without = Columns(plain, embedding_width=width)
    with seeded(1, "columns"):
        with_them = Columns(shape, embedding_width=width)
    joined_BW = with_them(features)
    assert joined_BW.shape == (7, with_them.width)
    before = Features(numeric_NF=features.numeric_NF, categorical_NG=codes_BG[:, :2])
    assert torch.equal(joined_BW[:, : without.width], without(before))
    parts = [with_them.sequences[0](codes_BG[:, 2:6]), with_them.sequences[1](codes_BG[:, 6:])]
    assert torch.equal(joined_BW[:, without.width :], torch.cat(parts, dim=1))
    bottom = TabularBottom(shape, embedding_width=width, hidden=[4])
    assert bottom(features).shape == (7, 4)
