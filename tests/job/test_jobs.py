"""Whole jobs as processes over TLS: single steps, prediction, and sides that do not agree."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from tiny import contract_values, lay_out, tables

from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.split import TEST, VALIDATION, split_by_hash

PARTIES = ("bank", "shop")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Run a job to its end. Return each side's result."""
    job = lay_out(tmp_path_factory.mktemp("trained"), PARTIES, contract_values(PARTIES, training__batch_size=64), rows=600)
    yield job, job.run_all()
    for party in job.started:
        party.close()


def test_single_steps_give_what_a_run_gives(trained):
    job, whole = trained
    for command in ("align", "train", "evaluate"):
        job.run_all(command)
    assert [len(job.runs(party)) for party in PARTIES] == [2, 2]
    for party in PARTIES:
        first, second = job.models(party)
        assert first == second
    stepwise = job.started[-2]
    assert stepwise.found["auc_joint"] == whole["bank"].found["auc_joint"]
    assert "auc_joint" not in whole["shop"].found


def test_every_own_row_is_scored_or_counted_under_the_reason_why_not(trained):
    job, _ = trained
    bank = pl.read_parquet(job.home("bank") / "table.parquet")
    doubled = pl.concat([bank, bank[:2], bank[:3].with_columns(id=None)])
    doubled.write_parquet(job.home("bank") / "doubled.parquet")
    scored = predict(job, "scores.csv", bank=("--table", "doubled.parquet"))
    found = job.started[-2].found
    lonely = bank.height - scored.height
    unscored = {"without a key": 3, "with the key of another row": 2, "without a partner's row": lonely}
    assert (found["rows"], found["own_rows"], found["unscored"]) == (scored.height, doubled.height, unscored)
    assert lonely > 0


def test_scores_are_the_same_again_and_tell_the_label(trained):
    job, whole = trained
    scored, again = predict(job, "one.csv"), predict(job, "again.parquet")
    assert scored.height == whole["bank"].found["rows"]["rows in common"]
    both = scored.join(again, on="id", suffix="_again")
    assert np.abs(both["score"] - both["score_again"]).max() < 1e-6
    truth = pl.read_parquet(job.home("bank") / "table.parquet").join(scored, on="id")
    means = truth.group_by("y").agg(pl.col("score").mean()).sort("y")["score"].to_list()
    assert means[1] > means[0] + 0.05


def test_new_rows_with_an_unknown_category_are_scored(trained):
    job, _ = trained
    frame = pl.read_parquet(job.home("shop") / "table.parquet").with_columns(kind=pl.lit("mauve"))
    frame.write_parquet(job.home("shop") / "new.parquet")
    usual, strange = predict(job, "usual.csv"), predict(job, "strange.csv", shop=("--table", "new.parquet"))
    assert strange.height == usual.height
    assert strange["score"].is_between(0, 1).all()
    assert not strange["score"].equals(usual["score"])


@pytest.mark.long
def test_a_feature_party_is_told_what_the_contract_shares(lay_out_job):
    job = lay_out_job(
        PARTIES,
        evaluation__share_metrics=["auc"],
        evaluation__importance={"feature_columns": "both"},
        training__epochs=60,
        training__patience=2,
        training__learning_rate=0.1,
    )
    whole = job.run_all()
    training = json.loads((job.runs("bank")[0] / "result.json").read_bytes())["training"]
    kept, epochs = training["best_epoch"], len(training["history"])
    assert epochs == kept + 2 < 60
    ends = training["best_step"] * epochs == kept * training["steps"]  # all epochs have as many steps
    where = f"epoch {kept} are" if ends else f"step {training['best_step']}, in epoch {kept}, are"
    stopped = "the last 2 did not validate better (training.patience)"
    said = f"trained {epochs} of at most 60 epochs; {stopped}; the weights of {where} kept"
    for party in PARTIES:
        assert said in (job.runs(party)[0] / "run.log").read_text()
    assert whole["shop"].found["shared"]["auc"] == pytest.approx(whole["bank"].found["auc_joint"], rel=1e-3)
    assert "shared" not in whole["bank"].found
    job.run_all("evaluate")  # measure again with the same weights
    first, again = (json.loads((job.runs("shop")[0] / "result.json").read_bytes()), job.started[-1].found)
    assert again["shared"] == whole["shop"].found["shared"]
    assert [fall["name"] for fall in first["sections"]["importance"][0]["columns"]] == ["x", "noise", "kind"]


def predict(job, output, **arguments):
    running = {
        "bank": job.start("bank", "predict", "--output", output, *arguments.get("bank", ())),
        "shop": job.start("shop", "predict", *arguments.get("shop", ())),
    }
    for party in running.values():
        assert party.end() == 0, party.said
    path = job.home("bank") / output
    return pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)


def both_fail(job, **starts):
    running = {party: job.start(party, *starts[party]) for party in PARTIES}
    for party in running.values():
        assert party.end() != 0
        assert len(party.said) == 1, party.said
    return running


def test_contracts_that_differ(lay_out_job):
    job = lay_out_job(PARTIES)
    job.change("shop", "contract.yaml", seed=2, target={"type": "regression"})
    running = both_fail(job, bank=("run",), shop=("run",))
    for party, others in (("bank", "shop"), ("shop", "bank")):
        error = running[party].found["error"]
        assert error["cause"] == "ContractMismatch"
        assert f"the contract differs from {others}'s in 2 place(s)" in error["message"]
        assert len(error["differences"]) == 2
        assert "table" not in error["message"]
    assert 'target.type: ours "binary", theirs "regression"' in running["bank"].error
    assert "seed: ours 1, theirs 2" in running["bank"].error


@pytest.mark.long
def test_different_commands_and_one_sided_resume(lay_out_job):
    job = lay_out_job(PARTIES)
    running = both_fail(job, bank=("run",), shop=("align",))
    assert "shop runs `tallystick align`, this side `tallystick run`" in running["bank"].error
    job.run_all()
    before = [job.models(party) for party in PARTIES]
    running = both_fail(job, bank=("run", "--resume"), shop=("run",))
    assert "this side resumes a run and shop starts a new one" in running["bank"].error
    assert [job.models(party) for party in PARTIES] == before


@pytest.mark.long
def test_resuming_different_runs_keeps_the_finished_models(lay_out_job):
    job = lay_out_job(PARTIES)
    job.run_all()
    job.run_all()
    before = job.models("bank")
    newest = job.runs("shop")[-1]
    newest.rename(newest.with_name("moved-away"))
    both_fail(job, bank=("run", "--resume"), shop=("run", "--resume"))
    assert job.models("bank") == before


def test_an_empty_intersection(lay_out_job):
    frames = tables(PARTIES, rows=300)
    frames["shop"] = frames["shop"].with_columns(id=pl.lit("x") + pl.col("id"))
    running = both_fail(lay_out_job(PARTIES, frames=frames), bank=("run",), shop=("run",))
    for party in PARTIES:
        assert "alignment" in running[party].error


def test_a_data_error_of_one_side_ends_both_and_stays_private(lay_out_job):
    frames = tables(PARTIES, rows=300)
    # The whole table has two classes, the common rows have one: only the alignment can show that.
    frames["bank"] = frames["bank"].with_columns(y=pl.col("id").is_in(frames["shop"]["id"].implode()).cast(pl.Int64))
    job = lay_out_job(PARTIES, frames=frames)
    running = both_fail(job, bank=("run",), shop=("run",))
    assert "constant on the training rows" in running["bank"].error
    assert "start a new run on all sides, without --resume" in running["bank"].error
    told = "its labels are not usable"
    assert f"bank had to stop: {told}; ask them for run.log of their run folder" in running["shop"].error
    (log,) = (path / "run.log" for path in job.runs("bank"))
    assert log.stat().st_mode & 0o777 == 0o600
    kept = log.read_text()
    for said in ("run of contract tiny", "phase alignment", "learnt: ", "phase training", f"Error: {told}", " in fit_labels"):
        assert said in kept
    assert running["bank"].error.removeprefix("error: ").split(" [phase")[0] not in kept  # it may name private values


def test_input_errors_before_the_network_exit_with_2(lay_out_job):
    job = lay_out_job(PARTIES)
    job.change("bank", label="z")
    bank = job.start("bank")
    assert bank.end() == 2
    assert "label column 'z' is not in the table" in bank.error
    shop = job.start("shop", "run", "--resume")
    assert shop.end() == 2
    assert "begin one with `tallystick run` or `tallystick align`, without --resume" in shop.error


@pytest.mark.parametrize("command", ["run", "tune"])
def test_a_command_names_its_own_folder_though_another_of_its_kind_began_after_it(lay_out_job, command):
    keys = {"training.batch_size": {"values": [32, 64]}}
    job = lay_out_job(PARTIES, rows=150, evaluation__bootstrap=0, tuning={"trials": 1, "keys": keys})
    for party in PARTIES:
        job.change(party, tuning={"allow": list(keys)})
    running = job.start_all(command)
    for party in running.values():
        party.phase("alignment")  # so its folder is there
    for party in PARTIES:
        home = job.home(party)
        own = load_party(home / "party.yaml")
        RunFolder.new(own.runs, load_contract(home / "contract.yaml"), party, use="" if command == "run" else command, key=None)
    for party in running.values():
        assert party.end() == 0, party.said
        folder = Path(party.found["folder"])
        assert folder.name.endswith("-1")
        assert Path(party.found["result"]).is_file()
        assert Path(party.found["report"]).is_file()


def test_a_step_on_values_that_have_changed_says_so_at_home_and_keeps_what_the_model_was_trained_by(trained):
    """The ids are those of the alignment. A later prediction reads columns as the training did."""
    job, _ = trained
    tables = {name: job.home(name) / "table.parquet" for name in PARTIES}
    before = {name: path.read_bytes() for name, path in tables.items()}
    kept = {name: (job.runs(name)[-1] / "encoder.json").read_bytes() for name in PARTIES}
    pl.read_parquet(tables["shop"]).with_columns(x=pl.col("x") * 3).write_parquet(tables["shop"])
    bank = pl.read_parquet(tables["bank"])
    bank.with_columns(y=pl.when(pl.int_range(pl.len()) < 5).then(1 - pl.col("y")).otherwise("y")).write_parquet(tables["bank"])
    ended = job.run_all("evaluate")
    for name, path in tables.items():
        path.write_bytes(before[name])
        assert (job.runs(name)[-1] / "encoder.json").read_bytes() == kept[name]
    what = "the table has other values of the same ids: "
    heard = {name: [event["say"] for event in party.events if what in event.get("say", "")] for name, party in ended.items()}
    assert [line.partition(what)[2].partition(";")[0] for line in heard["shop"]] == ["column 'x'"]
    assert [line.partition(what)[2].partition(";")[0] for line in heard["bank"]] == ["the labels"]
    again = job.run_all("evaluate")
    assert not any(what in event.get("say", "") for party in again.values() for event in party.events)


def heard_of_values(ended):
    """Return what each side says at home about changed values."""
    what = "the table has other values of the same ids: "
    lines = {name: [event["say"] for event in party.events if what in event.get("say", "")] for name, party in ended.items()}
    return {name: [line.partition(what)[2].partition(";")[0] for line in found] for name, found in lines.items()}


def of_parts(table, contract, *parts):
    """Tell which rows of a table are in these parts of the split."""
    rows = split_by_hash([key.encode() for key in table["id"]], contract.split, seed=contract.seed)
    return pl.Series(np.isin(rows, parts))


def test_a_step_compares_the_values_of_every_group_of_rows(trained):
    """Rows that only evaluation reads are compared, too, and so are swapped values, whose statistics do not change."""
    job, _ = trained
    tables = {name: job.home(name) / "table.parquet" for name in PARTIES}
    before = {name: path.read_bytes() for name, path in tables.items()}
    contract = load_contract(job.home("bank") / "contract.yaml")
    bank, shop = (pl.read_parquet(tables[name]) for name in PARTIES)
    is_test = of_parts(bank, contract, TEST)
    assert 0.1 < is_test.mean() < 0.3
    bank = bank.with_columns(
        y=pl.when(is_test).then(1 - pl.col("y")).otherwise("y"),
        noise=pl.when(is_test).then(pl.col("noise").shift(1, fill_value=0)).otherwise("noise"),
    )
    shop = shop.with_columns(
        kind=pl.when(of_parts(shop, contract, VALIDATION)).then(pl.lit("red")).otherwise("kind"), x=pl.col("x").reverse()
    )
    bank.write_parquet(tables["bank"])
    shop.write_parquet(tables["shop"])
    heard = heard_of_values(job.run_all("evaluate"))
    for name, path in tables.items():
        path.write_bytes(before[name])
    assert heard == {"bank": ["column 'noise', the labels"], "shop": ["column 'kind', column 'x'"]}
    bank = pl.read_parquet(tables["bank"]).with_columns(unused=pl.lit(1), x=pl.col("x").cast(pl.Float64))
    bank.with_columns(y=pl.col("y").cast(pl.Float64), kind=pl.col("kind").cast(pl.Categorical)).write_parquet(tables["bank"])
    heard = heard_of_values(job.run_all("evaluate"))
    tables["bank"].write_bytes(before["bank"])
    assert heard == {"bank": [], "shop": []}  # other types of the same values


def test_a_step_names_columns_that_are_new_or_gone_since_the_run_began(lay_out_job):
    job = lay_out_job()
    for name in PARTIES:
        path = job.home(name) / "party.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"features": "auto", "drop": ["noise"]}))
    job.run_all("align")
    job.run_all("train")
    shop = job.home("shop") / "table.parquet"
    before = shop.read_bytes()
    pl.read_parquet(shop).with_columns(z=pl.int_range(pl.len())).write_parquet(shop)
    evaluated = job.run_all("evaluate")
    shop.write_bytes(before)
    assert heard_of_values(evaluated) == {"bank": [], "shop": ["column 'z' (new)"]}
    assert evaluated["bank"].found["auc_joint"] == job.run_all("evaluate")["bank"].found["auc_joint"]
