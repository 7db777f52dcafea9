"""The page of students: a share of the gain if joining gains with every seed, by hand."""

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments.student import student_experiment, student_page


def row(seed, gain, joint_gain, kept, table="wine"):
    figures = {"own": 0.7, "student": 0.7 + gain, "joint": 0.7 + joint_gain, "gain_low": None, "gain_high": None}
    return {"seed": seed, "table": table, "metric": "auc", "share": 0.5, "test_rows": 9, "gain": gain, "joint_gain": joint_gain,
            "kept": kept, **figures}  # fmt: skip


def test_a_share_is_of_the_gains_of_all_seeds_together_or_none():
    about = {"rows": {"wine": 178, "moss": 50}}
    (table,) = student_page(about, [row(1, 0.01, 0.1, 0.1), row(2, 0.05, 0.2, 0.25)]).tables
    shares = dict(zip(table.columns, table.rows[0], strict=True))
    assert shares["share of the gain"] == pytest.approx(0.2)
    assert shares["rows"] == 178
    (table,) = student_page(about, [row(1, 0.01, 0.1, 0.1, "moss"), row(2, 0.05, 0.2, None, "moss")]).tables
    assert dict(zip(table.columns, table.rows[0], strict=True))["share of the gain"] is None


def test_an_unknown_table_is_refused():
    with pytest.raises(ConfigError, match="--tables moss: must be of wine"):
        student_experiment(tables=["moss"])
