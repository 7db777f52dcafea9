"""Promotion: a run is in use when all parties have promoted it, rollback undoes that, and the rule says which run is better."""

import errno
import json
import os
import shutil
import subprocess
import sys
from contextlib import chdir
from functools import partial
from pathlib import Path
from threading import Thread

import msgspec
import polars as pl
import pytest
from lanes import short_lane_of
from tiny import contract_values, error_of, files_of, lay_out, of_each
from typer.testing import CliRunner

from tallystick import predict
from tallystick.cli.app import app
from tallystick.cli.compare import EXIT_KEPT
from tallystick.config.contract import parse_contract
from tallystick.config.serving import ServingOptions
from tallystick.errors import ConfigError, TallystickError
from tallystick.job.handshake import Agreement, Greeting, PromotedHalf, ResumeState, shake_hands
from tallystick.job.process import run_process
from tallystick.job.promotion import decide_promotion
from tallystick.job.run_selection import complete_ids
from tallystick.job.versions import Versions, listed
from tallystick.network.channel import memory_channels
from tallystick.privacy.events import PureDP
from tallystick.privacy.ledger import BudgetExceeded, Ledger
from tallystick.report.compare import read_run
from tallystick.run_folder.ledger import with_ledger_named
from tallystick.serving.side import ServingSide
from tallystick.storage import ORIGIN, Origin, write_json
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
both = partial(of_each, PARTIES)


def versions(job, name):
    contract, party = files_of(job, name)
    return Versions(contract=contract, party=party)


def predicted(job, file, **chosen):
    """Return the run with which each side predicted, or its error."""

    def work(name):
        home, output = job.home(name), job.home(name) / file if name == "bank" else None
        found = predict(home / "contract.yaml", home / "party.yaml", output=output, run=chosen.get(name), watcher=Silent())
        return found["run"]

    return both(work)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Make two complete runs."""
    changes = {"training__epochs": 1, "evaluation__bootstrap": 0, "serving": {"ways": ["key"]}}
    job = lay_out(tmp_path_factory.mktemp("versions"), PARTIES, contract_values(PARTIES, **changes), rows=150)
    for _ in range(2):
        ended = both(lambda name: run_process(*files_of(job, name), watcher=Silent()))
        assert not any(isinstance(end, Exception) for end in ended.values()), ended
    yield job
    for party in job.started:
        party.close()


@pytest.fixture
def job(two_runs):
    """Copy them, with nothing decided or promoted yet."""
    for name in PARTIES:
        for folder in two_runs.runs(name):
            (folder / "decision.json").unlink(missing_ok=True)
        shutil.rmtree(two_runs.home(name) / "runs" / "promoted", ignore_errors=True)
    return two_runs


@pytest.fixture
def ids(job):
    """Return the runs' names, the older one first."""
    return complete_ids(*files_of(job, "bank"))[::-1]


def test_a_run_is_in_use_once_all_have_promoted_it_and_the_one_before_it_until_then(job, ids):
    old, new = ids
    assert predicted(job, "none.csv") == {"bank": new, "shop": new}  # the latest, because nobody promoted any
    versions(job, "bank").promote(old)
    said = str(predicted(job, "one.csv")["bank"])
    assert f"no run is promoted on all sides (newest: bank {old}, shop none)" in said
    versions(job, "shop").promote(old)
    assert predicted(job, "old.csv") == {"bank": old, "shop": old}
    versions(job, "bank").promote(new)  # the shop has not yet
    assert predicted(job, "still.csv") == {"bank": old, "shop": old}
    versions(job, "shop").promote(new)
    assert predicted(job, "new.csv") == {"bank": new, "shop": new}
    versions(job, "shop").roll_back()  # each side alone can undo it
    assert predicted(job, "back.csv") == {"bank": old, "shop": old}
    assert predicted(job, "named.csv", bank=new, shop=new) == {"bank": new, "shop": new}
    assert pl.read_csv(job.home("bank") / "still.csv")["run_id"].unique().to_list() == [old]


def test_another_half_under_the_name_of_an_agreed_run_is_refused(job, ids):
    new = ids[-1]
    for name in PARTIES:
        versions(job, name).promote(new)
    assert predicted(job, "first.csv") == {"bank": new, "shop": new}
    assert [each["agreed"] for each in listed(*files_of(job, "shop"))] == [True, False]
    # The shop promotes it again, as if for the first time, with another key, so its commitment differs from the one that was
    # agreed.
    of_shop = versions(job, "shop")
    of_shop.path.unlink()
    of_shop.promote(new)
    assert f"run {new} is not the version that was agreed" in str(predicted(job, "other.csv")["bank"])
    # A half other than the promoted one is refused at home, before anybody is called.
    before, after = (folder / "model.safetensors" for folder in job.runs("bank"))
    model = after.read_bytes()
    after.write_bytes(before.read_bytes())
    error = error_of(versions(job, "bank").intact)
    after.write_bytes(model)
    assert f"the promoted run {new} of bank is gone, or another than was promoted" in str(error)


def test_a_candidate_that_one_side_took_back_is_the_same_version_when_it_is_promoted_or_named_again(job, ids):
    old, new = ids
    bank, shop = (versions(job, name) for name in PARTIES)
    assert "bank has promoted no run; promote the one in use first" in str(error_of(lambda: bank.name_candidate(old)))
    for each in (bank, shop):
        each.promote(new)
        each.name_candidate(old)
    first = bank.candidate().commitment
    for each in (bank, shop):
        each.agree(old, "1" * 64, "peer")
    bank.drop_candidate()
    assert bank.name_candidate(old).commitment == first
    bank.drop_candidate()
    assert bank.drop_candidate() is None
    again = bank.promote(old)
    assert (again.commitment, again.version) == (first, "1" * 64)
    assert bank.name_candidate(new).commitment == bank.promoted()[1].commitment


def test_a_candidate_is_not_served_where_nothing_is_promoted_any_more(job, ids):
    old, new = ids
    shop = versions(job, "shop")
    shop.promote(old)
    shop.name_candidate(new)
    shop.roll_back()  # the latest complete run is the candidate
    contract, party = files_of(job, "shop")
    error = error_of(lambda: ServingSide.of(contract, party, table=None, run=None, watcher=Silent()))
    assert f"run {new} is only a candidate here" in str(error)
    assert ServingSide.of(contract, party, table=None, run=new, watcher=Silent()).first.run_id == new


def test_the_commands_list_promote_and_roll_back(job, ids):
    old, new = ids
    home = job.home("bank")

    def said(*arguments, code=0):
        ran = CliRunner().invoke(
            app, ["runs", str(home / "contract.yaml"), "--party", str(home / "party.yaml"), "--json", *arguments]
        )
        assert ran.exit_code == code, ran.output
        return json.loads(ran.stdout.splitlines()[-1])

    assert said("promote", old) == {"promoted": old}
    assert said("promote", new) == {"promoted": new}
    assert said("rollback") == {"withdrawn": new, "promoted": old}
    rows = said()["runs"]
    assert [(row["run_id"], row["promoted"], row["newest"]) for row in rows] == [(new, False, False), (old, True, True)]
    assert rows[0]["metric"] == "auc"
    assert 0 <= rows[0]["value"] <= 1
    assert "there is no such run" in said("promote", "0123456789abcdef", code=2)["error"]["message"]


def test_a_run_without_a_trained_model_is_neither_promoted_nor_made_the_candidate(job, ids):
    folder, of_bank = job.runs("bank")[-1], versions(job, "bank")
    model = folder / "model.safetensors"
    away = model.rename(folder / "away")
    errors = [error_of(change, name) for change in (of_bank.promote, of_bank.name_candidate) for name in (folder.name, ids[-1])]
    away.rename(model)
    assert ["holds no trained model" in str(error) for error in errors] == [True] * 4
    assert of_bank.promoted() == []
    assert of_bank.candidate() is None


def result_with(job, **metrics):
    """Write the newest result with these values of metrics."""
    found = read_run(job.runs("bank")[-1])
    joint = {**found.evaluation["joint"]}
    for name, value in metrics.items():
        joint[name] = {**joint[name], "value": value}
    return msgspec.structs.replace(found, evaluation={**found.evaluation, "joint": joint})


def under(result, **rule):
    """Return the result as of a run whose contract has this rule."""
    contract = contract_values(PARTIES, promotion=rule)
    text = json.dumps(parse_contract(contract).model_dump(mode="json"))
    return msgspec.structs.replace(result, contract=msgspec.structs.replace(result.contract, yaml=text))


def test_the_contracts_rule_decides_by_gain_and_by_calibration(job):
    old = result_with(job, auc=0.70, nll=0.60, ace=0.02)
    better, worse = result_with(job, auc=0.72, nll=0.61, ace=0.05), result_with(job, auc=0.69, nll=0.5, ace=0.02)
    assert decide_promotion(old, under(better)).promote
    assert not decide_promotion(old, under(worse)).promote
    assert not decide_promotion(old, under(better, least_gain=0.03)).promote
    assert not decide_promotion(old, under(better, metric="nll")).promote  # for which less is better
    assert decide_promotion(old, under(worse, metric="nll")).gain == pytest.approx(0.1)
    assert not decide_promotion(old, under(better, calibration_slack=0.01)).promote
    assert decide_promotion(old, under(better, calibration_slack=0.04)).promote
    with pytest.raises(ConfigError, match="decide at the label party"):
        decide_promotion(read_run(job.runs("shop")[0]), read_run(job.runs("shop")[1]))


def test_compare_ends_with_another_code_where_the_old_run_stays(job):
    folders = [str(path) for path in job.runs("bank")]
    old, new = (read_run(path) for path in job.runs("bank"))
    wanted = decide_promotion(old, new).promote
    orders, party = (folders, folders[::-1]), str(job.home("bank") / "party.yaml")
    ran = [CliRunner().invoke(app, ["compare", *order, "--decide", "--party", party, "--json"]) for order in orders]
    codes = [command.exit_code for command in ran]
    assert codes[0] == (0 if wanted else EXIT_KEPT)
    promoted = [json.loads(command.stdout.splitlines()[-1])["decision"]["promote"] for command in ran]
    assert promoted == [code == 0 for code in codes]
    assert 0 in codes


def entries(job):
    """Return the entries of the label party's ledger, the oldest first."""
    return Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").entries("labels")


def decided(job, *, rounds=1, without=(), **changes):
    """Return the exit codes of `compare --decide` between copies of the two runs, with another new contract, and its
    last line.
    """
    folders = []
    for path in job.runs("bank"):
        folders.append(job.home("bank") / "decided" / path.name)
        shutil.rmtree(folders[-1], ignore_errors=True)
        shutil.copytree(path, folders[-1], ignore=shutil.ignore_patterns("decision.json"))
    values = json.loads((folders[1] / "contract.json").read_text())
    for key, value in changes.items():
        section, name = key.split("__")
        values[section] = {**values[section], name: value}
    contract, origin = parse_contract(values), Origin.of(folders[1])
    (folders[1] / "contract.json").write_text(contract.canonical_json())
    facts = {"run": origin.run, "party": origin.party, "contract": contract.hash}
    write_json(folders[1] / ORIGIN, json.dumps(facts).encode(), origin=origin)
    for number in without:
        (folders[number] / "result.json").unlink()
    party = str(job.home("bank") / "party.yaml")
    arguments = ["compare", *map(str, folders), "--decide", "--party", party, "--json"]
    ran = [CliRunner().invoke(app, arguments) for _ in range(rounds)]
    return [command.exit_code for command in ran], ran[-1].output


def test_a_decision_and_a_promotion_by_exact_figures_are_entered_as_not_private_once(job, ids):
    old, new = ids
    before = len(entries(job))
    codes, _ = decided(job, rounds=2)
    assert codes[0] == codes[1]
    entered = entries(job)[before:]
    assert [each.what for each in entered] == [
        f"decision whether run {new} takes the place of run {old}, by exact labels of test rows"
    ]
    assert not entered[0].private
    versions(job, "bank").promote(old)
    versions(job, "shop").promote(old)  # has no labels
    assert [each.what for each in entries(job)[before + 1 :]] == [f"promotion of run {old}, chosen at bank"]


def test_whatever_run_people_choose_where_others_see_it_is_entered_as_not_private(job, ids):
    """Rolled back, tried as a candidate, named for a prediction or as a start: each shows which run somebody thought
    the better one.
    """
    old, new = ids
    bank, shop = versions(job, "bank"), versions(job, "shop")
    for each in (bank, shop):
        each.promote(old)
    before = len(entries(job))
    for each in (bank, shop):  # the shop has no labels
        each.name_candidate(new)
        each.drop_candidate()
        each.drop_candidate()  # there was none left
        each.promote(new)
        each.roll_back()
    assert predicted(job, "people.csv", bank=new, shop=new) == {"bank": new, "shop": new}
    assert predicted(job, "people-in-use.csv", bank=old, shop=old) == {
        "bank": old,
        "shop": old,
    }  # which its promotion has disclosed already
    for start in (new, old):
        ended = both(lambda name, start=start: run_process(*files_of(job, name), watcher=Silent(), start_from=start))
        assert not any(isinstance(end, Exception) for end in ended.values()), ended
    entered = [each for each in entries(job)[before:] if "chosen at" in each.what]
    assert not any(each.private for each in entered)
    assert [each.what.removesuffix(", chosen at bank") for each in entered] == [
        f"shadow of run {new}",
        f"shadow, ended, of run {new}",
        f"promotion of run {new}",
        f"rollback of run {new}",
        f"predict --run {new}",
        f"--start-from {new}",
    ]
    for name in PARTIES:  # the runs that were begun here
        for folder in job.runs(name)[2:]:
            shutil.rmtree(folder)


def _serving(party):
    return party.model_copy(update={"serving": ServingOptions(listen="127.0.0.1:8443", token_file="tokens")})


def test_a_named_run_is_entered_once_for_each_command_that_calls_and_never_for_one_that_is_refused_at_home(job, ids):
    old, new = ids
    for name in PARTIES:
        versions(job, name).promote(new)
    contract, party = files_of(job, "bank")
    ledger = Ledger(party.privacy.ledger, party="bank")
    before, spent = len(entries(job)), ledger.total("labels", delta=0.0)

    def entered():
        return [each.what.removesuffix(", chosen at bank") for each in entries(job)[before:]]

    bare = job.home("bank") / "bare.csv"
    bare.write_text("id\nsomebody\n")
    output = job.home("bank") / "refused.csv"

    def served(run, *, table=None):
        return ServingSide.of(contract, _serving(party), table=table, run=run, watcher=Silent()).first.run_id

    refused = [
        lambda: predict(contract, party, table=str(bare), output=output, run=old, watcher=Silent()),
        lambda: served(old, table=str(bare)),
        lambda: run_process(
            contract, party.model_copy(update={"table": party.table_at(str(bare))}), watcher=Silent(), start_from=old
        ),
        lambda: run_process(contract, party, watcher=Silent(), start_from=old, resume=True),
        lambda: served("no-such-run"),
    ]
    for each in refused:
        assert isinstance(error_of(each), TallystickError)
    assert entered() == []
    assert [served(new), served(old), served(old)] == [new, old, old]  # the newest promotion was entered when it was promoted
    for file in ("once.csv", "again.csv"):
        assert predicted(job, file, bank=old, shop=old) == {"bank": old, "shop": old}
    assert entered() == [f"serve --run {old}"] * 2 + [f"predict --run {old}"] * 2
    assert ledger.total("labels", delta=0.0) == spent


def test_under_a_cap_a_named_run_is_refused_before_anybody_is_called_unless_the_party_file_allows_it(job, ids):
    old, new = ids
    versions(job, "bank").promote(new)
    contract, party = files_of(job, "bank")
    before = len(entries(job))
    capped = _serving(party).model_copy(update={"privacy": party.privacy.model_copy(update={"cap": 1.0})})
    capped = with_ledger_named(capped)
    for each in (
        lambda: ServingSide.of(contract, capped, table=None, run=old, watcher=Silent()),
        lambda: predict(contract, capped, table=None, output=job.home("bank") / "capped.csv", run=old, watcher=Silent()),
    ):
        error = error_of(each)
        assert isinstance(error, BudgetExceeded)
        assert "privacy.allow: [promotion]" in str(error)
    assert len(entries(job)) == before
    assert ServingSide.of(contract, capped, table=None, run=new, watcher=Silent()).first.run_id == new


@pytest.mark.parametrize("gradients", ["sent", "none"])
@pytest.mark.parametrize(("word", "turns"), [(b"\x00", True), (b"\xff", False)])
@pytest.mark.parametrize("without", [(), (1,), (0,)], ids=["both", "new failed", "old failed"])
def test_a_decision_with_an_epsilon_is_charged_once_and_its_answer_may_be_turned(
    job, ids, monkeypatch, gradients, word, turns, without
):
    """This also holds if a run has no figures, because that depends on labels, too."""
    old, new = ids
    monkeypatch.setattr("tallystick.job.promotion.secrets.token_bytes", lambda count: word * count)
    before = entries(job)
    (code, again), said = decided(job, rounds=2, without=without, promotion__epsilon=2.0, training__gradients=gradients)
    assert code in (0, EXIT_KEPT), said
    better = decide_promotion(*(read_run(path) for path in job.runs("bank"))).promote
    exact = {(): better, (1,): False, (0,): True}[without]
    assert (code == 0) == (exact != turns)
    assert again == code
    (entered,) = entries(job)[len(before) :]
    assert entered.event == PureDP(epsilon=2.0)
    assert f"run {new} takes the place of run {old}" in entered.what
    assert "reversed with probability 0.119" in said


def test_without_gradients_a_decision_needs_an_epsilon(job):
    before = entries(job)
    (code,), said = decided(job, training__gradients="none")
    assert code == 2
    assert "agree on promotion.epsilon, or compare without --decide" in said
    assert entries(job) == before


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"metric": "rmse"}, "promotion.metric = "),
        ({"least_gain": "much"}, "promotion.least_gain"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule, said):
    with pytest.raises(ConfigError, match=said):
        parse_contract(contract_values(PARTIES, promotion=rule))


def test_a_label_party_that_names_a_run_which_was_not_promoted_here_is_refused():
    contract = parse_contract(contract_values(PARTIES))
    label, feature = memory_channels("bank", "shop", timeout_s=30)
    half = PromotedHalf(run_id="a" * 16, contract=contract.hash, commitment="0" * 64)
    state = ResumeState(command="predict", resume=True, run_id=half.run_id, trained=True, promoted=(half,))
    found = []
    thread = Thread(target=lambda: found.append(error_of(shake_hands, contract, state, feature)))
    thread.start()
    greeting = label.receive(Greeting)
    label.send(greeting)
    label.send(Agreement(run_id="b" * 16, align=False, resume_from=0, train=False, version="c" * 64))
    thread.join(30)
    assert "asks to use run bbbbbbbbbbbbbbbb as promoted; this side did not promote it" in str(found[0])


class Killed(BaseException):
    """Do nothing, as a killed process does."""


WRITES = ("open", "mkdir", "ftruncate", "pwrite", "fsync", "replace", "write")


class FullDisk:
    """Let the nth call that needs room on a disk fail, or kill the process there, and count the calls. Reading still works."""

    def __init__(self, patch, fails, killed=False):
        self.calls, self._fails, self._killed = 0, fails, killed
        for name in WRITES:
            patch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def _call(self, name, real, *given, **named):
        if name != "open" or given[1] & os.O_CREAT:
            self.calls += 1
            if self.calls == self._fails and self._killed:
                raise Killed
            if self.calls == self._fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), given[0] if isinstance(given[0], str) else None)
        return real(*given, **named)


def ran(job, *arguments):
    command = ["runs", "contract.yaml", "--party", "party.yaml", *arguments]
    with chdir(job.home("bank")):
        return CliRunner().invoke(app, command, catch_exceptions=True)


@pytest.mark.parametrize(
    "command", short_lane_of([["promote", "{1}"], ["shadow", "{1}"], ["shadow"], ["rollback"]], 2), ids=" ".join
)
def test_a_full_disk_is_one_line_and_leaves_what_was_promoted(job, ids, command, monkeypatch):
    """Any write may find no room."""
    arguments = [each.format(*ids) for each in command]
    begun = ran(job, "promote", ids[0])
    assert begun.exit_code == 0, begun.stderr
    if len(command) == 1:
        assert ran(job, "shadow", ids[1]).exit_code == 0
    path = versions(job, "bank").path
    before, fails, lines = path.read_bytes(), 0, 0
    while True:
        fails += 1
        path.write_bytes(before)
        with monkeypatch.context() as patch:
            disk = FullDisk(patch, fails)
            done = ran(job, *arguments)
        assert set(msgspec.json.decode(path.read_bytes())) <= {"promoted", "candidate", "withdrawn"}
        assert not list(path.parent.glob(".*.partial"))
        if done.exit_code == 0:  # what failed was not needed, such as an existing folder, or nothing failed
            if disk.calls < fails:
                break
            continue
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: "), done.stderr
        assert "No space left on device" in line
        lines += 1
    assert lines >= 4  # the lock's, the file's, its name's


@pytest.mark.parametrize("command", [["promote", "{1}"], ["rollback"]], ids=" ".join)
def test_a_kill_at_any_write_leaves_all_or_nothing_and_the_command_can_be_given_again(job, ids, command, monkeypatch):
    arguments = [each.format(*ids) for each in command]
    begun = ran(job, "promote", ids[0])
    assert begun.exit_code == 0, begun.stderr
    path = versions(job, "bank").path
    before, at = path.read_bytes(), 0
    done = None
    while done is None:
        at += 1
        with monkeypatch.context() as patch:
            FullDisk(patch, at, killed=True)
            patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process cleans nothing up
            try:
                done = ran(job, *arguments)
            except Killed:
                if path.read_bytes() != before:
                    path.write_bytes(before)  # all of it was there: the next write is tried from the same state
        assert listed(*files_of(job, "bank"))
    after = path.read_bytes()
    path.write_bytes(before)
    assert ran(job, *arguments).exit_code == 0  # with whatever the kills left behind
    assert [set(msgspec.json.decode(each)) for each in (after, path.read_bytes())] == [{"promoted", "candidate", "withdrawn"}] * 2
    assert at > 4


KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.errors import ConfigError
from tallystick.job.versions import Versions
home, old, new = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
versions = Versions(contract=load_contract(home / "contract.yaml"), party=load_party(home / "party.yaml"))

def child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]

def dies_at(moment):
    counts = [0]
    def hook(event, arguments):
        if event in ("os.rename", "os.remove", "os.mkdir", "os.truncate", "fcntl.flock") or (event == "open" and
                arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or event == "sqlite3.connect":
            counts[0] += 1
            if counts[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def killed(moment):
    dies_at(moment)
    versions.promote(new)

def again():
    try:
        versions.promote(new)
    except ConfigError as error:
        assert "is the newest promotion" in str(error), error

seen = []
versions.promote(old)
for moment in range(1, 200):
    ended = child(lambda: killed(moment))
    seen.append([each.run_id for each in versions.promoted()])
    assert child(again) == 0
    assert [each.run_id for each in versions.promoted()] == [new, old]
    versions.roll_back()
    if ended == 0:
        break
    assert os.WIFSIGNALED(ended), ended
print(json.dumps(seen))
"""


@pytest.mark.long
def test_a_promotion_that_is_killed_at_any_moment_is_made_or_not_and_can_be_made_again(job, ids):
    """Killed just before each change of a file: the newest promotion is the old or the new one, and the next command
    ends well.
    """
    old, new = ids
    charged = len(Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").entries("labels"))
    command = [sys.executable, "-c", KILLED, str(job.home("bank")), old, new]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen[-1] == [new, old]
    assert [old] in seen
    assert all(each in ([old], [new, old]) for each in seen)
    made = sum(each == [new, old] for each in seen)
    entries = Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").entries("labels")
    assert len(entries) - charged >= len(seen) + made  # every promotion that was seen had been entered, and so had each rollback


def test_under_a_cap_neither_is_made_unless_it_is_allowed(job, ids):
    """This test is last, because the ledger keeps the cap."""
    before = entries(job)
    job.change("bank", privacy={"cap": 100.0})
    try:
        (code,), said = decided(job)
        assert code == 2
        assert "privacy.allow: [promotion]" in said
        assert "privacy.allow: [promotion]" in str(error_of(versions(job, "bank").promote, ids[0]))
        assert versions(job, "bank").promoted() == []
        assert entries(job) == before
        job.change("bank", privacy={"allow": ["promotion"], "cap": 100.0})
        assert decided(job)[0][0] in (0, EXIT_KEPT)
        versions(job, "bank").promote(ids[0])
    finally:
        job.change("bank", privacy=None)
