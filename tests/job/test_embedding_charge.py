"""The cost of noisy embeddings: ledger, audit and page count what crossed, with the same result, and caps hold before anything
crosses.
"""

import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
from lanes import short_lane_of
from tiny import columns, contract_values, tables

from tallystick.check import check_party_file
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.cut.cut_messages import CutEmbedding
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.errors import StorageError
from tallystick.network.channel import MemoryChannel
from tallystick.privacy.events import UnsentGaussianDP
from tallystick.privacy.ledger import BudgetExceeded, Ledger
from tallystick.results import read_result
from tallystick.run_folder.embedding_charge import EmbeddingCharge, Sent, count_anew, evaluation_ahead, sent_by, training_ahead
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger, with_ledger_named
from tallystick.run_folder.trained import Architecture
from tallystick.simulation import simulate
from tallystick.training import feature_defense
from tallystick.training.feature_defense import DefendedBottom

PARTIES = ("bank", "shop")
EPSILON, DELTA = 0.5, 1e-6
NOISE = {"method": "gaussian-embeddings", "epsilon": EPSILON, "delta": DELTA, "clip": 1.0}


class Watched(torch.nn.Module):
    """A bottom model that records which rows it embeds, by numbers that differ between rows."""

    width = 4

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 4)
        self.embedded = []

    def forward(self, features):
        self.embedded.append([tuple(row) for row in features.numeric_NF.tolist()])
        return self.layer(features.numeric_NF)


def sent_rows(monkeypatch, bottom):
    """Count how often each row's embedding crosses. A message holds what was embedded last."""
    crossed = Counter()
    send = MemoryChannel.send
    monkeypatch.setattr(feature_defense, "LEAST_TOGETHER", 0)  # rows that fill up a small batch are embedded and not sent

    def counted(channel, message):
        if isinstance(message, CutEmbedding) and channel.peer == "bank":
            rows = []
            while len(rows) < message.values.shape[0]:
                rows += bottom.embedded.pop()
            crossed.update(rows)
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", counted)
    return crossed


RUNS = {
    "an epoch": ({"training__epochs": 1}, 2),  # a validation row crosses at the epoch's end, and once more to measure columns
    "stopped early": ({"training__epochs": 9, "training__patience": 1, "training__learning_rate": 1e-9}, None),
    # A validation row: at the ends of three epochs, in each epoch of the refit, and once more to measure columns.
    "a refit": ({"training__epochs": 3, "training__refit": True}, None),
    "joint epochs before and a pass": ({"unaligned": {"method": "heuristic", "joint_epochs": 4}, "training__epochs": 2}, 7),
    "a pass for a regression": ({"unaligned": {"method": "regressor", "epochs": 1}, "training__epochs": 1}, 3),
    "a pass for a diffusion": ({"unaligned": {"method": "diffu-at", "epochs": 1}, "training__epochs": 1}, 3),
    "self-supervision before": ({"unaligned": {"method": "fedhssl", "epochs": 1}, "training__epochs": 1}, 3),
    "joint epochs before": ({"unaligned": {"method": "vfl-mpd", "joint_epochs": 3}, "training__epochs": 1}, 5),
}


@pytest.mark.parametrize(("changes", "most"), short_lane_of(RUNS.values(), 3), ids=RUNS)
def test_ledger_audit_and_page_have_the_cost_of_what_crossed(changes, most, tmp_path, monkeypatch):
    """The oracle counts, at the channel, the messages that contain each row's embedding."""
    bottom = Watched()
    crossed = sent_rows(monkeypatch, bottom)
    contract = contract_values(PARTIES, audit="quick", defense=[NOISE], evaluation__importance={}, **changes)
    simulate(contract, tables(PARTIES, rows=200), columns(PARTIES), bottoms={"shop": bottom}, folder=tmp_path)
    truth = GaussianEmbeddings(epsilon=EPSILON, delta=DELTA, clip=1.0).over(max(crossed.values()))
    assert max(crossed.values()) == (most := most or max(crossed.values()))
    ledger = Ledger(tmp_path / "shop-privacy-ledger.sqlite", party="shop")
    assert ledger.total("labels-embeddings", delta=DELTA, unit="record") == pytest.approx(truth, rel=1e-12)
    (folder,) = (tmp_path / "shop").glob("tiny-*")
    sections = read_result((folder / "result.json").read_bytes()).sections
    (audit,) = sections.features
    assert sections.privacy.columns.startswith(f"noisy embeddings: ε = {truth:.3g} (δ = 1e-06) for {most} releases of a row")
    assert (audit.epsilon, audit.releases) == (pytest.approx(truth, rel=1e-12), most)
    assert f"ε = {truth:.3g} (δ = 1e-06) bounds" in (folder / "report.html").read_text()
    charge, *rest = ledger.entries()
    assert charge.event.releases - sum(each.event.releases for each in rest) == most  # epochs that early stopping left out
    assert bool(rest) == (charge.event.releases > most)


def test_seven_releases_of_epsilon_one_cost_what_seven_do():
    """The schedule is "joint epochs before and a pass". With a ledger that missed two epochs the ledger said 1.45, the
    audit 2.65.
    """
    noise = GaussianEmbeddings(epsilon=1.0, delta=DELTA, clip=1.0)
    assert [round(noise.over(count), 2) for count in (2, 6, 7)] == [1.45, 2.65, 2.89]


def party_of(folder, **privacy):
    values = {"party": "shop", "table": {"path": "t.parquet"}, "runs": "runs", "privacy": {"dataset": "customers", **privacy}}
    return with_ledger_named(parse_party(values, folder=folder, source="shop"))


def charge_of(folder, *, number=1, method="intersection", **privacy):
    """Return the charge of a run, as computed by a process that begins the run or resumes it."""
    party = party_of(folder, **privacy)
    contract = parse_contract(contract_values(PARTIES, name=f"run-{number}", defense=[NOISE], alignment__method=method))
    if not party.privacy.ledger.exists():
        create_ledger(party)
        party = with_ledger_named(party)
    begun = any(party.runs.glob(f"run-{number}-*"))
    run = RunFolder.latest(party.runs, contract, "shop") if begun else RunFolder.new(party.runs, contract, "shop", key=None)
    return EmbeddingCharge.of(contract, party, run, what=f"run {number}")


def releases(folder):
    """Return how many releases the ledger's total stands for."""
    ledger = Ledger(folder / "privacy-ledger.sqlite", party="shop")
    events = [entry.event for entry in ledger.entries("customers-embeddings")]
    return sum(-each.releases if isinstance(each, UnsentGaussianDP) else each.releases for each in events)


def test_what_is_reserved_is_charged_first_and_what_was_not_sent_taken_back(tmp_path):
    charge = charge_of(tmp_path)
    charge.reserve(Sent(training=5, validation=6, test=1))
    assert releases(tmp_path) == 6
    charge("training")
    charge("validation")
    assert releases(tmp_path) == 6
    charge.settle()
    charge.settle()
    assert releases(tmp_path) == 1
    charge("prediction")
    assert releases(tmp_path) == 2  # a scored row may be a training row
    charge("test", 3)
    assert (releases(tmp_path), sent_by(charge.folder).most) == (4, 4)


def test_a_killed_run_keeps_what_it_reserved_and_pays_for_what_it_sends_again(tmp_path):
    """It is killed in its second epoch of two, which the resumed run sends again. After a new alignment the parts have
    other rows.
    """
    charge_of(tmp_path).reserve(Sent(training=2))
    charge_of(tmp_path)("training")
    charge_of(tmp_path)("training")
    charge_of(tmp_path).reserve(Sent(training=1))
    assert releases(tmp_path) == 3
    count_anew(charge_of(tmp_path).folder)
    charge_of(tmp_path)("validation", 2)
    assert releases(tmp_path) == 4
    charge_of(tmp_path, number=2)("training")
    assert releases(tmp_path) == 5


def copied(charge):
    """Return the charge of a copy of the run's folder that is made now."""
    path = charge.folder.path.with_name(f"{charge.folder.path.name}-copy")
    shutil.copytree(charge.folder.path, path)
    return replace(charge, folder=RunFolder.open(path))


@pytest.mark.parametrize("first", ["the copy", "the original"])
def test_a_copy_of_a_folder_that_goes_on_too_is_charged_for_its_own_noise(tmp_path, first):
    """There are two trainings of four epochs. The first epoch is common; the other three may have other embeddings and so other
    noise.
    """
    original = charge_of(tmp_path)
    original.reserve(Sent(training=4))
    original("training")
    both = [copied(original), original]
    for each in both if first == "the copy" else both[::-1]:
        each.reserve(Sent(training=3))
        for _ in range(3):
            each("training")
    assert releases(tmp_path) == 1 + 3 + 3
    for each in both:
        each.settle()
        each("prediction")
    assert releases(tmp_path) == 1 + 2 * (3 + 1)


def test_copies_that_go_on_side_by_side_are_charged_for_all_that_either_sends(tmp_path):
    original = charge_of(tmp_path)
    original.reserve(Sent(training=6))
    original("training")
    copy = copied(original)
    for _ in range(2):
        copy("training")
        original("training")
    assert releases(tmp_path) >= 1 + 2 + 2
    copy.settle()
    original.settle()
    assert releases(tmp_path) >= 1 + 2 + 2


def test_a_copy_does_not_take_back_what_the_other_one_sends(tmp_path):
    original = charge_of(tmp_path)
    original.reserve(Sent(training=4))
    copy = copied(original)
    for _ in range(4):
        original("training")
    copy.settle()
    assert releases(tmp_path) == 4


def test_a_cap_holds_before_rows_are_sent_and_none_where_nothing_is_bounded(tmp_path):
    noise = GaussianEmbeddings(epsilon=EPSILON, delta=DELTA, clip=1.0)
    cap = {"cap": noise.over(3), "delta": DELTA}
    with pytest.raises(BudgetExceeded, match=r"epsilon of records from 0 to .* raise the cap"):
        charge_of(tmp_path, **cap).reserve(Sent(training=4))
    assert sent_by(charge_of(tmp_path).folder) == Sent()
    for _ in range(3):
        charge_of(tmp_path, **cap)("training")
    with pytest.raises(BudgetExceeded):
        charge_of(tmp_path, **cap)("training")
    assert (releases(tmp_path), sent_by(charge_of(tmp_path).folder).training) == (3, 3)
    union = charge_of(tmp_path, number=2, method="union", **cap)
    for _ in range(2):
        union("training")
        union.settle()
    ledger = Ledger(tmp_path / "privacy-ledger.sqlite", party="shop")
    assert [entry.what for entry in ledger.not_private()] == ["run 2: noisy embeddings, each row's any number of times"]


def test_more_than_was_charged_for_is_not_taken_back(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.sqlite", party="shop")
    noise = GaussianEmbeddings(epsilon=EPSILON, delta=DELTA, clip=1.0)
    ledger.spend("one", noise.event(3), what="a run")
    for data_set, count, multiplier in (("one", 4, 1), ("one", 1, 2), ("other", 1, 1)):
        event = UnsentGaussianDP(noise_multiplier=multiplier * noise.multiplier, releases=count, unit="record")
        with pytest.raises(StorageError, match="cannot have been left out"):
            ledger.take_back(data_set, event, what="too much")
    event = UnsentGaussianDP(noise_multiplier=noise.multiplier, releases=2, unit="record")
    ledger.take_back("one", event, what="two were not sent")
    assert ledger.total("one", delta=DELTA, unit="record") == pytest.approx(EPSILON)
    spent = ledger.export(delta=DELTA)["datasets"]["one"]["running_label_epsilon"]
    assert spent[0] is None or spent[0] > spent[-1]


def test_measuring_own_columns_is_a_release_and_phases_before_count(tmp_path):
    more = {"evaluation__importance": {}, "training__validations": "auto"}
    contract = parse_contract(contract_values(PARTIES, unaligned={"method": "heuristic"}, **more))
    assert evaluation_ahead(contract) == Sent(validation=1, test=1)
    assert training_ahead(contract, contract.training.resolved(100)) == Sent(training=2 + 1 + 1, validation=2 * 4 + 1)


def capped(job, party, **privacy):
    job.change(party, privacy=privacy)
    return check_party_file(job.home(party) / "party.yaml", job.home(party) / "contract.yaml")


def test_check_and_run_refuse_what_passes_a_feature_partys_cap_before_anybody_is_called(lay_out_job):
    job = lay_out_job(PARTIES, rows=60, defense=[NOISE], evaluation__importance={"own_columns": False})
    shop = job.home("shop")
    Ledger.create(shop / "privacy-ledger.sqlite", party="shop")
    (problem,) = capped(job, "shop", cap=0.5, delta=DELTA)["problems"]
    assert problem.startswith("privacy.cap = 0.5: a new run of this contract would bring the epsilon of records of data set")
    started = job.start("shop")  # bank is not up
    assert started.end() == 2
    assert problem in started.error
    assert job.runs("shop") == []
    after = GaussianEmbeddings(epsilon=EPSILON, delta=DELTA, clip=1.0).over(2)
    found = capped(job, "shop", cap=after, delta=DELTA)
    assert found["problems"] == []
    said = (
        f"epsilon of records of data set 'labels-embeddings': 0 spent, {after:.6g} after this run, cap {after:.6g} at delta 1e-06"
    )
    assert found["budget"] == said
    (problem,) = capped(job, "shop", cap=100.0, delta=0.0)["problems"]
    assert "Gaussian noise counts at a delta above 0 only: give privacy.delta" in problem


@pytest.mark.long
def test_a_prediction_is_one_more_release_and_refused_over_the_cap(lay_out_job):
    job = lay_out_job(PARTIES, rows=120, defense=[NOISE], training__epochs=1, evaluation__importance={"own_columns": False})
    ledger = Ledger.create(job.home("shop") / "privacy-ledger.sqlite", party="shop")
    noise = GaussianEmbeddings(epsilon=EPSILON, delta=DELTA, clip=1.0)
    capped(job, "shop", cap=noise.over(2), delta=DELTA)
    job.run_all()
    assert ledger.total("labels-embeddings", delta=DELTA) == pytest.approx(noise.over(1))
    bank, shop = job.start("bank", "predict", "--output", "scores.csv"), job.start("shop", "predict")
    assert (bank.end(), shop.end()) == (0, 0), (bank.said, shop.said)
    assert ledger.total("labels-embeddings", delta=DELTA) == pytest.approx(noise.over(2))
    again = job.start("shop", "predict")
    assert again.end() == 2
    assert "privacy.cap" in again.error
    assert "a prediction would bring the epsilon of records" in again.error


class Closed(torch.nn.Module):
    """A bottom model whose units are closed for every row, whatever its weights are: all embeddings are 0."""

    width = 4

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 4)

    def forward(self, features):
        return torch.relu(self.layer(features.numeric_NF)) * 0


@pytest.mark.parametrize("changes", [{}, {"unaligned": {"method": "regressor", "epochs": 1}}], ids=["training", "a pass before"])
def test_no_two_models_embeddings_have_the_same_noise(changes, tmp_path, monkeypatch):
    """Otherwise equal embeddings of a row by two models would show despite any noise: with closed units, or with clipping of one
    unit.
    """
    sent, send = [], MemoryChannel.send

    def kept(channel, message):
        if isinstance(message, CutEmbedding) and channel.peer == "bank":
            sent.append(torch.from_numpy(message.values.numpy().copy()))
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", kept)
    contract = contract_values(PARTIES, defense=[NOISE], training__epochs=4, **changes)
    simulate(contract, tables(PARTIES, rows=200), columns(PARTIES), bottoms={"shop": Closed()}, folder=tmp_path)
    sent_RD = torch.cat(sent)
    assert len(sent_RD) > 4 * 100
    assert len(sent_RD.unique(dim=0)) == len(sent_RD)


NAMED = {
    "a refit": {"training__epochs": 2, "training__refit": True},
    "a pipeline": {"training__epochs": 2, "training__mode": "pipelined", "training__staleness": 2},
    "a pass before": {"training__epochs": 1, "unaligned": {"method": "regressor", "epochs": 1}},
}


@pytest.mark.parametrize("changes", NAMED.values(), ids=NAMED)
def test_each_name_of_weights_is_of_one_model(changes, tmp_path, monkeypatch):
    """Otherwise equal embeddings by two models would have the same noise. Validation rows also cross with weights
    before a refit.
    """
    of_name, forward = {}, DefendedBottom.forward

    def watched(bottom, features):
        weights = b"".join(value.detach().numpy().tobytes() for value in bottom.state_dict().values())
        of_name.setdefault((bottom._run, bottom.weights), set()).add(weights)
        return forward(bottom, features)

    monkeypatch.setattr(DefendedBottom, "forward", watched)
    contract = contract_values(PARTIES, defense=[NOISE], evaluation__importance={}, **changes)
    simulate(contract, tables(PARTIES, rows=200), columns(PARTIES), folder=tmp_path)
    assert len(of_name) > 4
    assert {name for (_, name), weights in of_name.items() if len(weights) > 1} == set()


def test_trials_of_a_search_share_their_start_and_no_noise(tmp_path):
    """The steps of two trials have the same numbers, but other weights after the first step."""
    contract = parse_contract(contract_values(PARTIES, defense=[NOISE]))
    folder, made = RunFolder.new(tmp_path, contract, "shop", key=None), Architecture.of(contract, "shop")
    folders = [folder, *(folder.trial(number) for number in (1, 2))]
    assert len({each.start_secret() for each in folders}) == 1
    assert len({made.of_run(each).run for each in folders}) == 3
    assert made.of_run(folder.trial(2)).run == made.of_run(folders[2]).run
