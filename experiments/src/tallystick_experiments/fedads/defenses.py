"""Make FedAds' Table 4: the effect of DP, Marvell and MixPro on a label inference attack, next to the paper's numbers.

Section 5.2. After training, the attacker clusters the cut embeddings of all training rows in two and takes the smaller cluster as
the positives. LeakAUC is the AUC of these hard labels. The paper gives only relative changes. The largest, -24.7 %, means that
its LeakAUC without a defence is at least .664, more than its model's test AUC of .620. So this page has absolute values too. If
positives are not rare, the smaller cluster can be the negatives'. So changes are of max(a, 1 - a).

The paper has one strength of each defence, which allows no comparison, because each hides more at a higher price. So each is
tried at several strengths, and all are compared at the test AUC that the paper's cost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.view import StepView
from tallystick.defenses.chain import chain
from tallystick.defenses.defense import Defense
from tallystick.defenses.defense_table import DEFENSES
from tallystick.errors import ConfigError
from tallystick.models.build import seeded
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick_experiments.catalogue.ads import encode_ads, read_ads
from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable, column_names
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.fedads.pairs import PairedByClass
from tallystick_experiments.grid import Latest, grid
from tallystick_experiments.observed_training import KEPT_ROWS, ObservedTraining, TrainingPlan, attack_figures
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, seeds_of
from tallystick_experiments.stats import Row, Spread, at, groups, over_seeds, paired, spread

_LEAK = "clusters-embedding"
BESIDE = ("spectral-embedding", "completion", "norm", "direction-1", "spectral-gradient", "completion-gradient")
"""On the steps of the last epoch. *completion* knows 40 labels, *direction-1* one positive row per batch."""
PRICE = 0.018  # the test AUC that the paper's defences cost
NONE = "no defence"
ON_TOP = {"linear": "a single linear layer, as in the paper", "one layer": "one hidden layer of 64"}
FUSIONS = {"linear": (), "one layer": (64,)}  # widths between [h_N, h_L] and the output; the paper has none
EMBEDDING_WIDTH = 8
FEATURE_BOTTOM, LABEL_BOTTOM = (128, 32), (256, 128)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Define a defence at several strengths, weak to strong.

    Args:
        name: its name in the table, with a place for the strength.
        strengths: the values of ``key``.
        key: the key that varies; if empty, the strength of the defence's class.
        defense: the contract's name of the defence; if empty, the ladder's own name.
        also: values of its other keys.
        paper: the paper's change of LeakAUC in percent and its test AUC; it does not give the strengths of DP and Marvell.
    """

    name: str
    strengths: tuple[float, ...]
    key: str = ""
    defense: str = ""
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
        "mixpro-alpha": Ladder(name="MixPro, alpha {:g}", strengths=(0.05, 0.2, 2.0, 20.0, 200.0), key="alpha", defense="mixpro"),
        "label-dp": Ladder(name="label DP, ε = {:g}", strengths=(4.0, 2.0, 1.0, 0.5)),
        "isotropic": Ladder(name="isotropic, power {:g}", strengths=(1.0, 10.0, 100.0)),
        "distance-correlation": Ladder(name="distance correlation, {:g}", strengths=(0.3, 1.0, 3.0, 10.0)),
    }
)
"""By the contract's names, unless another key varies. The paper has the first three, at one strength each."""
PAIRS = "mixpro-pairs"


@dataclass(frozen=True, kw_only=True)
class DefenseRow:
    """Define a row of table 4: a defence at one strength, or none."""

    name: str
    family: str = ""
    defense: tuple[Defense, ...] = ()
    paper_change: float | None = None
    paper_auc: float | None = None


def methods() -> tuple[DefenseRow, ...]:
    """Return all rows: each defence's from weak to strong, and MixPro by the classes of its pairs."""
    rows = [DefenseRow(name=NONE, paper_auc=0.620)]
    for family, ladder in LADDERS.items():
        of_class = DEFENSES[ladder.defense or family]
        change, auc = ladder.paper or (None, None)
        for strength in ladder.strengths:
            defense = of_class(**{**of_class.usual, **ladder.also, ladder.key or of_class.strength: strength})
            name = ladder.name.format(strength)
            rows.append(DefenseRow(name=name, family=family, defense=(defense,), paper_change=change, paper_auc=auc))
    for own_class, name in ((True, "MixPro, pairs of one class"), (False, "MixPro, pairs of both classes")):
        rows.append(DefenseRow(name=name, family=PAIRS, defense=(PairedByClass(own_class=own_class),)))
    return tuple(rows)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Define the setting of a training.

    The batch of 256 rows is the paper's. One pass is usual for such models; the paper names neither passes nor optimiser.

    Args:
        plan: passes, batch size and step size.
        swapped: whether to give each party the other's columns.
        aligned: the share of the training rows that both parties have, above 0; the paper's is .2.
        normalised: whether both bottoms have batch normalisation, whose place the paper does not give, and the top is one linear
            layer.
    """

    plan: TrainingPlan = field(default_factory=lambda: TrainingPlan(epochs=1, batch_size=256))
    swapped: bool = False
    aligned: float = 1.0
    normalised: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.aligned <= 1:
            raise ConfigError(f"--aligned {self.aligned}: expected a share of the training rows, above 0 and at most 1")

    @property
    def fusions(self) -> tuple[str, ...]:
        """Return the possible tops."""
        return ("linear",) if self.normalised else tuple(FUSIONS)

    def facts(self) -> Row:
        """Return the facts that differ from the usual setting."""
        return ({"aligned": self.aligned} if self.aligned < 1 else {}) | ({"normalised": True} if self.normalised else {})


USUAL = Setting()


def fedads_defenses_experiment(
    *,
    data: Path,
    seeds: Sequence[int],
    setting: Setting = USUAL,
    only: Sequence[str] = (),
    min_count: int = 4,
    limit: int | None = None,
) -> Experiment:
    """Train every method, or those of ``only``, in each fusion, once per seed, on one thread.

    Raises:
        DataError: the data is missing or of another format.
        ConfigError: a defence does not exist, or a share is given for data that says which rows both parties have.
    """
    if unknown := sorted(set(only) - {*LADDERS, PAIRS}):
        raise ConfigError(f"--only {unknown[0]}: is not a defence of the table; it has {', '.join((*LADDERS, PAIRS))}")
    table = read_ads(data, limit=limit, swapped=setting.swapped)
    if setting.aligned < 1 and table.has_partner_N is not None:
        raise ConfigError(f"--aligned {setting.aligned}: {table.name} says itself which rows both parties have; leave it out")
    encoded = Latest(encode_ads)
    method_of = {method.name: method for method in methods() if not only or method.family in ("", *only)}

    def rows_of(seed: int) -> SplitData:
        return encoded(table, seed=seed, min_count=min_count, aligned=setting.aligned)

    def trial(seed: int, fusion: str, method: str) -> Row:
        return _run(_network(rows_of(seed), FUSIONS[fusion], setting, seed), method_of[method], seed)

    about = {"name": table.name, "rows": table.frame.height, "swapped": setting.swapped, **setting.plan.__dict__}
    return Experiment(
        name="fedads-4",
        cases=grid(seed=seeds, fusion=setting.fusions, method=method_of),
        trial=trial,
        page=fedads_defenses_page,
        setting=about | setting.facts(),
        about=lambda: _about(table, rows_of(seeds[-1]), setting),
    )


def _network(data: SplitData, fusion: tuple[int, ...], setting: Setting, seed: int) -> ObservedTraining:
    """Build FedAds' network (section 5.1.4)."""
    assert data.own_shape is not None
    normalised = setting.normalised
    with seeded(seed, "fedads"):
        bottom = TabularBottom(data.shape, embedding_width=EMBEDDING_WIDTH, hidden=FEATURE_BOTTOM, normalized=normalised)
        label_bottom = TabularBottom(data.own_shape, embedding_width=EMBEDDING_WIDTH, hidden=LABEL_BOTTOM, normalized=normalised)
        top = TabularTop(bottom.width + label_bottom.width, hidden=fusion, outputs=1)
    return ObservedTraining(bottom, LabelModel(top, bottom=label_bottom), data, setting.plan, seed=seed)


def _run(network: ObservedTraining, method: DefenseRow, seed: int) -> Row:
    labels_N = network.data.training_labels_N.long()
    *_, last = network.epochs(chain(method.defense))
    leaks = attack_figures(_all_rows(network), labels_N, (_LEAK,), seed=seed)
    leaks |= attack_figures(last.steps, labels_N, BESIDE, seed=seed)
    return {
        "test_auc": last.test_auc,
        "leak_auc": leaks[_LEAK]["balanced_accuracy"],
        "leak_folded": max(leaks[_LEAK]["balanced_accuracy"], 1 - leaks[_LEAK]["balanced_accuracy"]),
        "attacks": {name: figures["auc"] for name, figures in leaks.items()},  # the attacker orients them: .5 is a guess
    }


def _all_rows(network: ObservedTraining) -> tuple[StepView]:
    """Embed the training rows once more after training, as the feature party: all, or a quarter of a million of a large file."""
    rows_N, cut_ND = (torch.cat(parts) for parts in zip(*network.embed(most=KEPT_ROWS), strict=True))
    nothing_ND: Tensor = cut_ND[:, :0]
    own_N = torch.ones(len(rows_N), dtype=torch.bool)
    return (StepView(epoch=network.plan.epochs, rows_B=rows_N, own_B=own_N, received_BD=nothing_ND, sent_BD=cut_ND),)


def _about(table: TwoPartyTable, data: SplitData, setting: Setting) -> Row:
    plan = setting.plan
    return {
        "name": table.name,
        "training_rows": len(data.training),
        "test_rows": len(data.test),
        "positive_rate": float(data.training_labels_N.mean()),
        "label_party_columns": len(column_names(table.label_party)) + len(table.label_sequences),
        "feature_party_columns": len(column_names(table.feature_party)) + len(table.feature_sequences),
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "learning_rate": plan.learning_rate,
        **setting.facts(),
    }


# --- the page

ByMethod = dict[str, list[Row]]


def fedads_defenses_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``fedads_defenses_experiment`` next to the paper's table."""
    fusions = {fusion: groups(of, "method") for fusion, of in groups(rows, "fusion").items()}
    own, partner_count = about["label_party_columns"], about["feature_party_columns"]
    return Benchmark(
        title=f"FedAds, Table 4, on {about['name']}: {about['training_rows']:,} rows, {about['positive_rate']:.2%} positive",
        tables=[part(fusion, found) for fusion, found in fusions.items() for part in (_at_price, _table)],
        curves=[_prices(fusion, found) for fusion, found in fusions.items()],
        notes=[
            "LeakAUC: (TPR + TNR) / 2 of two clusters of the cut embeddings after training, the smaller one taken as positive.",
            "The paper prints changes only, and not the strengths of DP and Marvell; absolute values are ours alone.",
            "Symmetric is max(a, 1 - a), for an attacker whose smaller cluster is the other class; changes are of that.",
            "The other attacks read the last epoch's steps: AUC as the attacker orients its scores, .5 is a guess.",
            "Strongest is the best of all these attacks in each run, folded: a floor of what there is to be found.",
            "With one linear layer on top, cut gradients lie on one line: direction is the label, or length after MixPro.",
        ],
        facts={
            "columns": f"{own} of the label party, {partner_count} of the feature party",
            "test rows": f"{about['test_rows']:,}",
            **(
                {"aligned": f"{about['aligned']:.0%} of the training rows; the others are left out"} if "aligned" in about else {}
            ),
            **({"networks": "batch normalisation in both bottoms"} if "normalised" in about else {}),
            "optimiser": f"Adam {about['learning_rate']:g}, batch {about['batch_size']}, epochs {about['epochs']}",
            "seeds": seeds_of(rows),
        },
    )


def strongest_leak(row: Row) -> float:
    """Return the figure of a run's best attack. The attacker need not know which attack that is."""
    return float(max(max(auc, 1 - auc) for auc in (row["leak_folded"], *row["attacks"].values())))


FIGURES: Mapping[str, Callable[[Row], float]] = {
    "symmetric LeakAUC": at("leak_folded"),
    **{name: at("attacks", name) for name in BESIDE},
    "strongest": strongest_leak,
}
"""Figures of a run: how well an attack inferred the labels."""


def price(rows: Sequence[Row], base: Sequence[Row]) -> Spread:
    """Return the loss of test AUC against no defence, with the same seed."""
    return spread(paired(base, rows, "test_auc"))


def _table(fusion: str, found: ByMethod) -> ResultTable:
    base, rows = found[NONE], list[list[Cell]]()
    before = np.mean([row["leak_folded"] for row in base])
    for method in methods():
        if method.name not in found:
            continue
        rows_of_method = found[method.name]
        # the change of the means, because a ratio for each seed would divide by noise
        changed = 100 * float(np.mean([row["leak_folded"] for row in rows_of_method]) / before - 1)
        leaks = [method.paper_change, changed, over_seeds(rows_of_method, "leak_auc"), over_seeds(rows_of_method, "leak_folded")]
        utility = [method.paper_auc, over_seeds(rows_of_method, "test_auc"), price(rows_of_method, base)]
        rows.append([method.name, *leaks, *utility, *(over_seeds(rows_of_method, FIGURES[name]) for name in BESIDE)])
    columns = ["method", "paper, change %", "change %", "LeakAUC", "symmetric", "paper, test AUC", "test AUC", "price", *BESIDE]
    note = f"Between both parties' embeddings and the output: {ON_TOP[fusion]}. Price: test AUC against no defence, same seed."
    return ResultTable(name=f"Table 4, {fusion} on top", columns=columns, rows=rows, note=note)


def _at_price(fusion: str, found: ByMethod) -> ResultTable:
    rows: list[list[Cell]] = [[NONE, "", *(over_seeds(found[NONE], figure) for figure in FIGURES.values())]]
    rows += [[family, *at_price(found, family)] for family in _families(found)]
    note = (
        f"What each defence leaves where it costs {PRICE:g} of test AUC, on a line between the two strengths around that price; "
        f"none where no strength tried costs so much. On top: {ON_TOP[fusion]}."
    )
    return ResultTable(name=f"At equal utility, {fusion} on top", columns=["defence", "strength", *FIGURES], rows=rows, note=note)


def at_price(found: ByMethod, family: str, *, price: float = PRICE) -> list[Cell]:
    """Return a defence's figures if it costs ``price`` of test AUC, interpolated between the two strengths around it.

    The strengths go from weak to strong, by the means over seeds. The cells are the two strengths and each figure. If no strength
    costs that much, they are the highest price and no figures.
    """
    steps = [(name, {row["seed"]: row for row in found[name]}) for name in _ladder(family)]
    base = steps[0][1]
    costs = [float(np.mean([base[seed]["test_auc"] - row["test_auc"] for seed, row in step.items()])) for _, step in steps]
    for (name, weaker), (other, stronger), less, more in zip(steps, steps[1:], costs, costs[1:], strict=False):
        if less <= price <= more and more > less:
            share = (price - less) / (more - less)
            both = [(weaker[seed], stronger[seed]) for seed in base]
            cells = [
                spread((1 - share) * figure(weak) + share * figure(strong) for weak, strong in both)
                for figure in FIGURES.values()
            ]
            return [f"{name} to {other}", *cells]
    return [f"at most {max(costs):.4f}", *(None for _ in FIGURES)]


def _families(found: ByMethod) -> list[str]:
    """List the defences that were run."""
    return [family for family in LADDERS if _ladder(family)[-1] in found]


def _ladder(family: str) -> list[str]:
    """List a defence's rows, from none to the strongest."""
    return [method.name for method in methods() if method.family in ("", family)]


def _prices(fusion: str, found: ByMethod) -> Curve:
    def line(family: str) -> list[tuple[float, float]]:
        steps = [found[name] for name in _ladder(family)]
        return [(price(rows, found[NONE]).value, spread(map(strongest_leak, rows)).value) for rows in steps]

    return Curve(
        name=f"Leak against price, {fusion} on top",
        x="test AUC given up",
        y="AUC of the strongest attack",
        series=[Series.of(family, line(family)) for family in _families(found)],
    )
