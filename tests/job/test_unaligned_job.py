"""Jobs that use rows only the label party has: every method, what crosses, resuming, scores without a partner, bad input."""

import json
import math
import os
import signal
from functools import partial

import polars as pl
import pytest
import torch
from lanes import short_lane_of
from safetensors.torch import load_file
from tiny import columns, contract_values, tables, weights

from tallystick.cli.watch import JsonLines
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.config.unaligned import CLASSES
from tallystick.config.unaligned import METHODS as DECLARED
from tallystick.dataset.own_rows import Before, own_folds_of
from tallystick.errors import ConfigError, DataError, category_of
from tallystick.job.phases import train
from tallystick.job.process import _check_labels
from tallystick.metrics import auc
from tallystick.privacy.events import PureDP
from tallystick.privacy.ledger import Ledger
from tallystick.run_folder import local_scores
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.local_scores import calibrated_alone
from tallystick.run_folder.trained import Architecture, TrainedLabelParty
from tallystick.simulation import Silent, simulate
from tallystick.tables.keys import keys_of
from tallystick.tables.lazy_table import LazyTable
from tallystick.tables.split import TRAINING, split_by_hash
from tallystick.training.calibration import fit_line
from tallystick.training.label_party import train_label_party
from tallystick.training.unaligned.method import UnalignedMethod
from tallystick.training.unaligned.method_table import class_of

PARTIES = ("bank", "shop")
ROWS, PARTNERS = 900, 400
METHODS = [name for name in DECLARED if name != "none"]
QUICKLY = {"calibration_bins": 5, "bootstrap": 0, "own_columns_baseline": False}


def frames(*, rows=ROWS, partners=PARTNERS, target="binary", seed=1):
    """Make a table per party; only the first ``partners`` ids have a row at the feature party."""
    found = {name: frame.sort("id") for name, frame in tables(PARTIES, rows=rows, target=target, seed=seed).items()}
    found["shop"] = found["shop"].filter(pl.col("id") < f"id-{partners:06}")
    return found


def own_columns():
    found = columns(PARTIES)
    found["bank"]["report"] = {"smallest_group": 20}
    return found


def own_columns_by_day():
    found = own_columns()
    found["bank"] = {key: each for key, each in found["bank"].items() if key != "features"} | {"time": "day"}
    return found


def contract(method="average", **changes):
    quick = {"epochs": 4, "evaluations": 4}
    settings = {"method": method} | {key: value for key, value in quick.items() if key in CLASSES[method].model_fields}
    return contract_values(PARTIES, **{"unaligned": settings | changes.pop("settings", {}), **changes})


def run(method, given=None, **changes):
    return simulate(contract(method, **changes), given or frames(), own_columns(), watcher=Silent())


def partner_groups(result):
    return {group["name"]: group for one in result.sections.groups for group in one["groups"]}


def test_every_declared_method_has_a_class_of_its_own():
    assert {name for name, declared in DECLARED.items() if not declared.implemented} == {"none"}
    classes = {class_of(name) for name in METHODS}
    assert len(classes) == len(METHODS)
    assert all(issubclass(each, UnalignedMethod) and not getattr(each, "__abstractmethods__", None) for each in classes)


@pytest.mark.parametrize("method", short_lane_of(METHODS, 4))
def test_every_method_trains_and_measures(method):
    result = run(method, evaluation=QUICKLY)
    assert result.evaluation["joint"]["auc"]["value"] > 0.6
    assert result.training.dropout == (0.5 if method in ("warm-start", "offset") else 0.0)  # for what its page says of losses
    groups = partner_groups(result)
    assert bool(groups) == class_of(method).scores_alone
    if groups:
        test = result.data.rows["test"]
        assert groups["with one: the joint model"]["rows"] == test
        alone = groups["without: own columns"]["rows"]
        assert 0.1 * (ROWS - PARTNERS) < alone < 0.3 * (ROWS - PARTNERS)
        assert groups["both together"]["rows"] == test + alone


def sent_by_training(result):
    phases = [phase for phase in result.phases if phase.name == "training"]
    return {phase.party: (phase.bytes_sent, phase.bytes_received, phase.messages) for phase in phases}


@pytest.mark.parametrize("method", short_lane_of(["warm-start", "average", "ss-vfl", "fedhssl"], 2))
def test_nothing_that_crosses_tells_how_many_unaligned_rows_there_are(method):
    """With twice as many of them training has as many messages and bytes, and the same positions in the same order."""
    given, more = frames(), frames(rows=2 * ROWS)
    more["shop"] = given["shop"]
    common = set(given["bank"]["id"]) & set(given["shop"]["id"])
    more["bank"] = pl.concat([given["bank"], more["bank"].filter(pl.col("id") >= f"id-{ROWS:06}")])
    assert {row for row in more["bank"]["id"] if row in set(more["shop"]["id"])} == common
    quick = {"training__patience": None, "training__epochs": 1, "training__folds": "auto", "evaluation": QUICKLY}
    few, many = (run(method, tables_, **quick) for tables_ in (given, more))
    for result, tables_ in ((few, given), (many, more)):  # the alignment's counts do, and the result says so
        assert f"bank has {tables_['bank'].height:,} ids." in [each.what for each in result.learnt if each.party == "shop"]
        assert any("Their number follows from two counts" in each.what for each in result.learnt)
    assert few.data.rows == many.data.rows
    assert sent_by_training(few) == sent_by_training(many)


@pytest.mark.parametrize("method", ["warm-start", "ss-vfl"])
def test_what_a_feature_partys_own_rows_change(method, tmp_path):
    """Rows without a partner's row train its bottom by self-supervision, and are otherwise left out.

    No message depends on them. The model that scores the label party's rows alone is the same to the bit.
    """
    given = frames()
    others = tables(PARTIES, rows=300, seed=2)["shop"].with_columns(id="other-" + pl.col("id"))
    more = given | {"shop": pl.concat([given["shop"], others])}
    found, trained, scorers = [], [], []
    for number, each in enumerate((given, more)):
        values, folder = contract(method, training__epochs=1, evaluation=QUICKLY), tmp_path / str(number)
        found.append(simulate(values, each, own_columns(), watcher=Silent(), folder=folder))
        kept = {name: load_file(next((folder / name).glob("*/model.safetensors"))) for name in PARTIES}
        trained.append(kept["shop"])
        scorers.append({name: weight for name, weight in kept["bank"].items() if name.startswith("scorer.")})
    assert len(scorers[0]) == len(scorers[1]) > 0 or method == "ss-vfl"
    assert all(torch.equal(scorers[0][name], scorers[1][name]) for name in scorers[0])
    assert sent_by_training(found[0]) == sent_by_training(found[1])
    assert found[0].data.rows == found[1].data.rows
    same = all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])
    assert same is (method == "warm-start")


def test_a_split_by_time_has_the_same_bounds_for_unaligned_rows():
    given, cols = frames(), own_columns()
    cols["bank"]["time"] = "day"
    values = contract("warm-start", training__epochs=1, evaluation=QUICKLY, split__method="time", settings={"epochs": 1})
    result = simulate(values, given, cols, watcher=Silent())
    is_linked = pl.col("id").is_in(given["shop"]["id"].implode())
    days = given["bank"].filter(is_linked)["day"].sort()
    first = days[len(days) - round(0.2 * len(days))]
    rows = [given["bank"].filter(which, pl.col("day") >= first).height for which in (is_linked, ~is_linked)]
    groups = partner_groups(result)
    assert [groups[name]["rows"] for name in ("with one: the joint model", "without: own columns")] == rows


def test_labels_of_unaligned_rows_are_flipped_too_and_charged_for_once(monkeypatch, tmp_path):
    """Of some 1,900 labels a share of 1 / (1 + e) differs: outside of five standard deviations with a chance below 1e-6."""
    taught = {}

    def listening(method, model, objective, own):
        taught["index_N"] = own.train_N
        taught["labels_N"] = objective(torch.zeros(len(own.train_N)), own.train_N)[1]
        prepare(method, model, objective, own)

    def fitting(model, dataset):
        taught["true_N"] = dataset.known_labels.true_N
        return calibrated_alone(model, dataset)

    prepare = class_of("warm-start").prepare
    monkeypatch.setattr(class_of("warm-start"), "prepare", listening)
    monkeypatch.setattr(train, "calibrated_alone", fitting)
    quick = {"training__epochs": 1, "evaluation": QUICKLY, "settings": {"epochs": 1}}
    values = contract("warm-start", defense=[{"method": "label-dp", "epsilon": 1.0}], **quick)
    simulate(values, frames(rows=3200), own_columns(), watcher=Silent(), folder=tmp_path)
    rows = len(taught["index_N"])
    assert rows > 1600
    share, flipped = 1 / (1 + math.e), (taught["labels_N"] != taught["true_N"][taught["index_N"]]).float().mean().item()
    assert flipped == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / rows))
    entries = Ledger(tmp_path / "privacy-ledger.sqlite", party="bank").entries()
    assert [entry.event for entry in entries] == [PureDP(epsilon=1.0)]


def test_the_line_that_calibrates_own_scores_is_fitted_and_kept(tmp_path):
    """It is not the calibration that changes nothing. tests/training/test_calibration.py tests its values."""
    values = contract("warm-start", training__epochs=1, evaluation=QUICKLY)
    simulate(values, frames(), own_columns(), watcher=Silent(), folder=tmp_path)
    (path,) = (tmp_path / "bank").glob("*/training.json")
    kept = json.loads(path.read_bytes())["alone"]
    assert kept["slope"] > 0
    assert (kept["slope"], kept["intercept"]) != (1.0, 0.0)


@pytest.mark.parametrize("method", ["warm-start", "average"])
def test_rows_without_a_partners_row_are_scored_by_a_model_of_all_own_rows(method, monkeypatch):
    """Aligned rows and the others train it, by own columns. Earlier the branch that the joint model starts from scored them."""
    trained = []

    def training(model, own, objective, peers, run, **more):
        trained.append((model, peers, len(run.schedule.train_N), len(run.schedule.validation_N)))
        return train_label_party(model, own, objective, peers, run, **more)

    monkeypatch.setattr(train, "train_label_party", training)
    result = run(method, training__epochs=2, evaluation=QUICKLY)
    (joint, _, *aligned), (scorer, peers, *all_rows) = trained
    assert scorer is joint.own_rows
    assert not peers
    assert [result.data.rows["train"], result.data.rows["validation"]] == aligned
    (note,) = [note for note in result.data.notes if "rows without a partner's row are used too" in note]
    assert f"{all_rows[0] - aligned[0]:,} for training, {all_rows[1] - aligned[1]:,} for validation" in note


def test_where_own_rows_are_few_four_models_score_rows_without_a_partners_row(monkeypatch, tmp_path):
    """Each lacks a fold of all own rows, and their mean scores. The first, which saw no validation row, calibrates."""
    trained, fitted = [], []

    def training(model, own, objective, peers, run, **more):
        trained.append((model, objective, run.schedule))
        return train_label_party(model, own, objective, peers, run, **more)

    def fitting(model, dataset):
        both_V = torch.cat([dataset.validation_N, dataset.unaligned.validation_N])
        assert (dataset.own_folds.fold_N[both_V] == 0).all()
        fitted.append(dataset)
        return calibrated_alone(model, dataset)

    def line(logits_V, labels_V, **more):
        fitted.append(logits_V)
        return fit_line(logits_V, labels_V, **more)

    monkeypatch.setattr(train, "train_label_party", training)
    monkeypatch.setattr(train, "calibrated_alone", fitting)
    monkeypatch.setattr(local_scores, "fit_line", line)
    values = contract("warm-start", training__epochs=2, training__folds="auto", evaluation=QUICKLY)
    simulate(values, frames(), own_columns(), watcher=Silent(), folder=tmp_path)
    (joint, _, aligned), (scorer, objective, schedule) = trained
    assert scorer is joint.own_rows
    assert len(scorer.members) == 4
    assert not hasattr(joint.bottom, "members")
    assert torch.equal(schedule.train_N, schedule.validation_N)
    assert len(schedule.train_N) > 2 * len(aligned.train_N)
    dataset, first_V = fitted
    index_V = dataset.unaligned.validation_N
    own_V = dataset.features_at(index_V)
    with torch.no_grad():
        scorer.eval()
        torch.testing.assert_close(first_V, scorer.members[0]([], own_V))
        each_V = torch.stack([member([], own_V) for member in scorer.members])
        torch.testing.assert_close(joint.score_alone(own_V), each_V.mean(0))
    assert all(len(objective.taught(member, index_V)) == (0 if member == 0 else len(index_V)) for member in range(4))

    (folder,) = (tmp_path / "bank").glob("tiny-*")
    loaded = TrainedLabelParty.load(RunFolder.open(folder), Architecture.of(parse_contract(values), "bank"))
    loaded.model.eval()
    with torch.no_grad():
        assert torch.equal(loaded.model.score_alone(own_V), joint.score_alone(own_V))
    (earlier,) = {path.name for path in (tmp_path / "bank").glob("tiny-*")}
    simulate(values, frames(), own_columns(), watcher=Silent(), folder=tmp_path, start_from=kept_run_id(tmp_path, earlier))
    assert len(trained[3][0].members) == 4


def wide_frames(count):
    """Return the frames with this many useless columns more at the label party."""
    given, generator = frames(), torch.Generator().manual_seed(7)
    noise_NC = torch.randn(given["bank"].height, count, generator=generator).numpy()
    given["bank"] = given["bank"].hstack(pl.DataFrame(noise_NC, schema=[f"noise {place}" for place in range(count)]))
    return given


@pytest.mark.long
@pytest.mark.parametrize("split", short_lane_of(["hash", "time"], 1))
def test_it_is_the_network_that_the_label_party_would_train_without_a_partner(split, own_trainings):
    """To the bit, from the same start: with closed columns, folds or a refit, whatever is trained jointly with it."""
    cols = own_columns_by_day()
    changes = {"training__starts": "public", "training__folds": "auto", "split__method": split}
    quick = {"bootstrap": 0, "own_columns_boosting": False}
    simulate(contract("warm-start", training__epochs=2, evaluation=quick, **changes), wide_frames(45), cols, watcher=Silent())
    (rows, scorer, state, _), (same_rows, baseline, same_state, _) = own_trainings
    assert torch.equal(rows.train_N, same_rows.train_N)
    assert len(getattr(scorer, "members", [scorer])) == (4 if split == "hash" else 1)
    assert bool(state.refit_epochs) == (split == "time")
    assert state.best_loss == same_state.best_loss
    weights_of, others = scorer.state_dict(), baseline.state_dict()
    assert weights_of.keys() == others.keys()
    assert all(torch.equal(weights_of[name], others[name]) for name in weights_of)
    gates = [open_C for name, open_C in weights_of.items() if name.endswith("gates")]
    assert gates
    assert all(0 < open_C.sum() < len(open_C) for open_C in gates)


def test_a_class_that_a_network_of_own_rows_does_not_meet_is_named(tmp_path):
    """There is one positive in all. The network that judges its row sees none, and the run goes on."""
    given = frames(rows=420, partners=260)
    values = contract("warm-start", training__epochs=1, training__folds="auto", evaluation=QUICKLY)
    agreed = parse_contract(values)
    common = given["bank"].filter(pl.col("id").is_in(given["shop"]["id"].implode()))["id"].to_list()
    parts_N = split_by_hash([name.encode() for name in common], agreed.split, seed=agreed.seed)
    only = common[int((parts_N == TRAINING).argmax())]
    given["bank"] = given["bank"].with_columns(y=(pl.col("id") == only).cast(pl.Int64))
    result = simulate(values, given, own_columns(), watcher=Silent(), folder=tmp_path)
    said = [note for note in result.data.notes if "has no training row of class" in note]
    assert len(said) == 1
    assert ' of 4 has no training row of class "1"' in said[0]
    assert any("own columns alone: 4 networks" in note for note in result.data.notes)


def test_own_rows_of_too_few_ids_for_folds_train_one_network():
    agreed = parse_contract(contract("warm-start", training__folds="auto"))
    everyone = torch.arange(400)

    def found(ids, before=None):
        return own_folds_of(agreed, before, ids, everyone[:360], everyone[360:])

    assert found([b"id-%d" % (number % 2) for number in range(400)]) is None
    assert found([b"id-%d" % number for number in range(400)]).count == 4
    with pytest.raises(DataError, match="none is in fold"):  # the earlier run's weights are of four
        found([b"id"] * 400, Before(encoder=None, coder=None, own_folds=4))


def kept_run_id(folder, name):
    """Return the id of the label party's run in this folder."""
    return RunFolder.open(folder / "bank" / name).run_id


def test_a_contract_without_the_method_is_untouched_by_unaligned_rows(tmp_path):
    given = frames()
    fewer = given | {"bank": given["bank"].filter(pl.col("id").is_in(given["shop"]["id"].implode()))}
    trained = []
    for number, each in enumerate((given, fewer)):
        simulate(contract("none"), each, columns(PARTIES), watcher=Silent(), folder=tmp_path / str(number))
        (path,) = (tmp_path / str(number)).glob("bank/*/model.safetensors")
        trained.append(load_file(path))
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[1])


def die_at(what, done):
    """Kill this process when it passes so many steps of a kind, however busy the machine is."""
    tell = JsonLines.progress

    def progress(self, now, count, total):
        if now == what and count > done:
            os.kill(os.getpid(), signal.SIGKILL)
        tell(self, now, count, total)

    JsonLines.progress = progress


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "at", "changes"),
    [
        ("warm-start", "training", {}),
        ("warm-start", "before joint training: training", {"training__epochs": 12}),
        ("warm-start", "own columns, for rows without a partner's row", {"training__folds": "auto"}),
        ("diffu-at", "training", {"settings": {"joint_epochs": 2}, "model__normalization": "batch"}),
    ],
)
def test_a_killed_run_goes_on_to_the_bits_of_a_simulation(lay_out_job, tmp_path, method, at, changes):
    quick = {"training__batch_size": 8, "training__checkpoint_every": 10, "training__starts": "public"}
    quick |= {key: changes.pop(key, usual) for key, usual in {"training__epochs": 3, "training__folds": 1}.items()}
    values = contract(method, **quick, **changes)
    given = frames()
    single = {name: {**theirs, "threads": 1} for name, theirs in columns(PARTIES).items()}
    simulate(values, given, single, watcher=Silent(), folder=tmp_path / "simulated")
    job = lay_out_job(PARTIES, frames=given, unaligned=values["unaligned"], model=values["model"], **quick)
    running = {"bank": job.start("bank", before=partial(die_at, at, 10)), "shop": job.start("shop")}
    assert [running[party].end() for party in PARTIES] == [-signal.SIGKILL, 3]
    job.run_all("run", "--resume")
    for party in PARTIES:
        (path,) = (tmp_path / "simulated").glob(f"{party}/*/model.safetensors")
        assert job.models(party)[-1] == weights(path)


@pytest.mark.long
def test_rows_without_a_partner_get_a_calibrated_score_that_says_so(lay_out_job):
    given = frames(rows=2400, partners=900)
    values = contract("average", training__epochs=4)
    job = lay_out_job(PARTIES, frames=given, unaligned=values["unaligned"], training__epochs=4)
    job.run_all()
    for party in PARTIES:
        assert "trained 4 of at most 4 epochs; the weights " in (job.runs(party)[0] / "run.log").read_text()
    predicted = {
        "bank": job.start("bank", "predict", "--output", "scores.csv"),
        "shop": job.start("shop", "predict"),
    }
    assert all(party.end() == 0 for party in predicted.values()), {name: party.said for name, party in predicted.items()}
    scores = pl.read_csv(job.home("bank") / "scores.csv")
    assert scores.columns == ["id", "score", "scored_by", "run_id"]
    common = set(given["bank"]["id"]) & set(given["shop"]["id"])
    joint, alone = (scores.filter(pl.col("scored_by") == by) for by in ("joint model", "own columns"))
    assert set(joint["id"]) == common
    assert set(alone["id"]) == set(given["bank"]["id"]) - common
    counted = predicted["bank"].found["scored_by"]
    assert counted == {"joint model": len(common), "own columns": alone.height}
    said = [event["say"] for event in predicted["bank"].events if "say" in event]
    assert any(f"({len(common)} by the joint model, {alone.height} by own columns)" in line for line in said)
    told = alone.join(given["bank"].select("id", "y"), on="id")
    assert auc(told["y"].to_numpy(), told["score"].to_numpy()) > 0.75
    # 1,400 rows: five standard errors of a rate are under .07
    assert told["score"].mean() == pytest.approx(told["y"].mean(), abs=0.07)


@pytest.mark.long
def test_the_audit_says_that_only_aligned_rows_are_attacked():
    quick = {"evaluation__bootstrap": 0, "training__epochs": 1, "audit": True}
    given = frames(rows=450, partners=200)
    summaries = [run(method, given, **quick).sections.leakage.summary for method in ("warm-start", "none")]
    assert ["unaligned.method = none" in summary for summary in summaries] == [True, False]


# --- bad input

NEAREST = {"dimensions": [{"name": "id"}], "neighbors": 1, "helper_sees": "clear"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alignment__method": "union"}, "with alignment.method = union every row has a partner's row"),
        ({"alignment": {"method": "similarity", "similarity": NEAREST}}, "by similarity its nearest candidates"),
        ({"settings": {"method": "offset", "dropout": 1.0}}, "unaligned.dropout = 1.0: must be below 1"),
        ({"settings": {"method": "fedcvt"}, "target": {"type": "multiclass", "classes": 3}}, "needs two classes"),
        ({"settings": {"method": "fedcvt"}, "parties": ("bank", "club", "shop")}, "is for one feature party, found 2"),
        ({"settings": {"group": "kind"}}, 'unaligned.group = "kind": only works with unaligned.method = heuristic; leave it out'),
        ({"settings": {"method": "ofset"}}, 'unaligned.method = "ofset": is not known; did you mean offset?'),
        ({"settings": {"method": "diffu-at", "evaluations": 1001}}, "unaligned.evaluations = 1001: must be at most"),
        ({"settings": {"method": "ss-vfl", "masked": 1.0}}, "unaligned.masked = 1.0: must be below 1"),
        ({"settings": {"method": "ss-vfl", "self_supervision_rate": 0.0}}, "unaligned.self_supervision_rate = 0.0"),
        ({"model__wide": True}, "model.wide = false"),
    ],
)
def test_a_contract_that_does_not_fit_is_refused(changes, said):
    parties = changes.pop("parties", PARTIES)
    settings = {"method": "average"} | changes.pop("settings", {})
    with pytest.raises(ConfigError) as refused:
        parse_contract(contract_values(parties, unaligned=settings, **changes))
    assert said in str(refused.value)


def test_no_unaligned_rows():
    given = frames()
    given["bank"] = given["bank"].filter(pl.col("id").is_in(given["shop"]["id"].implode()))
    with pytest.raises(
        DataError, match=r"without a partner's row falls into the training part; set unaligned\.method to none"
    ) as error:
        run("average", given)
    # A peer is told the contract's key, and nothing to look up in its own file.
    assert category_of(error.value).startswith("unaligned.method = average: it has too few rows without a partner's row")


def test_warm_start_without_unaligned_rows_trains_as_none_and_says_so(tmp_path):
    """What `init` writes trains what `simulate` trains by itself if every row has a partner's: folds and all."""
    given = frames()
    given["bank"] = given["bank"].filter(pl.col("id").is_in(given["shop"]["id"].implode()))
    found, figures = [], []
    for method in ("warm-start", "none"):
        values, folder = contract(method, training__epochs=1, training__folds="auto", evaluation=QUICKLY), tmp_path / method
        result = simulate(values, given, own_columns(), watcher=Silent(), folder=folder)
        found.append([load_file(path) for path in sorted(folder.glob("*/*/model.safetensors"))])
        figures.append(result.evaluation)
        said = [note for note in result.data.notes if "unaligned.method = warm-start had no effect" in note]
        assert len(said) == (method == "warm-start")
        assert result.contract.summary["unaligned rows"] == method
    assert figures[0] == figures[1]
    for ours, theirs in zip(*found, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    agreed = parse_contract(contract("warm-start", training__epochs=1, training__folds="auto", evaluation=QUICKLY))
    run_folder = RunFolder.latest(tmp_path / "warm-start" / "bank", agreed, party="bank")
    trained = TrainedLabelParty.load(run_folder, Architecture.of(agreed, "bank"))
    assert trained.dispensed
    assert trained.folds == 4


def test_labels_that_a_run_was_charged_for_are_the_same_on_resume_where_warm_start_is_none(tmp_path):
    """The run is trained by the contract that follows from its alignment. A resumed run compares the labels by the same
    contract.
    """
    given = frames()
    given["bank"] = given["bank"].filter(pl.col("id").is_in(given["shop"]["id"].implode())).sort("y", "id")
    defense = [{"method": "label-dp", "epsilon": 1.0}]
    values = contract("warm-start", training__epochs=1, evaluation=QUICKLY, defense=defense)
    simulate(values, given, own_columns(), watcher=Silent(), folder=tmp_path)
    agreed = parse_contract(values)
    party = parse_party({"party": "bank", "table": {"path": "table.csv"}, **own_columns()["bank"]}, folder=tmp_path)
    folder = RunFolder.latest(tmp_path / "bank", agreed, party="bank")
    frame = given["bank"]
    keys = keys_of(LazyTable.of(frame), party, agreed.alignment)
    _check_labels(agreed, party, folder, LazyTable.of(frame), keys)
    other = LazyTable.of(frame.with_columns(y=1 - pl.col("y")))
    with pytest.raises(DataError, match="the labels are not those that this run was charged for"):
        _check_labels(agreed, party, folder, other, keys)


def test_what_a_search_writes_keeps_the_method_that_had_nothing_to_do():
    agreed = parse_contract(
        {**contract("warm-start"), "tuning": {"keys": {"training.learning_rate": {"low": 0.001, "high": 0.1}}}}
    )
    derived = agreed.without_unaligned()
    tuned = derived.tuned({"training.learning_rate": 0.05})
    assert (tuned.unaligned.method, tuned.agreed.unaligned.method) == ("none", "warm-start")
    assert tuned.hash == agreed.tuned({"training.learning_rate": 0.05}).hash
    assert derived.for_trial().hash == agreed.for_trial().hash


def test_no_aligned_row_of_a_class():
    given = frames()
    partners = given["shop"]["id"].implode()
    given["bank"] = given["bank"].filter((pl.col("y") == 1) | ~pl.col("id").is_in(partners))
    with pytest.raises(DataError, match='no aligned training row is of class "0"'):
        run("average", given)


def test_unaligned_rows_with_labels_of_another_kind():
    given = frames()
    other = pl.when(pl.col("id") > "id-000800").then(pl.lit("yes")).otherwise(pl.col("y").cast(pl.String))
    given["bank"] = given["bank"].with_columns(y=other)
    with pytest.raises(DataError, match=r"label column 'y' has 3 distinct values; target\.type = binary needs exactly 2"):
        run("average", given)


@pytest.mark.parametrize("method", ["vfl-mpd", "ss-vfl"])
def test_a_feature_party_that_has_nothing_to_take_part_with(method):
    cols = own_columns()
    cols["shop"]["features"] = {"numeric": [], "categorical": []}
    with pytest.raises(DataError, match="party shop has no usable feature column; list some under features"):
        simulate(contract(method), frames(), cols, watcher=Silent())


def test_a_group_that_is_no_column():
    with pytest.raises(DataError, match=r"unaligned\.group = shoe size"):
        run("heuristic", settings={"group": "shoe size"})


def test_a_label_party_without_columns():
    given = frames()
    cols = columns(PARTIES)
    cols["bank"]["features"] = {"numeric": [], "categorical": []}
    with pytest.raises(DataError, match="no usable column of its own"):
        simulate(contract(), given, cols, watcher=Silent())


def test_a_top_given_as_a_module():
    with pytest.raises(ConfigError, match="makes tops of its own"):
        simulate(contract(), frames(), columns(PARTIES), top=torch.nn.Linear(8, 1), watcher=Silent())
