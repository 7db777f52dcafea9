"""Which ways of asking go with which contract, and what each discloses in words."""

import pytest

from tallystick.config.contract import parse_contract
from tallystick.config.serving import WAYS
from tallystick.disclosure.serving import serving_lines
from tallystick.errors import ConfigError


def contract(*ways, method="intersection", features=("shop",), **changes):
    values = {
        "name": "served",
        "parties": {"bank": {"role": "label"}, **{name: {"role": "feature"} for name in features}},
        "alignment": {"method": method, "keys": [{"name": "id"}], **changes.pop("alignment", {})},
        "serving": {"ways": list(ways), **changes.pop("serving", {})},
        **changes,
    }
    return parse_contract(values)


WRONG = {
    "who asks": (lambda: contract("key", "embedding"), "by embedding the feature party asks, and by the others the label party"),
    "several": (lambda: contract("agreed-batch", features=("shop", "mail")), "one feature party asks, and this contract has 2"),
    "classes": (lambda: contract("embedding", target={"type": "multiclass", "classes": 3}), "give one number for a row"),
    "per row": (
        lambda: contract("embedding", serving={"questions_a_day_per_row": 2}),
        "serving.questions_a_day_per_row: with embedding no party knows which row",
    ),
    "duplicates": (lambda: contract("agreed-batch", alignment={"duplicates": "all"}), "agreed-batch needs one row for each id"),
    "union": (lambda: contract("position", method="union"), "use ahead or embedding or agreed-batch"),
    "twice": (lambda: contract("key", "key"), "each way must be given once"),
}


@pytest.mark.parametrize("what", WRONG)
def test_ways_that_do_not_go_with_the_contract_are_refused(what):
    made, told = WRONG[what]
    with pytest.raises(ConfigError, match=told):
        made()


@pytest.mark.parametrize("way", ["ahead", "embedding", "agreed-batch"])
def test_a_union_allows_the_ways_that_hide_whose_rows_there_are(way):
    assert contract(way, method="union").serving.feature_party_asks == (way != "ahead")


def test_every_way_has_its_sentence_and_a_feature_party_that_asks_those_of_scores():
    for way in WAYS:
        lines = serving_lines(contract(way))
        assert any(f"(serving.ways: {way})" in line for line in lines)
        assert any("gets the score of" in line for line in lines) == (way in ("embedding", "agreed-batch"))
    text = "\n".join(serving_lines(contract("agreed-batch", method="union", serving={"window": 40})))
    assert "batch of at least 40 rows of the union" in text
    assert "and that shop has it" in "\n".join(serving_lines(contract("embedding", method="union")))
    assert "rows that only bank has included, by pseudonym" in text
    assert "bank answers any number of them: set a budget" in text
    bounded = serving_lines(contract("agreed-batch", serving={"questions_a_day": 500, "questions_a_day_per_row": 2}))
    assert "bank answers 500 rows a day (serving.questions_a_day) and 2 times a day for a row" in "\n".join(bounded)


def test_a_missing_list_of_ways_is_said_in_one_readable_line():
    """The whole description had 715 characters."""
    with pytest.raises(ConfigError) as raised:
        parse_contract(
            {
                "name": "served",
                "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
                "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
                "serving": {},
            }
        )
    (line,) = str(raised.value).splitlines()
    assert line.endswith(f"known here: {', '.join(WAYS)}")
    assert "serving.ways: is missing; it says: allowed ways of asking" in line
    assert len(line) < 250
