"""Run every method on every table with every seed: ``tallystick bench quality``, with one line of a log per run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tallystick.errors import ConfigError
from tallystick_experiments.catalogue.halves import CHOOSING, HALVED, REPORTING
from tallystick_experiments.catalogue.held_out import HELD_OUT
from tallystick_experiments.catalogue.public import (
    BY_TIME,
    MOST_ROWS,
    PACKAGED,
    TABLES,
    PublicTable,
    beside_noise,
    drawn,
    load_table,
)
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import grid
from tallystick_experiments.quality.methods import METHODS, USUAL, methods_on
from tallystick_experiments.quality.page import quality_page
from tallystick_experiments.stats import Row


def tables_in(data: Path | None) -> list[str]:
    """List the available tables: all with the folder of public files, otherwise those that packages bring."""
    return [name for name in TABLES if name not in (*HELD_OUT, *HALVED, *BY_TIME) and (data is not None or name in PACKAGED)]


def tables_of(asked: Sequence[str], data: Path | None) -> list[str]:
    """List the tables that the command line names: by their names, by the name of a group, or all that are available."""
    groups = {"held-out": HELD_OUT, "by-time": BY_TIME, "choosing": CHOOSING, "reporting": REPORTING}
    return [name for word in asked for name in groups.get(word, [word])] or tables_in(data)


def quality_sweep_experiment(
    *,
    data: Path | None,
    tables: Sequence[str] = tuple(TABLES),
    own: PublicTable | None = None,
    methods: Sequence[str] = USUAL,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    most_rows: int = MOST_ROWS,
    noise_columns: int = 0,
    device: str = "cpu",
) -> Experiment:
    """Declare every method on every table, seed by seed. ``own`` is the user's table. All tables get ``noise_columns`` more
    columns.

    TabM trains on ``device``, everything else on the processor.

    Raises ConfigError for an unknown table, method or device, DataError for a missing table.
    """
    for what, asked, known in (("table", tables, TABLES), ("method", methods, METHODS)):
        if unknown := [name for name in asked if name not in known]:
            raise ConfigError(f"--{what}s {', '.join(unknown)}: must be of {', '.join(known)}")
    made_by = methods_on(device)
    loaded = {name: load_table(name, data, most=most_rows) for name in tables}
    if own is not None:
        loaded[own.name] = drawn(own, most=most_rows)
    loaded = {name: beside_noise(table, noise_columns) for name, table in loaded.items()}

    def trial(seed: int, table: str, method: str) -> Row:
        with np.errstate(all="ignore"):
            return vars(made_by[method](loaded[table], seed))

    cases = grid(seed=seeds, table=loaded, method=methods)
    unusual = ({"noise_columns": noise_columns} if noise_columns else {}) | ({"device": device} if device != "cpu" else {})
    facts = {
        name: {"rows": table.frame.height, "columns": len(table.columns.numeric + table.columns.categorical),
               "target": table.target, "source": table.source, "by_time": table.times is not None}
        for name, table in loaded.items()
    }  # fmt: skip
    setting = {"benchmark": "quality", "most_rows": most_rows} | unusual
    return Experiment(name="quality", cases=cases, trial=trial, page=quality_page, setting=setting, about={"data": facts})
