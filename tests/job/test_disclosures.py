"""The table of disclosures against the wire: every field of every message stands in it, and all that crosses in a run is said."""

import importlib
import pkgutil
from collections import defaultdict

import pytest
import similar
import tiny

import tallystick
from tallystick.config.contract import parse_contract
from tallystick.disclosure.serving import SERVING
from tallystick.disclosure.table import DISCLOSURES, disclosure_lines
from tallystick.network.channel import MemoryChannel
from tallystick.network.messages import Message
from tallystick.simulation import simulate

TWO, THREE = ("bank", "shop"), ("bank", "club", "shop")
KEYS = [{"name": "id"}]
UNION = {"union__labels": "sampling", "union__features": "sampling"}
CASES = {
    "default": (TWO, {}),
    "three parties": (THREE, {}),
    "label dp": (TWO, {"defense": [{"method": "label-dp", "epsilon": 1.0}]}),
    "no gradients": (TWO, {"training__gradients": "none"}),
    "Diffie-Hellman": (TWO, {"alignment__protocol": "diffie-hellman"}),
    "oblivious transfer": (TWO, {"alignment__protocol": "oblivious-transfer"}),
    "malicious": (TWO, {"alignment__security": "malicious"}),
    "malicious, three parties": (THREE, {"alignment__security": "malicious"}),
    "repeated ids": (TWO, {"alignment__duplicates": "all"}),
    "by time": (TWO, {"split": {"method": "time", "validation": 0.1, "test": 0.2}}),
    "folds": (TWO, {"training__folds": 3}),
    "private AUC": (TWO, {"evaluation__privacy": {"epsilon": 1.0}}),
    "metrics": (TWO, {"evaluation__share_metrics": ["auc"]}),
    "importance": (TWO, {"evaluation__importance__feature_columns": "both", "evaluation__importance__rows": 20}),
    "union": (TWO, {"alignment__method": "union", "alignment__protocol": "diffie-hellman"}),
    "union by switching": (TWO, {"alignment__method": "union", "alignment__protocol": "oblivious-transfer"}),
    "unaligned rows": (TWO, {"unaligned__method": "regressor", "unaligned__joint_epochs": 1}),
}


def message_types():
    """Every message of the library, by its name."""
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    pending, kinds = [Message], {}
    while pending:
        for kind in pending.pop().__subclasses__():
            pending.append(kind)
            if kind.__module__.startswith("tallystick."):
                kinds[kind.__name__] = kind
    return kinds


def test_every_field_of_every_message_stands_in_the_table_and_no_other():
    fields = {
        f"{name}.{field}" if field else name
        for name, kind in message_types().items()
        for field in (kind.__struct_fields__ or ("",))
    }
    listed = {field for row in DISCLOSURES for field in row.fields}
    assert fields - listed == set(), "fields that no row of the table of disclosures has"
    assert listed - fields == set(), "fields that no message has"


@pytest.fixture
def crossed(monkeypatch):
    """The types of messages that each party receives."""
    received, send = defaultdict(set), MemoryChannel.send

    def noted(channel, message):
        received[channel.peer].add(type(message).__name__)
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", noted)
    return received


def rows_of(name):
    """The rows of the table that a message type crosses by in a run: later commands have rows of their own."""
    run = [row for row in DISCLOSURES if row not in SERVING]
    return [row for row in run if any(field.split(".")[0] == name for field in row.fields)]


def check_said(contract, received, result):
    """Each type that crossed is said before the run by a row of its own, and after it in what was learnt."""
    lines = disclosure_lines(contract, own_columns=None)
    for name in set().union(*received.values()):
        said = [line for row in rows_of(name) for line in row.sentences(contract)]
        assert said, f"{name} crossed, and check does not say so"
        assert set(said) <= set(lines)
    facts = " ".join(item.what for item in result.learnt)
    assert ("cut gradient" in facts and "labels can be estimated" in facts) == ("CutGradient" in set().union(*received.values()))
    assert "embedding" in facts


@pytest.mark.parametrize("case", CASES)
def test_what_crosses_in_a_run_is_said_before_it_and_after_it(case, crossed):
    parties, changes = CASES[case]
    contract = parse_contract(tiny.contract_values(parties, **{"training__epochs": 1, **changes}))
    columns = tiny.columns(parties)
    if contract.split.method == "time":
        columns["bank"]["time"] = "day"
    result = simulate(contract, tiny.tables(parties, rows=200), columns)
    check_said(contract, crossed, result)


def test_what_crosses_when_rows_are_linked_is_said(crossed):
    contract = parse_contract(similar.contract_values(("bank", "shop"), training__epochs=1))
    tables = similar.tables(("bank", "shop"), rows=100, places=40)
    check_said(contract, crossed, simulate(contract, tables, similar.columns(("bank", "shop"))))


def test_a_contract_without_a_defence_says_that_gradients_tell_labels_and_columns():
    """This is the document that people sign."""
    lines = disclosure_lines(parse_contract(tiny.contract_values(TWO)), own_columns=None)
    (gradient,) = [line for line in lines if "to shop: a cut gradient per training row and epoch" in line]
    assert "attacks read the label off it" in gradient
    assert "no formal guarantee" in gradient
    assert any("to shop: by the cut gradients, something of the columns of bank" in line for line in lines)
