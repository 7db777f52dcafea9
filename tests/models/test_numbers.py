"""Compare embeddings of numbers with the encoding by hand, and test what a first layer can do with them."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tallystick.models.numbers import Periodic, PiecewiseLinear, embed_numbers
from tallystick.models.tabular import Columns, TabularBottom, embedding_widths
from tallystick.tables.features import Features, FeatureShape

EDGES = ((-1.0, 0.0, 0.5, 2.0), (), (0.0, 3.0))
SHAPE = FeatureShape(numeric=3, cardinalities=(5,), numbers="piecewise-linear", edges=EDGES)


def batch(rows=50, seed=1):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, 3, generator=generator) * 2
    numbers[:4, 0] = torch.tensor([-1.0, 0.5, 2.0, 9.0])  # edges, and beyond them
    return Features(numeric_NF=numbers, categorical_NG=torch.randint(0, 5, (rows, 1), generator=generator))


def encoded(value, edges):
    """Compute the paper's equation 1, with the ends kept within 0 and 1."""
    return np.array([np.clip((value - a) / (b - a), 0, 1) for a, b in pairwise(edges)])


def test_piecewise_linear_is_the_encoding_times_its_weights():
    module = embed_numbers(SHAPE)
    assert isinstance(module, PiecewiseLinear)
    torch.nn.init.normal_(module.bins, generator=torch.Generator().manual_seed(2))
    given = batch()
    found = module(given.numeric_NF).view(50, 2, -1).detach().numpy()
    for place, column in enumerate([0, 2]):
        weights, slope, offset = (part[place].detach().numpy() for part in (module.bins, module.slope, module.offset))
        for row, value in enumerate(given.numeric_NF[:, column].tolist()):
            parts = encoded(value, EDGES[column])
            expected = parts @ weights[: len(parts)] + value * slope + offset
            assert found[row, place] == pytest.approx(expected, abs=1e-5)


def test_bins_begin_at_zero_and_all_of_those_in_use_learn():
    module = embed_numbers(SHAPE)
    before = module(batch().numeric_NF).view(50, 2, -1)
    expected = batch().numeric_NF[:, [0, 2], None] * module.slope + module.offset
    assert torch.allclose(before, expected, atol=1e-6)
    module(batch(500).numeric_NF).square().sum().backward()
    moved = module.bins.grad.abs().sum(dim=2) > 0
    assert moved.tolist() == [[True, True, True], [True, False, False]]  # the second column has one bin


def test_columns_without_edges_stay_plain():
    assert embed_numbers(FeatureShape(numeric=2, cardinalities=())) is None
    assert embed_numbers(FeatureShape(numeric=2, cardinalities=(), numbers="piecewise-linear", edges=((), ()))) is None
    columns = Columns(SHAPE, embedding_width=4)
    assert columns.width == 3 + 4 + 2 * 12
    assert torch.equal(columns(batch())[:, :3], batch().numeric_NF)


def test_weights_files_hold_no_edges():
    """Edges are values of the party's rows, so the encoder keeps them."""
    assert set(PiecewiseLinear([0], [(0.0, 1.0)]).state_dict()) == {"bins", "slope", "offset"}


@pytest.mark.parametrize(("numbers", "better"), [("piecewise-linear", 0.02), ("periodic", 0.1)])
def test_one_layer_above_an_embedding_follows_a_curve_that_it_cannot_follow_without(numbers, better):
    def error(kind):
        torch.manual_seed(0)
        x = torch.rand(2_000, 1) * 4 - 2
        target = torch.sin(5 * x)
        shape = FeatureShape(numeric=1, cardinalities=(), numbers=kind, edges=(tuple(np.linspace(-2, 2, 33).tolist()),))
        bottom = TabularBottom(shape, embedding_width=4, hidden=())
        model = torch.nn.Sequential(bottom, torch.nn.Linear(bottom.width, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        features = Features(numeric_NF=x, categorical_NG=torch.empty(2_000, 0, dtype=torch.int64))
        for _ in range(200):
            loss = (model(features) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    assert error("plain") > 0.4
    assert error(numbers) < better


def test_periodic_is_made_where_asked_for():
    shape = FeatureShape(numeric=2, cardinalities=(), numbers="periodic", edges=((0.0, 1.0), ()))
    module = embed_numbers(shape)
    assert isinstance(module, Periodic)
    assert module(torch.randn(5, 2)).shape == (5, 12)


def test_embeddings_are_as_wide_and_as_small_as_asked():
    assert embedding_widths([2, 4, 15, 16, 17, 10**6], "auto") == [2, 4, 15, 16, 16, 16]
    assert embedding_widths([2, 10**6], 7) == [7, 7]
    shape = FeatureShape(numeric=0, cardinalities=(10_000,))
    small = Columns(shape, embedding_width=4, embedding_scale=0.1).table(0)
    assert small.std().item() == pytest.approx(0.1, rel=0.05)
    assert Columns(shape, embedding_width=4).table(0).std().item() == pytest.approx(1.0, rel=0.05)


def test_embeddings_begin_large_where_a_category_has_many_training_rows():
    shape = FeatureShape(numeric=0, cardinalities=(1_000, 2_000, 1_001), rows=200_000)
    torch.manual_seed(0)
    columns = Columns(shape, embedding_width=16, embedding_scale="auto")
    # A standard deviation of 16,000 draws or more is off by over 5 % in 9 standard errors.
    assert [columns.table(place).std().item() for place in range(3)] == pytest.approx([0.3, 0.1, 0.1], rel=0.05)
    unsaid = Columns(FeatureShape(numeric=0, cardinalities=(1_000,)), embedding_width=16, embedding_scale="auto")
    assert unsaid.table(0).std().item() == pytest.approx(0.1, rel=0.05)
