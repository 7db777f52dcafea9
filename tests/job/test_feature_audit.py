"""The feature party's audit of a run: only that party measures what could be rebuilt of its columns. Also defences of columns."""

import re
import shutil
import stat

import msgspec
import numpy as np
import polars as pl
import pytest
from tiny import columns, contract_values, few_column_attacks, seed_system, tables, weights

from tallystick.attacks.feature_inference import evaluate
from tallystick.audit import columns as feature_audit
from tallystick.audit.labels import NO_BITS
from tallystick.audit.run import audit_recorded
from tallystick.compute.threads import limited_threads
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.errors import ConfigError, DataError
from tallystick.privacy.events import NotPrivate
from tallystick.privacy.ledger import Ledger
from tallystick.report.leaks import column_promise, feature_headline, leak_headline, leak_lines
from tallystick.results import MeanRebuilt, RowGroup, read_result
from tallystick.run_folder.embedding_charge import EmbeddingCharge, Sent
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger
from tallystick.run_folder.listing import contract_of
from tallystick.simulation import simulate
from tallystick.storage import Origin
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
NOISE = {"method": "gaussian-embeddings", "epsilon": 2.0, "delta": 1e-6, "clip": 1.0}


def frames(rows=900):
    made = tables(PARTIES, rows=rows)
    secret = (pl.col("x") > 0).cast(pl.Int64)
    made["shop"] = made["shop"].with_columns(secret=secret, same=pl.lit(3))
    return made


def run(folder, given=None, **changes):
    contract = contract_values(PARTIES, **{"audit": True, "model__embedding_width": 2, **changes})
    return simulate(contract, given or frames(), columns(PARTIES), folder=folder)


def run_folder(folder, party="shop"):
    (found,) = (folder / party).glob("tiny-*")
    return found


@pytest.fixture(scope="module")
def undefended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undefended")
    with pytest.MonkeyPatch.context() as patch:
        seed_system(patch)
        return run(folder, training__validations="auto", evaluation__importance={}), folder


def by_name(audit, known=200):
    return {column.name: column for column in audit.columns if column.known == known}


def test_the_feature_party_finds_that_its_columns_can_be_rebuilt(undefended):
    (audit,) = undefended[0].sections.features
    found = by_name(audit)
    assert found["x"].value > 0.5
    assert (audit.party, audit.by) == ("shop", "bank")
    assert "training rows over epochs 1 to 2" in audit.summary
    assert "evenly chosen" not in audit.summary
    assert audit.defense == "none; no formal guarantee"
    # 20 known ones of its few validation rows help more than 200 of the training rows
    assert feature_headline(audit).startswith(
        "Through cut embeddings, yes: bank, knowing the columns of 20 rows, can rebuild the columns of other validation rows: "
    )


def test_the_report_counts_the_rows_that_were_attacked(undefended, tmp_path, monkeypatch):
    """The counts are not those of the recorded rows, of which there may be more."""
    few_column_attacks(monkeypatch)
    monkeypatch.setattr(evaluate, "MOST_ROWS", 60)
    monkeypatch.setattr(feature_audit, "MOST_ROWS", 60)
    shutil.copytree(run_folder(undefended[1]), tmp_path / "again")
    again = audit_recorded(tmp_path / "again", watcher=Silent(), known_rows=(20,)).features
    assert "alone, on 60 evenly chosen training rows over epochs 1 to 2" in again.summary


def test_a_column_that_was_left_out_is_inferred_from_those_that_were_not(undefended):
    """The property, the sign of a column, was not sent; the column was."""
    (audit,) = undefended[0].sections.features
    found = by_name(audit)
    assert found["secret"].value > 0.2
    assert not found["secret"].used
    assert found["x"].used
    assert any("'same' is constant" in line for line in audit.not_measured)
    assert any(line.startswith("known-start: needs the starting weights") for line in audit.not_measured)
    knowing_no_row = {"marginals", "marginals-course", "simulator", "a guess"}
    assert {column.attack for column in audit.columns if column.known == 0} <= knowing_no_row
    assert "A figure for 0 known rows is that of an attacker who knows the distribution of each column" in audit.summary


def test_each_side_has_its_own_findings_alone(undefended):
    _, folder = undefended
    bank, shop = (read_result((run_folder(folder, party) / "result.json").read_bytes()) for party in PARTIES)
    assert bank.sections.features == []
    assert bank.sections.leakage is not None
    assert shop.sections.leakage is None
    assert len(shop.sections.features) == 1
    page = (run_folder(folder) / "report.html").read_text()
    assert "Do the columns of shop leak?" in page
    assert "Do the columns of shop leak?" not in (run_folder(folder, "bank") / "report.html").read_text()


def test_columns_and_sums_are_for_their_owners_eyes(undefended):
    view = run_folder(undefended[1]) / "view"
    for path in (view / "columns.safetensors", view / "bank" / "rows-000001.safetensors"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rows_that_cross_outside_training_steps_have_their_own_figures(undefended):
    """Validation rows cross in each pass, and once more when own columns are measured. Test rows cross once."""
    (audit,) = undefended[0].sections.features
    validation, test = audit.groups
    assert (validation.rows, test.rows) == ("validation rows", "test rows")
    assert (validation.crossed, test.crossed) == (2 * 4 + 1, 1)
    assert (validation.attacked, test.attacked) == (81, 151)
    found = {column.name: column for column in validation.columns if column.known == 20}
    assert found["x"].value > 0.5
    assert not {column.attack for column in test.columns} & {"ridge", "kernel"}, "of one embedding ridge-mean says the same"
    assert any(line.startswith("validation rows: 200 known rows of") for line in audit.not_measured)
    assert any(line.startswith("rows that predictions, requests or a later evaluation send") for line in audit.not_measured)


def test_the_headline_is_of_the_rows_that_leak_most(undefended):
    (audit,) = undefended[0].sections.features
    group = RowGroup(
        rows="validation rows",
        attacked=100,
        crossed=9,
        columns=[msgspec.structs.replace(audit.columns[0], known=200, value=0.99, luck=0.1)],
        means=[MeanRebuilt(known=200, value=0.99)],
    )
    assert "the columns of other validation rows: 0.990 on average" in feature_headline(
        msgspec.structs.replace(audit, groups=[group])
    )
    assert msgspec.structs.replace(audit, groups=[group]).worst_mean(200) == 0.99


def test_the_audit_takes_the_embeddings_that_measuring_columns_sends(undefended, tmp_path):
    """Without any known row each column of each measured row is recovered."""
    measured = run(tmp_path, evaluation__importance={"feature_columns": "label-party", "repeats": 20})
    ((audit,), (before,)) = measured.sections.features, undefended[0].sections.features
    shuffled = next(group for group in audit.groups if group.rows.startswith("validation rows"))
    assert shuffled.rows == "validation rows, also with each column shuffled"
    found = {(column.name, column.known): column for column in shuffled.columns}
    assert found["x", 0].attack == "shuffled-columns"
    assert found["x", 0].value > 0.8
    assert not any(column.known == 0 for group in before.groups for column in group.columns)
    assert any("with its cells shuffled" in each.what for each in measured.learnt if each.party == "bank")


@pytest.mark.long
def test_a_feature_partys_folder_can_be_attacked_again(undefended):
    result, folder = undefended
    path = run_folder(folder)
    with limited_threads(1):  # as a run on so few rows would
        in_run, in_full = result.sections.features[0], audit_recorded(path, watcher=Silent()).features
        assert audit_recorded(path, watcher=Silent()).features == in_full
    only_in_run = [each for each in in_run.not_measured if each not in in_full.not_measured]
    assert [each.partition(": ")[0] for each in only_in_run] == ["network, bootstrap, weighted-mean"]
    assert only_in_run[0].endswith("`tallystick audit FOLDER` runs these on what this run recorded")
    assert {each.attack for each in in_run.columns}.isdisjoint({"network", "bootstrap", "weighted-mean"})
    found = {(each.name, each.known): each.value for each in in_full.columns}
    assert all(found[each.name, each.known] >= each.value for each in in_run.columns)
    again = audit_recorded(path, watcher=Silent(), known_rows=(30, 0)).features
    assert {column.known for column in again.columns} == {0, 30}
    assert read_result((path / "result.json").read_bytes()).sections.features == [again]
    assert feature_headline(again).startswith("Through cut embeddings")
    nothing = audit_recorded(path, watcher=Silent(), known_rows=(0,)).features
    assert "bank, knowing no row," in feature_headline(nothing)
    audit_recorded(path, watcher=Silent())


@pytest.mark.parametrize(
    ("defense", "behind_noise"),
    [([], False), ([NOISE], True), ([{"method": "quantized-embeddings", "levels": 4}], True)],
    ids=["none", "noise", "levels"],
)
def test_a_runs_own_audit_leaves_out_what_wins_behind_noise_or_levels_alone(defense, behind_noise):
    contract = parse_contract(contract_values(PARTIES, audit=True, defense=defense))
    rows = feature_audit.FEATURE_INFERENCE_ATTACKS
    every, in_run = (feature_audit._attacks(contract, every=each) for each in (True, False))
    assert set(every) - set(in_run) == (set() if behind_noise else {"network", "bootstrap", "denoised", "weighted-mean"})
    assert set(every) == {name for name, row in rows.items() if not row.own_columns}
    assert bool(feature_audit._left_out(contract, in_run)) is not behind_noise
    assert feature_audit._left_out(contract, every) == []


def test_a_quick_audit_of_columns_names_the_attacks_that_it_leaves_out():
    contract = parse_contract(contract_values(PARTIES, audit="quick"))
    (line,) = feature_audit._left_out(contract, feature_audit._attacks(contract, every=False))
    names, _, reason = line.partition(": ")
    left_out = {"surrogate", "network", "layer", "bootstrap", "denoised", "weighted-mean", "ridge-looks", "kernel-looks"}
    assert left_out == set(names.split(", "))
    assert reason.endswith("`audit: true` runs them and may find more")


def test_more_known_rows_than_there_are_do_not_replace_what_was_found(undefended):
    path = run_folder(undefended[1])
    before = (path / "result.json").read_bytes()
    with pytest.raises(
        ConfigError, match=r"--known-rows 5000: \d+ rows were recorded, and some must be left for the measurement"
    ):
        audit_recorded(path, watcher=Silent(), known_rows=(5000,))
    assert (path / "result.json").read_bytes() == before


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """Make a run with noise on embeddings, and say where its folders are."""
    folder = tmp_path_factory.mktemp("noisy")
    with pytest.MonkeyPatch.context() as patch:
        seed_system(patch)
        return run(folder, evaluation__importance={}, defense=[NOISE]), folder


@pytest.mark.long
def test_noise_on_embeddings_hides_columns_and_says_what_it_promises(undefended, noisy):
    result, _ = noisy
    (audit,), (before,) = result.sections.features, undefended[0].sections.features
    assert audit.means[-1].value < 0.4 * before.means[-1].value
    assert audit.defense.startswith(
        "gaussian-embeddings (epsilon 2.0, delta 1e-06, clip 1.0): no formal guarantee for a training row"
    )
    assert audit.epsilon > 2.0  # embeddings of a validation row together, from two epochs and from measuring columns
    assert audit.releases == 3
    assert result.sections.leakage.defense == "none; no formal guarantee"  # of labels
    at_bank = [each for each in result.learnt if each.party == "bank" and each.step in ("training", "evaluation")]
    assert at_bank
    assert all(each.guarantee == audit.defense for each in at_bank)


@pytest.mark.long
def test_noise_on_embeddings_is_charged_to_the_feature_partys_ledger(undefended, noisy):
    result, folder = noisy
    (audit,), (before,) = result.sections.features, undefended[0].sections.features
    assert result.sections.privacy.releases == []
    ledger = Ledger(folder / "shop-privacy-ledger.sqlite", party="shop")
    (entry,) = ledger.entries()
    assert entry.dataset.endswith("-embeddings")  # apart from what holds unconditionally
    assert entry.what.endswith("embeddings of each row, up to 3, given the bottom model's weights at each")
    spent = ledger.total(entry.dataset, delta=1e-6, unit="record")
    assert spent == pytest.approx(audit.epsilon)
    assert column_promise(audit).startswith(f"ε = {spent:.3g} (δ = 1e-06) bounds how much a change of one row's columns ")
    assert column_promise(before) == ""
    shop = read_result((run_folder(folder) / "result.json").read_bytes())
    for each in (result, shop):  # "spent: 0" is about labels
        assert each.sections.privacy.summary.endswith("has the cost of its noisy embeddings.")
    page = (run_folder(folder) / "report.html").read_text()
    assert "It does not bound what the model learnt from these columns" in page


def test_embeddings_are_charged_once_a_run_and_not_as_private_where_a_row_may_serve_for_others(tmp_path):
    values = {"party": "shop", "table": {"path": "t.parquet"}, "runs": "runs", "privacy": {"dataset": "customers"}}
    party = parse_party(values, folder=tmp_path, source="shop")
    create_ledger(party)
    for method in ("intersection", "union"):
        contract = parse_contract(contract_values(PARTIES, defense=[NOISE], alignment__method=method))
        folder = RunFolder.new(tmp_path / "runs", contract, "shop", key=None)
        for _ in range(2):  # the second one is resumed
            EmbeddingCharge.of(contract, party, folder, what=f"{method} run").reserve(Sent(training=3, validation=2, test=1))
    bounded, unbounded = Ledger(party.privacy.ledger, party="shop").entries("customers-embeddings")
    assert bounded.event == GaussianEmbeddings(epsilon=2.0, delta=1e-6, clip=1.0).event(3)
    assert unbounded.event == NotPrivate()
    assert unbounded.what.startswith("union run: noisy embeddings, each row's any number of times")


@pytest.mark.long
def test_a_defence_is_on_wherever_embeddings_cross(undefended, tmp_path):
    """In evaluation and in the kept model the joint model predicts worse with noise, though its weights were trained
    with noise.
    """
    result = run(tmp_path, defense=[{**NOISE, "epsilon": 1e-3}])
    assert result.evaluation["joint"]["auc"]["value"] < undefended[0].evaluation["joint"]["auc"]["value"] - 0.05


@pytest.mark.long
def test_one_epoch_and_a_narrow_cut(tmp_path):
    result = run(tmp_path, training__epochs=1, model__cut_width=1)
    (audit,) = result.sections.features
    assert "over epoch 1;" in audit.summary
    assert (
        "what a row's embeddings of several epochs reveal together: only one epoch was recorded, and more epochs reveal more"
        in (audit.not_measured)
    )
    (shop,) = [part for part in result.model if part.party == "shop"]
    assert shop.layers.endswith("-1")


@pytest.mark.long
def test_columns_and_numbers_are_audited_where_the_label_is_a_number(tmp_path):
    given = tables(PARTIES, rows=600, target="regression")
    result = run(tmp_path, given, target={"type": "regression"})
    (audit,) = result.sections.features
    assert by_name(audit)["x"].value > 0.8
    assert by_name(audit)["x"].kind == "numeric"
    labels = result.sections.leakage
    ranked = {attack.name: attack for attack in labels.attacks}
    assert ranked["first-steps"].spearman > 0.8
    assert ranked["first-steps-gradient"].spearman > 0.5
    assert labels.not_measured == [NO_BITS]
    # Which attack on the first steps is ahead, with or without outside numbers, depends on the machine.
    assert re.match(
        r"Through cut gradients, yes: shop, knowing (40 numbers|no label \(.*?\)), can rank", leak_headline(labels)[0]
    )
    assert "What shop could read of bank's labels: the numbers, with a rank correlation" in leak_lines(result)[0]
    assert "Spearman: the rank correlation" in (run_folder(tmp_path, "bank") / "report.html").read_text()
    shop = read_result((run_folder(tmp_path) / "result.json").read_bytes())
    assert "attacked it for labels as shop could" in shop.sections.notes[1]
    again = audit_recorded(run_folder(tmp_path), watcher=Silent()).features
    assert {(each.name, each.known) for each in again.columns} == {(each.name, each.known) for each in audit.columns}
    with limited_threads(1):  # as a run on so few rows would
        assert audit_recorded(run_folder(tmp_path, "bank"), watcher=Silent()).leakage == labels


def test_of_a_training_that_diverged_no_column_is_measured_and_that_is_said(undefended, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(run_folder(undefended[1]), path)
    for name in (path / "view").glob("**/rows-*.safetensors"):
        tensors, metadata = read_tensors(name, origin=Origin.of(path))
        tensors["sum_ND"][0] = np.inf
        write_tensors(name, tensors, metadata, origin=Origin.of(path), private=True)
    found = audit_recorded(path, watcher=Silent()).features
    assert (found.columns, found.means) == ([], [])
    assert found.not_measured[0].endswith("mean embeddings are NaN or infinite; training diverged or the record is damaged")
    assert feature_headline(found).endswith("was not measured, so nothing is known about it.")


@pytest.mark.long
def test_few_rows_are_not_measured(tmp_path):
    result = run(tmp_path, frames(150))
    (audit,) = result.sections.features
    assert {column.known for column in audit.columns} == {0, 20}
    assert any(line.startswith("200 known rows of ") for line in audit.not_measured)


@pytest.mark.long
def test_a_union_is_judged_by_own_rows(tmp_path):
    result = run(tmp_path, frames(600), alignment__method="union", defense=[{**NOISE, "epsilon": 100.0}])
    (audit,) = result.sections.features
    assert by_name(audit)["x"].value > 0
    assert audit.epsilon is None
    assert audit.defense.endswith("so the number of times that it is sent has no bound, and no ε holds for the run")
    assert column_promise(audit) == ""


def test_damaged_columns_are_named(undefended, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(run_folder(undefended[1]), path)
    file = path / "view" / "columns.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match="is cut short or holds no columns"):
        audit_recorded(path, watcher=Silent())


def test_an_audit_of_features_changes_no_weight(undefended, tmp_path):
    contract = contract_values(PARTIES, model__embedding_width=2)
    simulate(contract, frames(), columns(PARTIES), folder=tmp_path)
    one, other = (weights(run_folder(folder) / "model.safetensors") for folder in (undefended[1], tmp_path))
    assert one == other


@pytest.mark.long
def test_columns_behind_links_are_attacked_row_by_row_and_come_out_as_they_went_in(tmp_path):
    """A position has K candidates. The label party knows the number of each embedding, so it has every row many times."""
    places = {"dimensions": [{"name": "at", "unit": "m", "low": 0.0, "high": 1.0}], "neighbors": 3, "window": 0.3}
    changes = {"audit": True, "alignment": {"method": "similarity", "similarity": {**places, "deviation": 0.1, "failure": 0.1}}}
    contract = contract_values(PARTIES, **changes, training__epochs=2)
    contract["parties"]["helper"] = {"role": "helper"}
    rng = np.random.default_rng(4)
    spot, x = rng.random(120), rng.normal(size=120)
    own = rng.random(300)
    near = x[np.abs(own[:, None] - spot).argmin(axis=1)]
    tables_of = {
        "bank": pl.DataFrame({"at": own, "x": rng.normal(size=300), "y": (near > 0).astype(int)}),
        "shop": pl.DataFrame({"at": spot, "x": x, "kind": np.where(x > 0, "a", "b")}),
    }
    sides = {name: {"keys": {"at": "at"}, "units": {"at": "m"}, "features": {"numeric": ["x"]}} for name in PARTIES}
    sides["bank"]["label"] = "y"
    sides["shop"]["features"]["categorical"] = ["kind"]
    result = simulate(contract, tables_of, sides, folder=tmp_path)
    (audit,) = result.sections.features
    found = by_name(audit, known=20)
    assert "rows that training rows are linked to" in audit.summary
    assert found["x"].value > 0.8
    assert found["kind"].value > 0.8
    assert contract_of(run_folder(tmp_path)).linkage.similar  # so `tallystick audit` can read it in this folder
