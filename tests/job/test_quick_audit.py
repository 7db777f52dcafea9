"""Without being asked each party attacks its own cut by the cheapest attacks, unless the contract says no."""

import pytest
from msgspec.structs import replace
from tiny import columns, contract_values, tables

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.audit.labels import NO_BITS
from tallystick.audit.run import audit_recorded
from tallystick.compute.threads import limited_threads
from tallystick.config.contract import parse_contract
from tallystick.errors import ConfigError
from tallystick.report.leaks import QUICK, leak_lines
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")


def values_of(**changes):
    values = contract_values(PARTIES, **changes)
    if "audit" not in changes:
        del values["audit"]
    return values


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    return simulate(
        values_of(training__epochs=3), tables(PARTIES, rows=600), columns(PARTIES), folder=folder, watcher=Silent()
    ), folder


def found(folder, party):
    (path,) = (folder / party).glob("tiny-*")
    return path


def test_labels_and_columns_are_attacked_by_default(run):
    result, _ = run
    assert parse_contract(values_of()).audit == "quick"
    labels, (shop,) = result.sections.leakage, result.sections.features
    quick = {
        name for name, row in LABEL_INFERENCE_ATTACKS.items() if row.quick and not (row.of_several or row.from_moments)
    }  # nothing hides labels here, so second moments of gradients are not recorded
    assert {attack.name for attack in labels.attacks} == {
        name for name in quick if LABEL_INFERENCE_ATTACKS[name].binary and not LABEL_INFERENCE_ATTACKS[name].from_flip
    }
    left_out, bits = labels.not_measured
    assert bits == NO_BITS
    assert "surrogate-top" in left_out
    assert left_out.endswith("`audit: true` runs them and may find more")
    names = set(left_out.partition(":")[0].split(", "))
    assert names == {
        name
        for name, row in LABEL_INFERENCE_ATTACKS.items()
        if row.binary and (row.from_moments or not row.quick) and not row.from_flip
    }
    assert max(attack.symmetric_auc for attack in labels.attacks) > 0.95
    assert max(column.value for column in shop.columns if column.name == "x") > 0.5
    assert {column.attack for column in shop.columns} <= {
        "a guess",
        *(name for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.quick),
    }


def test_the_report_says_what_the_gain_cost_and_that_more_attacks_may_find_more(run):
    result, _ = run
    of_labels, of_columns = leak_lines(result)
    assert of_labels.endswith(QUICK)
    assert of_columns.endswith(QUICK)
    full = [replace(each, quick=False) for each in (result.sections.leakage, *result.sections.features)]
    sections = replace(result.sections, leakage=full[0], features=full[1:])
    assert not any(line.endswith(QUICK) for line in leak_lines(replace(result, sections=sections)))
    assert of_labels.startswith("What shop could read of bank's labels: the classes, with AUC ")
    assert of_columns.startswith("Through cut embeddings, yes: bank, knowing the columns of 20 rows, can rebuild")
    assert "over epochs 1 to 3 of 3. This is the quick form, by the cheapest attacks: `audit: true` runs all" in (
        result.sections.leakage.summary
    )
    assert "This is the quick form: `audit: true` runs all attacks." in result.sections.features[0].summary


def test_no_single_step_is_kept(run):
    _, folder = run
    for party, peer in (PARTIES, PARTIES[::-1]):
        names = [path.name for path in (found(folder, party) / "view" / peer).iterdir()]
        assert names
        assert all(name.startswith("rows-") or name in ("validation", "test") for name in names)


def test_a_folder_is_attacked_again_in_the_same_form(run):
    """Equal to the last digit, with as many threads as a run on so few rows has."""
    result, folder = run
    with limited_threads(1):
        assert audit_recorded(found(folder, "bank"), watcher=Silent()).leakage == result.sections.leakage
        assert audit_recorded(found(folder, "shop"), watcher=Silent()).features == result.sections.features[0]


def test_recording_changes_no_weight_and_a_contract_can_say_no(run, tmp_path):
    result, _ = run
    without = simulate(
        values_of(training__epochs=3, audit=False), tables(PARTIES, rows=600), columns(PARTIES), folder=tmp_path, watcher=Silent()
    )
    assert without.sections.leakage is None
    assert not without.sections.features
    assert all(line.endswith("not measured, so nothing is known about it.") for line in leak_lines(without))
    for party in PARTIES:
        assert not (found(tmp_path, party) / "view").exists()
    assert without.joint == result.joint


def test_numbers_are_ranked_by_the_first_steps():
    frames = tables(PARTIES, rows=600, target="regression")
    result = simulate(values_of(target={"type": "regression"}), frames, columns(PARTIES), watcher=Silent())
    assert {attack.name for attack in result.sections.leakage.attacks} >= {"first-steps"}


@pytest.mark.parametrize("value", ["full", "yes", None])
def test_another_form_is_refused(value):
    with pytest.raises(ConfigError, match="audit"):
        parse_contract(values_of(audit=value))
