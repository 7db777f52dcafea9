"""The label-leakage benchmark on small made-up data: the loop compared with plain training, the sweep's book-keeping,
known leaks.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits

from tallystick.attacks.label_inference.spectral import spectral_scores
from tallystick.defenses.chain import chain
from tallystick.defenses.distance_correlation import DistanceCorrelation
from tallystick.defenses.label_dp import LabelDP
from tallystick.defenses.marvell import Marvell
from tallystick.errors import ConfigError
from tallystick.models.build import seeded
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick.training.plan import Schedule
from tallystick_experiments import observed_training
from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable
from tallystick_experiments.grid import Keeping
from tallystick_experiments.label_leakage import paper
from tallystick_experiments.label_leakage import runs as leakage_runs
from tallystick_experiments.label_leakage import sweep as leakage
from tallystick_experiments.label_leakage.page import label_leakage_page
from tallystick_experiments.label_leakage.runs import (
    PaperNetwork,
    Scenario,
    balanced,
    layer_aucs,
    layer_outputs,
    row_aucs,
    run_scenario,
)
from tallystick_experiments.label_leakage.scenarios import parts, scenarios
from tallystick_experiments.observed_training import TrainingPlan
from tallystick_experiments.stats import Spread, spread

SMALL = PaperNetwork(below=2, above=1, width=16)
SHORT = TrainingPlan(epochs=2, batch_size=64)


def test_without_defences_the_loop_is_plain_training_to_the_bit(clicks: SplitData) -> None:
    split = SMALL.build(clicks, SHORT, seed=5)
    found = list(split.epochs())

    with seeded(5, "label leakage"):
        bottom = TabularBottom(clicks.shape, embedding_width=4, hidden=(16, 16))
        top = TabularTop(16, hidden=(16,), outputs=1)
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=SHORT.learning_rate, fused=True)
    rows = torch.arange(len(clicks.training))
    schedule = Schedule(train_N=rows, validation_N=rows[:0], batch_size=64, seed=5)
    for epoch in range(2):
        for batch in schedule.epoch(epoch):
            optimizer.zero_grad()
            logits_B = top(bottom(clicks.training.rows(batch.index_B))).squeeze(1)
            binary_cross_entropy_with_logits(logits_B, clicks.training_labels_N[batch.index_B]).backward()
            optimizer.step()
    for ours, plain in zip(
        [*split.bottom.parameters(), *split.label.parameters()], optimizer.param_groups[0]["params"], strict=True
    ):
        assert torch.equal(ours, plain)
    with torch.no_grad():
        logits_T = top(bottom(clicks.test.unpacked())).squeeze(1)
    assert found[-1].test_auc == pytest.approx(roc_auc_score(clicks.test_labels_T, logits_T), abs=1e-9)


def test_each_defence_is_applied_where_it_belongs(clicks: SplitData) -> None:
    def first_epoch(*entries: Marvell | LabelDP | DistanceCorrelation) -> tuple[torch.Tensor, torch.Tensor]:
        epoch = next(SMALL.build(clicks, SHORT, seed=5).epochs(chain(entries)))
        return epoch.steps[0].received_BD, epoch.undefended[0]

    bare, clean = first_epoch()
    assert torch.equal(bare, clean)
    noisy, before = first_epoch(Marvell(power=4.0))
    assert torch.equal(before, bare)
    assert not torch.equal(noisy, before)
    penalised, before = first_epoch(DistanceCorrelation(weight=0.1, form="plain"))
    assert torch.equal(before, bare)
    assert not torch.equal(penalised, bare)
    flipped, _ = first_epoch(LabelDP(epsilon=1.0))
    changed_B = (flipped - bare).abs().sum(dim=1) > 0
    assert 0 < int(changed_B.sum()) < len(changed_B)  # about one label in four


def test_layers_end_in_the_logit_and_pass_through_the_cut(clicks: SplitData) -> None:
    for network in (SMALL, PaperNetwork(below=2, above=1, width=16, normalised=True)):
        split = network.build(clicks, SHORT, seed=5)
        list(split.epochs())
        ((rows_B, outputs),) = layer_outputs(split)
        assert torch.equal(rows_B, torch.arange(len(clicks.training)))
        assert [output.shape[1] for output in outputs] == [16, 16, 16, 1]
        with torch.no_grad():
            assert torch.equal(outputs[1], split.bottom(clicks.training.unpacked()))
            assert torch.equal(outputs[3], split.label.top(split.bottom(clicks.training.unpacked())))
        logit_auc = roc_auc_score(clicks.training_labels_N, outputs[3].squeeze(1))
        assert layer_aucs(split)[3] == pytest.approx(max(logit_auc, 1 - logit_auc), abs=1e-9)  # one column: its own top direction


@pytest.mark.long
def test_an_undefended_run_leaks_by_direction_and_marvell_hides_it(clicks: SplitData) -> None:
    """Seeded; the bars are far from the results (1.0 and about .6 on 630 rows)."""
    leaks = {}
    for name, defense in (("none", ()), ("marvell", (Marvell(power=16.0),))):
        scenario = Scenario(name=name, defense=defense, network=SMALL, every_attack=True, by_layer=True)
        found = run_scenario(scenario, clicks, plan=SHORT, seed=1)
        assert len(found["epochs"]) == 2
        assert len(found["layers"]) == 4
        leaks[name] = found["attacks"]
    assert leaks["none"]["direction-1"]["auc"] > 0.99
    assert leaks["none"]["direction-1-clean"]["auc"] > 0.99
    assert leaks["marvell"]["direction-1"]["symmetric_auc"] < 0.75
    assert {"completion", "probe", "clusters-embedding", "norm-averaged"} <= set(leaks["none"])


def test_a_long_training_is_attacked_in_some_epochs_and_the_last(clicks: SplitData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakage_runs, "ATTACKED_EPOCHS", 2)
    found = run_scenario(Scenario(name="none", network=SMALL), clicks, plan=replace(SHORT, epochs=4), seed=1)
    assert [bool(epoch["leaks"]) for epoch in found["epochs"]] == [True, False, False, True]
    assert found["epochs"][-1]["leaks"]["norm"] == found["attacks"]["norm"]["symmetric_auc"]


def test_balancing_drops_negatives_only(table: TwoPartyTable) -> None:
    half = balanced(table, 0.5, seed=3)
    assert half.frame.get_column("label").mean() == pytest.approx(0.5, abs=0.002)
    assert half.frame.get_column("label").sum() == table.frame.get_column("label").sum()
    assert balanced(table, 0.5, seed=3).frame.collect().equals(half.frame.collect())
    with pytest.raises(ConfigError, match=r"positive rate 0\.01"):
        balanced(table, 0.01, seed=3)


def test_every_part_knows_its_scenarios() -> None:
    every = scenarios(TrainingPlan())
    needed = {name for names in parts().values() for name in names}
    assert needed == set(every)
    printed = [row for table in paper.TABLES.values() for row in table.rows]
    assert {row.scenario for row in printed} <= set(every)
    assert {name for panels in paper.FIGURES.values() for panel in panels.values() for name in panel.scenarios} <= set(every)
    assert every["dcor 0.03"].defense[0].form == "log"
    assert every["dcor 0.03, 1 layer above"].network.above == 0
    assert every["dcor 0.05, warm-up"].defense[0].warm_up == 2.0
    assert every["plain dcor 0.3, batch 8192"].plan == TrainingPlan()
    assert every["plain dcor 0.3"].plan is None


@pytest.mark.long
def test_the_sweep_is_resumed_and_sets_ours_beside_the_paper(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    training = {"steps": leakage.StepOptions(epochs=1, batch_size=128)}
    first = leakage.label_leakage_experiment(data=file, seeds=(1,), only=["table-3"], **training).run(Keeping(log=log))
    again = Keeping(log=log, resume=True)
    found = leakage.label_leakage_experiment(data=file, seeds=(1, 2), only=["table-3"], **training).run(again)
    assert first.rows == [each for each in found.rows if each["seed"] == 1]
    assert len(found.rows) == 6
    (table,) = (each for each in found.page().tables if each.name == "Table 3")
    bare, defended = table.rows  # per metric the paper's figure, ours, and ours with a normalised top
    assert (bare[1], bare[4]) == (0.7607, 0.7823)
    assert bare[3] is bare[6] is None
    assert defended[5] == spread(
        each["epochs"][-1]["test_auc"] for each in found.rows if each["name"] == "dcor 0.03, 45% positive"
    )
    assert defended[6] is not None


@pytest.mark.long
def test_a_scenario_is_run_alone_and_unknown_ones_are_named(file: Path) -> None:
    training = {"steps": leakage.StepOptions(epochs=1, batch_size=128)}
    with pytest.raises(ConfigError, match="unknown part table-9"):
        leakage.label_leakage_experiment(data=file, only=["table-9"]).run()
    (alone,) = leakage.label_leakage_experiment(data=file, seeds=(1,), scenario=["none"], **training).run().rows
    assert alone["name"] == "none"
    found = leakage.label_leakage_experiment(data=file, seeds=(1,), only=["table-1"], scenario=["none"], **training).run()
    assert found.rows[0]["epochs"] == alone["epochs"]
    assert [[row[0] for row in each.rows] for each in found.page().tables if each.name == "Table 1"] == [["weight 0, 3 layers"]]
    with pytest.raises(ConfigError, match="unknown scenario nobody; choose from none, "):
        leakage.label_leakage_experiment(data=file, scenario=["nobody"]).run()
    with pytest.raises(ConfigError, match=r"unknown scenario mixpro; choose from none, 1 layer above, "):
        leakage.label_leakage_experiment(data=file, only=["table-1"], scenario=["mixpro"]).run()


def test_a_last_batch_of_one_row_is_left_out_and_a_long_epoch_keeps_evenly_spread_steps(
    clicks: SplitData, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = len(clicks.training)
    size = next(size for size in range(10, rows) if rows % size == 1)  # 630 rows: 17
    normalised = PaperNetwork(below=2, above=1, width=16, normalised=True)
    (epoch,) = normalised.build(clicks, TrainingPlan(epochs=1, batch_size=size), seed=1).epochs()
    assert sum(len(step.rows_B) for step in epoch.steps) == rows - 1
    monkeypatch.setattr(observed_training, "KEPT_ROWS", 3 * size)
    (short,) = normalised.build(clicks, TrainingPlan(epochs=1, batch_size=size), seed=1).epochs()
    assert [short.steps[0].rows_B.tolist(), short.steps[-1].rows_B.tolist()] == [
        epoch.steps[0].rows_B.tolist(),
        epoch.steps[-1].rows_B.tolist(),
    ]
    assert len(short.steps) == len(short.undefended) == 3
    assert short.test_auc == epoch.test_auc


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"batch_size": 1}, {"learning_rate": 0.0}, {"learning_rate": float("nan")}])
def test_unusable_schedules_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        TrainingPlan(**bad)


def test_a_million_rows_get_the_papers_schedule() -> None:
    papers = TrainingPlan(epochs=3, batch_size=8192, learning_rate=1e-4)
    assert leakage.plan_for(4_125_655) == leakage.plan_for(4_125_655, papers_steps=True) == papers
    assert leakage.plan_for(80_000) == TrainingPlan(epochs=3, batch_size=512, learning_rate=1e-3)


@pytest.mark.parametrize("batch_size", [None, 8192])
def test_the_papers_steps_are_as_many_and_as_long_on_a_sample(batch_size: int | None) -> None:
    plan = leakage.plan_for(80_000, papers_steps=True, batch_size=batch_size)
    updates = plan.epochs * -(-72_000 // plan.batch_size)
    assert plan.learning_rate == 1e-4
    assert updates == pytest.approx(1500, rel=0.05)


@pytest.mark.long
def test_with_the_papers_steps_its_own_network_alone_is_trained(file: Path) -> None:
    steps = leakage.StepOptions(papers_steps=True, epochs=1, batch_size=128)
    found = leakage.label_leakage_experiment(data=file, seeds=(1,), only=["table-2"], steps=steps).run()
    assert [row["name"] for row in found.rows] == ["none", "dcor 0.03"]
    page = found.page()
    (table,) = (each for each in page.tables if each.name == "Table 2")
    (bare, penalised), tests = table.rows, [row["epochs"][-1]["test_auc"] for row in found.rows]
    assert not any("normalised" in column for column in table.columns)
    assert bare[-1] is None
    assert isinstance(penalised[-1], Spread)
    assert penalised[-1].value == pytest.approx(tests[1] - tests[0])
    assert any("1,500 updates" in note for note in page.notes)


def test_the_leak_on_rows_that_nobody_learnt_from_stands_beside_that_on_training_rows(clicks: SplitData) -> None:
    network = SMALL.build(clicks, SHORT, seed=3)
    list(network.epochs())
    found = row_aucs(network)
    assert found["test"]["auc"] == network.test_auc()
    for which, rows, labels_N in (
        ("training", clicks.training, clicks.training_labels_N),
        ("test", clicks.test, clicks.test_labels_T),
    ):
        with torch.no_grad():
            cut_ND = network.bottom(rows.unpacked())
            logits_N = network.label([cut_ND], [])
        assert found[which]["auc"] == pytest.approx(roc_auc_score(labels_N, logits_N), abs=1e-9)
        whole = range(0, len(labels_N) - 63, 64)
        signed = [roc_auc_score(labels_N[at : at + 64], spectral_scores(cut_ND[at : at + 64])) for at in whole]
        assert found[which]["leak"] == pytest.approx(sum(max(each, 1 - each) for each in signed) / len(whole), abs=1e-6)


def test_the_page_compares_the_leak_with_the_auc_on_the_same_rows(file: Path) -> None:
    name = "none, by rows"
    found = leakage.label_leakage_experiment(
        data=file, seeds=(1, 2), scenario=[name], steps=leakage.StepOptions(epochs=1, batch_size=128)
    ).run()
    page = label_leakage_page({**found.about, "parts": ["bound"]}, found.rows)
    (table,) = (each for each in page.tables if each.name.startswith("The leak beside"))
    ((title, leak, auc, less, *_),) = table.rows
    assert title == "none"
    assert leak == spread(row["by_rows"]["training"]["leak"] for row in found.rows)
    assert isinstance(leak, Spread)
    assert isinstance(auc, Spread)
    assert isinstance(less, Spread)
    assert less.value == pytest.approx(leak.value - auc.value)
