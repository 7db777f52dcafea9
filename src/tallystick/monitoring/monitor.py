"""Monitor a run in use: new rows of the own table, and scores and labels if this party has them. Shapes: N rows."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from typing import Literal

import numpy as np
import polars as pl

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError
from tallystick.metrics import UndefinedMetric, ace, auc
from tallystick.monitoring.drift import LEVEL, categorical_drift, judged, numeric_drift
from tallystick.results.monitoring import Drift, Monitoring, Period
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.profile import kept_profile, numeric_profile
from tallystick.run_folder.trained import kept_encoder
from tallystick.storage import read_own
from tallystick.tables.columns import numbers_of
from tallystick.tables.keys import Keys, key_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.table import require_column
from tallystick.tables.target import LabelCoder
from tallystick.tables.text import as_text
from tallystick.tables.times import ordered_times

Every = Literal["day", "week", "month", "all"]

SCORED_BY, JOINT = "scored_by", "joint model"
KEY, SCORE, LABEL, TIME = "key", "score", "label", "time"
"""Names of columns. Of several labels each has a column of scores and of labels, with the label's name appended."""

_TRUNCATED = {"day": "1d", "week": "1w", "month": "1mo"}
FEW = 30  # rows with a label that a period needs for its figures


@dataclass(frozen=True, kw_only=True)
class Look:
    """Inputs of monitoring.

    Args:
        contract, party: as in a run.
        folder: folder of the run in use.
        frame: new rows of the own table, with labels as far as they have arrived.
        keys: keys of the rows that take part.
        scores: scores of these rows from `predict` or serving; None if this party has none.
        every: length of the periods, by the party file's ``time``.
    """

    contract: Contract
    party: PartyFile
    folder: RunFolder
    frame: Frame
    keys: Keys
    scores: pl.DataFrame | None
    every: Every = "month"


def monitor_table(look: Look) -> Monitoring:
    """Compare the new rows with those of training, and the scores with the available labels. Nothing is sent.

    Raises DataError if a column is missing, and ConfigError if scores are of another run or have no key.
    """
    notes: list[str] = []
    encoder = kept_encoder(look.folder)
    columns: list[Drift] = []
    if encoder is None:
        notes.append("This party has no column in the model.")
    else:
        before, rows_R, frame = kept_profile(look.folder), look.keys.rows_R, encoder.fitted(look.frame)
        if encoder.sequences:
            notes.append("Columns of lists are not compared.")
        columns = [numeric_drift(each, numbers_of(frame, each.name)[rows_R]) for each in before.numeric]
        for profile in before.categorical:
            cells = require_column(frame, profile.name, use="feature").gather(rows_R)
            columns.append(categorical_drift(profile, cells))
    scored, scored_by = None, dict[str, int]()
    if look.scores is not None:
        # The new rows with key, scores, scoring model, labels and time, each null if unknown
        if absent := [name for name in score_names(look.contract) if name not in look.scores.columns]:
            raise ConfigError(
                f"scores: there is no column {absent[0]}; give what `predict` wrote for a target of two classes, several labels "
                "or a regression"
            )
        if "run_id" in look.scores.columns and (other_runs := set(look.scores["run_id"].unique()) - {look.folder.run_id}):
            raise ConfigError(
                f"scores: they are of run {min(other_runs)}, and this is a look at run {look.folder.run_id}; "
                "give --run, or the scores of one run"
            )
        scores = look.scores.select(
            key_of(look.scores, columns=look.party.keys, alignment=look.contract.alignment).alias(KEY),
            pl.col(score_names(look.contract)).cast(pl.Float64),
            (pl.col(SCORED_BY) if SCORED_BY in look.scores.columns else pl.lit(JOINT)).alias(SCORED_BY),
        ).unique(KEY, keep="last")
        rows_R, party = look.keys.rows_R, look.party
        own = pl.DataFrame({KEY: key_of(look.frame, columns=party.keys, alignment=look.contract.alignment).gather(rows_R)})
        columns_read: dict[str, str | None] = dict(zip(labels_of(look.contract, party), party.labels, strict=True))
        columns_read[TIME] = party.time
        for name, column in columns_read.items():
            if column is not None and column in look.frame.columns:
                own = own.with_columns(require_column(look.frame, column, use=name).gather(rows_R).alias(name))
            else:
                own = own.with_columns(pl.lit(None).alias(name))
        scored = own.join(scores, on=KEY, how="left", maintain_order="left")
        counts = scored.drop_nulls(score_names(look.contract)[0]).group_by(SCORED_BY).len().sort(SCORED_BY)
        scored_by = {str(name): int(count) for name, count in counts.iter_rows()}
    of_scores = scores_drift(look.contract, look.folder, scored, notes) if scored is not None else {}
    drifts = judged([*columns, *of_scores.values()])
    judged_scores = dict(zip(of_scores, drifts[len(columns) :], strict=True))
    return Monitoring(
        run_id=look.folder.run_id,
        party=look.party.party,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=len(look.keys.rows_R),
        columns=drifts[: len(columns)],
        scores=judged_scores.pop("", None),
        scores_by_label=judged_scores,
        scored_by=scored_by,
        without_score=int(scored.get_column(score_names(look.contract)[0]).is_null().sum()) if scored is not None else None,
        periods=periods_of(look.contract, look.folder, scored, every=look.every, notes=notes) if scored is not None else [],
        level=LEVEL,
        notes=notes,
    )


def label_names(contract: Contract) -> tuple[str, ...]:
    """Name the labels of a row. A single label has no name."""
    return contract.target.labels if contract.target.type == "multilabel" else ("",)


def score_names(contract: Contract) -> list[str]:
    """Name the columns of a row's scores, one for each label."""
    return [_of_label(SCORE, name) for name in label_names(contract)]


def labels_of(contract: Contract, party: PartyFile) -> list[str]:
    """Name the columns that hold the labels of a party, in its order; none if it has none."""
    several = contract.target.type == "multilabel"
    return [_of_label(LABEL, column if several else "") for column in party.labels]


def _of_label(what: str, label: str) -> str:
    """Name a label's column of scores or labels."""
    return f"{what}_{label}" if label else what


def scores_drift(contract: Contract, folder: RunFolder, scored: pl.DataFrame, notes: list[str]) -> dict[str, Drift]:
    """Compare the joint model's scores of each label with those of the run's test rows, which training did not use either."""
    if contract.target.type not in ("binary", "multilabel") or not folder.scores.exists():
        notes.append(
            "This run has no scores of test rows to compare with: a label party keeps them for labels of two classes, until "
            "`tallystick forget` erases them."
        )
        return {}
    before = pl.read_parquet(BytesIO(read_own(folder.scores, origin=folder.origin)))
    joint, drifts = scored.filter(pl.col(SCORED_BY) == JOINT), {}
    for label, name in zip(label_names(contract), score_names(contract), strict=True):
        now = joint.get_column(name).drop_nulls().to_numpy()
        if not len(now):
            notes.append("No row has a score of the joint model.")
            return {}
        title = f"scores of the joint model{f' for label {label}' if label else ''}"
        drift = numeric_drift(numeric_profile(title, before.get_column(name).cast(pl.Float64).to_numpy()), now)
        drifts[label] = Drift(name=title, kind="scores", rows=drift.rows, stability=drift.stability, chance=drift.chance)
    return drifts


def periods_of(contract: Contract, folder: RunFolder, scored: pl.DataFrame, *, every: Every, notes: list[str]) -> list[Period]:
    """Measure the scores of rows whose labels have arrived, label by label, the earliest period first.

    ``scored`` has scores, labels and time of each row, null if unknown.
    """
    if contract.target.type not in ("binary", "multilabel") or not folder.label_coder.exists():
        notes.append("How good scores were is told for labels of two classes, at the label party.")
        return []
    coder = LabelCoder.from_json(folder.read_json(folder.label_coder))
    periods = []
    for label in label_names(contract):
        columns = {_of_label(SCORE, label): SCORE, _of_label(LABEL, label): LABEL, TIME: TIME}
        of_label = scored.select(pl.col(column).alias(name) for column, name in columns.items())
        periods += _periods_of_label(
            label, coder.labels[label] if label else coder.classes, of_label, contract=contract, every=every, notes=notes
        )
    return periods


def _periods_of_label(
    label: str, classes: tuple[str, ...], scored: pl.DataFrame, *, contract: Contract, every: Every, notes: list[str]
) -> list[Period]:
    """Measure the scores of one label, whose second class is positive."""
    where = f"label {label}, " if label else ""
    labelled = scored.drop_nulls(SCORE).filter(pl.col(LABEL).is_not_null())
    text = as_text(labelled.get_column(LABEL))
    if strange := set(text.unique()) - set(classes):
        notes.append(f"{where}{len(strange)} values of the label column are not classes of the run; their rows are left out.")
    labelled = labelled.with_columns((text == classes[1]).cast(pl.Float64).alias(LABEL)).filter(text.is_in(list(classes)))
    period_of_row = period_names(labelled.get_column(TIME), every)
    parts = labelled.with_columns(period_of_row.alias("period")).partition_by("period", as_dict=True)
    periods = []
    for (name,), part in sorted(parts.items(), key=lambda item: str(item[0][0])):
        if part.height < FEW:
            notes.append(f"{where}{name}: {part.height} rows have a label, too few for figures (at least {FEW}).")
            continue
        labels_N, scores_N = part.get_column(LABEL).to_numpy(), part.get_column(SCORE).to_numpy()
        periods.append(
            Period(
                name=str(name),
                label=label,
                rows=part.height,
                label_mean=float(np.mean(labels_N)),
                score_mean=float(np.mean(scores_N)),
                auc=_or_none(partial(auc, labels_N, scores_N)),
                calibration_error=_or_none(partial(ace, labels_N, scores_N, bins=contract.evaluation.calibration_bins)),
            )
        )
    return periods


def period_names(times: pl.Series, every: Every) -> pl.Series:
    """Name the period of each row, by date or date and time. Without a time column all rows are in one period."""
    if every == "all" or times.null_count() == len(times):
        return pl.Series(["all"] * len(times), dtype=pl.String)
    times = ordered_times(times, use="time")
    if not times.dtype.is_temporal():
        raise ConfigError(f"--every {every}: the time column has type {times.dtype}; give dates or time stamps, or --every all")
    return times.dt.truncate(_TRUNCATED[every]).dt.date().cast(pl.String).fill_null("no time")


def _or_none(figure: Callable[[], float]) -> float | None:
    try:
        return figure()
    except UndefinedMetric:
        return None
