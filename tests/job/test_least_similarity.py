"""With a least similarity strangers are linked to nobody, and scored by own columns: in training, measurements and
predictions.
"""

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import contract_values, free_port, lay_out, seed_system

from tallystick.config.contract import parse_contract
from tallystick.errors import ConfigError
from tallystick.simulation import Silent, simulate

PARTIES = ("bank", "registry")
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def names(rng, count):
    return ["".join(rng.choice(LETTERS, size=12)) for _ in range(count)]


def tables(*, persons=300, strangers=0.5, seed=1):
    """Make persons, some of whom the registry does not know. It has one wrong letter in every name."""
    rng = np.random.default_rng(seed)
    name = names(rng, persons)
    known = rng.permutation(persons)[: round(persons * (1 - strangers))]
    x, level = rng.normal(size=(2, persons))
    is_known = np.isin(np.arange(persons), known)
    score = x + 2 * np.where(is_known, level, 0)
    bank = pl.DataFrame({"name": name, "x": x, "known": is_known, "y": (score > 0).astype(np.int64)})
    spelt = [name[row][:4] + str(rng.choice(LETTERS)) + name[row][5:] for row in known]
    theirs = {"level": level[known] + 0.05 * rng.normal(size=len(known)), "v": rng.normal(size=len(known))}
    return {"bank": bank, "registry": pl.DataFrame({"name": spelt, **theirs})}


def columns():
    return {
        "bank": {"keys": {"name": "name"}, "features": {"numeric": ["x"]}, "label": "y"},
        "registry": {"keys": {"name": "name"}, "features": {"numeric": ["level", "v"]}},
    }


def contract(*, least=None, sees="ranks", **changes):
    similarity = {"dimensions": [{"name": "name", "kind": "text"}], "neighbors": 2, "text_bits": 1024, "helper_sees": sees}
    values = contract_values(
        PARTIES,
        **{
            "alignment": {"method": "similarity", "similarity": similarity | ({"least_similarity": least} if least else {})},
            "model": {"hidden": [8, 8], "cut_after": 1, "merge": {"width": 8, "heads": 2, "top": [8]}},
            "training__epochs": 8,
            "evaluation__bootstrap": 0,
            **changes,
        },
    )
    values["parties"]["helper"] = {"role": "helper"}
    return values


def by_link(result):
    return {group["name"]: group for one in result.sections.groups for group in one["groups"]}


@pytest.mark.parametrize("sees", ["ranks", "clear"])
def test_strangers_are_linked_to_nobody_and_scored_by_own_columns(sees):
    given, parties = tables(), columns()
    parties["bank"]["report"] = {"smallest_group": 20}
    plain = simulate(contract(sees=sees), given, parties, watcher=Silent())
    found = simulate(contract(sees=sees, least=0.6), given, parties, watcher=Silent())
    assert plain.alignment.sizes["rows with a link"] == 300, "each stranger had the row of another"
    assert found.alignment.sizes["rows with a link"] == 150
    assert not by_link(plain)
    groups = by_link(found)
    rows = {name: group["rows"] for name, group in groups.items()}
    assert rows["with one: the joint model"] + rows["without: own columns"] == rows["both together"] == found.data.rows["test"]
    assert rows["without: own columns"] > 20
    assert groups["without: own columns"]["metric"]["value"] > 0.95
    assert found.evaluation["joint"]["auc"]["value"] == groups["both together"]["metric"]["value"]
    told = {item.party: item.what for item in found.learnt if "alike by 0.6 or more" in item.what}
    assert told["bank"].endswith("150 of this side's 300 rows have none.")
    assert told["registry"].endswith("150 of bank's 300 rows have none here, and which ones.")


@pytest.mark.parametrize("split", ["hash", "time"])
def test_rows_without_a_link_are_scored_by_the_network_that_own_columns_alone_get(split, own_trainings, tmp_path):
    """The bits are the same from the same start: with folds, or with a refit, before which it is kept with the joint model."""
    given, parties = tables(), columns()
    given["bank"] = given["bank"].with_row_index("day").with_columns(pl.col("day") % 100)
    parties["bank"]["time"] = "day"
    quick = {"training__epochs": 2, "training__starts": "public", "training__folds": "auto", "split__method": split}
    result = simulate(
        contract(least=0.6, evaluation__own_columns_baseline=True, **quick), given, parties, watcher=Silent(), folder=tmp_path
    )
    (_, scorer, state, first), (_, baseline, _, _) = own_trainings
    weights, others = scorer.state_dict(), baseline.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert len(getattr(scorer, "members", [scorer])) == (4 if split == "hash" else 1)
    assert any("own columns alone: 4 networks" in note for note in result.data.notes) == (split == "hash")
    kept = [load_file(path) for path in sorted((tmp_path / "bank").glob("*/model*.safetensors"))]
    assert len(kept) == 1 + bool(state.refit_epochs) == (1 if split == "hash" else 2)
    for model, theirs in zip(kept, (first, weights)[-len(kept) :], strict=True):
        alone = {name.removeprefix("alone."): weight for name, weight in model.items() if name.startswith("alone.")}
        assert alone.keys() == theirs.keys()
        assert all(torch.equal(alone[name], theirs[name]) for name in alone)


def test_a_floor_that_no_link_is_under_changes_no_bit(monkeypatch):
    given, runs = tables(strangers=0.0), []
    for least in (None, 1e-6):
        seed_system(monkeypatch)
        runs.append(simulate(contract(least=least, training__epochs=1), given, columns(), watcher=Silent()))
    assert runs[0].evaluation == runs[1].evaluation


@pytest.mark.long
def test_predictions_say_how_similar_and_by_which_model(tmp_path):
    """The processes draw the secret of the filters from the system, and some secrets would lift a stranger over the floor.

    Over 300 secrets a stranger's Dice coefficient with a name is normal. That of "utvwmxygwetx" with "utxmxygxuldl" is over .6
    with a chance of .007. All the other 27,269 pairs are at least 7.7 deviations below .6, with a chance of 6e-15 in all.
    """
    given = tables(strangers=0.1)
    job = lay_out(tmp_path, (*PARTIES, "helper"), contract(least=0.6), {**given, "helper": pl.DataFrame({"x": [0]})})
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ("bank", "helper")}
    for name in job.parties:
        path = job.home(name) / "party.yaml"
        values = yaml.safe_load(path.read_text())
        for key in ("keys", "features", "label", "peers", "listen", *(["table"] if name == "helper" else [])):
            values.pop(key, None)
        dials = {"bank": ("helper",), "registry": ("bank", "helper"), "helper": ()}[name]
        values |= {"peers": {peer: {"address": addresses[peer]} for peer in dials}, **columns().get(name, {})}
        values |= {"listen": addresses[name]} if name in addresses else {}
        path.write_text(yaml.safe_dump(values))
    job.run_all()
    fresh = tables(persons=101, strangers=0.5, seed=2)
    new = pl.concat([given["bank"].filter("known").head(100), fresh["bank"]]).drop("y")
    new.write_parquet(job.home("bank") / "new.parquet")
    running = {
        "bank": job.start("bank", "predict", "--table", "new.parquet", "--output", "scores.csv"),
        **{name: job.start(name, "predict") for name in ("registry", "helper")},
    }
    assert all(party.end() == 0 for party in running.values()), {name: party.said for name, party in running.items()}
    scores = pl.read_csv(job.home("bank") / "scores.csv")
    assert [name for name in scores.columns if name != "run_id"] == ["row", "name", "score", "similarity", "scored_by"]
    alone = scores["scored_by"] == "own columns"
    assert set(scores["scored_by"]) == {"joint model", "own columns"}
    assert not alone[:100].any()
    linked = int((~alone[100:]).sum())
    assert linked <= 1
    assert scores["similarity"].is_null().to_list() == alone.to_list()
    assert running["bank"].found["scored_by"] == {"joint model": 100 + linked, "own columns": 101 - linked}
    own_x = fresh["bank"]["x"].filter(alone[100:]).to_numpy()
    assert (np.diff(scores["score"].filter(alone).to_numpy()[np.argsort(own_x)]) > -0.02).all(), "their own column alone says it"


@pytest.mark.parametrize("least", [0.0, 1.5, -1.0])
def test_what_a_floor_may_be(least):
    values = contract()
    values["alignment"]["similarity"]["least_similarity"] = least
    with pytest.raises(ConfigError, match="least_similarity"):
        parse_contract(values)
