"""Compare what an audit keeps with everything: equal if all fits, less if it does not, and its price in a run."""

import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tallystick.attacks.feature_inference.evaluate import draws_of_known
from tallystick.attacks.feature_inference.view import ColumnValues
from tallystick.attacks.view import StepView
from tallystick.cli.app import app
from tallystick.cli.output import EXIT_USAGE
from tallystick.results import ContractInfo, PhaseRecord, Result
from tallystick.run_folder.recorder import RecordingPlan
from tallystick_experiments.label_leakage import kept
from tallystick_experiments.page import benchmark_html
from tallystick_experiments.speed.memory import Usage, _Follower

CHOSEN = ("norm", "completion-both")


@pytest.mark.long
def test_where_everything_fits_the_audit_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kept, "LABEL_INFERENCE_ATTACKS", {n: kept.LABEL_INFERENCE_ATTACKS[n] for n in ("norm", "completion-both")}
    )
    chosen = ("ridge-looks", "known-start")  # the latter cannot be made: weights start from a secret
    monkeypatch.setattr(kept.embeddings, "ATTACKS", {name: kept.embeddings.ATTACKS[name] for name in chosen})
    monkeypatch.setattr(kept, "MEASURED", {**kept.MEASURED, "features": ("none",)})
    found = kept.kept_views_experiment(rows=600, seeds=[1], epochs=2, batch_size=128, priced=False).run()
    labels, features = found.page().tables
    assert [tuple(row[:2]) for row in labels.rows] == [(name, attack) for name in ("none", "marvell 8") for attack in CHOSEN]
    names = [f"{name}, {known} rows" for name in ("ridge-looks", "the strongest per column") for known in (20, 200)]
    assert [tuple(row[:2]) for row in features.rows] == [("none", name) for name in names]
    for row in [*labels.rows, *features.rows]:
        assert row[4].value == 0.0
        assert row[5]
    assert labels.rows[0][2].value > 0.7  # there is something to find
    assert features.rows[1][2].value > 0.1
    html = benchmark_html(found.page())
    assert "within 0.02" in html
    assert "What the audit of features reports" in html


def test_the_audit_has_a_few_epochs_some_batches_and_evenly_chosen_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "most_rows", lambda *_, **__: 5)
    found = kept.KeptSteps.of(torch.arange(20), RecordingPlan(first=1, later=2, batches=1), width=3)
    for epoch in range(6):
        found.steps[epoch] = [
            StepView(epoch=epoch, rows_B=rows_B, own_B=rows_B >= 0, received_BD=torch.ones(10, 3), sent_BD=torch.ones(10, 3))
            for rows_B in torch.arange(20).split(10)
        ]
        for sums in (found.every, found.chosen):
            for step in found.steps[epoch]:
                sums.add(step.rows_B, torch.ones(10, 3), torch.randn(10, 3))
            sums.epoch_ended(epoch)
    (audited, chosen), (whole, every) = found.views().values()
    assert len(audited.epochs) == 3
    assert {0, 5} <= set(audited.epochs)
    assert len(audited.steps) == 3
    assert len(whole.steps) == 12
    assert [len(view.steps[0].rows_B) for view in (chosen, every)] == [5, 20]


def test_a_feature_partys_audit_has_two_epochs_of_a_wide_cut_and_evenly_chosen_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept.embeddings, "most_rows", lambda *_, **__: 150)
    monkeypatch.setattr(kept.embeddings, "ATTACKS", {"ridge-looks": kept.embeddings.ATTACKS["ridge-looks"]})
    random = torch.Generator().manual_seed(1)
    number_N1 = torch.randn(600, 1, generator=random)
    columns = ColumnValues(
        numeric_NF=number_N1,
        categorical_NG=torch.empty(600, 0, dtype=torch.int64),
        numeric=("x",),
        categorical=(),
        categories=(),
    )
    sent = kept.embeddings.KeptEmbeddings.of(torch.arange(600), width=128, epochs=6)
    for epoch in range(6):
        embedding_ND = torch.randn(600, 128, generator=random)
        if epoch == 3:  # which reveals all; the audit has the first and the last
            embedding_ND = number_N1.expand(600, 128)
        for sums in (sent.chosen, sent.every):
            sums.add(torch.arange(600), embedding_ND, embedding_ND)
            sums.epoch_ended(epoch)
    assert (sent.chosen.look_epochs, sent.every.look_epochs) == ((0, 5), (0, 1, 2, 3, 4, 5))
    assert (len(sent.chosen.rows_N), len(sent.every.rows_N)) == (150, 600)
    found = {who: leaks.mean(20) for who, leaks in sent.leaks(columns, seed=3).items()}
    assert found["audit"] < 0.1
    assert found["everything"] > 0.7
    (first, *_), (same, *_) = draws_of_known(150, seed=3)[20], sent.told(seed=3)[20]
    assert sent.chosen.rows_N[first].tolist() == sent.every.rows_N[same].tolist()


def test_a_side_that_there_is_not_is_refused() -> None:
    refused = CliRunner().invoke(app, ["bench", "audit", "--sides", "labels,columns", "--json"])
    assert refused.exit_code == EXIT_USAGE
    assert "--sides 'columns': must be labels or features, or both with a comma between" in refused.output


def test_who_kept_everything_is_told_the_rows_that_the_audit_is_told() -> None:
    sums = kept.RowSums.zero("cut_gradient", torch.arange(0, 300, 3), 2)
    sums.add(sums.rows_N, torch.randn(100, 2), torch.randn(100, 2))
    told_T = kept.told_rows(sums.view(), torch.arange(300) // 150, seed=1)
    assert len(told_T) == 40
    assert set(told_T.tolist()) <= set(range(0, 300, 3))
    assert torch.bincount(told_T // 150).tolist() == [20, 20]


def test_a_difference_is_of_the_same_seed_and_only_a_shortfall_is_far() -> None:
    rows = [
        {"side": "labels", "defense": "none", "seed": seed, "audit": {"a": 0.7, "b": 0.6}, "everything": {"a": 0.6, "b": bar}}
        for seed, bar in ((2, 0.62), (4, 0.64))
    ]
    (table,) = kept.kept_views_page({"data": {"data": "generated", "epochs": 1, "batch_size": 2, "rows": 3}}, rows).tables
    first, second = table.rows
    assert (first[4].value, first[5]) == (pytest.approx(0.1), True)
    assert (second[4].value, second[5]) == (pytest.approx(-0.03), False)


def test_the_price_is_that_of_recording_and_of_attacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time three turns, of which the second takes thrice as long. A full audit's recording adds a tenth by the clock, and a fifth
    of both sides' processor time; attacks are a share of a training ten times as long.
    """
    turns: Counter[str] = Counter()

    def job_usages(folder: Path, rows: int, *_: object, audit: bool | str, **__: object) -> dict[str, Usage]:
        name = {False: "none", True: "full", "quick": "quick"}[audit]
        slower = (1.0, 3.0, 1.0)[turns[name]]
        turns[name] += 1
        usages = {}
        for role, party, attacking in (("label", "bank", 0.5), ("feature", "shop", 0.8)):
            phases = [("training", (11.0 if audit is True else 10.0) * slower)] + [("audit", attacking)] * bool(audit)
            result = Result(
                run_id="r",
                party=party,
                parties=[],
                contract=ContractInfo(name="memory", hash="00"),
                started="2026-01-01T00:00:00+00:00",
                seconds=0.0,
                phases=[PhaseRecord(name=name, party=party, seconds=seconds) for name, seconds in phases],
            )
            path = folder / party / "runs" / "memory-1"
            path.mkdir(parents=True)
            (path / "result.json").write_text(result.to_json())
            processor_s = {"training": (12.0 if audit is True else 10.0) * slower, "audit": attacking}
            usages[f"run, {role}"] = Usage(memory=(rows + turns[name]) * 2**20, processor_s=1.0, phases=processor_s)
        return usages

    monkeypatch.setattr(kept.memory, "job_usages", job_usages)
    monkeypatch.setattr(kept, "WHOLE_STEPS", 60)
    monkeypatch.setattr(kept, "replayed_recording", lambda *_, audit, **_role: {"none": 0.0, "quick": 0.3, "full": 2.0}[audit])
    cost = kept.audit_cost(1000, turns=3, epochs=2)  # of three steps each
    assert turns == {"none": 3, "quick": 3, "full": 3}
    assert cost["none"]["training_s"] == (10.0, 10.0, 30.0)
    full = cost["full"]
    assert full["training_s"] == (11.0, 11.0, 33.0)
    assert full["audit_s"] == {"label": (0.5, 0.5, 0.5), "feature": (0.8, 0.8, 0.8)}
    assert full["peak_mib"] == {"run, label": 1003.0, "run, feature": 1003.0}
    assert full["recording"] == pytest.approx((0.1, 0.1, 0.1))
    assert full["recording, processor"] == pytest.approx((0.2, 0.2, 0.2))
    assert full["attacking"] == pytest.approx({"label": 0.005, "feature": 0.008})
    assert full["attacking, processor"] == pytest.approx(1.3 / 200)
    assert full["recording, replayed"]["feature"] == pytest.approx((0.2, 0.0667, 0.2), abs=1e-4)
    assert full["share"] == pytest.approx({"label": 0.205, "feature": 0.208})
    assert not full["at most 0.2"]
    assert cost["quick"]["at most 0.05"]
    (table,) = kept.kept_views_page(
        {"data": {"data": "generated", "epochs": 1, "batch_size": 2, "rows": 3}, "cost": cost}, []
    ).tables
    assert "by processor seconds of both, recording +20.0% (+20.0%, +20.0%)" in table.note
    assert table.rows[2][:8] == ["full", 11.0, 0.5, 0.8, 12.0, 12.0, 0.5, 0.8]


def test_recording_is_replayed_for_each_party_and_form() -> None:
    for role, audit in product(kept.ROLES, kept.AUDITS):
        assert (kept.replayed_recording(2000, 2, role=role, audit=audit) > 0) == (audit != "none")


def test_the_processor_time_of_a_process_is_found_by_phase(tmp_path: Path) -> None:
    """Follow a process that works half a second in its second phase."""
    code = (
        "import sys, time\n"
        "for name in ('rest', 'work', 'end'):\n"
        "    sys.stderr.write('{\"phase\": \"' + name + '\"}\\n'); sys.stderr.flush(); time.sleep(0.1)\n"
        "    while name == 'work' and time.process_time() < 0.6: pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE)
    follower = _Follower(process)
    follower.run()
    process.wait()
    assert follower.phases["work"] > 0.4
    assert follower.phases["rest"] + follower.phases["end"] < 0.1
