"""How long the default takes to where the former default ends: processor time to its best validation loss."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.network.channel import Progress, no_progress
from tallystick_experiments.quality.methods import METHODS, NetworkMethod, validated
from tallystick_experiments.quality.tables import PublicTable, load_table
from tallystick_experiments.shared import SweepLog, make_output_folder, one_thread, summarize_seeds


def run(
    folder: Path,
    tables: Sequence[str],
    data: Path | None,
    *,
    seeds: Sequence[int],
    resume: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Train both on every table with every seed, one line of a log each; gives mean times and the ratio by table."""
    make_output_folder(folder)
    log = SweepLog(folder / "runs.jsonl", setting={"benchmark": "quality-pace"}, resume=resume)
    done = {(line["table"], line["seed"]) for line in log.runs}
    loaded = {name: load_table(name, data) for name in tables}
    wanted = [(name, seed) for seed in seeds for name in tables]
    with one_thread():
        for number, (name, seed) in enumerate(wanted, 1):
            if (name, seed) not in done:
                log.add({"table": name, "seed": seed, **_pace(loaded[name], seed)})
            progress(f"{name}, seed {seed}", number, len(wanted))
    runs = [line for line in log.runs if (line["table"], line["seed"]) in wanted]
    rows = [_row(name, [line for line in runs if line["table"] == name]) for name in tables]
    return {"benchmark": "quality-pace", "seeds": list(seeds), "rows": rows, "runs": runs}


def _row(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    reached = [line for line in runs if line["default_seconds"] is not None]
    figures = {
        "former_seconds": [line["former_seconds"] for line in runs],
        "default_seconds": [line["default_seconds"] for line in reached],
        "ratio": [line["default_seconds"] / line["former_seconds"] for line in reached],
    }
    found = {key: summarize_seeds(values) if values else None for key, values in figures.items()}
    return {"table": name, **found, "reached": len(reached), "seeds": len(runs)}


def _pace(table: PublicTable, seed: int) -> dict[str, Any]:
    """Train the former default to its end and the default until it is as low."""
    target, former_seconds = min((loss, seconds) for loss, seconds in _course(table, seed, "former"))
    default_seconds = next((seconds for loss, seconds in _course(table, seed, "default") if loss <= target), None)
    return {"loss": target, "former_seconds": former_seconds, "default_seconds": default_seconds}


def _course(table: PublicTable, seed: int, name: str) -> Any:
    """Validation loss and processor time so far, epoch by epoch; looking at the validation rows takes part in neither's."""
    method = METHODS[name]
    assert isinstance(method, NetworkMethod)
    network, _ = method.network(table, seed)
    began = time.process_time()
    for _, loss, _ in validated(network):
        yield loss, time.process_time() - began
