"""Jobs on a union: what each side learns, that a resumed run is the same run, what the audit finds, who gets which scores."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from lanes import short_lane_of
from tiny import columns, contract_values, seed_system, tables, weights

from tallystick.alignment.outcome import Alignment
from tallystick.attacks.view import StepView
from tallystick.audit.membership import MEMBERSHIP_EPOCHS, audit_membership
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.cut.forward import no_columns
from tallystick.dataset import drawn_labels
from tallystick.dataset.drawn_labels import SettlingRule
from tallystick.dataset.imputed import ImputedFeatures, ImputingBottom, ImputingObjective
from tallystick.dataset.own_rows import OwnRows
from tallystick.dataset.union import Imputation, UnionDataset
from tallystick.errors import ConfigError, DamagedFile
from tallystick.imputation.draws import Draws
from tallystick.imputation.feature_imputers import RandomFeatures, SamplingFeatures
from tallystick.imputation.label_imputers import SettledLabels
from tallystick.job.phases.train import settling
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularTop
from tallystick.results import read_result
from tallystick.run_folder.folder import RunFolder
from tallystick.simulation import simulate
from tallystick.tables.features import Features
from tallystick.tables.keys import read_keys
from tallystick.training.calibration import NO_CALIBRATION
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun

PARTIES = ("bank", "shop")


SAMPLED = {"union__features": "sampling"}  # real rows cross unchanged


def union_contract(method="union", **changes):
    values = contract_values(PARTIES, alignment__method=method, training__epochs=3, **changes)
    if method == "union-with-helper":
        values["parties"]["helper"] = {"role": "helper"}
    return values


@pytest.mark.parametrize("method", ["union", "union-with-helper"])
def test_a_union_is_trained_on_every_id_and_measured_on_the_label_partys_own(method):
    frames = tables(PARTIES, rows=500)
    own, theirs = (set(frames[name]["id"]) for name in PARTIES)
    result = simulate(union_contract(method), frames, columns(PARTIES))
    assert result.alignment is not None
    assert result.alignment.sizes["rows in the union"] == len(own | theirs)
    assert result.alignment.sizes["rows in common"] == len(own & theirs)
    assert sum(result.data.rows.values()) == len(own | theirs)
    # The label party measures on its own test rows; about a fifth of the union is test.
    assert result.data.rows["test"] * len(own) / len(own | theirs) == pytest.approx(result.evaluation["rows"], abs=12)
    assert result.evaluation["joint"]["auc"]["value"] > 0.8
    assert {attack.view.split(",")[0] for attack in result.sections.membership.attacks} == {"shop", "bank"}


@pytest.mark.parametrize(
    "labels",
    short_lane_of(
        [
            "majority",
            "majority-tr",
            "majority-te",
            "majority-fit",
            "minority",
            "random-pos",
            "random-pred",
            "neighbors",
            "settled",
        ],
        4,
    ),
)
def test_every_label_strategy_runs(labels):
    result = simulate(union_contract(union__labels=labels, union__audit=False), tables(PARTIES, rows=300), columns(PARTIES))
    assert result.evaluation["joint"]["auc"]["value"] > 0.6
    assert result.sections.membership is None


@pytest.mark.parametrize(
    "features",
    short_lane_of(["gaussian", "random", "sampling", "sampling-tr", "sampling-te", "sampling-fit", "splice-tr"], 3),
)
def test_every_feature_strategy_runs(features):
    result = simulate(union_contract(union__features=features, union__audit=False), tables(PARTIES, rows=300), columns(PARTIES))
    assert result.evaluation["joint"]["auc"]["value"] > 0.6


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"union__labels": "majority-tr", "union__features": "sampling-te"}, r"majority-tr.*sampling-te.*different ways"),
        ({"union__labels": "majority-fit", "union__features": "sampling-te"}, r"majority-fit.*sampling-te.*different ways"),
        (
            {"union__labels": "majority-fit", "split": {"validation": 0.0}},
            r"split\.validation = 0: must be above 0 for union\.labels = majority-fit",
        ),
    ],
)
def test_calibrations_that_cannot_be_are_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        parse_contract(union_contract(**changes))


def test_randomness_of_the_system_can_be_seeded_for_tests(tmp_path):
    """The statistics of this file rest on this: with the same seed a union gives the same models twice, with threads or
    without.
    """
    models = []
    for number in range(2):
        with pytest.MonkeyPatch.context() as patch:
            seed_system(patch)
            simulate(
                union_contract(union__audit=False), tables(PARTIES, rows=200), columns(PARTIES), folder=tmp_path / str(number)
            )
        models.append([weights(path) for path in sorted((tmp_path / str(number)).glob("*/*/model.safetensors"))])
    assert len(models[0]) == 2
    assert models[0] == models[1]


@pytest.mark.parametrize("own_columns", [True, False])
def test_a_fitted_calibration_is_kept_and_leaves_the_shift_out_where_the_label_party_has_columns(tmp_path, own_columns):
    given = columns(PARTIES)
    if not own_columns:
        given["bank"]["features"] = {}
    contract = union_contract(union__labels="majority-fit", union__features="sampling-fit", union__audit=False)
    result = simulate(contract, tables(PARTIES, rows=600), given, folder=tmp_path)
    (path,) = (tmp_path / "bank").glob("*/training.json")
    kept = json.loads(path.read_text())
    calibration = kept["calibration"]
    assert calibration["when"] == "fitted"
    assert (calibration["shift"]["shared"] == 1.0) is own_columns
    assert (calibration["real"] == 1.0) is own_columns
    assert calibration["line"] == kept["state"]["best_fitted"]
    assert calibration["line"]["slope"] not in (0.0, 1.0)
    for party, says in (("bank", own_columns), ("shop", True)):  # shop cannot know whether bank has any
        (of_party,) = (tmp_path / party).glob("*/result.json")
        notes = read_result(of_party.read_bytes()).sections.notes
        assert any(note.startswith("If bank has columns of its own, it can tell") for note in notes) is says
    assert result.evaluation["joint"]["auc"]["value"] > 0.7


def test_only_labels_of_training_rows_shape_imputed_values_and_shifts(tmp_path):
    contract = parse_contract(union_contract(union__labels="majority-te"))
    frame = tables(PARTIES, rows=300)["bank"]
    tls = {"ca": "ca.pem", "certificate": "own.pem", "key": "own.key"}
    values = {"party": "bank", "table": {"path": "table.parquet"}, "tls": tls, "listen": "127.0.0.1:1"}
    party = parse_party(values | columns(PARTIES)["bank"], folder=tmp_path)
    keys = read_keys(frame, columns=party.keys, alignment=contract.alignment)
    own_U = np.arange(frame.height)
    sizes = {"own": frame.height, "shop": frame.height - 20, "intersection": frame.height - 40, "union": frame.height + 20}
    alignment = Alignment(method="union", rows_N=np.concatenate([own_U, np.full(20, -1)]), sizes=sizes, learnt=[])

    folder = RunFolder.new(tmp_path, contract, "bank", key=None)

    def found(frame):
        own = OwnRows(party=party, is_label=True, frame=frame, keys=keys, alignment=alignment)
        return UnionDataset.of(contract, own, [], secret_seed=folder.secret_seed)

    rows = found(frame)
    training = keys.rows_R[alignment.rows_N[rows.train_N[rows.is_own(rows.train_N)]]]
    labels = 1 - frame["y"].to_numpy()
    labels[training] = frame["y"].to_numpy()[training]
    flipped = found(frame.with_columns(y=labels))
    assert rows.positive_rate == frame["y"].to_numpy()[training].mean() == flipped.positive_rate
    assert rows.positive_rate != pytest.approx(rows.labels_N.mean().item())
    assert rows.calibration(None) == flipped.calibration(None)
    logits, index_B = torch.zeros(len(rows.train_N)), rows.train_N
    assert torch.equal(rows.objective()(logits, index_B)[1], flipped.objective()(logits, index_B)[1])


def test_imputation_comes_from_a_secret_seed_of_each_run(tmp_path):
    frames = tables(PARTIES, rows=300)
    seeds = set()
    for number in range(2):
        simulate(union_contract(union__audit=False), frames, columns(PARTIES), folder=tmp_path / str(number))
        seeds |= {json.loads(path.read_text())["seed"] for path in (tmp_path / str(number)).glob("*/*/imputation.json")}
    assert len(seeds) == 4


def imputation_of(method_values, own_U, *, is_label=False, seed=5):
    return Imputation.of(parse_contract(method_values).union, torch.from_numpy(own_U.copy()), is_label=is_label, seed=seed)


def test_every_bit_of_the_secret_seed_counts():
    """A generator that keeps 32 bits of its seed could be found by comparing all of them with what was received."""
    own_U = np.array([0, *[-1] * 50], dtype=np.int64)
    draws = [
        imputation_of(union_contract(), own_U, seed=seed)._draws(1, stream=1).fixed_UK for seed in (5, 5 + 2**32, 5 + 2**100, 5)
    ]
    assert torch.equal(draws[0], draws[3])
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    # Streams of one seed differ, too, and the numbers are spread as they should be (of 51, a mean outside .25 to .75 has a
    # chance below 1e-8; seeded).
    assert not torch.equal(draws[0], imputation_of(union_contract(), own_U)._draws(1, stream=3).fixed_UK)
    assert 0.25 < draws[0].mean() < 0.75


def test_present_rows_are_never_replaced():
    own_U = np.array([3, -1, 0, 2, -1, 1], dtype=np.int64)
    imputation = imputation_of(union_contract(**SAMPLED), own_U)
    features = Features(numeric_NF=torch.arange(4.0)[:, None], categorical_NG=torch.empty(4, 0, dtype=torch.int64))
    batch = imputation.source(features)(torch.arange(6))
    assert batch.present_B.tolist() == [True, False, True, True, False, True]
    assert batch.numeric_NF[[0, 2, 3, 5], 0].tolist() == [3.0, 0.0, 2.0, 1.0]


def test_the_objective_uses_real_labels_where_there_are_some_and_validates_on_them_alone():
    own_U = torch.tensor([0, -1, 1, -1])
    imputation = imputation_of(union_contract(union__labels="majority"), own_U.numpy())
    labels_N = torch.tensor([1.0, 0.0])
    objective = imputation.objective(labels_N, NO_CALIBRATION, positive_rate=0.5)
    logits = torch.tensor([0.3, -0.2, 0.1, 2.0])
    # majority of {1, 0} is 0: absent labels are 0
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert objective(logits, torch.arange(4))[0].item() == pytest.approx(expected.item())
    several = torch.stack([logits, -logits, 2 * logits], dim=1)  # of an ensemble that trains
    alone = [objective(member, torch.arange(4))[0] for member in several.unbind(1)]
    assert objective(several, torch.arange(4))[0].item() == pytest.approx(sum(alone).item() / 3)
    real = torch.nn.functional.binary_cross_entropy_with_logits(logits[[0, 2]], labels_N)
    assert objective.validation_loss(logits, torch.arange(4)).item() == pytest.approx(real.item())
    assert isinstance(objective, ImputingObjective)


class Doubling(torch.nn.Module):
    width = 1

    def forward(self, features):
        return 2 * features.numeric_NF


def test_an_imputing_bottom_resumes_with_the_same_noise():
    def batch():
        return ImputedFeatures(
            numeric_NF=torch.arange(6.0)[:, None],
            categorical_NG=torch.empty(6, 0, dtype=torch.int64),
            present_B=torch.tensor([True, True, True, False, False, True]),
        )

    first = ImputingBottom(Doubling(), RandomFeatures(), generator=torch.Generator().manual_seed(1))
    first(batch())
    state = {name: value.clone() for name, value in first.state_dict().items()}
    expected = first(batch())
    second = ImputingBottom(Doubling(), RandomFeatures(), generator=torch.Generator().manual_seed(2))
    second.load_state_dict(state)
    assert torch.equal(second(batch()), expected)
    assert torch.equal(expected[[0, 1, 2, 5]], 2 * torch.tensor([[0.0], [1.0], [2.0], [5.0]]))


def test_settled_labels_follow_the_embeddings_and_the_model_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(drawn_labels, "LEAST_STEPS", 300)
    generator = torch.Generator().manual_seed(1)
    cuts_ND = torch.randn(400, 3, generator=generator)
    truth_N = (cuts_ND[:, 0] > 0).float()
    own_U = torch.where(torch.arange(400) % 2 == 0, torch.arange(400) // 2, -1)
    draws = Draws.of(rows=400, k=1, redraw="step", generator=generator)
    imputed = {"imputer": SettledLabels(), "draws": draws, "calibration": NO_CALIBRATION, "positive_rate": 0.5}
    objective = ImputingObjective(truth_N[::2], own_U, **imputed)
    model = LabelModel(TabularTop(3, hidden=(8,), outputs=1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    SettlingRule(objective=objective, seed=1).fit(model, objective, no_columns, torch.arange(400), cuts_ND)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    (_, first), (_, second) = (objective(logits, torch.arange(400)) for logits in (torch.zeros(400), torch.ones(400)))
    assert torch.equal(first, second)
    assert torch.equal(first[::2], truth_N[::2])
    assert float((first == truth_N)[1::2].double().mean()) > 0.85


def test_labels_settled_before_training_are_those_of_the_run_that_goes_on(tmp_path):
    contract = parse_contract(union_contract(union__labels="settled"))
    folder = RunFolder.new(tmp_path, contract, "bank", key=None)
    draws = Draws.of(rows=50, k=1, redraw="once", generator=torch.Generator().manual_seed(1))
    own_U = torch.where(torch.arange(50) % 2 == 0, torch.arange(50) // 2, -1)

    def objective():
        labels_N = torch.ones(25)
        return ImputingObjective(
            labels_N, own_U, imputer=SettledLabels(), draws=draws, calibration=NO_CALIBRATION, positive_rate=0.5
        )

    def step_rule(objective, step):
        schedule = Schedule(train_N=torch.arange(50), validation_N=torch.arange(0), batch_size=10, seed=1)
        training = contract.training.resolved(50)
        run = TrainingRun(training=training, schedule=schedule, store=folder.store(), resume_from=step)
        return settling(SimpleNamespace(folder=folder), objective, run)

    with pytest.raises(DamagedFile, match=r"settled\.json.*it is missing.*others would be drawn"):
        step_rule(objective(), 3)
    first, again = objective(), objective()
    step_rule(first, 0).keep(first.settle(torch.arange(40), torch.zeros(40)))
    step_rule(again, 3)
    targets = [each(torch.zeros(50), torch.arange(50))[1] for each in (first, again)]
    assert torch.equal(*targets)
    assert 0 < targets[0][1:40:2].sum() < 20
    assert (folder.path / "settled.json").stat().st_mode & 0o077 == 0


def test_the_audit_finds_planted_absence_and_only_that():
    """Gradients of absent rows point the other way, so any working attack is perfect. Without a difference all are near
    a guess.
    """
    generator = torch.Generator().manual_seed(3)
    schedule = Schedule(train_N=torch.arange(4000), validation_N=torch.arange(0), batch_size=500, seed=1)
    own_U = torch.where(torch.rand(4000, generator=generator) < 0.7, 1, -1)
    found = {}
    for name, separation in (("planted", 1.0), ("alike", 0.0)):
        steps = []
        for epoch in range(MEMBERSHIP_EPOCHS):
            for batch in schedule.epoch(epoch):
                sign_B = torch.where(own_U[batch.index_B] > 0, 1.0, -1.0)
                grad_BD = torch.randn(len(sign_B), 4, generator=generator) * 0.05 + separation * sign_B[:, None]
                all_B = torch.ones(len(sign_B), dtype=torch.bool)
                steps.append(StepView(epoch=epoch, rows_B=batch.index_B, own_B=all_B, received_BD=grad_BD))
        audited = audit_membership(steps, own_U >= 0, peer="shop", received="cut_gradient", say=lambda _text: None)
        found[name] = {attack.name: attack.auc for attack in audited.attacks}
    assert max(found["planted"].values()) > 0.99
    # 16 batches of 500 rows, folded at one half: six standard errors of a batch's AUC are .026 each, far less averaged
    assert max(found["alike"].values()) < 0.58


def test_predictions_on_a_union_reach_both_for_their_own_rows_only_and_are_calibrated_as_fitted(lay_out_job):
    job = lay_out_job(PARTIES, rows=300, alignment__method="union", union__audit=False, **SAMPLED, union__labels="majority-fit")
    job.run_all()
    job.run_all("predict", "--output", "scores.csv")
    scores = {name: pl.read_csv(job.home(name) / "scores.csv") for name in PARTIES}
    for name in PARTIES:
        assert set(scores[name]["id"]) == set(pl.read_parquet(job.home(name) / "table.parquet")["id"])
    both = scores["bank"].join(scores["shop"], on="id", suffix="_shop")
    assert both["score"].to_list() == pytest.approx(both["score_shop"].to_list(), abs=1e-6)
    # A test row that the shop has, too, scores as it did in the run. The shop lacks 15 rows, which are imputed.
    (run,) = job.runs("bank")
    line = json.loads((run / "training.json").read_text())["calibration"]["line"]
    assert abs(line["slope"] - 1) > 0.01
    tested, again = (np.asarray(each) for each in (pl.read_parquet(run / "scores.parquet")["score"], scores["bank"]["score"]))
    assert (np.abs(tested[:, None] - again).min(axis=1) < 1e-6).sum() >= len(tested) - 15


def test_own_columns_are_imputed_by_sampling_whatever_the_contract_says():
    imputation = imputation_of(union_contract(union__features="gaussian"), np.array([0, -1], dtype=np.int64), is_label=True)
    features = Features(numeric_NF=torch.ones(1, 1), categorical_NG=torch.empty(1, 0, dtype=torch.int64))
    assert isinstance(imputation.source(features).imputer, SamplingFeatures)
