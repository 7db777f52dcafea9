"""tallystick audit of a recorded run, and of a contract on one's own data, and its messages about what it cannot use."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
import yaml
from engines import InThisProcess
from tiny import (
    PATIENCE_S,
    columns,
    contract_values,
    few_column_attacks,
    one_draw_of_known_rows,
    seed_system,
    short_trainings,
    tables,
)
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.config.compute import ComputeKeys
from tallystick.config.contract import load_contract, parse_contract
from tallystick.config.party import load_party
from tallystick.defenses.defense_table import DEFENSES
from tallystick.errors import ComputeError, ConfigError, Diverged
from tallystick.results import read_result
from tallystick.simulation import simulate
from tallystick.tables.lazy_table import LazyTable
from tallystick.trials import runs
from tallystick.trials.partner import SimulatedPartner
from tallystick.trials.trials import candidate_trials, estimate, parse_sweep

PARTIES = ("bank", "shop")


@pytest.fixture(autouse=True, scope="module")
def _short_trainings():
    with pytest.MonkeyPatch.context() as patch:
        short_trainings(patch)
        one_draw_of_known_rows(patch)
        yield


def call(*arguments):
    done = CliRunner().invoke(app, ["audit", *(str(argument) for argument in arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def found(done):
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# --- a recorded run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    contract = contract_values(PARTIES, audit=True, training__epochs=2)
    with pytest.MonkeyPatch.context() as patch:
        seed_system(patch, seed=1)  # a run of the test's own is another run
        few_column_attacks(patch)
        simulate(contract, tables(PARTIES, rows=400), columns(PARTIES), folder=folder)
    return folder


@pytest.fixture
def folders(recorded, tmp_path):
    """Copy both parties' run folders, to be damaged."""
    shutil.copytree(recorded, tmp_path / "runs")
    return {party: next((tmp_path / "runs" / party).glob("tiny-*")) for party in PARTIES}


def test_a_recorded_run_is_attacked_again(folders):
    before = read_result((folders["bank"] / "result.json").read_bytes())
    values = found(call(folders["bank"], "--json", "--progress", "none"))
    assert [attack["auc"] for attack in values["attacks"]] == [attack.auc for attack in before.sections.leakage.attacks]
    after = found(call(folders["bank"], "--auxiliary-labels", 20, "--json", "--progress", "none"))
    shown = read_result((folders["bank"] / "result.json").read_bytes())
    assert [attack.auc for attack in shown.sections.leakage.attacks] == [attack["auc"] for attack in after["attacks"]]
    assert "20 labels" in " ".join(attack["view"] for attack in after["attacks"])
    assert "20 labels" in (folders["bank"] / "report.html").read_text()
    people = call(folders["bank"], "--progress", "none")
    assert "direction-1" in people.stdout
    said = people.stdout.replace("\n", "")
    assert f"report: {folders['bank'] / 'report.html'}".replace(" ", "") in said.replace(" ", "")
    assert "this audit has replaced the former one" in " ".join(people.stdout.split())


def view(folders):
    return sorted((folders["bank"] / "view" / "shop").iterdir())


def empty_view(folders):
    shutil.rmtree(folders["bank"] / "view" / "shop")


def truncated_view(folders):
    path = next(path for path in view(folders) if path.name.startswith("epoch-"))
    path.write_bytes(path.read_bytes()[:-100])


def truncated_sums(folders):
    path = next(path for path in view(folders) if path.name.startswith("rows-"))
    path.write_bytes(path.read_bytes()[:-100])


def foreign_contract(folders):
    path = folders["bank"] / "contract.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"seed": 99}))


def truncated_labels(folders):
    path = folders["bank"] / "view" / "labels.safetensors"
    path.write_bytes(path.read_bytes()[:40])


def no_contract(folders):
    (folders["bank"] / "contract.json").unlink()


def contract_of_nonsense(folders):
    (folders["bank"] / "contract.json").write_text('{"name": 3}')


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (empty_view, "holds no recorded step; run the contract until"),
        (truncated_view, "is cut short or not a recorded view"),
        (truncated_sums, "is cut short or holds no sums per row"),
        (truncated_labels, "is cut short or holds no labels"),
        (no_contract, "is not a run folder (it holds no contract.json)"),
        (contract_of_nonsense, "name = 3"),
    ],
)
def test_a_folder_that_cannot_be_audited_is_named_and_left_as_it_is(folders, damage, says):
    report = (folders["bank"] / "report.html").read_bytes()
    damage(folders)
    done = call(folders["bank"], "--json", "--progress", "none")
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("error: ") == 1
    assert (folders["bank"] / "report.html").read_bytes() == report


def test_a_folder_of_another_contract_than_its_seal_says_is_damaged(folders):
    foreign_contract(folders)
    done = call(folders["bank"], "--json", "--progress", "none")
    assert done.exit_code == 3
    assert re.search("contract.json is damaged: it is contract [0-9a-f]{8}; this run is of", done.stderr)


@pytest.mark.long
def test_a_view_of_another_run_of_the_same_contract_is_refused(folders, recorded, tmp_path):
    contract = contract_values(PARTIES, audit=True, training__epochs=2)
    simulate(contract, tables(PARTIES, rows=400), columns(PARTIES), folder=tmp_path / "other")
    (other,) = (tmp_path / "other" / "bank").glob("tiny-*")
    shutil.copy(view(folders)[0], other / "view" / "shop" / view(folders)[0].name)
    done = call(other, "--progress", "none")
    assert done.exit_code == 2
    assert " of run " in done.stderr
    assert "put the right one back" in done.stderr


def test_a_feature_partys_folder_is_audited_for_its_columns(folders):
    found = json.loads(call(folders["shop"], "--known-rows", "20", "--json", "--progress", "none").stdout)
    assert {column["known"] for column in found["features"]["columns"]} == {0, 20}
    assert "attacks" not in found
    people = call(folders["shop"], "--known-rows", "0", "--progress", "none")
    assert "bank, knowing no row," in " ".join(people.stdout.split())
    wrong = call(folders["shop"], "--known-rows", "many")
    assert wrong.exit_code == 2
    assert "--known-rows many: must be whole numbers" in wrong.stderr


def test_a_feature_partys_folder_without_its_columns_holds_no_labels(folders):
    (folders["shop"] / "view" / "columns.safetensors").unlink()
    done = call(folders["shop"])
    assert done.exit_code == 2
    assert "only the label party's folder" in done.stderr


def test_options_of_a_contract_do_not_go_with_a_folder(folders):
    done = call(folders["bank"], "--seeds", 2, "--sweep", "marvell=1")
    assert done.exit_code == 2
    assert "--sweep, --seeds: only works with a contract" in done.stderr


# --- a contract, on one's own data


@pytest.fixture
def home(tmp_path):
    return home_in(tmp_path)


def home_in(folder):
    """Return the label party's files. Its table has a column that gives much away."""
    frame = tables(PARTIES, rows=900)["bank"]
    frame = frame.with_columns(told=pl.col("y") + pl.Series(range(frame.height)) % 7 / 4)
    frame.write_parquet(folder / "table.parquet")
    contract = contract_values(PARTIES, training__batch_size=128, model__hidden=[8, 8], model__cut_after=1)
    party = {
        "party": "bank",
        "table": {"path": "table.parquet"},
        "keys": {"id": "id"},
        "label": "y",
        "features": {"numeric": ["x", "told", "noise"], "categorical": ["kind"]},
        "threads": 1,
    }
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    (folder / "party.yaml").write_text(yaml.safe_dump(party))
    return folder


def swept(home, *arguments):
    return call(home / "contract.yaml", "--party", home / "party.yaml", "--progress", "none", *arguments)


def change(path, **values):
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """Return the home of a sweep, and its findings."""
    home = home_in(tmp_path_factory.mktemp("tried"))
    sweep = ("--sweep", "marvell=4", "--sweep", "label-dp=0.5")
    return home, found(swept(home, "--split", "told,kind", "--seeds", 2, "--rows", 500, *sweep, "--json"))


def trials_of(values):
    return {(trial["defense"], trial["strength"]): trial for trial in values["sweep"]["trials"]}


@pytest.mark.long
def test_a_sweep_tries_each_defence_with_each_seed(tried):
    trials = trials_of(tried[1])
    assert list(trials) == [("none", ""), ("marvell", "4"), ("label-dp", "0.5")]
    assert {trial["seeds"] for trial in trials.values()} == {2}
    for trial in trials.values():
        assert trial["utility"]["low"] <= trial["utility"]["mean"] <= trial["utility"]["high"]
    assert trials["label-dp", "0.5"]["guarantee"].startswith("0.5-label-DP")
    assert trials["marvell", "4"]["guarantee"].startswith("no formal guarantee")


@pytest.mark.long
def test_a_sweep_sets_utility_beside_leakage(tried):
    values, trials = tried[1], trials_of(tried[1])

    def leak(defense, attack):
        return next(found["auc"]["mean"] for found in trials[defense]["leaks"] if found["attack"] == attack)

    # Balanced labels, so a direction is needed; noise and flips cover it.
    assert leak(("none", ""), "direction-5") > 0.95
    assert leak(("marvell", "4"), "direction-5") < 0.75
    assert leak(("label-dp", "0.5"), "direction-5") < 0.8
    assert values["sweep"]["local_baseline"]["mean"] < trials["none", ""]["utility"]["mean"]
    assert trials["none", ""]["columns"]["mean"] > 0.5  # two columns, and nothing hides them
    assert values["sweep"]["known"] == 200


@pytest.mark.long
def test_a_sweep_leaves_a_page_and_its_numbers_and_no_ledger_or_view(tried):
    home, values = tried
    (folder,) = (home / "runs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "result.json"]
    assert {path.name for path in home.iterdir()} == {"contract.yaml", "party.yaml", "table.parquet", "runs"}
    page = (folder / "report.html").read_text()
    assert "What would a defence cost?" in page
    assert "stand in for shop&#39;s (told, kind)" in page
    assert "Metrics stay with the label party" not in page
    assert read_result((folder / "result.json").read_bytes()).to_dict()["sections"]["sweep"] == values["sweep"]


@pytest.mark.long
def test_giving_all_columns_away_is_noted(home):
    sweep = ("--sweep", "cut-width=1", "--sweep", "no-gradients=8")
    values = found(swept(home, "--split", "x,told,noise,kind", "--seeds", 1, "--rows", 300, *sweep, "--json"))
    assert values["notes"] == ["All columns went to shop: bank alone has none left, and can only guess without joining."]
    none, narrow, once = values["sweep"]["trials"]
    assert none["columns"]["mean"] > 2 * narrow["columns"]["mean"]  # four columns, one number
    assert narrow["guarantee"] == "no formal guarantee: 1 number per row crosses the cut"
    assert once["leaks"] == []
    assert once["guarantee"] == "nothing that depends on a label is sent, so no attack can read one"
    assert once["columns"]["mean"] > narrow["columns"]["mean"]


@pytest.mark.long
def test_the_contracts_own_defences_are_tried_and_one_seed_has_intervals(home):
    change(home / "contract.yaml", defense=[{"method": "mixpro"}, {"method": "marvell", "power": 2.0}])
    values = found(swept(home, "--share", "0.5", "--seeds", 1, "--rows", 300, "--sweep", "cut-after=2", "--json"))
    trials = values["sweep"]["trials"]
    assert [(trial["defense"], trial["strength"]) for trial in trials] == [
        ("none", ""),
        ("the contract's", "mixpro + marvell"),
        ("cut-after", "2"),
    ]
    assert trials[2]["guarantee"] == "no formal guarantee: layer adjustment, 2 of 2 hidden layers below the cut"
    for trial in trials:
        assert trial["utility"]["low"] < trial["utility"]["high"]
        assert all(leak["auc"]["low"] <= leak["auc"]["high"] for leak in trial["leaks"])


def test_a_sweep_takes_every_method_at_its_usual_strength(home):
    contract, party = load_contract(home / "contract.yaml"), load_party(home / "party.yaml")
    table = LazyTable.of(tables(PARTIES, rows=100)["bank"].with_columns(told=pl.col("y") * 1.0))
    partner = SimulatedPartner.of(contract, party, table, split=["told"], rows=100, seed=1)
    usual = [f"{name}={each.usual.get(each.strength, 0.5):g}" for name, each in DEFENSES.items() if "binary" in each.targets]
    texts = [*usual, "no-gradients=8", "cut-width=2", "cut-after=2"]
    tried = candidate_trials(contract, partner, [parse_sweep(text) for text in texts])
    assert [each.name.replace(" ", "=") for each in tried[1:]] == texts


def test_time_that_is_up_ends_after_the_first_seed_of_everything(home, monkeypatch):
    few_column_attacks(monkeypatch)
    values = found(swept(home, "--seeds", 5, "--rows", 300, "--minutes", 0.0001, "--sweep", "marvell=1", "--json"))
    assert [trial["seeds"] for trial in values["sweep"]["trials"]] == [1, 1]
    assert values["notes"] == ["Stopped after 0.0001 minutes: some defences were tried with 1 of 5 seeds."]
    assert " 1 seed; leak AUC" in values["sweep"]["summary"]


@pytest.mark.long
def test_a_sweep_says_at_once_how_many_trials_there_are(home):
    arguments = ("--seeds", 1, "--rows", 300, "--sweep", "cut-after=2", "--json")
    said = call(home / "contract.yaml", "--party", home / "party.yaml", "--progress", "plain", *arguments).stderr
    assert "2 trials, 2 runs with 1 seed each; none but the first of each begins after 30 minutes (--minutes): none," in said


@pytest.mark.long
def test_a_union_and_a_partners_own_model_are_tried_as_what_is_at_hand(home):
    contract = yaml.safe_load((home / "contract.yaml").read_text())
    change(
        home / "contract.yaml",
        alignment=contract["alignment"] | {"method": "union"},
        model=contract["model"] | {"bottoms": {"shop": "of_the_partner:Bottom"}},
    )
    done = swept(home, "--seeds", 1, "--rows", 300, "--sweep", "marvell=1")  # as people see it
    assert done.exit_code == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "union was tried as an intersection" in said
    assert "bank alone: test AUC" in said


@pytest.mark.long
def test_a_contract_with_unaligned_rows_is_tried_where_the_made_up_partner_has_them_all(home):
    """As `init` writes it."""
    change(home / "contract.yaml", unaligned={"method": "warm-start"})
    values = found(swept(home, "--rows", 300, "--minutes", 0.0001, "--sweep", "cut-after=2", "--json"))
    assert "so unaligned.method = warm-start had no rows to use, and none was tried instead" in values["sweep"]["summary"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--split", "told,colour"), "--split colour: is not a feature column of this party; not given yet: x, noise, kind"),
        (("--split", "told,tolt"), "--split tolt: is not a feature column of this party; not given yet: x, noise, kind"),
        (("--split", "told,nois"), "--split nois: is not a feature column of this party; did you mean noise?"),
        (("--split", ","), "--split: names no column"),
        (("--split", "told", "--share", "0.5"), "--split, --share: give one of the two"),
        (("--share", "1"), "--share 1: must be above 0 and below 1"),
        (("--rows", "0"), "--rows 0: must be at least 1"),
        (("--seeds", "0"), "--seeds 0: must be at least 1"),
        (("--minutes", "0"), "--minutes 0: must be above 0"),
        (("--sweep", "marvell"), "--sweep marvell: must be METHOD=STRENGTH"),
        (("--sweep", "marvel=1"), "--sweep marvel=1: marvel is not a defence; did you mean marvell?"),
        (("--sweep", "marvell=one"), "a strength is not a number"),
        (("--sweep", "marvell=-1"), "--sweep marvell=-1: defense.0"),
        (("--sweep", "label-dp=inf"), "--sweep label-dp=inf: defense.0"),
        (("--sweep", "mixpro=1"), "--sweep mixpro=1: defense.0"),
        (("--sweep", "cut-after=9"), "--sweep cut-after=9: model.cut_after = 9: must be at most 2"),
        (("--sweep", "cut-width=0"), "--sweep cut-width=0: model.cut_width"),
        (("--sweep", "cut-after=1.5"), "--sweep cut-after=1.5: model.cut_after"),
        (("--sweep", "label-dp-prior=1"), "--sweep label-dp-prior=1: defense.0.method = label-dp-prior: is for multiclass"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_runs(home, arguments, says):
    done = swept(home, *arguments, "--json")
    assert done.exit_code == 2
    assert says in done.stderr
    assert not (home / "runs").exists()


def test_regression_and_feature_parties_are_refused(home):
    change(home / "contract.yaml", target={"type": "regression"})
    assert "run it with `audit: true` instead" in swept(home).stderr
    change(home / "contract.yaml", target={"type": "binary"})
    change(home / "party.yaml", party="shop", label=None)
    done = swept(home)
    assert done.exit_code == 2
    assert "only the label party can try a contract alone" in done.stderr
    assert "--party is missing" in call(home / "contract.yaml").stderr
    for arguments in ((home / "nothing.yaml", "--party", home / "party.yaml"), (home / "runs" / "nosuch",)):
        done = call(*arguments)
        assert done.exit_code == 2
        assert f"{arguments[0]}: there is no such file or folder" in done.stderr


@pytest.mark.long
def test_a_trial_that_fails_is_noted_and_the_others_stay(home, monkeypatch):
    """The trial is made to fail, because whether training diverges by noise depends on the draw."""
    run = runs._run

    def diverging(*given, baseline, **named):
        if not baseline:
            raise Diverged("training diverged by step 3")
        return run(*given, baseline=baseline, **named)

    monkeypatch.setattr(runs, "_run", diverging)
    values = found(swept(home, "--seeds", 1, "--rows", 300, "--sweep", "isotropic=1e12", "--json"))
    assert [trial["strength"] for trial in values["sweep"]["trials"]] == [""]
    assert values["notes"] == ["isotropic 1e+12, seed 1: training diverged by step 3"]


@pytest.mark.long
@pytest.mark.parametrize("after", ["trials", "seed 1: test"])
def test_an_interrupted_sweep_writes_what_is_over_or_nothing(home, tmp_path_factory, after):
    temporary = tmp_path_factory.mktemp("temporary")
    arguments = ("audit", "contract.yaml", "--party", "party.yaml", "--progress", "json", "--seeds", "50")
    process = subprocess.Popen(
        [sys.executable, "-m", "tallystick", *arguments],
        cwd=home,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if after in line:
            while not list(temporary.glob("tallystick-*/*")):  # where the parties of the next trial work
                time.sleep(0.001)
            process.send_signal(signal.SIGTERM)
            break
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor")] == []  # PyTorch's own
    last = said.splitlines()[-1]
    if after == "trials":  # the first one has just begun
        assert last == "interrupted; nothing was written"
        assert {path.name for path in home.iterdir()} == {"contract.yaml", "party.yaml", "table.parquet"}
        return
    (folder,) = (home / "runs").iterdir()
    assert last == f"interrupted; the finished trials are in {folder / 'report.html'}"
    result = read_result((folder / "result.json").read_bytes())
    assert result.sections.sweep.trials[0].defense == "none"
    assert result.sections.notes[-1].startswith("Interrupted: ")
    assert "Interrupted: " in (folder / "report.html").read_text()


class LostAfterOne(InThisProcess):
    """An engine that is lost after a task ended."""

    def map(self, work, inputs, read):
        yield next(super().map(work, inputs, read))
        raise ComputeError("the Ray cluster is lost: its head does not answer")


def test_a_sweep_whose_engine_is_lost_keeps_the_trials_that_are_over(tmp_path, monkeypatch):
    home = home_in(tmp_path)
    change(home / "party.yaml", compute={"workers": 1})
    monkeypatch.setattr(ComputeKeys, "made", lambda _: LostAfterOne())
    done = swept(home, "--seeds", 1, "--rows", 300, "--sweep", "label-dp=2")
    assert done.exit_code != 0
    (folder,) = (home / "runs").iterdir()
    said = " ".join(done.stderr.split())
    assert f"its head does not answer; the finished trials are in {folder / 'report.html'}" in said
    assert [trial.defense for trial in read_result((folder / "result.json").read_bytes()).sections.sweep.trials] == ["none"]


def test_estimates_are_those_of_a_t_test():
    from scipy import stats

    values = [0.71, 0.74, 0.70, 0.69]
    whole = estimate([(value, 0.0, 1.0) for value in values])
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (whole.low, whole.high) == pytest.approx((expected.low, expected.high))
    assert estimate([(0.7, 0.6, 0.8)]).low == 0.6
    folded = estimate([(0.52, 0.5, 0.6), (0.6, 0.5, 0.7), (0.9, 0.8, 1.0)], floor=0.5)
    assert (folded.low, folded.high) == (0.5, 1.0)


def test_two_seeds_are_shown_as_they_are():
    """Student's interval of these two would be all of [0, 1]."""
    two = estimate([(0.69, 0.5, 0.9), (0.58, 0.4, 0.8)], floor=0.5)
    assert (two.low, two.high, two.spread) == (0.58, 0.69, "min to max")
    assert two.mean == pytest.approx(0.635)


def test_a_contract_without_gradients_is_tried_beside_one_with_them():
    """A trial without gradients does not, even if what it asks for needs gradients."""
    partner = SimulatedPartner(label="bank", feature="shop", tables={}, columns={}, given=(), kept=())
    changes = {"tuning": {"keys": {"training.epochs": {"values": [1, 2]}}}, "evaluation__share_metrics": ["auc"]}
    trained = parse_contract(contract_values(PARTIES, training__mode="pipelined", **changes))
    none, once = candidate_trials(trained, partner, [("no-gradients", [64])])
    assert (none.contract.sends_gradients, once.contract.sends_gradients) == (True, False)
    assert once.contract.model.cut_width == 64
    kept = parse_contract(contract_values(PARTIES, training__gradients="none"))
    none, own = candidate_trials(kept, partner, [])
    assert (none.contract.sends_gradients, own.name) == (True, "the contract's no-gradients")
    assert own.contract.model.cut_width == 512


def test_a_sweep_is_read():
    assert parse_sweep("distance-correlation=1e-3, 0.01") == ("distance-correlation", (0.001, 0.01))
    with pytest.raises(ConfigError):
        parse_sweep("=1")
