"""Before a run its cost is shown with what is spent already, and a run over the cap is refused before any peer is called."""

import json
import math
import re
import shutil
from functools import partial

import polars as pl
import pytest
import torch
from sides import Sides
from test_chosen_runs import both
from tiny import columns, contract_values, files_of, tables
from typer.testing import CliRunner

from tallystick.check import check_party_file
from tallystick.cli.app import app
from tallystick.config.contract import load_contract, parse_contract
from tallystick.config.party import load_party, parse_party
from tallystick.config.sections import PrivateRelease
from tallystick.defenses.defense_table import DEFENSES
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.evaluation.private.result import NothingReleased
from tallystick.job.phases.budget import Ahead, budget_outlooks
from tallystick.job.phases.budget import check_budget as check_ahead
from tallystick.job.phases.defense import RunDefense, key_stream
from tallystick.job.phases.release import release_auc
from tallystick.job.preflight import require
from tallystick.job.process import run_process
from tallystick.privacy.events import PureDP
from tallystick.privacy.ledger import BudgetExceeded, Cap, Ledger
from tallystick.run_folder import ledger as ledgers
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger, known_ledger, with_ledger_named
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
LABEL_DP = {"method": "label-dp", "epsilon": 1.0}
GAUSSIAN = {"method": "gaussian-labels", "epsilon": 1.0, "delta": 1e-5}
AUC = {"epsilon": 0.5}


def contract_of(*defense, release=None):
    return parse_contract(contract_values(PARTIES, defense=list(defense), evaluation__privacy=release))


@pytest.fixture
def party_of(tmp_path):
    Ledger.create(tmp_path / "privacy-ledger.sqlite", party="bank")

    def make(name="bank", *, weight=None, **privacy):
        table = {"table": {"path": "table.csv"}}
        values = {"party": name, **table, **columns(PARTIES)[name], "weight": weight, "privacy": privacy}
        return with_ledger_named(parse_party(values, folder=tmp_path, source=name))

    return make


def budget_outlook(contract, party, folder=None, **given):
    found = budget_outlooks(Ahead(contract=contract, party=party, folder=folder, **given))
    assert len(found) <= 1
    return found[0] if found else None


def check_budget(contract, party, folder=None, **given):
    check_ahead(Ahead(contract=contract, party=party, folder=folder, **given))


def spend(party, epsilon):
    Ledger(party.privacy.ledger, party="bank").spend("labels", PureDP(epsilon=epsilon), what="an earlier run")


def test_spent_this_run_and_the_cap(party_of):
    party = party_of(cap=4.0)
    found = budget_outlook(contract_of(LABEL_DP, release=AUC), party)
    assert (found.spent, found.after, found.cap) == (0.0, 1.5, Cap(epsilon=4.0))
    assert Ledger(party.privacy.ledger, party="bank").head()[0] == 0  # a look leaves nothing behind
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
    folder = RunFolder.new(tmp_path / "runs", contract, "bank", key=None)
    with pytest.raises(BudgetExceeded, match=r"going on with this run .* pass --resume again"):
        check_budget(contract, party, folder)
    folder.note("defense", {"secret": "00", "spent": [{"type": "pure", "epsilon": 1.0}]})
    check_budget(contract, party, folder)


@pytest.mark.parametrize("entry", [LABEL_DP, GAUSSIAN])
def test_a_run_goes_on_with_the_labels_that_it_was_charged_for(party_of, tmp_path, entry):
    party, contract = party_of(), contract_of(entry)
    folder = RunFolder.new(tmp_path / "runs", contract, "bank", key=None)
    labels_N = torch.tensor([0, 1, 1, 0])

    def charge(target_N):
        defense = RunDefense.of(contract, folder)
        defense.spend(contract, party, folder, target_N, what="training")

    charge(labels_N)
    charge(labels_N.clone())
    with pytest.raises(DataError, match="the labels are not those that this run was charged for"):
        charge(1 - labels_N)
    assert len(Ledger(party.privacy.ledger, party="bank").entries("labels")) == 1


@pytest.mark.parametrize("entry", [LABEL_DP, GAUSSIAN])
def test_a_copy_that_goes_on_too_releases_the_same_replaced_labels_and_is_charged_once(party_of, tmp_path, entry):
    """What a peer sends changes no flip. Noise that depends on gradients has no ε for a run, so none is charged."""
    party, contract = party_of(), contract_of(entry)
    folder, labels_N = RunFolder.new(tmp_path / "runs", contract, "bank", key=None), torch.tensor([0, 1, 1, 0] * 50)
    defense = RunDefense.of(contract, folder)
    defense.spend(contract, party, folder, labels_N, what="training")
    shutil.copytree(folder.path, folder.path.with_name("copy"))
    copy = RunFolder.open(folder.path.with_name("copy"))
    of_copy = RunDefense.of(contract, copy)
    of_copy.spend(contract, party, copy, labels_N, what="training")
    first, second = (
        each.defenses.defend_labels(labels_N, 2, random_bytes=key_stream(each.secret, b"labels")) for each in (defense, of_copy)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, labels_N)  # with epsilon 1 all are kept with a chance of .731^200, below 1e-27
    assert len(Ledger(party.privacy.ledger, party="bank").entries("labels")) == 1


@pytest.mark.parametrize("method", [name for name, each in DEFENSES.items() if each.stage in ("gradients", "penalties")])
def test_no_defence_of_steps_claims_an_epsilon_for_a_run(method):
    """The noise depends on the gradients that it hides. A copy that goes on would release other noise, and only one is
    charged.
    """
    defense = DEFENSES[method]
    assert defense(**defense.usual).guarantee().event is None


@pytest.mark.parametrize("changed", ["a linked row", "a row without a partner's row", "nothing"])
def test_a_label_that_was_corrected_before_a_resume_is_seen_at_home(changed, tmp_path, monkeypatch):
    """A refusal after the greeting would show that a label has changed."""
    frames = tables(PARTIES, rows=160)
    sides = Sides(tmp_path, monkeypatch, frames, defense=[LABEL_DP], training__checkpoint_every=2, training__batch_size=64)
    assert "stopped here" in str(sides.run(stop_at=3))
    linked = pl.col("id").is_in(frames["shop"]["id"].implode())
    where = {"a linked row": linked, "a row without a partner's row": ~linked, "nothing": pl.lit(value=False)}[changed]
    number = frames["bank"].select(where.fill_null(value=False).arg_max()).item() if changed != "nothing" else -1
    corrected = pl.when(pl.int_range(pl.len()) == number).then(1 - pl.col("y")).otherwise(pl.col("y"))
    sides.tables({**frames, "bank": frames["bank"].with_columns(y=corrected)})
    error = sides.run(resume=True)
    (_, sent) = sides.heard[-1]
    if changed == "a linked row":
        assert "the labels are not those that this run was charged for" in str(error)
        assert sent is None
    else:
        assert error is None
        assert sent


def test_exact_labels_that_changed_within_a_run_are_entered_again(party_of, tmp_path):
    party, contract = party_of(), contract_of()
    folder, labels_N = RunFolder.new(tmp_path / "runs", contract, "bank", key=None), torch.tensor([0, 1, 1, 0])
    for target_N, entries in ((labels_N, 1), (labels_N, 1), (1 - labels_N, 2)):
        RunDefense.of(contract, folder).spend(contract, party, folder, target_N, what="training")
        assert len(Ledger(party.privacy.ledger, party="bank").not_private("labels")) == entries


EXACT = {
    "gradients": {},
    "weights": {"defense": [LABEL_DP]},
    "share_metrics": {"defense": [LABEL_DP], "evaluation__share_metrics": ["auc"]},
    "importance": {"evaluation__importance": {"feature_columns": "both"}},
}


@pytest.mark.parametrize("use", EXACT)
def test_under_a_cap_what_depends_on_exact_labels_is_refused_unless_it_is_allowed_by_name(use, party_of, tmp_path):
    """It is refused even if far less than the cap is spent, because no epsilon bounds it."""
    contract = parse_contract(contract_values(PARTIES, **EXACT[use]))
    beside = ["gradients"] if use == "importance" else []
    party_of = partial(party_of, weight="weight") if use == "weights" else party_of
    party = party_of(cap=100.0, allow=beside)
    says = rf"privacy\.cap = 100: a new run of this contract would send .*: {use} \(.*privacy\.allow: \[.*{use}\]"
    with pytest.raises(BudgetExceeded, match=says):
        check_budget(contract, party)
    check_budget(contract, party_of(cap=100.0, allow=[*beside, use]))
    check_budget(contract, party_of())
    Ledger(party.privacy.ledger, party="bank").set_cap("labels", Cap(epsilon=100.0))  # by an earlier party file
    with pytest.raises(BudgetExceeded, match=use):
        check_budget(contract, party_of(allow=beside))


def test_under_a_cap_a_search_and_scores_are_refused_too(party_of):
    search = parse_contract(contract_values(PARTIES, tuning={"keys": {"training.epochs": {"values": [1, 2]}}}))
    with pytest.raises(BudgetExceeded, match=r"2 trials.*tuning \("):
        check_budget(search, party_of(cap=1.0), trials=2)
    union = parse_contract(contract_values(PARTIES, alignment__method="union"))
    with pytest.raises(BudgetExceeded, match=r"a prediction .*scores \("):
        check_budget(union, party_of(cap=1.0), predicts=True)
    check_budget(union, party_of(cap=1.0, allow=["scores"]), predicts=True)


def test_what_sends_nothing_of_exact_labels_passes_under_a_cap(party_of):
    for changes in ({"training__gradients": "none"}, {"defense": [LABEL_DP]}):
        check_budget(parse_contract(contract_values(PARTIES, **changes)), party_of(cap=1.0))


@pytest.mark.parametrize("allow", [[], ["gradients"]])
def test_a_cap_stops_a_run_without_a_defence_before_anybody_is_called(allow, lay_out_job):
    job = lay_out_job(PARTIES, rows=60)
    Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").spend("labels", PureDP(epsilon=1.0), what="an earlier run")
    job.change("bank", privacy={"cap": 1.0, "allow": allow})
    found = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
    if allow:
        assert found["problems"] == []
        return
    (problem,) = found["problems"]
    assert "gradients (a training without a defence that replaces labels)" in problem
    bank = job.start("bank")  # shop is not up
    assert bank.end() == 2
    assert problem in bank.error
    assert job.runs("bank") == []


def test_weights_beside_replaced_labels_are_entered_as_not_private_and_stand_in_the_report(lay_out_job):
    job = lay_out_job(PARTIES, rows=200, defense=[LABEL_DP])
    job.change("bank", weight="weight")
    ledger = Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank")
    said = "weights of rows, which shape gradients as they are where a defence replaces labels"
    both(lambda name: run_process(*files_of(job, name), watcher=Silent()))
    (entry,) = ledger.not_private("labels")
    assert entry.what.endswith(said)
    assert ledger.total("labels") == 1.0
    (folder,) = job.runs("bank")
    privacy = json.loads((folder / "result.json").read_text())["sections"]["privacy"]
    assert privacy["not_private"] == [f"{said}: no ε holds for a label that its row's weight reveals"]


def test_a_release_that_left_nothing_is_known_to_the_run_folder(party_of, tmp_path):
    party, folder = party_of(), RunFolder.new(tmp_path / "runs", contract_of(), "bank", key=None)
    shutil.copy(party.privacy.ledger, tmp_path / "before.sqlite")
    with pytest.raises(NothingReleased):  # at epsilon 100 the noise is 0 except with a chance below 1e-40
        release_auc(PrivateRelease(epsilon=100.0), party, folder, torch.zeros(40), torch.zeros(40))
    shutil.copy(tmp_path / "before.sqlite", party.privacy.ledger)
    with pytest.raises(StorageError, match="an older copy of itself"):
        known_ledger(party)


def test_an_auc_is_released_once_per_run_however_often_it_is_resumed(lay_out_job):
    job = lay_out_job(PARTIES, rows=300, evaluation__privacy={"epsilon": 20.0})
    job.change("bank", privacy={"cap": 20.0, "allow": ["gradients"]})
    first = job.run_all()
    again = job.run_all("run", "--resume")
    for party in PARTIES:
        assert again[party].found["private_releases"] == first[party].found["private_releases"]
    ledger = Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank")
    training, released = ledger.entries("labels")
    assert ledger.not_private() == [training]
    assert training.what.endswith("exact labels")
    assert ledger.total("labels") == released.event.epsilon == 20.0
    for party in PARTIES:  # the report says so before it says what was spent
        (not_private, *_) = again[party].found["not_private"]
        assert "exact labels of the training and validation rows" in not_private
    page = (job.runs("bank")[0] / "report.html").read_text()
    assert page.index("<b>Not private:</b>") < page.index("Spent: ε = 20")


def ledger_command(party_file, *arguments):
    return CliRunner().invoke(app, ["ledger", str(party_file), "--json", *arguments])


def test_a_ledger_that_is_gone_replaced_or_older_is_refused_before_anybody_is_called(lay_out_job):
    job = lay_out_job(PARTIES, rows=200, defense=[LABEL_DP], evaluation__own_columns_baseline=False)
    home = job.home("bank")
    path, party = home / "privacy-ledger.sqlite", home / "party.yaml"
    empty = path.read_bytes()
    job.run_all()

    def refused(says):
        (problem,) = check_party_file(party, home / "contract.yaml")["problems"]
        bank = job.start("bank")
        assert bank.end() == 3
        assert problem in bank.error
        assert says in problem
        assert "restore the ledger as it was after the last release" in problem
        assert len(job.runs("bank")) == 1

    identity = Ledger(path, party="bank").identity
    kept = path.rename(home / "kept")
    refused(f"{path} is gone: {job.runs('bank')[0] / 'ledger.json'} knows of it")
    done = ledger_command(party, "--create")
    assert done.exit_code == 3
    assert "is gone" in done.stderr
    lender = load_party(party).model_copy(update={"party": "lender"})  # another contract may use another name for the party
    with pytest.raises(StorageError, match="is gone"):
        known_ledger(lender)
    path.write_bytes(empty)
    refused("is an older copy of itself")
    with pytest.raises(StorageError, match="is an older copy of itself"):
        known_ledger(lender)
    path.unlink()
    other = Ledger.create(path, party="bank").identity
    refused(f"is {other}, but")
    shutil.rmtree(home / "runs")
    job.change("bank", privacy={"identity": identity})
    with pytest.raises(StorageError, match=rf"is {other}, not privacy\.identity = {identity}"):
        known_ledger(load_party(party))
    path.unlink()
    with pytest.raises(
        StorageError,
        match=r"is gone: privacy\.identity in the party file knows of it\. Does privacy\.ledger name the right file\?",
    ):
        known_ledger(load_party(party))
    kept.rename(path)
    assert known_ledger(load_party(party)).total("labels") == 1.0


def test_a_ledger_is_made_by_a_command_and_never_by_a_job(lay_out_job):
    job = lay_out_job(PARTIES, rows=60)
    path, party = job.home("bank") / "privacy-ledger.sqlite", job.home("bank") / "party.yaml"
    path.unlink()
    bank = job.start("bank")
    assert bank.end() == 2
    assert f"privacy.ledger = {path}: there is no ledger; `tallystick ledger PARTY.yaml --create` makes it" in bank.error
    assert not path.exists()
    made = json.loads(ledger_command(party, "--create").stdout)
    assert made == {"ledger": str(path), "identity": Ledger(path, party="bank").identity}
    again = ledger_command(party, "--create")
    assert again.exit_code == 2
    assert "exists already; a ledger is created once" in again.stderr


def test_a_run_killed_between_charge_and_note_is_charged_twice_and_never_less(party_of, tmp_path):
    """A charge leaves two notes in the run folder. The one that says what was spent gets lost."""
    party, contract = party_of(), contract_of(LABEL_DP)
    folder = RunFolder.new(tmp_path / "runs", contract, "bank", key=None)
    rows = torch.tensor([0, 1, 1, 0])
    defense = RunDefense.of(contract, folder)
    before = (folder.path / "defense.json").read_bytes()
    defense.spend(contract, party, folder, rows, what="training")
    (folder.path / "defense.json").write_bytes(before)
    defense.spend(contract, party, folder, rows, what="training")
    assert known_ledger(party).total("labels") == 2.0


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


def test_a_cap_whose_ledger_nobody_names_is_refused_by_check_and_by_a_run(lay_out_job):
    """In another folder with other runs a new ledger, and so the cap, would begin at 0."""
    job = lay_out_job(PARTIES, rows=60, defense=[LABEL_DP])
    files = (job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
    contract, identity = load_contract(files[1]), Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").identity
    assert check_party_file(*files)["problems"] == []
    job.change("bank", privacy={"cap": 2.5, "identity": None})
    (problem,) = check_party_file(*files)["problems"]
    assert problem.startswith("privacy.cap = 2.5: ")
    assert problem.endswith(f"put identity: {identity} under privacy")
    with pytest.raises(ConfigError, match=re.escape(problem)):
        require(contract, load_party(files[0]), say=print)
    job.change("bank", privacy={"cap": 2.5})
    assert check_party_file(*files)["problems"] == []
    job.change("bank", privacy={"cap": 2.5, "identity": identity, "ledger": "other.sqlite"}, runs="others")
    with pytest.raises(StorageError, match=r"other.sqlite is gone: privacy.identity in the party file knows of it"):
        create_ledger(load_party(files[0]))
    Ledger.create(job.home("bank") / "other.sqlite", party="bank")
    with pytest.raises(StorageError, match=f"not privacy.identity = {identity}"):
        require(contract, load_party(files[0]), say=print)


@pytest.mark.parametrize("command", ["charged", "known_budget", "takes_up"])
def test_whatever_asks_a_ledger_under_a_cap_wants_its_name(tmp_path, command):
    """This holds not only for `run`: promotion, decisions, overlap, counted scores and noise use the same functions."""
    Ledger.create(tmp_path / "privacy-ledger.sqlite", party="bank")
    values = {"party": "bank", "table": {"path": "table.csv"}, "runs": "runs", "privacy": {"cap": 1.0}}
    party = parse_party(values, folder=tmp_path, source="bank")
    folder = RunFolder.new(party.runs, contract_of(), "bank", key=None)

    def asked():
        if command == "known_budget":
            return ledgers.known_budget(party, "")
        if command == "takes_up":
            return ledgers.takes_up(party, folder, "labels")
        with ledgers.charged(party, folder, ""):
            return None

    with pytest.raises(ConfigError, match=r"privacy\.cap = 1: the party file does not say which ledger"):
        asked()
    party = with_ledger_named(party)
    asked()


def test_a_damaged_ledger_is_a_problem_that_check_lists(lay_out_job):
    job = lay_out_job(PARTIES, rows=60, defense=[LABEL_DP])
    (job.home("bank") / "privacy-ledger.sqlite").write_bytes(b"no ledger" * 100)
    (problem,) = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")["problems"]
    assert "cannot be used" in problem
