"""FedAds' Table 3 on small made-up data: which rows are aligned, that each row trains, and the table's content."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tallystick.config import sections
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.catalogue.ads import CREDIT, read_by_kind
from tallystick_experiments.fedads import leaks, unaligned
from tallystick_experiments.fedads.unaligned_data import share_out
from tallystick_experiments.grid import Keeping


@pytest.fixture
def criteo(tmp_path: Path, criteo_lines: Callable[[int], str]) -> Path:
    path = tmp_path / "train.txt"
    path.write_text(criteo_lines(900))
    return path


def test_criteo_is_split_by_kind_of_column_and_a_fifth_of_training_rows_is_aligned(criteo: Path) -> None:
    table = read_by_kind(criteo)
    assert all(name.startswith("C") for name in table.label_party.categorical)
    assert not table.label_party.numeric
    assert all(name.startswith("I") for name in table.feature_party.numeric)
    rows = share_out(table, seed=1)
    parts = [rows.aligned_N, rows.unaligned_N, rows.validation_N, rows.test_N]
    assert [len(part_N) for part_N in parts] == [126, 504, 90, 180]
    assert len(torch.cat(parts).unique()) == 900
    again = share_out(table, seed=1)
    assert torch.equal(again.aligned_N, rows.aligned_N)
    assert not torch.equal(share_out(table, seed=2).aligned_N, rows.aligned_N)


def test_fates_credit_files_are_joined_on_their_id(tmp_path: Path) -> None:
    guest = pl.DataFrame({"id": [3, 1, 2], "y": [1, 0, 1], "x0": [0.3, 0.1, 0.2]})
    host = pl.DataFrame({"id": [1, 2, 3], "x0": [10.0, 20.0, 30.0]})
    for frame, name in zip((guest, host), CREDIT, strict=True):
        frame.write_csv(tmp_path / name.removesuffix(".gz"))
        (tmp_path / name.removesuffix(".gz")).rename(tmp_path / name)
    table = read_by_kind(tmp_path)
    assert (table.label_party.numeric, table.feature_party.numeric) == (("x0",), ("host_x0",))
    assert table.frame.get_column("host_x0").to_list() == [30.0, 10.0, 20.0]
    with pytest.raises(DataError, match="one class only"):
        share_out(table, seed=1)


def test_a_probe_starts_what_it_freezes(criteo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm start takes the first model's logits before the first step, also in a probe."""
    monkeypatch.setattr(unaligned, "MOST_EPOCHS", 1)
    (row,) = (each for each in unaligned.rows() if each.name == "warm start")
    rows = share_out(read_by_kind(criteo), seed=1)
    found = unaligned.MethodTrial(rows=rows, row=replace(row, frozen=True), seed=1).run()
    assert found["steps"] == 1


def test_rows_train_are_resumed_and_tabulated(criteo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unaligned, "MOST_EPOCHS", 2)
    only = ["Local", "VanillaVFL", "ORALE", "average"]
    log = tmp_path / "runs.jsonl"
    first = unaligned.unaligned_rows_experiment(data=criteo, seeds=[1], only=only).run(Keeping(log=log))
    found = unaligned.unaligned_rows_experiment(data=criteo, seeds=[1, 2], only=only).run(Keeping(log=log, resume=True))
    assert found.rows[: len(only)] == first.rows
    table, alone = found.page().tables
    assert [row[0] for row in table.rows] == only
    shown = dict(zip(table.columns, table.rows[3], strict=True))
    mine, vanilla = ([row for row in found.rows if row["method"] == name] for name in ("average", "VanillaVFL"))
    for column, figure in (("over VanillaVFL", "auc"), ("NLL over VanillaVFL's", "nll")):
        expected = np.mean([one[figure] - other[figure] for one, other in zip(mine, vanilla, strict=True)])
        assert shown[column].value == pytest.approx(expected)
    assert shown["times VanillaVFL's"] > 1
    assert [row[0] for row in alone.rows] == ["average"]
    assert not any("rank correlation" in note for note in found.page().notes)


def test_other_settings_stand_beside_the_methods_usual_ones() -> None:
    def made(method: str, seed: int, auc: float) -> dict[str, Any]:
        return {"method": method, "seed": seed, "auc": auc, "nll": 1 - auc, "ece": 0.1, "cpu_seconds": 1.0}

    named = {"VanillaVFL": 0.6, "SS-VFL": 0.7, "SS-VFL, 100 passes": 0.75, "FedHSSL, 30 passes": 0.9}
    found = [made(method, seed, auc + 0.01 * seed) for seed in (1, 2) for method, auc in named.items()]
    about = {"name": "made", "rows": 10, "share_of_positives": 0.5, "aligned": 0.2}
    _, others = unaligned.unaligned_rows_page(about, found).tables
    assert [row[0] for row in others.rows] == ["SS-VFL, 100 passes"]  # FedHSSL itself was not trained
    assert [figure.value for figure in others.rows[0][1:]] == pytest.approx([0.05, -0.05])


@pytest.mark.parametrize("name", ["SS-VFL, rate x 10", "FedHSSL, other rows' cells", "Diffu-AT, 1,000 steps of DDPM"])
def test_other_settings_reach_the_method_and_train_where_they_are_named(name: str, criteo: Path) -> None:
    (row,) = unaligned.chosen_of(read_by_kind(criteo), [name]).values()
    usual = unaligned.chosen_of(read_by_kind(criteo), [name.partition(", ")[0]])[name.partition(", ")[0]]
    assert row.settings != usual.settings
    assert row.settings.method == usual.settings.method
    assert name not in unaligned.chosen_of(read_by_kind(criteo), [])


def test_rows_and_shares_that_there_are_not(criteo: Path) -> None:
    with pytest.raises(ConfigError, match="is not a row of the table; it has Local, VanillaVFL"):
        unaligned.unaligned_rows_experiment(data=criteo, seeds=[1], only=["SplitNN"]).run()
    with pytest.raises(ConfigError, match=r"--aligned 1\.0: expected a share of the training rows, above 0 and below 1"):
        unaligned.unaligned_rows_experiment(data=criteo, seeds=[1], aligned=1.0).run()


def test_the_papers_order_by_hand() -> None:
    """Six methods in the paper's order except for the first two: 1 - 6 (1 + 1) / (6 (36 - 1)); bounds and ablations do
    not count.
    """
    aucs = [("Local", 0.9), ("HeuristicVFL", 0.72), ("SS-VFL", 0.71), ("FedCVT", 0.73), ("VFL-MPD", 0.74), ("FedHSSL", 0.75)]
    aucs += [("JPL", 0.76), ("ORALE", 0.1), ("regressor", 0.2)]
    known = {row.name: row for row in unaligned.rows()}
    chosen = {known[name]: [{"auc": value}] for name, value in aucs}
    assert unaligned.order_like_the_papers(chosen) == pytest.approx(1 - 12 / 210)
    assert unaligned.order_like_the_papers(dict(list(chosen.items())[:3])) is None


@pytest.mark.parametrize("name", ["VanillaVFL, frozen", "SS-VFL, frozen"])
def test_a_probe_leaves_the_bottom_as_it_was_and_is_trained_only_where_it_is_named(
    name: str, criteo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unaligned, "MOST_EPOCHS", 2)
    assert not any(row.frozen for row in unaligned.chosen_of(read_by_kind(criteo), []).values())
    table = read_by_kind(criteo)
    (row,) = unaligned.chosen_of(table, [name]).values()
    trial = unaligned.MethodTrial(rows=share_out(table, seed=1), row=row, seed=1)
    made: list[Any] = []
    modules = trial._modules

    def listening(method: Any) -> Any:
        model, bottoms = modules(method)
        made.extend([model, *bottoms])
        return model, bottoms

    before: list[Any] = []
    train = unaligned._train

    def at_the_start(*arguments: Any) -> Any:
        before.extend({key: weight.clone() for key, weight in module.state_dict().items()} for module in made)
        return train(*arguments)

    monkeypatch.setattr(trial, "_modules", listening)
    monkeypatch.setattr(unaligned, "_train", at_the_start)
    found = trial.run()
    assert 0 < found["auc"] < 1
    moved = {key for key, weight in made[0].state_dict().items() if not torch.equal(weight, before[0][key])}
    assert any(key.startswith("top.") for key in moved)
    assert not any(key.startswith("bottom.") for key in moved)
    assert any(not torch.equal(weight, before[1][key]) for key, weight in made[1].state_dict().items())


@pytest.mark.long
def test_what_unaligned_rows_add_to_the_leak(criteo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "fitting_epochs", lambda _rows, _batch_size: 2)
    monkeypatch.setattr(leaks, "DEFENSES", {"no defence": []})
    found = leaks.fedads_leaks_experiment(data=criteo, seeds=[1], methods=["none", "multi-task"], aligned=0.5).run(
        Keeping(log=tmp_path / "log")
    )
    again = leaks.fedads_leaks_experiment(data=criteo, seeds=[1], methods=["none", "multi-task"], aligned=0.5).run(
        Keeping(log=tmp_path / "log", resume=True)
    )
    assert again == found
    none, other = (row["figures"] for row in found.rows)
    known_half = {"probe", "probe-network", "probe-gradient", "probe-bilinear"}
    assert none[leaks.STRONGEST] == max(
        none[name] for name in set(none) - known_half - {leaks.TEST, leaks.EPOCHS, leaks.STRONGEST}
    )
    by_method, changes = found.page().tables
    assert len(by_method.rows) == len(changes.rows)
    shown = {row[0]: row[1].value for row in changes.rows}
    assert shown["norm"] == pytest.approx(other["norm"] - none["norm"])
