"""Compare the data that a feature party's audit keeps of a training with all of it: how well do they reveal the columns?

Shapes: N rows, D cut width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.feature_inference.evaluate import (
    FeatureLeaks,
    KnownRows,
    attacked_rows,
    draws_of_known,
    evaluate_feature_inference,
)
from tallystick.attacks.feature_inference.view import ColumnValues, SentEmbeddings
from tallystick.attacks.row_sums import RowSums, chosen_rows
from tallystick.attacks.view import Received
from tallystick.config.sections import NetworkModel
from tallystick.defenses.chain import NO_DEFENSE, embedding_chain
from tallystick.defenses.defense import Defense
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.models.build import build_bottom, build_label_model, width_of
from tallystick.run_folder.row_recorder import most_rows
from tallystick.training.feature_defense import DefendedBottom
from tallystick_experiments.catalogue.table import TwoPartyTable
from tallystick_experiments.feature_leakage.data import split_and_encode
from tallystick_experiments.observed_training import ObservedTraining, TrainingPlan, summed_epoch

DEFENSES: Mapping[str, tuple[Defense, ...]] = {
    "none": (),
    "gaussian-embeddings 100": (GaussianEmbeddings(epsilon=100.0, delta=1e-6, clip=1.0),),
}
ATTACKS = {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if not row.own_columns}  # these no party knows at home
ALL_ROWS = 25_000  # as a sample of all rows if there are more: a mean of so many is exact to the second decimal
STRONGEST = "the strongest per column"


def split_experiment(
    table: TwoPartyTable, plan: TrainingPlan, *, seed: int, defense: tuple[Defense, ...] = ()
) -> tuple[ObservedTraining, ColumnValues, int]:
    """Build a contract's untrained default network on a table, the feature party's columns, and the width of the cut."""
    data, columns = split_and_encode(table, seed=seed)
    model = NetworkModel()
    bottom: nn.Module = build_bottom(model, "feature", data.shape, seed=seed)
    width = width_of(bottom)
    label = build_label_model(model, "label", data.own_shape, [width], outputs=1, seed=seed)
    if defenses := embedding_chain(defense):
        bottom = DefendedBottom(bottom, defenses, secret=seed.to_bytes(32, "big"))
    return ObservedTraining(bottom, label, data, plan, seed=seed), columns, width


@dataclass(kw_only=True)
class KeptEmbeddings:
    """Hold the sent embeddings that the product's recorder keeps, and those of a recorder that drops nothing."""

    chosen: RowSums
    every: RowSums

    @classmethod
    def of(cls, train_N: Tensor, *, width: int, epochs: int) -> "KeptEmbeddings":
        """Start without embeddings."""
        received: Received = "cut_embedding"
        rows_N = chosen_rows(train_N, most=most_rows(received, width))
        all_N = torch.unique(torch.cat([rows_N, chosen_rows(train_N, most=ALL_ROWS)]))
        return cls(chosen=RowSums.zero(received, rows_N, width), every=RowSums.zero(received, all_N, width, looks=epochs))

    def leaks(self, columns: ColumnValues, *, seed: int) -> dict[str, FeatureLeaks]:
        """Attack both. Attackers who have everything know the same rows as the audit's attackers."""
        return {
            "audit": _leaks(self.chosen, columns, seed=seed),
            "everything": _leaks(self.every, columns, known=self.told(seed=seed), seed=seed),
        }

    def told(self, *, seed: int) -> KnownRows:
        """Return the rows that the audit's attackers know, as positions among all rows."""
        kept_N, all_N = self.chosen.seen_rows, self.every.seen_rows
        attacked_N = kept_N[attacked_rows(len(kept_N))]
        known_draws = draws_of_known(len(kept_N), seed=seed)
        return {count: [torch.searchsorted(all_N, attacked_N[each_K]) for each_K in each] for count, each in known_draws.items()}


def _leaks(sums: RowSums, columns: ColumnValues, **told: Any) -> FeatureLeaks:
    (step,) = sums.view().steps
    return evaluate_feature_inference(SentEmbeddings.of(step), columns.rows(step.rows_B), attacks=ATTACKS, **told)


def embeddings_kept_and_all(table: TwoPartyTable, defense: str, plan: TrainingPlan, *, seed: int) -> dict[str, Any]:
    """Train once, and attack the audit's data and all data. Return means over the columns, by attack."""
    experiment, columns, width = split_experiment(table, plan, seed=seed, defense=DEFENSES[defense])
    network = experiment.network(NO_DEFENSE)
    recorders = KeptEmbeddings.of(network.schedule.train_N, width=width, epochs=plan.epochs)
    for epoch in range(plan.epochs):
        for _ in summed_epoch(network, epoch, recorders.chosen, recorders.every):
            pass
    figures = {who: _figures(leaks) for who, leaks in recorders.leaks(columns, seed=seed).items()}
    return {"test_auc": experiment.test_auc(), **figures}


def _figures(leaks: FeatureLeaks) -> dict[str, float]:
    """Average over columns by attack and number of known rows, and take the strongest attack of each column.

    An attack that could not be made is left out, such as one that needs the starting weights.
    """
    counts = sorted({known for _, known in leaks.by_attack})
    figures = {f"{name}, {known} rows": value for (name, known), value in leaks.by_attack.items()}
    strongest = {known: leaks.mean(known) for known in counts}
    return figures | {f"{STRONGEST}, {known} rows": value for known, value in strongest.items() if value is not None}
