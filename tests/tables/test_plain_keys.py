"""Keys without a table equal those of a table, character by character, or there are none."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.config.alignment import IntersectionConfig
from tallystick.reading import Step
from tallystick.tables.keys import key_of
from tallystick.tables.plain_keys import plain_key

STEPS: list[Step] = ["trim", "lower", "upper", "nfkc", "email", "phone", "digits"]

plain = st.one_of(
    st.text(st.characters(max_codepoint=127), max_size=12),
    st.text("0019+-. ()[]x#;", max_size=10),  # numbers, telephone numbers, and what looks like one
    st.integers(-(1 << 64), 1 << 64),
)
column = st.tuples(plain, st.lists(st.sampled_from(STEPS), max_size=3))


def by_table(cells, steps):
    alignment = IntersectionConfig.model_validate(
        {"keys": [{"name": str(place), "normalise": each} for place, each in enumerate(steps)]}
    )
    names = [str(place) for place in range(len(cells))]
    frame = pl.DataFrame({name: [cell] for name, cell in zip(names, cells, strict=True)})
    return key_of(frame, columns=dict(zip(names, names, strict=True)), alignment=alignment).item()


@given(st.lists(column, min_size=1, max_size=3))
@example([("-0.0", [])])
@example([(" 1.0 ", ["trim"])])
@example([("1.0\n", [])])
@example([("\x1c1\x1f", ["trim"])])
@example([("(0)0049 30", ["phone"]), ("00+", ["phone"])])
@example([("+", ["phone"])])
@example([("tel:+1-201;ext=5", ["phone"]), (" 7.0\n", ["digits"])])
@example([("1 ext.\n2 ", ["phone"]), ("1;\n2", ["phone"])])
@example([("a\x1d1", ["nfkc"]), ("\x02A@b\x7f", ["email"])])
@example([("xn--a@b", ["trim"])])
def test_a_key_is_the_tables_or_left_to_it(columns):
    cells, steps = [cell for cell, _ in columns], [each for _, each in columns]
    key = plain_key(cells, steps)
    big = any(type(cell) is int and not -(1 << 63) <= cell < 1 << 63 for cell in cells)
    if big:
        assert key is None
    else:
        assert (key.decode() if key is not None else None) == by_table(cells, steps)


@pytest.mark.parametrize("cell", ["é", "\N{FULLWIDTH DIGIT ONE}", "\N{KELVIN SIGN}", "a\N{NO-BREAK SPACE}", "", True, 1.0, None])
def test_what_a_table_alone_can_tell_is_left_to_it(cell):
    assert plain_key([cell], [["lower"]]) is None


def test_a_domain_that_stands_for_letters_is_left_to_a_table():
    assert plain_key(["a@X\x00N--bcher-kva.de"], [["email"]]) is None


def test_keys_of_several_columns_cannot_collide():
    keys = [plain_key(cells, [[], []]) for cells in (("ab", "c"), ("a", "bc"), ("a", "2:bc"))]
    assert None not in keys
    assert all(one != other for one, other in pairwise(keys))
