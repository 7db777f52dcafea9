"""Measure the gain from a partner's vectors: titles of publications, hashed into numbers, with the label party's few columns."""

import hashlib
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from typer import Option

from tallystick.errors import DataError
from tallystick.evaluation.measure import MetricValue
from tallystick.simulation import simulate
from tallystick.watcher import Silent

JOURNALS = ("sigmod record", "vldb j.", "acm trans . database syst .")
GRAM = 4  # characters


def measure_vectors(
    *,
    data: Annotated[Path, Option(help="Folder of public files, with linkage/dblp_acm.")],
    width: Annotated[int, Option(help="Numbers of a vector.", min=2)] = 768,
    seeds: Annotated[int, Option(help="Runs, whose means are given.", min=1)] = 3,
    audit: Annotated[bool, Option("--audit", help="Audit the columns by the quick attacks, in the first run.")] = False,
) -> dict[str, Any]:
    """Distinguish journals from conferences by year and number of authors, and by a partner's hashed titles.

    A title's vector counts its groups of four characters, hashed with a sign into ``width`` numbers (Weinberger et al. 2009), and
    has length 1. Return the AUC of own columns, of both, and of both if each number is a separate column; seconds and memory; and
    with ``audit`` how well the vector's numbers are rebuilt.

    Raises DataError if a file is missing.
    """
    file = data / "linkage" / "dblp_acm"
    if not (file / "tableA.csv").exists():
        raise DataError(f"--data {data}: has no linkage/dblp_acm/tableA.csv; give the folder of public files")
    titles = pl.read_csv(file / "tableA.csv")
    vector_NW = _hashed(titles.get_column("title").fill_null("").to_list(), width)
    own = titles.select(
        "id",
        pl.col("authors").fill_null("").str.count_matches(",").alias("more_authors"),
        "year",
        journal=pl.col("venue").is_in(JOURNALS).cast(pl.Int64),
    )
    partner = own.select("id", title=pl.Series(vector_NW, dtype=pl.Array(pl.Float32, width)))
    plain = own.select("id").hstack(pl.DataFrame(vector_NW, schema=[f"n{place}" for place in range(width)]))
    figures: dict[str, list[float]] = {"own": [], "vectors": [], "columns": []}
    seconds, found = {"vectors": 0.0, "columns": 0.0}, {}
    for seed in range(1, seeds + 1):
        for way, table, more in (("vectors", partner, {"vectors": ["title"]}), ("columns", plain, {})):
            audits = audit and seed == 1 and way == "vectors"
            began = time.process_time()
            result = simulate(
                _contract(seed, audit=audits),
                {"label": own, "feature": table},
                {"label": {"keys": {"id": "id"}, "label": "journal"}, "feature": {"keys": {"id": "id"}, **more}},
                watcher=Silent(),
            )
            seconds[way] += time.process_time() - began
            figures[way].append(_auc(result.joint))
            if way == "vectors":
                figures["own"].append(_auc(result.local_baseline))
            if audits:
                rebuilt = [each.value for each in result.sections.features[0].columns if each.value is not None]
                found = {"mean_r2": float(np.mean(rebuilt)), "largest_r2": float(np.max(rebuilt)), "numbers": len(rebuilt)}
    return {
        "rows": own.height,
        "width": width,
        "auc": {name: [float(np.mean(values)), float(np.std(values))] for name, values in figures.items()},
        "cpu_seconds_a_run": {name: each / seeds for name, each in seconds.items()},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "audit": found,
    }


def _contract(seed: int, *, audit: bool) -> dict[str, Any]:
    return {
        "name": "vectors",
        "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}},
        "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
        "evaluation": {"bootstrap": 0, "importance": {"own_columns": False}},
        "audit": "quick" if audit else False,
        "seed": seed,
    }


def _hashed(titles: list[str], width: int) -> NDArray[np.float32]:
    """Hash the titles' groups of characters into numbers, with length 1."""
    vector_NW = np.zeros((len(titles), width), dtype=np.float32)
    for row, title in enumerate(titles):
        for start in range(max(1, len(title) - GRAM + 1)):
            hashed = int.from_bytes(hashlib.blake2b(title[start : start + GRAM].encode(), digest_size=8).digest(), "little")
            vector_NW[row, (hashed >> 1) % width] += 1 if hashed & 1 else -1
    lengths_N1: NDArray[np.float32] = np.linalg.norm(vector_NW, axis=1, keepdims=True)
    vector_NW /= np.maximum(lengths_N1, 1e-9)
    return vector_NW


def _auc(metrics: Mapping[str, MetricValue]) -> float:
    value = metrics["auc"]["value"]
    assert value is not None, "both classes are among the test rows"
    return value
