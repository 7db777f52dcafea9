"""What cut gradients show of other parties' columns: the audit attacks both the label party's and a feature party's columns."""

from functools import partial
from types import SimpleNamespace

import msgspec
import numpy as np
import polars as pl
import pytest
import torch
from lanes import short_lane_of
from tiny import columns, contract_values, seed_system
from torch.nn.functional import one_hot

from tallystick.attacks.feature_inference.averaged_kernels import AveragedKernels
from tallystick.attacks.feature_inference.view import ColumnValues
from tallystick.attacks.view import StepView
from tallystick.audit import columns_from_gradients
from tallystick.audit.columns_from_gradients import NUMBERS
from tallystick.audit.run import audit_recorded
from tallystick.errors import ConfigError
from tallystick.report.leaks import gradients_headline
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "club", "shop")


def frames(rows=1600):
    """Make tables whose label depends on a column of each party. All columns are independent, so only labels link them."""
    rng = np.random.default_rng(5)
    signal = rng.normal(size=(rows, len(PARTIES)))
    label = (signal @ [1.5, 1.0, 2.0] + rng.normal(size=rows) > 0).astype(int)
    made = {}
    for place, name in enumerate(PARTIES):
        made[name] = pl.DataFrame(
            {
                "id": [f"id-{row:05}" for row in range(rows)],
                "x": signal[:, place],
                "noise": rng.normal(size=rows),
                "kind": rng.choice(["red", "green", "blue"], size=rows),
            }
        )
    made["bank"] = made["bank"].with_columns(y=label)
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("told")
    with pytest.MonkeyPatch.context() as patch:
        seed_system(patch)
        contract = contract_values(PARTIES, audit="quick", training__epochs=10, evaluation__importance={"own_columns": False})
        return simulate(contract, frames(), columns(PARTIES), folder=folder), folder


def gain(told, name, known=200):
    values = [
        next(column.value for column in each if (column.name, column.known) == (name, known))
        for each in (told.columns, told.without)
    ]
    return values[0] - values[1]


def test_gradients_tell_each_feature_party_of_the_label_partys_columns(run):
    told = {each.by: each for each in run[0].sections.told if each.party == "bank"}
    assert set(told) == {"club", "shop"}
    assert gain(told["shop"], "x") > 0.12
    assert gain(told["club"], "x") > 0.03
    for each in told.values():
        assert gain(each, "noise") < 0.1
        assert gradients_headline(each).startswith("Through cut gradients, ")
    assert gradients_headline(told["shop"]).startswith("Through cut gradients, yes: shop, knowing the columns of 200 rows,")


def test_and_of_another_feature_partys(run):
    told = {each.party: each for each in run[0].sections.told if each.party != "bank"}
    assert {party: each.by for party, each in told.items()} == {"club": "shop", "shop": "club"}
    assert gain(told["shop"], "x") > 0.1
    assert "assuming gradients like those of shop" in told["shop"].summary


@pytest.mark.parametrize("features", short_lane_of([{"numeric": ["x"], "categorical": ["kind"]}, {}], 1), ids=["listed", "auto"])
def test_gradients_tell_weights_which_the_audit_measures_and_what_it_does_not_look_at_is_named(features, tmp_path, monkeypatch):
    seed_system(monkeypatch)
    two, rng = ("bank", "shop"), np.random.default_rng(6)
    made = {name: frames()[name] for name in two}
    weight, items = rng.lognormal(size=1600), [["a", "b"][: 1 + row % 2] for row in range(1600)]
    made["bank"] = made["bank"].with_columns(weight=weight, items=pl.Series(items))
    parties = columns(two)
    parties["bank"] |= {"weight": "weight", "features": features, "sequences": {"items": {"length": 2}} if features else {}}
    contract = contract_values(two, audit="quick", training__epochs=10, defense=[{"method": "label-dp", "epsilon": 1.0}])
    (told,) = simulate(contract, made, parties, folder=tmp_path, watcher=Silent()).sections.told
    assert gain(told, "weight weight") > 0.3
    assert gain(told, "weight weight", known=20) > 0.3
    if features:
        assert "sequence 'items': no attack here infers items" in told.not_measured
        assert any(note.startswith("1 columns that the model does not use") for note in told.not_measured)


def test_no_figure_is_below_what_is_told_without_gradients(tmp_path, monkeypatch):
    """Much noise in gradients would hide what an attacker knows without them, so the attacker leaves the gradients out."""
    seed_system(monkeypatch)
    made = {name: frame for name, frame in frames(800).items() if name != "club"}
    made["bank"] = made["bank"].with_columns(noise=made["bank"]["y"] + 0.3 * made["bank"]["noise"])
    noisy = [{"method": "gaussian", "epsilon": 0.1, "delta": 1e-6, "clip": 1.0}]
    two = ("bank", "shop")
    (told,) = simulate(contract_values(two, audit="quick", defense=noisy), made, columns(two), folder=tmp_path).sections.told
    value = {(each.name, each.known): each.value for each in told.columns}
    for each in told.without:
        assert value[each.name, each.known] >= each.value
    for mean, without in zip(told.means, told.means_without, strict=True):
        assert mean.value >= without.value
    assert any(each.attack.endswith(", without gradients") for each in told.columns)


def test_a_folder_is_attacked_again_and_finds_the_same(run):
    result, folder = run
    for party in ("bank", "shop"):
        (path,) = (folder / party).glob("tiny-*")
        again = audit_recorded(path, watcher=Silent()).told
        before = [each for each in result.sections.told if each.party == party]
        assert [(each.by, each.summary) for each in again] == [(each.by, each.summary) for each in before]
        for each, old in zip(again, before, strict=True):  # as many threads as there are here
            assert [column.value for column in each.columns] == pytest.approx([column.value for column in old.columns], abs=1e-4)
    assert "Do gradients tell shop of bank" in (path.parent.parent / "bank" / path.name / "report.html").read_text()


@pytest.mark.parametrize(("changes", "found"), [({"training__gradients": "none"}, False), ({"target__type": "regression"}, True)])
def test_what_is_not_sent_or_not_measured_is_said(tmp_path, monkeypatch, changes, found):
    seed_system(monkeypatch)
    made = {name: frame for name, frame in frames(400).items() if name != "club"}
    two = ("bank", "shop")
    result = simulate(contract_values(two, audit="quick", **changes), made, columns(two), folder=tmp_path)
    told = result.sections.told
    assert bool(told) is found
    if found:
        assert told[0].not_measured == [NUMBERS]
        assert gradients_headline(told[0]).endswith("was not measured.")
    assert msgspec.to_builtins(told) is not None


def planted(seed, *, tells=True, rows=1200):
    """Make gradients p - y times a direction, over units that four columns make active. A quarter of the labels y are
    replaced.
    """
    source = torch.Generator().manual_seed(seed)
    drawn = partial(torch.randn, generator=source)
    truth_NF = drawn(rows, 4)
    direction_ND = (truth_NF @ drawn(4, 32) + drawn(32) > 0).float() @ drawn(32, 16) + 2 * drawn(16)
    if not tells:
        direction_ND = direction_ND[torch.randperm(rows, generator=source)]
    chance_N = drawn(rows).sigmoid()
    label_N = (torch.rand(rows, generator=source) < chance_N).long()
    replaced_N = torch.where(torch.rand(rows, generator=source) < 0.27, 1 - label_N, label_N)
    gradient_ND = (chance_N - replaced_N)[:, None] * direction_ND
    every_N = torch.arange(rows)
    step = StepView(
        epoch=0,
        rows_B=every_N,
        own_B=every_N >= 0,
        received_BD=gradient_ND,
        length_B=torch.linalg.vector_norm(gradient_ND, dim=1),
    )
    none = {"categorical_NG": torch.empty(rows, 0, dtype=torch.int64), "categorical": (), "categories": ()}
    return step, one_hot(label_N, 2).float(), ColumnValues(numeric_NF=truth_NF, numeric=tuple("abcd"), **none)


QUICK = SimpleNamespace(audit="quick", target=SimpleNamespace(type="binary"))


@pytest.mark.parametrize(("target", "sides"), [("binary", True), ("multilabel", False)])
def test_two_labels_are_not_taken_for_two_classes(target, sides, monkeypatch):
    """Turn no sum of two labels' gradients, which has no two sides."""
    step, classes_NC, truth = planted(0, rows=100)
    turned = []
    monkeypatch.setattr(
        columns_from_gradients, "_turned", lambda step, *_, two_sides: turned.append(two_sides) or step.received_BD
    )
    contract = SimpleNamespace(audit="quick", target=SimpleNamespace(type=target))
    columns_from_gradients._rebuilt_columns(contract, "bank", "shop", "shop", step, None, classes_NC, truth)
    assert turned == [sides]


@pytest.mark.parametrize("seed", range(2))
def test_gradients_turned_to_one_side_tell_columns_although_labels_are_replaced(seed):
    """Beside a curve for each class: a replaced label turns the direction of its row's gradient."""
    step, classes_NC, truth = planted(seed)
    turned_ND = columns_from_gradients._turned(step, classes_NC, None, two_sides=True)
    found = columns_from_gradients._found(turned_ND, turned_ND, truth, (200,), {"turned": columns_from_gradients.TURNED}).mean(
        200
    )
    unit_ND = step.received_BD / torch.linalg.vector_norm(step.received_BD, dim=1, keepdim=True)
    by_class_ND = torch.cat([columns_from_gradients._by_class(unit_ND, classes_NC), classes_NC, step.length_B[:, None]], dim=1)
    assert (
        found
        > columns_from_gradients._found(by_class_ND, by_class_ND, truth, (200,), columns_from_gradients.ATTACKS).mean(200) + 0.05
    )
    assert found > 0.7


def test_too_few_rows_for_an_attack_are_named():
    """The report had neither a figure nor a reason there."""
    step, classes_NC, truth = planted(0, rows=30)
    found = columns_from_gradients._rebuilt_columns(QUICK, "bank", "shop", "shop", step, None, classes_NC, truth)
    assert found.columns == []
    assert "columns of bank by shop: gradients of 30 rows were recorded; 40 are needed" in found.not_measured


def test_embeddings_that_are_not_finite_are_named():
    """These ended the audit with an error of linear algebra."""
    step, classes_NC, truth = planted(0, rows=100)
    own_ND = torch.randn(100, 4)
    own_ND[2] = torch.inf
    found = columns_from_gradients._rebuilt_columns(QUICK, "bank", "shop", "shop", step, own_ND, classes_NC, truth)
    assert (found.columns, found.without) == ([], [])
    (note,) = found.not_measured
    assert note.startswith("columns of bank by shop: its embeddings are NaN or infinite; training diverged")


def test_gradients_that_tell_nothing_of_columns_give_nothing():
    step, classes_NC, truth = planted(3, tells=False)
    turned_ND = columns_from_gradients._turned(step, classes_NC, torch.zeros(len(truth), 3), two_sides=True)
    assert (
        columns_from_gradients._found(turned_ND, turned_ND, truth, (200,), {"turned": columns_from_gradients.TURNED}).mean(200)
        < 0.05
    )
    silent_ND = columns_from_gradients._turned(step.only(step.own_B), torch.zeros(len(truth), 3), None, two_sides=False)
    assert bool(torch.isfinite(silent_ND).all()), "of three classes, none of which occurs"
    with pytest.raises(ConfigError, match="averaged kernels: bandwidths="):
        AveragedKernels(bandwidths=())
