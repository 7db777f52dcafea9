"""Hold the findings of monitoring: facts that the page, JSON and Prometheus show."""

from typing import Any, Literal

import msgspec

DriftState = Literal["unjudged", "same", "little", "some", "much"]


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Compare one column, or the scores, with the run's data.

    Args:
        name: the name of the column.
        kind: numeric, categorical or scores.
        rows: the number of rows that were examined.
        stability: the population stability index.
        chance: the chance of rows as different as these if nothing changed, before the correction for the number of columns.
        missing_before, missing_now: shares of missing cells.
        state: same, or little, some or much by the index if the change is more than chance.
    """

    name: str
    kind: Literal["numeric", "categorical", "scores"]
    rows: int
    stability: float
    chance: float
    missing_before: float = 0.0
    missing_now: float = 0.0
    state: DriftState = "unjudged"

    def with_state(self, state: DriftState) -> "Drift":
        """Return the same drift, judged."""
        return msgspec.structs.replace(self, state=state)


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the rows of one period with known labels, and how good their scores were. A figure is None if it has no value.

    ``label`` names one of several labels.
    """

    name: str
    label: str = ""
    rows: int
    label_mean: float
    score_mean: float
    auc: float | None
    calibration_error: float | None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Hold milliseconds of one part of the answers: half of them took at most ``p50``, and one in a hundred more than ``p99``."""

    part: str
    p50: float
    p99: float


class ServedPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the answers of one period of serving.

    Args:
        name: the name of the period.
        requests, rows: the requests and rows that were answered.
        why: rows by whether they had a joint score, or why not (unknown, absent, budget, away).
        scored_by: rows by the model that scored them.
        latency: the latency, by part.
    """

    name: str
    requests: int
    rows: int
    why: dict[str, int]
    scored_by: dict[str, int]
    latency: list[Latency]

    @property
    def partner_has(self) -> float | None:
        """Return the share of the rows answered by partners that all partners had, or None if there are none."""
        joint, absent = self.why.get("joint", 0), self.why.get("absent", 0)
        return joint / (joint + absent) if joint + absent else None

    @property
    def own_share(self) -> float:
        """Return the share of the rows that own columns alone scored."""
        return self.scored_by.get("own columns", 0) / self.rows


class Monitoring(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one party's findings about a run in use.

    Args:
        run_id: the id of the run.
        party: the party whose view this is.
        made: the time, UTC.
        rows: new rows of the table that were examined, or rows that were answered online.
        columns: drift of own columns.
        scores: drift of the joint model's scores from those of the run's test rows; None if there is nothing to compare.
        scores_by_label: the same for each of several labels.
        scored_by: the number of scores by each model, if scores were given.
        without_score: the number of these rows without a score.
        served: answers online, by time; None if a table was examined.
        periods: how good scores were, by time.
        level: the chance that anything is called drifted if nothing is.
        notes: what was left out, and why.
    """

    run_id: str
    party: str
    made: str
    rows: int
    columns: list[Drift]
    scores: Drift | None = None
    scores_by_label: dict[str, Drift] = {}
    scored_by: dict[str, int] = {}
    without_score: int | None = None
    periods: list[Period] = []
    served: list[ServedPeriod] | None = None
    level: float
    notes: list[str] = []

    @property
    def compared(self) -> list[Drift]:
        """List the columns and scores that were compared with training."""
        return [*self.columns, *([self.scores] if self.scores is not None else []), *self.scores_by_label.values()]

    @property
    def drifted(self) -> list[Drift]:
        """List the columns and scores that differ from training."""
        return [each for each in self.compared if each.state in ("some", "much")]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values
