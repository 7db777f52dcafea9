"""Run one training of the feature-leakage benchmark, and measure its AUC and how well each column is rebuilt.

Shapes: N training rows, D cut width.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.feature_inference.evaluate import KNOWN, MOST_ROWS, FeatureLeaks, evaluate_feature_inference
from tallystick.attacks.feature_inference.view import ColumnValues, SentEmbeddings
from tallystick.attacks.findings import RebuiltColumn
from tallystick.attacks.row_sums import RowSums, chosen_rows
from tallystick.config.sections import NetworkModel
from tallystick.cut.forward import FeatureSource
from tallystick.defenses.chain import NO_DEFENSE, embedding_chain
from tallystick.defenses.defense import Defense
from tallystick.models.build import seeded
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick.run_folder.pass_recorder import PASS_ROWS
from tallystick.training.feature_defense import DefendedBottom
from tallystick_experiments.catalogue.table import SplitData
from tallystick_experiments.feature_leakage.data import as_numbers
from tallystick_experiments.observed_training import ObservedTraining, TrainingPlan, summed_epoch

HIDDEN = NetworkModel().hidden  # a contract's default, cut after its first layer
WIDTH = HIDDEN[0]
EMBEDDING_WIDTH = 4
ALONE = "own columns alone"
EMBEDDINGS, AIDED, ANY = "embeddings", "embeddings and own columns", "strongest of all"


@dataclass(frozen=True, kw_only=True)
class CutSetting:
    """Define a row of the table: the width of the cut, the ``depth`` of the bottom in layers, and the defence."""

    name: str
    cut_width: int = WIDTH
    depth: int = 1
    defense: tuple[Defense, ...] = ()
    partner: bool = True  # without a partner, the label party trains on its own columns alone

    @property
    def family(self) -> str:
        """Return the setting's line in the picture: its defences, or without one the way in which it hides."""
        if not self.partner:
            return ALONE
        methods = " and ".join(defense.method for defense in self.defense)
        return methods or ("cut width" if self.depth == 1 else "two layers, cut width")


def run_setting(setting: CutSetting, data: SplitData, columns: ColumnValues, plan: TrainingPlan, *, seed: int) -> dict[str, Any]:
    """Train once, and attack what the label party received in all epochs.

    Returns:
        test AUC by epoch, and seconds; by number of known rows, the mean over columns of what the strongest attack rebuilt, with
        and without the label party's own columns and of all attacks, and every column's; and the same means for rows that the
        attacker compares once in an epoch, for which the test rows are used.
    """
    started = time.perf_counter()
    assert data.own_shape is not None
    with seeded(seed, "feature leakage"):
        bottom: torch.nn.Module = TabularBottom(
            data.shape, embedding_width=EMBEDDING_WIDTH, hidden=(*HIDDEN[: setting.depth - 1], setting.cut_width)
        )
        own_bottom = TabularBottom(data.own_shape, embedding_width=EMBEDDING_WIDTH, hidden=HIDDEN[: setting.depth])
        top = TabularTop(own_bottom.width + setting.cut_width, hidden=HIDDEN[setting.depth :], outputs=1)
    if defenses := embedding_chain(setting.defense):
        bottom = DefendedBottom(bottom, defenses, secret=seed.to_bytes(32, "big"))
    if not setting.partner:
        bottom = _Silent(setting.cut_width)
    network = ObservedTraining(bottom, LabelModel(top, bottom=own_bottom), data, plan, seed=seed)
    split = network.network(NO_DEFENSE)
    sums = RowSums.zero("cut_embedding", chosen_rows(split.schedule.train_N, most=MOST_ROWS), setting.cut_width)
    compared = RowSums.zero("cut_embedding", chosen_rows(torch.arange(len(data.test)), most=PASS_ROWS), setting.cut_width)
    aucs = []
    for epoch in range(plan.epochs):
        for _ in summed_epoch(split, epoch, sums):
            pass
        aucs.append(network.test_auc())
        for rows_B, cut_BD in network.embed(test=True):
            compared.add(rows_B, cut_BD, torch.zeros_like(cut_BD))
        compared.epoch_ended(epoch)
        compared.looks_at_LN[-1] = 0  # one pass, with fixed weights
    trained = time.perf_counter() - started
    leaks = _leaks(sums, columns, data.own_training, seed=seed)
    features = data.test.rows(torch.arange(len(data.test)))
    categorical_NG = features.categorical_NG[:, : len(columns.categorical)]
    held_out_columns = replace(columns, numeric_NF=features.numeric_NF, categorical_NG=categorical_NG)
    held_out = _leaks(compared, held_out_columns, data.own_test, seed=seed)
    return {
        "test_auc": aucs,
        **_figures(leaks),
        "mean_compared": _means(held_out),
        "training_seconds": trained,
        "seconds": time.perf_counter() - started,
    }


class _Silent(torch.nn.Module):
    """Send zeros, to measure the value of the label party's own columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, features: Any) -> torch.Tensor:
        return torch.zeros(len(features), self.width)


def _leaks(sums: RowSums, columns: ColumnValues, own_columns: FeatureSource, *, seed: int) -> dict[str, FeatureLeaks]:
    """Measure what embeddings alone reveal, as a feature party's audit does, and embeddings with the label party's
    own columns.
    """
    (step,) = sums.view().steps
    own_NA = as_numbers(own_columns(step.rows_B))
    aided = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.own_columns}
    sent, truth = SentEmbeddings.of(step), columns.rows(step.rows_B)
    alone = evaluate_feature_inference(sent, truth, seed=seed)
    own = evaluate_feature_inference(replace(sent, own_BA=own_NA), truth, attacks=aided, seed=seed)
    return {EMBEDDINGS: alone, AIDED: own, ANY: _strongest_of(alone, own)}


def _strongest_of(*found: FeatureLeaks) -> FeatureLeaks:
    """Take for every column the attack that rebuilt most of it. An attacker who has own columns can also ignore them."""
    best: dict[tuple[str, int], RebuiltColumn] = {}
    for column in (column for each in found for column in each.columns):
        place = (column.name, column.known)
        if place not in best or column.value > best[place].value:
            best[place] = column
    return FeatureLeaks(columns=tuple(best.values()))


def _figures(leaks: dict[str, FeatureLeaks]) -> dict[str, Any]:
    return {
        "mean": _means(leaks),
        "attacks": {f"{name}, {k} rows": value for found in leaks.values() for (name, k), value in found.by_attack.items()},
        "columns": {
            reads: {
                str(known): {
                    column.name: {name: getattr(column, name) for name in ("value", "attack", "accuracy", "majority")}
                    for column in found.columns
                    if column.known == known
                }
                for known in KNOWN
            }
            for reads, found in leaks.items()
        },
        "not_measured": sorted({line for found in leaks.values() for line in found.not_measured}),
    }


def _means(leaks: dict[str, FeatureLeaks]) -> dict[str, dict[str, float | None]]:
    return {reads: {str(known): found.mean(known) for known in KNOWN} for reads, found in leaks.items()}
