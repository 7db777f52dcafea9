"""Measure how unaligned rows change what a feature party can infer about the labels, with both runs audited.

The runs are the product's: simulated jobs with ``audit: true`` and a contract's defaults, which differ only in
``unaligned.method``. The feature party has the same rows in both, so the attackers score the same labels. Without a defence,
gradients reveal all labels in either run, so each is also run behind Marvell, where a difference can be seen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tallystick_experiments.audited import audited
from tallystick_experiments.catalogue.ads import read_by_kind
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.fedads.unaligned_data import ALIGNED
from tallystick_experiments.grid import grid
from tallystick_experiments.page import Benchmark, seeds_of
from tallystick_experiments.pivot import Pivot
from tallystick_experiments.stats import Row, groups, melted

METHODS = ("none", "warm-start", "multi-task", "average")
DEFENSES: Mapping[str, list[dict[str, Any]]] = {"no defence": [], "Marvell, s = 8": [{"method": "marvell", "power": 8.0}]}
TEST = "test AUC of the model"
EPOCHS = "epochs trained"
STRONGEST = "the strongest attack"


def fedads_leaks_experiment(
    *,
    data: Path,
    seeds: Sequence[int],
    methods: Sequence[str] = METHODS,
    aligned: float = ALIGNED,
    limit: int | None = None,
) -> Experiment:
    """Train and attack with every method once per seed, with and without a defence.

    Raises DataError for data that is missing or of another format.
    """
    table = read_by_kind(data, limit=limit)
    about = {"name": table.name, "rows": table.frame.height, "aligned": aligned}

    def trial(seed: int, defense: str, method: str) -> Row:
        frame = table.frame.collect()
        result = audited(
            frame,
            table.label,
            {"label": table.label_party, "feature": table.feature_party},
            contract={
                "target": {"type": "binary"},
                "seed": seed,
                "unaligned": {"method": method},
                "defense": DEFENSES[defense],
            },
            has_partner=pl.Series(np.random.default_rng(seed).random(frame.height) < aligned),
            sequences={"label": table.label_sequences, "feature": table.feature_sequences},
        )
        # A run's figures: each attack's symmetric AUC, the strongest of those that do not know half of all labels, and the
        # model's AUC
        assert result.training is not None
        attacks = result.label_audit.attacks
        figures = {attack.name: attack.symmetric_auc for attack in attacks if attack.symmetric_auc is not None}
        strongest = max(figures[attack.name] for attack in attacks if attack.name in figures and not attack.upper_bound)
        joint = result.joint["auc"]["value"]
        assert joint is not None, "the test rows have both classes"
        return {"figures": {TEST: joint, EPOCHS: float(len(result.training.history)), STRONGEST: strongest, **figures}}

    cases = grid(seed=seeds, defense=DEFENSES, method=methods)
    return Experiment(name="fedads-leaks", cases=cases, trial=trial, page=fedads_leaks_page, setting=about, about=about)


def fedads_leaks_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show each figure that every run has, by method and defence, and its difference from the first method's."""
    tables, first = [], rows[0]["method"]
    for defense, of in groups(rows, "defense").items():
        shared = [name for name in of[0]["figures"] if all(name in row["figures"] for row in of)]
        figures = [row for row in melted(of, "figures", name="figure") if row["figure"] in shared]
        tables += [
            Pivot(
                name=f"{defense}: symmetric AUC of each attack",
                rows="figure",
                columns="method",
                figure="value",
                note=f"By unaligned.method; the feature party has {about['aligned']:.0%} of the rows, the same for all methods.",
            ).table(figures),
            Pivot(
                name=f"{defense}: change against {first}",
                rows="figure",
                columns="method",
                figure="value",
                paired=first,
                note="Of the same seed: the same rows, parts and first weights.",
            ).table(figures),
        ]
    return Benchmark(
        title=f"What unaligned rows add to the leak, on {about['name']}: {about['rows']:,} rows",
        tables=tables,
        notes=[
            "max(AUC, 1 - AUC): .5 is a guess, 1 is every label. Attackers score aligned rows: of others nothing crosses.",
            "The strongest attack leaves out those that know half of all labels.",
            "A floor: what these attackers found, never that nothing else can be found.",
        ],
        facts={"seeds": seeds_of(rows)},
    )
