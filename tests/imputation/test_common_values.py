"""Common values: what only a few rows have is gone from real and made-up rows alike, and the rest is unchanged."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_auc_score

from tallystick.attacks.membership.cells import UniqueCells
from tallystick.attacks.view import StepView, View
from tallystick.dataset.imputed import ImputingSource
from tallystick.imputation.draws import Draws
from tallystick.imputation.spliced_features import SplicedFeatures
from tallystick.tables.categories import UNSEEN
from tallystick.tables.common_values import BINS, LEAST_CODES, LEAST_ROWS, Blur, CommonValues
from tallystick.tables.features import Features

ROWS = 1600


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blurred(numeric_NF: torch.Tensor, codes_NG: torch.Tensor, *, fitted_on: Features | None = None) -> Features:
    rows = Features(numeric_NF=numeric_NF, categorical_NG=codes_NG)
    blur = Blur.of(CommonValues.fit(fitted_on or rows), generator=generator(1))
    return blur(rows, torch.rand(len(rows), generator=generator(2)))


def no_codes(rows: int) -> torch.Tensor:
    return torch.empty(rows, 0, dtype=torch.int64)


def awkward() -> tuple[torch.Tensor, torch.Tensor]:
    """Make continuous numbers, integers with long tails, rounded ones, mostly zeros, and categories with long tails,
    two a pair.
    """
    rng = np.random.default_rng(3)
    common = rng.normal(size=ROWS)
    numbers = [
        common + rng.normal(size=ROWS),
        np.round(np.exp(common + rng.normal(size=ROWS)) * 100),
        np.round(common * 5 + rng.normal(size=ROWS)),
        np.where(rng.random(ROWS) < 0.7, 0.0, np.exp(common)),
    ]
    first = np.minimum(rng.zipf(1.5, size=ROWS), 300)
    codes = [
        first,
        np.where(rng.random(ROWS) < 0.8, first, np.minimum(rng.zipf(1.5, size=ROWS), 300)),
        rng.integers(4, size=ROWS),
    ]
    return torch.from_numpy(np.stack(numbers, axis=1)).float(), torch.from_numpy(np.stack(codes, axis=1)).long() + 1


@pytest.mark.parametrize("together", [1, 2])
def test_made_up_and_real_rows_cannot_be_told_by_how_rare_their_values_are(together: int) -> None:
    """Seeded; a guess is off by more than .06 with a chance below 1e-8. Copies of cells gave .744 and .637."""
    numeric_NF, codes_NG = awkward()
    own_U = torch.where(torch.arange(2 * ROWS) % 2 == 0, torch.arange(2 * ROWS) // 2, -1)
    source = ImputingSource.of(
        Features(numeric_NF=numeric_NF, categorical_NG=codes_NG),
        own_U,
        imputer=SplicedFeatures(),
        draws=Draws.of(rows=2 * ROWS, k=1, redraw="once", generator=generator(4)),
        generator=generator(5),
    )
    rows = torch.arange(2 * ROWS)
    embedded = source(rows)
    sent_NC = torch.cat([embedded.numeric_NF, embedded.categorical_NG], dim=1)
    step = StepView(epoch=0, rows_B=rows, own_B=torch.ones(2 * ROWS, dtype=torch.bool), received_BD=torch.zeros(2 * ROWS, 1))
    scores = UniqueCells(together=together)(View(received="cut_embedding", steps=(step,), sent_NC=sent_NC), generator=generator())
    real_N, score_N = (own_U >= 0).numpy(), scores.values[0].numpy()
    assert 0.44 < roc_auc_score(real_N, score_N) < 0.56
    surely_real = score_N > score_N[~real_N].max()
    surely_made_up = score_N < score_N[real_N].min()
    assert surely_real.mean() + surely_made_up.mean() < 0.01


@given(values=arrays(np.float32, st.integers(1, 400), elements=st.integers(-9, 9).map(lambda value: value / 3)))
@settings(max_examples=50, deadline=None)
def test_frequent_numbers_stay_and_others_move_within_a_bin_of_few_rows(values: np.ndarray) -> None:
    numeric_N1 = torch.from_numpy(values)[:, None]
    found_N = blurred(numeric_N1, no_codes(len(values))).numeric_NF[:, 0].numpy()
    least = max(LEAST_ROWS, len(values) // BINS)
    counts = dict(zip(*np.unique(values, return_counts=True), strict=True))
    sorted_N = np.sort(values)
    for value, moved in zip(values, found_N, strict=True):
        if counts[value] >= least:
            assert moved == value
            continue
        assert sorted_N[0] <= moved <= sorted_N[-1]
        between = (values > min(value, moved)) & (values < max(value, moved))
        assert between.sum() < 3 * least


def amounts(rows: int, *, round_share: float, seed: int) -> np.ndarray:
    """Make amounts, so many of which are multiples of 50, while the others have cents."""
    rng = np.random.default_rng(seed)
    even, odd = rng.choice(np.arange(50, 2050, 50), size=rows), rng.uniform(0, 2100, size=rows).round(2)
    return np.where(rng.random(rows) < round_share, even, odd).astype(np.float32)


@given(
    values=st.builds(amounts, st.integers(1, 2500), round_share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
    | arrays(np.float32, st.integers(1, 100), elements=st.integers(-9, 9).map(float))
)
@example(values=amounts(2000, round_share=0.95, seed=0))
@settings(max_examples=50, deadline=None)
def test_every_bin_is_one_frequent_number_or_has_enough_rows(values: np.ndarray) -> None:
    """A bin of fewer rows shows that its rows are real: of the example's 80 or so, dozens had one to seven rows."""
    rows = Features(numeric_NF=torch.from_numpy(values)[:, None], categorical_NG=no_codes(len(values)))
    (bins,) = CommonValues.fit(rows).numbers
    bin_N = (np.searchsorted(np.array(bins.starts, np.float32), values, side="right") - 1).clip(min=0)
    rows_T = np.bincount(bin_N, minlength=len(bins.starts))
    least = max(LEAST_ROWS, len(values) // BINS)
    assert rows_T.min() >= min(least, len(values))
    for low, high in zip(bins.lows, bins.highs, strict=True):
        assert low < high or (values == np.float32(low)).sum() >= min(least, len(values))


def test_rows_between_frequent_numbers_that_are_too_few_for_a_bin_get_one_of_these() -> None:
    values = torch.tensor([1.0, 2.0, 2.5] + [3.0] * 8 + [4.0] * 7 + [5.0] * 8 + [6.0] * 3 + [7.0] * 7)
    found_N = blurred(values[:, None], no_codes(len(values))).numeric_NF[:, 0]
    assert found_N[:26].tolist() == [3.0] * 18 + [5.0] * 8
    assert ((found_N[26:] >= 6.0) & (found_N[26:] <= 7.0)).all()


def test_continuous_numbers_stay_all_different_and_in_their_ranks() -> None:
    values_NF = torch.randn(ROWS, 3, generator=generator(6))
    found_NF = blurred(values_NF, no_codes(ROWS)).numeric_NF
    for value_N, found_N in zip(values_NF.T, found_NF.T, strict=True):
        assert len(found_N.unique()) == ROWS
        assert int((value_N.argsort().argsort() - found_N.argsort().argsort()).abs().max()) <= 2 * max(LEAST_ROWS, ROWS // BINS)


def test_rare_codes_become_those_of_unseen_ones_and_a_few_of_these_the_most_frequent() -> None:
    rare = torch.tensor([2] * 50 + [3] * 40 + [4] * 9 + [5] * 3)
    few = torch.tensor([2] * 50 + [3] * 43 + [4] * 9)
    found = blurred(torch.empty(102, 0), rare[:, None]).categorical_NG[:, 0]
    assert found.bincount().tolist() == [0, 12, 50, 40]
    assert int(found[101]) == UNSEEN
    assert blurred(torch.empty(102, 0), few[:, None]).categorical_NG[:, 0].bincount().tolist() == [0, 0, 59, 43]
    fitted_on = Features(numeric_NF=torch.empty(102, 0), categorical_NG=few[:, None])
    later = blurred(torch.empty(4, 0), torch.tensor([[0], [UNSEEN], [3], [9]]), fitted_on=fitted_on).categorical_NG[:, 0]
    assert later.tolist() == [2, 2, 3, 2]
    assert few.bincount()[4] < LEAST_CODES
