"""Count for Prometheus: requests, rows by model, batches and their times."""

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tallystick.serving.served_runs import RunsNow

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_DIFFERENCES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 100.0)


class Metrics:
    """The figures of one server. None names a row."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("tallystick_requests", "Requests for scores by status.", ("status",), registry=self.registry)
        self.rows = Counter(
            "tallystick_rows",
            "Rows by what became of them: joint model, own columns, or why there is no score.",
            ("by", "run_id"),
            registry=self.registry,
        )
        self.runs = Gauge("tallystick_runs_served", "1 for each run that is loaded.", ("run_id", "state"), registry=self.registry)
        self.missing = Gauge(
            "tallystick_promotion_missing",
            "1 for each party that has not promoted a run which another party has.",
            ("run_id", "party"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tallystick_request_seconds", "Seconds from a request to its answer.", registry=self.registry, buckets=_SECONDS
        )
        self.partner_seconds = Histogram(
            "tallystick_partner_seconds",
            "Seconds in which the partners answered a batch.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.batch_rows = Histogram(
            "tallystick_batch_rows", "Rows of a batch.", registry=self.registry, buckets=(1, 2, 4, 8, 16, 32)
        )
        self.shadow_rows = Counter(
            "tallystick_shadow_rows",
            "Rows that a candidate was to score beside: compared, or skipped.",
            ("candidate", "outcome"),
            registry=self.registry,
        )
        self.shadow_changed = Counter(
            "tallystick_shadow_changed_rows",
            "Rows compared that are on the other side of the threshold, or of another class.",
            ("candidate",),
            registry=self.registry,
        )
        self.shadow_difference = Histogram(
            "tallystick_shadow_difference",
            "Absolute difference of a candidate's score; of several classes the largest.",
            ("candidate",),
            registry=self.registry,
            buckets=_DIFFERENCES,
        )
        self.lost = Counter(
            "tallystick_answers_not_kept", "Requests that serving.answers could not write down.", registry=self.registry
        )
        self.ready = Gauge("tallystick_partners_ready", "1 while the partners answer.", registry=self.registry)

    def observe_batch(self, rows: int, seconds: float, partner_seconds: float) -> None:  # noqa: ARG002
        """Count a batch that came back."""
        self.batch_rows.observe(rows)
        self.partner_seconds.observe(partner_seconds)

    def observe_shadow(self, candidate: str, differences_B: NDArray[np.float64], changed: int | None) -> None:
        """Observe how much two runs' scores of some rows differ, and how many rows change sides of the threshold.

        The second is None without a threshold.
        """
        self.shadow_rows.labels(candidate, "compared").inc(len(differences_B))
        for difference in differences_B.tolist():
            self.shadow_difference.labels(candidate).observe(difference)
        if changed is not None:
            self.shadow_changed.labels(candidate).inc(changed)

    def skip_shadow(self, candidate: str, rows: int) -> None:
        """Count rows that were not compared."""
        self.shadow_rows.labels(candidate, "skipped").inc(rows)

    def show(self, now: RunsNow) -> None:
        """Show the served runs, and which parties have not promoted which run."""
        self.runs.clear()
        self.missing.clear()
        for run in now.facts()["runs"]:
            self.runs.labels(run["run_id"], run["state"]).set(1)
        for run_id, parties in now.missing.items():
            for party in parties:
                self.missing.labels(run_id, party).set(1)

    def text(self) -> bytes:
        """Write Prometheus' format."""
        return generate_latest(self.registry)
