"""Measure what a head on shares reveals to a label party about the other's columns, with both sides' data in memory.

The runs are the product's: simulated jobs with ``training.gradients: shared``. The attacks read everything that the label party
gets from them: a score of each validation and test row of every run, together with its own columns and labels of these rows. So
the figures are shown next to those of own columns and labels without any score.

Shapes: N rows that have a score, A own numbers of a row, R runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.feature_inference.evaluate import FeatureLeaks, evaluate_feature_inference
from tallystick.attacks.feature_inference.view import ColumnValues, SentEmbeddings
from tallystick.config.contract import parse_contract
from tallystick.config.party import FeatureColumns
from tallystick.results import Result
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.shared_head import opened_scores
from tallystick.simulation import simulate
from tallystick.storage import scratch_folder
from tallystick.tables.encoder import Encoder
from tallystick.watcher import Silent
from tallystick_experiments.catalogue.public import PublicTable
from tallystick_experiments.catalogue.table import column_names
from tallystick_experiments.feature_leakage.data import as_numbers
from tallystick_experiments.stats import Row

KEY = "number of the row"
RUNS = (1, 2, 4)
SPLIT = {"method": "hash", "validation": 0.1, "test": 0.4}
"""Half of the rows have a score, so half of the rows that a label party may know, and half of those that it may not."""
CURVES = {name: FEATURE_INFERENCE_ATTACKS[name] for name in ("ridge", "kernel", "network")}
BLIND = {name: FEATURE_INFERENCE_ATTACKS[name] for name in ("marginals", "simulator")}
COARSE = 4  # steps of a column that a label holds together with another column


def shared_figures(table: PublicTable, seed: int) -> Row:
    """Run jobs on shares, attack the label party's data from them, and return figures by the attacked data."""
    with scratch_folder() as folder:
        runs = [run_job(table, seed, secret_seed=100 * seed + number, folder=folder / f"{number}") for number in range(max(RUNS))]
        places_N, score_NR = _opened([folder / f"{number}" for number in range(len(runs))])
    own, partner = table.halves(seed)
    everywhere = np.arange(table.frame.height)
    own_NA = as_numbers(Encoder.fit(table.frame, own, everywhere).encode(table.frame).unpacked())[places_N]
    labels = table.frame.get_column(table.label)[places_N].cast(pl.String).rank("dense").cast(pl.Float32).to_torch()
    own_NA = torch.cat([own_NA, labels[:, None]], dim=1)
    columns = _columns(table, partner, places_N)
    known = (20, 200, len(places_N) // 2)
    (audit,) = runs[0].sections.features
    figures: Row = {"test AUC of the model": runs[0].joint["auc"]["value"]}
    seats = {"own columns and labels": own_NA, "one score": score_NR[:, :1]}
    seats |= {
        f"scores of {count} run{'s' * (count > 1)}, own columns, labels": _beside(own_NA, score_NR[:, :count]) for count in RUNS
    }
    for name, seen_NA in seats.items():
        leaks = _attacked(seen_NA, columns, known, seed)
        figures |= {f"columns: {name}, {_rows(count, known)}": leaks.mean(count) for count in known}
        figures[f"columns, boosted trees: {name}, {_rows(known[-1], known)}"] = _boosted(seen_NA, columns, seed)
    blind = evaluate_feature_inference(
        _sent(score_NR[:, :1]), columns, marginals=True, known=(), draws=1, attacks=BLIND, seed=seed
    )
    figures["columns: one score, no known row"] = blind.mean(0)
    figures |= {f"columns: chosen label, measured at home, {_rows(m.known, (20, 200))}": m.value for m in audit.groups[0].means}
    return figures | _chosen_labels(table, seed)


def run_job(
    table: PublicTable, seed: int, *, secret_seed: int, folder: Path, label: pl.Series | None = None, **changes: Any
) -> Result:
    """Run a job on shares over a table with columns divided by a seed, with its label or another one."""
    own, partner = table.halves(seed)
    frame = table.frame.with_row_index(KEY)
    if label is not None:
        frame = frame.with_columns(label.alias(table.label))
    contract = {
        "name": "shared",
        "seed": seed,
        "training": {"gradients": "shared"},
        "target": table.contract_target,
        "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}, "helper": {"role": "helper"}},
        "alignment": {"keys": [{"name": KEY}]},
        "split": SPLIT,
        "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
        "unaligned": {"method": "none"},
        "audit": True,
    }
    parties: dict[str, dict[str, Any]] = {
        name: {"keys": {KEY: KEY}, "features": {"numeric": list(of.numeric), "categorical": list(of.categorical)}}
        for name, of in (("label", own), ("feature", partner))
    }
    parties["label"]["label"] = table.label
    tables = {
        "label": frame.select(KEY, table.label, *column_names(own)),
        "feature": frame.select(KEY, *column_names(partner)),
    }
    return simulate(parse_contract(contract | changes), tables, parties, folder=folder, watcher=Silent(), secret_seed=secret_seed)


def _opened(folders: list[Path]) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Tensor]:
    """Return the rows that have a score, in order, and their scores by each run, (N, R)."""
    parts = []
    for folder in folders:
        (path,) = [each for each in (folder / "label").iterdir() if (each / "view").exists()]
        run = RunFolder.open(path)
        kept = run.load_alignment()
        assert kept is not None, "it is a finished run"
        position_N, score_NC = opened_scores(run)
        places_N = kept[1].rows_N[position_N.numpy()]
        order_N = np.argsort(places_N)
        parts.append((places_N[order_N], score_NC[torch.from_numpy(order_N)].float()))
    assert all(np.array_equal(places_N, parts[0][0]) for places_N, _ in parts), "the split is the contract's"
    return parts[0][0], torch.cat([score_NC for _, score_NC in parts], dim=1)


def _beside(own_NA: Tensor, score_NR: Tensor) -> Tensor:
    """Join scores to own columns, and repeat them until they weigh about half as much, because attacks scale all
    numbers alike.
    """
    return torch.cat([own_NA, *[score_NR] * max(1, own_NA.shape[1] // (2 * score_NR.shape[1]))], dim=1)


def _columns(table: PublicTable, partner: FeatureColumns, places_N: np.ndarray[Any, np.dtype[np.int64]]) -> ColumnValues:
    """Return the feature party's columns of these rows."""
    encoder = Encoder.fit(table.frame, partner, np.arange(table.frame.height))
    features = encoder.encode(table.frame).unpacked()
    return ColumnValues(
        numeric_NF=features.numeric_NF,
        categorical_NG=features.categorical_NG[:, : len(encoder.categorical)],
        numeric=encoder.numeric_names,
        categorical=tuple(column.name for column in encoder.categorical),
        categories=tuple(encoder.feature_shape.codes[: len(encoder.categorical)]),
    ).rows(torch.from_numpy(places_N))


def _sent(seen_NA: Tensor) -> SentEmbeddings:
    return SentEmbeddings(last_BD=seen_NA, mean_BD=seen_NA, looks_BE=seen_NA, looks_at_BL=None)


def _attacked(seen_NA: Tensor, columns: ColumnValues, known: tuple[int, ...], seed: int) -> FeatureLeaks:
    """Rebuild the columns from these numbers of each row."""
    rows = torch.linspace(0, len(seen_NA) - 1, min(len(seen_NA), 2 * known[-1]), dtype=torch.float64).round().long()
    told = {count: [torch.from_numpy(np.random.default_rng([seed, 7, count]).permutation(len(rows))[:count])] for count in known}
    return evaluate_feature_inference(_sent(seen_NA[rows]), columns.rows(rows), known=told, attacks=CURVES, seed=seed)


def _boosted(seen_NA: Tensor, columns: ColumnValues, seed: int) -> float:
    """Rebuild numbers with boosted trees from half of the rows, as an attack that none of the product's resembles."""
    order_N = np.random.default_rng([seed, 13]).permutation(len(columns))
    told_K, rest_M = np.split(order_N, [len(order_N) // 2])
    values = []
    for number_N in columns.numeric_NF.double().numpy().T:
        trees = HistGradientBoostingRegressor(random_state=seed).fit(seen_NA[told_K].numpy(), number_N[told_K])
        spread = number_N[rest_M].var()
        error = np.square(trees.predict(seen_NA[rest_M].numpy()) - number_N[rest_M]).mean()
        values.append(max(0.0, 1 - error / spread) if spread else 0.0)
    return float(np.mean(values)) if values else float("nan")


def _chosen_labels(table: PublicTable, seed: int) -> Row:
    """Run jobs whose label is a column of the feature party: its first number, and two of its numbers packed into one."""
    _, partner = table.halves(seed)
    ranks = [
        table.frame.get_column(name).cast(pl.Float64).fill_null(strategy="mean").rank("average").to_numpy() / table.frame.height
        for name in partner.numeric[:2]
    ]
    figures: Row = {}
    labels: Mapping[str, Any] = {"a column as label": ranks[0]} if ranks else {}
    if len(ranks) > 1:
        labels = {**labels, "two columns packed into a label": np.floor(ranks[0] * COARSE) + 0.8 * ranks[1]}
    for name, label_N in labels.items():
        with scratch_folder() as folder:
            run_job(table, seed, secret_seed=seed, folder=folder, label=pl.Series(label_N), target={"type": "regression"})
            places_N, score_N1 = _opened([folder])
        truth = ColumnValues(
            numeric_NF=torch.from_numpy(np.stack(ranks, axis=1)[places_N]).float(),
            categorical_NG=torch.empty(len(places_N), 0, dtype=torch.int64),
            numeric=tuple(partner.numeric[:2]),
            categorical=(),
            categories=(),
        )
        half = len(places_N) // 2
        leaks = _attacked(score_N1, truth, (half,), seed)
        for number, column in enumerate(leaks.columns[: len(ranks) if "packed" in name else 1]):
            figures[f"really run, {name}: {'the first' if not number else 'the second'} column"] = column.value
    return figures


def _rows(count: int, known: tuple[int, ...]) -> str:
    return f"{count} known rows" if count in (20, 200) and count in known[:2] else "half of the rows known"
