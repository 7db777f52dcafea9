"""Attacks that other packages bring: they join the audit, and one that fails costs its own row only."""

import pytest
from tiny import columns, contract_values, tables

from tallystick.attacks.label_inference.outside import outside_attacks
from tallystick.config.contract import parse_contract
from tallystick.job.log import Silent
from tallystick.job.phases.audit import audit_labels
from tallystick.party.folder import RunFolder
from tallystick.simulation import simulate

MODULE = """
from tallystick.attacks.label_inference.table import LabelInferenceAttack
from tallystick.attacks.view import Scores

def longest(view, *, generator):
    rows = tuple(step.rows_B for step in view.steps)
    return Scores(rows=rows, values=tuple(step.received_BD.norm(dim=1).double() for step in view.steps))

def broken(view, *, generator):
    raise KeyError("no such thing")

LONGEST = LabelInferenceAttack(attack=longest, description="the longer, the rarer", reads="cut_gradient", multiclass=False)
BROKEN = LabelInferenceAttack(attack=broken, description="", reads="cut_gradient")
"""
POINTS = {"longest": "LONGEST", "broken": "BROKEN", "norm": "LONGEST", "absent": "ABSENT", "function": "longest"}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of five entry points, installed as pip leaves one."""
    site = tmp_path / "site"
    about = site / "brought-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "brought_attacks.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    lines = [f"{name} = brought_attacks:{value}" for name, value in POINTS.items()]
    (about / "entry_points.txt").write_text("\n".join(["[tallystick.label_attacks]", *lines]))
    monkeypatch.syspath_prepend(site)


def test_none_is_there_where_none_is_installed():
    assert outside_attacks() == ({}, {})


def test_what_cannot_be_used_says_why(installed):
    found, unusable = outside_attacks()
    assert set(found) == {"longest", "broken"}
    assert unusable == {
        "absent (brought_attacks:ABSENT)": "it cannot be loaded: AttributeError: "
        "module 'brought_attacks' has no attribute 'ABSENT'",
        "function (brought_attacks:longest)": "it is a function, and a LabelInferenceAttack was expected",
        "norm (brought_attacks:LONGEST)": "another attack has this name; give it one of its own",
    }


def test_they_join_the_audit_and_one_that_raises_costs_its_own_row(installed, tmp_path):
    parties = ("bank", "shop")
    values = contract_values(parties, audit=True, training__batch_size=64, training__epochs=1)
    simulate(values, tables(parties, rows=300), columns(parties), folder=tmp_path / "runs", watcher=Silent())
    (path,) = (tmp_path / "runs" / "bank").glob("tiny-*")
    audit = audit_labels(RunFolder.open(path), parse_contract(values), watcher=Silent())
    found = {attack.name: attack for attack in audit.attacks}
    assert found["longest"].note == "the longer, the rarer"
    assert found["longest"].auc == found["norm"].auc
    assert "broken, in shop's seat: it raised KeyError: 'no such thing'" in audit.not_measured
    assert any(line.startswith("norm (brought_attacks:LONGEST): another attack") for line in audit.not_measured)
    assert len(found) > 20
