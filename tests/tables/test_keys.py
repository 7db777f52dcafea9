"""Keys: one spelling for every type, joins that cannot collide, and the rules for nulls and duplicates."""

import datetime
import sys
import unicodedata
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.config.alignment import IntersectionConfig, KeyColumn
from tallystick.errors import DataError, IdError
from tallystick.reading import Step
from tallystick.tables.key_spelling import spelling_hints
from tallystick.tables.keys import read_keys
from tallystick.tables.normalise import join, normalise

words = st.text(max_size=12)
IGNORABLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2065\u3164\uffa0"  # by default, and no format characters
UNSEEN = {
    *(each for each in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(each) == "Cf"),
    *IGNORABLE,
    *(chr(code) for first, last in ((0xFE00, 0xFE0F), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF)) for code in range(first, last + 1)),
    # controls except for white space
    *(chr(code) for code in (*range(0x9), *range(0xE, 0x20), *range(0x7F, 0xA0)) if code != 0x85),
}


def alignment(*steps: Step, **rules: Any) -> IntersectionConfig:
    return IntersectionConfig(keys=(KeyColumn(name="k", normalise=steps),), **rules)


def ids(values: Any, *steps: Step, **rules: Any) -> list[bytes]:
    frame = pl.DataFrame({"k": values}, strict=False)
    return list(read_keys(frame, columns={"k": "k"}, alignment=alignment(*steps, **rules)).ids)


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([1, 20, -3]),
        pl.Series([1, 20, -3], dtype=pl.Int8),
        pl.Series([1.0, 20.0, -3.0]),
        pl.Series(["1", "20", "-3"]),
        pl.Series(["1.0", "20.00", "-3.0"]),
        pl.Series([Decimal("1.00"), Decimal("20.00"), Decimal("-3.00")]),
        pl.Series(["1", "20", "-3"], dtype=pl.Categorical),
    ],
)
def test_a_number_is_the_same_key_in_every_type(column: pl.Series) -> None:
    assert ids(column) == [b"1", b"20", b"-3"]


def test_other_types() -> None:
    day, moment = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 13, 5, 0, 600)
    assert ids([day]) == ids(pl.Series([day]).cast(pl.Datetime)) == ids(["2024-02-29"]) == [b"2024-02-29"]
    assert ids([moment]) == [b"2024-02-29T13:05:00.000600"]
    zoned = pl.Series([datetime.datetime(2024, 1, 1, 1)]).dt.replace_time_zone("Europe/Berlin")
    assert ids(zoned) == [b"2024-01-01"]
    assert ids([True, False]) == [b"true", b"false"]
    assert ids([0.1, 1e-300, -0.0]) == [b"0.1", b"1e-300", b"0"]
    assert ids([2.0**52]) == [str(2**52).encode()]
    assert ids([Decimal("1.50")]) == [b"1.5"]
    with pytest.raises(DataError, match=r"key column 'k' has type List.*name another column under keys, or convert this one"):
        ids([[1], [2]])


def test_check_says_what_becomes_of_zeros_behind_a_point() -> None:
    decimals = pl.DataFrame({"k": [Decimal("1.50"), Decimal("2.25")]})
    text = pl.DataFrame({"k": ["1.50", "2.25"]})
    whole = pl.DataFrame({"k": [Decimal("1.00"), Decimal("2.00")]})
    said = [spelling_hints(frame, columns={"k": "k"}, alignment=alignment()) for frame in (decimals, text, whole)]
    assert "key 'k': numbers lose zeros at the end of a fraction, so 1.50 is 1.5; text 1.50 is another key" in said[0]
    assert any(line.startswith("key 'k': 50.0% of this side's values are fractions that end in a zero") for line in said[1])
    assert not any("1.50" in line for line in said[2])


@given(st.integers(min_value=1 - 2**53, max_value=2**53 - 1))
def test_integers_match_their_floats_and_text(number: int) -> None:
    assert ids([number]) == ids([float(number)]) == ids([str(number)]) == [str(number).encode()]


def test_leading_zeros_are_kept() -> None:
    assert ids(["007", "7"]) == [b"007", b"7"]


@pytest.mark.parametrize(
    ("steps", "given_text", "wanted"),
    [
        (("trim",), " \u00a0a b\t", "a b"),
        (("lower",), "ÀB", "àb"),
        (("upper",), "straße", "STRASSE"),
        (("nfkc",), "Ａ①ﬁ", "A1fi"),
        (("email",), " Ann.Lee@Example.COM ", "ann.lee@example.com"),
        (("phone",), "+49 (0)30 / 12-34", "+49301234"),
        (("phone",), "0049 30 1234", "+49301234"),
        (("phone",), "030 1234", "0301234"),
        (("digits",), "ID 00-7", "007"),
        (("phone",), "+٤٩ ٣٠ ١٢٣٤", "+49301234"),
        (("digits",), "०३० १२३", "030123"),
        (("email",), "\ufeffann@shop\u00ad.example\u200b", "ann@shop.example"),
        (("trim",), "\u200b a1\u2060 ", "a1"),
        (("trim", "lower"), " AbC ", "abc"),
        (("trim",), " 1.0 ", "1"),
        (("phone",), "tel:+49-30-1234;phone-context=example.org", "+49301234"),
        (("phone",), "+49 30 1234, ext. 5", "+49301234x5"),
        (("phone",), "tel:+49301234;ext=5", "+49301234x5"),
        (("phone",), "0049 30 1234 (x5)", "+49301234x5"),
        (("phone",), "030 1234 #5", "0301234x5"),
        (("phone",), "Fax 030 1234", "0301234"),
        (("phone",), "+49 [ 0 ] 30 1234", "+49301234"),
        (("phone",), "+0049 30 1234", "+49301234"),
        (("phone",), " 49301234.0", "49301234"),
        (("digits",), " 123.0 ", "123"),
        (("digits",), "\uff11\uff12\uff13.\uff10", "123"),
        (("email",), "AL\u0130@shop.example", "ali@shop.example"),
        (("email",), "al\u0131@shop.example", "ali@shop.example"),
        (("email",), "a@XN--BCHER-KVA.de", "a@b\u00fccher.de"),
        (("email",), "a@bu\u0308cher\u3002de", "a@b\u00fccher.de"),
        (("email",), "a@post.xn--strae-oqa.xn--p1ai", "a@post.stra\u00dfe.\u0440\u0444"),
        (("email",), "a@STRA\u1e9eE.de", "a@stra\u00dfe.de"),
        (("email",), "a@xn--mgba3gch31f060k.com", "a@\u0646\u0627\u0645\u0647\u0627\u06cc.com"),  # as if without its joiner
        (("email",), "xn--bcher-kva.de", "xn--bcher-kva.de"),  # no address
        (("email",), "xn--bcher-kva@b.de", "xn--bcher-kva@b.de"),  # the mailbox is no domain
    ],
)
def test_steps(steps: tuple[Step, ...], given_text: str, wanted: str) -> None:
    assert ids([given_text], *steps) == [wanted.encode()]


def carried(letters: str) -> str:
    return f"xn--{letters.encode('punycode').decode()}"


@pytest.mark.parametrize(
    "label",
    [
        "xn--",
        "xn--a",  # codes of no letter
        "xn--abc-",  # stands for abc
        "xn--99999999",
        "xn--\u00fc",
        carried("\u00dcb"),  # no label has capitals
        carried("a\uff0eb"),  # nor letters that have plainer codes, such as a point
        carried("\ud800"),
        carried("\u3002\u00fc"),
        carried("\u00fc@b"),
    ],
)
def test_a_label_that_stands_for_no_letters_stays_as_it_is(label: str) -> None:
    assert ids([f"a@{label}.de", "a@b.de"], "email") == [f"a@{label}.de".lower().encode(), b"a@b.de"]


@given(st.text(st.characters(categories=["Ll", "Lo", "Nd"]), min_size=1, max_size=8))
def test_a_domain_in_letters_and_the_one_that_mail_carries_are_one_key(letters: str) -> None:
    (plain,) = normalise(pl.Series([f"a@{letters}.de"]), ["email"])
    label = plain.removeprefix("a@").removesuffix(".de")
    mailed = label if label.isascii() else carried(label)
    assert normalise(pl.Series([f"a@{mailed}.de"]), ["email"]).to_list() == [plain]


@given(words, st.sampled_from(["trim", "lower", "nfkc", "email", "phone", "digits"]))
def test_normalising_twice_changes_nothing(word: str, step: Step) -> None:
    once = normalise(pl.Series([word]), [step])
    assert normalise(once, [step]).to_list() == once.to_list()


@given(words.filter(lambda word: all(unicodedata.category(letter) != "Cn" for letter in word)))
def test_steps_agree_with_python(word: str) -> None:
    """For all letters of Python's Unicode; Polars' may be newer."""

    def spelt(text: str) -> str | None:
        return normalise(pl.Series([text]), []).item()  # type: ignore[no-any-return]

    seen = "".join(letter for letter in word if letter not in UNSEEN)
    assert normalise(pl.Series([word]), ["nfkc"]).item() == spelt(unicodedata.normalize("NFKC", seen))
    assert normalise(pl.Series([word]), ["lower"]).item() == spelt(word.lower())


@given(st.lists(words, min_size=2, max_size=2), st.lists(words, min_size=2, max_size=2))
def test_joined_keys_are_equal_only_if_every_part_is(one: list[str], other: list[str]) -> None:
    joined = join([pl.Series([a, b]) for a, b in zip(one, other, strict=True)])
    assert (joined[0] == joined[1]) == (one == other)


def test_joined_keys_count_bytes_and_nulls() -> None:
    assert join([pl.Series(["é", "a", None]), pl.Series(["bc", None, "a"])]).to_list() == ["2:é2:bc", None, None]


ROWS = ["b", None, "a", "b", "", "c", "a", "a"]


@pytest.mark.parametrize(("rule", "wanted", "rows"), [("first", [b"b", b"a", b"c"], [0, 2, 5]), ("drop", [b"c"], [5])])
def test_nulls_and_duplicates_are_counted_and_settled(rule: str, wanted: list[bytes], rows: list[int]) -> None:
    keys = read_keys(pl.DataFrame({"k": ROWS}), columns={"k": "k"}, alignment=alignment(duplicates=rule))
    assert (list(keys.ids), keys.rows_R.tolist()) == (wanted, rows)
    report = keys.report
    assert (report.rows, report.null_rows, report.duplicated_keys, report.used) == (8, 2, 2, len(wanted))
    assert report.rows == report.null_rows + report.duplicate_rows + report.used


@given(st.lists(st.none() | st.sampled_from("abcdef"), min_size=1))
def test_first_rule_matches_a_slow_reference(values: list[str | None]) -> None:
    seen: dict[str, int] = {}
    for row, value in enumerate(values):
        if value is not None:
            seen.setdefault(value, row)
    if not seen:
        with pytest.raises(DataError, match="null or empty"):
            ids(values)
        return
    keys = read_keys(pl.DataFrame({"k": values}), columns={"k": "k"}, alignment=alignment())
    assert dict(zip(keys.ids, keys.rows_R.tolist(), strict=True)) == {key.encode(): row for key, row in seen.items()}


@pytest.mark.parametrize(
    ("values", "rules", "message"),
    [
        ([None, ""], {}, "all 2 rows are null or empty"),
        (["a", None], {"nulls": "error"}, r"null or empty in 1 \(row 1, counted from 0\) rows"),
        (["a", "b", "a"], {"duplicates": "error"}, r"1 keys occur in more than one row: 2 \(row 0, 2, counted"),
        (["a", "a"], {"duplicates": "drop"}, "every key occurs in more than one row"),
        (["a", "b"], {"max_rows": 1}, "the table has 2 rows, over alignment.max_rows = 1"),
    ],
)
def test_unusable_keys(values: list[str | None], rules: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ids(values, **rules)


def test_absent_key_column_lists_what_there_is() -> None:
    with pytest.raises(DataError, match="key column 'zzz' is not in the table; known here: k, other"):
        read_keys(pl.DataFrame({"k": ["a"], "other": [1]}), columns={"k": "zzz"}, alignment=alignment())


@pytest.mark.parametrize(
    ("values", "steps", "shown"),
    [
        ([f"+49170{number:07}" for number in range(60)], (), "`+9{12}` (100.0%)"),
        ([f"0170{number:07}" for number in range(60)], (), "`9{11}` (100.0%)"),
        (["Ab-1", "Cd-2", "ÉÉ\u200b٣"], (), "`Aa-9` (66.7%), `AA?9` (33.3%)"),
        (["Ab-1", "Cd-2"], ("lower",), "`aa-9` (100.0%)"),
        ([f"{'a' * number}@{'b' * (50 - number)}.de" for number in range(1, 50)], (), "`a…@a….a…` (95.9%)"),
        (["-" * 50], (), f"`{'-' * 40}…` (100.0%)"),
    ],
    ids=["plus", "no plus", "letters, digits and what is unseen", "after the steps", "many lengths", "long"],
)
def test_hints_show_what_keys_look_like_and_none_of_them(values: list[str], steps: tuple[Step, ...], shown: str) -> None:
    hints = spelling_hints(pl.DataFrame({"k": values}), columns={"k": "k"}, alignment=alignment(*steps))
    assert f"key 'k': this side's values look like {shown}" in hints[-1]
    assert not any(value in " ".join(hints) for value in values if any(character.isalnum() for character in value))


@pytest.mark.parametrize("step", ["phone", "digits"])
def test_decimal_digits_of_every_script_are_the_digits_that_they_mean(step):
    digits = [each for each in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(each) == "Nd"]
    assert len(digits) > 600
    spelt = normalise(pl.Series("key", [f"1{each}2" for each in digits]), [step])
    assert spelt.to_list() == [f"1{unicodedata.decimal(each)}2" for each in digits]


@pytest.mark.parametrize("step", ["trim", "nfkc", "email", "phone", "digits"])
def test_a_character_that_cannot_be_seen_changes_no_key(step):
    assert {"\u200b", "\ufeff", "\u00ad"} <= UNSEEN
    (plain,) = normalise(pl.Series("key", ["04 9a12"]), [step])
    for text in ("{}04 9a12", "04{} 9a12", "04 9a12{}"):
        assert normalise(pl.Series("key", [text.format(each) for each in sorted(UNSEEN)]), [step]).unique().to_list() == [plain]


@pytest.mark.parametrize(("kind", "digits"), [(pl.Float64, 53), (pl.Float32, 24)], ids=["float64", "float32"])
@pytest.mark.parametrize("sign", [1, -1])
def test_float_keys_that_may_have_merged_are_refused(kind: type[pl.DataType], digits: int, sign: int) -> None:
    """One missing id turns pandas' whole numbers into floats. From 2^53 on two of them share a float, and so one person's row."""
    exact = pl.DataFrame({"k": pl.Series([1.0, sign * (2.0**digits - 1), None], dtype=kind)})
    assert read_keys(exact, columns={"k": "k"}, alignment=alignment()).report.used == 2
    beyond = pl.DataFrame({"k": pl.Series([1.0, sign * 2.0**digits, None], dtype=kind)})
    with pytest.raises(IdError) as caught:
        read_keys(beyond, columns={"k": "k"}, alignment=alignment())
    assert f"1 (row 1, counted from 0) rows have ids of 2^{digits} = {2**digits} or more" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ([1.5, 2.0, None], "1 (row 0"),
        (["1.2E+05", "7", " 3e9 "], "2 (row 0, 2"),
        (["1,2E+05", "E5", "12"], "1 (row 0"),
        ([1.0, 2.0], None),
        (["a1e5", "1e", "0x1e5"], None),
    ],
)
def test_keys_that_look_rounded_are_said(values: list[object], rows: str | None) -> None:
    report = read_keys(pl.DataFrame({"k": values}), columns={"k": "k"}, alignment=alignment()).report
    doubtful = [line for line in report.notes() if "a fraction or an exponent" in line]
    assert [rows in line for line in doubtful] == ([True] if rows else [])
