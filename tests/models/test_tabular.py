"""The built-in model's embedding lookups equal PyTorch's own, to the bit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tallystick.models.tabular import Columns, Wide
from tallystick.tables.features import Features, FeatureShape


@settings(max_examples=50, deadline=None)
@given(cardinalities=st.lists(st.integers(1, 50), min_size=1, max_size=3), rows=st.integers(1, 200), seed=st.integers(0, 99))
def test_lookups_and_their_gradients_have_the_bits_of_nn_embedding(cardinalities, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = FeatureShape(numeric=2, cardinalities=tuple(cardinalities))
    codes_NG = torch.stack([torch.randint(0, size, (rows,), generator=generator) for size in cardinalities], dim=1)
    features = Features(numeric_NF=torch.randn(rows, 2, generator=generator), categorical_NG=codes_NG)

    columns = Columns(shape, embedding_width=4)
    called = [functional.embedding(codes_NG[:, g], table.weight) for g, table in enumerate(columns.embeddings)]
    assert_same(columns(features), torch.cat([features.numeric_NF, *called], dim=1), columns, generator)

    wide = Wide(shape, outputs=3)
    parts = [functional.embedding(codes_NG[:, g], table.weight) for g, table in enumerate(wide.categorical)]
    assert_same(wide(features), torch.stack([*parts, wide.numeric(features.numeric_NF)]).sum(dim=0), wide, generator)


def assert_same(ours, theirs, module, generator):
    assert torch.equal(ours, theirs)
    grad = torch.randn(ours.shape, generator=generator)
    parameters = list(module.parameters())
    for mine, reference in zip(
        torch.autograd.grad(ours, parameters, grad, allow_unused=True),
        torch.autograd.grad(theirs, parameters, grad, allow_unused=True),
        strict=True,
    ):
        assert torch.equal(mine, reference)
