"""Spliced rows: distributed like real ones along the tree, copies of none, and always the same."""

import numpy as np
import pytest
import torch

from tallystick.dataset.imputed import ImputingSource
from tallystick.errors import ConfigError, DataError
from tallystick.imputation.draws import Draws
from tallystick.imputation.spliced_features import LARGEST_SHARE, SplicedFeatures, dependence_tree
from tallystick.tables.common_values import BINS
from tallystick.tables.features import Features

ROWS, COUNT = 2000, 3000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def columns(*, numeric: int = 6, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Make numbers that all depend on one, and a chain of codes each of which mostly repeats the one before."""
    rng = np.random.default_rng(seed)
    common_N = rng.normal(size=ROWS)
    numbers = np.stack([common_N + rng.normal(size=ROWS) for _ in range(numeric)], axis=1) if numeric else np.empty((ROWS, 0))
    codes = [rng.integers(5, size=ROWS)]
    for _ in range(5):
        codes.append(np.where(rng.random(ROWS) < 0.8, codes[-1], rng.integers(5, size=ROWS)))
    return torch.from_numpy(numbers).float(), torch.from_numpy(np.stack(codes, axis=1))


def test_the_tree_of_a_chain_is_the_chain() -> None:
    edges = dependence_tree([column_N.numpy() for column_N in columns(numeric=0)[1].T])
    assert edges[0] == (0, -1)
    assert {frozenset(edge) for edge in edges[1:]} == {frozenset((a, a + 1)) for a in range(5)}


@pytest.mark.parametrize("switch", [0.1, 1.0])
def test_neighbours_in_the_tree_are_distributed_as_in_real_rows(switch: float) -> None:
    """Chi-square against the real pairs' shares, both sides sampled: 25 cells, and the 1e-6 quantile of chi2(24) is 74."""
    numeric_NF, codes_NG = columns()
    made_SF, made_SG = SplicedFeatures(switch=switch).made_up(numeric_NF, codes_NG, COUNT, generator=generator())
    for g in range(5):
        real, made = (torch.bincount(5 * codes[:, g] + codes[:, g + 1], minlength=25).double() for codes in (codes_NG, made_SG))
        share = (real + made) / (ROWS + COUNT)
        assert float(((real - ROWS * share) ** 2 / (ROWS * share) + (made - COUNT * share) ** 2 / (COUNT * share)).sum()) < 74
    for f in range(6):
        assert set(made_SF[:, f].tolist()) <= set(numeric_NF[:, f].tolist())
    assert float(torch.corrcoef(made_SF.T)[0, 1:].max()) == pytest.approx(
        float(torch.corrcoef(numeric_NF.T)[0, 1:].max()), abs=0.1
    )


def test_no_real_row_gives_most_of_a_made_up_one() -> None:
    """Numbers of a continuous distribution identify the real row that gave them."""
    numeric_NF = torch.randn(ROWS, 12, generator=generator(2)) + 2 * torch.randn(ROWS, 1, generator=generator(3))
    made_SF, _ = SplicedFeatures().made_up(numeric_NF, torch.empty(ROWS, 0).long(), COUNT, generator=generator())
    donor_SF = torch.stack([(m[:, None] == n[None, :]).int().argmax(dim=1) for n, m in zip(numeric_NF.T, made_SF.T, strict=True)])
    donor_SF = donor_SF.T
    most_S = (donor_SF[:, :, None] == donor_SF[:, None, :]).sum(dim=2).max(dim=1).values
    assert int(most_S.max()) <= LARGEST_SHARE * 12
    assert float((most_S > 2).double().mean()) > 0.9  # pieces, not single columns


@pytest.mark.parametrize("shape", [(1, 0), (0, 1), (2, 1)])
def test_awkward_tables(shape: tuple[int, int]) -> None:
    """A single column, constant columns, and a single row, which is all that rows can be made of."""
    numeric_NF, codes_NG = torch.ones(1, shape[0]), torch.zeros(1, shape[1]).long()
    made_SF, made_SG = SplicedFeatures().made_up(numeric_NF, codes_NG, 4, generator=generator())
    assert torch.equal(made_SF, torch.ones(4, shape[0]))
    assert torch.equal(made_SG, torch.zeros(4, shape[1]).long())


def test_without_any_row_and_without_a_switch_it_is_refused() -> None:
    with pytest.raises(DataError, match="no rows to splice"):
        SplicedFeatures().made_up(torch.empty(0, 2), torch.empty(0, 0).long(), 3, generator=generator())
    with pytest.raises(ConfigError, match="switch=0"):
        SplicedFeatures(switch=0)


def test_a_position_has_one_row_for_the_whole_run_and_own_rows_hardly_move() -> None:
    numeric_NF, codes_NG = columns()
    own_U = torch.where(torch.arange(ROWS) % 3 == 0, -1, torch.arange(ROWS))
    features = Features(numeric_NF=numeric_NF, categorical_NG=codes_NG)
    draws = Draws.of(rows=ROWS, k=1, redraw="step", generator=generator(1))
    source = ImputingSource.of(features, own_U, imputer=SplicedFeatures(), draws=draws, generator=generator(2))
    index_B = torch.tensor([5, 3, 7, 0, 999])
    one, other = source(index_B), source(index_B.flip(0))
    assert torch.equal(one.numeric_NF, other.numeric_NF.flip(0))
    assert torch.equal(one.categorical_NG, other.categorical_NG.flip(0))
    shift_2F = (numeric_NF < one.numeric_NF[[0, 2]][:, None]).sum(dim=1) - (numeric_NF < numeric_NF[[5, 7]][:, None]).sum(dim=1)
    assert int(shift_2F.abs().max()) <= 2 * ROWS // BINS  # an own row's numbers move within their bins
    assert torch.equal(one.categorical_NG[[0, 2]], codes_NG[[5, 7]])
    assert one.present_B.tolist() == [True, False, True, False, False]
    assert one.who_N.tolist() == [5, -4, 7, -1, -1000]  # a stand-in is known by its position, never as a row of its donor
    assert not any(bool((row_F == numeric_NF).all(dim=1).any()) for row_F in one.numeric_NF[[1, 3, 4]])
