"""Columns that alone determine the label, compared with the area under the curve that is computed elsewhere."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from tallystick.metrics import auc
from tallystick.tables.target_leakage import follows, telling

ROWS = 400
RNG = np.random.default_rng(3)
LABEL = RNG.integers(0, 2, ROWS)
NOISE = RNG.normal(size=ROWS)


def shifted(by: float) -> Any:
    return NOISE + by * LABEL


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (pl.Series(LABEL), "all but equals the label"),
        (pl.Series(1 - LABEL), "all but equals the label"),
        (pl.Series(np.where(LABEL == 1, "yes", "no")), "all but equals the label"),
        (pl.Series(np.where(LABEL == 1, np.where(NOISE > 0, "a", "b"), "c")), "all but equals the label"),
        (pl.Series([None if one else "2024" for one in LABEL]), "is missing for one kind of label"),
        (
            pl.Series([float("nan") if one else x for one, x in zip(LABEL, NOISE, strict=True)]),
            "is missing for one kind of label",
        ),
        (pl.Series(shifted(1.5)), None),
        (pl.Series(np.exp(shifted(-1.5))), None),
        (pl.Series([None if x > 1 else x for x in NOISE]), None),
        (pl.Series([f"{number}" for number in range(ROWS)]), None),
        (pl.Series([1.0] * ROWS), None),
        (pl.Series([None] * ROWS), None),
    ],
)
def test_what_tells_the_label_alone(values: pl.Series, found: str | None) -> None:
    said = telling(values, pl.Series(LABEL))
    assert said is None if found is None else (said is not None and said.startswith(found))


@pytest.mark.parametrize("by", [2.5, 3.0, 3.5, 4.0, 5.0, -3.0, -5.0])
@pytest.mark.parametrize("words", [False, True])
def test_an_order_that_tells_is_measured_by_the_area_under_its_curve(by: float, words: bool) -> None:
    values = np.exp(np.round(shifted(by), 1))  # ties, and no straight line
    expected = auc(LABEL, values)
    expected = max(expected, 1 - expected)
    label = pl.Series(np.where(LABEL == 1, "no", "yes")) if words else pl.Series(LABEL)
    assert telling(pl.Series(values), label) == (
        f"predicts the label by itself, with AUC {expected:.4f}" if expected >= 0.99 else None
    )


def test_few_rows_tell_nothing_by_their_order() -> None:
    label = pl.Series([0] * 9 + [1] * 50)
    values = pl.Series(np.arange(59.0) ** 3)
    assert telling(values, label) is None
    assert telling(pl.concat([values - 1, values]), pl.concat([label, label])) is not None


@pytest.mark.parametrize(("by", "words"), [(8.0, "predicts the label by itself"), (0.0, None)])
def test_of_many_rows_some_are_looked_at(monkeypatch: pytest.MonkeyPatch, by: float, words: str | None) -> None:
    monkeypatch.setattr("tallystick.tables.target_leakage.MOST_ROWS", ROWS // 4)
    found = telling(pl.Series("x", shifted(by)), pl.Series("y", LABEL))
    assert found is None if words is None else words in str(found)


def test_values_that_follow_from_a_label_tell_something_of_it_though_not_which_it_is():
    """Weights of three classes, two of which are equal, and weights of two labels by whether they are equal."""
    classes_N, other_N = RNG.integers(0, 3, ROWS), RNG.integers(0, 2, ROWS)
    both = pl.DataFrame({"a": LABEL, "b": other_N}).to_struct("label")
    for values_N, label in ((np.where(classes_N == 2, 5.0, 1.0), pl.Series(classes_N)), (1 + (LABEL ^ other_N), both)):
        values = pl.Series(values_N)
        assert telling(values, label) is None
        assert follows(values, label)
        for independent in (NOISE, np.ones(ROWS), RNG.permutation(values_N)):
            assert not follows(pl.Series(independent), label)
