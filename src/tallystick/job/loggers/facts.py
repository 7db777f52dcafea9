"""Collect what a logger is told of a run: what this party's own report holds, and nothing else."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError
from tallystick.results import Result


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A run in the form that loggers take.

    Args:
        run: its id, which all parties know.
        name: of the contract.
        settings: names of what was run, to text.
        curves: (name, epoch from 1, value), in the order of the epochs.
        figures: names to numbers.
    """

    run: str
    name: str
    settings: dict[str, str]
    curves: list[tuple[str, int, float]]
    figures: dict[str, float]


class Logger(Protocol):
    """Writes the facts of one run; raises OSError or its library's error."""

    def __call__(self, facts: Facts) -> None:
        """Write them."""
        ...


def facts_of(result: Result) -> Facts:
    """Take from a result what has a name and a number."""
    settings = {
        "party": result.party or "all",
        "role": result.role or "",
        "contract": result.contract.hash,
        "started": result.started,
        **{f"version {name}": version for name, version in result.versions.items()},
    }
    return Facts(
        run=result.run_id,
        name=result.contract.name,
        settings=settings,
        curves=list(_curves(result)),
        figures=dict(each for each in _figures(result) if math.isfinite(each[1])),
    )


def _curves(result: Result) -> Iterator[tuple[str, int, float]]:
    for name, training in (("joint", result.training), ("own columns", result.local_baseline_training)):
        for epoch in training.history if training is not None else ():
            for part, value in (("training loss", epoch.train_loss), ("validation loss", epoch.validation_loss)):
                if value is not None:
                    yield f"{name}/{part}", epoch.epoch, value


def _figures(result: Result) -> Iterator[tuple[str, float]]:
    yield "run/seconds", result.seconds
    for whose, metrics in (("joint", result.joint), ("own columns", result.local_baseline)):
        for name, value in metrics.items():
            if value["value"] is not None:
                yield f"{whose}/{name}", value["value"]
    for attack in result.label_audit.attacks:
        for kind, figure in (("auc", attack.auc), ("rank correlation", attack.spearman)):
            if figure is not None:
                yield f"leak of labels/{attack.name} {attack.view}/{kind}", figure
    for audit in result.sections.features:
        for column in audit.columns:
            yield f"leak of columns/{column.name} knowing {column.known} rows", column.value
        for group in audit.groups:
            for column in group.columns:
                yield f"leak of columns/{group.rows} {column.name} knowing {column.known} rows", column.value


def logged_name(name: str) -> str:
    """Return a name of letters, digits, spaces and ``_-./``, which every logger takes."""
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)


def loggers_of(party: PartyFile, *, folder: Path) -> dict[str, Logger]:
    """Return the loggers that the party file names.

    Raises ConfigError, which says what to install, for one whose library is not there.
    """
    loggers: dict[str, Logger] = {}
    for name, settings in (("tensorboard", party.loggers.tensorboard), ("mlflow", party.loggers.mlflow)):
        if settings is not None and find_spec(name) is None:
            raise ConfigError(f"loggers.{name}: its library is not installed; run: pip install 'tallystick[{name}]'")
    if party.loggers.tensorboard is not None:
        from tallystick.job.loggers.tensorboard import TensorBoardLogger

        loggers["tensorboard"] = TensorBoardLogger(party.loggers.tensorboard.folder / folder.name)
    if party.loggers.mlflow is not None:
        from tallystick.job.loggers.mlflow import MlflowLogger

        loggers["mlflow"] = MlflowLogger(party.loggers.mlflow.tracking, party.loggers.mlflow.experiment)
    return loggers
