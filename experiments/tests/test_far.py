"""Training over a long line: both benchmarks' rows and pages, and lines that are none."""

from types import SimpleNamespace

import pytest

from tallystick.attacks.findings import AttackResult
from tallystick.errors import ConfigError
from tallystick.results import Audit, FeatureAudit
from tallystick.results.leaks import MeanRebuilt
from tallystick_experiments.far import line, price
from tallystick_experiments.far.line import WAYS, LongLine

COLUMNS = FeatureAudit(party="feature", by="label", means=[MeanRebuilt(known=0, value=0.9), MeanRebuilt(known=200, value=0.5)])
ATTACKS = [
    AttackResult(name="norm", view="feature, from cut gradients", auc=0.75),
    AttackResult(name="probe", view="feature, from cut embeddings", auc=1.0, upper_bound=True),
]
AUDITED = {
    gradients: SimpleNamespace(
        joint={"auc": {"value": 0.9}}, label_audit=Audit(attacks=attacks), sections=SimpleNamespace(features=[COLUMNS])
    )
    for gradients, attacks in (("sent", ATTACKS), ("none", ()))
}
"""Return results of a run by what its contract says of gradients. A bound that nobody can reach, and fewer known rows,
do not count.
"""


@pytest.mark.long
def test_the_default_and_a_changed_key_are_trained_on_the_same_rows():
    found = price.price_experiment(tables=["breast"], trainings=["default", "int8"], seeds=(1, 2), rows=200).run()
    rows = {(row["training"], row["seed"]): row["value"] for row in found.rows}
    assert all(0.5 < value <= 1 for value in rows.values())
    figures, changes = found.page(command="x").tables
    assert figures.rows[0][:2] == changes.rows[0][:2] == ["breast", "AUC"]
    expected = sum(rows["int8", seed] - rows["default", seed] for seed in (1, 2)) / 2
    assert changes.rows[0][2].value == pytest.approx(expected)


def test_an_audit_sets_what_was_found_beside_the_price(monkeypatch):
    monkeypatch.setattr(price, "audited_table", lambda *_, training, **__: AUDITED[training.get("gradients", "sent")])
    found = price.price_experiment(
        tables=["breast"], trainings=["default", "no-gradients"], seeds=(1, 2), rows=200, audit=True
    ).run()
    *_, labels, columns = found.page(command="x").tables
    assert [[cell.value for cell in table.rows[0][1:]] for table in (labels, columns)] == [[0.75, 0.5], [0.5, 0.5]]


def test_an_unknown_training_is_named():
    with pytest.raises(ConfigError, match="--trainings int4: must be of default, bfloat16"):
        price.price_experiment(tables=["breast"], trainings=["int4"], rows=200).run()


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
    table, epochs = line.line_page({"cores": 2}, rows).tables
    shown = {(row[0], row[1], row[2]): row[3:] for row in table.rows}
    # 100 Mbit/s are 12.5 MB/s; a batch is 64 rows of 128 numbers, of four bytes whole and one and a share compressed.
    assert shown[far.name, "synchronous", "none"] == [0, 200.0, 0.5, pytest.approx(12.5e6 / (64 * 128 * 4))]
    assert shown[far.name, "auto", "int8"][3] == pytest.approx(12.5e6 / (64 * 132))
    assert shown[LongLine().name, "auto", "none"][2:] == [1.0, None]
    # 1,000,000 rows are 15,625 batches, 78 s at 200 a second. Both ways cross 128 numbers of four bytes; once, half of that.
    taken = {(row[1], row[2]): row[3:] for row in epochs.rows}
    assert taken["synchronous", "none"] == [pytest.approx(1024.0), pytest.approx(15_625 / 200 / 60)]
    assert taken["gradients: none", "none"] == [pytest.approx(512.0), pytest.approx(512e6 / 12.5e6 / 60)]
