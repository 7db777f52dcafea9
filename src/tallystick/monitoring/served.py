"""Monitor online answers, from the answers that the label party keeps. Shapes: N rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import polars as pl

from tallystick.config.contract import Contract
from tallystick.errors import ConfigError
from tallystick.monitoring.drift import LEVEL, categorical_drift, judged, numeric_drift
from tallystick.monitoring.monitor import KEY, SCORED_BY, TIME, Every, period_names, periods_of, score_names, scores_drift
from tallystick.results.monitoring import Drift, Latency, Monitoring, Period, ServedPeriod
from tallystick.run_folder.answer_journal import AnsweredRow, KeptAnswer, read_answers, row_digest, serving_secret, short
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.profile import CategoricalProfile, NumericProfile, kept_profile
from tallystick.run_folder.trained import kept_encoder
from tallystick.tables.categories import MISSING, UNSEEN


@dataclass(frozen=True, kw_only=True)
class ServedLook:
    """Inputs of monitoring served answers.

    Args:
        contract: as in a run.
        party: the monitoring party.
        folder: folder of the served run.
        labels: normalised ``key`` and ``label`` of rows whose labels have arrived, or ``label_NAME`` for each of several labels;
            None if none are given.
        since: the first day that counts (UTC); None for everything that is kept.
        every: length of the periods.
    """

    contract: Contract
    party: str
    folder: RunFolder
    labels: pl.DataFrame | None = None
    since: date | None = None
    every: Every = "month"


def monitor_served(look: ServedLook) -> Monitoring:
    """Compare the answers with training, and their scores with the labels that have arrived. Nothing is sent.

    A row that was asked for several times counts once in comparisons, by its last answer, and once in each period of the
    measurements. Raises ConfigError if no answer is kept, and DamagedFile.
    """
    answers = list(read_answers(look.folder, since=look.since))
    rows = [(each.at, row) for each in answers for row in each.rows]
    if not rows:
        raise ConfigError(
            f"--served: {look.folder.path} keeps no answer{' since then' if look.since else ''}; name serving.answers in the "
            "party file and serve, or give --run for another run"
        )
    full = sorted({each.at.date().isoformat() for each in answers if each.full})
    notes = [f"{len(full)} days' files were full, {full[-1]} last; what was answered after is not kept."] if full else []
    if look.labels is None:
        notes.append("No labels were given (--labels).")
    columns = _columns(look.folder, [row for _, row in rows], notes)
    names = score_names(look.contract)
    scored = pl.DataFrame(
        {
            KEY: [row.row for _, row in rows],
            SCORED_BY: [row.by for _, row in rows],
            TIME: [at.replace(tzinfo=None) for at, _ in rows],
            **{
                name: [row.scores[place] if len(row.scores) == len(names) else None for _, row in rows]
                for place, name in enumerate(names)
            },
        },
        schema={KEY: pl.String, SCORED_BY: pl.String, TIME: pl.Datetime, **dict.fromkeys(names, pl.Float64)},
    )
    of_scores = scores_drift(look.contract, look.folder, scored.unique(KEY, keep="last"), notes)
    drifts = judged([*columns, *of_scores.values()])
    judged_scores = dict(zip(of_scores, drifts[len(columns) :], strict=True))
    # Summarise shares and latency by time, the earliest first
    requests = [each for each in answers if each.rows]
    times = pl.Series([each.at.replace(tzinfo=None) for each in requests], dtype=pl.Datetime)
    parts: dict[str, list[KeptAnswer]] = {}
    for name, each in zip(period_names(times, look.every), requests, strict=True):
        parts.setdefault(name, []).append(each)
    served = []
    for name, part in sorted(parts.items()):
        rows_of_part = [row for each in part for row in each.rows]
        latency = []
        for step in ("all", "waiting", "partners", "scoring"):
            if spent := [each.ms[step] for each in part if step in each.ms]:
                latency.append(Latency(part=step, p50=float(np.quantile(spent, 0.5)), p99=float(np.quantile(spent, 0.99))))
        served.append(
            ServedPeriod(
                name=name,
                requests=len(part),
                rows=len(rows_of_part),
                why=_counted(row.why for row in rows_of_part),
                scored_by=_counted(row.by for row in rows_of_part if row.by is not None),
                latency=latency,
            )
        )
    # Measure the scores by the labels that have arrived
    periods: list[Period] = []
    if look.labels is not None:
        secret = serving_secret(look.folder)
        digests = [row_digest(key.encode(), secret) if key is not None else None for key in look.labels.get_column(KEY)]
        labels = look.labels.with_columns(pl.Series(KEY, digests, dtype=pl.String)).drop_nulls(KEY)
        if (answered := labels.get_column(KEY).is_in(scored.get_column(KEY).unique().to_list()).sum()) == 0:
            notes.append("No label belongs to a row that was answered; check the key columns of --labels.")
        else:
            notes.append(f"{answered:,} of {labels.height:,} given labels are of rows that were answered.")
        period_of_row = period_names(scored.get_column(TIME), look.every)
        last = scored.with_columns(period_of_row.alias("_period")).unique([KEY, "_period"], keep="last", maintain_order=True)
        labels = labels.unique(KEY, keep="last")
        joined = last.join(labels, on=KEY, how="left", maintain_order="left")
        periods = periods_of(look.contract, look.folder, joined, every=look.every, notes=notes)
    return Monitoring(
        run_id=look.folder.run_id,
        party=look.party,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=len(rows),
        columns=drifts[: len(columns)],
        scores=judged_scores.pop("", None),
        scores_by_label=judged_scores,
        scored_by=_counted(row.by for _, row in rows if row.by is not None),
        without_score=sum(row.by is None for _, row in rows),
        periods=periods,
        served=served,
        level=LEVEL,
        notes=notes,
    )


def _columns(folder: RunFolder, rows: Sequence[AnsweredRow], notes: list[str]) -> list[Drift]:
    """Compare own columns, as the network read them, with those of the training rows."""
    encoder = kept_encoder(folder)
    if encoder is None:
        notes.append("This party has no column in the model.")
        return []
    sampled = list({row.row: row for row in rows if row.numbers is not None}.values())
    if not sampled:
        notes.append("No row's own columns were sampled (serving.answers.columns).")
        return []
    if encoder.sequences:
        notes.append("Columns of lists are not compared.")
    notes.append(
        f"Own columns are those of {len(sampled):,} sampled rows, as the network reads them: a number beyond those of training "
        "counts as the nearest, and a missing one as the mean where training had none missing."
    )
    before = kept_profile(folder)
    numbers_NF = np.array([row.numbers for row in sampled], dtype=np.float32).reshape(len(sampled), -1)
    codes_NG = np.array([row.codes for row in sampled], dtype=np.int64).reshape(len(sampled), -1)
    drifts = []
    for place, (column, profile) in enumerate(zip(encoder.categorical, before.categorical, strict=True)):
        # The training rows' categories by code: all without a code of their own are "others"
        codes = pl.Series(column.name, codes_NG[:, place])
        codes_C = column.encode(pl.Series([name for name, _ in profile.counts], dtype=pl.String)).tolist()
        counts = [count for _, count in profile.counts]
        counts_by_code = tuple((str(code), count) for code, count in zip(codes_C, counts, strict=True) if code != UNSEEN)
        rest = profile.others + sum(count for code, count in zip(codes_C, counts, strict=True) if code == UNSEEN)
        drifts.append(
            categorical_drift(
                CategoricalProfile(name=profile.name, missing=profile.missing, counts=counts_by_code, others=rest),
                codes.set(codes == MISSING, None),
            )
        )
    numeric_drifts, indicators = [], len(encoder.numeric)
    for place, (numbers, before_numbers) in enumerate(zip(encoder.numeric, before.numeric, strict=True)):
        values_N = numbers_NF[:, place].astype(np.float64)
        if numbers.indicator:
            values_N[numbers_NF[:, indicators] > 0] = np.nan
            indicators += 1
        # The training rows' numbers as the network read them, also with 32 bits
        points = short(numbers.encode(np.array(before_numbers.points)).astype(np.float32))
        numeric_drifts.append(
            numeric_drift(
                NumericProfile(name=before_numbers.name, rows=before_numbers.rows, missing=before_numbers.missing, points=points),
                values_N,
            )
        )
    return [*numeric_drifts, *drifts]


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
