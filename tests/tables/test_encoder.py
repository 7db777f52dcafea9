"""Compare the encoder with scikit-learn and slow references."""

from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, rankdata
from sklearn.preprocessing import StandardScaler

from tallystick.config.party import EncodingConfig, FeatureColumns, parse_party
from tallystick.errors import DataError
from tallystick.models.tabular import TabularBottom
from tallystick.tables.encoder import Encoder, feature_columns


def fit(
    frame: pl.DataFrame,
    *,
    numeric: tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    rows: Any = None,
    numbers: Any = "plain",
    **encoding: Any,
) -> Encoder:
    rows = np.arange(frame.height) if rows is None else np.array(rows)
    encoder = Encoder.fit(
        frame,
        FeatureColumns(numeric=numeric, categorical=categorical),
        rows,
        encoding=EncodingConfig(**{"numeric": "standard", "min_count": 1, **encoding}),
        numbers=numbers,
    )
    restored = Encoder.from_json(encoder.to_json())
    assert restored == encoder
    features = restored.encode(frame).unpacked()
    shape = encoder.feature_shape
    assert features.numeric_NF.shape == (frame.height, shape.numeric)
    assert features.categorical_NG.shape == (frame.height, len(shape.cardinalities))
    assert torch.isfinite(features.numeric_NF).all()
    for column, codes in zip(features.categorical_NG.T, shape.cardinalities, strict=True):
        assert ((column >= 0) & (column < codes)).all()
    return encoder


@pytest.mark.parametrize("transform", ["standard", "log"])
def test_numbers_match_sklearn(transform: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(500, 3)) * [1, 1e6, 1e-6] + [0, 5, -3]
    frame = pl.DataFrame(values, schema=["a", "b", "c"], orient="row")
    rows = np.arange(0, 400)
    encoder = Encoder.fit(frame, FeatureColumns(numeric=("a", "b", "c")), rows, encoding=EncodingConfig(numeric=transform))
    features = encoder.encode(frame).unpacked()
    shaped = np.sign(values) * np.log1p(np.abs(values)) if transform == "log" else values
    oracle = StandardScaler().fit(shaped[rows]).transform(np.clip(shaped, shaped[rows].min(axis=0), shaped[rows].max(axis=0)))
    np.testing.assert_allclose(features.numeric_NF.numpy(), oracle, rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=60))
def test_ranks_match_scipy(values: list[int]) -> None:
    frame = pl.DataFrame({"x": values})
    encoder = Encoder.fit(frame, FeatureColumns(numeric=("x",)), np.arange(len(values)), encoding=EncodingConfig(numeric="rank"))
    if len(set(values)) == 1:
        assert encoder.feature_shape.numeric == 0
        return
    scores = norm.ppf((rankdata(values) - 0.5) / len(values))
    oracle = (scores - scores.mean()) / scores.std()
    np.testing.assert_allclose(encoder.encode(frame).unpacked().numeric_NF[:, 0].numpy(), oracle, rtol=1e-4, atol=1e-5)


def test_ranks_of_many_values_are_close_to_normal() -> None:
    values = np.random.default_rng(1).lognormal(sigma=3, size=20_000)
    frame = pl.DataFrame({"x": values})
    ranked = Encoder.fit(frame, FeatureColumns(numeric=("x",)), np.arange(len(values)), encoding=EncodingConfig(numeric="rank"))
    scores = norm.ppf((rankdata(values) - 0.5) / len(values))
    # Between 1,000 knots, evenly spaced over 8 standard deviations, the map is a straight line.
    assert np.abs(ranked.encode(frame).unpacked().numeric_NF[:, 0].numpy() - scores).max() < 0.01


def test_auto_ranks_the_skewed_columns_and_leaves_the_others() -> None:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "income": rng.lognormal(sigma=1.5, size=2000),
            "loss": -rng.lognormal(sigma=1.5, size=2000),
            "height": rng.normal(170, 10, size=2000),
            "share": rng.uniform(size=2000),
            "huge": rng.choice([-1e308, 1e308, 5.0], size=2000),
            "rare": (rng.uniform(size=2000) < 0.02).astype(int),
        }
    )
    names = tuple(frame.columns)
    rows = np.arange(frame.height)
    encoder = Encoder.fit(frame, FeatureColumns(numeric=names), rows, encoding=EncodingConfig(numeric="auto"))
    chosen = {column.name: column.transform for column in encoder.numeric}
    assert chosen | {"rare": None} == {
        "income": "rank",
        "loss": "rank",
        "height": "standard",
        "share": "standard",
        "huge": "rank",
        "rare": None,
    }
    assert encoder.notes == (
        f"encoding.numeric = auto: {list(chosen.values()).count('rank')} of 6 numeric columns are skewed and were ranked",
    )
    encoded = encoder.encode(frame).unpacked().numeric_NF
    # Each column equals the one with its own transform named, and a column of two values is the same in any case.
    for index, name in enumerate(names):
        for transform in {chosen[name], "standard"} if name == "rare" else {chosen[name]}:
            alone = Encoder.fit(frame, FeatureColumns(numeric=(name,)), rows, encoding=EncodingConfig(numeric=transform))
            torch.testing.assert_close(encoded[:, index], alone.encode(frame).unpacked().numeric_NF[:, 0])
    assert Encoder.from_json(encoder.to_json()) == encoder


def test_missing_numbers_become_the_mean_and_an_indicator() -> None:
    frame = pl.DataFrame({"x": [1.0, None, 3.0, float("nan")], "y": [1.0, 2.0, 3.0, None]})
    encoder = fit(frame, numeric=("x", "y"), rows=[0, 1, 2])
    assert encoder.numeric_names == ("x", "y", "x is missing")
    encoded = encoder.encode(frame).unpacked().numeric_NF
    assert encoded[:, 0].tolist() == [-1, 0, 1, 0]
    assert encoded[3, 1] == 0
    assert encoded[:, 2].tolist() == [0, 1, 0, 1]


def test_constant_columns_are_left_out_with_a_note() -> None:
    frame = pl.DataFrame({"x": [1, 1, 9], "y": [1, 2, 3], "none": [None, None, 1.0], "c": ["a", "a", "b"], "d": ["a", None, "b"]})
    encoder = fit(frame, numeric=("x", "y", "none"), categorical=("c", "d"), rows=[0, 1])
    assert [column.name for column in (*encoder.numeric, *encoder.categorical)] == ["y", "d"]
    assert len(encoder.notes) == 3
    assert all("constant" in note for note in encoder.notes)


def test_numbers_that_floating_point_takes_for_one_are_not_called_constant() -> None:
    frame = pl.DataFrame({"x": [2**62 + row for row in range(20)], "y": np.linspace(0, 1, 20)})
    encoder = fit(frame, numeric=("x", "y"))
    assert any("column 'x' was left out: its numbers differ only beyond the 15 to 17 digits" in note for note in encoder.notes)
    assert not any("constant" in note for note in encoder.notes)


@pytest.mark.parametrize("transform", ["standard", "log", "rank"])
def test_a_number_beyond_the_training_rows_counts_as_the_nearest_that_they_had(transform: Any) -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 3.0, -50.0, 1e300, -1e300]})
    encoder = Encoder.fit(frame, FeatureColumns(numeric=("x",)), np.arange(3), encoding=EncodingConfig(numeric=transform))
    encoded_N = encoder.encode(frame).unpacked().numeric_NF[:, 0].tolist()
    assert encoded_N[3:] == [encoded_N[0], encoded_N[2], encoded_N[0]]
    assert encoded_N[0] < encoded_N[1] < encoded_N[2]


def test_infinite_and_too_large_numbers_are_refused() -> None:
    encoder = fit(pl.DataFrame({"x": [0.0, 1.0]}), numeric=("x",))
    with pytest.raises(DataError, match="numeric column 'x' has 2 infinite numbers"):
        encoder.encode(pl.DataFrame({"x": [float("inf"), -float("inf"), 0.0]}))
    with pytest.raises(DataError, match="numeric column 'x' has 1 infinite number;"):
        fit(pl.DataFrame({"x": [0.0, 1.0, float("inf")]}), numeric=("x",), rows=[0, 1])
    with pytest.raises(DataError, match="too large to standardise"):
        fit(pl.DataFrame({"x": [1e308, 1e308, -1e308]}), numeric=("x",))


@given(
    st.lists(st.none() | st.sampled_from("abcdefg"), min_size=2, max_size=40),
    st.lists(st.none() | st.sampled_from("abcxyz"), max_size=20),
    st.integers(1, 3),
    st.integers(1, 5),
)
def test_codes_match_a_slow_reference(train: list[str | None], new: list[str | None], min_count: int, most: int) -> None:
    if len(set(train)) == 1:
        return
    counts = Counter(value for value in train if value is not None)
    kept = sorted((value for value in counts if counts[value] >= min_count), key=lambda value: (-counts[value], value))[:most]
    frame = pl.DataFrame({"c": pl.Series(train, dtype=pl.String)})
    encoder = fit(frame, categorical=("c",), min_count=min_count, max_categories=most)
    assert encoder.feature_shape.cardinalities == (2 + len(kept),)
    codes = encoder.encode(pl.DataFrame({"c": pl.Series(train + new, dtype=pl.String)})).unpacked().categorical_NG[:, 0].tolist()
    assert codes == [0 if value is None else 2 + kept.index(value) if value in kept else 1 for value in train + new]


def test_categories_are_the_same_in_every_type() -> None:
    encoder = fit(pl.DataFrame({"c": [1, 2, 2]}), categorical=("c",))
    for column in ([2.0, 1.0, None], ["2", "1.0", None]):
        assert encoder.encode(pl.DataFrame({"c": column})).unpacked().categorical_NG[:, 0].tolist() == [2, 3, 0]


def test_columns_that_are_absent_or_text() -> None:
    frame = pl.DataFrame({"x": ["1", "2", "hush"]})
    with pytest.raises(DataError, match="column 'x': 1 of 3 cells are text that is not a number"):
        fit(frame, numeric=("x",))
    with pytest.raises(DataError, match="feature column 'xx' is not in the table; did you mean x"):
        fit(frame, categorical=("xx",))
    with pytest.raises(DataError, match="no training rows"):
        fit(frame, categorical=("x",), rows=[])
    with pytest.raises(DataError, match="not readable"):
        Encoder.from_json("{}")


def test_auto_sorts_columns_by_type(tmp_path: Any) -> None:
    frame = pl.DataFrame(
        {"id": [1], "n": [1], "f": [0.5], "b": [True], "s": ["a"], "y": [1], "w": [1.0], "skip": [1]}
    ).with_columns(day=pl.date(2024, 1, 1))
    base: dict[str, Any] = {"party": "p", "table": {"path": "t.csv"}, "keys": {"k": "id"}, "label": "y", "weight": "w"}
    found = feature_columns(frame, parse_party(base | {"drop": ["skip"]}, folder=tmp_path))
    assert found == FeatureColumns(numeric=("n", "f", "b", "day"), categorical=("s",))
    with pytest.raises(DataError, match="drop column 'skp' is not in the table; did you mean skip"):
        feature_columns(frame, parse_party(base | {"drop": ["skp"]}, folder=tmp_path))
    with pytest.raises(DataError, match="features: auto cannot read"):
        feature_columns(frame.with_columns(l=pl.Series([{"a": 1}])), parse_party(base, folder=tmp_path))


def test_dates_count_days_and_moments_count_seconds() -> None:
    frame = pl.DataFrame({"day": [0, 1]}).select(
        pl.col("day").cast(pl.Date), moment=pl.from_epoch("day", time_unit="d").cast(pl.Datetime("ms"))
    )
    encoder = fit(frame, numeric=("day", "moment"))
    assert [column.mean for column in encoder.numeric] == [0.5, 43_200.0]


ODD_COLUMNS = {
    "one value": [3.0] * 50,
    "one value and gaps": [3.0, None] * 25,
    "two values": [0.0, 1.0] * 25,
    "all ties but two": [0.0] * 48 + [1.0, 2.0],
    "fewer values than bins": [float(number % 7) for number in range(50)],
    "neighbouring floats": [1.0, float(np.nextafter(1.0, 2.0))] * 25,
    "from tiny to huge": [10.0 ** (number * 6 - 150) for number in range(50)],
    "no value": [None] * 50,
}


@pytest.mark.parametrize("numbers", ["auto", "piecewise-linear", "periodic"])
@pytest.mark.parametrize("column", ODD_COLUMNS.values(), ids=ODD_COLUMNS.keys())
@pytest.mark.parametrize("transform", ["auto", "rank", "log"])
def test_odd_columns_are_binned_and_embedded_or_left_out(column: list[float | None], transform: Any, numbers: Any) -> None:
    frame = pl.DataFrame({"x": pl.Series(column, dtype=pl.Float64), "y": np.linspace(0, 1, 50)})
    encoder = Encoder.fit(
        frame,
        FeatureColumns(numeric=("x", "y")),
        np.arange(50),
        encoding=EncodingConfig(numeric=transform),
        numbers=numbers,
    )
    assert Encoder.from_json(encoder.to_json()) == encoder
    edges = encoder.feature_shape.edges
    assert all(list(each) == sorted(set(each)) and len(each) != 1 for each in edges)
    assert len(edges) in (0, len(encoder.numeric))
    bottom = TabularBottom(encoder.feature_shape, embedding_width="auto", hidden=(8,))
    cut_BD = bottom(encoder.encode(frame).unpacked())
    assert torch.isfinite(cut_BD).all()
    cut_BD.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in bottom.parameters() if weight.grad is not None)


def test_auto_says_what_it_chose_by_the_number_of_rows() -> None:
    frame = pl.DataFrame({"x": np.random.default_rng(1).normal(size=3000), "zeros": [0.0] * 2999 + [1.0], "c": ["a", "b"] * 1500})
    few = fit(frame, numeric=("x",), rows=range(50), numbers="auto")
    assert (few.numbers, few.feature_shape.edges) == ("plain", ())
    assert "model.numeric = auto: numeric columns stay plain numbers, by the 50 rows it is fitted on" in few.notes
    many = fit(frame, numeric=("x", "zeros"), numbers="auto")
    assert [len(edges) for edges in many.feature_shape.edges] == [129, 2]
    said = "2 numeric columns get piecewise-linear embeddings of 1 to 128 bins"
    assert f"model.numeric = auto: {said}, by the 3,000 rows it is fitted on" in many.notes
    assert not [note for note in fit(frame, categorical=("c",), numbers="auto").notes if "model.numeric" in note]


def test_dates_are_numbers_with_bins_of_their_own() -> None:
    days = pl.date_range(pl.date(2020, 1, 1), pl.date(2023, 12, 31), "1d", eager=True)
    encoder = fit(pl.DataFrame({"day": days}), numeric=("day",), numbers="auto")
    assert [len(edges) for edges in encoder.feature_shape.edges] == [129]


def test_infinite_numbers_are_refused_whatever_is_embedded() -> None:
    with pytest.raises(DataError, match="numeric column 'x' has 1 infinite number; make"):
        fit(pl.DataFrame({"x": [0.0, 1.0, float("inf")]}), numeric=("x",), numbers="piecewise-linear")


@pytest.mark.parametrize(("rows", "expected"), [(1_000, 4), (6_000, 6), (21_000, 20), (100_000, 20)])
def test_more_rows_are_asked_of_a_category_where_new_ones_keep_coming(rows: int, expected: int) -> None:
    singles = rows // 50  # twice the share from which a vocabulary counts as open
    names = np.repeat([f"c{count}" for count in range(2, 25)], range(2, 25))
    common = np.repeat("common", rows - len(names) - singles)
    column = np.concatenate([names, [f"once {number}" for number in range(singles)], common])
    encoder = fit(pl.DataFrame({"c": column, "d": np.arange(rows) % 7}), categorical=("c", "d"), min_count="auto")
    assert {int(name[1:]) for name in encoder.categorical[0].categories if name != "common"} == set(range(expected, 25))
    said = f"1 of 2 categorical columns keeps getting new values, so categories of fewer than {expected} rows share a code"
    assert any(said in note for note in encoder.notes) == (expected > 4)
    chosen = fit(pl.DataFrame({"c": column}), categorical=("c",), min_count=3)
    assert (chosen.categorical[0].min_count, chosen.notes) == (3, ())


@pytest.mark.parametrize(("rows", "expected"), [(200, 4), (30_000, 6), (100_000, 10)])
def test_rare_categories_share_a_code(rows: int, expected: int) -> None:
    names = np.repeat([f"c{count}" for count in range(1, 13)], range(1, 13))
    frame = pl.DataFrame({"c": np.concatenate([names, np.repeat("common", rows - len(names))])})
    encoder = fit(frame, categorical=("c",), min_count="auto")
    assert {int(name[1:]) for name in encoder.categorical[0].categories if name != "common"} == set(range(expected, 13))
