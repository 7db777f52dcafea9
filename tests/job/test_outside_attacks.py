"""Attacks that other packages bring: they join the audit, and one that fails costs its own row only."""

import sys

import pytest
import torch
from tiny import columns, contract_values, tables

from tallystick.attacks.label_inference.outside import outside_attacks
from tallystick.config.contract import parse_contract
from tallystick.job.log import Silent
from tallystick.job.phases.audit import audit_labels
from tallystick.party.folder import RunFolder
from tallystick.report.result import read_result
from tallystick.simulation import simulate

MODULE = """
import sys

import torch

from tallystick.attacks.label_inference.table import LabelInferenceAttack
from tallystick.attacks.view import Scores

def longest(view, *, generator):
    rows = tuple(step.rows_B for step in view.steps)
    return Scores(rows=rows, values=tuple(step.received_BD.norm(dim=1).double() for step in view.steps))

def broken(view, *, generator):
    raise KeyError("no such thing")

LONGEST = LabelInferenceAttack(attack=longest, description="the longer, the rarer", reads="cut_gradient", multiclass=False)
BROKEN = LabelInferenceAttack(attack=broken, description="", reads="cut_gradient")
LEAVES = LabelInferenceAttack(attack=lambda view, *, generator: sys.exit(3), description="", reads="cut_gradient")

def careless(view, *, generator):
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    return longest(view, generator=generator)

CARELESS = LabelInferenceAttack(attack=careless, description="", reads="cut_gradient", multiclass=False)

class Derived(LabelInferenceAttack):
    def allows(self, classes):
        raise ValueError(classes)

DERIVED = Derived(attack=longest, description="", reads="cut_gradient")
NUMBER = LabelInferenceAttack(attack=longest, description=5, reads="cut_gradient")
LINES = LabelInferenceAttack(attack=longest, description="\\ud800", reads="cut_gradient")
READS = LabelInferenceAttack(attack=longest, description="", reads="labels")
KNOWS = LabelInferenceAttack(attack=longest, description="", reads="cut_gradient", knows=None)
FLAG = LabelInferenceAttack(attack=longest, description="", reads="cut_gradient", upper_bound=5)
"""
LEAVING = "import sys, torch; torch.set_default_dtype(torch.float64); sys.exit(4)"
POINTS = {"longest": "LONGEST", "broken": "BROKEN", "norm": "LONGEST", "absent": "ABSENT", "function": "longest"}
POINTS |= {"leaves": "LEAVES", "careless": "CARELESS"}
POINTS |= {name.lower(): name for name in ("DERIVED", "NUMBER", "LINES", "READS", "KNOWS", "FLAG")}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of these entry points and one whose module ends the process, installed as pip leaves one."""
    site = tmp_path / "site"
    about = site / "brought-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "brought_attacks.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (site / "leaving_attacks.py").write_text(LEAVING)
    lines = ["leaving = leaving_attacks:ROW", *(f"{name} = brought_attacks:{value}" for name, value in POINTS.items())]
    (about / "entry_points.txt").write_text("\n".join(["[tallystick.label_attacks]", *lines]))
    monkeypatch.syspath_prepend(site)


def test_none_is_there_where_none_is_installed():
    assert outside_attacks() == ({}, {})


def test_what_cannot_be_used_says_why(installed):
    found, unusable = outside_attacks()
    assert set(found) == {"longest", "broken", "leaves", "careless"}
    assert torch.get_default_dtype() == torch.float32
    assert unusable == {
        "absent (brought_attacks:ABSENT)": "it cannot be loaded: AttributeError: "
        "module 'brought_attacks' has no attribute 'ABSENT'",
        "function (brought_attacks:longest)": "it is a function, and a LabelInferenceAttack itself was expected",
        "leaving (leaving_attacks:ROW)": "it cannot be loaded: SystemExit: 4",
        "derived (brought_attacks:DERIVED)": "it is a Derived, and a LabelInferenceAttack itself was expected",
        "number (brought_attacks:NUMBER)": "its description is no line of plain text",
        "lines (brought_attacks:LINES)": "its description is no line of plain text",
        "reads (brought_attacks:READS)": "what it reads is none of cut_gradient, cut_embedding",
        "knows (brought_attacks:KNOWS)": "what it knows is none of NoLabels, ClassOrder, LabelsPerBatch, FewLabels, "
        "TheseLabels, ShareOfLabels",
        "flag (brought_attacks:FLAG)": "its upper_bound is neither True nor False",
        "norm (brought_attacks:LONGEST)": "another attack has this name; give it one of its own",
    }


def test_they_join_the_audit_and_one_that_raises_costs_its_own_row(installed, tmp_path):
    parties = ("bank", "shop")
    values = contract_values(parties, audit=True, training__batch_size=64, training__epochs=1)
    simulate(values, tables(parties, rows=300), columns(parties), folder=tmp_path / "runs", watcher=Silent())
    (path,) = (tmp_path / "runs" / "bank").glob("tiny-*")
    assert any(attack.name == "longest" for attack in read_result((path / "result.json").read_bytes()).sections.leakage.attacks)
    audit = audit_labels(RunFolder.open(path), parse_contract(values), watcher=Silent())
    found = {attack.name: attack for attack in audit.attacks}
    assert found["longest"].note == "the longer, the rarer"
    assert found["longest"].auc == found["norm"].auc
    assert "broken, in shop's seat: it raised KeyError: 'no such thing'" in audit.not_measured
    assert any(line.startswith("norm (brought_attacks:LONGEST): another attack") for line in audit.not_measured)
    assert "leaves, in shop's seat: it raised SystemExit: 3" in audit.not_measured
    assert found["careless"].auc == found["norm"].auc
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert len(found) > 20


def test_the_quick_form_loads_none(installed, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "brought_attacks", raising=False)
    parties = ("bank", "shop")
    values = contract_values(parties, audit="quick", training__batch_size=64, training__epochs=1)
    result = simulate(values, tables(parties, rows=100), columns(parties), folder=tmp_path / "runs", watcher=Silent())
    assert not any("attacks:" in line for line in result.sections.leakage.not_measured)
    assert "brought_attacks" not in sys.modules
