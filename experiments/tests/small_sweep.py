"""A sweep for the tests of tasks: cheap figures that depend on each case alone, and a folder by which a case can fail."""

import os
import signal
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tallystick.errors import DataError
from tallystick_experiments.command import command_of
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import grid
from tallystick_experiments.page import Benchmark, ResultTable


def small(
    data: Annotated[Path, typer.Option(help="Folder: rows.csv; kill-SEED, by which a process dies once; wrong-SEED.")],
    seeds: Annotated[int, typer.Option(help="Runs.")] = 6,
) -> Experiment:
    """Sums of random numbers."""
    values = np.loadtxt(data / "rows.csv")

    def trial(seed, scale):
        if (mark := data / f"kill-{seed}").exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (data / f"wrong-{seed}").exists():
            raise DataError(f"seed {seed} has no rows")
        draws = np.random.default_rng(seed).normal(size=(100, len(values))) * scale
        return {"sum": float((draws @ values).sum()), "parts": [float(each) for each in draws[0, :3]], "process": os.getpid()}

    cases = grid(seed=range(seeds), scale=(1.0, 0.1))
    return Experiment(name="small", cases=cases, trial=trial, page=page_of, setting={"rows": len(values)})


def page_of(_about, rows):
    cells = [[f"{row['seed']}, {row['scale']:g}", row["sum"]] for row in rows]
    return Benchmark(title="Small", tables=[ResultTable(name="sums", columns=["case", "sum"], rows=cells)])


app = typer.Typer()
app.command()(command_of(small))
