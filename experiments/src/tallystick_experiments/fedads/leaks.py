"""What unaligned rows add to what a feature party can tell of the labels, and what they take away: both runs audited.

The runs are the product's: simulated jobs with ``audit: true`` by a contract's defaults, which differ in ``unaligned.method``
alone. The feature party has the same rows in both, so the attackers score the same labels. Without a defence gradients tell all
labels either way, so each is also run behind Marvell, where a difference can be seen.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tallystick.results import Result
from tallystick_experiments.audited import audited
from tallystick_experiments.fedads.data import AdTable
from tallystick_experiments.fedads.unaligned_data import ALIGNED, read_both_parties
from tallystick_experiments.grid import Case, Keeping, run_cases
from tallystick_experiments.stats import change, summarize_seeds

METHODS = ("none", "warm-start", "multi-task", "average")
DEFENSES: Mapping[str, list[dict[str, Any]]] = {"no defence": [], "Marvell, s = 8": [{"method": "marvell", "power": 8.0}]}
TEST = "test AUC of the model"
EPOCHS = "epochs trained"
STRONGEST = "the strongest attack"


def run(
    *,
    data: Path,
    seeds: Sequence[int],
    methods: Sequence[str] = METHODS,
    aligned: float = ALIGNED,
    limit: int | None = None,
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Train and attack by every method once per seed, with and without a defence.

    Args:
        data: as Table 3's.
        seeds: of the rows that the feature party has, and of the contract.
        methods: the contract's; the first is what the others are compared with.
        aligned: share of the rows that the feature party has, of those for test too.
        limit: draw so many rows of each file at random.
        keeping: of the runs; nowhere if left out.

    Raises DataError for data that is absent or of another format.
    """
    table, keeping = read_both_parties(data, limit=limit), keeping or Keeping()
    about = {"name": table.name, "rows": table.frame.height, "aligned": aligned}

    def case(defense: str, method: str, seed: int) -> Case:
        return Case(
            key={"defense": defense, "method": method, "seed": seed},
            trial=lambda: {"figures": _figures_of(_job(table, method, DEFENSES[defense], seed, aligned))},
            title=f"seed {seed}: {defense}, {method}",
        )

    cases = [case(defense, method, seed) for seed in seeds for defense in DEFENSES for method in methods]
    runs = run_cases(cases, keeping, about, total=len(cases))
    return report_of(runs, data=about)


def report_of(runs: Sequence[dict[str, Any]], *, data: dict[str, Any]) -> dict[str, Any]:
    """Each figure by method and defence."""
    methods, seeds = (list(dict.fromkeys(each[name] for each in runs)) for name in ("method", "seed"))
    rows = {name: _tabulate([each for each in runs if each["defense"] == name], methods) for name in DEFENSES}
    return {"benchmark": "fedads-leaks", "data": data, "seeds": seeds, "rows": rows, "runs": list(runs)}


def _job(table: AdTable, method: str, defense: list[dict[str, Any]], seed: int, aligned: float) -> Result:
    frame = table.frame.collect()
    has_partner = pl.Series(np.random.default_rng(seed).random(frame.height) < aligned)
    contract = {"target": {"type": "binary"}, "seed": seed, "unaligned": {"method": method}, "defense": defense}
    columns = {"label": table.label_party, "feature": table.feature_party}
    sequences = {"label": table.label_sequences, "feature": table.feature_sequences}
    return audited(frame, table.label, columns, contract=contract, has_partner=has_partner, sequences=sequences)


def _figures_of(result: Result) -> dict[str, float]:
    """Of a run: each attack's symmetric AUC, the strongest but for those that know half of all labels, and the model's AUC."""
    assert result.training is not None
    attacks = result.label_audit.attacks
    found = {attack.name: attack.symmetric_auc for attack in attacks if attack.symmetric_auc is not None}
    strongest = max(found[attack.name] for attack in attacks if attack.name in found and not attack.upper_bound)
    joint = result.joint["auc"]["value"]
    assert joint is not None, "the test rows have both classes"
    return {TEST: joint, EPOCHS: float(len(result.training.history)), STRONGEST: strongest, **found}


def _tabulate(runs: Sequence[dict[str, Any]], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Means and intervals of each figure by method, and differences to the first method of the same seed."""
    of = {method: [{**each["figures"], "seed": each["seed"]} for each in runs if each["method"] == method] for method in methods}
    base = of[methods[0]]
    names = [name for name in base[0] if name != "seed" and all(name in each["figures"] for each in runs)]
    return [
        {
            "figure": name,
            "by_method": {method: summarize_seeds([each[name] for each in found]) for method, found in of.items()},
            "change": {method: change(found, base, itemgetter(name)) for method, found in of.items() if method != methods[0]},
        }
        for name in names
    ]
