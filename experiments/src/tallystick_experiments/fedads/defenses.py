"""FedAds' Table 4: what DP, Marvell and MixPro do to a label inference attack, beside the paper's numbers.

Section 5.2. After training, the attacker clusters the cut embeddings of all training rows in two and takes the smaller cluster
for the positives; LeakAUC is the AUC of these hard labels. The paper gives relative changes only. The greatest, -24.7 %, means
that its LeakAUC without a defence is at least .664, more than its model's test AUC of .620: absolute values stand here too.
Where positives are not rare the smaller cluster can be the negatives'; changes are therefore of max(a, 1 - a).

One strength of each defence, as the paper has it, compares nothing: each hides more at a higher price. So each is tried at
several, and all are compared where they cost as much test AUC as the paper's did.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.label_inference.registry import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.scoring import AttackEvaluator
from tallystick.attacks.view import StepView, View
from tallystick.data.features import FeatureShape
from tallystick.defenses.chain import chain
from tallystick.defenses.defense import Defense
from tallystick.defenses.registry import DEFENSES
from tallystick.models.build import seeded
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick_experiments.experiment import KEPT_ROWS, Experiment, SplitData, TrainingPlan
from tallystick_experiments.fedads.data import AdTable, encode_ads, read_ads
from tallystick_experiments.grid import Case, Keeping, Latest, run_cases
from tallystick_experiments.stats import summarize_seeds

_SEEDS = (1, 2, 3, 4, 5)
_LEAK = "clusters-embedding"
BESIDE = ("spectral-embedding", "completion", "norm", "direction-1", "spectral-gradient", "completion-gradient")
"""On the last epoch's steps; *completion* is told 40 labels, *direction-1* one positive row per batch."""
PRICE = 0.018  # test AUC that the paper's defences cost
NONE = "no defence"
PLAN = TrainingPlan(epochs=1, batch_size=256, learning_rate=1e-3)
"""The paper's batch; one pass is usual for such models, and the paper names neither passes nor optimiser."""
FUSIONS = {"linear": (), "one layer": (64,)}  # widths between [h_N, h_L] and the output; the paper has none
EMBEDDING_WIDTH = 8
FEATURE_BOTTOM, LABEL_BOTTOM = (128, 32), (256, 128)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A defence at several strengths, weak to strong.

    Args:
        name: as the table shows it, with a place for the strength.
        strengths: of the key that the defence's class names.
        also: its other keys.
        paper: the paper's change of LeakAUC in percent and its test AUC; it does not give the strengths of DP and Marvell.
    """

    name: str
    strengths: tuple[float, ...]
    also: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[float, float] | None = None


LADDERS: Mapping[str, Ladder] = MappingProxyType(
    {
        "gaussian": Ladder(
            name="DP, ε = {:g} a step",
            strengths=(64.0, 16.0, 8.0, 4.0, 1.0),
            also={"clip": 0.25},  # about the norm of a row's gradient at the start
            paper=(-5.7, 0.602),
        ),
        "marvell": Ladder(name="Marvell, s = {:g}", strengths=(0.25, 1.0, 4.0, 8.0, 32.0), paper=(-24.7, 0.601)),
        "mixpro": Ladder(name="MixPro, cosine {:.3g}", strengths=(0.3, 0.6, 0.75**0.5, 0.97), paper=(-11.3, 0.602)),
        "label-dp": Ladder(name="label DP, ε = {:g}", strengths=(4.0, 2.0, 1.0, 0.5)),
        "isotropic": Ladder(name="isotropic, power {:g}", strengths=(1.0, 10.0, 100.0)),
        "distance-correlation": Ladder(name="distance correlation, {:g}", strengths=(0.3, 1.0, 3.0, 10.0)),
    }
)
"""By the contract's names; the paper has the first three, at one strength each."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of table 4: a defence at one strength, or none."""

    name: str
    family: str = ""
    defense: tuple[Defense, ...] = ()
    paper_change: float | None = None
    paper_auc: float | None = None


def methods() -> tuple[TableRow, ...]:
    """Give all rows, each defence's from weak to strong."""
    rows = [TableRow(name=NONE, paper_auc=0.620)]
    for family, ladder in LADDERS.items():
        of_class = DEFENSES[family]
        change, auc = ladder.paper or (None, None)
        for strength in ladder.strengths:
            defense = of_class(**{**of_class.usual, **ladder.also, of_class.strength: strength})
            name = ladder.name.format(strength)
            rows.append(TableRow(name=name, family=family, defense=(defense,), paper_change=change, paper_auc=auc))
    return tuple(rows)


def run(
    *,
    data: Path,
    seeds: Sequence[int] = _SEEDS,
    plan: TrainingPlan = PLAN,
    swapped: bool = False,
    min_count: int = 4,
    limit: int | None = None,
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Train every method in both fusions, once per seed, on one thread.

    Args:
        data: FedAds' folder, the IJCAI-18 sample, Kaggle's Criteo or Avazu file, or the folder of FATE's credit-card files.
        seeds: of initialisation, batches and noise; of the split too where the data has no test rows of its own.
        plan: of every training.
        swapped: give each party the other's columns.
        min_count: training rows that a category needs for a code of its own.
        limit: draw so many rows of each file at random.
        keeping: of the runs; nowhere if left out.

    Raises DataError for data that is absent or of another format.
    """
    table, keeping = read_ads(data, limit=limit, swapped=swapped), keeping or Keeping()
    encoded = Latest(encode_ads)

    def case(fusion: str, method: TableRow, seed: int) -> Case:
        def trial() -> dict[str, Any]:
            network = _network(*encoded(table, seed=seed, min_count=min_count), FUSIONS[fusion], plan, seed)
            return _run(network, method, seed)

        key = {"fusion": fusion, "method": method.name, "seed": seed}
        return Case(key=key, trial=trial, title=f"seed {seed}: {fusion}, {method.name}")

    setting = {"name": table.name, "rows": table.frame.height, "swapped": swapped, **plan.__dict__}
    cases = [case(fusion, method, seed) for seed in seeds for fusion in FUSIONS for method in methods()]
    runs = run_cases(cases, keeping, setting, total=len(cases))
    split, _, _ = encoded(table, seed=seeds[-1], min_count=min_count)
    return report_of(runs, data=_about(table, split, plan))


def report_of(runs: Sequence[dict[str, Any]], *, data: dict[str, Any]) -> dict[str, Any]:
    """Set what was measured beside the paper's table."""
    return {
        "benchmark": "fedads",
        "number": 4,
        "data": data,
        "seeds": list(dict.fromkeys(each["seed"] for each in runs)),
        "table": _table(runs),
        "at_price": [at_price(runs, fusion, family) for fusion in FUSIONS for family in LADDERS],
        "runs": list(runs),
    }


def _network(
    data: SplitData, theirs: FeatureShape, own: FeatureShape, fusion: tuple[int, ...], plan: TrainingPlan, seed: int
) -> Experiment:
    """FedAds' network (section 5.1.4), without its batch normalisation, whose place the paper does not give."""
    with seeded(seed, "fedads"):
        bottom = TabularBottom(theirs, embedding_width=EMBEDDING_WIDTH, hidden=FEATURE_BOTTOM)
        label_bottom = TabularBottom(own, embedding_width=EMBEDDING_WIDTH, hidden=LABEL_BOTTOM)
        top = TabularTop(bottom.width + label_bottom.width, hidden=fusion, outputs=1)
    return Experiment(bottom, LabelModel(top, bottom=label_bottom), data, plan, seed=seed)


def _run(network: Experiment, method: TableRow, seed: int) -> dict[str, Any]:
    labels_N = network.data.training_labels_N.long()
    *_, last = network.epochs(chain(method.defense))
    leaks = _audit(_all_rows(network), labels_N, (_LEAK,), seed) | _audit(last.steps, labels_N, BESIDE, seed)
    return {
        "test_auc": last.test_auc,
        "leak_auc": leaks[_LEAK]["balanced_accuracy"],
        "leak_folded": max(leaks[_LEAK]["balanced_accuracy"], 1 - leaks[_LEAK]["balanced_accuracy"]),
        "attacks": {name: figures["auc"] for name, figures in leaks.items()},  # oriented by the attacker: .5 is a guess
    }


def _all_rows(network: Experiment) -> tuple[StepView]:
    """The feature party embeds the training rows once more after training: all, or of a large file a quarter of a million."""
    rows_N, cut_ND = (torch.cat(parts) for parts in zip(*network.embed(most=KEPT_ROWS), strict=True))
    nothing_ND: Tensor = cut_ND[:, :0]
    own_N = torch.ones(len(rows_N), dtype=torch.bool)
    return (StepView(epoch=network.plan.epochs, rows_B=rows_N, own_B=own_N, received_BD=nothing_ND, sent_BD=cut_ND),)


def _audit(steps: Sequence[StepView], labels_N: Tensor, names: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    view = View(received="cut_gradient", steps=tuple(steps))
    attacks = {name: LABEL_INFERENCE_ATTACKS[name] for name in names}
    found = evaluate_label_inference(view, labels_N, attacks=attacks, evaluator=AttackEvaluator(replicates=1), seed=seed)
    return {name: metrics.as_figures() for name, metrics in found.items()}


def _about(table: AdTable, data: SplitData, plan: TrainingPlan) -> dict[str, Any]:
    return {
        "name": table.name,
        "training_rows": len(data.training),
        "test_rows": len(data.test),
        "positive_rate": float(data.training_labels_N.mean()),
        "label_party_columns": len((*table.label_party.numeric, *table.label_party.categorical, *table.label_sequences)),
        "feature_party_columns": len((*table.feature_party.numeric, *table.feature_party.categorical, *table.feature_sequences)),
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "learning_rate": plan.learning_rate,
    }


def _table(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for fusion in FUSIONS:
        base = _by_seed(runs, fusion, NONE)
        for method in methods():
            chosen = _by_seed(runs, fusion, method.name)
            before = [base[seed]["leak_folded"] for seed in chosen]
            rows.append(
                {
                    "fusion": fusion,
                    "method": method.name,
                    "family": method.family,
                    "paper_change_percent": method.paper_change,
                    # the change of the means: a ratio of each seed's would divide by noise
                    "change_percent": 100
                    * float(np.mean([each["leak_folded"] for each in chosen.values()]) / np.mean(before) - 1),
                    "leak_auc": summarize_seeds([each["leak_auc"] for each in chosen.values()]),
                    "leak_folded": summarize_seeds([each["leak_folded"] for each in chosen.values()]),
                    "paper_auc": method.paper_auc,
                    "test_auc": summarize_seeds([each["test_auc"] for each in chosen.values()]),
                    "price": summarize_seeds([base[seed]["test_auc"] - each["test_auc"] for seed, each in chosen.items()]),
                    "attacks": {name: summarize_seeds([each["attacks"][name] for each in chosen.values()]) for name in BESIDE},
                    "strongest": summarize_seeds([_strongest(each) for each in chosen.values()]),
                }
            )
    return rows


def _by_seed(runs: Sequence[dict[str, Any]], fusion: str, method: str) -> dict[int, dict[str, Any]]:
    return {each["seed"]: each for each in runs if (each["fusion"], each["method"]) == (fusion, method)}


def _strongest(run: dict[str, Any]) -> float:
    """What the best attack of a run got: the attacker need not know which it is."""
    return float(max(max(auc, 1 - auc) for auc in (run["leak_folded"], *run["attacks"].values())))


def at_price(runs: Sequence[dict[str, Any]], fusion: str, family: str, *, price: float = PRICE) -> dict[str, Any]:
    """What a defence leaves to find where it costs ``price`` of test AUC: on a line between the two strengths around it.

    From weak to strong, by the means over seeds; figures are None where no strength tried costs that much.
    """
    steps = [_by_seed(runs, fusion, method.name) for method in methods() if method.family in ("", family)]
    base = steps[0]
    costs = [float(np.mean([base[seed]["test_auc"] - each["test_auc"] for seed, each in step.items()])) for step in steps]
    row: dict[str, Any] = {"fusion": fusion, "family": family, "highest_price": max(costs), "figures": None}
    for weaker, stronger, less, more in zip(steps, steps[1:], costs, costs[1:], strict=False):
        if less <= price <= more and more > less:
            share = (price - less) / (more - less)
            row["between"] = [next(iter(step.values()))["method"] for step in (weaker, stronger)]
            row["figures"] = {
                name: summarize_seeds([(1 - share) * figure(weaker[seed]) + share * figure(stronger[seed]) for seed in base])
                for name, figure in FIGURES.items()
            }
            break
    return row


FIGURES: Mapping[str, Callable[[dict[str, Any]], float]] = {
    "symmetric LeakAUC": lambda run: float(run["leak_folded"]),
    **{name: partial(lambda name, run: float(run["attacks"][name]), name) for name in BESIDE},
    "strongest": _strongest,
}
"""Of a run: what an attack got of the labels."""
