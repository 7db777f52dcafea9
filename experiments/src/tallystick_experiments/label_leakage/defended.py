"""Run every attack on labels and columns against every defence, on public tables with two classes, several, and numbers.

Each cell is a run of the product: a simulated job with ``audit: true``, with both parties' attacks on everything that crossed.
"""

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log2
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from typer import Option

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import parse_party
from tallystick.defenses.defense_table import defense_named
from tallystick.errors import ConfigError, DataError
from tallystick.metrics import METRICS
from tallystick.results import AttackResult, CutReads, Result, above_guess
from tallystick.simulation import simulate
from tallystick.tables.lazy_table import LazyTable
from tallystick.trials.partner import SimulatedPartner
from tallystick.trials.trials import Candidate, candidate_trials
from tallystick.watcher import Silent
from tallystick_experiments.catalogue.public import MOST_ROWS, PublicTable, load_table
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import Latest
from tallystick_experiments.label_leakage.own_model import attacked_with_model
from tallystick_experiments.options import several
from tallystick_experiments.page import Benchmark, Cell, ResultTable, counted, seed_count, seeds_of
from tallystick_experiments.stats import Row, Spread, at, change, groups, over_seeds

NONE, NOTHING_TOLD = "none", "knowing no label"
KEY, LABEL, FEATURE = "row", "label", "feature"
CREDIT = "credit-default"  # from two parties: the second one's columns begin with z
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
"""Strengths of each defence of labels. A defence that allows only two classes, or several, is tried only on these."""
OF_COLUMNS: Mapping[str, tuple[float, ...]] = {
    "cut-width": (4.0,),
    "gaussian-embeddings": (100.0,),
    "feature-distance-correlation": (0.1,),
    "quantized-embeddings": (3.0,),
    "reconstruction-penalty": (0.1,),
    "no-gradients": (512.0,),
}
"""Defences of columns, and no gradient at all. They are tried only if they are named."""
STEPS = 40  # about this many steps per epoch
VIEWS: Mapping[str, tuple[Collection[CutReads], bool]] = {
    "gradients, no label": ({"cut gradients"}, False),
    "gradients, few labels": ({"cut gradients"}, True),
    "embeddings, no label": ({"cut embeddings"}, False),
    "embeddings, few labels": ({"cut embeddings"}, True),
    "everything, no label": (set(get_args(CutReads)), False),
    "everything, few labels": (set(get_args(CutReads)), True),
}
"""What an attacker may read, and whether it knows labels. If so, it may also run attacks that need none."""


@dataclass(frozen=True, kw_only=True)
class MatrixPlan:
    """Plan the training of the table's networks, with about 40 steps an epoch. Everything else is a contract's default."""

    epochs: int = 8
    most_rows: int = MOST_ROWS

    def contract(self, table: PublicTable) -> Contract:
        """Return a contract of two parties without a defence."""
        batch_size = min(max(2 ** round(log2(0.7 * table.frame.height / STEPS)), 16), 512)
        return parse_contract(
            {
                "name": "leaks",
                "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
                "alignment": {"keys": [{"name": KEY}]},
                "target": table.contract_target,
                "training": {"epochs": self.epochs, "batch_size": batch_size, "patience": None, "folds": 1},
                "evaluation": {"own_columns_baseline": False, "importance": {"own_columns": False}},
            }
        )


def label_defenses_experiment(
    *,
    data: Annotated[
        Path | None, Option(help="Folder of public files (docs/results/quality.md); without it, packages' tables.")
    ] = None,
    tables: Annotated[Sequence[str], several("Tables, with commas between.")] = (CREDIT, "criteo", "frogs"),
    seeds: Annotated[int, Option(help="Runs per cell.", min=1)] = 5,
    first_seed: Annotated[int, Option(help="The first seed; others than those that a setting was chosen by.", min=0)] = 1,
    epochs: Annotated[int, Option(help="Of every training run.", min=1)] = 8,
    rows: Annotated[int, Option(help="Rows that are drawn from a larger table.", min=100)] = MOST_ROWS,
    feature_parties: Annotated[int, Option(help="Share the feature party's columns out among so many.", min=1)] = 1,
    only: Annotated[
        Sequence[str],
        several("Defences with their strengths, with semicolons between; all of labels if empty.", separator=";"),
    ] = (),
) -> Experiment:
    """Train every table with every defence, once per seed, on one thread, and attack everything that crossed the cut.

    Raises ConfigError for an unknown defence or one that a table's target does not allow, DataError for missing data.
    """
    terms = MatrixPlan(epochs=epochs, most_rows=rows)
    loaded = {table.name: table for name in tables for table in [load_table(name, data, most=terms.most_rows)]}

    shared_out = Latest(partial(trials, terms=terms, only=only))

    def trial(seed: int, table: str, defense: str) -> Row:
        partner, candidates = shared_out(loaded[table], seed=seed)
        return attacked_run(candidates[defense], partner, seed=seed, feature_parties=feature_parties)

    cases = [
        {"table": name, "seed": seed, "defense": defense}
        for seed in range(first_seed, first_seed + seeds)  # seed by seed, so that an interrupted sweep shows a whole picture
        for name, table in loaded.items()
        for defense in trials(table, seed=seed, terms=terms, only=only)[1]
    ]
    setting = {"epochs": terms.epochs} | ({} if terms.most_rows == MOST_ROWS else {"most_rows": terms.most_rows})
    several = {"feature_parties": feature_parties} if feature_parties > 1 else {}
    facts = {
        name: {"rows": table.frame.height, "classes": table.classes, "target": table.target, "source": table.source}
        for name, table in loaded.items()
    }
    return Experiment(
        name="label-leakage-defenses",
        cases=cases,
        trial=trial,
        page=label_defenses_page,
        setting=setting | several,
        about={"data": facts, "epochs": terms.epochs, **several},
    )


def trials(
    table: PublicTable, *, terms: MatrixPlan, seed: int, only: Sequence[str] = ()
) -> tuple[SimulatedPartner, dict[str, Candidate]]:
    """Return the table divided between two parties, and a contract per defence that its target allows, by its name."""
    contract = terms.contract(table)
    names = (*table.columns.numeric, *table.columns.categorical)
    _, partner_half = table.halves(seed)
    partner_names = [*partner_half.numeric, *partner_half.categorical]
    if table.name == CREDIT:
        partner_names = [name for name in names if name.startswith("z")]
    party = parse_party(
        {
            "party": LABEL,
            "table": {"path": "table.parquet"},  # never read: the frame is in memory
            "keys": {KEY: KEY},
            "label": table.label,
            "features": {"numeric": list(table.columns.numeric), "categorical": list(table.columns.categorical)},
        },
        folder=Path(),
        source=table.name,
    )
    frame = LazyTable.of(table.frame.with_row_index(KEY))
    partner = SimulatedPartner.of(contract, party, frame, split=partner_names, rows=table.frame.height, seed=seed)
    strengths = {**STRENGTHS, **OF_COLUMNS} if only else STRENGTHS
    classes = {name: defense_named(name) for name in strengths}
    allowed = [each for each in strengths.items() if (of := classes[each[0]]) is None or table.target in of.targets]
    every = candidate_trials(contract, partner, allowed)
    if unknown := sorted(set(only) - {each.name for each in every}):
        raise ConfigError(f"--only {unknown[0]}: no such defence of {table.name}; choose from {', '.join(e.name for e in every)}")
    return partner, {each.name: each for each in every if not only or each.name in only}


def among(partner: SimulatedPartner, parties: Sequence[str]) -> SimulatedPartner:
    """Deal the feature party's columns out in turn to these parties, of which the first is that party.

    Raises ConfigError for more parties than columns.
    """
    if len(parties) > len(partner.given):
        raise ConfigError(f"--feature-parties {len(parties)}: there are {len(partner.given)} columns to share out")
    table, columns = partner.tables[partner.feature], partner.columns[partner.feature]
    tables, listed = dict(partner.tables), dict(partner.columns)
    for place, name in enumerate(parties):
        dealt = partner.given[place :: len(parties)]
        tables[name] = table.select(KEY, *dealt)
        features = {kind: [column for column in of_kind if column in dealt] for kind, of_kind in columns["features"].items()}
        listed[name] = {**columns, "features": features}
    return replace(partner, tables=tables, columns=listed)


def attacked_run(candidate: Candidate, partner: SimulatedPartner, *, seed: int, feature_parties: int = 1) -> Row:
    """Run a contract with its audit, and return the test metric and each attack's figures.

    With several feature parties, a figure is that of the party at which the attack finds most.
    """
    started = time.perf_counter()
    changes: dict[str, Any] = {"seed": seed}
    if feature_parties > 1:
        parties = [FEATURE, *(f"{FEATURE}-{number}" for number in range(2, feature_parties + 1))]
        partner = among(partner, parties)
        changes["parties"] = {LABEL: {"role": "label"}, **{name: {"role": "feature"} for name in parties}}
    contract = parse_contract(candidate.contract.model_dump(mode="json") | changes)
    with tempfile.TemporaryDirectory(prefix="tallystick-") as folder:
        # Nothing leaves the process, so a job's secrets follow from the seed, and a row can be made again.
        result: Result = simulate(
            contract, partner.tables, partner.columns, folder=Path(folder), watcher=Silent(), secret_seed=seed
        )
        with_model: dict[str, AttackResult] = {}
        why_not = []
        if contract.target.type != "regression" and contract.sends_gradients:
            try:
                with_model = {attack.name: attack for attack in attacked_with_model(contract, partner, Path(folder))}
            except DataError as error:  # as in an audit, which continues without it
                why_not = [f"attacks with the feature party's model: {error}"]
    metric = next(iter(METRICS[contract.target.type]))
    audit = result.label_audit
    # Show how well the feature party's columns are rebuilt, by the number of known rows; of several parties, the one that loses
    # most
    best_means: dict[str, float] = {}
    for mean in (mean for each in result.sections.features for mean in each.means):
        best_means[str(mean.known)] = max(mean.value, best_means.get(str(mean.known), mean.value))
    best_of_name: dict[str, Row] = {}
    for attack in [*audit.attacks, *with_model.values()]:
        figures = _figures(attack)
        if attack.name not in best_of_name or _above_guess(figures) > _above_guess(best_of_name[attack.name]):
            best_of_name[attack.name] = figures
    return {
        "test": result.joint[metric]["value"],
        "attacks": best_of_name,
        "not_measured": [line for line in audit.not_measured if line.partition(",")[0] not in with_model] + why_not,
        "columns": best_means,
        "seconds": time.perf_counter() - started,
    }


def _above_guess(figures: Row) -> float:
    return above_guess(figures["symmetric_auc"], figures["chance"])


def _figures(attack: AttackResult) -> Row:
    """Return the AUC of classes, in either direction.

    For numbers, which attacks rank, return Spearman's correlation in either direction.
    """
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


# --- the page


def label_defenses_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``label_defenses_experiment``."""
    by_table = [(name, about["data"][name], groups(of, "defense")) for name, of in groups(rows, "table").items()]
    return Benchmark(
        title=f"Label attacks against defences: {', '.join(about['data'])}, {seed_count(rows)}",
        tables=[
            table
            for name, facts, of in by_table
            for table in (_strongest(name, facts, of), *_columns(name, of), _every(name, of))
        ],
        notes=[
            "Leak AUCs are max(a, 1 - a), of batches or of the whole run: for a guess above .5, as the last column says. Where "
            "the label is a number, they are Spearman's rank correlation, whichever way round, and the test figure is RMSE.",
            "Strongest: of the attacks on that view that somebody could run, the one that comes furthest from a guess to "
            "certainty. Chosen after seeing them all, so it leans upwards a little.",
            "All rows but cut-after have the cut after the first of three hidden layers, where moving it (layer adjustment, "
            "arXiv 2603.18680) ends; cut-after 2 and 3 are what it is moved from.",
            "Small figures below a mean are Student's 95 % interval of it over seeds. Every figure is a floor.",
        ],
        facts={
            "model": "a contract's default; half of the columns at each party, of credit-default as its files have them",
            "training": f"{counted(about['epochs'], 'epoch')} of about 40 steps, AdamW 1e-3, cosine",
            **(
                {"feature parties": f"{about['feature_parties']}; of each attack the seat in which it finds most"}
                if "feature_parties" in about
                else {}
            ),
            "seeds": seeds_of(rows),
        },
    )


ByDefense = Mapping[str, Sequence[Row]]  # rows of one table


def _leak(rows: Sequence[Row], attack: str, figure: str = "symmetric_auc") -> Spread | None:
    return over_seeds(rows, at("attacks", attack, figure))


def _strongest(name: str, about: Row, found: ByDefense) -> ResultTable:
    cells: list[list[Cell]] = []
    for defense, rows in found.items():
        best = [strongest_attack(rows, *of) for of in VIEWS.values()]
        pairs_of_cells = [cell for attack in best for cell in (attack, _leak(rows, attack) if attack else None)]
        cells.append([defense, over_seeds(rows, "test"), change(rows, found.get(NONE, []), "test"), *pairs_of_cells])
    ranked = about["target"] == "regression"
    test, leak = ("test RMSE", "Spearman") if ranked else ("test AUC", "AUC")
    columns = ["defence", test, "change", *(head for view in VIEWS for head in (view, leak))]
    note = f"{about['rows']:,} rows" + ("." if ranked else f", {about['classes']} classes.")
    return ResultTable(name=f"{name}: the strongest attack of each view", note=note, columns=columns, rows=cells)


def strongest_attack(rows: Sequence[Row], reads: Collection[str], told: bool) -> str | None:
    """Choose the attack that comes furthest from a guess to certainty, over seeds.

    It is one of the attacks on these views that somebody could run.
    """
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for row in rows for name in row["attacks"]):
        figures = [row["attacks"][name] for row in rows if name in row["attacks"]]
        if figures[0]["reads"] in reads and (told or not figures[0]["told"]) and not figures[0]["upper_bound"]:
            means[name] = float(np.mean([_above_guess(each) for each in figures]))
    return max(means, key=means.__getitem__, default=None)


def _columns(name: str, found: ByDefense) -> list[ResultTable]:
    """Return how well the feature party's columns are rebuilt, by the number of its rows that the label party knows."""
    counts = sorted({known for rows in found.values() for row in rows for known in row.get("columns", {})}, key=int)
    if not counts:
        return []
    return [
        ResultTable(
            name=f"{name}: columns rebuilt",
            note="Mean over columns of what the strongest attack rebuilt: R², or its like for categories. 0 is a guess, 1 is "
            "exact.",
            columns=["defence", "test", *("no row known" if known == "0" else f"{known} rows known" for known in counts)],
            rows=[
                [defense, over_seeds(rows, "test"), *(over_seeds(rows, at("columns", known)) for known in counts)]
                for defense, rows in found.items()
            ],
        )
    ]


def _every(name: str, found: ByDefense) -> ResultTable:
    """Show attacks as rows and defences as columns."""
    attacks = list(dict.fromkeys(attack for rows in found.values() for row in rows for attack in row["attacks"]))
    first = next(iter(found.values()))
    cells: list[list[Cell]] = []
    for attack in attacks:
        guess = _leak(first, attack, "chance")
        cells.append([attack, *(_leak(rows, attack) for rows in found.values()), guess and guess.value])
    return ResultTable(name=f"{name}: every attack", columns=["attack", *found, "a guess"], rows=cells)
