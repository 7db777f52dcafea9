"""If one side alone can find a problem, its command ends with code 2 before a peer is called, and `check` lists the same."""

import socket
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import similar
from lanes import short_lane_of
from tiny import columns, contract_values, error_of, tables
from typer.testing import CliRunner

from tallystick.alignment import encoding
from tallystick.check import check_party_file
from tallystick.cli.app import app
from tallystick.config.contract import load_contract, parse_contract
from tallystick.config.party import load_party, parse_party
from tallystick.config.sections import SplitConfig
from tallystick.errors import (
    ConfigError,
    ContractMismatch,
    DataError,
    IdentityError,
    PeerLost,
    PeerStopped,
    ProtocolError,
    StorageError,
)
from tallystick.job.phases import defense
from tallystick.job.phases.align import low_match, max_rows, require_match_rate
from tallystick.job.preflight import require
from tallystick.job.process import run_process, way_on
from tallystick.job.resource_estimate import Room
from tallystick.privacy.ledger import BudgetExceeded
from tallystick.run_folder.ledger import create_ledger
from tallystick.simulation import simulate
from tallystick.tables.keys import read_keys
from tallystick.tables.split import TRAINING, VALIDATION, split_by_hash, split_positions
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")


def both_say(job, party="bank"):
    """Return what a run of this party raises before it calls anybody. `check` must list it, too, word for word."""
    home = job.home(party)
    contract, own = load_contract(home / "contract.yaml"), load_party(home / "party.yaml")
    error = error_of(lambda: run_process(contract, own, watcher=Silent()))
    assert isinstance(error, ConfigError | DataError)
    found = check_party_file(home / "party.yaml", home / "contract.yaml")
    assert found["problems"] == str(error).splitlines()
    return str(error)


def clean(job, party="bank"):
    """Tell whether `check` finds nothing to refuse."""
    home = job.home(party)
    return check_party_file(home / "party.yaml", home / "contract.yaml")["problems"] == []


BAD_TABLES = {
    "three values": (
        {"y": pl.int_range(pl.len()) % 3},
        "label column 'y' has 3 distinct values; target.type = binary needs exactly 2",
    ),
    "missing labels": (
        {"y": pl.when(pl.int_range(pl.len()) == 7).then(None).otherwise(pl.col("y"))},
        "label column 'y': missing (null or NaN) in 1 (row 7",
    ),
    "one label": ({"y": pl.lit(1)}, "label column 'y' has 1 distinct value;"),
    "infinite feature": ({"x": pl.lit(float("inf"))}, "numeric column 'x' has 190 infinite numbers"),
    "text as number": ({"x": pl.lit("ten")}, "column 'x': 190 of 190 cells are text that is not a number"),
    "no key": ({"id": pl.lit(None, dtype=pl.String)}, "key (id): all 190 rows are null or empty"),
    "lists": ({"kind": pl.concat_list("x", "noise")}, "column 'kind' holds lists (type List(Float64))"),
}


@pytest.mark.parametrize(("change", "words"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_unusable_tables(lay_out_job, change, words):
    frames = tables(PARTIES, rows=200)
    frames["bank"] = frames["bank"].with_columns(**change)
    assert words in both_say(lay_out_job(PARTIES, frames=frames))


def test_a_text_label_for_regression(lay_out_job):
    frames = tables(PARTIES, rows=200)
    frames["bank"] = frames["bank"].with_columns(y=pl.lit("much"))
    said = both_say(lay_out_job(PARTIES, frames=frames, target__type="regression"))
    assert "column 'y': 190 of 190 cells are text that is not a number" in said


def test_weights_times_and_too_few_rows(lay_out_job):
    frames = tables(PARTIES, rows=200)
    frames["bank"] = frames["bank"].with_columns(weight=-1.0, day=pl.lit(3))
    job = lay_out_job(PARTIES, frames=frames, split__method="time")
    job.change("bank", weight="weight", time="day")
    said = both_say(job)
    assert "weight column 'weight': missing, negative or infinite in 190" in said
    assert "time column 'day' has 1 distinct times in 190 rows: no rows are left for one of training, validation, test" in said
    few = {name: frame.sort("id")[:2] for name, frame in tables(PARTIES, rows=200).items()}
    assert "2 ids fall into the validation part" in both_say(lay_out_job(PARTIES, frames=few), "shop")


def test_weights_that_tell_replaced_labels_are_refused_and_others_warned_of(lay_out_job):
    frames = tables(PARTIES, rows=200)
    balanced = {**frames, "bank": frames["bank"].with_columns(weight=1 + 4 * pl.col("y"))}
    class_of_row = pl.int_range(pl.len()) % 3  # of which two have one weight
    of_classes = {**frames, "bank": frames["bank"].with_columns(y=class_of_row, weight=1 + 4 * (class_of_row == 2))}
    hidden = {"defense": [{"method": "label-dp", "epsilon": 1.0}]}
    refused = "the label, and cut gradients show the rows' weights: the contract's ε"
    warned = "weight column 'weight': cut gradients show the rows' weights, so the labels' ε holds only if"
    for given, changes, is_refused, is_warned in (
        (balanced, hidden, True, True),
        (frames, hidden, False, True),
        (balanced, {}, False, False),
        (balanced, {"training__gradients": "none"}, False, False),
        (of_classes, {**hidden, "target": {"type": "multiclass", "classes": 3}}, True, True),
    ):
        job = lay_out_job(PARTIES, frames=given, **changes)
        job.change("bank", weight="weight")
        found = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
        assert any(refused in problem for problem in found["problems"]) == is_refused
        assert any(warned in warning for warning in found["warnings"]) == is_warned


def test_what_others_see_of_each_row_must_not_tell_labels_that_the_contract_promises_to_hide(lay_out_job):
    """The parts of a split by time cross in the clear, and so does how many rows of the label party an id has."""
    frames = tables(PARTIES, rows=200)
    late = {**frames, "bank": frames["bank"].with_columns(day=pl.col("day") + 1000 * pl.col("y"))}
    twice = {**frames, "bank": pl.concat([frames["bank"], frames["bank"].filter(pl.col("y") == 1)])}
    hidden = {"defense": [{"method": "label-dp", "epsilon": 1.0}]}
    by_time, none = {"split__method": "time"}, {"training__gradients": "none"}
    told_time = "time column 'day' predicts the label by itself, with AUC 1.0000, and split.method = time"
    told_count = "the number of rows of an id all but equals the label, and alignment.duplicates = all"
    for given, changes, refused in (
        (late, by_time | hidden, told_time),
        (late, by_time | none, told_time),
        (late, by_time, ""),
        (late, none, ""),
        (frames, by_time | hidden, ""),
        (twice, {"alignment__duplicates": "all", **hidden}, told_count),
        (twice, {"alignment__duplicates": "all", **none}, told_count),
        (twice, {"alignment__duplicates": "all"}, ""),
        (twice, none, ""),
    ):
        job = lay_out_job(PARTIES, frames=given, **changes)
        job.change("bank", time="day")
        assert refused in both_say(job) if refused else clean(job)
        promises, shows = bool({"defense", "training__gradients"} & changes.keys()), len(changes) > 1
        warnings = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")["warnings"]
        assert any("promise for labels holds only if" in warning for warning in warnings) == (promises and shows)


def test_a_feature_party_without_a_usable_column(lay_out_job):
    frames = tables(PARTIES, rows=200)
    frames["shop"] = frames["shop"].with_columns(x=1.0, noise=2.0, kind=pl.lit("red"))
    assert "party shop has no usable feature column" in both_say(lay_out_job(PARTIES, frames=frames), "shop")


OWN = (
    "it can tell most made-up rows from real ones, by whether a row's embedding fits these columns: "
    "assume that bank knows which rows"
)


@pytest.mark.parametrize(
    ("method", "changes", "bank", "shop"),
    [
        ("union", {}, "bank has columns of its own, and", "if bank has columns of its own,"),
        ("union", {"features": {}}, None, "if bank has columns of its own,"),
        ("union", {"features": {"numeric": ["one"]}}, None, "if bank has columns of its own,"),  # constant, so it is useless
        (
            "union",
            {"table": {"path": "absent.parquet"}},
            "if bank has columns of its own,",
            "if bank has columns of its own,",
        ),  # not looked at
        ("intersection", {}, None, None),
    ],
)
def test_check_says_where_own_columns_undo_what_a_union_hides(lay_out_job, method, changes, bank, shop):
    frames = tables(PARTIES, rows=60)
    frames["bank"] = frames["bank"].with_columns(one=1.0)
    job = lay_out_job(PARTIES, frames=frames, alignment__method=method, union__features="splice-tr")
    job.change("bank", **changes)
    for party, begins in (("bank", bank), ("shop", shop)):
        home = job.home(party)
        shown = CliRunner().invoke(app, ["check", str(home / "party.yaml"), str(home / "contract.yaml")], env={"COLUMNS": "500"})
        found = check_party_file(home / "party.yaml", home / "contract.yaml")
        said = [line for line in found["disclosures"] if "columns of its own" in line]
        whole = f"{begins} {OWN} of the union shop has, however the others are filled (union.features = splice-tr)"
        assert said == ([whole] if begins else [])
        assert (f"discloses: {whole}" in shown.output) is bool(begins)


BAD_SEQUENCES = {
    "not named": ({"features": "auto", "sequences": {}}, "column 'clicked' holds lists (type List(String))"),
    "a category": (
        {"features": {"categorical": ["clicked"]}, "sequences": {}},
        "column 'clicked' holds lists (type List(String)), which are neither numbers nor categories; list it under sequences",
    ),
    "separator of lists": (
        {"sequences": {"clicked": {"separator": "|"}}},
        "sequences.clicked.separator = '|': the column holds lists",
    ),
    "separator never occurs": (
        {"sequences": {"kind": {"separator": "|"}}},
        "sequences.kind.separator = '|': is in none of 190 cells",
    ),
    "no separator": ({"sequences": {"kind": {}}}, "sequences.kind: the column holds text; give the separator"),
    "nested lists": ({"sequences": {"nested": {}}}, "sequences.nested: its cells have type List(List(String))"),
    "no such column": ({"sequences": {"clicks": {}}}, "sequence column 'clicks' is not in the table; did you mean clicked"),
    "no such target": (
        {"sequences": {"clicked": {"target": "showed"}}},
        "target column 'showed' is not in the table; did you mean shown",
    ),
    "target of lists": ({"sequences": {"clicked": {"target": "nested"}}}, "column 'nested' has type List(List(String))"),
}


@pytest.mark.parametrize(("changes", "words"), BAD_SEQUENCES.values(), ids=BAD_SEQUENCES)
def test_unusable_sequences(lay_out_job, changes, words):
    frames = tables(PARTIES, rows=200)
    lists = pl.Series([["a", "b"], ["a"]] * 95)
    frames["shop"] = frames["shop"].with_columns(clicked=lists, shown=pl.lit("a"), nested=pl.Series([[["a"]]] * len(lists)))
    job = lay_out_job(PARTIES, frames=frames)
    job.change("shop", **({"features": {"numeric": ["noise"]}} | changes))
    assert words in both_say(job, "shop")


def test_noise_on_embeddings_without_a_ledger_to_charge(lay_out_job):
    """The feature party adds the noise, so its ledger is checked before anybody is called."""
    noise = {"method": "gaussian-embeddings", "epsilon": 2.0, "delta": 1e-6, "clip": 1.0}
    job = lay_out_job(PARTIES, rows=200, defense=[noise])
    ledger = job.home("shop") / "privacy-ledger.sqlite"
    ledger.unlink(missing_ok=True)
    said = both_say(job, party="shop")
    assert str(ledger) in said
    assert "tallystick ledger" in said
    assert check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")["problems"] == []


def test_a_teacher_of_labels_without_its_library(lay_out_job, monkeypatch):
    monkeypatch.setattr(defense, "can_boost", lambda: False)
    job = lay_out_job(PARTIES, rows=200, defense=[{"method": "ladsg", "soft": 0.5}])
    assert both_say(job) == "defense.method = ladsg: its teacher needs scikit-learn; install it, or take another defence"
    assert check_party_file(job.home("shop") / "party.yaml", job.home("shop") / "contract.yaml")["problems"] == []
    contract = contract_values(PARTIES, defense=[{"method": "ladsg", "soft": 0.5}])
    assert "its teacher needs scikit-learn" in str(
        error_of(lambda: simulate(contract, tables(PARTIES, rows=200), columns(PARTIES)))
    )


def test_modules_that_are_absent_broken_or_of_another_shape(lay_out_job, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_modules.py").write_text(
        "import torch\n"
        "class Breaks(torch.nn.Module):\n"
        "    def __init__(self, shape):\n"
        "        raise TypeError('no such thing')\n"
        "class Lies(torch.nn.Module):\n"
        "    width = 5\n"
        "    def __init__(self, shape):\n"
        "        super().__init__()\n"
        "    def forward(self, features):\n"
        "        return features.numeric_NF\n"
    )
    (tmp_path / "unreadable.py").write_text("def (\n")
    for path, words in (
        ("nowhere.to:Be", "cannot be imported (ModuleNotFoundError"),
        ("unreadable:Bottom", "cannot be imported (SyntaxError"),
        ("own_modules:Absent", "cannot be imported (AttributeError"),
        ("own_modules:Breaks", "failed with TypeError: no such thing"),
        ("own_modules:Lies", "gives torch.float32 of (2, 2) for 2 rows; expected float32 of (2, 5)"),
    ):
        job = lay_out_job(PARTIES, rows=200, model__bottoms={"bank": path})
        assert f"model.bottoms.bank = {path}: {words}" in both_say(job)
    assert "model.top = nowhere.to:Be: cannot be imported" in both_say(lay_out_job(PARTIES, rows=200, model__top="nowhere.to:Be"))
    # The condition of a generator for unaligned rows is as wide as the label party's bottom says.
    given = {"model__bottoms": {"bank": "own_modules:Lies"}, "unaligned": {"method": "diffu-at"}}
    said = "model.bottoms.bank = own_modules:Lies: gives torch.float32 of (2, 2) for 2 rows; expected float32 of (2, 5)"
    assert both_say(lay_out_job(PARTIES, rows=200, **given)) == said
    frames = tables(PARTIES, rows=200)
    frames["shop"] = frames["shop"].head(120)
    error = error_of(lambda: simulate(contract_values(PARTIES, **given), frames, columns(PARTIES), watcher=Silent()))
    assert (type(error), str(error)) == (ConfigError, said)


def test_own_modules_that_mix_rows_under_noise_that_counts_on_rows_apart(lay_out_job, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mixing_modules.py").write_text(
        "from torch import nn\n"
        "class Alone(nn.Module):\n"
        "    width, middle = 5, staticmethod(lambda: nn.LayerNorm(5))\n"
        "    def __init__(self, shape):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Linear(shape.numeric, 5), self.middle(), nn.Dropout(0.5))\n"
        "    def forward(self, features):\n"
        "        return self.layers(features.numeric_NF)\n"
        "class Normed(Alone):\n"
        "    middle = staticmethod(lambda: nn.BatchNorm1d(5))\n"
        "class Centred(Alone):\n"
        "    def forward(self, features):\n"
        "        cut = super().forward(features)\n"
        "        return cut if self.training else cut - cut.mean(dim=0)\n"
        "class NormedTop(nn.Sequential):\n"
        "    def __init__(self, width, outputs):\n"
        "        super().__init__(nn.BatchNorm1d(width), nn.Linear(width, outputs))\n"
        "class AloneTop(nn.Sequential):\n"
        "    def __init__(self, width, outputs):\n"
        "        super().__init__(nn.LayerNorm(width), nn.Linear(width, outputs))\n"
    )
    noise = {"method": "gaussian-embeddings", "epsilon": 10.0, "delta": 1e-6, "clip": 1.0}
    for name, words in (("Normed", "in training what it gives for a row"), ("Centred", "what it gives for a row")):
        path = f"mixing_modules:{name}"
        job = lay_out_job(PARTIES, rows=200, model__bottoms={"shop": path}, defense=[noise])
        create_ledger(load_party(job.home("shop") / "party.yaml"))
        said = f"model.bottoms.shop = {path}: {words} depends on the other rows of its batch, as by batch normalisation, which "
        assert said + "gaussian-embeddings does not cover" in both_say(job, "shop")
        assert clean(lay_out_job(PARTIES, rows=200, model__bottoms={"shop": path}), "shop")
    job = lay_out_job(PARTIES, rows=200, model__bottoms={"shop": "mixing_modules:Alone"}, defense=[noise])
    create_ledger(load_party(job.home("shop") / "party.yaml"))
    assert clean(job, "shop")

    noise = {"method": "gaussian", "epsilon": 8.0, "delta": 1e-6, "clip": 1.0}
    job = lay_out_job(PARTIES, rows=200, model__top="mixing_modules:NormedTop", defense=[noise])
    assert "model.top = mixing_modules:NormedTop: in training what it gives for a row depends on the other rows" in both_say(job)
    assert clean(lay_out_job(PARTIES, rows=200, model__top="mixing_modules:AloneTop", defense=[noise]))


OWN_TOPS = """
from torch import nn
class Breaks(nn.Module):
    def __init__(self, width, outputs):
        raise TypeError('no such thing')
class Wrong(nn.Linear):
    def __init__(self, width, outputs):
        super().__init__(width, outputs + 3)
class Flat(nn.Linear):
    def forward(self, joined):
        return super().forward(joined)[:, 0]
class Joined(nn.Linear):
    def __init__(self, width, outputs):
        super().__init__(16, outputs)
class Bottom(nn.Linear):
    width = 5
    def __init__(self, shape):
        super().__init__(shape.numeric, 5)
    def forward(self, features):
        return super().forward(features.numeric_NF)
"""


def test_own_tops_that_cannot_be_built_or_give_another_shape(lay_out_job, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_tops.py").write_text(OWN_TOPS)
    for name, changes, words in (
        ("Breaks", {}, "failed with TypeError: no such thing"),
        ("Wrong", {}, "gives torch.float32 of (8, 4) for 8 rows; expected float32 of (8, 1)"),
        ("Flat", {}, "gives torch.float32 of (8,) for 8 rows; expected float32 of (8, 1)"),
        ("Wrong", {"unaligned": {"method": "average"}}, "gives torch.float32 of (8, 4) for 8 rows; expected float32 of (8, 1)"),
        (
            "Joined",
            {"model__cut_width": 5},
            "failed with RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x13 and 16x1)",
        ),
    ):
        job = lay_out_job(PARTIES, rows=200, model__top=f"own_tops:{name}", evaluation__own_columns_baseline=False, **changes)
        assert f"model.top = own_tops:{name}: {words}" in both_say(job)
        assert clean(job, "shop")
    frames, three = tables(PARTIES, rows=200, target="multiclass"), {"target": {"type": "multiclass", "classes": 3}}
    said = both_say(lay_out_job(PARTIES, frames=frames, model__top="own_tops:Wrong", **three))
    assert "gives torch.float32 of (8, 6) for 8 rows; expected float32 of (8, 3)" in said
    joined = {"rows": 200, "model__top": "own_tops:Joined"}  # 8 and 8 inputs; the baseline has 8
    assert clean(lay_out_job(PARTIES, **joined))
    joined["evaluation__own_columns_baseline"] = True
    assert clean(lay_out_job(PARTIES, **joined, split__test=0.0))  # no test rows, no baseline
    assert "(8x8 and 16x1)" in both_say(lay_out_job(PARTIES, **joined))


def test_an_own_top_over_a_width_that_only_the_peer_knows_ends_the_run_for_good(lay_out_job):
    """The label party cannot try it before the run. Later it is told what is wrong, and nobody is told to resume."""
    job = lay_out_job(
        PARTIES,
        rows=200,
        model__top="own_tops:Wrong",
        model__bottoms={"shop": "own_tops:Bottom"},
        evaluation__own_columns_baseline=False,
    )
    for party in PARTIES:
        (job.home(party) / "own_tops.py").write_text(OWN_TOPS)
    bank, shop = job.start_all().values()
    assert (bank.end(), shop.end()) == (3, 3)
    assert "model.top = own_tops:Wrong: gives torch.float32 of (8, 4) for 8 rows; expected float32 of (8, 1)" in bank.error
    assert "put right what this line names, then start a new run on all sides, without --resume" in bank.error
    assert "bank had to stop: its settings" in shop.error
    assert "to go on: once that is put right, start a new run on all sides, without --resume" in shop.error


def bank_table(of_training, **changes):
    """Make tables whose label is which of the bank's rows its contract's hash uses for training."""
    frames, contract = tables(PARTIES, rows=200), parse_contract(contract_values(PARTIES, **changes))
    keys = read_keys(frames["bank"], columns={"id": "id"}, alignment=contract.alignment)
    training = split_by_hash(keys.ids, contract.split, seed=contract.seed) == TRAINING
    frames["bank"] = frames["bank"].with_columns(y=pl.Series(of_training(training).astype(np.int64)))
    return frames


def lone(rows):
    """Make a label that is positive for so many training rows, and for all others."""
    return lambda training: ~training | (training.cumsum() <= rows)


def test_labels_that_are_constant_on_the_rows_for_training(lay_out_job):
    frames = bank_table(np.logical_not)
    for changes in ({}, {"unaligned": {"method": "warm-start"}}):
        job = lay_out_job(PARTIES, frames=frames, **changes)
        assert both_say(job) == "label column 'y' is constant on the training rows; there is nothing to learn"
    assert clean(lay_out_job(PARTIES, frames=frames, seed=2)), "another seed splits otherwise"
    assert clean(lay_out_job(PARTIES, frames=frames, alignment__method="union")), "and a union by ids that nobody knows yet"


def test_unaligned_rows_that_can_teach_nothing(lay_out_job):
    no_columns = {"features": {"numeric": [], "categorical": []}}
    frames = bank_table(np.logical_not)
    training = pl.col("y") == 0
    frames["bank"] = frames["bank"].with_columns(y=pl.when(training).then(pl.int_range(pl.len()) % 2).otherwise(2))
    three = {"target": {"type": "multiclass", "classes": 3}}
    for unaligned, party, changes, words in (
        ({"method": "heuristic", "group": "x"}, {}, {}, "unaligned.group = x: is not a categorical column of the label party"),
        (
            {"method": "heuristic", "group": "no"},
            {"time": "day"},
            {"split__method": "time"},
            "unaligned.group = no: is not a categ",
        ),
        (
            {"method": "warm-start"},
            no_columns,
            {},
            "unaligned.method = warm-start: the label party has no usable column of its own",
        ),
        (
            {"method": "average"},
            {},
            {"frames": frames, **three},
            'no aligned training row is of class "2", so joint training cannot learn it',
        ),
    ):
        job = lay_out_job(PARTIES, rows=200, unaligned=unaligned, **changes)
        job.change("bank", **party)
        assert words in both_say(job)
        assert clean(job, "shop")
    assert clean(lay_out_job(PARTIES, rows=200, unaligned={"method": "heuristic", "group": "kind"}))
    assert clean(lay_out_job(PARTIES, frames=frames, **three)), "without unaligned rows a class may lack"


def test_a_teacher_of_labels_one_of_whose_halves_is_bound_to_lack_a_class(lay_out_job):
    ladsg = {"defense": [{"method": "ladsg", "soft": 0.5}]}
    job = lay_out_job(PARTIES, frames=bank_table(lone(1)), **ladsg)
    assert "a half of the training rows has 1 of 2 classes, and a model of it answers for the other half" in both_say(job)
    job.change("bank", features={"numeric": [], "categorical": []})
    assert clean(job), "without columns the teacher draws no halves"
    assert clean(lay_out_job(PARTIES, frames=bank_table(lone(2)), **ladsg))
    assert clean(lay_out_job(PARTIES, frames=bank_table(lone(1))))


def test_a_split_by_hash_where_rows_are_linked_by_similarity(tmp_path):
    """It depends on the label party's positions, as many as it has rows. A feature party's rows are in no part."""
    for name, least in (("some", 0.01), ("none", 0.0001)):
        (tmp_path / name).mkdir()
        job = similar.lay_out_similar(tmp_path / name, split__validation=least)
        assert clean(job, "shop")
        empty = not (split_positions(400, SplitConfig(validation=least, test=0.2), seed=1) == VALIDATION).any()
        assert empty == (name == "none")
        if empty:
            assert "none of this side's 400 ids fall into the validation part" in both_say(job)
        else:
            assert clean(job)


def test_keys_with_too_large_filters_or_too_fine_a_noise(tmp_path, monkeypatch):
    def similar_job(name, **terms):
        (tmp_path / name).mkdir()
        return similar.lay_out_similar(
            tmp_path / name, **{f"alignment__similarity__{key}": value for key, value in terms.items()}
        )

    filters = similar_job("filters", helper_sees="filters")
    assert clean(filters)
    assert clean(filters, "shop")
    monkeypatch.setattr(encoding, "MAX_FILTER_BYTES", 1 << 10)
    for party, rows in (("bank", 400), ("shop", 80)):
        said = both_say(filters, party)
        assert "alignment.similarity.helper_sees = filters: filters of" in said
        assert f"for {rows} rows take" in said
    metres = [{"name": name, "unit": "degree", "low": 0.0, "high": 1000.0} for name in ("lon", "lat")]
    terms = {"dimensions": metres, "window": 200.0}
    for name, radius in (("fine", 1e-9), ("coarse", 1.0)):
        job = similar_job(name, noise={"keys": "planar-laplace", "radius": radius}, **terms)
        for party in ("bank", "shop"):
            path = job.home(party) / "table.parquet"
            pl.read_parquet(path).with_columns(pl.col("lon", "lat") * 1000).write_parquet(path)
        create_ledger(load_party(job.home("shop") / "party.yaml"))
        if name == "coarse":
            assert clean(job)
            assert clean(job, "shop")
        else:
            for party in ("bank", "shop"):
                assert both_say(job, party) == "alignment.similarity.noise.radius = 1e-09: is too small for keys of this size"


def test_what_the_machine_cannot_give(lay_out_job):
    job = lay_out_job(PARTIES, rows=200)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job.change("bank", listen=f"127.0.0.1:{taken.getsockname()[1]}", device="cuda:97")
        said = both_say(job)
    assert "cannot listen there (Address already in use)" in said
    assert "device = cuda:97: PyTorch cannot use it" in said
    (job.home("shop") / "file").write_text("")
    job.change("shop", runs="file/runs")
    assert "no folder can be made there" in both_say(job, "shop")
    wide = lay_out_job(PARTIES, rows=200, model__hidden=[65_536] * 30, model__cut_after=1)
    assert "weights take" in both_say(wide)
    large = lay_out_job(
        PARTIES, rows=200, model__hidden=[8192], model__cut_after=1, training__batch_size=10**9, network__max_message_mib=1
    )
    assert "the cut embeddings of 190 rows and width 8192 take 6 MiB, over network.max_message_mib = 1" in both_say(large)


def test_a_table_that_is_too_large_for_this_machine(lay_out_job, monkeypatch):
    job = lay_out_job(PARTIES, rows=200)
    room = f"table: its 190 rows take some {'{}'} of memory in a run, and 1 MiB are free; use a machine with more"
    monkeypatch.setattr("tallystick.job.resource_estimate.memory_of_process", lambda: 2**19)
    monkeypatch.setattr("tallystick.job.resource_estimate.free_memory", lambda: 2**19)
    assert room.format("600 MiB") in both_say(job)
    monkeypatch.setattr("tallystick.job.resource_estimate.free_memory", lambda: 2**40)
    monkeypatch.setattr("tallystick.tables.records.IN_MEMORY_BYTES", 0)
    for free, is_memory, words in ((2**40, False, "in a file under /place"), (2**40, True, "which lies in memory itself")):
        monkeypatch.setattr("tallystick.job.resource_estimate.temporary_folder", lambda: (Path("/place"), free, is_memory))  # noqa: B023
        home = job.home("bank")
        assert words in check_party_file(home / "party.yaml", home / "contract.yaml")["room"]
    monkeypatch.setattr("tallystick.job.resource_estimate.temporary_folder", lambda: (Path("/place"), 5, False))
    contract, own = load_contract(job.home("bank") / "contract.yaml"), load_party(job.home("bank") / "party.yaml")
    with pytest.raises(StorageError, match="/place: 190 encoded rows take 1 MiB there in a run, and 1 MiB are free; make room"):
        run_process(contract, own, watcher=Silent())


def test_encoded_rows_take_disk_once_they_are_many():
    small, large = Room.of(1_000_000, row_bytes=55), Room.of(100_000_000, row_bytes=55)
    assert (small.disk, large.disk) == (0, 5_500_000_000)
    assert "once encoded they stay in memory" in small.describe()
    assert large.memory < Room.of(100_000_000, row_bytes=55, union=True).memory
    assert large.memory < 17 * 2**30


def test_check_lists_what_does_not_fit_instead_of_failing(lay_out_job):
    job = lay_out_job(PARTIES, rows=200)
    job.change("bank", keys={"other": "id"})
    said = both_say(job)
    assert "keys.id: is missing" in said
    assert check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")["profile"]["rows"] == 190
    job.change("bank", keys={})
    assert "keys.id: is missing" in both_say(job)
    alone = check_party_file(job.home("bank") / "party.yaml", None)["problems"]
    assert alone == ["keys: the party file of bank names no key column; say which one each key of the contract is"]
    path = job.home("bank") / "party.yaml"
    path.write_text(path.read_text().replace("party: bank", "party: nobody"))
    assert 'party = "nobody": is not in the contract' in both_say(job)


def test_a_command_ends_with_2_before_it_waits_for_anybody(lay_out_job):
    frames = tables(PARTIES, rows=200)
    frames["bank"] = frames["bank"].with_columns(y=pl.int_range(pl.len()) % 3)
    bank = lay_out_job(PARTIES, frames=frames).start("bank")
    assert bank.end() == 2
    assert "has 3 distinct values" in bank.error
    assert not any("waiting" in str(event.get("say")) or "phase" in event for event in bank.events)


def test_prediction_refuses_a_table_without_the_columns_before_it_calls_anybody(lay_out_job):
    job = lay_out_job(PARTIES, rows=200)
    job.run_all()
    pl.read_parquet(job.home("shop") / "table.parquet").drop("x", "kind").write_parquet(job.home("shop") / "new.parquet")
    shop = job.start("shop", "predict", "--table", "new.parquet")
    assert shop.end() == 2
    assert "feature column 'x' is not in the table" in shop.error
    assert not any("waiting" in str(event.get("say")) or "phase" in event for event in shop.events)
    bank = job.start("bank", "predict", "--output", "none/such.csv")
    assert bank.end() == 2
    assert "make it first" in bank.error


def test_changed_ids_end_a_resumed_run_before_it_calls_anybody(lay_out_job):
    job = lay_out_job(PARTIES, rows=200)
    job.run_all()
    path = job.home("bank") / "table.parquet"
    pl.read_parquet(path)[1:].write_parquet(path)
    bank = job.start("bank", "run", "--resume")
    assert bank.end() == 2
    assert "has other ids, or another order" in bank.error
    assert "start a new run without --resume on all sides" in bank.error


def test_resuming_is_suggested_only_where_it_can_help():
    resume = "tallystick run c.yaml --party p.yaml --resume"
    for error in (PeerLost("shop", "gone"), ProtocolError("shop", "nonsense"), BudgetExceeded("over")):
        assert way_on(error, resume) == resume
    for error in (
        ContractMismatch("shop", "differ", ["seed"]),
        IdentityError("shop", "another's"),
        DataError("labels"),
        ConfigError("cap"),
    ):
        assert "start a new run on all sides, without --resume" in way_on(error, resume)
        assert resume not in way_on(error, resume)
    assert way_on(PeerStopped("shop", "its labels", final=True), resume) == (
        "once that is put right, start a new run on all sides, without --resume"
    )
    assert way_on(PeerStopped("shop", "its labels"), resume) == (
        f"{resume}; if a table or the contract has to change, start a new run on all sides, without --resume"
    )


class Hearing(Silent):
    """Return what the label party is told."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.mark.parametrize("method", ["intersection", "union"])
@pytest.mark.parametrize("own", ["", "+"], ids=["without a plus", "with a plus"])
def test_without_any_common_id_a_side_is_told_what_its_own_keys_look_like(tmp_path, own, method):
    frames = tables(PARTIES, rows=100)
    theirs, plain = {"": "+", "+": ""}[own], pl.col("id").str.replace("id-", "49170")
    frames = {"bank": frames["bank"].with_columns(id=own + plain), "shop": frames["shop"].with_columns(id=theirs + plain)}
    contract, hearing = contract_values(PARTIES, alignment__method=method), Hearing()
    error = error_of(lambda: simulate(contract, frames, columns(PARTIES), folder=tmp_path, watcher=hearing))
    assert isinstance(error, DataError)
    assert "no id is common" in str(error)
    (warning,) = [text for text in hearing.said if text.startswith("warning: ")]
    assert f"this side's values look like `{own}9{{11}}` (100.0%)" in warning
    assert f"`{theirs}9" not in warning
    assert "look like" not in str(error)


def test_few_common_ids_are_warned_about_with_the_likely_normalisation(tmp_path):
    rows = 400
    frames = tables(PARTIES, rows=rows)
    odd = pl.when(pl.int_range(pl.len()) % 4 > 0)
    frames["shop"] = frames["shop"].with_columns(id=odd.then(pl.col("id").str.to_uppercase()).otherwise(pl.col("id")))
    hearing, values = Hearing(), columns(PARTIES)
    result = simulate(contract_values(PARTIES), frames, values, folder=tmp_path, watcher=hearing)
    (warning,) = [text for text in hearing.said if text.startswith("warning: ")]
    assert "ids are common, " in warning
    notes = result.data.notes
    assert any(
        "shop: only" in note and "`lower` would change 75.0% of this side's values (capital letters)" in note for note in notes
    )
    mended = contract_values(PARTIES, alignment__keys=[{"name": "id", "normalise": ["lower"]}])
    assert not any("are common" in note for note in simulate(mended, frames, values).data.notes)
    least = contract_values(PARTIES, alignment__min_match_rate=0.5)
    hearing = Hearing()
    error = error_of(lambda: simulate(least, frames, values, folder=tmp_path / "least", watcher=hearing))
    assert isinstance(error, DataError)
    assert [text for text in hearing.said if text.startswith("warning: ")] == [warning]
    assert "alignment.min_match_rate = 0.5: only" in str(error)
    assert not list((tmp_path / "least").rglob("alignment.safetensors")), "and nothing is kept of it"


def test_both_sides_end_alike_below_the_least_match_rate(lay_out_job):
    frames = tables(PARTIES, rows=200)
    frames["shop"] = frames["shop"].sort("id")[:60]
    job = lay_out_job(PARTIES, frames=frames, alignment__min_match_rate=0.9)
    running = job.start_all()
    for party in running.values():
        assert party.end() == 3
        assert "alignment.min_match_rate = 0.9: only" in party.error
        assert "phase: alignment" in party.error
        assert "--resume" in party.error
        assert "start a new run on all sides, without --resume" in party.error


def test_the_rate_is_of_the_label_partys_ids_and_the_warning_of_the_smaller_side():
    from tallystick.alignment.outcome import Alignment

    contract = parse_contract(contract_values(PARTIES, alignment__min_match_rate=0.2))
    sizes = {"bank": {"own": 100, "shop": 20, "intersection": 19}, "shop": {"own": 20, "bank": 100, "intersection": 19}}
    for party, known in sizes.items():
        found = Alignment(method="intersection", rows_N=np.arange(19), sizes=known, learnt=[])
        assert low_match(found) is None
        assert "0.2: only 19 of the 100 ids of bank (19.0%)" in str(error_of(require_match_rate, contract, party, found))
    assert max_rows(contract, 50_000) == 500_000
    assert max_rows(contract, 5, expected=2_000_000) == 2_000_000
    assert max_rows(parse_contract(contract_values(PARTIES, alignment__max_rows=7)), 5, expected=90) == 7


def mutants(text, rng):
    """Break a config file in ways that a person or a disk might: values, keys, tags, lines and bytes."""
    values = [
        "",
        "[]",
        "{}",
        "~",
        "-1",
        "0",
        "1e400",
        "9" * 19,
        "-.inf",
        ".nan",
        "true",
        "[[1]]",
        "{a: {b: c}}",
        "!!int ''",
        "!x y",
    ]
    values += [
        "&a b",
        "*a",
        '"\\0"',
        "'",
        "~nobody/x",
        "1e18",
        "65537",
        "bank",
        "[bank, {}]",
        "label-dp",
        "- {method: [1]}",
        "\t",
    ]
    values += ["2024-01-01", "[]: 1", "{method: marvell}", "{method: {a: 1}, power: 2}"]
    while True:
        lines = text.splitlines()
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(lines)))
            match int(rng.integers(6)):
                case 0:
                    key, colon, _ = lines[at].partition(":")
                    lines[at] = f"{key}{colon} {values[rng.integers(len(values))]}"
                case 1:
                    lines[at] = lines[at][: rng.integers(len(lines[at]) + 1)]
                case 2:
                    del lines[at]
                    lines = lines or [""]
                case 3:
                    lines.insert(at, lines[int(rng.integers(len(lines)))])
                case 4:
                    lines[at] = "  " * int(rng.integers(3)) + lines[at].strip()
                case _:
                    place = int(rng.integers(len(lines[at]) + 1))
                    lines[at] = lines[at][:place] + chr(int(rng.integers(0, 0x3000))) + lines[at][place:]
        yield "\n".join(lines)


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("file", ["contract.yaml", "party.yaml"])
def test_mutated_files_give_an_error_that_names_them_or_a_list_of_problems(lay_out_job, file, count):
    defense = [{"method": "marvell", "power": 4}, {"method": "label-dp", "epsilon": 2.0}]
    job = lay_out_job(PARTIES, rows=40, defense=defense, evaluation__privacy={"epsilon": 1.0}, union={"labels": "majority"})
    home = job.home("bank")
    changing = mutants((home / file).read_text(), np.random.default_rng(5))
    read = 0
    for _ in range(count):
        (home / file).write_text(next(changing), encoding="utf-8", errors="replace")
        try:
            contract, party = load_contract(home / "contract.yaml"), load_party(home / "party.yaml")
        except ConfigError:
            continue
        read += 1
        if read % 4 == 0:  # reading the table and the certificates takes longer
            found = check_party_file(home / "party.yaml", home / "contract.yaml")
            if not found["problems"]:
                frame, keys = require(contract, party, say=Silent().say)
                assert frame.height == len(keys.rows_R) == 38
    assert read > count // 30, "some are still valid"


def numbers_of(model, prefix=""):
    """Yield every number of a config model: its path and the limits of its type."""
    from tallystick.reading import Model

    for name, field in model.model_fields.items():
        stack, notes = [field.annotation], list(field.metadata)
        while stack:
            part = stack.pop()
            if isinstance(part, type) and issubclass(part, Model):
                yield from numbers_of(part, f"{prefix}{name}.")
            elif part in (int, float):
                yield f"{prefix}{name}", notes
            else:
                notes += list(getattr(part, "__metadata__", ()))
                stack += [argument for argument in getattr(part, "__args__", ()) if argument is not Ellipsis]
                stack += [part.__origin__] if hasattr(part, "__metadata__") else []


def test_every_number_of_both_files_has_a_least_and_a_most():
    from tallystick.config.contract import Contract
    from tallystick.config.party import PartyFile

    found = [*numbers_of(Contract), *numbers_of(PartyFile)]
    assert len(found) > 35
    for path, notes in found:
        text = repr(notes)
        assert "ge=" in text or "Ge(" in text or "gt=" in text or "Gt(" in text, path
        assert "le=" in text or "Le(" in text or "lt=" in text or "Lt(" in text, path


EXTREMES = [
    {"seed": 10**14, "training__patience": 10**9, "training__checkpoint_every": 10**9, "evaluation__calibration_bins": 10_000},
    {"training__batch_size": 10**9, "training__weight_decay": 100, "training__learning_rate": 1e-9, "evaluation__bootstrap": 0},
    {"training__mode": "pipelined", "training__staleness": 1024, "training__batch_size": 1, "training__epochs": 1},
    {"model__embedding_width": 4096, "model__hidden": [1] * 100, "model__cut_after": 99, "alignment__max_rows": 10**9},
    {"defense": [{"method": "marvell", "power": 1e12}, {"method": "isotropic", "power": 1e12}]},
    {"defense": [{"method": "mixpro", "alpha": 1e3}, {"method": "gaussian", "epsilon": 100.0, "delta": 0.99, "clip": 1e12}]},
    {"defense": [{"method": "mixpro", "alpha": 1e-3}, {"method": "gaussian", "epsilon": 1e-6, "delta": 1e-9, "clip": 1e-6}]},
    {
        "defense": [
            {"method": "distance-correlation", "weight": 1e12, "warm_up": 65_535.0},
            {"method": "label-dp", "epsilon": 1e-6},
        ]
    },
    {"defense": [{"method": "distance-correlation", "weight": 1e-6}, {"method": "label-dp", "epsilon": 100.0}]},
    {"evaluation__privacy": {"epsilon": 1e-6}},
    {"evaluation__privacy": {"epsilon": 100.0}},
]


@pytest.mark.parametrize("extremes", short_lane_of(EXTREMES, 4), ids=range(len(EXTREMES)))
def test_a_contract_at_its_limits_runs(extremes):
    contract = contract_values(PARTIES, **{"training__epochs": 1, "evaluation__bootstrap": 2, **extremes})
    assert simulate(contract, tables(PARTIES, rows=120), columns(PARTIES)).training.steps > 0


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"seed": 10**18}, "seed = 1000000000000000000: must be at most 100,000,000,000,000"),
        ({"model__hidden": [10**9]}, "model.hidden.0 = 1000000000: must be at most 65,536"),
        ({"model__embedding_width": 10**9}, "model.embedding_width = 1000000000: must be at most 4,096, or auto"),
        ({"evaluation__bootstrap": 10**9}, "evaluation.bootstrap = 1000000000: must be at most 100,000"),
        ({"training__learning_rate": 1e300}, "training.learning_rate = 1e+300: must be at most 1,000,000"),
        ({"network__heartbeat_s": 1e-12}, "network.heartbeat_s = 1e-12: must be at least 0.01"),
    ],
)
def test_numbers_out_of_all_proportion_are_refused_with_the_range(changes, line):
    assert line in str(error_of(parse_contract, contract_values(PARTIES, **changes)))


def test_a_path_of_nobodys_home_is_an_error_of_the_file(tmp_path):
    error = error_of(lambda: parse_party({"party": "bank", "runs": "~nobody-of-that-name/runs"}, folder=tmp_path))
    assert "runs" in str(error)
    assert "home folder" in str(error)
