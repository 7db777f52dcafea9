"""Compare columns of lists as codes with a slow reference, and test what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.config.party import EncodingConfig, FeatureColumns, SequenceConfig, parse_party
from tallystick.errors import ConfigError, DataError, FeatureError
from tallystick.tables.categories import FIRST_CATEGORY, MISSING, UNSEEN
from tallystick.tables.encoder import Encoder, feature_columns
from tallystick.tables.sequences import check_separators
from tallystick.tables.table import read_party_table

NO_COLUMNS = FeatureColumns()
ROWS = [["a", "b", "a"], [], None, ["c"], ["a", None, "d", "b", "a"]]
CODES = EncodingConfig(min_count=1)


def fit(frame: pl.DataFrame, config: SequenceConfig, *, rows: Any = None, encoding: EncodingConfig = CODES) -> Encoder:
    chosen = np.arange(frame.height) if rows is None else np.array(rows)
    encoder = Encoder.fit(frame, NO_COLUMNS, chosen, encoding=encoding, sequences={"clicked": config})
    assert Encoder.from_json(encoder.to_json()) == encoder
    return encoder


def encoded(frame: pl.DataFrame, config: SequenceConfig, **how: Any) -> list[list[int]]:
    encoder = fit(frame, config, **how)
    features = encoder.encode(frame).unpacked()
    codes: list[list[int]] = features.categorical_NG.tolist()
    assert features.numeric_NF.shape == (frame.height, 0)
    assert all(0 <= code < size for row in codes for code, size in zip(row, encoder.feature_shape.codes, strict=True))
    return codes


def slowly(rows: list[list[Any] | None], training: list[int], *, length: int, least: int) -> list[list[int]]:
    """The definition: the last items of each row, numbered by how often the training rows have them, then padding."""
    kept = [[item for item in row or [] if item is not None][-length:] for row in rows]
    counts = Counter(item for row in training for item in kept[row])
    known = sorted((item for item in counts if counts[item] >= least), key=lambda item: (-counts[item], item))
    codes = {item: FIRST_CATEGORY + place for place, item in enumerate(known)}
    return [[codes.get(item, UNSEEN) for item in row] + [MISSING] * (length - len(row)) for row in kept]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from("abcdef")), max_size=6)), min_size=2, max_size=12
    ),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_codes_match_the_definition(rows: list[list[Any] | None], length: int, least: int) -> None:
    frame = pl.DataFrame({"clicked": pl.Series(rows, dtype=pl.List(pl.String))})
    training = list(range(0, len(rows), 2))
    expected = slowly(rows, training, length=length, least=least)
    how = {"rows": training, "encoding": EncodingConfig(min_count=least)}
    config = SequenceConfig(length=length)
    if all(code < FIRST_CATEGORY for row in training for code in expected[row]):
        assert not fit(frame, config, **how).sequences
        return
    assert encoded(frame, config, **how) == expected


def test_lists_of_numbers_arrays_and_text_are_the_same_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[3, 1], [1, 3], [1, 1]]
    config, of_text = SequenceConfig(length=4), SequenceConfig(length=4, separator="|")
    expected = encoded(pl.DataFrame({"clicked": rows}), config)
    assert expected == [[3, 2, 0, 0], [2, 3, 0, 0], [2, 2, 0, 0]]
    assert encoded(pl.DataFrame({"clicked": pl.Series(rows, dtype=pl.Array(pl.Int64, 2))}), config) == expected
    text = pl.DataFrame({"clicked": ["3|1", " 1 |3||", "1|1.0"]})
    assert encoded(text, of_text) == expected
    monkeypatch.setattr("tallystick.tables.categories.ENCODED_AT_A_TIME", 2)
    assert encoded(text, of_text) == expected


def test_the_target_item_shares_the_codes_of_the_sequence() -> None:
    frame = pl.DataFrame({"clicked": ROWS, "shown": ["a", "z", None, "c", "z"]})
    config = SequenceConfig(length=2, target="shown")
    encoder = fit(frame, config)
    (sequence,) = encoder.sequences
    assert sequence.items == ("a", "b", "c", "z")
    assert encoded(frame, config) == [[2, 3, 2], [5, 0, 0], [0, 0, 0], [4, 4, 0], [5, 3, 2]]
    new = pl.DataFrame({"clicked": [["new", "a"]], "shown": ["new"]})
    assert encoder.encode(new).unpacked().categorical_NG.tolist() == [[UNSEEN, UNSEEN, 2]]
    with pytest.raises(DataError, match="target column 'shown' is not in the table"):
        encoder.encode(new.drop("shown"))


def test_a_target_item_is_spelt_as_the_items_that_a_separator_parts() -> None:
    frame = pl.DataFrame({"clicked": ["a | b", "b|c "], "shown": ["a ", " "]})
    assert encoded(frame, SequenceConfig(length=2, separator="|", target="shown")) == [[2, 2, 3], [MISSING, 3, 4]]


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_a_number_without_a_spelling_is_passed_over_as_a_missing_item_is(strange: float) -> None:
    frame = pl.DataFrame({"clicked": [[1.0, 2.0, strange], [strange]]})
    assert encoded(frame, SequenceConfig(length=2)) == [[2, 3], [MISSING, MISSING]]
    assert any("of 2 training rows 0 have more and 1 none" in note for note in fit(frame, SequenceConfig(length=2)).notes)


def test_what_was_cut_and_left_out_is_said() -> None:
    (note,) = fit(pl.DataFrame({"clicked": ROWS}), SequenceConfig(length=2)).notes
    assert "the last 2 items of a row count; of 5 training rows 2 have more and 2 none; 3 items have a code" in note
    empty = pl.DataFrame({"clicked": pl.Series([[], None], dtype=pl.List(pl.String))})
    (note,) = fit(empty, SequenceConfig()).notes
    assert "'clicked' is empty on all training rows and was left out" in note
    encoder = fit(pl.DataFrame({"clicked": [["a"], ["b"]]}), SequenceConfig(), encoding=EncodingConfig(min_count=2))
    assert encoder.notes == ("sequence 'clicked' was left out: no item occurs 2 times in the training rows",)
    assert not encoder.feature_shape.tables


def test_a_packed_row_takes_small_integers() -> None:
    rows = [[str(number + step) for step in range(30)] for number in range(100)]
    packed = fit(pl.DataFrame({"clicked": rows}), SequenceConfig(length=30)).encode(pl.DataFrame({"clicked": rows}))
    assert packed.records_MR.shape == (100, 30)  # bytes: 129 items


@pytest.mark.parametrize(
    ("cells", "config", "said"),
    [
        ([[["a"]], [["b"]]], {}, r"its cells have type List\(List\(String\)\); expected lists of plain values, so flatten them"),
        ([[{"a": 1}], []], {}, "expected lists of plain values"),
        (["a", "b"], {}, "the column holds text; give the separator between its items, or give lists"),
        ([["a"], ["b"]], {"separator": "|"}, r"separator = '\|': the column holds lists, which need no separator; leave it out"),
        ([1, 2], {}, "the column has type Int64; expected lists, or text with a separator between items"),
    ],
)
def test_cells_that_are_no_lists_are_refused(cells: list[Any], config: dict[str, Any], said: str) -> None:
    with pytest.raises(FeatureError, match=rf"^sequences\.clicked.*{said}"):
        fit(pl.DataFrame({"clicked": cells}), SequenceConfig(**config))


def test_a_separator_in_no_cell_of_the_table_is_refused_and_in_none_of_some_rows_is_not() -> None:
    frame = pl.DataFrame({"clicked": ["a;b", "b;c", "b"]})
    with pytest.raises(FeatureError, match=r"separator = '\|': is in none of 3 cells; give the separator between the items"):
        check_separators(frame, {"clicked": SequenceConfig(separator="|")})
    config = SequenceConfig(separator=";", length=2)
    check_separators(frame, {"clicked": config})
    assert encoded(frame[2:], config) == [[2, 0]]


def test_a_column_of_lists_that_is_not_named_as_a_sequence_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2], "clicked": [["a"], ["b"]], "spent": [1.0, 2.0]})
    values: dict[str, Any] = {"party": "shop", "keys": {"id": "id"}}
    with pytest.raises(FeatureError, match=r"'clicked' holds lists .*list it under vectors if"):
        feature_columns(frame, parse_party(values, folder=tmp_path))
    named = parse_party(values | {"features": {"categorical": ["clicked"]}}, folder=tmp_path)
    with pytest.raises(FeatureError, match=r"'clicked' holds lists .*list it under sequences or vectors instead"):
        feature_columns(frame, named)
    party = parse_party(values | {"sequences": {"clicked": {}}}, folder=tmp_path)
    assert feature_columns(frame, party) == FeatureColumns(numeric=("spent",))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"features": {"categorical": ["clicked"]}}, 'features: column "clicked" is given twice'),
        ({"drop": ["clicked"]}, "sequences.clicked: is also under drop"),
        ({"keys": {"id": "clicked"}}, "sequences.clicked: is also a key column"),
        ({"label": "clicked"}, 'column "clicked" is the label'),
        (
            {"label": "bought", "sequences": {"clicked": {"target": "bought"}}},
            'sequences.clicked.target = "bought": is the label',
        ),
        ({"sequences": {"clicked": {"target": "clicked"}}}, "is the sequence itself"),
        ({"sequences": {"clicked": {"length": 0}}}, "sequences.clicked.length = 0: must be at least 1"),
        ({"sequences": {"clicked": {"separators": "|"}}}, "separators: is not a known key; did you mean separator"),
    ],
)
def test_a_party_file_that_cannot_be_meant_is_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    values = {"party": "shop", "keys": {"id": "id"}, "sequences": {"clicked": {}}, **more}
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        parse_party(values, folder=tmp_path)


def test_a_csv_keeps_items_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('id,clicked,shown\n1,"007,01",007\n2,"1,234",01\n3,"01,5",7\n')
    sequences = {"clicked": {"separator": ",", "target": "shown"}}
    values = {"party": "shop", "table": {"path": "rows.csv"}, "keys": {"id": "id"}, "sequences": sequences, "drop": ["shown"]}
    party = parse_party(values, folder=tmp_path)
    encoder = Encoder.of_party(read_party_table(party), party, np.arange(3), numbers="plain")
    assert encoder is None  # no item occurs four times
    party = parse_party(values | {"encoding": {"min_count": 1}}, folder=tmp_path)
    encoder = Encoder.of_party(read_party_table(party), party, np.arange(3), numbers="plain")
    assert encoder is not None
    assert set(encoder.sequences[0].items) == {"007", "01", "1", "234", "5", "7"}
