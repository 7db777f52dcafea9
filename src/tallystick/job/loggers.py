"""Write the results of a run to TensorBoard or MLflow, in addition to the report, if the party file names them.

They receive only what this party's own report holds.
"""

import math
import os
import re
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError
from tallystick.results import Result

PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}  # MLflow would wait minutes for a server that does not answer
MOST_METRICS = 1000  # the most that MLflow accepts at a time


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A run in the form that loggers take.

    Args:
        run: its id, which all parties know.
        name: of the contract.
        settings: by name, as text.
        curves: (name, epoch from 1, value), in the order of the epochs.
        figures: numbers by name.
    """

    run: str
    name: str
    settings: dict[str, str]
    curves: list[tuple[str, int, float]]
    figures: dict[str, float]


class Logger(Protocol):
    """Writes the facts of one run. Raises OSError or its library's error."""

    def __call__(self, facts: Facts) -> None:
        """Write the facts."""
        ...


def facts_of(result: Result) -> Facts:
    """Collect the named numbers of a result."""
    settings = {
        "party": result.party or "all",
        "role": result.role or "",
        "contract": result.contract.hash,
        "started": result.started,
        **{f"version {name}": version for name, version in result.versions.items()},
    }
    curves = []
    for name, training in (("joint", result.training), ("own columns", result.local_baseline_training)):
        for epoch in training.history if training is not None else ():
            for part, loss in (("training loss", epoch.train_loss), ("validation loss", epoch.validation_loss)):
                if loss is not None:
                    curves.append((f"{name}/{part}", epoch.epoch, loss))
    figures: dict[str, float | None] = {"run/seconds": result.seconds}
    for whose, metrics in (("joint", result.joint), ("own columns", result.local_baseline)):
        figures |= {f"{whose}/{name}": value["value"] for name, value in metrics.items()}
    for attack in result.label_audit.attacks:
        leak = f"leak of labels/{attack.name} {attack.view}"
        figures |= {f"{leak}/auc": attack.auc, f"{leak}/rank correlation": attack.spearman}
    for audit in result.sections.features:
        for column in audit.columns:
            figures[f"leak of columns/{column.name} knowing {column.known} rows"] = column.value
        for group in audit.groups:
            for column in group.columns:
                figures[f"leak of columns/{group.rows} {column.name} knowing {column.known} rows"] = column.value
    return Facts(
        run=result.run_id,
        name=result.contract.name,
        settings=settings,
        curves=curves,
        figures={name: figure for name, figure in figures.items() if figure is not None and math.isfinite(figure)},
    )


def logged_name(name: str) -> str:
    """Return a name of letters, digits, spaces and ``_-./``, which every logger accepts."""
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)


@dataclass(frozen=True)
class TensorBoardLogger:
    """Writes TensorBoard's events into a folder of the run's own."""

    folder: Path

    def __call__(self, facts: Facts) -> None:
        """Write curves by epoch, figures at step 0, and what was run as text."""
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder)) as writer:
            for name, epoch, value in facts.curves:
                writer.add_scalar(logged_name(name), value, epoch)
            for name, value in facts.figures.items():
                writer.add_scalar(logged_name(name), value, 0)
            text_values = {"run": facts.run, "contract name": facts.name, **facts.settings}
            writer.add_text("run", "\n".join(f"- {name}: {value}" for name, value in text_values.items()))


@dataclass(frozen=True)
class MlflowLogger:
    """Writes a run into an experiment of a tracking server. MLflow takes its credentials from its own environment variables.

    The experiment is made if it is not there.
    """

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


def loggers_of(party: PartyFile, *, folder: Path) -> dict[str, Logger]:
    """Return the loggers that the party file names.

    Raises ConfigError, which says what to install, for one whose library is not there.
    """
    loggers: dict[str, Logger] = {}
    for name, settings in (("tensorboard", party.loggers.tensorboard), ("mlflow", party.loggers.mlflow)):
        if settings is not None and find_spec(name) is None:
            raise ConfigError(f"loggers.{name}: its library is not installed; run: pip install 'tallystick[{name}]'")
    if party.loggers.tensorboard is not None:
        loggers["tensorboard"] = TensorBoardLogger(party.loggers.tensorboard.folder / folder.name)
    if party.loggers.mlflow is not None:
        loggers["mlflow"] = MlflowLogger(party.loggers.mlflow.tracking, party.loggers.mlflow.experiment)
    return loggers
