"""The FLORIST benchmark on small made-up data: the loop compared with plain training, and the sweep's book-keeping."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tallystick.errors import ConfigError
from tallystick.imputation.label_imputers import RandomPredictedLabels, SettledLabels
from tallystick.models.build import seeded
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick_experiments.catalogue.table import SplitData
from tallystick_experiments.florist import convergence, paper, runs
from tallystick_experiments.florist import sweep as florist
from tallystick_experiments.florist.runs import BOTH, FloristSetting, Membership, Trained, Treatment
from tallystick_experiments.grid import Keeping
from tallystick_experiments.page import ExperimentResult, benchmark_html
from tallystick_experiments.stats import Spread, groups, spread

SMALL = FloristSetting(epochs=2, fixed_batch_size=64, hidden=(16, 16), cut_after=1, planted=20)


def test_with_nothing_absent_the_loop_is_plain_training_to_the_bit(clicks: SplitData) -> None:
    rows = len(clicks.training)
    everything = torch.ones(rows, dtype=torch.bool)
    membership = Membership(has_labels_U=everything, has_features_U=everything)
    trained = Trained(Treatment(membership=membership, rows=torch.arange(rows)), clicks, SMALL, seed=5, record=False)

    with seeded(5, "florist"):
        bottom = TabularBottom(clicks.shape, embedding_width=4, hidden=(16,))
        top = TabularTop(16, hidden=(16,), outputs=1)
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=SMALL.learning_rate, fused=True)
    for epoch in range(2):
        order = torch.randperm(rows, generator=torch.Generator().manual_seed((5 << 16) + epoch))
        for rows_B in torch.split(order, 64):
            optimizer.zero_grad()
            logits_B = top(bottom(clicks.training.rows(rows_B))).squeeze(1)
            binary_cross_entropy_with_logits(logits_B, clicks.training_labels_N[rows_B]).backward()
            optimizer.step()
    for ours, plain in ((trained.bottom, bottom), (trained.top, top)):
        for name, weight in plain.state_dict().items():
            assert torch.equal(ours.state_dict()[name], weight), name


def test_membership_takes_the_same_rows_for_every_strategy_and_the_stated_share() -> None:
    labels, features = (Membership.of(side, rows=1000, ratio=0.3, seed=7) for side in ("labels", "features"))
    both = Membership.of("both", rows=1000, ratio=0.3, seed=7)
    assert torch.equal(labels.has_labels_U, features.has_features_U)
    assert torch.equal(both.has_labels_U, labels.has_labels_U)
    assert int(labels.has_labels_U.sum()) == 700 == int(both.has_features_U.sum())
    assert bool(labels.has_features_U.all())
    shared = int((both.has_labels_U & both.has_features_U).sum())
    assert shared == pytest.approx(490, abs=60)  # independent: 4 standard deviations
    shift = both.shift(0.25, imputed_rate=0.0)
    assert shift.shared == shared / 1000
    assert shift.positive == pytest.approx((700 - shared) / 1000 * 0.25)
    other = Membership.of("both", rows=1000, ratio=0.3, seed=7, features_ratio=0.6)
    assert torch.equal(other.has_labels_U, both.has_labels_U)
    assert int(other.has_features_U.sum()) == 400


STRATEGIES = ["majority", "majority-te", "sampling", "florist-tr"]


@pytest.fixture(scope="module")
def swept(file: Path) -> ExperimentResult:
    return florist.florist_experiment(data=file, seeds=(1, 2), ratios=(0.25, 0.5), strategies=STRATEGIES, setting=SMALL).run()


@pytest.fixture(scope="module")
def by_key(swept: ExperimentResult) -> dict[tuple[str, str, float], Any]:
    return groups(swept.rows, "side", "strategy", "ratio")


@pytest.mark.long
def test_a_variant_of_prediction_shares_its_training(by_key) -> None:
    plain, undone = by_key["labels", "majority", 0.5], by_key["labels", "majority-te", 0.5]
    assert [each["attacks"] for each in plain] == [each["attacks"] for each in undone]
    aucs, others = ([each["auc"] for each in rows] for rows in (plain, undone))
    assert aucs == pytest.approx(others, abs=1e-6)  # a monotone map keeps ranks
    assert [each["ace"] for each in plain] != [each["ace"] for each in undone]


@pytest.mark.long
def test_a_change_is_against_the_partial_baseline_of_the_same_seed(swept, by_key) -> None:
    features, labels = (by_key[side, "baseline-partial", 0.5] for side in ("features", "labels"))
    assert [each["auc"] for each in features] == [each["auc"] for each in labels]
    ours, base = (by_key["both", name, 0.5] for name in ("florist-tr", "baseline-partial"))
    changes = [100 * (one["auc"] / other["auc"] - 1) for one, other in zip(ours, base, strict=True)]
    tables = {table.name: table for table in swept.page().tables}
    half = tables["Table 3"].rows[1]
    assert half[:2] == ["0.5", paper.AUC_CHANGE_PERCENT["criteo"][0.5]]
    assert half[2 + list(BOTH).index("florist-tr")] == spread(changes)
    plain = {row[0]: row for row in tables["Test AUC and ACE: labels absent"].rows}["baseline-partial"]
    assert (plain[1], plain[3]) == (2, Spread(value=0, low=0, high=0))


def test_both_parties_attack_at_the_papers_ratio_alone(by_key) -> None:
    assert not by_key["labels", "majority", 0.25][0]["attacks"]
    assert {"feature party/direction", "label party/spectral"} <= set(by_key["both", "florist-tr", 0.5][0]["attacks"])


def test_majority_labels_leak_by_direction_in_a_real_run(file: Path) -> None:
    """End to end: the feature party's share of certain finds is near the rate of positives. Seeded."""
    found = florist.florist_experiment(
        data=file, seeds=(1,), ratios=(0.5,), sides=("labels",), strategies=["majority"], setting=SMALL
    ).run()
    attacks = next(each["attacks"] for each in found.rows if each["strategy"] == "majority")
    assert attacks["feature party/direction"]["tpr_at_fpr"] == pytest.approx(found.about["positive_rate"], abs=0.1)


def test_labels_settled_before_training_never_change_in_a_run(clicks: SplitData) -> None:
    """Labels drawn from the current prediction flip on some rows of every run this short. Seeded."""
    rows = len(clicks.training)
    membership = Membership.of("labels", rows=rows, ratio=0.5, seed=3)
    changed = {}
    for name, labels in (("settled", SettledLabels()), ("random-pred", RandomPredictedLabels())):
        treatment = Treatment(membership=membership, rows=torch.arange(rows), labels=labels, redraw="once")
        trained = Trained(treatment, clicks, replace(SMALL, epochs=4, learning_rate=1e-2), seed=5, record=True)
        target_EU = torch.zeros(4, rows)
        for step in trained.views[1]:
            target_EU[step.epoch, step.rows_B] = step.targets_B
        real_U = membership.has_labels_U
        assert torch.equal(target_EU[0][real_U], clicks.training_labels_N[real_U])
        changed[name] = (target_EU != target_EU[0]).any(dim=0)
        assert not changed[name][real_U].any()
    assert not changed["settled"].any()
    assert changed["random-pred"].any()


def test_other_shares_of_labels_and_features_stand_without_the_papers_numbers(file: Path) -> None:
    setting = replace(SMALL, epochs=1, features_ratio=0.6)
    found = florist.florist_experiment(
        data=file, seeds=(1,), sides=["both"], strategies=["florist-tr"], ratios=[0.25, 0.1], setting=setting
    ).run()
    assert found.about["features_ratio"] == 0.6
    changes = found.page().tables[0]
    assert changes.name == "As in Table 3, of other pairs"
    assert (changes.columns[0], len(changes.columns)) == ("ratio", 1 + len(BOTH))
    assert [row[0] for row in changes.rows] == ["0.1", "0.25"]
    with pytest.raises(ConfigError, match=r"--features-ratio 0\.6: only works with --sides both; found labels, features"):
        florist.florist_experiment(
            data=file, seeds=(1,), sides=["labels", "features"], setting=replace(SMALL, features_ratio=0.6)
        ).run()
    with pytest.raises(ConfigError, match=r"ratio 1\.5 is not a share"):
        florist.florist_experiment(data=file, seeds=(1,), sides=["both"], setting=replace(SMALL, features_ratio=1.5)).run()


def test_a_large_tables_attacks_read_evenly_spread_steps(clicks: SplitData, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = len(clicks.training)
    membership = Membership.of("both", rows=rows, ratio=0.5, seed=3)
    treatment = Treatment(membership=membership, rows=torch.arange(rows))
    whole = Trained(treatment, clicks, SMALL, seed=5, record=True)
    monkeypatch.setattr(runs, "KEPT_ROWS", 192)
    part = Trained(treatment, clicks, SMALL, seed=5, record=True)
    steps = -(-rows // 64)
    assert [len(view) for view in (*whole.views, *part.views)] == [2 * steps, 2 * steps, 6, 6]
    kept = [whole.views[0][place] for place in (0, round((steps - 1) / 2), steps - 1)]
    for one, other in zip(kept, part.views[0][:3], strict=True):
        assert torch.equal(one.received_BD, other.received_BD)
    assert len(part._one_pass(membership.has_labels_U).rows_B) == 192
    assert {"spectral", "learned"} <= set(part.leaks("feature"))


def test_own_columns_of_the_label_party_join_the_network_and_the_attacks(file: Path) -> None:
    """Made-up columns are independent of each other, so they reveal nothing of it; the attack's own test plants a leak."""
    how: dict[str, Any] = {"data": file, "seeds": (1,), "ratios": (0.5,), "sides": ("features",), "strategies": ["splice-tr"]}
    found = florist.florist_experiment(**how, setting=replace(SMALL, own_columns=4)).run()
    alone = florist.florist_experiment(**how, setting=SMALL).run()
    attacks, without = ({each["strategy"]: each for each in runs.rows}["splice-tr"]["attacks"] for runs in (found, alone))
    assert set(attacks) - set(without) == {"label party/agreement-own"}
    assert 0.5 <= attacks["label party/agreement-own"]["symmetric_auc"] < 0.6  # 630 rows: a standard error of .023
    assert found.about["own_columns"] == 4
    assert "own_columns" not in alone.about
    with pytest.raises(
        ConfigError, match="own columns are for the side features, where the label party has every row; found both"
    ):
        florist.florist_experiment(**{**how, "sides": ("both",)}, setting=replace(SMALL, own_columns=4)).run()


@pytest.mark.long
def test_a_step_of_nearly_nothing_leaves_the_network_where_it_began(file: Path) -> None:
    """One partial baseline after five epochs equals that after one, except for steps of 1e-8."""
    how: dict[str, Any] = {"data": file, "seeds": (1,), "ratios": (0.5,), "sides": ("labels",), "strategies": ["majority-te"]}
    slow = replace(SMALL, ace_bins=5, learning_rate=1e-8)
    short, long = (
        {
            row["strategy"]: row["auc"]
            for row in florist.florist_experiment(**how, setting=replace(slow, epochs=epochs)).run().rows
        }
        for epochs in (1, 5)
    )
    assert short["baseline-partial"] == pytest.approx(long["baseline-partial"], abs=1e-3)


def test_batch_and_rare_categories_go_into_the_network(file: Path) -> None:
    how: dict[str, Any] = {"data": file, "seeds": (1,), "ratios": (0.5,), "sides": ("labels",), "strategies": ["majority"]}
    found = florist.florist_experiment(**how, setting=FloristSetting(fixed_batch_size=128, min_count=1, epochs=1)).run()
    assert (found.about["batch_size"], found.about["min_count"]) == (128, 1)


def test_unusable_arguments_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--learning-rate 0: must be from 1e-9 to 1e6"):
        florist.florist_experiment(data=file, setting=replace(SMALL, learning_rate=0)).run()
    with pytest.raises(ConfigError, match=r"ratio 1\.0"):
        florist.florist_experiment(data=file, ratios=(1.0,)).run()
    with pytest.raises(ConfigError, match="--sides left: must be labels, features or both"):
        florist.florist_experiment(data=file, sides=["left"]).run()
    with pytest.raises(ConfigError, match="unknown strategies best"):
        florist.florist_experiment(data=file, strategies=["best"]).run()


@pytest.mark.long
def test_a_sweep_that_is_cut_short_goes_on_and_ends_the_same(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    how: dict[str, Any] = {"data": file, "seeds": (1,), "ratios": (0.5,), "setting": SMALL}
    how |= {"sides": ("labels",), "strategies": ["majority", "majority-te", "random-pos"]}

    def cut(what: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        florist.florist_experiment(**how).run(Keeping(log=log, progress=cut))
    done = len(log.read_text().splitlines()) - 1
    assert done == 3
    made: list[tuple[str, int, int]] = []
    resumed = florist.florist_experiment(**how).run(Keeping(log=log, resume=True, progress=lambda *told: made.append(told)))
    whole = florist.florist_experiment(**how).run()
    for found in (resumed, whole):
        for each in found.rows:
            each.pop("seconds")
    assert resumed == whole
    assert len(log.read_text().splitlines()) == 1 + len(made) == 1 + len(whole.rows)
    assert [told[1:] for told in made] == [(done, len(made)) for done in range(1, len(made) + 1)]
    with pytest.raises(ConfigError, match="epochs differ"):
        florist.florist_experiment(**{**how, "setting": replace(SMALL, epochs=3)}).run(Keeping(log=log, resume=True))


@pytest.mark.long
def test_the_page_shows_every_table_and_curve_beside_the_paper(file: Path) -> None:
    wanted = ["majority", "sampling", "florist-vanilla", "random-pred:k=2"]
    found = florist.florist_experiment(data=file, seeds=(1, 2), ratios=(0.25, 0.5), strategies=wanted, setting=SMALL).run()
    page = found.page(command="tallystick bench florist")
    tables = {table.name: table for table in page.tables}
    by_key = groups(found.rows, "side", "strategy", "ratio")
    attack = [each["attacks"]["feature party/spectral"]["symmetric_auc"] for each in by_key["labels", "majority", 0.5]]
    assert tables["Table 1"].rows[0][:2] == ["majority", 0.5761]
    assert tables["Table 1"].rows[0][2] == spread(attack)
    assert [row[0] for row in tables["Table 3"].rows] == ["0.25", "0.5"]
    assert {curve.name.split(":")[0] for curve in page.curves} == {f"Figure 2{letter}" for letter in "abcdef"}
    line = next(series for series in page.curves[0].series if series.name == "majority")
    assert list(line.xs) == [0.25, 0.5]
    assert list(line.ys) == [spread(each["auc"] for each in by_key["labels", "majority", ratio]).value for ratio in (0.25, 0.5)]
    assert "2 seeds" in benchmark_html(page)


def test_the_course_of_a_training_is_looked_at_every_twenty_steps(file: Path) -> None:
    setting = replace(SMALL, fixed_batch_size=16)
    how: dict[str, Any] = {"data": file, "seeds": (1,), "ratios": (0.5,), "setting": setting}
    found = convergence.florist_convergence_experiment(**how, strategy="florist-te").run()
    (course,) = (row["course"] for row in found.rows)
    assert len(course) > 1
    assert [each["step"] for each in course] == list(range(20, course[-1]["step"] + 1, 20))
    table = found.page(command="x").tables[0]
    assert table.rows[0][0] == 0.5
    with pytest.raises(ConfigError, match="--strategy majority: must be of florist-vanilla"):
        convergence.florist_convergence_experiment(**how, strategy="majority").run()


def test_an_auc_is_stable_from_the_step_after_the_last_one_that_is_below() -> None:
    course = [{"step": step, "auc": auc} for step, auc in ((20, 0.60), (40, 0.71), (60, 0.69), (80, 0.70), (100, 0.701))]
    assert convergence.stable_step(course) == 80
    assert convergence.stable_step(course[-1:]) == 100
