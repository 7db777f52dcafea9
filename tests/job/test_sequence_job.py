"""Jobs with columns of lists: they help, all commands give the same bits, and bad ones are refused before anybody is called."""

import numpy as np
import polars as pl
import pytest
from tiny import columns, contract_values, tables, weights

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.simulation import Silent, simulate
from tallystick.tables.encoder import Encoder
from tallystick.trials.partner import SimulatedPartner

PARTIES = ("bank", "shop")
SEQUENCE = {"length": 4, "target": "shown"}


def frames(*, rows=400):
    """Make tables in which the feature party knows what was clicked, mostly one kind of item if the label is 1, and
    what is shown.
    """
    rng = np.random.default_rng(4)
    found = tables(PARTIES, rows=rows)
    label = dict(found["bank"].select("id", "y").iter_rows())
    likely = [0.4 if label.get(key, 0) else 0.1 for key in found["shop"]["id"]]
    clicked = [
        [f"item-{rng.integers(6) if rng.random() > 2 * share else 6}" for _ in range(rng.integers(0, 8))] for share in likely
    ]
    shown = [f"item-{number}" for number in rng.integers(0, 7, len(clicked))]
    found["shop"] = found["shop"].with_columns(clicked=pl.Series(clicked, dtype=pl.List(pl.String)), shown=pl.Series(shown))
    return found


def own_columns(**sequence):
    found = columns(PARTIES)
    found["shop"] |= {"features": {"numeric": ["noise"]}, "sequences": {"clicked": SEQUENCE | sequence}}
    return {name: {**theirs, "threads": 1} for name, theirs in found.items()}


@pytest.mark.long
def test_a_sequence_tells_what_the_other_columns_do_not_and_its_audit_says_what_it_leaves_out():
    given = frames(rows=500)
    given["shop"] = given["shop"].with_columns(other=pl.concat_list("x", "noise"))
    importance = {"feature_columns": "both", "repeats": 2}
    measures = {"evaluation__importance": importance, "evaluation__own_columns_baseline": True}
    contract = contract_values(PARTIES, training__epochs=12, training__batch_size=64, audit=True, **measures)
    result = simulate(contract, given, own_columns(), watcher=Silent())
    measured = result.evaluation
    assert measured["joint"]["auc"]["value"] > measured["local_baseline"]["auc"]["value"] + 0.05
    (fall,) = [each for one in result.sections.importance for each in one.columns if each.name == "clicked"]
    assert fall.mean > 0.03
    summary = next(each for each in result.data.columns if each.party == "shop")
    assert (summary.numeric, summary.categorical, summary.sequences) == (1, 0, 1)
    (audit,) = result.sections.features
    assert "sequence 'clicked': no attack here infers items" in audit.not_measured
    assert any(note.startswith("column 'other', which was not used: has type List(Float64)") for note in audit.not_measured)
    assert {column.name: column.used for column in audit.columns} == {"noise": True, "shown": True, "x": False, "kind": False}


@pytest.mark.long
def test_a_killed_run_over_the_network_goes_on_to_the_bits_of_a_simulation_and_predicts(lay_out_job, tmp_path):
    quick = {"training__batch_size": 8, "training__checkpoint_every": 10, "training__starts": "public"}
    given, theirs = frames(), own_columns()
    simulate(contract_values(PARTIES, **quick), given, theirs, watcher=Silent(), folder=tmp_path / "simulated")
    job = lay_out_job(PARTIES, frames=given, **quick)
    # over the network the items come as text, from a CSV
    as_text = given["shop"].with_columns(pl.col("clicked").list.join("|"))
    as_text.write_csv(job.home("shop") / "table.csv")
    sequences = {"clicked": SEQUENCE | {"separator": "|"}}
    job.change("shop", table={"path": "table.csv"}, features=theirs["shop"]["features"], sequences=sequences)
    running = job.start_all()
    running["shop"].wait_for(lambda event: event.get("what") == "training" and event["done"] > 10)
    running["shop"].kill()
    assert running["bank"].end() == 3
    job.run_all("run", "--resume")
    for party in PARTIES:
        (path,) = (tmp_path / "simulated").glob(f"{party}/*/model.safetensors")
        assert job.models(party)[-1] == weights(path)
    (folder,) = [path for path in job.runs("shop") if (path / "model.safetensors").exists()]
    encoder = Encoder.from_json((folder / "encoder.json").read_bytes())
    assert [sequence.name for sequence in encoder.sequences] == ["clicked"]
    assert any("the last 4 items of a row count" in line for line in (folder / "run.log").read_text().splitlines())

    new = as_text.with_columns(clicked=pl.lit("never|seen"), shown=pl.lit(None, dtype=pl.String))
    new.write_csv(job.home("shop") / "new.csv")
    scores = {}
    for name, more in (("same", ()), ("strange", ("--table", "new.csv"))):
        shop, bank = job.start("shop", "predict", *more), job.start("bank", "predict", "--output", f"{name}.csv")
        assert [shop.end(), bank.end()] == [0, 0], shop.said
        scores[name] = pl.read_csv(job.home("bank") / f"{name}.csv").sort("id")
    assert scores["same"]["id"].equals(scores["strange"]["id"])
    assert scores["strange"]["score"].is_between(0, 1).all()
    assert not scores["same"]["score"].equals(scores["strange"]["score"])


def test_a_simulated_partner_gets_a_sequence_with_its_target(tmp_path):
    values = {"party": "bank", "keys": {"id": "id"}, "label": "y", "sequences": {"clicked": SEQUENCE}, "drop": ["shown"]}
    frame = frames()["shop"].with_columns(y=pl.int_range(pl.len()) % 2)
    contract, party = parse_contract(contract_values(PARTIES)), parse_party(values, folder=tmp_path)
    found = SimulatedPartner.of(contract, party, frame, split=["clicked"], rows=100)
    assert found.columns["shop"]["sequences"]["clicked"]["target"] == "shown"
    assert found.columns["bank"]["sequences"] == {}
    assert set(found.tables["shop"].columns) == {"id", "clicked", "shown"}
    assert set(found.tables["bank"].columns) == {"id", "y", "x", "noise", "kind"}
    result = simulate(contract, found.tables, found.columns, watcher=Silent())
    assert {each.party: each.sequences for each in result.data.columns} == {"bank": 0, "shop": 1}
