"""Labels and weights: how they are coded, and what is refused without showing a cell."""

from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from tallystick.config.sections import RegressionTarget, TargetConfig, target_of
from tallystick.errors import DataError
from tallystick.tables.target import LabelCoder, encode_weights


def target_named(type: str = "binary", classes: int = 2) -> TargetConfig:
    return target_of(type, classes=classes)


def fit(values: Any, rows: list[int] | None = None, **target: Any) -> tuple[LabelCoder, torch.Tensor]:
    column = pl.Series("y", values)
    coder = LabelCoder.fit(
        column,
        target_named(**target),
        np.array(range(len(column)) if rows is None else rows),
    )
    assert LabelCoder.from_json(coder.to_json()) == coder
    return coder, coder.encode(column)


@pytest.mark.parametrize(
    "values", [[0, 1, 1], [0.0, 1.0, 1.0], [False, True, True], ["no", "yes", "yes"], [-1, 1, 1], ["0", "1.0", "1"]]
)
def test_binary_labels_are_sorted(values: list[Any]) -> None:
    _, labels = fit(values)
    assert labels.dtype == torch.float32
    assert labels.tolist() == [0, 1, 1]


def test_multiclass_labels_are_class_numbers() -> None:
    coder, labels = fit([30, 4, 100, 4], type="multiclass", classes=3)
    assert coder.classes == ("4", "30", "100")
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 0, 2, 0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=20, unique=True))
def test_regression_matches_sklearn(values: list[float]) -> None:
    if np.std(values[:-1]) < 1e-3:
        return
    coder, labels = fit(values, rows=list(range(len(values) - 1)), type="regression")
    oracle = StandardScaler().fit(np.array(values[:-1])[:, None]).transform(np.array(values)[:, None])[:, 0]
    np.testing.assert_allclose(labels.numpy(), oracle, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        labels.double().numpy() * coder.deviation + coder.mean, values, rtol=1e-5, atol=1e-5 * max(map(abs, values))
    )


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20).filter(lambda counts: len(set(counts)) > 1))
def test_counts_come_back_and_an_output_of_0_predicts_the_mean(counts: list[int]) -> None:
    coder, labels = fit(counts, type="count")
    assert labels.double().mean().item() == pytest.approx(1, rel=1e-5)
    assert coder.in_units(labels.numpy()) == pytest.approx(counts, rel=1e-6, abs=0.5)
    assert coder.predictions(np.array([0.0, np.log(2)])) == pytest.approx([np.mean(counts), 2 * np.mean(counts)])


@pytest.mark.parametrize(
    ("values", "target", "message"),
    [
        ([1, 1, 1], {}, "label column 'y' has 1 distinct value; target.type = binary needs exactly 2"),
        ([0, 1, 2], {}, "has 3 distinct values; target.type = binary needs exactly 2"),
        (["a", "b"], {"type": "multiclass", "classes": 3}, "has 2 distinct values; target.type = multiclass needs exactly 3"),
        ([0, None, 1, None], {}, r"missing \(null or NaN\) in 2 \(row 1, 3, counted from 0\) rows"),
        ([0.0, float("nan"), 1.0], {"type": "regression"}, r"missing \(null or NaN\) in 1 \(row 1,"),
        ([0.0, float("inf")], {"type": "regression"}, r"infinite in 1 \(row 1, counted"),
        ([2.5, 2.5], {"type": "regression"}, "is constant on the training rows"),
        ([1e308, -1e308], {"type": "regression"}, "too large to standardise"),
        ([1e-300, 2e-300, 5e-324], {"type": "regression"}, "differ by too little to standardise"),
        (["yes", "no", "Yes ", "no"], {}, "has 3 distinct values, some of which differ in spaces or case alone; target.type"),
        (
            ["secret", "word"],
            {"type": "regression"},
            "2 of 2 cells are text that is not a number; .* agree on a target of classes",
        ),
        (["few", "many"], {"type": "count"}, "2 of 2 cells are text that is not a number; .* agree on a target of classes"),
        ([1, -1, 2], {"type": "count"}, r"not a count in 1 \(row 1, counted from 0\) rows; .* whole numbers from 0"),
        ([1.0, 0.5, 2.0], {"type": "count"}, r"not a count in 1 \(row 1,"),
        ([1, 2, 10**13], {"type": "count"}, r"not a count in 1 \(row 2,"),
        ([0, 0, 0], {"type": "count"}, "is constant on the training rows"),
        ([0.0, float("inf")], {"type": "count"}, r"infinite in 1 \(row 1, counted"),
        ([0.0, float("inf"), 0.0], {}, r"infinite in 1 \(row 1, counted"),
        ([0.0, float("inf"), -float("inf")], {"type": "multiclass", "classes": 3}, r"infinite in 2 \(row 1, 2, counted"),
    ],
)
def test_unusable_labels(values: list[Any], target: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        fit(values, **target)
    assert "secret" not in str(caught.value)


def test_label_constant_on_training_rows_alone() -> None:
    with pytest.raises(DataError, match="constant on the training rows"):
        fit([0, 0, 1], rows=[0, 1])


@pytest.mark.parametrize(
    ("values", "target"),
    [([0, 0, 1], {}), ([5.0, 5.0, 9.0], {"type": "regression"}), ([0.0, 0.0, 9.0], {"type": "regression"})],
)
def test_hidden_labels_may_be_constant_on_training_rows_but_not_in_the_whole_column(values: Any, target: Any) -> None:
    column, rows, kind = (
        pl.Series("y", values),
        np.array([0, 1]),
        target_named(**target),
    )
    coder = LabelCoder.fit(column, kind, rows, hidden=True)
    assert coder.deviation == 1
    assert coder.encode(column).tolist() == [0, 0, values[2] - values[0]]
    with pytest.raises(DataError, match=r"constant|1 distinct value"):
        LabelCoder.fit(column.gather([0, 1]), kind, rows, hidden=True)


@pytest.mark.parametrize("rows", [[0, 1], [0, 2], [2, 3]])
def test_hidden_numbers_too_large_are_refused_whichever_rows_are_for_training(rows: list[int]) -> None:
    with pytest.raises(DataError, match="too large to standardise"):
        LabelCoder.fit(
            pl.Series("y", [1e308, -1e308, 1.0, 2.0]), RegressionTarget(type="regression"), np.array(rows), hidden=True
        )


def test_label_never_seen_before() -> None:
    coder, _ = fit(["a", "b"])
    with pytest.raises(DataError, match=r"values never seen before in 1 \(row 1,"):
        coder.encode(pl.Series("y", ["a", "hush"]))


def test_saved_coder_that_is_broken() -> None:
    with pytest.raises(DataError, match="not readable"):
        LabelCoder.from_json('{"type": "ternary"}')


def test_weights() -> None:
    assert encode_weights(pl.Series("w", [0.0, 1.0, 2.5])).tolist() == [0, 1, 2.5]
    for bad in ([1, None], [1, -1], [1, float("inf")], [1, float("nan")], [0, 0]):
        with pytest.raises(DataError, match="weight column 'w'"):
            encode_weights(pl.Series("w", bad, strict=False))
    for time in (date(2024, 1, 3), timedelta(hours=1)):  # which were weights of 19,725 days and 3,600 seconds
        with pytest.raises(DataError, match=r"weight column 'w' has type .*; a weight is a number"):
            encode_weights(pl.Series("w", [time]))


@pytest.mark.parametrize("scale", [1e308, 1e39, 1e-39, 1e-320, 1.0])
def test_weights_of_any_size_keep_their_ratios(scale: float) -> None:
    weights = encode_weights(pl.Series("w", [0.0, scale / 4, scale]))
    assert weights.isfinite().all()
    assert weights[0] == 0
    assert (weights[1] / weights[2]).item() == pytest.approx(0.25, rel=1e-3)
    assert weights.square().sum().isfinite()


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12, -1e14])
def test_numbers_far_from_nought_are_no_constant(offset: float) -> None:
    labels = pl.Series("y", offset + 20 * np.random.default_rng(1).normal(size=200))
    coder = LabelCoder.fit(labels, RegressionTarget(type="regression"), np.arange(200))
    encoded = coder.encode(labels)
    assert abs(encoded.mean().item()) < 0.01
    assert encoded.std().item() == pytest.approx(1, abs=0.02)
    assert coder.in_units(encoded.double().numpy()) == pytest.approx(labels.to_numpy(), abs=1e-5 * 20 + 1e-15 * abs(offset))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e12, -1e100])
def test_a_constant_number_is_refused_with_its_rounding(value: float) -> None:
    labels = pl.Series("y", [value, value * (1 + 2.0**-52), value])
    with pytest.raises(DataError, match="is constant on the training rows"):
        LabelCoder.fit(labels, RegressionTarget(type="regression"), np.arange(3))
