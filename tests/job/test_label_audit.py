"""Jobs that defend labels and are audited: what the report says, what the ledger is charged, and what never changes."""

import json
import shutil
import stat

import polars as pl
import pytest
import torch
from tiny import columns, contract_values, few_column_attacks, seed_system, tables, weights

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.audit import labels
from tallystick.audit import run as audit
from tallystick.audit.known_initial_weights import KnownStart
from tallystick.audit.labels import audit_labels
from tallystick.audit.recorded_labels import RecordedLabels
from tallystick.audit.run import audit_recorded
from tallystick.compute.threads import limited_threads
from tallystick.config.contract import parse_contract
from tallystick.disclosure.protection import defense_lines
from tallystick.errors import ConfigError
from tallystick.job.phases.defense import key_stream
from tallystick.models.build import build_label_model
from tallystick.privacy.ledger import BudgetExceeded, Ledger
from tallystick.results import read_result
from tallystick.run_folder.folder import RunFolder
from tallystick.simulation import simulate
from tallystick.storage import Origin
from tallystick.tables.features import FeatureShape
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
LABEL_DP = {"method": "label-dp", "epsilon": 1.0}
MARVELL = {"method": "marvell", "power": 16.0}


def rare(rows=1500):
    """Make tables in which about one label in seven is positive."""
    frames = tables(PARTIES, rows=rows, target="regression")
    frames["bank"] = frames["bank"].with_columns(y=(pl.col("y") > pl.col("y").quantile(0.85)).cast(pl.Int64))
    return frames


def run(folder, frames=None, *, party_changes=None, parties=PARTIES, **changes):
    given = columns(parties)
    given["bank"] |= party_changes or {}
    contract = contract_values(parties, **{"audit": True, "training__batch_size": 128, **changes})
    with pytest.MonkeyPatch.context() as patch:
        few_column_attacks(patch)
        return simulate(contract, frames or rare(), given, folder=folder)


def run_folder(folder, party="bank"):
    (found,) = (folder / party).glob("tiny-*")
    return found


def leaks(audit):
    return {attack.name: attack for attack in audit.attacks}


@pytest.fixture(scope="module")
def undefended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undefended")
    with pytest.MonkeyPatch.context() as patch:
        seed_system(patch)
        return run(folder, training__starts="public", evaluation__own_columns_baseline=True), folder


def test_an_undefended_run_is_told_that_gradients_give_labels_away(undefended):
    result, _ = undefended
    found = leaks(result.sections.leakage)
    assert found["norm"].auc > 0.8
    assert found["direction-1"].auc > 0.95
    assert found["direction-1"].low <= found["direction-1"].auc <= found["direction-1"].high
    assert {attack.view.split(",")[0] for attack in found.values()} == {"shop"}
    assert result.sections.leakage.defense.startswith("none; no formal guarantee; every party can make all first models")
    assert any(attack.upper_bound for attack in found.values())


def test_whoever_has_the_contract_of_public_starts_can_make_the_top_model_and_try_labels_with_it(undefended):
    """Enumeration knows neither a label nor the rarer class, but finds by itself which class is positive."""
    found = leaks(undefended[0].sections.leakage)
    assert found["enumeration"].auc > 0.95
    assert found["enumeration"].view == "shop, from cut gradients, knowing no label"
    assert found["enumeration-clusters"].auc > 0.5


def test_a_label_party_starts_from_a_secret(tmp_path):
    """The audit says that it could not try labels with the start weights."""
    result = run(tmp_path, rare(300), training__epochs=1)
    unmeasured = [line for line in result.sections.leakage.not_measured if line.startswith("enumeration")]
    assert len(unmeasured) == 2
    assert "the top model's starting weights, which do not follow from the contract here" in unmeasured[0]


def test_the_simulated_start_is_the_label_partys_own(tmp_path):
    """With three parties, against the label model itself. The embeddings of all feature parties but one are 0."""
    contract = parse_contract(contract_values(("bank", "club", "shop"), model__hidden=[8, 8, 8], model__cut_after=2))
    shape = FeatureShape(numeric=2, cardinalities=(3,))
    model = build_label_model(contract.model, "bank", shape, [5, 8], outputs=1, seed=contract.seed)
    known = KnownStart.read(KnownStart(widths=(5, 8), own_width=8).facts())
    cut_BD = torch.randn(4, 8)
    expected_BO = model.top(torch.cat([torch.zeros(4, 5), cut_BD, torch.zeros(4, 8)], dim=1))
    torch.testing.assert_close(known.seen_by(1, contract)(cut_BD), expected_BO, rtol=0, atol=0)


def test_every_party_says_what_each_learnt_at_the_cut(undefended):
    result, folder = undefended
    told = [read_result((run_folder(folder, party) / "result.json").read_bytes()).learnt for party in PARTIES]
    crossed = [[item for item in items if item.step != "alignment"] for items in told]
    assert crossed[0] == crossed[1]
    assert [(item.step, item.party) for item in crossed[0]] == [
        ("training", "bank"),
        ("training", "shop"),
        ("training", "shop"),
        ("evaluation", "bank"),
        ("evaluation", "shop"),
    ]
    assert "from which labels can be estimated" in crossed[0][1].what
    assert [item for item in result.learnt if item.step != "alignment"] == crossed[0]  # once each
    aligned = [[(item.party, item.what) for item in items if item.step == "alignment"] for items in told]
    assert len(aligned[0]) == 4  # of each side: the other's number of ids, and which of its own ids both have
    assert sorted(aligned[0]) == sorted(aligned[1])
    assert sorted((item.party, item.what) for item in result.learnt if item.step == "alignment") == sorted(aligned[0])
    rows = result.data.rows
    assert f"{rows['train']} training and {rows['validation']} validation rows" in crossed[0][0].what


@pytest.mark.long
def test_marvell_covers_gradients_and_says_that_it_promises_nothing(undefended, tmp_path):
    result = run(tmp_path, defense=[MARVELL])
    found, before = leaks(result.sections.leakage), leaks(undefended[0].sections.leakage)
    for name in ("norm", "direction-1"):
        assert found[name].auc < 0.62 < before[name].auc
    assert result.sections.leakage.defense.startswith("marvell (power 16.0): no formal guarantee")
    assert result.sections.privacy.releases == []
    (said, *_) = result.sections.privacy.not_private
    assert "exact labels (behind marvell: no guarantee for the whole run)" in said


def test_the_audit_is_a_phase_of_its_own(undefended):
    result, _ = undefended
    names = {party: [phase.name for phase in result.phases if phase.party == party] for party in PARTIES}
    assert names["bank"] == ["handshake", "alignment", "training", "evaluation", "audit"]
    assert names["shop"] == ["handshake", "alignment", "training", "evaluation", "audit"]
    seconds = {phase.name: phase.seconds for phase in result.phases if phase.party == "bank"}
    assert result.training.seconds == seconds["training"]
    assert seconds["audit"] > 0


def test_only_the_label_party_has_the_findings(undefended):
    result, folder = undefended
    shop = read_result((run_folder(folder, "shop") / "result.json").read_bytes())
    assert shop.sections.leakage is None
    alignment, audited = shop.sections.notes
    assert alignment.startswith("Alignment by intersection: a peer that does not follow the protocol can test ids of its choice")
    assert audited == "bank recorded the cut, attacked it for labels as shop could, and kept the findings."
    assert not list((run_folder(folder, "shop") / "view").glob("**/epoch-*"))  # running sums alone, of what it sent
    bank = read_result((run_folder(folder) / "result.json").read_bytes())
    assert bank.sections.leakage == result.sections.leakage
    assert "Do the labels leak?" in (run_folder(folder) / "report.html").read_text()
    assert "Do the labels leak?" not in (run_folder(folder, "shop") / "report.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("epochs", "says", "whole"),
    [
        (1, "training rows of epoch 1 of 1.", "over epoch 1."),
        (2, "rows of epochs 1 and 2 of 2.", "over epochs 1 to 2."),
        (9, "rows of epochs 1, 3, 5, 7 and 9 of 9.", "over epochs 1 to 9."),
    ],
)
def test_the_audit_says_which_epochs_it_saw(tmp_path, epochs, says, whole):
    result = run(tmp_path, rare(300), training__epochs=epochs)
    found = result.sections.leakage
    assert says in found.summary
    assert whole in found.summary
    assert found.summary.endswith("Every figure is a floor: another attack may find more.")
    view = run_folder(tmp_path) / "view" / "shop"
    for kind in ("epoch", "rows"):
        assert len(list(view.glob(f"{kind}-*"))) == min(epochs, 5)
    kept = {1: [], 2: [1, 2], 9: [1, 3, 5, 7, 9]}[epochs]
    assert [each.epochs for each in found.growth] == [kept] * (3 if kept else 0)
    (missing,) = [line for line in found.not_measured if line.startswith("norm-averaged")] if epochs == 1 else [""]
    assert missing.endswith("only one epoch was recorded" if epochs == 1 else "")


def recorded_again(folder, path, change, *, file="epoch-*"):
    """Attack a copy of a recorded run again, in which some tensors were changed."""
    shutil.copytree(run_folder(folder), path)
    for name in (path / "view").glob(f"**/{file}.safetensors"):
        tensors, metadata = read_tensors(name, origin=Origin.of(path))
        write_tensors(name, change(tensors), metadata, origin=Origin.of(path), private=True)
    return audit_recorded(path, watcher=Silent()).leakage


def test_of_a_training_that_diverged_the_audit_says_what_it_could_not_measure(undefended, tmp_path):
    """Gradients of one late step, and all sums over the training, are NaN. Embeddings of single steps are finite."""

    def spoilt(tensors):
        for name in ("gradient_RD", "sum_ND"):
            if name in tensors:
                tensors[name][-1] = torch.nan
        return tensors

    found = recorded_again(undefended[1], tmp_path / "run", spoilt, file="*-000001")
    unmeasured = [line for line in found.not_measured if "NaN or infinite; training diverged" in line]
    assert {"norm, in shop's seat", "spectral-averaged, in shop's seat"} <= {line.split(":")[0] for line in unmeasured}
    assert not {"norm", "direction-1", "completion-gradient"} & leaks(found).keys()
    assert leaks(found)["spectral-embedding"].auc == leaks(undefended[0].sections.leakage)["spectral-embedding"].auc


def test_without_a_label_to_give_the_attacker_nothing_is_measured_of_what_it_would_do(undefended, tmp_path):
    """With one positive row, it cannot be both known and attacked, and attacks without labels would rank a single row."""

    def rare_one(tensors):
        tensors["label_N"] = torch.zeros_like(tensors["label_N"])
        tensors["label_N"][0] = 1
        return tensors

    found = recorded_again(undefended[1], tmp_path / "run", rare_one, file="labels")
    (why,) = {line.partition(": ")[2] for line in found.not_measured if line.startswith(("completion,", "direction-1,"))}
    assert why == "a class has too few rows to give the attacker some labels and to measure it on the others"
    assert not [name for name in leaks(found) if name.startswith(("completion", "direction"))]


@pytest.mark.long
def test_a_run_that_stops_early_is_audited_up_to_its_last_epoch(tmp_path):
    result = run(tmp_path, rare(400), training__epochs=100, training__patience=1, training__learning_rate=0.1)
    trained = len(result.training.history)
    assert 1 < trained < 100
    assert f" and {trained} of {trained}." in result.sections.leakage.summary
    assert f"over epochs 1 to {trained}." in result.sections.leakage.summary


def test_a_run_that_was_not_finished_is_attacked_and_audits_itself_once_it_is(undefended, tmp_path):
    shutil.copytree(run_folder(undefended[1]), tmp_path / "run")
    for name in ("model.safetensors", "training.json", "audit.json", "result.json", "report.html"):
        (tmp_path / "run" / name).unlink()
    found = audit_recorded(tmp_path / "run", watcher=Silent()).leakage
    assert found.attacks == undefended[0].sections.leakage.attacks
    assert "of epochs 1 and 2 of a run that was not finished." in found.summary
    assert not (tmp_path / "run" / "audit.json").exists()


@pytest.mark.long
def test_every_feature_party_is_audited_in_its_own_seat(tmp_path):
    parties = ("bank", "club", "shop")
    result = run(tmp_path, tables(parties, rows=600), parties=parties, defense=[{"method": "mixpro"}])
    assert {attack.view.split(",")[0] for attack in result.sections.leakage.attacks} == {"club", "shop"}


@pytest.mark.long
def test_several_classes_and_pipelined_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "AUXILIARY_LABELS", 2)  # more classes than known labels: not refused after the training is done
    target = {"type": "multiclass", "classes": 3}
    frames = tables(PARTIES, rows=800, target="multiclass")
    changes = {"training__mode": "pipelined", "training__staleness": 4, "defense": [LABEL_DP]}
    result = run(tmp_path, frames, target=target, **changes)
    found = leaks(result.sections.leakage)
    assert "direction-1" in found
    assert found["completion"].view.endswith("knowing 3 labels")
    assert "norm" not in found


@pytest.mark.long
def test_a_union_is_audited_on_rows_that_the_label_party_has(tmp_path):
    result = run(tmp_path, rare(500), alignment__method="union", defense=[MARVELL])
    assert result.sections.membership is not None
    assert "only rows that this side has are scored" in result.sections.leakage.summary
    view = run_folder(tmp_path) / "view"
    assert (view / "labels.safetensors").exists()
    steps = (run_folder(tmp_path, "shop") / "view").glob("**/epoch-*")
    assert not list(steps)  # recorded for the membership audit, then dropped


def test_an_audit_changes_no_weight(undefended, tmp_path):
    given = columns(PARTIES)
    contract = contract_values(PARTIES, training__batch_size=128, training__starts="public")
    result = simulate(contract, rare(), given, folder=tmp_path)
    assert result.sections.leakage is None
    for party in PARTIES:
        one, other = (weights(run_folder(folder, party) / "model.safetensors") for folder in (undefended[1], tmp_path))
        assert one == other


def test_a_recorded_run_can_be_attacked_again_with_the_same_result(undefended):
    result, folder = undefended
    path = run_folder(folder)
    contract = parse_contract(json.loads((path / "contract.json").read_text()))
    with limited_threads(1):  # as a run on so few rows would
        assert audit_labels(RecordedLabels.load(RunFolder.open(path), contract), watcher=Silent()) == result.sections.leakage


def test_where_all_labels_are_found_costly_attacks_on_gradients_are_named_and_not_run(undefended, monkeypatch):
    """All labels count as found from here on. Without a finder no attack is spared; a spared attack is named with the finder."""
    path = run_folder(undefended[1])
    recorded = RecordedLabels.load(RunFolder.open(path), parse_contract(json.loads((path / "contract.json").read_text())))
    found = {}
    for least in (2.0, 0.5):
        monkeypatch.setattr(labels, "ALL", least)
        found[least] = audit_labels(recorded, watcher=Silent())
    spared = leaks(found[2.0]).keys() - leaks(found[0.5]).keys()
    costly = {name for name, row in LABEL_INFERENCE_ATTACKS.items() if row.over_training and not row.quick}
    assert spared == {name for name in costly if LABEL_INFERENCE_ATTACKS[name].reads == "cut_gradient"} & leaks(found[2.0]).keys()
    (line,) = set(found[0.5].not_measured) - set(found[2.0].not_measured)
    assert set(line.partition(", in shop's seat: ")[0].split(", ")) == spared
    assert line.endswith(", which knows no label, finds all of them")
    assert all(attack == leaks(found[2.0])[name] for name, attack in leaks(found[0.5]).items())


def test_secrets_and_labels_are_for_their_owners_eyes(undefended):
    path = run_folder(undefended[1])
    views = ("labels", "shop/epoch-000000", "shop/rows-000001")
    for name in ("defense.json", *(f"view/{view}.safetensors" for view in views)):
        assert stat.S_IMODE((path / name).stat().st_mode) == 0o600


# --- label differential privacy


def test_flipped_labels_train_and_true_ones_judge(undefended, tmp_path):
    result, plain = run(tmp_path, defense=[LABEL_DP], evaluation__own_columns_baseline=True), undefended[0]
    # Test labels are not sent: the share of positives and the baseline are those of a run without a defence.
    assert result.evaluation["label_mean"] == plain.evaluation["label_mean"]
    assert result.evaluation["local_baseline"]["auc"]["value"] > 0.6
    assert result.evaluation["local_baseline"] == plain.evaluation["local_baseline"]
    # At epsilon 1 about 27 % of labels are flipped, so one known true label says little about flipped gradients.
    assert leaks(result.sections.leakage)["direction-1"].auc < 0.8
    # Seven in eight labels are negative. Flips move the share that training sees towards one half.
    losses = [each.training.history[-1].train_loss for each in (result, plain)]
    assert losses[0] > losses[1] + 0.1


def test_the_ledger_is_charged_once_and_shown(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    budget = {"privacy": {"ledger": str(ledger), "dataset": "loans", "cap": 2.5}}
    unaudited = {"audit": False, "defense": [LABEL_DP], "frames": rare(400)}
    result = run(tmp_path / "one", party_changes=budget, **unaudited)
    (entry,) = Ledger(ledger, party="bank").entries("loans")
    assert entry.event.epsilon == 1.0
    assert entry.what == f"training of tiny, run {result.run_id}"
    privacy = result.sections.privacy
    assert (privacy.spent_epsilon, privacy.cap_epsilon) == (1.0, 2.5)
    assert [release.mechanism for release in privacy.releases] == ["label-dp"]
    shop = read_result((run_folder(tmp_path / "one", "shop") / "result.json").read_bytes())
    assert shop.sections.privacy.releases == privacy.releases
    # A second run draws other flips, which are charged again; a third would exceed the cap.
    run(tmp_path / "two", party_changes=budget, **unaudited)
    assert Ledger(ledger, party="bank").total("loans") == 2.0
    with pytest.raises(BudgetExceeded, match=r"over the cap of 2\.5"):
        run(tmp_path / "three", party_changes=budget, **unaudited)
    assert Ledger(ledger, party="bank").total("loans") == 2.0
    refused = run_folder(tmp_path / "three", "shop")
    assert not (refused / "model.safetensors").exists()


def test_gaussian_labels_count_at_the_caps_delta(tmp_path):
    budget = {"privacy": {"cap": 3.0, "delta": 1e-5}}
    unaudited = {"audit": False, "defense": [{"method": "gaussian-labels", "epsilon": 2.0, "delta": 1e-5}], "frames": rare(400)}
    privacy = run(tmp_path, party_changes=budget, **unaudited).sections.privacy
    assert privacy.spent_delta == 1e-5
    assert privacy.spent_epsilon == pytest.approx(2.0, rel=0.02)
    without = {"privacy": {"cap": 3.0}}
    with pytest.raises(BudgetExceeded, match="to inf at delta 0"):
        run(tmp_path / "without", party_changes=without, **unaudited)


def test_a_gradient_defence_without_a_guarantee_is_entered_as_not_private(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    run(tmp_path / "run", rare(400), party_changes={"privacy": {"ledger": str(ledger)}}, audit=False, defense=[MARVELL])
    (entry,) = Ledger(ledger, party="bank").not_private()
    assert entry.what.endswith("exact labels (behind marvell: no guarantee for the whole run)")
    assert Ledger(ledger, party="bank").total("labels") == 0


def test_a_key_stream_repeats_for_its_use_alone():
    secret = bytes(range(32))
    stream = key_stream(secret, b"labels")
    first, second = stream(1000), stream(1000)
    assert first != second
    assert key_stream(secret, b"labels")(2000) == first + second
    assert key_stream(secret, b"other")(1000) != first
    assert key_stream(bytes(32), b"labels")(1000) != first
    counts = torch.bincount(
        torch.frombuffer(bytearray(key_stream(secret, b"x")(256_000)), dtype=torch.uint8).int(), minlength=256
    )
    # 255 degrees of freedom: beyond 380 with a chance of 1e-6
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 380


# --- what a contract refuses


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target": {"type": "multiclass", "classes": 3}, "defense": [MARVELL]}, "defense.0.method = marvell: is for binary"),
        ({"defense": [{"method": "marvell", "power": 0.0}]}, "power"),
        ({"defense": [{"method": "marvel", "power": 1.0}]}, "marvel"),
        ({"defense": [MARVELL, MARVELL]}, "2 entries are marvell"),
        (
            {"defense": [{"method": "gaussian-labels", "epsilon": 1.0, "delta": 1e-5}, MARVELL]},
            "defense.1.method = marvell: needs a class per row, but defense.0.method = gaussian-labels makes labels numbers",
        ),
        (
            {"alignment__method": "union", "union__labels": "neighbors", "defense": [MARVELL]},
            "needs a class per row, but union.labels = neighbors gives targets between the classes",
        ),
        ({"alignment__method": "union", "defense": [LABEL_DP]}, "align by intersection"),
    ],
)
def test_a_contract_that_cannot_be_kept_is_refused(changes, says):
    with pytest.raises(ConfigError, match=says.replace(".", r"\.")):
        parse_contract(contract_values(PARTIES, audit=True, **changes))


def test_defences_are_named_with_strength_and_guarantee():
    lines = defense_lines(parse_contract(contract_values(PARTIES, defense=[LABEL_DP, MARVELL])))
    assert lines[0].startswith("label-dp (epsilon 1.0): 1-label-DP")
    assert lines[1].startswith("marvell (power 16.0): no formal guarantee")


LADSG = {"method": "ladsg", "soft": 0.5}


@pytest.mark.long
def test_ladsg_trains_on_a_teachers_answers_and_promises_nothing(tmp_path):
    result = run(tmp_path, rare(500), defense=[LADSG], training__epochs=1)
    assert result.sections.leakage.defense.startswith("ladsg (soft 0.5, limit 3.0): no formal guarantee")
    assert result.sections.privacy.releases == []
    assert "exact labels (behind ladsg: no guarantee for the whole run)" in result.sections.privacy.not_private[0]
