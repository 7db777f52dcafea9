"""Group rows by one of the party's columns, for a report: by category, or by quartile of a number. Shapes: N rows."""

from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.party import PartyFile
from tallystick.tables.lazy_table import Frame
from tallystick.tables.table import require_column
from tallystick.tables.text import as_number, as_text

MOST_GROUPS = 20
OTHERS = "all others"
MISSING = "missing"


def check_subgroups(frame: Frame, party: PartyFile) -> None:
    """Raise DataError unless the columns that the party file names make groups."""
    for name in party.report.subgroups:
        groups_of(require_column(frame, name, use="subgroup"))


def groups_of(column: pl.Series) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of a column's groups and each row's group: the MOST_GROUPS largest, and one for all others.

    A numeric column with more values is divided at its quartiles; missing cells are a separate group.
    """
    if column.dtype.is_numeric() and column.n_unique() > MOST_GROUPS:
        values_N = as_number(column).to_numpy()
        known_N = values_N[np.isfinite(values_N)]
        cuts = np.unique(np.quantile(known_N, [0.25, 0.5, 0.75])) if len(known_N) else np.empty(0)
        bounds = [f"{cut:.6g}" for cut in cuts]
        names = (
            [
                f"up to {bounds[0]}",
                *(f"above {low}, up to {high}" for low, high in pairwise(bounds)),
                f"above {bounds[-1]}",
            ]
            if bounds
            else ["any number"]
        )
        codes_N = np.searchsorted(cuts, values_N, side="left").astype(np.int64)
        codes_N[np.isnan(values_N)] = len(names)
        return [*names, MISSING] if np.isnan(values_N).any() else names, codes_N
    text = as_text(column).fill_null(MISSING)
    counts = text.value_counts(sort=True, name="rows").sort(["rows", text.name], descending=[True, False])
    names = counts.get_column(text.name).to_list()
    shown_names = sorted(names[:MOST_GROUPS])
    if len(names) > MOST_GROUPS:
        shown_names.append(OTHERS if OTHERS not in shown_names else f"{OTHERS} (joined)")
    place = {name: code for code, name in enumerate(shown_names[: MOST_GROUPS if len(names) > MOST_GROUPS else None])}
    codes = text.replace_strict(list(place), list(place.values()), default=len(shown_names) - 1, return_dtype=pl.Int64)
    return shown_names, codes.to_numpy()
