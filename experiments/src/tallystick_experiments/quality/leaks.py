"""Measure what attackers learn from the default and from a run without gradients, by audits of both on a public table.

The run is the product's: a simulated job with ``audit: true``, in which the label party's attacks read everything that crossed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError
from tallystick.results import FeatureAudit
from tallystick_experiments.audited import audited_table
from tallystick_experiments.catalogue.public import MOST_ROWS, NOISE, PublicTable, beside_noise, load_table
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import grid
from tallystick_experiments.page import Benchmark, seeds_of
from tallystick_experiments.pivot import Pivot
from tallystick_experiments.quality.shared_leaks import shared_figures
from tallystick_experiments.quality.shared_view import view_figures
from tallystick_experiments.stats import Row, distinct, melted

_NONE: dict[str, Any] = {"training": {"gradients": "none"}}
_NOISE = {"method": "gaussian-embeddings", "delta": 1e-6, "clip": 1.0}
CONTRACTS: dict[str, dict[str, Any]] = {
    "default": {},
    "open-ended": {"training": {"schedule": "open-ended", "learning_rate": 0.002}},
    "unscreened": {},
    "no-folds": {"training": {"folds": 1}},
    "small-embeddings": {"model": {"embedding_scale": 0.1}},
    "ensemble": {"model": {"ensemble": 8}},
    "no-gradients": _NONE,
    "no-gradients-32": _NONE | {"model": {"cut_width": 32}},
    "no-gradients-8": _NONE | {"model": {"cut_width": 8}},
    "no-gradients-4": _NONE | {"model": {"cut_width": 4}},
    "no-gradients-noise-100": _NONE | {"defense": [_NOISE | {"epsilon": 100.0}]},
    "no-gradients-noise-30": _NONE | {"defense": [_NOISE | {"epsilon": 30.0}]},
    "int8": {"training": {"compression": "int8"}},
    "in-flight-64": {"training": {"mode": "pipelined", "staleness": 64}},
}
"""The keys of each method's contract that differ from the default."""
PARTIES: dict[str, dict[str, Any]] = {"unscreened": {"encoding": {"screening": "off"}}}
"""The keys of both party files that differ from the default."""
LEAKING = {
    "default": "default",
    "open-ended": "open-ended",
    "unscreened": "nothing screened",
    "no-folds": "one network, no folds",
    "small-embeddings": "embeddings begin at 0.1",
    "ensemble": "eight networks above the cut",
    "no-gradients": "no gradient sent",
    "no-gradients-32": "the same, cut width 32",
    "no-gradients-8": "cut width 8",
    "no-gradients-4": "cut width 4",
    "no-gradients-noise-100": "gaussian-embeddings, ε = 100",
    "no-gradients-noise-30": "ε = 30",
    "int8": "compressed by int8",
    "in-flight-64": "64 batches in flight",
    "shared": "head on shares",
    "shared-view": "head on shares, all words",
}
SHARED: dict[str, Callable[[PublicTable, int], Row]] = {"shared": shared_figures, "shared-view": view_figures}
METHODS = (*CONTRACTS, *SHARED)
USUAL = ("default", "no-gradients")


def quality_leaks_experiment(
    tables: Sequence[str],
    data: Path | None,
    *,
    methods: Sequence[str] = USUAL,
    seeds: Sequence[int],
    most_rows: int = MOST_ROWS,
    noise_columns: int = 0,
) -> Experiment:
    """Train each table with each of these methods, and attack each run. Each has one line in the log.

    A row has the symmetric AUC of each attack on labels, and the mean R² (for categories a similar figure, see ``RebuiltColumn``)
    with which the strongest attack rebuilds the feature party's columns.

    Raises ConfigError for an unknown method, or a table with a number as its target, because attacks distinguish classes.
    """
    if unknown := [name for name in methods if name not in METHODS]:
        raise ConfigError(f"--methods {', '.join(unknown)}: with --leaks must be of {', '.join(METHODS)}")
    loaded = {name: beside_noise(load_table(name, data, most=most_rows), noise_columns) for name in tables}
    if numbers := [name for name, table in loaded.items() if table.target == "regression"]:
        raise ConfigError(f"--tables {', '.join(numbers)}: attacks tell classes apart, which a number to predict does not have")

    def trial(seed: int, table: str, method: str) -> Row:
        if method in SHARED:
            return {"figures": SHARED[method](loaded[table], seed)}
        result = audited_table(loaded[table], seed, party=PARTIES.get(method), **CONTRACTS[method])
        figures = {"test AUC of the model": result.joint["auc"]["value"]}
        for attack in sorted(result.label_audit.attacks, key=lambda attack: attack.name):
            figures[f"labels: {attack.name}, {attack.view}"] = attack.symmetric_auc
        for audit in result.sections.features:
            figures |= {f"columns: rebuilt, {mean.known} known rows": mean.value for mean in audit.means}
            figures |= _apart(audit)
        return {"figures": figures}

    cases = grid(seed=seeds, table=tables, method=methods)
    noisy = {"noise_columns": noise_columns} if noise_columns else {}
    setting = {"benchmark": "quality-leaks", "most_rows": most_rows} | noisy
    return Experiment(name="quality-leaks", cases=cases, trial=trial, page=quality_leaks_page, setting=setting)


def quality_leaks_page(_about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``quality_leaks_experiment``: each figure by table and method."""
    return Benchmark(
        title="What networks tell attackers, by how they are trained",
        tables=[
            Pivot(
                name="What attacks found",
                rows={"table": "table", "attack": "attack"},
                columns="method",
                figure="value",
                heads={name: LEAKING[name] for name in distinct(rows, "method")},
                note="Labels: max(AUC, 1 - AUC) per batch, .5 is a guess, 1 is every label. Columns: the mean share "
                "that the strongest attack rebuilt of the feature party's, R² or its like for categories; 0 is a guess.",
            ).table(melted(rows, "figures", name="attack"))
        ],
        notes=["A floor: what these attackers found, never that nothing else can be found."],
        facts={"seeds": seeds_of(rows)},
    )


def _apart(audit: FeatureAudit) -> Row:
    """Return how well noise columns were rebuilt, and how well the others, if there are both."""
    figures: Row = {}
    for known in dict.fromkeys(column.known for column in audit.columns):
        parts: dict[bool, list[float]] = {True: [], False: []}
        for column in audit.columns:
            if column.known == known:
                parts[column.name.startswith(NOISE)].append(column.value)
        if all(parts.values()):
            names = {True: "noise columns", False: "the table's own"}
            figures |= {f"columns: {names[key]}, {known} known rows": sum(of) / len(of) for key, of in parts.items()}
    return figures
