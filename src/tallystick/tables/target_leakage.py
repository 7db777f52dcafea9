"""Find columns that reveal the label by themselves. Most such columns were written after the label was known, so a model will not
have them in time.

The findings depend on exact labels, so only the label party's terminal and report show them.
"""

import numpy as np
import polars as pl

from tallystick.tables.text import as_text

CORRELATION, PURE, TELLING_AUC = 0.999, 0.999, 0.99
MOST_ROWS = 4_000_000  # greatest number of rows that are checked
FEWEST = 10  # rows of each class, below which an AUC of a column may be chance


def telling(values: pl.Series, label: pl.Series) -> str | None:
    """Say how a column reveals the label: as a number, by its order, by few values or by its missing cells. Return None if it
    does not.

    Args:
        values: cells of one column, in the order of the rows; if there are very many rows, a sample, the same for each column.
        label: label of the same rows; several labels are a struct.
    """
    if isinstance(label.dtype, pl.Struct):
        by_label = ((name, telling(values, label.struct.field(name))) for name in label.struct.fields)
        return next((f"{how} (label {name!r})" for name, how in by_label if how is not None), None)
    if len(values) > MOST_ROWS:
        sample = np.sort(np.random.default_rng(len(values)).integers(len(values), size=MOST_ROWS))
        values, label = values.gather(sample), label.gather(sample)
    if values.dtype.is_float():
        values = values.fill_nan(None)
    absent = values.is_null()
    if absent.any() and _determines(absent, label):
        return "is missing for one kind of label and present for another"
    pair = pl.DataFrame({"value": values, "label": label}).drop_nulls()
    if pair.height < 3 or pair.get_column("label").n_unique() < 2:
        return None
    values_known, truth = pair.get_column("value"), pair.get_column("label")
    if values_known.dtype.is_numeric() and truth.dtype.is_numeric():
        correlation = pair.select(pl.corr(pl.col("value").cast(pl.Float64), pl.col("label").cast(pl.Float64))).item()
        if correlation is not None and abs(correlation) > CORRELATION:
            return "all but equals the label"
    if _determines(values_known, truth):
        return "all but equals the label"
    ordered = values_known.dtype.is_numeric() or values_known.dtype.is_temporal()
    if ordered and (auc := _auc(values_known, truth)) is not None and auc >= TELLING_AUC:
        return f"predicts the label by itself, with AUC {auc:.4f}"
    return None


def follows(values: pl.Series, label: pl.Series) -> bool:
    """Tell whether values follow from the label, or from several together, as weights of classes do."""
    return _determines(label, values)


def _determines(values: pl.Series, label: pl.Series) -> bool:
    """Tell whether there are few values, and 99.9 % of the rows have a value that occurs with one label only."""
    pair = pl.DataFrame({"value": values, "label": label}).drop_nulls()
    groups = pair.group_by("value").agg(pl.len(), pl.col("label").n_unique().alias("labels"))
    if pair.height < 3 or groups.height > max(2, pair.height // 10) or pair.get_column("label").n_unique() < 2:
        return False
    pure = groups.filter(pl.col("labels") == 1).get_column("len").sum()
    return bool(pure >= PURE * pair.height)


def _auc(values: pl.Series, label: pl.Series) -> float | None:
    """Compute the area under the ROC curve of one column for a label of two values, in the better direction.

    Ties count half (Mann-Whitney).
    """
    text = as_text(label)
    if text.n_unique() != 2:
        return None
    is_first = (text == text[0]).to_numpy()
    first, second = int(is_first.sum()), int((~is_first).sum())
    if min(first, second) < FEWEST:
        return None
    ranks = values.to_physical().rank().to_numpy()
    auc = (float(ranks[is_first].sum()) - first * (first + 1) / 2) / (first * second)
    return max(auc, 1 - auc)
