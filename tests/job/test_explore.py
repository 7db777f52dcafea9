"""`tallystick explore`: the gain on a sample, in one process and over TLS with a helper; what it says, and what it refuses."""

import json
from functools import cache, partial

import polars as pl
import pytest
from head_processes import SMALL, short_exploration
from html_page import Page
from lanes import short_lane_of
from test_shared_head import PARTIES, lay_out, shapes_of, shared
from tiny import columns, contract_values, files_of, tables

from tallystick.config import contract as contracts
from tallystick.config.contract import parse_contract
from tallystick.disclosure.table import DISCLOSURES, disclosure_lines
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.job import run
from tallystick.job.explore import run_explore
from tallystick.job.run import KEPT
from tallystick.network.channel import MemoryChannel
from tallystick.report import to_html
from tallystick.report.summary import few_of_a_class
from tallystick.run_folder.ledger import create_ledger, known_ledger
from tallystick.simulation import simulate
from tallystick.watcher import Silent

ROWS = 1_500


def explored(rows=800, **changes):
    """Return a small contract that allows an exploration."""
    values = shared(training__shared={"epochs": 10}, **changes)
    values["split"] = {"method": "hash", "validation": 0.1, "test": 0.3}
    return values | {"explore": {"rows": rows}}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for each in SMALL:
        monkeypatch.setattr(*each)


@pytest.fixture(autouse=True)
def _short_baseline(request, monkeypatch):
    """Train the model of own columns for few epochs, where a test does not look at its figures."""
    if "full_baseline" not in request.fixturenames:
        monkeypatch.setattr(contracts, "SynchronousTraining", partial(contracts.SynchronousTraining, epochs=2, folds=1))


@pytest.fixture
def full_baseline():
    """Make the usual settings, for tests of the gain."""


@pytest.mark.parametrize("target", short_lane_of(["binary", "regression"], 1))
def test_the_gain_on_a_sample_stands_beside_own_columns_with_a_paired_interval(target, full_baseline):
    # Each side's column has half of the label. Only the masks are not seeded.
    contract = parse_contract(explored(target={"type": target}))
    result = simulate(contract, tables(PARTIES, rows=ROWS, target=target), columns(PARTIES), secret_seed=1, explores=True)
    name = next(iter(result.evaluation["joint"]))
    gain = result.evaluation["difference"][name]
    assert gain["value"] == result.evaluation["joint"][name]["value"] - result.evaluation["local_baseline"][name]["value"]
    assert gain["low"] <= gain["value"] <= gain["high"]
    assert gain["low"] > 0.05 if target == "binary" else gain["high"] < 0
    sample = result.sections.sample
    assert sample.ids == {"bank": 1_425, "shop": 1_425}
    assert sample.share == 800 / 1_425
    assert sample.common == sum(result.data.rows.values())
    # Some 1,354 ids are common: a binomial, 760 +- 18
    assert 660 < sample.common < 860
    page = " ".join(Page(to_html(result)).text)
    for part in ("On a sample, joining", "ids in common, in the sample", "What each side learnt"):
        assert part in page


@cache
def usual():
    """Run an exploration of the usual tables, and return also the kinds of messages that crossed."""
    crossed, send = set(), MemoryChannel.send

    def noted(channel, message):
        crossed.add(type(message).__name__)
        send(channel, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryChannel, "send", noted)
        return simulate(parse_contract(explored()), tables(PARTIES, rows=ROWS), columns(PARTIES), explores=True), crossed


@pytest.mark.long
def test_a_simulation_draws_the_same_sample_again():
    again = simulate(parse_contract(explored()), tables(PARTIES, rows=ROWS), columns(PARTIES), explores=True)
    assert usual()[0].sections.sample == again.sections.sample


def message_shapes(frames):
    """Return who receives messages of which kinds and sizes, in order. An error of the label party at home is not sent."""
    return shapes_of(frames, values=explored(), explores=True)


@cache
def usual_shapes():
    return message_shapes(tables(PARTIES, rows=ROWS))


@pytest.mark.parametrize("change", ["turned labels, other columns", "one class"])
def test_no_message_s_kind_size_or_place_depends_on_labels_or_columns(change):
    frames = tables(PARTIES, rows=ROWS)
    bank, shop = frames["bank"], frames["shop"]
    changed = {
        "turned labels, other columns": {
            "bank": bank.with_columns(y=1 - pl.col("y")),
            "shop": shop.with_columns(x=pl.col("x").reverse(), noise=pl.col("noise").reverse()),
        },
        "one class": {"bank": bank.with_columns(y=pl.when(pl.col("id") == bank["id"][0]).then(1).otherwise(0))},
    }[change]
    assert usual_shapes() == message_shapes(frames | changed)


def test_labels_of_one_class_in_the_sample_are_one_line_at_home():
    frames = tables(PARTIES, rows=ROWS)
    rare = frames["bank"].with_columns(y=pl.when(pl.col("id") == frames["bank"]["id"][0]).then(1).otherwise(0))
    with pytest.raises(DataError, match="class"):
        simulate(parse_contract(explored()), frames | {"bank": rare}, columns(PARTIES), secret_seed=1, explores=True)


def test_few_labels_of_a_class_are_one_line_at_home():
    rare = tables(PARTIES, rows=ROWS)
    rare["bank"] = rare["bank"].with_columns(y=pl.when(pl.col("x") > 2).then(1).otherwise(0))  # some 2 in 100
    with pytest.raises(DataError, match=r"\d of 2\d\d test rows are of the rarer class, .* takes at least 20"):
        simulate(parse_contract(explored()), rare, columns(PARTIES), secret_seed=1, explores=True)


def test_not_enough_labels_of_a_class_are_said_beside_the_estimate():
    frames, contract = tables(PARTIES, rows=ROWS), parse_contract(explored())
    scarce = frames["bank"].with_columns(y=pl.when(pl.col("x") > 1).then(1).otherwise(0))  # some 16 in 100
    result = simulate(contract, frames | {"bank": scarce}, columns(PARTIES), secret_seed=1, explores=True)
    (line,) = few_of_a_class(result)
    assert "test rows are of the rarer class" in line
    assert line in " ".join(Page(to_html(result)).text)
    enough, _ = usual()
    assert (enough.evaluation["label_mean"] * enough.evaluation["rows"] < 100) == bool(few_of_a_class(enough))


def test_a_sample_too_small_names_the_least_and_opens_nothing(monkeypatch):
    crossed, send = [], MemoryChannel.send

    def noted(channel, message):
        crossed.append(type(message).__name__)
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", noted)
    contract = parse_contract(explored(rows=200))
    with pytest.raises(DataError, match=r"explore.rows = 200: \d+ ids .* takes at least 334; raise explore.rows"):
        simulate(contract, tables(PARTIES, rows=ROWS), columns(PARTIES), secret_seed=1, explores=True)
    assert not {"ScoreShares", "MaskedFeatures", "HeadSizes"} & set(crossed)
    for rows, helps in ((300, r"larger tables help, or split\.test: 0\.\d\d in the contract$"), (120, "larger tables help$")):
        with pytest.raises(DataError, match=f"has all ids already, so only {helps}"):
            simulate(parse_contract(explored()), tables(PARTIES, rows=rows), columns(PARTIES), secret_seed=1, explores=True)


@pytest.mark.parametrize("step", ["train_shared_label_party", "write_report"])
def test_an_exploration_that_fails_keeps_nothing_by_row(step, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise StorageError("the disk is full")

    monkeypatch.setattr(run, step, fails)
    contract = parse_contract(explored())
    with pytest.raises(StorageError, match="the disk is full"):
        simulate(contract, tables(PARTIES, rows=ROWS), columns(PARTIES), secret_seed=1, explores=True, folder=tmp_path)
    for name in PARTIES:
        (folder,) = (path.parent for path in (tmp_path / name).glob("*/contract.json"))
        assert {path.name for path in folder.iterdir()} <= set(KEPT)


def test_every_message_of_it_is_said_before_and_after():
    contract, (result, crossed) = parse_contract(explored()), usual()
    lines = disclosure_lines(contract, own_columns=None)
    for name in crossed:
        rows = [row for row in DISCLOSURES if any(field.split(".")[0] == name for field in row.fields)]
        said = [line for row in rows for line in row.sentences(contract)]
        assert said, f"{name} crossed, and check does not say so"
        assert set(said) <= set(lines)
    assert any(line.startswith("`tallystick explore`: both learn how many ids the other has") for line in lines)
    facts = {(item.step, item.party): item.what for item in result.learnt}
    for party, other in (PARTIES, PARTIES[::-1]):
        assert any(key == ("alignment", party) for key in facts)
        assert any(f"{other} has 1,425 ids" in item.what for item in result.learnt if item.party == party)
    assert "One score for each of" in facts["training", "bank"]
    assert "explore" not in " ".join(disclosure_lines(parse_contract(shared()), own_columns=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"explore": {}}, "explore: needs a head on shares; set training.gradients to shared"),
        ({"explore": {"rows": 50}}, r"explore\.rows"),
    ],
)
def test_what_does_not_go_together_is_one_line(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_contract(contract_values(PARTIES, **changes))
    with pytest.raises(ConfigError, match="explore: measures test rows"):
        parse_contract(explored() | {"split": {"test": 0.0}})


def test_a_contract_without_it_allows_none_and_has_the_hash_that_it_had():
    contract = parse_contract(shared())
    assert "explore" not in contract.canonical_json()
    assert parse_contract(shared() | {"explore": {}}).hash != contract.hash
    with pytest.raises(ConfigError, match="explore: the contract has no such section"):
        simulate(contract, tables(PARTIES, rows=60), columns(PARTIES), explores=True)


def test_two_parties_and_a_helper_explore_over_tls_count_the_scores_and_keep_nothing_by_row(tmp_path):
    frames = tables(PARTIES, rows=ROWS)
    job = lay_out(tmp_path, explored(), frames)
    job.before = short_exploration
    _, shop = files_of(job, "shop")
    identity = create_ledger(shop).identity
    before = shop.privacy.ledger.read_bytes()
    job.change("shop", privacy={"identity": identity, "scores_per_row": 1})
    running = job.run_all("explore")
    found = {name: each.found for name, each in running.items()}
    estimate = found["bank"]["estimate"]
    assert estimate["metric"] == "auc"
    assert estimate["gain"] == estimate["joint"] - estimate["own"]
    assert 0 < estimate["gain_low"] < estimate["gain"] < estimate["gain_high"]
    assert found["shop"]["estimate"] is None
    assert found["aid"]["estimate"] is None
    for name in job.parties:
        (folder,) = job.runs(name)
        assert "-explore-" in folder.name
        assert {path.name for path in folder.iterdir()} <= set(KEPT)
    assert "bank and shop explored what joining brings" in (job.runs("shop")[0] / "report.html").read_text()
    assert "aid helped bank and shop" in (job.runs("aid")[0] / "report.html").read_text()
    # An older copy of the ledger is noticed
    ledger = shop.privacy.ledger.read_bytes()
    shop.privacy.ledger.write_bytes(before)
    with pytest.raises(StorageError, match="an older copy of itself"):
        known_ledger(shop)
    shop.privacy.ledger.write_bytes(ledger)
    # The ledger counts a score of each validation and test row of the sample
    _, shop = files_of(job, "shop")
    result = json.loads((job.runs("bank")[-1] / "result.json").read_text())
    scored = result["data"]["rows"]["validation"] + result["data"]["rows"]["test"]
    (opened,) = known_ledger(shop).scores(f"{shop.privacy.dataset}-scores")
    assert len(opened.rows) // 8 == scored
    # so that with one score a row nobody can explore again, or run, and nobody is called for that
    contract, shop = files_of(job, "shop")
    with pytest.raises(ConfigError, match="scores_per_row = 1"):
        run_explore(contract, shop, watcher=Silent())
    # A run does not take an exploration for a run
    assert job.start("bank", "predict").end() != 0


def test_a_partner_without_explore_is_named(tmp_path):
    job = lay_out(tmp_path, explored(), tables(PARTIES, rows=200))
    job.change("shop", file="contract.yaml", explore=None)
    alone = job.start("shop", "explore")
    assert alone.end() == 2
    assert "explore: the contract has no such section" in alone.error
    running = {"bank": job.start("bank", "explore"), "shop": job.start("shop", "run"), "aid": job.start("aid", "explore")}
    assert running["bank"].end() != 0
    assert "the contract differs from shop's in 1 place(s): explore" in running["bank"].error
    for each in running.values():
        each.end()
