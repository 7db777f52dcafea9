"""Columns of vectors: read from every source, one block of numbers in the encoder, one column when columns are measured."""

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from tiny import contract_values, error_of

from tallystick.config.party import PartyFile, parse_party
from tallystick.errors import ConfigError, FeatureError
from tallystick.evaluation.importance import column_places
from tallystick.simulation import simulate
from tallystick.tables.encoder import Encoder
from tallystick.tables.lazy_table import LazyTable, store
from tallystick.tables.table import read_party_table
from tallystick.tables.vectors import with_vectors

WIDTH = 5


def table(rows=60, *, seed=0, missing=()):
    values_NW = np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32) * [1, 2, 3, 0.1, 0.2] + 7
    cells = [None if row in missing else each for row, each in enumerate(values_NW.tolist())]
    frame = pl.DataFrame(
        {"id": [f"id-{row}" for row in range(rows)], "x": np.arange(rows, dtype=float), "v": cells},
        schema_overrides={"v": pl.Array(pl.Float32, WIDTH)},
    )
    return frame, values_NW.astype(np.float32)


def party(folder, **more) -> PartyFile:
    tls = {"ca": "ca.pem", "certificate": "own.pem", "key": "own.key"}
    values = {"party": "shop", "table": {"path": "t.parquet"}, "keys": {"id": "id"}, "tls": tls, "vectors": ["v"], **more}
    return parse_party(values, folder=folder)


def fitted(frame, folder, **more):
    own = party(folder, **more)
    encoder = Encoder.of_party(frame, own, np.arange(frame.height), numbers="auto")
    assert encoder is not None
    return encoder


@pytest.mark.parametrize("kind", ["array", "list", "text", "file", "arrow"])
def test_every_holder_of_vectors_gives_the_same_columns(tmp_path, kind):
    frame, values_NW = table(missing=(3,))
    lists = frame.with_columns(pl.col("v").arr.to_list())
    written = pl.lit("[") + pl.col("v").cast(pl.List(pl.String)).list.join(", ") + pl.lit("]")
    text = lists.with_columns(pl.when(pl.col("v").is_not_null()).then(written).alias("v"))
    held = {"array": frame, "list": lists, "text": text, "file": store(frame.lazy())}
    if kind == "arrow":
        fixed = pa.array(frame["v"].to_list(), type=pa.list_(pa.float32(), WIDTH))
        plain = {name: frame[name].to_list() for name in ("id", "x")}
        pa.parquet.write_table(pa.table({**plain, "v": fixed}), tmp_path / "t.parquet")
        read = read_party_table(party(tmp_path))
    else:
        read = with_vectors(held[kind], ["v"])
    assert read.columns == ["id", "x", *(f"v[{place}]" for place in range(WIDTH))]
    got_NW = np.stack([read.get_column(f"v[{place}]").to_numpy() for place in range(WIDTH)], axis=1)
    expected_NW = values_NW.copy()
    expected_NW[3] = np.nan
    assert np.array_equal(got_NW, expected_NW, equal_nan=True)
    assert isinstance(read, LazyTable) == (kind in ("file", "arrow"))


def test_a_vector_is_one_block_centred_by_each_mean_and_scaled_by_one_deviation(tmp_path):
    frame, values_NW = table(rows=500)
    encoder = fitted(with_vectors(frame, ["v"]), tmp_path)
    packed = encoder.encode(with_vectors(frame, ["v"])).unpacked().numeric_NF.numpy()
    centred_NW = values_NW - values_NW.mean(axis=0)
    expected_NW = centred_NW / np.sqrt(values_NW.var(axis=0).mean())
    assert packed[:, 1:] == pytest.approx(expected_NW, abs=1e-4)
    # no number of it has bins, though the plain column does
    assert [bool(edges) for edges in encoder.feature_shape.edges] == [True, *[False] * WIDTH]
    assert encoder.vectors == {"v": WIDTH}
    again = Encoder.from_json(encoder.to_json())
    assert again == encoder


def test_a_missing_vector_is_the_mean_with_one_indicator_and_moves_as_one_column(tmp_path):
    frame, _ = table(missing=(3, 8))
    encoder = fitted(with_vectors(frame, ["v"]), tmp_path)
    assert encoder.numeric_names[-1] == "v is missing"
    numeric_NF = encoder.encode(with_vectors(frame, ["v"])).unpacked().numeric_NF
    assert numeric_NF[3, 1:].tolist() == [0.0] * WIDTH + [1.0]
    assert numeric_NF[:, -1].sum() == 2
    assert [(place.name, place.numeric) for place in column_places(encoder)] == [("x", (0,)), ("v", (1, 6, 2, 3, 4, 5))]


def test_listed_features_have_the_vectors_beside_them(tmp_path):
    frame, _ = table()
    encoder = fitted(with_vectors(frame, ["v"]), tmp_path, features={"numeric": ["x"]})
    assert [column.name for column in encoder.numeric] == ["x", *(f"v[{place}]" for place in range(WIDTH))]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([[1.0, 2.0], [1.0]], "has 2 numbers in its first cell and another count in 1 (row 1, counted from 0) rows"),
        ([[1.0, float("nan")], [1.0, 2.0]], "missing, NaN or infinite in 1 (row 0, counted from 0) rows"),
        ([[1.0, None], [1.0, 2.0]], "missing, NaN or infinite in 1 (row 0, counted from 0) rows"),
        (["[1, 2]", "one"], "a cell that is not a list of numbers; write a list, or text such as [0.5, -1]"),
        ([["a"], ["b"]], "has type List(String)"),
        ([1.0, 2.0], "has type Float64"),
        (pl.Series([[], []], dtype=pl.List(pl.Float64)), "holds 0 numbers a cell; 1 to 4096"),
        (pl.Series([None, None], dtype=pl.List(pl.Float64)), "holds 0 numbers a cell"),
    ],
)
def test_cells_that_are_no_vectors_are_refused_in_a_line(cells, said):
    error = error_of(with_vectors, pl.DataFrame({"v": cells}), ["v"])
    assert isinstance(error, FeatureError)
    assert said in str(error)
    assert "\n" not in str(error)


def test_absent_and_taken_names_and_vectors_of_another_width(tmp_path):
    frame, _ = table()
    assert "column 'w' is not in the table; known here" in str(error_of(with_vectors, frame, ["w"]))
    taken = frame.with_columns(pl.lit(1).alias("v[2]"))
    assert "would make a column 'v[2]'" in str(error_of(with_vectors, taken, ["v"]))
    encoder = fitted(with_vectors(frame, ["v"]), tmp_path)
    narrower = frame.with_columns(pl.col("v").arr.to_list().list.head(3))
    error = error_of(encoder.encode, with_vectors(narrower, ["v"]))
    assert "had 5 numbers per cell in training, and has 3 here" in str(error)
    same = frame.with_columns(v=pl.lit([1.0, 2.0], dtype=pl.List(pl.Float64)))
    notes = fitted(with_vectors(same, ["v"]), tmp_path).notes
    assert "vectors: column 'v' is the same in all training rows and was left out" in notes
    error = error_of(lambda: party(tmp_path, keys={"id": "v"}))
    assert isinstance(error, ConfigError)
    assert 'vectors: column "v" is also a key column' in str(error)
    assert "each column once" in str(error_of(lambda: party(tmp_path, vectors=["v", "v"])))
    assert "which are neither numbers nor categories; list it under vectors" in str(
        error_of(lambda: Encoder.of_party(frame, party(tmp_path, vectors=[]), np.arange(9), numbers="auto"))
    )


def test_a_job_learns_from_a_partner_s_vectors_and_measures_them_as_one_column():
    rng = np.random.default_rng(1)
    rows, direction = 800, np.linspace(-1, 1, 12)
    vector_NW = rng.normal(size=(rows, 12))
    label = (vector_NW @ direction + 0.3 * rng.normal(size=rows) > 0).astype(int)
    ids = [f"id-{row}" for row in range(rows)]
    frames = {
        "bank": pl.DataFrame({"id": ids, "x": rng.normal(size=rows), "y": label}),
        "shop": pl.DataFrame({"id": ids, "noise": rng.normal(size=rows), "v": vector_NW}),
    }
    given = {
        "bank": {"keys": {"id": "id"}, "label": "y"},
        "shop": {"keys": {"id": "id"}, "vectors": ["v"]},
    }
    changes = {"training__epochs": 12, "evaluation__importance": {"feature_columns": "both"}}
    changes["evaluation__own_columns_baseline"] = True
    result = simulate(contract_values(("bank", "shop"), **changes), frames, given)
    assert result.joint["auc"]["value"] > result.local_baseline["auc"]["value"] + 0.2
    (falls,) = (each.columns for each in result.sections.importance if each.party == "shop")
    assert len(falls) == 2
