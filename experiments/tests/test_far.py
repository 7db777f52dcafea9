"""Training over a long line: both benches' rows and pages, and lines that are none."""

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments.far import line, price
from tallystick_experiments.far.line import WAYS, LongLine
from tallystick_experiments.grid import Keeping


def test_the_default_and_a_changed_key_are_trained_on_the_same_rows():
    found = price.run(["breast"], None, trainings=["default", "top-k"], seeds=(1, 2), most_rows=200, keeping=Keeping())
    rows = {(row["training"], row["seed"]): row["value"] for row in found.rows}
    assert all(0.5 < value <= 1 for value in rows.values())
    figures, changes = found.page(command="x").tables
    assert figures.rows[0][:2] == changes.rows[0][:2] == ["breast", "AUC"]
    expected = sum(rows["top-k", seed] - rows["default", seed] for seed in (1, 2)) / 2
    assert changes.rows[0][2].value == pytest.approx(expected)


def test_an_unknown_training_is_named():
    with pytest.raises(ConfigError, match="--trainings int4: must be of default, bfloat16"):
        price.run(["breast"], None, trainings=["int4"], seeds=(1,), most_rows=200, keeping=Keeping())


@pytest.mark.parametrize("text", ["50", "50:", "50:100:1", "-1:100", "50:0", "50:nan", "near:far"])
def test_what_is_no_line_is_named(text):
    with pytest.raises(ConfigError, match=r"--lines .*must be ms:Mbit/s"):
        LongLine.parse(text)


def test_a_page_sets_each_way_beside_one_machine_and_what_the_rate_allows():
    far = LongLine.parse("50:100")
    rows = [
        {
            "turn": turn,
            "line": each.name,
            "way": way.name,
            "compression": way.compression,
            "staleness": way.staleness or 0,
            "steps_per_s": 400.0 if each is not far else 100.0 * turn,
            "most_steps_per_s": line.most_steps(each, way),
        }
        for turn in (1, 2, 3)
        for each in (LongLine(), far)
        for way in WAYS
    ]
    (table,) = line.page_of({"cores": 2}, rows).tables
    shown = {(row[0], row[1], row[2]): row[3:] for row in table.rows}
    # 100 Mbit/s are 12.5 MB/s; a batch is 64 rows of 128 numbers, of four bytes whole and one and a share compressed.
    assert shown[far.name, "synchronous", "none"] == [0, 200.0, 0.5, pytest.approx(12.5e6 / (64 * 128 * 4))]
    assert shown[far.name, "auto", "int8"][3] == pytest.approx(12.5e6 / (64 * 132))
    assert shown[LongLine().name, "auto", "none"][2:] == [1.0, None]
