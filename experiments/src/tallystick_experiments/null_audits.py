"""Audit runs in which there is nothing to find: how often audits report a leak, and whether their intervals cover.

The truth is shuffled among the rows of a recorded run, so labels and columns are unrelated to what crossed. Run and audit are the
product's. Shapes: N rows.
"""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
from scipy.stats import beta, norm
from typer import Option

from tallystick.attacks.scoring import AttackEvaluator, Bootstrap
from tallystick.attacks.view import Scores
from tallystick.audit.columns import audit_columns
from tallystick.audit.labels import audit_labels
from tallystick.audit.recorded_columns import RecordedColumns, Truth, load_columns, save_columns
from tallystick.audit.recorded_labels import KeptLabels, RecordedLabels, load_labels, save_labels
from tallystick.compute.threads import limited_threads
from tallystick.config.contract import Contract, parse_contract
from tallystick.report.leaks import feature_headline, leak_headline
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.listing import contract_of
from tallystick.simulation import simulate
from tallystick.watcher import Silent
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import Latest
from tallystick_experiments.page import Benchmark, Cell, ResultTable
from tallystick_experiments.pivot import LineCell, Pivot
from tallystick_experiments.stats import Row, Spread

LABEL, FEATURE = "bank", "shop"
SHUFFLES = 4  # number of shuffles of the truth of one training
LEVEL = 0.95
VERDICTS = {"yes": ", yes:", "a little": ", a little:", "no": "no attack here found more", "not measured": "not measured"}
PROMISED = {"yes": 0.01, "a little": 0.05}


@dataclass(frozen=True, kw_only=True)
class AuditSetting:
    """Set an audited run: its target, and further keys of the contract."""

    target: str = "binary"
    contract: Mapping[str, Any] = field(default_factory=dict)


SETTINGS: Mapping[str, AuditSetting] = {
    "no defence": AuditSetting(),
    "quick form": AuditSetting(contract={"audit": "quick"}),
    "marvell 4": AuditSetting(contract={"defense": [{"method": "marvell", "power": 4.0}]}),
    "isotropic 1": AuditSetting(contract={"defense": [{"method": "isotropic", "power": 1.0}]}),
    "label-dp 1": AuditSetting(contract={"defense": [{"method": "label-dp", "epsilon": 1.0}]}),
    "cut of width 4": AuditSetting(contract={"model": {"cut_width": 4}}),
    "three classes": AuditSetting(target="multiclass", contract={"target": {"type": "multiclass", "classes": 3}}),
    "numbers": AuditSetting(target="regression", contract={"target": {"type": "regression"}}),
}


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Describe scores of two normal classes. Each row has a score in every epoch, and the scores of a row are correlated."""

    rows: int
    batch: int
    epochs: int
    correlation: float
    gap: float
    share: float

    def __str__(self) -> str:
        return f"{self.rows:,} rows, {self.epochs} epochs, correlation {self.correlation:g}, positives {self.share:g}"


SIMULATED = (
    Simulated(rows=300, batch=50, epochs=3, correlation=0.9, gap=1.0, share=0.5),
    Simulated(rows=300, batch=50, epochs=3, correlation=0.5, gap=0.5, share=0.3),
    Simulated(rows=1000, batch=128, epochs=5, correlation=0.9, gap=0.5, share=0.22),
    Simulated(rows=600, batch=600, epochs=1, correlation=0.0, gap=1.0, share=0.2),
)


def null_audits_experiment(
    *,
    audits: Annotated[int, Option(help="Each of other shuffled labels and columns.", min=1)] = 200,
    rows: Annotated[int, Option(help="Of the made-up table of each training.", min=200)] = 600,
    epochs: Annotated[int, Option(help="Of every training run.", min=1)] = 4,
    draws: Annotated[int, Option(help="Of each kind of simulated scores, for coverage.", min=10)] = 400,
) -> Experiment:
    """Make ``audits`` audits, in turn of all settings, and ``draws`` draws of each kind of simulated scores."""
    places = ((name, training, shuffle) for training in count() for name in SETTINGS for shuffle in range(SHUFFLES))
    trained = Latest(partial(_trained, rows=rows, epochs=epochs))

    def trial(setting: str, training: int, shuffle: int) -> Row:
        return trained(setting, training).audited(training, shuffle)

    def about() -> Row:
        with limited_threads(1):
            covered = {str(each): simulated_coverage(each, draws=draws) for each in SIMULATED}
        return {"draws": draws, "coverage": covered, "rows": rows, "epochs": epochs}

    return Experiment(
        name="null-audits",
        cases=[dict(zip(("setting", "training", "shuffle"), place, strict=True)) for place in islice(places, audits)],
        trial=trial,
        page=null_audits_page,
        setting={"rows": rows, "epochs": epochs},
        about=about,
    )


GROUPS = (None, "validation", "test")
"""Groups of rows that cross. An audit judges each of them, training rows first."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Hold the records that a run left at both parties, and the truth before it was shuffled."""

    bank: RunFolder
    shop: RunFolder
    labels: KeptLabels
    truths: dict[str | None, Truth]
    run_id: str

    def audited(self, training: int, shuffle: int) -> Row:
        """Audit with the truth shuffled again."""
        contract, rng = contract_of(self.bank.path), np.random.default_rng([training, shuffle, 99])
        labels = self.labels
        label_N = labels.label_N[torch.from_numpy(rng.permutation(len(labels.label_N)))]
        save_labels(self.bank, contract, label_N, labels.own_N, run_id=labels.run_id, start=labels.start)
        leaks = audit_labels(RecordedLabels.load(self.bank, contract), watcher=Silent(), seed=shuffle)
        for part, truth in self.truths.items():
            order_R = torch.from_numpy(rng.permutation(len(truth.rows_R)))
            other = replace(truth, used=truth.used.rows(order_R), unused=truth.unused.rows(order_R))
            save_columns(self.shop, contract, FEATURE, other, run_id=self.run_id, part=part)
        columns = audit_columns(RecordedColumns.load(self.shop, contract), watcher=Silent(), seed=shuffle)
        judged = [each for each in leaks.attacks if each.auc is not None and each.chance == 0.5]  # without named clusters
        return {
            "labels": [headline_verdict(line) for line in leak_headline(leaks)],
            "columns": [headline_verdict(feature_headline(columns))],
            "said": [*leak_headline(leaks), feature_headline(columns)],
            "intervals": {each.name: [each.auc, each.low, each.high] for each in judged},
        }


def contract_of_setting(setting: AuditSetting, training: int, *, epochs: int) -> Contract:
    """Build the contract of both parties."""
    values = {
        "name": "null",
        "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
        "alignment": {"keys": [{"name": "id"}]},
        "target": {"type": setting.target},
        "training": {"epochs": epochs, "batch_size": 64, "patience": None, "folds": 1},
        "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
        "audit": True,
        "seed": training + 1,
    }
    return parse_contract({**values, **setting.contract})


def _trained(name: str, training: int, *, rows: int, epochs: int) -> Recorded:
    """Run the job, and read its records from a folder that is removed with the result."""
    columns: dict[str, dict[str, Any]] = {
        party: {"keys": {"id": "id"}, "features": {"numeric": ["x", "noise"], "categorical": ["kind"]}}
        for party in (LABEL, FEATURE)
    }
    columns[LABEL]["label"] = "y"
    setting, folder = SETTINGS[name], Path(tempfile.mkdtemp(prefix="tallystick-"))
    contract = contract_of_setting(setting, training, epochs=epochs)
    frames = _tables(rows, np.random.default_rng([training, 98]), setting.target)
    try:
        simulate(contract, frames, columns, folder=folder, watcher=Silent(), secret_seed=training)
        bank, shop = (RunFolder.open(next((folder / party).glob("null-*"))) for party in (LABEL, FEATURE))
        loaded = {part: load_columns(shop, contract, part) for part in GROUPS}
        truths = {part: truth for part, (truth, _, _) in loaded.items()}
        labels = load_labels(bank, contract)
        recorded = Recorded(bank=bank, shop=shop, labels=labels, truths=truths, run_id=loaded[None][2])
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(recorded, shutil.rmtree, folder)
    return recorded


def _tables(rows: int, rng: np.random.Generator, target: str) -> dict[str, pl.DataFrame]:
    """Make two parties' columns, which both depend on the label's score."""
    signal = rng.normal(size=(rows, 2))
    score = signal.sum(axis=1) + 0.3 * rng.normal(size=rows)
    label = {"binary": (score > 0).astype(np.int64), "multiclass": np.digitize(score, [-0.7, 0.7]), "regression": score}[target]
    frames = {
        party: pl.DataFrame(
            {
                "id": [f"id-{row:06}" for row in range(rows)],
                "x": signal[:, place] + 0.1 * rng.normal(size=rows),
                "noise": rng.normal(size=rows),
                "kind": rng.choice(["red", "green", "blue"], size=rows),
            }
        )
        for place, party in enumerate((LABEL, FEATURE))
    }
    return {**frames, LABEL: frames[LABEL].with_columns(y=label)}


def headline_verdict(line: str) -> str:
    """Return the verdict of a headline: yes, a little, no, or that it was not measured."""
    (verdict,) = [name for name, words in VERDICTS.items() if words in line]
    return verdict


def simulated_coverage(of: Simulated, *, draws: int) -> float:
    """Return how often the evaluator's interval holds the true AUC of the two classes."""
    hits, exact, evaluator = 0, float(norm.cdf(of.gap / 2**0.5)), AttackEvaluator(replicates=1, level=LEVEL)
    for seed in range(draws):
        rng = np.random.default_rng([seed, of.rows, of.epochs])
        positive_N = rng.random(of.rows) < of.share
        own_N, rows, values = rng.normal(size=of.rows), [], []
        for _ in range(of.epochs):
            fresh_N = rng.normal(size=of.rows)
            score_N = of.gap * positive_N + of.correlation**0.5 * own_N + (1 - of.correlation) ** 0.5 * fresh_N
            batches = rng.permutation(of.rows)[: of.rows // of.batch * of.batch].reshape(-1, of.batch)
            rows += [torch.from_numpy(rows_B) for rows_B in batches]
            values += [torch.from_numpy(score_N[rows_B]) for rows_B in batches]
        truth_N = torch.from_numpy(positive_N.astype(np.int64))
        metrics = evaluator(Scores(rows=tuple(rows), values=tuple(values)), truth_N, bootstrap=Bootstrap(seed))
        assert metrics is not None
        hits += metrics.auc.low <= exact <= metrics.auc.high
    return hits / draws


# --- the page


def null_audits_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the shares of false "yes" and "a little" next to the promised ones, and the coverage."""
    shown: dict[str, LineCell] = {"audits": len}
    for side, said in ((side, said) for side in ("labels", "columns") for said in PROMISED):
        shown[f"{side}: {said}"] = partial(share_of, side=side, said=said)
    shown["intervals that hold a guess"] = _held
    every = [*rows, *({**row, "setting": "all"} for row in rows)]
    limits = "; ".join(f"{said!r} at most {limit:g}" for said, limit in PROMISED.items())
    said_note = (
        f"Shares of audits that said so, with Clopper-Pearson's 95 % intervals. Promised: {limits}. An audit says so of labels "
        f"where it does of gradients or of embeddings. {about['rows']:,} rows, {about['epochs']} epochs; "
        f"{SHUFFLES} audits of each training."
    )
    covered: list[list[Cell]] = [
        [name, proportion(round(share * about["draws"]), about["draws"])] for name, share in about["coverage"].items()
    ]
    return Benchmark(
        title="Audits of labels and columns that have nothing to do with what crossed",
        tables=[
            Pivot(name="What they said", rows={"run": "setting"}, shown=shown, note=said_note).table(every),
            ResultTable(
                name="Coverage of 95 % intervals, simulated scores",
                columns=["scores", "share of intervals that hold the true AUC"],
                rows=covered,
                note="Each row's scores of several epochs are correlated, as an attack's are.",
            ),
        ],
    )


def share_of(audits: Sequence[Row], side: str, said: str) -> Spread:
    """Return the share of audits whose headline gives this verdict, and its interval."""
    return proportion(sum(said in each[side] for each in audits), len(audits))


def proportion(times: int, of: int) -> Spread:
    """Return a share with Clopper-Pearson's interval."""
    tail = (1 - LEVEL) / 2
    low = float(beta.ppf(tail, times, of - times + 1)) if times else 0.0
    high = float(beta.ppf(1 - tail, times + 1, of - times)) if times < of else 1.0
    return Spread(value=times / of, low=low, high=high)


def _held(audits: Sequence[Row]) -> float | None:
    """Return the share of attacks' intervals that hold the AUC of a guess, which is the true one here.

    It is None if no attack has an interval.
    """
    hits = [low <= 0.5 <= high for each in audits for _, low, high in each["intervals"].values()]
    return float(np.mean(hits)) if hits else None
