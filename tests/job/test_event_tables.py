"""Several rows of one key: training has the bits of the joined table, and a feature party summarises its own rows."""

import re
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from tiny import columns, contract_values, weights

from tallystick.check import check_party_file
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import ConfigError, IdError
from tallystick.job.phases import align
from tallystick.models.build import build_bottom
from tallystick.models.split import CentralizedModel
from tallystick.privacy.events import NotPrivate
from tallystick.privacy.ledger import Ledger
from tallystick.report.page import to_html
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import Architecture
from tallystick.simulation import Silent, simulate
from tallystick.tables.encoder import Encoder
from tallystick.tables.split import TEST, TRAINING, split_by_hash
from tallystick.tables.target import LabelCoder
from tallystick.training.centralized import train_joined
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule

PARTIES = ("bank", "shop")
EVENTS = {"alignment__duplicates": "all"}
PUBLIC = {"training__starts": "public"}  # so that two ways of training begin alike
QUICKLY = {"calibration_bins": 5, "bootstrap": 0, "own_columns_baseline": False}


def tables(*, customers=300, seed=1):
    """Make events of the label party, several for most customers, and the feature party's customers, a tenth of whom it lacks."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=customers)
    events = rng.permutation(np.repeat(np.arange(customers), rng.geometric(0.3, size=customers)))
    x = rng.normal(size=len(events))
    shown = {"x": x, "noise": rng.normal(size=len(events)), "kind": rng.choice(["red", "green"], size=len(events))}
    score = x + 2 * own[events] + 0.3 * rng.normal(size=len(events))
    label = {"y": (score > 0).astype(np.int64), "day": rng.integers(0, 1000, size=len(events))}
    bank = pl.DataFrame({"id": [f"id-{number:04}" for number in events], **shown, **label})
    shop = {"x": own, "noise": rng.normal(size=customers), "kind": rng.choice(["red", "green"], size=customers)}
    kept = np.sort(rng.permutation(customers)[: customers - customers // 10])
    return {"bank": bank, "shop": pl.DataFrame({"id": [f"id-{number:04}" for number in range(customers)], **shop})[kept]}


def run(given=None, *, parties=None, folder=None, **changes):
    values = contract_values(PARTIES, **{"evaluation": QUICKLY, **EVENTS, **changes})
    return simulate(values, given or tables(), parties or columns(PARTIES), watcher=Silent(), folder=folder)


def kept_weights(folder, party):
    (path,) = (folder / party).glob("*/model.safetensors")
    return load_file(path)


def rows_of(result):
    return sum(result.data.rows.values())


@pytest.mark.parametrize("method", ["none", "average"])
def test_every_row_of_a_common_key_takes_part(method):
    """Earlier, only the first row of a customer was used."""
    given = tables()
    common = given["bank"].join(given["shop"].select("id"), on="id")
    first = run(given, alignment__duplicates="first", unaligned__method=method)
    every = run(given, unaligned__method=method)
    assert rows_of(first) == common["id"].n_unique() < 0.4 * common.height
    assert rows_of(every) == common.height
    assert every.evaluation["joint"]["auc"]["value"] > 0.9
    note = next(note for note in first.data.notes if "occur in more than one row" in note)
    assert f"{given['bank'].height - given['bank']['id'].n_unique()} of {given['bank'].height} rows are left out" in note
    assert "alignment.duplicates: all" in note


def test_training_on_events_is_training_on_the_joined_table_bit_for_bit(tmp_path):
    """Compute the reference: both tables joined by Polars, and the network trained on the result in one process."""
    given = tables()
    settled = {
        "split__validation": 0.0,
        "split__test": 0.2,
        "training__ema": None,
        "training__batch_size": 64,
        **PUBLIC,
        **EVENTS,
    }
    contract = parse_contract(contract_values(PARTIES, evaluation=QUICKLY, **settled))
    simulate(contract, given, columns(PARTIES), watcher=Silent(), folder=tmp_path)
    (folder,) = (tmp_path / "bank").glob("*")
    _, alignment = RunFolder.open(folder).load_alignment()
    bank = given["bank"][alignment.rows_N]
    joined = bank.join(given["shop"], on="id", how="left", maintain_order="left", suffix="_of_shop")
    assert joined["x_of_shop"].null_count() == 0
    assert sorted(alignment.rows_N) == np.flatnonzero(given["bank"]["id"].is_in(given["shop"]["id"].implode())).tolist()
    shop = joined.select(id="id", **{name: f"{name}_of_shop" for name in ("x", "noise", "kind")})
    parts = split_by_hash([uid.encode() for uid in joined["id"]], contract.split, seed=contract.seed)
    training = np.flatnonzero(parts == TRAINING)
    own = {name: parse_party({"party": name, **columns(PARTIES)[name]}, folder=tmp_path) for name in PARTIES}
    encoders = {
        name: Encoder.of_party(frame, own[name], training, numbers=contract.model.numeric)
        for name, frame in (("bank", bank), ("shop", shop))
    }
    sources = {name: encoders[name].encode(frame).rows for name, frame in (("bank", bank), ("shop", shop))}
    label = Architecture.of(contract, "bank").label_model(encoders["bank"], [contract.model.built_in_cut_width])
    bottom = build_bottom(contract.model, "shop", encoders["shop"].feature_shape, seed=contract.seed)
    how = contract.training.resolved(len(training))
    schedule = Schedule(
        train_N=torch.from_numpy(training), validation_N=torch.empty(0, dtype=torch.int64), batch_size=64, seed=contract.seed
    )
    train_joined(
        CentralizedModel([bottom], label),
        [sources["shop"], sources["bank"]],
        Supervised("binary", LabelCoder.fit(bank["y"], contract.target, training).encode(bank["y"])),
        training=how,
        schedule=schedule,
        steps=how.epochs * schedule.steps_per_epoch,
    )
    for party, module in (("bank", label), ("shop", bottom)):
        found, wanted = kept_weights(tmp_path, party), module.state_dict()
        assert wanted
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), party


def test_rows_of_a_key_are_in_one_part_by_hash_and_each_in_its_own_by_time(tmp_path):
    given = tables()
    by_time = {"split__method": "time"}
    parties = columns(PARTIES)
    parties["bank"]["time"] = "day"
    run(given, parties=parties, folder=tmp_path, **by_time)
    (folder,) = (tmp_path / "bank").glob("*")
    scores = pl.read_parquet(folder / "scores.parquet")
    common = given["bank"].join(given["shop"].select("id"), on="id", maintain_order="left")
    latest = common["day"].sort(descending=True)[scores.height - 1]
    assert common.filter(pl.col("day") >= latest).height == scores.height
    found = run(given)
    of_test = (
        split_by_hash([uid.encode() for uid in common["id"]], parse_contract(contract_values(PARTIES)).split, seed=1) == TEST
    )
    assert found.data.rows["test"] == of_test.sum()
    ids = common.with_columns(test=pl.Series(of_test)).group_by("id").agg(pl.col("test").n_unique())
    assert ids["test"].max() == 1


def test_what_a_feature_party_learns_is_said_on_both_sides():
    given = tables()
    common = given["bank"].join(given["shop"].select("id"), on="id")
    found = run(given)
    sentence = f"how many rows bank has for each of the {common['id'].n_unique()} common ids: {common.height} in all"
    assert [item.party for item in found.learnt if item.what == sentence] == ["shop"]
    assert any("how many rows bank has for each common id" in note for note in found.sections.notes)
    shown = {name: given[name]["id"].n_unique() for name in PARTIES}
    assert found.alignment.sizes == {
        "ids of bank": shown["bank"],
        "ids of shop": shown["shop"],
        "ids in common": common["id"].n_unique(),
        "rows of bank with these ids": common.height,
    }


@pytest.mark.parametrize("split", ["hash", "time"])
def test_intervals_draw_customers_and_not_their_rows(split, tmp_path):
    given, parties = tables(), columns(PARTIES)
    parties["bank"] |= {"time": "day", "report": {"subgroups": ["kind"]}}
    changes = {"evaluation": {**QUICKLY, "bootstrap": 5}, "split__method": split, "unaligned__method": "average"}
    found = run(given, parties=parties, folder=tmp_path, **changes)
    (folder,) = (tmp_path / "bank").glob("*")
    tested = pl.read_parquet(folder / "scores.parquet").height
    method = found.evaluation["bootstrap"]["method"]
    drawn = int(re.match(r"bootstrap over (\d+) keys, each with all its rows", method)[1])
    assert drawn < tested
    if split == "hash":
        ids = given["bank"]["id"].filter(given["bank"]["id"].is_in(given["shop"]["id"].implode())).unique()
        parts = split_by_hash([uid.encode() for uid in ids], parse_contract(contract_values(PARTIES)).split, seed=1)
        assert drawn == (parts == TEST).sum()
    assert f"bootstrap over {drawn} keys" in to_html(found)


def test_check_says_what_repeated_ids_disclose_and_apart_from_it_what_is_protected(lay_out_job):
    job = lay_out_job(PARTIES, frames=tables(), defense=[{"method": "label-dp", "epsilon": 1.0}], **EVENTS)
    found = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
    assert found["problems"] == []
    assert any("how many rows bank has for each common id" in line for line in found["disclosures"])
    assert not any("the guarantee protects" in line or "interval" in line for line in found["disclosures"])
    assert "the guarantee protects a row, or its label" in found["defenses"][-1]


def test_noise_on_embeddings_that_are_sent_several_times_is_not_counted_as_private(tmp_path):
    noise = [{"method": "gaussian-embeddings", "epsilon": 5.0, "delta": 1e-5, "clip": 1.0}]
    run(defense=noise, folder=tmp_path)
    ledger = Ledger(tmp_path / "shop-privacy-ledger.sqlite", party="shop")
    assert [entry.event for entry in ledger.entries()] == [NotPrivate()]


def test_repeated_keys_of_a_feature_party_are_settled_by_its_own_file_or_refused():
    given = tables()
    visits = pl.concat([given["shop"].with_columns(seen=pl.lit(day), x=pl.col("x") - 5 + day) for day in (5, 3, 4)])
    given["shop"] = visits
    with pytest.raises(IdError, match=r"270 keys occur in more than one row; .* repeats: \{latest: COLUMN\}"):
        run(given)
    parties = columns(PARTIES)
    parties["shop"] |= {"repeats": {"latest": "seen"}}
    latest = run(given, parties=parties)
    plain = run(tables())
    assert latest.evaluation == plain.evaluation, "the latest row of each is the one of the plain table"
    parties["shop"]["repeats"] = {"latest": "seen", "aggregate": {"x": ["mean", "max"]}, "count": "visits"}
    parties["shop"]["features"] = {"numeric": ["x_mean", "noise", "visits"], "categorical": ["kind"]}
    others = given["shop"].with_columns(id="other-" + pl.col("id"))
    given["shop"] = pl.concat([given["shop"], others])
    summed = run(given, parties=parties, alignment__method="union", alignment__duplicates="first")
    assert any(
        "of a key's rows the latest by 'seen' counts, and all of them in 'x', 'visits'" in note for note in summed.data.notes
    )


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ConfigError, match=r'alignment.duplicates = "all": only works with .*; .* which of its ids are common'):
        run(alignment__method="union")
    parties = columns(PARTIES)
    parties["bank"]["repeats"] = {"latest": "day"}
    with pytest.raises(ConfigError, match=r"repeats: by alignment.duplicates = all every row"):
        run(parties=parties)
    parties["bank"]["repeats"] = {"aggregate": {"y": "mean"}}
    with pytest.raises(ConfigError, match=r"repeats.aggregate.y: is the label"):
        run(parties=parties, alignment__duplicates="first")


@pytest.mark.long
def test_a_score_for_each_row_and_the_same_weights_after_a_kill(lay_out_job, tmp_path, monkeypatch):
    """The weights equal those of a simulation in which the rows of an id have the job's secret order."""
    given = tables()
    values = {"training__epochs": 6, "evaluation": QUICKLY, "unaligned": {"method": "average"}, **PUBLIC, **EVENTS}
    job = lay_out_job(PARTIES, frames=given, **values)
    running = job.start_all()
    running["bank"].wait_for(lambda event: event.get("what") == "training" and event["done"] > 10)
    running["bank"].kill()
    assert running["shop"].end() == 3
    job.run_all("run", "--resume")
    (folder,) = (job.home("bank") / "runs").glob("*")
    linked_R = RunFolder.open(folder).load_alignment()[1].rows_N
    order_R = np.concatenate([linked_R, np.setdiff1d(np.arange(given["bank"].height), linked_R)])
    monkeypatch.setattr(align, "random_of", lambda _: SimpleNamespace(permutation=lambda _: order_R))
    run(given, folder=tmp_path / "simulated", **values)
    for party in PARTIES:
        (path,) = (tmp_path / "simulated").glob(f"{party}/*/model.safetensors")
        assert job.models(party)[-1] == weights(path)
    predicted = {"bank": job.start("bank", "predict", "--output", "scores.csv"), "shop": job.start("shop", "predict")}
    assert all(party.end() == 0 for party in predicted.values()), {name: party.said for name, party in predicted.items()}
    scores = pl.read_csv(job.home("bank") / "scores.csv")
    assert [name for name in scores.columns if name != "run_id"] == ["row", "id", "score", "scored_by"]
    assert sorted(scores["row"]) == list(range(given["bank"].height))
    assert given["bank"]["id"].gather(scores["row"]).to_list() == scores["id"].to_list()
    has_partner = scores["id"].is_in(given["shop"]["id"].implode())
    assert scores.filter(has_partner)["scored_by"].unique().to_list() == ["joint model"]
    assert scores.filter(~has_partner)["scored_by"].unique().to_list() == ["own columns"]
