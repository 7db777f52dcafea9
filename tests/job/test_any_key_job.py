"""Jobs whose rows are linked by any of several keys train on the rows of a slow join, predict, resume, and are refused
by name.
"""

import msgspec
import numpy as np
import polars as pl
import pytest
from rich.console import Console
from test_chosen_runs import both
from tiny import columns, contract_values, error_of, files_of, lay_out, tables

from tallystick.cli.jobs import show_run
from tallystick.config.contract import parse_contract
from tallystick.disclosure.table import disclosure_lines
from tallystick.errors import ConfigError, DataError
from tallystick.job.monitor import look_of
from tallystick.job.predict import predict_rows
from tallystick.job.process import run_process
from tallystick.monitoring.monitor import monitor_table
from tallystick.run_folder.folder import RunFolder
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
KEYS = {"keys": [{"name": "mail", "normalise": ["email"]}, {"name": "phone"}], "alternatives": [["mail"], ["phone"]]}
HELD = {"mail": "mail", "phone": "phone"}


def contract(**changes):
    values = contract_values(PARTIES, **changes)
    values["alignment"] = {"method": "intersection", **KEYS, **values["alignment"]}
    values["alignment"]["keys"] = KEYS["keys"]
    return values


def people(rows=600):
    """Make the tiny job's tables, in which each side lacks the mail or the phone of some persons."""
    rng = np.random.default_rng(2)
    frames = {}
    for name, frame in tables(PARTIES, rows=rows).items():
        lacks = rng.random((frame.height, 2)) < (0.2, 0.4)
        frames[name] = frame.select(
            pl.when(pl.Series(~lacks[:, 0])).then("A." + pl.col("id") + "@Example.com").alias("mail"),
            pl.when(pl.Series(~lacks[:, 1])).then("+49" + pl.col("id").str.slice(3)).alias("phone"),
            pl.all().exclude("id"),
            person="id",
        )
    frames["shop"] = frames["shop"].with_columns(pl.col("mail").str.to_lowercase())
    return frames


def linked(frames):
    """Return the persons that a join links, and by which key."""
    both = frames["bank"].join(frames["shop"], on="person", suffix="_there")
    both = both.with_columns(
        by_mail=pl.col("mail").is_not_null() & pl.col("mail_there").is_not_null(),
        by_phone=pl.col("phone").is_not_null() & pl.col("phone_there").is_not_null(),
    )
    return set(both.filter("by_mail")["person"]), set(both.filter(~pl.col("by_mail") & pl.col("by_phone"))["person"])


def sides():
    return {name: {**each, "keys": HELD} for name, each in columns(PARTIES).items()}


def test_a_run_trains_on_the_rows_that_any_key_links_and_says_by_which(tmp_path):
    frames = people()
    by_mail, by_phone = linked(frames)
    values = contract(training__epochs=6, evaluation__own_columns_baseline=True)
    result = simulate(values, frames, sides(), folder=tmp_path)
    sizes = result.alignment.sizes
    assert (sizes["rows in common by mail"], sizes["rows in common by phone"]) == (len(by_mail), len(by_phone))
    assert sizes["rows in common"] == len(by_mail) + len(by_phone) == sum(result.data.rows.values())
    assert result.joint["auc"]["value"] > result.local_baseline["auc"]["value"] + 0.05
    learnt = [(item.party, item.what) for item in result.learnt if item.step == "alignment"]
    assert {party for party, _ in learnt} == set(PARTIES)
    assert all(any(f"{len(by_phone):,} by phone" in what for party, what in learnt if party == name) for name in PARTIES)
    later = f"of each of the {len(by_phone):,} rows that a later key links: which earlier keys shop's row has"
    assert ("bank", f"{later}, of those that this side's lacks.") in learnt
    (folder,) = RunFolder.all(tmp_path / "bank", parse_contract(values), "bank")
    console = Console(record=True, width=200)
    show_run(console, msgspec.structs.replace(result, training=None), folder)
    assert f"rows in common by phone: {len(by_phone):,}" in console.export_text(), "what `tallystick align` prints"
    # both sides split the same people by the key that linked them
    agreed = parse_contract(values)
    folders = [RunFolder.latest(tmp_path / name, agreed, name) for name in PARTIES]
    rows = [folder.load_alignment()[1] for folder in folders]
    assert np.array_equal(rows[0].key_N, rows[1].key_N)


def test_one_key_s_contract_has_the_hash_that_it_had():
    plain = parse_contract(contract_values(PARTIES))
    assert "alternatives" not in plain.canonical_json()
    assert parse_contract(contract()).hash != parse_contract(contract_values(PARTIES, alignment__keys=KEYS["keys"])).hash


def test_check_says_what_several_keys_tell():
    lines = disclosure_lines(parse_contract(contract()), own_columns=True)
    assert any("by which key (in this order: mail, then phone)" in line for line in lines)
    assert any("bank learns which of the earlier keys shop's row has" in line for line in lines)
    assert any("ids of its choice for each of the 2 keys" in line for line in lines)


def test_predict_links_new_rows_by_any_key_and_a_look_at_scores_finds_them(tmp_path):
    frames = people(rows=300)
    by_mail, by_phone = linked(frames)
    job = lay_out(tmp_path, PARTIES, contract(training__epochs=1, evaluation__own_columns_baseline=False), frames)
    for name in PARTIES:
        job.change(name, keys=HELD)
    both(lambda name: run_process(*files_of(job, name), watcher=Silent()))
    file = job.home("bank") / "scores.parquet"
    output = {"bank": file, "shop": None}
    both(lambda name: predict_rows(*files_of(job, name), table=None, output=output[name], watcher=Silent()))
    scores = pl.read_parquet(file)
    assert scores.columns[:2] == ["mail", "phone"]
    assert set(scores.join(frames["bank"], on=["mail", "phone"], nulls_equal=True)["person"]) == by_mail | by_phone
    look = monitor_table(look_of(*files_of(job, "bank"), table=None, scores=file, run=None, every="all"))
    assert look.scored_by == {"joint model": len(by_mail | by_phone)}
    assert look.without_score == frames["bank"].filter(pl.col("mail").is_not_null() | pl.col("phone").is_not_null()).height - len(
        by_mail | by_phone
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alignment__alternatives": [["mail"], ["fax"]]}, 'alignment.alternatives: "fax" is not a key; known here: mail, phone'),
        ({"alignment__alternatives": [["mail"], ["mail"]]}, "must have each alternative once"),
        ({"alignment__alternatives": [["mail"]]}, "alignment.alternatives"),
        ({"alignment__alternatives": [["mail", "phone"], ["mail"]], "alignment__duplicates": "all"}, "use first, drop or error"),
        ({"overlap": {}}, "overlap: counts ids by one key"),
        ({"serving": {"ways": ["key"]}}, "serving: finds a row by one key"),
    ],
)
def test_what_does_not_go_with_several_keys_is_refused_by_name(changes, message):
    error = error_of(parse_contract, contract(**changes))
    assert isinstance(error, ConfigError)
    assert message in str(error)


def test_an_unused_key_and_a_union_are_refused():
    unused = contract(alignment__alternatives=[["mail"], ["mail", "phone"]])
    unused["alignment"]["keys"] = [*KEYS["keys"], {"name": "card"}]
    assert 'no alternative has the key "card"' in str(error_of(parse_contract, unused))
    assert "alternatives" in str(error_of(parse_contract, contract(alignment__method="union")))
    several = contract_values(("bank", "club", "shop"))
    several["alignment"] = {"method": "intersection", **KEYS}
    assert "alternative keys are for two parties, and this contract has 2" in str(error_of(parse_contract, several))


def test_a_table_without_any_key_is_refused_before_anything_is_sent():
    frames = people(rows=100)
    frames["shop"] = frames["shop"].with_columns(mail=pl.lit(None, pl.String), phone=pl.lit(None, pl.String))
    error = error_of(lambda: simulate(contract(), frames, sides()))
    assert isinstance(error, DataError)
    assert "key (mail, phone): all" in str(error)
