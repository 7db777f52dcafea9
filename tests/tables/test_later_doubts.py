"""A later table in another unit or spelling is scored, and what is doubtful is said, as in training."""

import re
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
from lanes import by_turns

from tallystick.config.party import parse_party
from tallystick.tables.encoder import Encoder
from tallystick.tables.later_doubts import later_doubts
from tallystick.tables.table import read_party_table, read_rows

ROWS = 60
TABLE = pl.DataFrame(
    {
        "id": [f"k{number}" for number in range(ROWS)],
        "plain": [number % 29 / 4 for number in range(ROWS)],
        "skewed": [10.0 ** (number % 7) for number in range(ROWS)],
        "whole": [1111 + 1013 * (number % 23) for number in range(ROWS)],
        "kind": [["red", "gr\u00fcn", "blue"][number % 3] for number in range(ROWS)],
        "day": [date(2024, 1, 1) + timedelta(days=number) for number in range(ROWS)],
    }
)
LATER = {
    "the same rows": ({}, None),
    "later days": ({"day": pl.col("day") + pl.duration(days=900)}, None),
    "some beyond": ({"plain": pl.when(pl.int_range(pl.len()) < 25).then(55.0).otherwise("plain")}, None),
    "another unit": ({"plain": pl.col("plain") * 100 + 10}, "column 'plain': in 60 of 60 rows its number is outside"),
    "another unit, ranked": ({"skewed": -pl.col("skewed")}, "column 'skewed': in 60 of 60 rows its number is outside"),
    "another spelling": (
        {"kind": pl.col("kind").str.to_uppercase()},
        "column 'kind': in 60 of 60 rows a cell differs from a category",
    ),
    "points between thousands": (
        {"whole": pl.col("whole").cast(pl.String).str.replace(r"(\d{3})$", ".$1")},
        "column 'whole': its numbers were whole in training, and have fractions in 60 of 60 rows",
    ),
    "other codes of a letter": (
        {"kind": pl.col("kind").str.normalize("NFD")},
        "column 'kind': in 20 of 60 rows a cell differs from a category of the training only in spaces, case, quotes, leading",
    ),
    "a space behind": (
        {"kind": pl.when(pl.int_range(pl.len()) < 6).then(pl.col("kind") + " ").otherwise("kind")},
        "column 'kind': in 6 of 60 rows a cell differs from a category of the training only in spaces, case, quotes, leading",
    ),
    "other words": ({"kind": pl.lit("pink")}, "column 'kind': in 60 rows no cell is a category of the training"),
    "new words in most rows": (
        {"kind": pl.when(pl.int_range(pl.len()) > 2).then(pl.lit("pink")).otherwise("kind")},
        "column 'kind': in 57 of 60 rows its cell is new or rare, and in 0% of the training's rows; compare how it is written",
    ),
    "some new words": ({"kind": pl.when(pl.int_range(pl.len()) > 50).then(pl.lit("pink")).otherwise("kind")}, None),
    "a number for missing ones": (
        {"whole": pl.when(pl.int_range(pl.len()) % 5 > 0).then("whole").otherwise(999_999)},
        "column 'whole' is 999999 in",
    ),
    "a date for missing ones": (
        {"day": pl.when(pl.int_range(pl.len()) % 5 > 0).then("day").otherwise(date(9999, 12, 31))},
        "column 'day' is 9999-12-31",
    ),
    "no number": ({"plain": pl.lit(None, pl.Float64)}, "column 'plain' is missing in all of 60 rows"),
    "no number in some rows": (
        {"plain": pl.when(pl.int_range(pl.len()) % 5 > 0).then("plain")},
        "column 'plain': its number is missing in 12 of 60 rows, but was never missing in training; missing numbers are replaced",
    ),
    "no number in few rows": ({"plain": pl.when(pl.int_range(pl.len()) % 20 > 0).then("plain")}, None),
    "text that was read twice": (
        {"kind": pl.when(pl.int_range(pl.len()) > 2).then(pl.lit("gr\u00c3\u00bcn")).otherwise("kind")},
        "column 'kind': some of its cells hold text such as K",
    ),
    "no word in some rows": (
        {"kind": pl.when(pl.int_range(pl.len()) % 5 > 0).then("kind")},
        "column 'kind': its cell is missing in 12 of 60 rows, but was never missing in training",
    ),
    "no word in few rows": ({"kind": pl.when(pl.int_range(pl.len()) % 20 > 0).then("kind")}, None),
    "a mark for missing": (
        {"kind": pl.when(pl.int_range(pl.len()) % 20 > 0).then("kind").otherwise(pl.lit("?"))},
        "column 'kind': in 3 of 60 rows its cell is '?', which may mean a missing cell but counts as a new or rare word",
    ),
    "other quotes": (
        {"kind": "\u201c" + pl.col("kind") + "\u201d"},
        "column 'kind': in 60 of 60 rows a cell differs from a category of the training only in spaces, case, quotes",
    ),
    "no word": ({"kind": pl.lit(None, pl.String)}, "column 'kind' is missing in all of 60 rows"),
    "a word among numbers": (
        {"plain": pl.when(pl.int_range(pl.len()) == 3).then(pl.lit("viel")).otherwise(pl.col("plain").cast(pl.String))},
        "words that count as missing cells, because all other cells of the column are numbers or times: 'viel' in column 'plain'",
    ),
}


@pytest.mark.parametrize(("kind", "scale"), by_turns(LATER, [1, 200]))
def test_what_is_doubtful_of_a_later_table_is_said(kind, scale, tmp_path):
    change, said = LATER[kind]
    TABLE.write_csv(tmp_path / "t.csv")
    values = {"party": "bank", "table": {"path": "t.csv"}, "keys": {"id": "id"}, "encoding": {"min_count": 1}}
    party = parse_party(values, folder=tmp_path)
    encoder = Encoder.of_party(read_party_table(party), party, np.arange(ROWS), numbers="plain")
    pl.concat([TABLE.with_columns(**change)] * scale).write_csv(tmp_path / "later.csv")
    doubts = later_doubts(read_rows(party.table_at(tmp_path / "later.csv"), party, trained=encoder), encoder)
    shown = [re.sub(r"in [\d,]+ of .*?rows", "in N of M rows", doubt.replace("the first 10,000", "60")) for doubt in doubts]
    wanted = re.sub(r"in \d+ of 60 rows", "in N of M rows", said or "")
    assert [doubt[: len(wanted)] for doubt in shown] == ([wanted] if said else [])
    if scale == 1 and said and "of 60" in said:
        assert said in doubts[0]


def test_new_words_where_most_of_the_training_were_rare_are_not_said(tmp_path):
    party = parse_party({"party": "bank", "keys": {"id": "id"}, "encoding": {"min_count": 3}}, folder=tmp_path)
    first = TABLE.with_columns(kind=pl.when(pl.int_range(pl.len()) % 3 > 0).then("id").otherwise("kind"))
    encoder = Encoder.of_party(first, party, np.arange(ROWS), numbers="plain")
    later = first.with_columns(kind=pl.col("kind").str.replace("k", "new"))
    assert [doubt for doubt in later_doubts(later, encoder) if "'kind'" in doubt] == []


def test_what_training_said_of_its_own_table_is_not_said_again(tmp_path):
    lines = "".join(f"k{number},{'?' if number == 7 else number / 4}\n" for number in range(ROWS))
    (tmp_path / "t.csv").write_text(f"id,x\n{lines}")
    party = parse_party({"party": "bank", "table": {"path": "t.csv"}, "keys": {"id": "id"}}, folder=tmp_path)
    encoder = Encoder.of_party(read_party_table(party), party, np.arange(ROWS), numbers="plain")
    assert any("'?' in column 'x'" in note for note in encoder.notes)
    assert later_doubts(read_rows(party.table, party, trained=encoder), encoder) == []
