"""Every attack on labels and on columns against every defence, on public tables with two classes, several, and numbers.

Each cell is a run of the product: a simulated job with ``audit: true``, and both parties' attacks on all that crossed the cut.
"""

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2
from operator import itemgetter
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import parse_party
from tallystick.data.lazy import LazyTable
from tallystick.defense_trials.partner import SimulatedPartner
from tallystick.defense_trials.trials import Candidate, candidate_trials
from tallystick.defenses.registry import DEFENSES
from tallystick.errors import ConfigError, DataError
from tallystick.metrics import METRICS
from tallystick.results import AttackResult, CutReads, Result, above_guess
from tallystick.simulation import simulate
from tallystick.watcher import Silent
from tallystick_experiments.grid import Case, Keeping, run_cases
from tallystick_experiments.label_leakage.own_model import attacked_with_model
from tallystick_experiments.quality.tables import MOST_ROWS, PublicTable, load_table
from tallystick_experiments.stats import change, summarize_seeds

NONE, NOTHING_TOLD = "none", "knowing no label"
KEY, LABEL, FEATURE = "row", "label", "feature"
CREDIT = "credit-default"  # comes from two parties: the second one's columns begin with z
STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "marvell": (8.0,),
    "isotropic": (1.0,),
    "mixpro": (0.866,),
    "gradient-compression": (0.1,),
    "gaussian": (8.0,),
    "distance-correlation": (0.3,),
    "ladsg": (0.5,),
    "label-dp": (1.0,),
    "label-dp-prior": (1.0,),
    "gaussian-labels": (3.0,),
    "cut-after": (2.0, 3.0),
}
"""What is tried of each defence of labels; of those that allow two classes only, or several, where they do."""
OF_COLUMNS: Mapping[str, tuple[float, ...]] = {
    "cut-width": (4.0,),
    "gaussian-embeddings": (100.0,),
    "feature-distance-correlation": (0.1,),
    "quantized-embeddings": (3.0,),
    "reconstruction-penalty": (0.1,),
    "no-gradients": (512.0,),
}
"""What is tried besides where it is asked for by name: defences of columns, and no gradient at all."""
STEPS = 40  # of an epoch, about
VIEWS: Mapping[str, tuple[Collection[CutReads], bool]] = {
    "gradients, no label": ({"cut gradients"}, False),
    "gradients, few labels": ({"cut gradients"}, True),
    "embeddings, no label": ({"cut embeddings"}, False),
    "embeddings, few labels": ({"cut embeddings"}, True),
    "everything, no label": (set(get_args(CutReads)), False),
    "everything, few labels": (set(get_args(CutReads)), True),
}
"""What an attacker may read, and whether it is told labels: then it may run what needs none too."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How the networks of the table are trained, in about 40 steps an epoch; everything else is a contract's default."""

    epochs: int = 8
    most_rows: int = MOST_ROWS

    def contract(self, table: PublicTable) -> Contract:
        """A contract of two parties without a defence."""
        several = {"classes": table.classes} if table.target == "multiclass" else {}
        batch_size = min(max(2 ** round(log2(0.7 * table.frame.height / STEPS)), 16), 512)
        return parse_contract(
            {
                "name": "leaks",
                "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
                "alignment": {"keys": [{"name": KEY}]},
                "target": {"type": table.target, **several},
                "training": {"epochs": self.epochs, "batch_size": batch_size, "patience": None},
                "evaluation": {"own_columns_baseline": False, "importance": {"own_columns": False}},
            }
        )


def run(
    *,
    tables: Sequence[str],
    data: Path | None,
    seeds: Sequence[int],
    terms: Terms | None = None,
    only: Sequence[str] = (),
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Train every table with every defence, once per seed, on one thread, and attack what crossed the cut.

    Args:
        tables: names of ``bench quality``'s public tables.
        data: the folder of public files, for those that no package brings.
        seeds: of split, initialisation, batches and noise, and of the shares of columns.
        terms: of the training.
        only: names of defences with their strengths, such as ``marvell 8``; all of them if empty.
        keeping: of the runs; nowhere if left out.

    Raises ConfigError for an unknown defence or one that a table's target does not allow, DataError for data that is absent.
    """
    terms, keeping = terms or Terms(), keeping or Keeping()
    loaded = [load_table(name, data, most=terms.most_rows) for name in tables]

    def cases() -> Iterator[Case]:
        for seed in seeds:  # seed after seed, so that what was interrupted is a whole picture
            for table in loaded:
                partner, tried = trials(table, terms, seed=seed, only=only)
                for candidate in tried:
                    yield Case(
                        key={"table": table.name, "seed": seed, "defense": candidate.name},
                        trial=partial(attacked_run, candidate, partner, seed=seed),
                        title=f"{table.name}, seed {seed}: {candidate.name}",
                    )

    setting = {"epochs": terms.epochs} | ({} if terms.most_rows == MOST_ROWS else {"most_rows": terms.most_rows})
    runs = run_cases(cases(), keeping, setting)
    return {
        "benchmark": "label-leakage-defenses",
        "data": {
            table.name: {"rows": table.frame.height, "classes": table.classes, "target": table.target, "source": table.source}
            for table in loaded
        },
        "epochs": terms.epochs,
        "seeds": list(seeds),
        "tables": {table.name: rows_of([each for each in runs if each["table"] == table.name]) for table in loaded},
        "runs": runs,
    }


def trials(table: PublicTable, terms: Terms, *, seed: int, only: Sequence[str] = ()) -> tuple[SimulatedPartner, list[Candidate]]:
    """The table shared out between two parties, and a contract per defence that its target allows."""
    contract = terms.contract(table)
    names = (*table.columns.numeric, *table.columns.categorical)
    _, theirs = table.halves(seed)
    given = [*theirs.numeric, *theirs.categorical]
    if table.name == CREDIT:
        given = [name for name in names if name.startswith("z")]
    party = parse_party(
        {
            "party": LABEL,
            "table": {"path": "table.parquet"},  # never read: the frame is at hand
            "keys": {KEY: KEY},
            "label": table.label,
            "features": {"numeric": list(table.columns.numeric), "categorical": list(table.columns.categorical)},
        },
        folder=Path(),
        source=table.name,
    )
    frame = LazyTable.of(table.frame.with_row_index(KEY))
    partner = SimulatedPartner.of(contract, party, frame, split=given, rows=table.frame.height, seed=seed)
    named = {**STRENGTHS, **OF_COLUMNS} if only else STRENGTHS
    allowed = [each for each in named.items() if each[0] not in DEFENSES or table.target in DEFENSES[each[0]].targets]
    every = candidate_trials(contract, partner, allowed)
    if unknown := sorted(set(only) - {each.name for each in every}):
        raise ConfigError(f"--only {unknown[0]}: no such defence of {table.name}; choose from {', '.join(e.name for e in every)}")
    return partner, [each for each in every if not only or each.name in only]


def attacked_run(candidate: Candidate, partner: SimulatedPartner, *, seed: int) -> dict[str, Any]:
    """Run a contract, audit included, and give the test metric and each attack's figures."""
    started = time.perf_counter()
    contract = parse_contract(candidate.contract.model_dump(mode="json") | {"seed": seed})
    with tempfile.TemporaryDirectory(prefix="tallystick-") as folder:
        result: Result = simulate(contract, partner.tables, partner.columns, folder=Path(folder), watcher=Silent())
        with_model: dict[str, AttackResult] = {}
        why_not = []
        if contract.target.type != "regression" and contract.sends_gradients:
            try:
                with_model = {attack.name: attack for attack in attacked_with_model(contract, partner, Path(folder))}
            except DataError as error:  # as an audit does, which goes on without
                why_not = [f"attacks with the feature party's model: {error}"]
    metric = next(iter(METRICS[contract.target.type]))
    audit = result.label_audit
    return {
        "defense": candidate.name,
        "test": result.joint[metric]["value"],
        "attacks": {attack.name: _figures(attack) for attack in (*audit.attacks, *with_model.values())},
        "not_measured": [line for line in audit.not_measured if line.partition(",")[0] not in with_model] + why_not,
        "columns": {str(mean.known): mean.value for each in result.sections.features for mean in each.means},
        "seconds": time.perf_counter() - started,
    }


def _figures(attack: AttackResult) -> dict[str, Any]:
    """Of classes the AUC whichever way round; of numbers, which attacks rank, Spearman whichever way round."""
    ranks = attack.spearman is not None
    return {
        "symmetric_auc": attack.spearman if ranks else attack.symmetric_auc,
        "chance": attack.spearman_chance if ranks else attack.symmetric_chance,
        "auc": attack.auc,
        "chance_auc": attack.chance,
        "reads": attack.reads,
        "told": not attack.view.endswith(NOTHING_TOLD),
        "upper_bound": attack.upper_bound,
    }


def rows_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per defence: the test metric, its change with the same seed, the strongest attack of each view, and every attack."""
    bare = [each for each in runs if each["defense"] == NONE]
    rows = []
    for name in dict.fromkeys(each["defense"] for each in runs):
        mine = [each for each in runs if each["defense"] == name]
        attacks = list(dict.fromkeys(attack for each in mine for attack in each["attacks"]))
        rows.append(
            {
                "defense": name,
                "test": summarize_seeds([each["test"] for each in mine]),
                "change": change(mine, bare, itemgetter("test")),
                "strongest": {view: _strongest(mine, *of) for view, of in VIEWS.items()},
                "attacks": {attack: _over_seeds(mine, attack) for attack in attacks},
                "chance": {attack: _over_seeds(mine, attack, "chance")["mean"] for attack in attacks},
                "columns": _columns_over_seeds(mine),
            }
        )
    return rows


def _columns_over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By how many rows the attacker knows: how much of a column the strongest attack rebuilt, the mean over columns."""
    counts = sorted({known for each in runs for known in each.get("columns", {})}, key=int)
    return {known: summarize_seeds([each["columns"][known] for each in runs if known in each["columns"]]) for known in counts}


def _over_seeds(runs: Sequence[dict[str, Any]], attack: str, figure: str = "symmetric_auc") -> dict[str, float]:
    return summarize_seeds([each["attacks"][attack][figure] for each in runs if attack in each["attacks"]])


def _strongest(runs: Sequence[dict[str, Any]], reads: Collection[str], told: bool) -> dict[str, Any] | None:
    """Of the attacks on these views that somebody could run, the one that over seeds comes furthest from a guess to certainty."""
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for each in runs for name in each["attacks"]):
        found = [each["attacks"][name] for each in runs if name in each["attacks"]]
        if found[0]["reads"] in reads and (told or not found[0]["told"]) and not found[0]["upper_bound"]:
            means[name] = float(np.mean([above_guess(each["symmetric_auc"], each["chance"]) for each in found]))
    if not means:
        return None
    best = max(means, key=means.__getitem__)
    return {"attack": best, **_over_seeds(runs, best)}
