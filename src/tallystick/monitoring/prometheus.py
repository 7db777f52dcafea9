"""Write the findings of monitoring in Prometheus' text format, for the textfile collector of its node exporter."""

from pathlib import Path

from tallystick.errors import ConfigError
from tallystick.results.monitoring import Monitoring
from tallystick.storage import write_bytes

PREFIX = "tallystick_monitor"


def write_prometheus(monitoring: Monitoring, path: Path) -> None:
    """Write the gauges, completely or not at all. Raises ConfigError without the extra `serve`, StorageError."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise ConfigError("--prometheus: prometheus-client is not installed; run: pip install 'tallystick[serve]'") from None
    registry = CollectorRegistry()
    from prometheus_client import Gauge

    def gauge(name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", what, ["run", *labels], registry=registry)

    run = monitoring.run_id
    gauge("rows", "Rows that were looked at.").labels(run).set(monitoring.rows)
    drifted = gauge("drifted", "Distributions that have moved by an index of 0.1 or more, beyond chance.")
    drifted.labels(run).set(len(monitoring.drifted))
    stability = gauge("stability_index", "Population stability index relative to training.", "column")
    moved = gauge("moved", "1 where the distribution has moved beyond chance.", "column")
    for each in monitoring.compared:
        stability.labels(run, each.name).set(each.stability)
        moved.labels(run, each.name).set(each.state != "same")
    if monitoring.without_score is not None:
        scored = gauge("scored_rows", "Rows with a score, by the model that gave it.", "scored_by")
        for name, count in monitoring.scored_by.items():
            scored.labels(run, name).set(count)
        gauge("rows_without_score", "Rows without a score.").labels(run).set(monitoring.without_score)
    figures = {
        "auc": gauge("auc", "AUC of rows whose labels are there.", "period", "label"),
        "calibration_error": gauge("calibration_error", "Adaptive calibration error of them.", "period", "label"),
    }
    for period in monitoring.periods:
        for name, figure in figures.items():
            if (value := getattr(period, name)) is not None:
                figure.labels(run, period.name, period.label).set(value)
    if monitoring.served is not None:
        partner_share = gauge("partner_share", "Of rows that partners answered for, the share that all had.", "period")
        alone = gauge("own_share", "Share of rows that own columns alone scored.", "period")
        answered = gauge("answered_rows", "Rows by whether they had a joint score, or why not.", "period", "why")
        seconds = gauge("seconds", "Seconds of a request's parts.", "period", "part", "quantile")
        for during in monitoring.served:
            if during.partner_has is not None:
                partner_share.labels(run, during.name).set(during.partner_has)
            alone.labels(run, during.name).set(during.own_share)
            for why, count in during.why.items():
                answered.labels(run, during.name, why).set(count)
            for part in during.latency:
                seconds.labels(run, during.name, part.part, "0.5").set(part.p50 / 1000)
                seconds.labels(run, during.name, part.part, "0.99").set(part.p99 / 1000)
    write_bytes(path, generate_latest(registry))
