"""Keys that a later table spells otherwise than the training's match nobody's, so a message says so before rows are scored."""

import json

import numpy as np
import polars as pl
import pytest

from tallystick.config.alignment import IntersectionConfig
from tallystick.tables.key_spelling import later_spelling, spelling_of

ROWS = 300
NUMBERS = np.random.default_rng(3).permutation(10_000)[:ROWS]
KEYS = pl.Series("id", [f"{number:04}" for number in NUMBERS])
LATER = {
    "the same": (KEYS, None),
    "other people": (pl.Series("id", [f"{number:04}" for number in range(500, 900)]), None),
    "numbers, whose zeros are lost": (KEYS.cast(pl.Int64), "began with a zero, and here none does"),
    "numbers in text": (KEYS.cast(pl.Int64).cast(pl.String), "began with a zero, and here none does"),
    "a letter in front": ("K" + KEYS, "100.0% of its values look like `A9…`, and the training's like `9…`"),
    "some with a letter": (
        pl.Series("id", [f"K{key}" if row % 3 else key for row, key in enumerate(KEYS)]),
        "66.7% of its values",
    ),
    "a few with a letter": (pl.Series("id", [f"K{key}" if row % 9 == 0 else key for row, key in enumerate(KEYS)]), None),
    "spaces, which trim takes off": (" " + KEYS + " ", None),
    "points between": (KEYS.str.replace(r"(..)(..)", "$1.$2"), "look like `9….9…`"),
    "too few to tell": (KEYS.cast(pl.Int64).head(9), None),
    "none": (KEYS.head(1).set(pl.Series([True]), None), None),
}


def terms(*steps):
    return IntersectionConfig.model_validate({"keys": [{"name": "id", "normalise": steps or ("trim", "lower")}]})


@pytest.mark.parametrize("kind", LATER)
def test_what_is_written_otherwise_than_in_training_is_said(kind):
    later, said = LATER[kind]
    alignment = terms("trim")
    kept = json.loads(json.dumps(spelling_of(KEYS.to_frame(), columns={"id": "id"}, alignment=alignment)))
    lines = later_spelling(later.alias("id").to_frame(), columns={"id": "id"}, alignment=alignment, spelling=kept)
    assert len(lines) == (said is not None)
    assert all(said in line and line.startswith("key column 'id': ") for line in lines)


RANDOM = np.random.default_rng(4)
HEXADECIMAL = pl.Series("id", RANDOM.bytes(16 * ROWS).hex(" ", 16).split())
WHOLE = pl.Series("id", NUMBERS)


@pytest.mark.parametrize(
    ("trained", "later", "said"),
    [
        (HEXADECIMAL, pl.Series(RANDOM.bytes(16 * ROWS).hex(" ", 16).split()), None),
        (HEXADECIMAL, HEXADECIMAL.str.to_uppercase(), "look like `A…`, and the training's like `a…`"),
        (HEXADECIMAL, "{" + HEXADECIMAL + "}", "look like `{a…}`, and the training's like `a…`"),
        (HEXADECIMAL.str.head(6), pl.Series(RANDOM.bytes(3 * ROWS).hex(" ", 3).split()), None),
        (WHOLE, WHOLE.cast(pl.String).str.zfill(5), "begin with a zero, and none of the training's did"),
        (WHOLE, WHOLE.cast(pl.String), None),
    ],
)
def test_keys_of_random_letters_and_digits_and_zeros_that_were_added(trained, later, said):
    kept = json.loads(json.dumps(spelling_of(trained.to_frame(), columns={"id": "id"}, alignment=terms("trim"))))
    lines = later_spelling(later.alias("id").to_frame(), columns={"id": "id"}, alignment=terms("trim"), spelling=kept)
    assert len(lines) == (said is not None)
    assert all(said in line for line in lines)


def test_a_run_without_kept_spelling_says_nothing():
    assert later_spelling(KEYS.to_frame(), columns={"id": "id"}, alignment=terms(), spelling={}) == []


def test_what_is_kept_names_no_key_and_is_small():
    names = pl.Series("id", [f"Person{chr(97 + row % 26)}{'x' * (row % 40)}-{row}@mail.example" for row in range(5_000)])
    kept = spelling_of(names.to_frame(), columns={"id": "id"}, alignment=terms())
    assert len(kept["id"]["shapes"]) <= 20
    assert not set("".join(kept["id"]["shapes"])) - set("9Aa…@.-")


@pytest.mark.parametrize(("odd", "rows"), [("K77", 40), ("0077", 40), ("0077", 1)])
def test_nothing_is_kept_that_one_person_alone_has(odd, rows):
    """In a table with several rows for one key, shapes are counted by key, and not by row."""
    keys = pl.Series("id", [str(number) for number in range(1_000, 1_300)] + [odd] * rows)
    kept = spelling_of(keys.to_frame(), columns={"id": "id"}, alignment=terms())
    assert kept == {"id": {"shapes": ["9…"], "mixed": False, "zeros": None if odd.startswith("0") else 0.0}}
