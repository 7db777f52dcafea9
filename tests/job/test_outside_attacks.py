"""Attacks of other packages join the audit, and one that fails costs its own row only."""

import io
import sys
from dataclasses import replace

import pytest
import torch
from tiny import columns, contract_values, few_column_attacks, tables

from tallystick.attacks.label_inference import outside, outside_worker
from tallystick.attacks.label_inference.outside import outside_attacks
from tallystick.attacks.view import StepView, View
from tallystick.audit import labels
from tallystick.errors import DataError
from tallystick.simulation import simulate
from tallystick.watcher import Silent

MODULE = """
import sys

import torch

from tallystick.attacks.label_inference.attack_table import LabelInferenceAttack
from tallystick.attacks.view import Scores

def longest(view, *, generator):
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    rows = tuple(step.rows_B for step in view.steps)
    return Scores(rows=rows, values=tuple(step.received_BD.norm(dim=1).double() for step in view.steps))

def broken(view, *, generator):
    raise KeyError("no such thing")

LONGEST = LabelInferenceAttack(attack=longest, description="the longer, the rarer", reads="cut_gradient", multiclass=False)
BROKEN = LabelInferenceAttack(attack=broken, description="", reads="cut_gradient")
LEAVES = LabelInferenceAttack(attack=lambda view, *, generator: sys.exit(3), description="", reads="cut_gradient")

def endless(view, *, generator):
    import subprocess, time
    subprocess.Popen(["sleep", "600"])
    while True:
        time.sleep(1)

ENDLESS = LabelInferenceAttack(attack=endless, description="", reads="cut_gradient")

def crashes(view, *, generator):
    import os
    print("noise on standard output", flush=True)
    os._exit(7)

CRASHES = LabelInferenceAttack(attack=crashes, description="", reads="cut_gradient")

def wordy(view, *, generator):
    return [("norm", 1.0)]

WORDY = LabelInferenceAttack(attack=wordy, description="", reads="cut_gradient")

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
POINTS |= {"leaves": "LEAVES", "crashes": "CRASHES", "wordy": "WORDY"}
POINTS |= {name.lower(): name for name in ("DERIVED", "NUMBER", "LINES", "READS", "KNOWS", "FLAG")}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    return install(tmp_path, monkeypatch, POINTS)


def install(tmp_path, monkeypatch, points):
    """Make a package with these entry points and one whose module ends the process, installed as by pip."""
    site = tmp_path / "site"
    about = site / "brought-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "brought_attacks.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (site / "leaving_attacks.py").write_text(LEAVING)
    lines = ["leaving = leaving_attacks:ROW", *(f"{name} = brought_attacks:{value}" for name, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(["[tallystick.label_attacks]", *lines]))
    monkeypatch.syspath_prepend(site)
    return site


def random_view():
    rows_B = torch.arange(40)
    step = StepView(epoch=0, rows_B=rows_B, own_B=rows_B >= 0, received_BD=torch.randn(40, 3), sent_BD=torch.randn(40, 3))
    return View(received="cut_gradient", steps=(step,))


def test_none_is_there_where_none_is_installed():
    assert outside_attacks() == ({}, {})


def test_what_cannot_be_used_says_why(installed):
    found, unusable = outside_attacks()
    assert set(found) == {"longest", "broken", "leaves", "crashes", "wordy"}
    assert torch.get_default_dtype() == torch.float32
    assert unusable == {
        "absent (brought_attacks:ABSENT)": "it cannot be loaded: AttributeError: "
        "module 'brought_attacks' has no attribute 'ABSENT'",
        "function (brought_attacks:longest)": "it is a function; expected a LabelInferenceAttack",
        "leaving (leaving_attacks:ROW)": "it cannot be loaded: SystemExit: 4",
        "derived (brought_attacks:DERIVED)": "it is a Derived; expected a LabelInferenceAttack",
        "number (brought_attacks:NUMBER)": "its description is not a line of plain text",
        "lines (brought_attacks:LINES)": "its description is not a line of plain text",
        "reads (brought_attacks:READS)": "what it reads is none of cut_gradient, cut_embedding",
        "knows (brought_attacks:KNOWS)": "what it knows is none of NoLabels, ClassOrder, LabelsPerBatch, FewLabels, "
        "ShareOfLabels",
        "flag (brought_attacks:FLAG)": "its upper_bound is neither True nor False",
        "norm (brought_attacks:LONGEST)": "another attack has this name; give it a different name",
    }


def test_equations_without_a_solution_cost_an_own_attack_its_row_and_not_the_run(monkeypatch, tmp_path):
    def unsolved(view, *, generator):
        raise torch.linalg.LinAlgError("not positive-definite")

    rows = {
        **labels.LABEL_INFERENCE_ATTACKS,
        "spectral-averaged": replace(labels.LABEL_INFERENCE_ATTACKS["spectral-averaged"], attack=unsolved),
    }
    monkeypatch.setattr(labels, "LABEL_INFERENCE_ATTACKS", rows)
    parties = ("bank", "shop")
    values = contract_values(parties, audit="quick", training__epochs=1)
    result = simulate(values, tables(parties, rows=100), columns(parties), folder=tmp_path / "runs", watcher=Silent())
    assert "spectral-averaged, in shop's seat: it raised _LinAlgError: not positive-definite" in result.label_audit.not_measured
    assert "spectral-averaged" not in {attack.name for attack in result.label_audit.attacks}


@pytest.mark.long
def test_they_join_the_audit_and_one_that_raises_costs_its_own_row(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, {"longest": "LONGEST", "broken": "BROKEN", "norm": "LONGEST", "crashes": "CRASHES"})
    few_column_attacks(monkeypatch)
    parties = ("bank", "shop")
    values = contract_values(parties, audit=True, training__batch_size=64, training__epochs=1)
    result = simulate(values, tables(parties, rows=300), columns(parties), folder=tmp_path / "runs", watcher=Silent())
    audit = result.label_audit
    found = {attack.name: attack for attack in audit.attacks}
    assert found["longest"].note == "the longer, the rarer"
    assert found["longest"].auc == found["norm"].auc
    assert "broken, in shop's seat: it raised KeyError: 'no such thing'" in audit.not_measured
    assert any(line.startswith("norm (brought_attacks:LONGEST): another attack") for line in audit.not_measured)
    assert "crashes, in shop's seat: its process ended with code 7" in audit.not_measured
    assert "brought_attacks" not in sys.modules  # no foreign code runs where the labels are
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(("name", "says"), [("leaves", "it raised SystemExit: 3"), ("wordy", "it raised AttributeError: ")])
def test_a_row_that_leaves_or_gives_no_scores_is_answered_in_words(installed, name, says):
    """Run it by the function of its process, which is called here."""
    number = next(number for number, point in enumerate(outside_worker.points()) if point.name == name)
    answers = io.BytesIO()
    try:
        outside_worker._run(outside_worker.view_message(random_view(), number, seed=0, threads=1), answers)
    finally:
        sys.modules.pop("brought_attacks", None)
    facts, _ = outside_worker.unframed(answers.getvalue())
    assert facts["error"].startswith(says)


def test_the_quick_form_loads_none(installed, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "brought_attacks", raising=False)
    parties = ("bank", "shop")
    values = contract_values(parties, audit="quick", training__batch_size=64, training__epochs=1)
    result = simulate(values, tables(parties, rows=100), columns(parties), folder=tmp_path / "runs", watcher=Silent())
    assert not any("attacks:" in line for line in result.sections.leakage.not_measured)
    assert "brought_attacks" not in sys.modules


@pytest.mark.long
def test_an_attack_that_never_ends_is_ended_and_costs_its_own_row(tmp_path, monkeypatch):
    """Its own child processes end with it: the pipe that they hold open is closed."""
    install(tmp_path, monkeypatch, {"endless": "ENDLESS", "longest": "LONGEST"})
    found, _ = outside_attacks()
    monkeypatch.setattr(outside, "LIMIT_S", 12.0)  # loading torch takes a few seconds of this
    with pytest.raises(DataError, match="it was ended after 12 s"):
        found["endless"].attack(random_view(), generator=torch.Generator().manual_seed(0))


@pytest.mark.long
def test_a_row_that_never_loads_is_ended_and_the_others_are_loaded(tmp_path, monkeypatch):
    site = install(tmp_path, monkeypatch, {"longest": "LONGEST"})
    (site / "leaving_attacks.py").write_text("import time\nwhile True: time.sleep(1)")
    monkeypatch.setattr(outside, "LIMIT_S", 60.0)  # long enough to load the others, however busy the machine is
    found, unusable = outside_attacks()
    assert set(found) == {"longest"}
    assert unusable == {"leaving (leaving_attacks:ROW)": "it cannot be loaded: it was ended after 60 s"}


def test_a_view_crosses_to_the_other_process_as_it_is():
    rows_B = torch.arange(6).flip(0)
    step = StepView(epoch=3, rows_B=rows_B, own_B=rows_B >= 2, received_BD=torch.randn(6, 2), looks_at_BL=torch.zeros(6, 1))
    view = View(
        received="cut_gradient", steps=(step,), known_labels=(rows_B % 2,), classes=3, class_order=torch.arange(3), flip=0.25
    )
    again = outside_worker._view(*outside_worker.unframed(outside_worker.view_message(view, 2, seed=5, threads=1)))
    assert (again.classes, again.flip, again.steps[0].epoch) == (3, 0.25, 3)
    assert again.steps[0].sent_BD is None
    for one, other in ((again.steps[0].received_BD, step.received_BD), (again.known_labels[0], rows_B % 2)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
