"""A head on shares as a job: in one process, over TLS with a helper, killed, resumed, and in prediction."""

import asyncio
import json
import signal
import threading
import time
from contextlib import suppress
from functools import cache, partial

import numpy as np
import polars as pl
import pytest
import yaml
from head_processes import SMALL, die, die_before_the_head_is_kept, short_own_network
from httpx import ASGITransport, AsyncClient
from lanes import by_turns, short_lane_of
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from tiny import Command, OnDisk, columns, contract_values, tables

from tallystick.config.contract import load_contract, parse_contract
from tallystick.config.party import load_party
from tallystick.demo.homes import write_job
from tallystick.disclosure.serving import serving_lines
from tallystick.disclosure.table import DISCLOSURES, disclosure_lines
from tallystick.errors import ConfigError, DataError, Diverged
from tallystick.job import process
from tallystick.job.phases import shared_head
from tallystick.network.addresses import free_port
from tallystick.network.channel import MemoryChannel
from tallystick.network.messages import encode
from tallystick.privacy.ledger import BudgetExceeded
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger
from tallystick.run_folder.own_network import MEMBERS
from tallystick.run_folder.shared_head import RowScores, keep_row_scores
from tallystick.scoring.explain import check_explained
from tallystick.secret_sharing.ring import MaskStream
from tallystick.serving import opened_scores
from tallystick.serving import side as online_side
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
ROWS = 400
FEW = 200
"""Rows for tests of what crosses, which no accuracy changes."""


LEARNS = {"epochs": 40}


def shared(**changes):
    """Return a small contract of a head on shares, for a label party, a feature party and a helper."""
    values = contract_values(PARTIES, **changes)
    values["parties"]["aid"] = {"role": "helper"}
    values["training"] = {"gradients": "shared", "epochs": 4, **values["training"].get("shared", {})}
    values.pop("model")
    values["evaluation"].setdefault("own_columns_baseline", False)
    return values | {"audit": "quick"}


FULL = [(shared_head, "OWN_EPOCHS", (20, 20)), *((module, name, getattr(module, name)) for module, name, _ in SMALL[1:])]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for each in SMALL:
        monkeypatch.setattr(*each)


@pytest.fixture
def full(_small, monkeypatch):
    """Make the usual settings, for tests of accuracy, but train the own network for fewer epochs."""
    for each in FULL:
        monkeypatch.setattr(*each)


@pytest.mark.parametrize("target", short_lane_of(["multiclass", "binary", "regression"], 1))
def test_a_head_on_shares_brings_what_joining_brings(target, full):
    # Each side's column has half of the label. All draws are seeded but the masks, which only change last places.
    kind = {"type": target} | ({"classes": 3} if target == "multiclass" else {})
    contract = parse_contract(shared(target=kind, training__shared=LEARNS, evaluation__own_columns_baseline=True))
    result = simulate(contract, tables(PARTIES, rows=ROWS, target=target), columns(PARTIES), secret_seed=1)
    joint, own = (result.evaluation[which] for which in ("joint", "local_baseline"))
    if target == "regression":
        assert joint["rmse"]["value"] < 0.75 * own["rmse"]["value"]
    else:
        assert joint["auc"]["value"] > own["auc"]["value"] + 0.08
    assert result.sections.leakage.nothing_sent
    assert any("A run cannot measure what its scores reveal" in note for note in result.sections.notes)


def shapes_of(frames, parties=None, *, values=None, **options):
    """Return the kind and the size of each message, in order, by receiver, in a simulation of these tables.

    What a party says at home, after it has left, is not a message.
    """
    sent, send = {}, MemoryChannel.send

    def noted(channel, message):
        sent.setdefault((id(channel), channel.peer), []).append((type(message).__name__, len(encode(message))))
        send(channel, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryChannel, "send", noted)
        with suppress(DataError):
            simulate(parse_contract(values or shared()), frames, parties or columns(PARTIES), secret_seed=1, **options)
    return sorted((peer, messages) for (_, peer), messages in sent.items())


@cache
def usual_shapes(who=PARTIES, features=("x", "noise", "kind")):
    """Return those of the usual tables, with these features alone for these parties."""
    return shapes_of(tables(PARTIES, rows=FEW), with_features(who, features))


def with_features(who, names):
    parties = columns(PARTIES)
    for party in who:
        parties[party]["features"] = {
            "numeric": [name for name in names if name != "kind"],
            "categorical": [name for name in names if name == "kind"],
        }
    return parties


def together_or_each(parties):
    """All parties at once. In the long lane also one by one, which shows on whose columns or order a message depends."""
    return [tuple(parties), *(pytest.param((name,), marks=pytest.mark.long) for name in parties)]


@pytest.mark.parametrize("order", short_lane_of(["y", "id"], 1))
def test_no_message_s_kind_size_or_place_depends_on_the_order_of_a_table(order):
    frames = tables(PARTIES, rows=FEW)
    changed = {**frames, "bank": frames["bank"].sort(order)}
    assert usual_shapes() == shapes_of(changed)


def with_weights(rows):
    """Make tables in which a third of the labels is flipped, and these rows have no weight."""
    frames, parties = tables(PARTIES, rows=rows), columns(PARTIES)
    parties["bank"]["weight"] = "weight"
    bank = (
        frames["bank"]
        .with_row_index("place")
        .with_columns(
            weight=pl.when(pl.col("place") % 3 == 0).then(0.0).otherwise(1.0),
            y=pl.when(pl.col("place") % 3 == 0).then(1 - pl.col("y")).otherwise(pl.col("y")),
        )
    )
    return frames | {"bank": bank}, parties


def test_rows_of_no_weight_teach_nothing(full):
    # With equal weights the flipped labels cost AUC; without weight they do not.
    frames, parties = with_weights(ROWS)
    joint = simulate(parse_contract(shared()), frames, parties, secret_seed=1).evaluation["joint"]["auc"]["value"]
    assert joint > 0.85  # weights count in the evaluation, too; with equal weights it is .56


SEVERAL = ("bank", "club", "shop")
"""Make a label party and two feature parties, each with a third of the label in its columns."""


def shared_by_several(**changes):
    values = shared(**changes)
    return values | {"parties": {**{name: {"role": "feature"} for name in SEVERAL}, **values["parties"]}}


def test_several_feature_parties_each_bring_what_their_columns_tell():
    # With a constant instead of a party's column the AUC is .81 or .78. All draws are seeded but the masks, which change last
    # places.
    contract = parse_contract(shared_by_several(training__shared={"epochs": 10}))
    result = simulate(contract, tables(SEVERAL, rows=ROWS), columns(SEVERAL), secret_seed=1)
    assert result.evaluation["joint"]["auc"]["value"] > 0.93


def test_with_several_feature_parties_each_is_told_what_it_learns():
    contract = parse_contract(shared_by_several())
    result = simulate(contract, tables(SEVERAL, rows=120), columns(SEVERAL), secret_seed=1)
    facts = {item.party: item.what for item in result.learnt if item.step == "training"}
    assert facts["club"].startswith("Nothing about labels or columns of bank and shop")
    assert facts["shop"].startswith("Nothing about labels or columns of bank and club")
    lines = " ".join(disclosure_lines(contract, own_columns=None))
    assert "neither bank nor another feature party receives anything about the columns of one of club and shop" in lines
    assert "as long as aid works with none of them" in lines
    assert "even if all of them work together" not in " ".join(disclosure_lines(parse_contract(shared()), own_columns=None))


@pytest.mark.parametrize("who", together_or_each(SEVERAL[1:]))
def test_no_message_s_kind_size_or_place_depends_on_columns_of_one_of_several(who):
    frames, parties = tables(SEVERAL, rows=120), columns(SEVERAL)
    changed = frames | {name: frames[name].with_columns(x=pl.lit(1.0), kind=pl.lit("red")).sort("noise") for name in who}
    values = shared_by_several()
    assert shapes_of(frames, parties, values=values) == shapes_of(changed, parties, values=values)


def test_weights_show_in_no_message():
    frames, parties = with_weights(FEW)
    others = frames | {"bank": frames["bank"].with_columns(weight=pl.col("x").abs())}
    assert shapes_of(frames, parties) == shapes_of(others, parties)


@pytest.mark.parametrize("labels", short_lane_of(["one class", "turned"], 1))
def test_no_message_s_kind_size_or_place_depends_on_a_label(labels):
    frames = tables(PARTIES, rows=FEW)
    other = {"turned": 1 - pl.col("y"), "one class": pl.when(pl.col("day") > 1).then(0).otherwise(pl.col("y"))}[labels]
    changed = {**frames, "bank": frames["bank"].with_columns(y=other)}
    assert usual_shapes() == shapes_of(changed)


CELLS_OF_COMMON_ROWS = {
    "one column says nothing": {"kind": pl.lit("red")},
    "no column says anything": {"kind": pl.lit("red"), "x": pl.lit(1.0)},
    "a cell is missing": {"x": pl.lit(None)},
    "there are more categories": {"kind": pl.concat_str(pl.lit("kind "), pl.int_range(pl.len()) // 4)},
}
"""Set what the common rows hold, all of them or one, instead of the table's values. Other parties' ids decide which
rows these are.
"""


@pytest.mark.parametrize("who", together_or_each(PARTIES), ids=" and ".join)
@pytest.mark.parametrize(("cells", "features"), by_turns(CELLS_OF_COMMON_ROWS, [("x", "kind"), ("kind",), ("x",)]))
def test_no_message_s_kind_size_or_place_depends_on_what_columns_hold(cells, features, who):
    frames, parties = tables(PARTIES, rows=FEW), with_features(who, features)
    common = list(set(frames["bank"]["id"]) & set(frames["shop"]["id"]))
    changed_ids = common[:1] if cells == "a cell is missing" else common
    changes = {
        name: pl.when(pl.col("id").is_in(changed_ids)).then(value).otherwise(pl.col(name))
        for name, value in CELLS_OF_COMMON_ROWS[cells].items()
    }
    changed = frames | {name: frames[name].with_columns(**changes) for name in who}
    assert usual_shapes(who, features) == shapes_of(changed, parties)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"hidden": [4]}}, "model.hidden: the features of a head on shares are built in"),
        ({"training": {"gradients": "shared", "ema": 0.9}}, "training.ema: a head on shares has no such setting"),
        ({"training": {"gradients": "shared", "learning_rate": 1.5}}, "learning_rate = 1.5: steps could leave the range"),
        ({"target": {"type": "count"}}, "a head on shares only has squared and logistic loss; choose regression"),
        (
            {"training": {"gradients": "shared", "learning_rate": 0.6}, "target": {"type": "regression"}},
            "learning_rate = 0.6: .* choose at most 0.5",
        ),
        ({"training": {"gradients": "shared", "batch_size": 31}}, "batch_size = 31: with so few rows a step"),
        ({"unaligned": {"method": "warm-start"}}, "unaligned.method = warm-start: a head on shares cannot use such rows"),
        ({"defense": [{"method": "label-dp", "epsilon": 1.0}]}, "defense.0.method = label-dp: neither embeddings nor gradients"),
        ({"alignment": {"method": "union", "keys": [{"name": "id"}]}}, "needs one row of each side"),
        ({"evaluation": {"share_metrics": ["auc"]}}, "figures of the test labels would leave"),
        ({"evaluation": {"importance": {"feature_columns": "both"}}}, "would score rows again"),
        ({"serving": {"ways": ["key"]}}, "choose only ahead, which answers requests with these scores"),
        ({"serving": {"ways": ["ahead", "window"]}}, "serving.ways = .*window.*: a row has one score, which tallystick predict"),
        ({"serving": {"ways": ["ahead"], "questions_a_day": 9}}, "no question crosses; leave them out, and limit scores by"),
        ({"tuning": {"keys": {"training.learning_rate": {"low": 0.1, "high": 0.5}}}}, "each trial would open scores"),
        ({"parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}}}, "training.gradients = shared needs exactly one"),
        (
            {"parties": {name: {"role": role} for name, role in
                         (("bank", "label"), ("shop", "feature"), ("club", "feature"), ("aid", "helper"))}, "explore": {}},
            "explore: two parties draw a sample, and this contract has 2 feature parties",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_head_on_shares_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_contract(shared() | changes)


def test_check_says_what_is_learnt_what_is_assumed_and_that_labels_are_an_input():
    lines = " ".join(disclosure_lines(parse_contract(shared()), own_columns=True))
    for part in (
        "secret shares, each of them uniform",
        "all sides follow the protocol, the helper works with no party",
        "takes a column it partly knows for the label, or several columns packed into one label, learns them",
        "aid learns how many rows, columns and steps there are",
        "one score for each validation row, test row and row of a prediction",
    ):
        assert part in lines
    assert "cut embedding" not in lines


def test_check_counts_the_scores_of_a_row_by_classes():
    lines = " ".join(disclosure_lines(parse_contract(shared(target={"type": "multiclass", "classes": 7})), own_columns=True))
    assert "learns 7 scores (one for each class) for each validation row" in lines
    assert "Nobody should sign for columns with several classes" in lines
    assert "one score" not in lines


def test_every_message_that_crosses_is_said_before_the_run_and_after_it(monkeypatch):
    crossed, send = set(), MemoryChannel.send

    def noted(channel, message):
        crossed.add(type(message).__name__)
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", noted)
    contract = parse_contract(shared())
    result = simulate(contract, tables(PARTIES, rows=FEW), columns(PARTIES), secret_seed=1)
    assert not crossed & {"CutEmbedding", "CutGradient"}
    lines = disclosure_lines(contract, own_columns=None)
    for name in crossed:
        rows = [row for row in DISCLOSURES if any(field.split(".")[0] == name for field in row.fields)]
        said = [line for row in rows for line in row.sentences(contract)]
        assert said, f"{name} crossed, and check does not say so"
        assert set(said) <= set(lines)
    facts = {item.party: item.what for item in result.learnt if item.step == "training"}
    assert "One score for each of" in facts["bank"]
    assert "Nothing about labels or columns" in facts["shop"]


def test_what_a_party_file_cannot_have_is_refused_by_name():
    parties = columns(PARTIES)
    parties["bank"]["training_workers"] = 2
    with pytest.raises(ConfigError, match=r"with training.gradients = shared a head on shares is trained in one process"):
        simulate(parse_contract(shared()), tables(PARTIES, rows=60), parties)


def test_labels_that_make_the_own_network_diverge_end_nothing_that_others_see(monkeypatch):
    steps, train = [], shared_head.train_network

    def diverging(model, own, objective, peers, run):
        if not steps:
            steps.append(run.schedule.steps_per_epoch)
            run.progress("training", steps[0], run.steps)
            raise Diverged("the loss is not finite")
        steps.append(run.steps)
        return train(model, own, objective, peers, run)

    monkeypatch.setattr(shared_head, "train_network", diverging)
    result = simulate(parse_contract(shared()), tables(PARTIES, rows=ROWS), columns(PARTIES), secret_seed=1)
    assert result.evaluation["joint"]["auc"]["value"] > 0.8
    usual = []
    monkeypatch.setattr(shared_head, "train_network", lambda *given: usual.append(given[-1].steps) or train(*given))
    simulate(parse_contract(shared()), tables(PARTIES, rows=ROWS), columns(PARTIES), secret_seed=1)
    assert sum(steps) == sum(usual)  # as many steps in all, whether or not it diverged


def test_the_own_network_takes_as_many_steps_whatever_its_columns_say(monkeypatch):
    # Closing useless columns would show in its time
    train, runs = shared_head.train_network, []
    monkeypatch.setattr(shared_head, "train_network", lambda *given: runs.append(given[-1]) or train(*given))
    frames = tables(PARTIES, rows=120)
    for label in (pl.col("y"), pl.Series(np.arange(len(frames["bank"])) % 2)):  # the second one is useless
        changed = {**frames, "bank": frames["bank"].with_columns(y=label)}
        simulate(parse_contract(shared()), changed, columns(PARTIES), secret_seed=1)
    assert [run.screening for run in runs] == [None] * 2 * MEMBERS
    assert [run.steps for run in runs[:MEMBERS]] == [run.steps for run in runs[MEMBERS:]]


def test_no_row_s_own_logit_comes_from_a_member_that_learnt_from_it(full, monkeypatch):
    # Labels are coins, so logits of rows that a member learnt from alone can show them: with 300 rows a guess is .5 +- .03
    judged = []
    monkeypatch.setattr(shared_head, "unexplained_share", lambda logits, labels, *_: judged.append((logits, labels)) or 1.0)
    frames, contract = tables(PARTIES, rows=ROWS), parse_contract(shared())
    coins = pl.Series(np.random.default_rng(5).integers(0, 2, len(frames["bank"])))
    simulate(contract, {**frames, "bank": frames["bank"].with_columns(y=coins)}, columns(PARTIES), secret_seed=1)
    ((logits_N1, labels_N1),) = judged
    assert abs(roc_auc_score(labels_N1[:, 0], logits_N1[:, 0]) - 0.5) < 0.15


def test_labels_far_from_the_others_are_said_at_home():
    heard = Heard()
    frames = tables(PARTIES, rows=ROWS, target="regression")
    far = pl.when(pl.int_range(pl.len()) < 3).then(1e12).otherwise(pl.col("y"))
    contract = parse_contract(shared(target={"type": "regression"}))
    simulate(contract, {**frames, "bank": frames["bank"].with_columns(y=far)}, columns(PARTIES), secret_seed=1, watcher=heard)
    assert any("training labels are more than 8 deviations from their mean" in line for line in heard.lines)


class Heard(Silent):
    """Collects lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def test_scores_near_the_edge_of_the_range_or_out_of_it_are_said_at_home(monkeypatch):
    heard = Heard()
    monkeypatch.setattr(shared_head, "LEAST_NEAR_EDGE", 0)
    monkeypatch.setattr(shared_head, "RANGE", 0.01)
    simulate(parse_contract(shared()), tables(PARTIES, rows=120), columns(PARTIES), secret_seed=1, watcher=heard)
    near, beyond = (
        [line for line in heard.lines if words in line]
        for words in ("in training, scores came near ", "scores are beyond 0.01, where training on shares goes wrong")
    )
    assert len(near) == len(beyond) == 1
    assert "where training on shares goes wrong, about 0 times" in near[0]


def test_a_training_of_numbers_that_diverged_is_said_at_home(monkeypatch):
    heard = Heard()
    monkeypatch.setattr(shared_head, "MOST_DEVIATIONS", 0.01)
    contract = parse_contract(shared(target={"type": "regression"}))
    frames = tables(PARTIES, rows=120, target="regression")
    simulate(contract, frames, columns(PARTIES), secret_seed=1, watcher=heard)
    said = [line for line in heard.lines if "0.01 deviations or more off, so training diverged" in line]
    assert [line.rpartition(": ")[2] for line in said] == ["lower training.learning_rate"]


def test_a_training_whose_scores_are_not_counted_tells_nothing(monkeypatch):
    # Otherwise a label party that stops before scores are opened has the count at the edge of as many trainings as it likes
    crossed, send = [], MemoryChannel.send

    def noted(channel, message):
        crossed.append(type(message).__name__)
        send(channel, message)

    def refused(*_, **__):
        raise BudgetExceeded("privacy.scores_per_row = 1")

    monkeypatch.setattr(MemoryChannel, "send", noted)
    simulate(parse_contract(shared()), tables(PARTIES, rows=60), columns(PARTIES), secret_seed=1)
    assert crossed.count("EdgeShares") == 1
    crossed.clear()
    monkeypatch.setattr(shared_head, "count_scores", refused)
    with pytest.raises(BudgetExceeded):
        simulate(parse_contract(shared()), tables(PARTIES, rows=60), columns(PARTIES), secret_seed=1)
    assert "MaskedSteps" in crossed
    assert not {"EdgeShares", "ScoreShares"} & set(crossed)


def lay_out(root, contract, frames):
    """Lay out the job on disk, with the helper's home."""
    listening = {name: f"127.0.0.1:{free_port()}" for name in ("bank", "aid")}
    files = {name: {"table": {"path": "table.parquet"}, **columns(PARTIES)[name], "threads": 1} for name in PARTIES}
    files["bank"] |= {"listen": listening["bank"], "peers": {"aid": {"address": listening["aid"]}}}
    files["shop"] |= {"peers": {name: {"address": address} for name, address in listening.items()}}
    files["aid"] = {"listen": listening["aid"], "threads": 1}
    for name, home in write_job(root, contract, files).items():
        if name in frames:
            frames[name].write_parquet(home / "table.parquet")
    return OnDisk(root, ("bank", "shop", "aid"), before=short_own_network)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Make a finished run over TLS, of nine tenths of the rows; the other tenth is for prediction."""
    frames = tables(PARTIES, rows=ROWS)
    seen = {name: frame.filter(pl.col("id") < f"id-{9 * ROWS // 10:06}") for name, frame in frames.items()}
    job = lay_out(tmp_path_factory.mktemp("shared"), shared(serving={"ways": ["ahead"]}), seen)
    job.run_all()
    for name, frame in frames.items():
        frame.filter(pl.col("id") >= f"id-{9 * ROWS // 10:06}").write_parquet(job.home(name) / "new.parquet")
    return job, frames


def predict_all(job, tables_of, output):
    more = {"bank": ("--table", tables_of, "--output", output), "shop": ("--table", tables_of), "aid": ()}
    running = {name: job.start(name, "predict", *more[name]) for name in job.parties}
    return {name: (each.end(), each) for name, each in running.items()}


def test_new_rows_get_a_score_over_tls_and_no_second_one(trained):
    job, frames = trained
    codes = predict_all(job, "new.parquet", "scores.csv")
    assert {name: code for name, (code, _) in codes.items()} == dict.fromkeys(job.parties, 0), codes["bank"][1].said
    for name, (_, party) in codes.items():
        what = "dealing for scores" if name == "aid" else "scoring on shares"
        assert any(event.get("what") == what and event["done"] == event["total"] for event in party.events), party.events
    scores = pl.read_csv(job.home("bank") / "scores.csv").join(frames["bank"].select("id", "y"), on="id")
    # Some 36 rows, half of whose label is on each side: an AUC of .75 is far from the usual .9 and from a guess.
    order = scores.sort("score").with_row_index("rank")
    positives, negatives = int(order["y"].sum()), int((1 - order["y"]).sum())
    auc = (order.filter(pl.col("y") == 1)["rank"].sum() - positives * (positives - 1) / 2) / (positives * negatives)
    assert auc > 0.75
    # The same rows again have the same scores, to the bit, because the kept shares are opened again
    again = predict_all(job, "new.parquet", "again.csv")
    assert {name: code for name, (code, _) in again.items()} == dict.fromkeys(job.parties, 0), again["bank"][1].said
    assert (job.home("bank") / "again.csv").read_bytes() == (job.home("bank") / "scores.csv").read_bytes()
    # Some of them with other columns, with rows that were scored after training: each keeps its only score
    scored = {name: (job.runs(name)[-1] / "scored-rows.safetensors").read_bytes() for name in PARTIES}
    for name in PARTIES:
        new = pl.read_parquet(job.home(name) / "new.parquet").sort("id")[1:].with_columns(x=-pl.col("x"))
        old = pl.read_parquet(job.home(name) / "table.parquet").select(new.columns)
        pl.concat([new, old]).write_parquet(job.home(name) / "whole.parquet")
    whole = predict_all(job, "whole.parquet", "whole.csv")
    assert {name: code for name, (code, _) in whole.items()} == dict.fromkeys(job.parties, 0), whole["bank"][1].said
    first, then = (pl.read_csv(job.home("bank") / f"{name}.csv") for name in ("scores", "whole"))
    both = first.join(then, on="id", suffix="_then")
    assert len(both) == len(first) - 1
    assert both["score"].equals(both["score_then"], check_names=False)
    assert len(then) > len(first)
    shares = {name: sorted(path.stat().st_size for path in job.runs(name)[-1].glob("score-shares-*")) for name in PARTIES}
    assert len(shares["bank"]) == len(shares["shop"]) == 3  # after training, and by two predictions of new rows
    path = job.runs("bank")[-1] / "row-scores.safetensors"
    opened = load_file(path)
    assert (
        len(set(opened["rows"].tolist()))
        == len(opened["rows"])
        == len(load_file(job.runs("shop")[-1] / "scored-rows.safetensors")["rows"])
    )
    assert scored != {name: (job.runs(name)[-1] / "scored-rows.safetensors").read_bytes() for name in PARTIES}
    # A label party that lost its scores gets the same ones again, if it asks for exactly the rows that were scored together
    content = path.read_bytes()
    path.unlink()
    assert {code for code, _ in predict_all(job, "new.parquet", "lost.csv").values()} == {0}
    assert (job.home("bank") / "lost.csv").read_bytes() == (job.home("bank") / "scores.csv").read_bytes()
    others = predict_all(job, "whole.parquet", "others.csv")
    assert all(others[name][0] != 0 for name in PARTIES)
    assert any("already have a score by the head of" in others[name][1].error for name in PARTIES)
    path.write_bytes(content)


class Asked:
    """Clients of a label party that serves, in its process: their questions and the answers."""

    def __init__(self, job, patch, asks):
        (job.home("bank") / "tokens").write_text("a-token-of-some-length\n")
        job.change("bank", serving={"listen": "127.0.0.1:1", "token_file": "tokens", "deadline_ms": 60_000.0})
        patch.setattr(opened_scores, "answer_clients", self.answer)
        self.asks, self.heard = asks, Heard()
        self.contract, party = (load(job.home("bank") / f"{name}.yaml") for name, load in LOADS.items())
        opened_scores.serve_opened_scores(self.contract, party, table=None, run=None, watcher=self.heard)

    def answer(self, _side, server, score, *, stopped):
        self.app = server.config.app
        thread = threading.Thread(target=score)
        thread.start()
        try:
            while self.call("GET", "/readyz").text != "ready\n":
                time.sleep(0.01)
            self.asks(self)
        finally:
            stopped.set()
            thread.join()

    def call(self, method, path, **options):
        async def request():
            headers = {"authorization": "Bearer a-token-of-some-length"}
            async with AsyncClient(transport=ASGITransport(app=self.app), base_url="http://bank") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(request())

    def rows(self, *rows):
        return self.call("POST", "/v1/score", json={"rows": list(rows)})


LOADS = {"contract": load_contract, "party": load_party}


def test_clients_are_answered_with_opened_scores_and_nobody_is_called(trained, monkeypatch):
    job, _ = trained
    assert {code for code, _ in predict_all(job, "new.parquet", "served.csv").values()} == {0}
    scores = {row["id"]: row for row in pl.read_csv(job.home("bank") / "served.csv").to_dicts()}
    new, table = pl.read_parquet(job.home("bank") / "new.parquet"), pl.read_parquet(job.home("bank") / "table.parquet")
    calls = []
    for module in (online_side, process):
        monkeypatch.setattr(module, "with_sessions", lambda *_, **__: calls.append(1))
    folder = RunFolder.open(job.runs("bank")[-1], key=None)
    opened = RowScores.load(folder, outputs=1)
    ids = table["id"].to_list()
    unscored = [id for id, place in zip(ids, opened.places([id.encode() for id in ids]), strict=True) if place < 0]
    # Rows that have a score are put into the table, with other columns; those of the table stay
    new = new.with_columns(x=-pl.col("x"))
    pl.concat([table, new.select(table.columns)]).write_parquet(job.home("bank") / "table.parquet")

    def ask(clients):
        told = clients.rows(*({"id": id} for id in new["id"])).json()["scores"]
        for id, row in zip(new["id"], told, strict=True):
            if id in scores:
                assert (row["scored_by"], row["scored_on"]) == ("joint model", scores[id]["scored_on"])
                assert np.float32(row["score"]) == np.float32(scores[id]["score"])
            else:
                assert (row["scored_by"], row["scored_on"]) == ("own columns", None)
        assert told == clients.rows(*({"id": id} for id in new["id"])).json()["scores"]
        (alone,) = clients.rows({"id": unscored[0]}).json()["scores"]
        assert (alone["scored_by"], alone["scored_on"]) == ("own columns", None)
        assert clients.rows({"id": "nobody"}).status_code == 404
        brought = clients.rows({"id": unscored[0], "x": 1.0, "noise": 0.0, "kind": "red"})
        assert brought.status_code == 422
        assert "and a row has only one" in brought.json()["detail"]
        # A prediction that ends meanwhile counts
        keep_row_scores(folder, [unscored[0].encode()], np.array([[0.0]]))
        (joint,) = clients.rows({"id": unscored[0]}).json()["scores"]
        assert (joint["score"], joint["scored_by"]) == (0.5, "joint model")
        assert clients.call("GET", "/openapi.json").json()["paths"]["/v1/score"]

    kept = (folder.path / "row-scores.safetensors").read_bytes()
    try:
        clients = Asked(job, monkeypatch, ask)
    finally:
        (folder.path / "row-scores.safetensors").write_bytes(kept)
        table.write_parquet(job.home("bank") / "table.parquet")
        job.change("bank", serving=None)
    assert not calls
    with pytest.raises(ConfigError, match="bank answers alone, with scores that `tallystick predict` opened, and shop takes no"):
        opened_scores.serve_opened_scores(
            clients.contract, load_party(job.home("shop") / "party.yaml"), table=None, run=None, watcher=clients.heard
        )
    assert any("neither shop nor aid learns that there was a request" in line for line in serving_lines(clients.contract))


def test_a_feature_party_measures_at_home_what_a_column_as_label_would_tell(trained):
    job, _ = trained
    result = json.loads((job.runs("shop")[-1] / "result.json").read_text())
    (audit,) = result["sections"]["features"]
    assert audit["summary"].startswith("bank chooses the labels")
    (group,) = audit["groups"]
    rows = group["attacked"]
    figures = {(each["name"], each["known"]): each["value"] for each in group["columns"]}
    # All columns are among the features, so half of the rows are enough; drawing some 44 rows hardly changes that
    assert min(figures[name, rows // 2] for name in ("x", "noise", "kind")) > 0.9
    assert any("neither side has both the scores and the columns" in line for line in audit["not_measured"])
    page = (job.runs("shop")[-1] / "report.html").read_text()
    assert "Through the scores of a run that uses the column as its label, yes" in page
    again = Command("audit", job.runs("shop")[-1], "--known-rows", "30", folder=job.home("shop"))
    assert again.end() == 0, again.error
    assert "knowing the columns of" in again.out
    labels = json.loads((job.runs("bank")[-1] / "result.json").read_text())["sections"]["leakage"]
    assert labels["nothing_sent"]


def test_a_column_as_label_is_read_off_the_scores_of_a_real_run(tmp_path):
    # The leak that the audit at home measures: the label party knows x of the shop for its training rows
    frames = tables(PARTIES, rows=ROWS)
    stolen = frames["shop"].select("id", y="x")
    frames["bank"] = frames["bank"].drop("y").join(stolen, on="id")
    contract = parse_contract(shared(target={"type": "regression"}, training__shared=LEARNS))
    result = simulate(contract, frames, columns(PARTIES), secret_seed=1, folder=tmp_path)
    spread = float(frames["shop"]["x"].std())
    assert 1 - (result.evaluation["joint"]["rmse"]["value"] / spread) ** 2 > 0.9


def test_no_seed_of_masks_is_written_to_disk(tmp_path, monkeypatch):
    # With a party's seed the helper's deals, or the peer's view, show all of its columns and labels
    seeds, begin = [], MaskStream.__init__

    def noted(stream, seed):
        seeds.append(seed)
        begin(stream, seed)

    monkeypatch.setattr(MaskStream, "__init__", noted)
    simulate(parse_contract(shared()), tables(PARTIES, rows=120), columns(PARTIES), secret_seed=1, folder=tmp_path)
    assert len(set(seeds)) == 2
    assert len(seeds) == 4  # each party's, alone and with the helper
    content = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [seed for seed in seeds for each in content if seed in each or seed.hex().encode() in each]


def test_scores_on_shares_are_not_explained():
    with pytest.raises(ConfigError, match="--explain: it needs several scores of a row"):
        check_explained(parse_contract(shared()), "bank")


def opened(job):
    """Return the scores that the label party's last run got."""
    return load_file(job.runs("bank")[-1] / "view" / "opened-scores.safetensors")["scores"].numpy()


@pytest.mark.parametrize("command", [("run", "--resume"), ("train",)])
def test_a_run_whose_scores_were_opened_is_not_trained_again(command, trained):
    # Trained anew in its folder, it would open a second score of the same rows under the same name.
    job, _ = trained
    before = opened(job)
    kept = {name: (job.runs(name)[-1] / "scored-rows.safetensors").read_bytes() for name in PARTIES}
    models = {name: job.models(name)[-1] for name in PARTIES}
    path = job.home("bank") / "table.parquet"  # with other labels, too
    pl.read_parquet(path).with_columns(y=1 - pl.col("y")).write_parquet(path)
    job.run_all(*command)
    assert np.array_equal(opened(job), before)
    assert kept == {name: (job.runs(name)[-1] / "scored-rows.safetensors").read_bytes() for name in PARTIES}
    assert models == {name: job.models(name)[-1] for name in PARTIES}


def lost(*names):
    """Lose the shares of scores that these parties keep."""
    for path in names:
        for file in path.glob("score-shares-*"):
            file.unlink()


@pytest.mark.parametrize("who", PARTIES)
def test_no_second_score_comes_of_lost_shares(who, trained, tmp_path):
    job, _ = trained
    copies = {}
    for name in PARTIES:
        copies[name] = {path: path.read_bytes() for path in job.runs(name)[-1].glob("score-shares-*")}
    lost(job.runs(who)[-1])
    running = job.start_all("run", "--resume")
    assert all(each.end() != 0 for name, each in running.items() if name in PARTIES)
    assert any("already have a score by the head of" in each.error for each in running.values())
    for path, content in copies[who].items():
        path.write_bytes(content)


POINTS = [
    *(("bank", step, after) for step in ("keep", "enter_scored", "open_scores_label_party") for after in (False, True)),
    *(("shop", step, after) for step in ("keep", "enter_scored", "open_scores_feature_party") for after in (False, True)),
]


def kept_shares(job, who):
    """Return the shares that a party's last run keeps, and the rows that they are of, as its positions have them. Return None
    without.
    """
    files = list(job.runs(who)[-1].glob("score-shares-*"))
    assert len(files) <= 1
    return load_file(files[0])["shares"].numpy().view(np.uint64) if files else None


@pytest.mark.parametrize(("who", "step", "after"), short_lane_of(POINTS[::-1], 1))
def test_a_party_that_is_killed_while_scores_are_opened_loses_none_and_opens_no_other(who, step, after, tmp_path):
    job = lay_out(tmp_path, shared(), tables(PARTIES, rows=200))
    role = "label" if who == "bank" else "feature"
    running = {name: job.start(name, before=partial(die, role, step, after) if name == who else None) for name in job.parties}
    assert running[who].end() == -signal.SIGKILL
    for name in PARTIES:
        running[name].end()
    shares = {name: kept_shares(job, name) for name in PARTIES}
    noted = {name: (job.runs(name)[-1] / "scored-rows.safetensors").exists() for name in PARTIES}
    # Nothing crosses before the label party keeps its shares and the feature party has noted it
    assert not noted["shop"] or shares["bank"] is not None
    job.run_all("run", "--resume")
    assert (job.runs("bank")[-1] / "result.json").exists()
    if noted["shop"]:  # then a score may have crossed, and there is no other
        together = (shares["bank"] + shares["shop"]).view(np.int64) / 2**12
        assert np.array_equal(opened(job), together)


@pytest.mark.long
def test_halves_of_two_trainings_never_score_rows_together(tmp_path):
    # Killed twice: bank has the half of the first training, shop that of the second
    job = lay_out(tmp_path, shared(), tables(PARTIES, rows=200))
    for command, dying in (("run",), partial(die, "label", "keep", False)), (("run", "--resume"), die_before_the_head_is_kept):
        running = {name: job.start(name, *command, before=dying if name == "bank" else None) for name in job.parties}
        assert running["bank"].end() == -signal.SIGKILL
        for name in PARTIES:
            running[name].end()
    predicted = job.start("bank", "predict", "--output", "scores.csv")
    assert predicted.end() != 0
    assert "holds no trained model" in predicted.error


@pytest.mark.long  # the steps of the run that is killed above
@pytest.mark.parametrize(("who", "step"), [("shop", "enter_scored"), ("bank", "open_scores_label_party")])
def test_a_prediction_that_is_killed_while_scores_are_opened_loses_none(who, step, tmp_path):
    frames = tables(PARTIES, rows=240)
    job = lay_out(tmp_path, shared(), {name: frame.filter(pl.col("id") < "id-000200") for name, frame in frames.items()})
    job.run_all()
    for name, frame in frames.items():
        frame.filter(pl.col("id") >= "id-000200").write_parquet(job.home(name) / "new.parquet")
    role = "label" if who == "bank" else "feature"
    more = {"bank": ("--table", "new.parquet", "--output", "scores.csv"), "shop": ("--table", "new.parquet"), "aid": ()}
    running = {
        name: job.start(name, "predict", *more[name], before=partial(die, role, step, True) if name == who else None)
        for name in job.parties
    }
    assert running[who].end() == -signal.SIGKILL
    for each in running.values():
        each.end()
    assert {code for code, _ in predict_all(job, "new.parquet", "scores.csv").values()} == {0}
    scored = pl.read_csv(job.home("bank") / "scores.csv")
    files = {name: max(job.runs(name)[-1].glob("score-shares-*"), key=lambda path: path.stat().st_mtime) for name in PARTIES}
    shares = {name: load_file(path)["shares"].numpy().view(np.uint64) for name, path in files.items()}
    together = np.sort((shares["bank"] + shares["shop"]).view(np.int64).ravel() / 2**12)
    assert np.allclose(np.sort(scored["score"].to_numpy()), 1 / (1 + np.exp(-together)), atol=1e-6)


def test_a_feature_party_bounds_the_scores_of_its_rows_over_runs_and_predictions(tmp_path):
    frames = tables(PARTIES, rows=240)
    seen = {name: frame.filter(pl.col("id") < "id-000200") for name, frame in frames.items()}
    job = lay_out(tmp_path, shared(), seen)
    for name, frame in frames.items():
        frame.filter(pl.col("id") >= "id-000200").write_parquet(job.home(name) / "new.parquet")
    job.change("shop", privacy={"scores_per_row": 1})
    without = job.start("shop")  # there is no ledger to count in, and nobody is told of a run
    assert without.end() != 0
    assert "tallystick ledger PARTY.yaml --create" in without.error
    create_ledger(load_party(job.home("shop") / "party.yaml"))
    job.run_all()
    assert {code for code, _ in predict_all(job, "new.parquet", "scores.csv").values()} == {0}
    job.run_all("run", "--resume")  # the same scores
    shown = Command("ledger", "party.yaml", folder=job.home("shop"))
    assert shown.end() == 0
    assert shown.out.count("one score of each of") == 2
    assert shown.out.count("a row has up to 1 now") == 2
    # Folders are restored as before any score: training anew in them gives another model
    lost(*(job.runs(name)[-1] for name in PARTIES))
    for name in PARTIES:
        (job.runs(name)[-1] / "scored-rows.safetensors").unlink()
    back = job.start_all("run", "--resume")
    assert back["shop"].end() != 0
    assert "privacy.scores_per_row = 1: of" in back["shop"].error
    for name in ("bank", "aid"):  # nobody told them of it, so they wait
        back[name].kill()
    second = job.start("shop")  # another model over the same rows
    assert second.end() != 0
    assert "privacy.scores_per_row = 1: of" in second.error
    assert "there would be up to 2 scores (so far up to 1" in second.error
    changed = job.root / "other.yaml"
    values = yaml.safe_load((job.home("shop") / "contract.yaml").read_text())
    changed.write_text(yaml.safe_dump(values | {"name": "other", "seed": 2}))
    checked = Command("check", "party.yaml", changed, "--json", folder=job.home("shop"))
    assert checked.end() != 0  # another contract, by whose split some of these rows get a score
    assert any("privacy.scores_per_row = 1" in line for line in json.loads(checked.out)["problems"])
    job.change("shop", privacy={"scores_per_row": 2})
    job.run_all()
    third = job.start("shop")
    assert third.end() != 0


def test_only_a_feature_party_bounds_scores_and_only_on_shares():
    parties = columns(PARTIES)
    bound = {"privacy": {"scores_per_row": 1}}
    with pytest.raises(ConfigError, match=r"only a feature party under .* can limit scores by it"):
        simulate(parse_contract(shared()), tables(PARTIES, rows=60), {**parties, "bank": parties["bank"] | bound})
    with pytest.raises(ConfigError, match=r"only a feature party under .* can limit scores by it"):
        simulate(parse_contract(contract_values(PARTIES)), tables(PARTIES, rows=60), {**parties, "shop": parties["shop"] | bound})


def test_neither_half_tells_the_weights_and_no_other_command_takes_it(trained):
    job, _ = trained
    halves = {name: json.loads((job.runs(name)[-1] / "training.json").read_text()) for name in PARTIES}
    assert all(half["head"] == "shared" for half in halves.values())
    export = Command("export", job.runs("bank")[-1], "--to", "half", folder=job.home("bank"))
    assert export.end() != 0
    assert "holds shares of a head" in export.error


@pytest.mark.long
@pytest.mark.parametrize("who", [*PARTIES, "aid"])
def test_a_run_goes_on_after_any_side_was_killed(who, tmp_path):
    frames = tables(PARTIES, rows=ROWS)
    job = lay_out(tmp_path, shared(training__shared={"epochs": 120}), frames)
    running = job.start_all()
    what = "dealing for shares" if who == "aid" else "training on shares"
    running[who].wait_for(lambda event: event.get("progress") == what or event.get("what") == what)
    running[who].kill()
    codes = {name: each.end() for name, each in running.items()}
    # The helper waits for nobody: it may have dealt all, and left, before a party was killed.
    assert all(codes[name] != 0 for name in PARTIES)
    job.run_all("run", "--resume")
    assert (job.runs("bank")[-1] / "result.json").exists()
