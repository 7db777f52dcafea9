"""The budget before a run: what it would spend beside what is spent, and a refusal before anybody is told of the run."""

import math
from types import SimpleNamespace

import pytest
import torch
from tiny import columns, contract_values

from tallystick.check import check_party_file
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import DataError
from tallystick.job.defense import RunDefense, budget_outlook, check_budget
from tallystick.job.folder import RunFolder
from tallystick.privacy.events import PureDP
from tallystick.privacy.ledger import BudgetExceeded, Cap, Ledger

PARTIES = ("bank", "shop")
LABEL_DP = {"method": "label-dp", "epsilon": 1.0}
GAUSSIAN = {"method": "gaussian-labels", "epsilon": 1.0, "delta": 1e-5}
AUC = {"epsilon": 0.5}


def contract_of(*defense, release=None):
    return parse_contract(contract_values(PARTIES, defense=list(defense), evaluation__privacy=release))


@pytest.fixture
def party_of(tmp_path):
    def make(name="bank", **privacy):
        table = {"table": {"path": "table.csv"}}
        return parse_party({"party": name, **table, **columns(PARTIES)[name], "privacy": privacy}, folder=tmp_path, source=name)

    return make


def spend(party, epsilon):
    Ledger(party.privacy.ledger, party="bank").spend("labels", PureDP(epsilon=epsilon), what="an earlier run")


def test_spent_this_run_and_the_cap(party_of):
    party = party_of(cap=4.0)
    found = budget_outlook(contract_of(LABEL_DP, release=AUC), party)
    assert (found.spent, found.after, found.cap) == (0.0, 1.5, Cap(epsilon=4.0))
    assert not party.privacy.ledger.exists()  # asking leaves nothing behind
    spend(party, 2.5)
    found = budget_outlook(contract_of(LABEL_DP, release=AUC), party)
    assert (found.spent, found.after, found.fits) == (2.5, 4.0, True)
    assert found.describe() == "label-DP epsilon of data set 'labels': 2.5 spent, 4 after this run, cap 4"
    assert budget_outlook(contract_of({"method": "isotropic", "power": 1.0}), party) is None
    assert budget_outlook(contract_of(LABEL_DP), party_of("shop")) is None


def test_a_cap_that_the_ledger_holds_counts_where_the_file_has_none(party_of):
    party = party_of()
    assert budget_outlook(contract_of(LABEL_DP), party).fits
    Ledger(party.privacy.ledger, party="bank").set_cap("labels", Cap(epsilon=0.5))
    assert not budget_outlook(contract_of(LABEL_DP), party).fits


def test_a_refusal_names_what_helps(party_of):
    party = party_of(cap=2.5)
    spend(party, 2.0)
    with pytest.raises(
        BudgetExceeded, match=r"^privacy\.cap = 2\.5: a new run .* from 2 to 3 at delta 0, over the cap; raise"
    ) as caught:
        check_budget(contract_of(LABEL_DP), party)
    assert "raise privacy.cap in the party file, or agree on a smaller epsilon (a new contract)" in str(caught.value)
    with pytest.raises(BudgetExceeded, match=r"to inf at delta 0, over the cap; Gaussian noise .* give privacy\.delta"):
        check_budget(contract_of(GAUSSIAN), party)
    assert math.isfinite(budget_outlook(contract_of(GAUSSIAN), party_of(cap=2.5, delta=1e-5)).after)


def test_a_run_that_was_charged_is_not_charged_again(party_of, tmp_path):
    party, contract = party_of(cap=1.0), contract_of(LABEL_DP)
    spend(party, 1.0)
    folder = RunFolder.new(tmp_path / "runs", contract)
    with pytest.raises(BudgetExceeded, match=r"going on with this run .* pass --resume again"):
        check_budget(contract, party, folder)
    folder.note("defense", {"secret": "00", "spent": [{"type": "pure", "epsilon": 1.0}]})
    check_budget(contract, party, folder)


@pytest.mark.parametrize("entry", [LABEL_DP, GAUSSIAN])
def test_a_run_goes_on_with_the_labels_that_it_was_charged_for(party_of, tmp_path, entry):
    party, contract = party_of(), contract_of(entry)
    folder = RunFolder.new(tmp_path / "runs", contract)
    labels_N = torch.tensor([0, 1, 1, 0])

    def charge(target_N):
        defense = RunDefense.of(contract, folder)
        defense.spend(party.privacy, "bank", folder, SimpleNamespace(target_N=target_N), what="training")

    charge(labels_N)
    charge(labels_N.clone())
    with pytest.raises(DataError, match="the labels are not those that this run was charged for"):
        charge(1 - labels_N)
    assert len(Ledger(party.privacy.ledger, party="bank").entries("labels")) == 1


def test_an_auc_is_released_once_per_run_however_often_it_is_resumed(lay_out_job):
    job = lay_out_job(PARTIES, rows=300, evaluation__privacy={"epsilon": 20.0})
    job.change("bank", privacy={"cap": 20.0})
    first = job.run_all()
    again = job.run_all("run", "--resume")
    for party in PARTIES:
        assert again[party].found["private_releases"] == first[party].found["private_releases"]
    assert len(Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").entries("labels")) == 1


def test_a_run_over_the_cap_ends_before_a_peer_is_waited_for(lay_out_job):
    job = lay_out_job(PARTIES, rows=60, defense=[LABEL_DP])
    job.change("bank", privacy={"cap": 2.5})
    Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").spend("labels", PureDP(epsilon=2.0), what="an earlier run")
    files = (job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
    (problem,) = check_party_file(*files)["problems"]
    bank = job.start("bank")  # shop is not up
    assert bank.end() == 2
    assert problem in bank.error
    assert job.runs("bank") == []
    job.change("bank", privacy={"cap": 3.0})
    found = check_party_file(*files)
    assert found["problems"] == []
    assert found["budget"] == "label-DP epsilon of data set 'labels': 2 spent, 3 after this run, cap 3"


def test_a_damaged_ledger_is_a_problem_that_check_lists(lay_out_job):
    job = lay_out_job(PARTIES, rows=60, defense=[LABEL_DP])
    (job.home("bank") / "privacy-ledger.sqlite").write_bytes(b"no ledger" * 100)
    (problem,) = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")["problems"]
    assert "cannot be used" in problem
