"""MLflow: a run in an experiment of a tracking server, whose credentials MLflow takes from its own environment variables."""

import os
import time
from dataclasses import dataclass

from tallystick.job.loggers.facts import Facts, logged_name

PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}  # else minutes, for a server that is away
MOST_METRICS = 1000  # that MLflow takes at a time


@dataclass(frozen=True)
class MlflowLogger:
    """Writes a run into an experiment, which is made if it is not there."""

    tracking: str
    experiment: str

    def __call__(self, facts: Facts) -> None:
        """Write curves by epoch, figures at step 0, and what was run as parameters."""
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        client, now = MlflowClient(tracking_uri=self.tracking), int(time.time_ns() // 1_000_000)
        existing = client.get_experiment_by_name(self.experiment)
        experiment = existing.experiment_id if existing is not None else client.create_experiment(self.experiment)
        run = client.create_run(experiment, run_name=f"{facts.name} {facts.run}", tags={"tallystick.run": facts.run}).info.run_id
        metrics = [Metric(logged_name(name), value, now, epoch) for name, epoch, value in facts.curves]
        metrics += [Metric(logged_name(name), value, now, 0) for name, value in facts.figures.items()]
        client.log_batch(run, params=[Param(logged_name(name), value[:500]) for name, value in facts.settings.items()])
        for start in range(0, len(metrics), MOST_METRICS):
            client.log_batch(run, metrics=metrics[start : start + MOST_METRICS])
        client.set_terminated(run)
