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
        # The new rows with key, score, scoring model, label and time, each null if unknown
        if "score" not in look.scores.columns:
            raise ConfigError("scores: there is no column score; give what `predict` wrote for a binary or regression target")
        if "run_id" in look.scores.columns and (other_runs := set(look.scores["run_id"].unique()) - {look.folder.run_id}):
            raise ConfigError(
                f"scores: they are of run {min(other_runs)}, and this is a look at run {look.folder.run_id}; "
                "give --run, or the scores of one run"
            )
        scores = look.scores.select(
            key_of(look.scores, columns=look.party.keys, alignment=look.contract.alignment).alias(KEY),
            pl.col("score").cast(pl.Float64).alias(SCORE),
            (pl.col(SCORED_BY) if SCORED_BY in look.scores.columns else pl.lit(JOINT)).alias(SCORED_BY),
        ).unique(KEY, keep="last")
        rows_R, party = look.keys.rows_R, look.party
        own = pl.DataFrame({KEY: key_of(look.frame, columns=party.keys, alignment=look.contract.alignment).gather(rows_R)})
        for name, columns_of_use in ((LABEL, party.labels), (TIME, (party.time,) if party.time is not None else ())):
            there = [column for column in columns_of_use if column in look.frame.columns]
            values = require_column(look.frame, there[0], use=name).gather(rows_R) if there else pl.Series([None] * len(own))
            own = own.with_columns(values.alias(name))
        scored = own.join(scores, on=KEY, how="left", maintain_order="left")
        counts = scored.drop_nulls(SCORE).group_by(SCORED_BY).len().sort(SCORED_BY)
        scored_by = {str(name): int(count) for name, count in counts.iter_rows()}
    of_scores = scores_drift(look.contract, look.folder, scored, notes) if scored is not None else None
    drifts = judged([*columns, *([of_scores] if of_scores is not None else [])])
    return Monitoring(
        run_id=look.folder.run_id,
        party=look.party.party,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=len(look.keys.rows_R),
        columns=drifts[: len(columns)],
        scores=drifts[len(columns)] if of_scores is not None else None,
        scored_by=scored_by,
        without_score=int(scored.get_column(SCORE).is_null().sum()) if scored is not None else None,
        periods=periods_of(look.contract, look.folder, scored, every=look.every, notes=notes) if scored is not None else [],
        level=LEVEL,
        notes=notes,
    )


def scores_drift(contract: Contract, folder: RunFolder, scored: pl.DataFrame, notes: list[str]) -> Drift | None:
    """Compare the joint model's scores with those of the run's test rows, which training did not use either."""
    if contract.target.type != "binary" or not folder.scores.exists():
        notes.append("Scores are compared with the run's test rows, which only the label party of a binary target keeps.")
        return None
    content = BytesIO(read_own(folder.scores, origin=folder.origin))
    before = pl.read_parquet(content).get_column("score").cast(pl.Float64).to_numpy()
    now = scored.filter(pl.col(SCORED_BY) == JOINT).get_column(SCORE).drop_nulls().to_numpy()
    if not len(now):
        notes.append("No row has a score of the joint model.")
        return None
    drift = numeric_drift(numeric_profile("scores of the joint model", before), now)
    return Drift(name=drift.name, kind="scores", rows=drift.rows, stability=drift.stability, chance=drift.chance)


def periods_of(contract: Contract, folder: RunFolder, scored: pl.DataFrame, *, every: Every, notes: list[str]) -> list[Period]:
    """Measure the scores of rows whose labels have arrived, the earliest period first.

    ``scored`` has score, label and time of each row, null if unknown.
    """
    if contract.target.type != "binary" or not folder.label_coder.exists():
        notes.append("How good scores were is told for binary targets, at the label party.")
        return []
    coder = LabelCoder.from_json(folder.read_json(folder.label_coder))
    labelled = scored.drop_nulls(SCORE).filter(pl.col(LABEL).is_not_null())
    text = as_text(labelled.get_column(LABEL))
    if strange := set(text.unique()) - set(coder.classes):
        notes.append(f"{len(strange)} values of the label column are not classes of the run; their rows are left out.")
    labelled = labelled.with_columns((text == coder.classes[1]).cast(pl.Float64).alias(LABEL)).filter(
        text.is_in(list(coder.classes))
    )
    period_of_row = period_names(labelled.get_column(TIME), every)
    parts = labelled.with_columns(period_of_row.alias("period")).partition_by("period", as_dict=True)
    periods = []
    for (name,), part in sorted(parts.items(), key=lambda item: str(item[0][0])):
        if part.height < FEW:
            notes.append(f"{name}: {part.height} rows have a label, too few for figures (at least {FEW}).")
            continue
        labels_N, scores_N = part.get_column(LABEL).to_numpy(), part.get_column(SCORE).to_numpy()
        periods.append(
            Period(
                name=str(name),
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
