"""Without cut gradients what a feature party gets does not depend on labels, and the label party trains on kept embeddings."""

import re
import threading
from collections import Counter

import numpy as np
import polars as pl
import pytest
import similar
from msgspec.structs import replace
from test_label_flip import files_of
from tiny import columns, contract_values, seed_system, tables, weights

from tallystick.audit.labels import unattacked
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.cut.cut_messages import CutEmbedding, CutGradient
from tallystick.disclosure.table import disclosure_lines
from tallystick.errors import ConfigError, DataError, TallystickError
from tallystick.job.handshake import Agreement, Greeting
from tallystick.job.job import Job
from tallystick.job.log import Logbook
from tallystick.job.preflight import check_label
from tallystick.job.run import run_party
from tallystick.network.channel import MemoryChannel, memory_channels
from tallystick.network.messages import decode
from tallystick.report.leaks import NOTHING_SENT, leak_headline, leak_lines
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger
from tallystick.run_folder.trained import Architecture
from tallystick.simulation import simulate
from tallystick.tables.keys import keys_of
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
ROWS = 160
NONE = {"training__gradients": "none"}
QUICK = NONE | {"training__epochs": 1, "evaluation__own_columns_baseline": False}


def relabelled(frames, how):
    """Return the same rows with other labels."""
    given = frames["bank"]
    labels = {"same": pl.col("y"), "turned": 1 - pl.col("y"), "other": (pl.col("noise") > 0.8).cast(pl.Int64)}
    return {**frames, "bank": given.with_columns(y=labels[how])}


class Failing(Silent):
    """Stops a label party at a step of its training, or of what follows, as a full disk would."""

    def __init__(self, step, what):
        self.step = step
        self.what = what

    def progress(self, what, done, total):  # noqa: ARG002
        if what == self.what and done >= self.step:
            raise DataError("stopped here")


def run_both(root, contract, frames, *, resume=False, stop_at=None, during="training", weight=None, refused=False):
    """Run both parties in threads, each with its run folder under ``root``.

    Return the label party's error, if any. Shop ends well, unless it is to be ``refused``. A party that has left tells the other
    one nothing more.
    """
    contract = parse_contract(contract)
    to_shop, to_bank = memory_channels("bank", "shop", timeout_s=20)
    channels = {"bank": {"shop": to_shop}, "shop": {"bank": to_bank}}
    errors, left = {}, set()

    def run(name):
        try:
            values = {"party": name, "table": {"path": f"{name}.parquet"}, "runs": name, **columns(PARTIES)[name]}
            if name == "bank" and weight is not None:
                values["weight"] = weight
            party = parse_party(values, folder=root, source=name)
            if name == "bank" and not party.privacy.ledger.exists():
                create_ledger(party)
            make = RunFolder.latest if resume else RunFolder.new
            watcher = Failing(stop_at, during) if name == "bank" and stop_at else Silent()
            job = {"contract": contract, "party": party, "frame": frames[name], "channels": channels[name], "resume": resume}
            job["keys"] = keys_of(frames[name], party, contract.alignment)
            job["leave"] = lambda: left.add(name)
            run_party(Job(**job, folder=make(party.runs, contract, name, key=None), logbook=Logbook(party=name, watcher=watcher)))
        except TallystickError as error:
            errors[name] = error
            for channel in channels[name].values() if name not in left else ():
                channel.abort(str(error))

    threads = [threading.Thread(target=run, args=(name,), name=f"simulate-{name}") for name in PARTIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ("shop" in errors) == refused, errors
    return errors.get("bank")


def test_other_labels_send_a_feature_party_the_same_bytes(tmp_path, to_shop, monkeypatch):
    """Labels are turned, or have another share. Epochs, early stopping, the best epoch and all figures differ, and nothing of it
    shows.
    """
    more = {"training__patience": 1, "training__epochs": 8, "training__learning_rate": 0.05, "training__batch_size": 32}
    values = contract_values(PARTIES, **QUICK | more)
    frames, found, epochs = tables(PARTIES, rows=ROWS), [], set()
    for how in ("same", "turned", "other"):
        seed_system(monkeypatch)
        to_shop.clear()
        result = simulate(values, relabelled(frames, how), columns(PARTIES), folder=tmp_path / how)
        epochs.add(len(result.training.history))
        found.append((list(to_shop), files_of(tmp_path / how, "shop")))
    assert len(epochs) > 1  # there was something to hide
    (sent, files), *others = found
    assert len(sent) > 5
    assert {"model.safetensors", "result.json"} <= files.keys()
    for other_sent, other_files in others:
        assert other_sent == sent
        assert other_files.keys() == files.keys()
        assert [name for name in files if files[name] != other_files[name]] == []


OF_THE_TIME = "ledger.json"  # a hash of entries that contain their times
BESIDE = {
    "warm start": {"unaligned": {"method": "warm-start", "epochs": 1}},
    "regressor": {"unaligned": {"method": "regressor", "epochs": 1}},
    "ss-vfl": {"unaligned": {"method": "ss-vfl", "epochs": 1}},
    "three classes": {"target": {"type": "multiclass", "classes": 3}},
    "numbers": {"target": {"type": "regression"}},
    "noise, audit": {
        "defense": [{"method": "gaussian-embeddings", "epsilon": 9.0, "delta": 1e-6, "clip": 1.0}],
        "model__cut_width": 4,
        "audit": True,
    },
    "all that repeats": {"alignment__duplicates": "all"},
    "own columns measured": {"evaluation__importance": {"own_columns": True, "repeats": 1}},
}


SHORT = "three classes"


@pytest.mark.parametrize("beside", [pytest.param(each, marks=() if each == SHORT else pytest.mark.long) for each in BESIDE])
def test_other_labels_send_two_feature_parties_the_same_bytes_whatever_stands_beside(beside, tmp_path, to_shop, monkeypatch):
    """Three parties, and everything else that can be combined with the mode: compare messages and both run folders."""
    parties = ("bank", "club", "shop")
    values = contract_values(parties, **QUICK | BESIDE[beside])
    target = values["target"]["type"]
    given, found = tables(parties, rows=80, target=target), []
    shuffled = given["bank"].with_columns(y=given["bank"]["y"].shuffle(seed=3))
    assert not given["bank"]["y"].equals(shuffled["y"])
    for number, frames in enumerate((given, {**given, "bank": shuffled})):
        seed_system(monkeypatch)
        to_shop.clear()
        simulate(values, frames, columns(parties), folder=tmp_path / str(number))
        found.append((list(to_shop), *(files_of(tmp_path / str(number), name) for name in ("club", "shop"))))
    (sent, *files), (other_sent, *other_files) = found
    assert len(sent) > 5
    assert other_sent == sent
    for one, other in zip(files, other_files, strict=True):
        assert other.keys() == one.keys()
        assert [name for name in one if one[name] != other[name] and name != OF_THE_TIME] == []


def test_with_gradients_other_labels_send_other_bytes(tmp_path, to_shop, monkeypatch):
    """The comparison above does detect differences."""
    frames, found = tables(PARTIES, rows=ROWS), []
    for how in ("same", "turned"):
        seed_system(monkeypatch)
        to_shop.clear()
        simulate(contract_values(PARTIES, training__epochs=1), relabelled(frames, how), columns(PARTIES), folder=tmp_path / how)
        found.append(list(to_shop))
    assert found[0] != found[1]


def test_a_stopped_label_party_goes_on_to_the_same_bits_and_tells_nobody_how_far_it_was(tmp_path, to_shop, monkeypatch):
    """Nor does it depend on whether it had trained already: stopped early, late, and after the model was there."""
    more = {"training__checkpoint_every": 2, "training__epochs": 4, "training__batch_size": 16}
    values = contract_values(PARTIES, **QUICK | more | {"evaluation__own_columns_baseline": True})
    frames = tables(PARTIES, rows=ROWS)
    seed_system(monkeypatch)
    assert run_both(tmp_path / "whole", values, frames) is None
    resumed = []
    for how, step, during in (("early", 5, "training"), ("late", 17, "training"), ("trained", 1, "own columns only")):
        seed_system(monkeypatch)
        assert "stopped here" in str(run_both(tmp_path / how, values, frames, stop_at=step, during=during))
        assert len(list((tmp_path / how / "bank").glob("*/model.safetensors"))) == (how == "trained")
        to_shop.clear()
        assert run_both(tmp_path / how, values, frames, resume=True) is None
        resumed.append(list(to_shop))
    models = [weights(path) for path in sorted(tmp_path.glob("*/*/*/model.safetensors"))]
    assert len(models) == 8
    assert len(set(models)) == 2  # one per party
    first, *others = [without_run_id(sent) for sent in resumed]
    assert all(other == first for other in others)


def test_a_label_party_that_stops_after_it_left_goes_on_under_label_dp(tmp_path, monkeypatch):
    """Its last message is sent before exact labels are used, so the other side has ended by then."""
    dp = {"method": "label-dp", "epsilon": 1.0}
    more = {"training__epochs": 1, "training__checkpoint_every": 1, "evaluation__own_columns_baseline": True}
    values, frames = contract_values(PARTIES, defense=[dp], **more), tables(PARTIES, rows=ROWS)
    seed_system(monkeypatch)
    assert "stopped here" in str(run_both(tmp_path, values, frames, stop_at=1, during="own columns only"))
    seed_system(monkeypatch)
    assert run_both(tmp_path, values, frames, resume=True) is None
    assert len(list((tmp_path / "bank").glob("*/result.json"))) == 1


def without_run_id(sent):
    """Return a resumed run's messages. Its greeting and agreement, which contain the random name of the run, are values."""
    greeting, agreement = decode(sent[0], Greeting), decode(sent[1], Agreement)
    return [replace(greeting, run_id=""), replace(agreement, run_id=""), *sent[2:]]


def one_class(aligned):
    return {"y": pl.when(aligned).then(0).otherwise(pl.col("y"))}


def one_number(aligned):
    return {"y": pl.when(aligned).then(5.0).otherwise(pl.col("y"))}


def no_weight(aligned):
    return {"weight": pl.when(aligned).then(0.0).otherwise(pl.col("weight"))}


@pytest.mark.parametrize(
    ("target", "flat", "refusal"),
    [
        ("binary", one_class, "label column 'y' is constant on the training rows"),
        ("multiclass", one_class, "label column 'y' is constant on the training rows"),
        ("regression", one_number, "label column 'y' is constant on the training rows"),
        ("binary", no_weight, "weight column 'weight': every weight is 0 on the training rows"),
    ],
)
def test_rows_that_a_feature_party_chose_tell_it_no_label_by_whether_the_run_stops(
    tmp_path, to_shop, monkeypatch, target, flat, refusal
):
    """Aligned rows of one class end the label party's training at home. The others see the same as for any rows."""
    classes = {"target__classes": 3} if target == "multiclass" else {}
    values = contract_values(PARTIES, **QUICK, **classes, target__type=target)
    given, found = tables(PARTIES, rows=ROWS, target=target), []
    given["shop"] = given["shop"][:60]
    aligned = pl.col("id").is_in(given["shop"]["id"].implode())
    for number, frames in enumerate((given, {**given, "bank": given["bank"].with_columns(**flat(aligned))})):
        seed_system(monkeypatch)
        to_shop.clear()
        error = run_both(tmp_path / str(number), values, frames, weight="weight")
        assert (error is None) if number == 0 else (refusal in str(error))
        # The run's id is drawn at random.
        (folder,) = (tmp_path / str(number) / "shop").glob("tiny-*")
        found.append(
            (
                [*to_shop[:1], replace(decode(to_shop[1], Agreement), run_id=""), *to_shop[2:]],
                weights(folder / "model.safetensors"),
            )
        )
    assert len(found[0][0]) > 5
    assert found[0] == found[1]


def test_a_feature_party_that_lost_its_alignment_is_refused_whatever_the_labels(tmp_path, to_shop, monkeypatch):
    """Aligned labels that teach nothing leave no training step. Whether the parties align again must not show that."""
    values = contract_values(PARTIES, **QUICK | {"training__checkpoint_every": 1, "training__batch_size": 16})
    given = tables(PARTIES, rows=ROWS)
    given["shop"] = given["shop"][:60]
    flat = one_class(pl.col("id").is_in(given["shop"]["id"].implode()))
    stopped = ("stopped here", "is constant on the training rows")
    for number, frames in enumerate((given, {**given, "bank": given["bank"].with_columns(**flat)})):
        seed_system(monkeypatch)
        root = tmp_path / str(number)
        assert stopped[number] in str(run_both(root, values, frames, stop_at=2))
        (kept,) = root.glob("shop/*/alignment.safetensors")
        kept.unlink()
        to_shop.clear()
        assert "cannot go on together" in str(run_both(root, values, frames, resume=True, refused=True))
        assert len(to_shop) == 3  # greeting, agreement, refusal


def test_numbers_too_large_in_any_row_are_refused_before_anybody_is_greeted(tmp_path):
    """With gradients only the labels of training rows count."""
    frame, party = pl.DataFrame({"y": [1.0, 2.0, 1e308, -1e308]}), {"party": "bank", "table": {"path": "bank.parquet"}}
    bank = parse_party(party | columns(PARTIES)["bank"], folder=tmp_path, source="bank")
    sent, none = (parse_contract(contract_values(PARTIES, target__type="regression", **more)) for more in ({}, NONE))
    check_label(sent, bank, frame, np.array([0, 1]))
    with pytest.raises(DataError, match="too large to standardise"):
        check_label(none, bank, frame, np.array([0, 1]))


@pytest.fixture
def crossed(monkeypatch):
    """Return the number of rows of each kind of tensor that crossed, by sender and receiver."""
    rows, send = Counter(), MemoryChannel.send

    def counted(channel, message):
        if isinstance(message, CutEmbedding | CutGradient):
            rows[type(message).__name__, channel.peer] += message.values.shape[0]
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", counted)
    return rows


def test_each_row_of_several_feature_parties_crosses_once_and_no_gradient_does(crossed):
    parties = ("bank", "club", "shop")
    changes = {"training__epochs": 3, "evaluation__importance": {"own_columns": True, "repeats": 1}}
    result = simulate(contract_values(parties, **QUICK | changes), tables(parties, rows=ROWS), columns(parties))
    assert crossed == {("CutEmbedding", "bank"): 2 * sum(result.data.rows.values())}
    assert [each.party for each in result.sections.importance] == ["bank"]
    widths = {part.party: part.layers.rpartition("-")[2] for part in result.model if part.party != "bank"}
    assert widths == {"club": "512", "shop": "512"}
    guarantees = {item.party: item.guarantee for item in result.learnt if item.step == "training"}
    assert guarantees["club"] == guarantees["shop"] == "what is sent does not depend on labels"
    assert result.sections.privacy is None  # nothing of the labels was spent
    assert leak_lines(result)[0].endswith("was sent. It can still guess from its own columns.")


@pytest.mark.long
def test_candidates_of_similar_keys_cross_once_each(crossed):
    changes = {"model__cut_width": 8, "model__merge": {"width": 8, "heads": 2, "top": [8]}}
    contract = similar.contract_values(**QUICK | changes)
    result = simulate(contract, {**similar.tables(rows=120, places=30)}, similar.columns())
    assert 0 < crossed["CutEmbedding", "bank"] <= 2 * 30
    assert crossed["CutGradient", "club"] == 0
    assert result.evaluation["rows"] > 0


def test_noisy_embeddings_are_charged_for_one_release_of_a_row(tmp_path):
    noise = {"method": "gaussian-embeddings", "epsilon": 2.0, "delta": 1e-6, "clip": 1.0}
    values = contract_values(PARTIES, **QUICK, defense=[noise], model__cut_width=4, audit=True)
    (audit,) = simulate(values, tables(PARTIES, rows=80), columns(PARTIES)).sections.features
    assert audit.releases == 1
    assert audit.epsilon == pytest.approx(2.0, rel=1e-3)


def test_a_bottom_that_stays_as_it_is_has_a_wide_cut_and_larger_embeddings_of_categories():
    contract = parse_contract(contract_values(PARTIES, **NONE))
    models = {name: Architecture.of(contract, name).model for name in PARTIES}
    assert [(model.cut_width, model.embedding_scale) for model in models.values()] == [(None, "auto"), (512, 0.3)]
    asked = parse_contract(contract_values(PARTIES, **NONE, model__cut_width=4, model__embedding_scale=0.2))
    assert Architecture.of(asked, "shop").model.cut_width == 4
    assert Architecture.of(asked, "shop").model.embedding_scale == 0.2


@pytest.mark.parametrize("target", ["binary", "regression"])
def test_an_audit_of_labels_says_that_there_is_nothing_to_attack(target):
    contract = parse_contract(contract_values(PARTIES, **NONE, target__type=target, audit=True))
    assert leak_headline(unattacked(contract)) == [NOTHING_SENT]


REFUSED = {
    "defense.0.method = marvell: hides labels in what the label party sends": {"defense": [{"method": "marvell", "power": 4}]},
    "defense.0.method = label-dp: hides labels": {"defense": [{"method": "label-dp", "epsilon": 1}]},
    "defense.0.method = reconstruction-penalty: acts while a bottom model learns": {
        "defense": [{"method": "reconstruction-penalty", "weight": 1}]
    },
    "alignment.method = union: stand-ins for a union's absent rows": {"alignment__method": "union"},
    "unaligned.method = vfl-mpd: trains the feature parties' bottom models": {"unaligned": {"method": "vfl-mpd"}},
    "tuning.keys: the values that a search tries next": {"tuning": {"keys": {"training.epochs": {"values": [1, 2]}}}},
    "evaluation.privacy: sends a figure of the test labels": {"evaluation__privacy": {"epsilon": 1}},
    'evaluation.share_metrics = ["auc"]: are figures': {"evaluation__share_metrics": ["auc"]},
    "evaluation.importance.feature_columns = label-party: makes feature parties embed": {
        "evaluation__importance": {"feature_columns": "label-party"}
    },
    'serving.ways = ["embedding"]: answers a feature party with scores': {"serving": {"ways": ["embedding"]}},
    'serving.ways = ["agreed-batch"]: answers a feature party with scores': {"serving": {"ways": ["agreed-batch"]}},
}


@pytest.mark.parametrize(("problem", "changes"), REFUSED.items(), ids=[problem.partition(":")[0] for problem in REFUSED])
def test_what_needs_a_gradient_or_tells_of_labels_is_refused(problem, changes):
    with pytest.raises(ConfigError, match=re.escape(f"training.gradients = none, {problem}")):
        parse_contract(contract_values(PARTIES, **NONE, **changes))


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_what_is_signed_names_each_choice_of_a_run_that_is_seen(epsilon):
    contract = parse_contract(contract_values(PARTIES, **NONE, promotion={"epsilon": epsilon}))
    lines = disclosure_lines(contract, own_columns=None)
    (promise,) = [line for line in lines if line.startswith("nothing that depends on a label")]
    assert any("shop can see which run bank chose" in line for line in lines)
    assert ("except which run is promoted (promotion.epsilon = 2)" in promise) == (epsilon is not None)


@pytest.mark.parametrize("method", ["warm-start", "regressor", "ss-vfl"])
def test_rows_without_a_partner_are_used_as_ever(method, crossed):
    """This holds also for methods that usually embed the training rows once more, or that train the bottom on its own
    columns first.
    """
    result = simulate(
        contract_values(PARTIES, **QUICK, unaligned={"method": method, "epochs": 1}), tables(PARTIES, rows=ROWS), columns(PARTIES)
    )
    assert crossed == {("CutEmbedding", "bank"): sum(result.data.rows.values())}
