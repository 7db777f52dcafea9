"""Time an epoch with unaligned rows and one without them, over TLS: ``tallystick bench training --unaligned METHOD``.

Columns and batch are those of the scenario ``small`` of ``training.py``. Its 20,000 rows are aligned, and the label party has
four times as many further rows (FedAds' shares). The network is the one that a contract without ``model`` and ``training`` makes
for such columns. Both ways are trained in turns, synchronously and on the same aligned rows, so that both see the same machine.
Ratios are medians over the turns. The part before the joint epochs is timed separately, because it comes once in a run of any
length.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tallystick.config.sections import NetworkModel, SynchronousTraining, TrainingConfig
from tallystick.config.unaligned import CLASSES, METHODS, UnalignedKeys
from tallystick.cut.forward import FeatureSource
from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, run_parties
from tallystick.errors import ConfigError
from tallystick.models.build import BranchParts, build_bottom, width_of
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel
from tallystick.tables.bins import bin_edges
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.plan import Schedule, no_positions
from tallystick.training.step_rule import PLAIN
from tallystick.training.unaligned.method import OwnPart, UnalignedMethod
from tallystick.training.unaligned.method_table import method_of
from tallystick.training.unaligned.schedule import rows_ratio, scheduled
from tallystick_experiments.speed.training import SCENARIOS, Clock, SpeedData, SpeedScenario, Turn, train_feature, train_label

NONE = "none"
TIMES_ALIGNED = 4  # unaligned rows for each aligned one
VALIDATION = 0.1  # share of the unaligned rows, which decide when the part before the joint epochs stops
EPOCHS, TURNS = 5, 5
MODEL = NetworkModel()

Seconds = Mapping[str, Sequence[float]]


def measure_unaligned(*, method: str, turns: int | None = None, timeout_s: float = 3600) -> dict[str, Any]:
    """Compare one method with none: seconds of the part before the joint epochs, and seconds of a joint epoch.

    Raises ConfigError for an unknown method.
    """
    if method not in METHODS or method == NONE:
        raise ConfigError(f"--unaligned {method}: expected one of {', '.join(name for name in METHODS if name != NONE)}")
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        arguments = {"method": method, "turns": turns or TURNS}
        seconds = run_parties(Path(folder), unaligned_party, PAIR, arguments, timeout_s=timeout_s).results[LABEL]
    scenario = SCENARIOS["small"]
    shares = {"aligned_rows": scenario.rows, "unaligned_rows": TIMES_ALIGNED * scenario.rows, "cores": scenario.cores}
    return {"scenario": "small", **shares, **figures(method, seconds)}


def figures(method: str, seconds: Mapping[str, Seconds]) -> dict[str, Any]:
    """Compute medians over the turns, and of each turn's ratio to the same turn's epoch without unaligned rows."""
    epochs, plain, before = seconds[method]["epoch"], seconds[NONE]["epoch"], seconds[method]["before"]
    return {
        "method": method,
        "epoch_s": statistics.median(epochs),
        "none_epoch_s": statistics.median(plain),
        "epoch_ratio": statistics.median(a / b for a, b in zip(epochs, plain, strict=True)),
        "before_s": statistics.median(before),
        "before_in_epochs_of_none": statistics.median(a / b for a, b in zip(before, plain, strict=True)),
        "turns": seconds,
    }


def unaligned_party(stage: PartyContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one party's process."""
    (channel,) = stage.channels.values()
    rows = TimedRows.of(SCENARIOS["small"])
    torch.set_num_threads(rows.scenario.cores)
    turns = [name for _ in range(arguments["turns"]) for name in (NONE, arguments["method"])]
    if stage.name == LABEL:
        return as_label_party(rows, channel, turns)
    as_feature_party(rows, channel, turns)
    return {}


@dataclass(frozen=True, kw_only=True)
class TimedRows:
    """Hold the same rows in both processes: the scenario's, which are aligned, and then the unaligned ones."""

    scenario: SpeedScenario
    data: SpeedData
    shapes: Mapping[str, FeatureShape]
    aligned_N: Tensor
    unaligned_N: Tensor
    validation_N: Tensor

    @classmethod
    def of(cls, scenario: SpeedScenario) -> "TimedRows":
        """Draw the rows. Some unaligned ones are set aside to stop the training before the joint epochs."""
        aligned, more = scenario.rows, TIMES_ALIGNED * scenario.rows
        data = SpeedData(replace(scenario, rows=aligned + more, quality_epochs=0))
        assert scenario.own is not None
        assert data.own is not None
        unaligned_N = torch.arange(aligned, aligned + more)
        validation_count = int(VALIDATION * more)
        return cls(
            scenario=scenario,
            data=data,
            shapes={LABEL: binned(scenario.own, data.own), FEATURE: binned(scenario.feature, data.feature)},
            aligned_N=torch.arange(aligned),
            unaligned_N=unaligned_N[validation_count:],
            validation_N=unaligned_N[:validation_count],
        )

    @property
    def training(self) -> TrainingConfig:
        """Return the training that the contract's defaults make for these rows, on the scenario's batches."""
        resolved = SynchronousTraining(folds=1).resolved(self.scenario.rows)
        return timed(resolved, self.scenario).model_copy(update={"epochs": EPOCHS})

    def schedule(self, settings: UnalignedKeys, local_N: Tensor) -> Schedule:
        """Build the batches of all epochs, as the dataset of a job makes them."""
        plain = Schedule(train_N=self.aligned_N, validation_N=no_positions(), batch_size=self.scenario.batch_size, seed=1)
        return scheduled(plain, settings, local_N)

    def method(self, settings: UnalignedKeys, schedule: Schedule) -> UnalignedMethod | None:
        """Build the method for the unaligned rows."""
        if not settings.used:
            return None
        ratio = rows_ratio(schedule) if schedule.local_batches else len(self.unaligned_N) / len(self.aligned_N)
        return method_of(settings, batch_size=schedule.batch_size, ratio=ratio, seed=1)

    @contextmanager
    def own_part(self, source: FeatureSource, train_N: Tensor) -> Iterator[OwnPart]:
        """Yield the data that a party may train on before the joint epochs."""
        with tempfile.TemporaryDirectory() as folder:
            yield OwnPart(
                source=source,
                train_N=train_N,
                validation_N=self.validation_N,
                training=self.training,
                store=lambda name: CheckpointStore(Path(folder) / name),
                seed=1,
                start=1,
            )


def as_label_party(rows: TimedRows, channel: Channel, turns: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Train with each of these methods in turn, and return the seconds of the part before the joint epochs, and of a
    joint epoch.
    """
    times: dict[str, dict[str, list[float]]] = {name: {"before": [], "epoch": []} for name in turns}
    width = width_of(_bottom(rows))
    parts = BranchParts(model=MODEL, party=LABEL, own=rows.shapes[LABEL], cut_width=width, outputs=1, seed=1)
    for name in turns:
        channel.receive(Turn)
        began = time.perf_counter()
        settings = CLASSES[name].model_validate({"method": name})
        schedule = rows.schedule(settings, rows.unaligned_N)
        method = rows.method(settings, schedule)
        model: LabelModel = parts.joint()
        if method is not None:
            model = method.model(parts)
            with rows.own_part(rows.data.own_source, rows.unaligned_N) as own:
                method.prepare(model, rows.data.objective, own)
        channel.receive(Turn)  # by then the feature party's part before it is done too
        before = schedule.epochs_before
        clock = Clock(schedule.steps_before(before) + 1, schedule.steps_before(before + EPOCHS))
        step_rule = method or PLAIN
        train_label(model, rows.data, channel, rows.training, schedule, width=width, step_rule=step_rule, clock=clock)
        times[name]["before"].append(clock.began - began)
        times[name]["epoch"].append(schedule.steps_per_epoch / clock.rate())
    return times


def as_feature_party(rows: TimedRows, channel: Channel, turns: Sequence[str]) -> None:
    """Train as the feature party with each of these methods."""
    for name in turns:
        channel.send(Turn(mode=name))
        settings = CLASSES[name].model_validate({"method": name})
        schedule = rows.schedule(settings, no_positions())
        method, bottom = rows.method(settings, schedule), _bottom(rows)
        if method is not None:
            with rows.own_part(rows.data.feature_source, torch.cat([rows.aligned_N, rows.unaligned_N])) as own:
                method.prepare_bottom(bottom, own)
        channel.send(Turn(mode=name))
        train_feature(bottom, rows.data, channel, rows.training, schedule)


def _bottom(rows: TimedRows) -> nn.Module:
    return build_bottom(MODEL, FEATURE, rows.shapes[FEATURE], seed=1)


def binned(shape: FeatureShape, columns: Features) -> FeatureShape:
    """Return these columns' shape with the bins of their numbers."""
    edges = tuple(bin_edges(column_N.double().numpy()) for column_N in columns.numeric_NF.T)
    return replace(shape, numbers="piecewise-linear", edges=edges)


def timed(settled: TrainingConfig, scenario: SpeedScenario) -> TrainingConfig:
    """Return a default's own optimizer, schedule and averages, for an epoch of the scenario's batches without early stopping."""
    changed = {"epochs": 1, "batch_size": scenario.batch_size, "patience": None, "checkpoint_every": 1_000_000}
    return settled.model_copy(update=changed)
