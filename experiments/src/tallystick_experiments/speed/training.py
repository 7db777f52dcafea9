"""Measure the speed of federated training, and of the same model in one process: ``tallystick bench training``.

There are three scenarios. ``small`` has 20,000 rows, the feature party's 20 columns through 20-128-64, the label party's 20
columns next to the cut, top 84-64-1, batch 256, Adam, one thread each. ``criteo`` has 26 categoricals of 100,000 values at width
4 and 13 numerics at the feature party, 4 layers of 128 cut after the second, batch 8,192, Adam, all cores. ``wide`` has the same
columns and layers of 2,048, 2,048 and 128, cut there, then two of 2,048. On another device, rows and weights of both parties are
there, and data crosses through the CPU's memory, as between two machines. The feature party's process also trains the joined
model with PyTorch's usual loop, in turns with the federated runs, so that both see the same machine. Ratios are medians over the
turns. Models with categoricals are also trained with PyTorch's own embedding lookup, whose gradient is slower on a CPU than ours
(models/tabular.py), as they would be without tallystick.
"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tallystick.config.sections import TrainingConfig
from tallystick.cut.forward import crossing, logits_over, no_columns, send_embeddings
from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, run_parties
from tallystick.errors import ConfigError
from tallystick.metrics import auc
from tallystick.models.build import seeded
from tallystick.models.split import CentralizedModel, LabelModel
from tallystick.models.tabular import Columns, TabularBottom, TabularTop
from tallystick.network.channel import Channel, Progress, no_progress
from tallystick.network.messages import Message
from tallystick.tables.features import Features, FeatureShape
from tallystick.training.centralized import train_joined
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.feature_party import train_feature_party
from tallystick.training.label_party import FeaturePeer, train_label_party
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun
from tallystick.training.step_rule import PLAIN, StepRule
from tallystick_experiments.observed_training import PLAIN_ADAM

STALENESS = 8


@dataclass(frozen=True, kw_only=True)
class SpeedScenario:
    """Set the sizes of a speed benchmark."""

    rows: int
    batch_size: int
    feature: FeatureShape
    own: FeatureShape | None
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    threads: int
    steps: int
    warm_up: int
    quality_epochs: int
    turns: int
    device: str = "cpu"

    @property
    def cores(self) -> int:
        """Return the number of cores that one process trains on."""
        return self.threads or len(os.sched_getaffinity(0))

    def threads_in(self, mode: str) -> int:
        """Return a party's threads: synchronous parties compute in turns, pipelined ones at the same time."""
        return self.cores if self.threads or mode == "synchronous" else max(1, self.cores // 2)


SCENARIOS = {
    "small": SpeedScenario(
        rows=20_000,
        batch_size=256,
        feature=FeatureShape(numeric=20, cardinalities=()),
        own=FeatureShape(numeric=20, cardinalities=()),
        bottom=(128, 64),
        top=(64,),
        threads=1,
        steps=1_500,
        warm_up=200,
        quality_epochs=5,
        turns=5,
    ),
    "criteo": SpeedScenario(
        rows=81_920,
        batch_size=8_192,
        feature=FeatureShape(numeric=13, cardinalities=(100_000,) * 26),
        own=None,
        bottom=(128, 128),
        top=(128, 128),
        threads=0,
        steps=36,
        warm_up=12,
        quality_epochs=0,
        turns=11,
    ),
    "wide": SpeedScenario(
        rows=81_920,
        batch_size=8_192,
        feature=FeatureShape(numeric=13, cardinalities=(100_000,) * 26),
        own=None,
        bottom=(2_048, 2_048, 128),
        top=(2_048, 2_048),
        threads=0,
        steps=24,
        warm_up=8,
        quality_epochs=0,
        turns=3,
    ),
}


class Turn(Message, frozen=True):
    """Sent by the feature party's process between turns. The label party's process waits for it."""

    mode: str


def measure_training(
    *, scenario: str = "small", turns: int | None = None, device: str = "cpu", timeout_s: float = 7200
) -> dict[str, Any]:
    """Measure one scenario: steps per second synchronously, pipelined and in one process, with their ratios.

    Raises ConfigError for a device that PyTorch cannot use here.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {device}: PyTorch cannot use it ({str(error).splitlines()[0]}); use cpu") from None
    arguments = {"scenario": scenario, "turns": turns or SCENARIOS[scenario].turns, "device": device}
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        results = run_parties(Path(folder), training_party, PAIR, arguments, timeout_s=timeout_s).results
    measured = results[FEATURE]
    rates = {mode: statistics.median(values) for mode, values in measured["steps_per_s"].items()}
    per_turn = measured["steps_per_s"]
    report: dict[str, Any] = {
        "scenario": scenario,
        "device": torch.cuda.get_device_name(device) if device != "cpu" else device,
        "steps_per_s": rates["synchronous"],
        "pipelined_steps_per_s": rates["pipelined"],
        "centralized_steps_per_s": rates["centralized"],
        "staleness": STALENESS,
        "turns": per_turn,
        "cores": SCENARIOS[scenario].cores,
    }
    for mode, name in (("synchronous", "ratio"), ("pipelined", "pipelined_ratio")):
        report[name] = _ratio(per_turn[mode], per_turn["centralized"])
    if "plain" in rates:
        report["plain_pytorch_steps_per_s"] = rates["plain"]
        for mode, name in (("synchronous", "ratio"), ("pipelined", "pipelined_ratio")):
            report[f"{name}_to_plain_pytorch"] = _ratio(per_turn[mode], per_turn["plain"])
    return report | {f"test_auc_{mode}": value for mode, value in results[LABEL]["auc"].items()}


def _ratio(rates: list[float], others: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(rates, others, strict=True))


def training_party(stage: PartyContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one party's process."""
    (channel,) = stage.channels.values()
    scenario = replace(SCENARIOS[arguments["scenario"]], device=arguments["device"])
    torch.set_num_threads(scenario.cores)
    data = SpeedData(scenario)
    if stage.name == LABEL:
        width = scenario.bottom[-1]
        for _ in range(2 * arguments["turns"]):
            mode = channel.receive(Turn).mode
            torch.set_num_threads(scenario.threads_in(mode))
            train_label(modules(scenario)[1], data, channel, _training(mode, 1), data.long_schedule(scenario.steps), width=width)
        scores = {}
        for mode in ("synchronous", "pipelined") if scenario.quality_epochs else ():
            channel.receive(Turn)
            model = modules(scenario)[1]
            train_label(model, data, channel, _training(mode, scenario.quality_epochs), data.schedule(), width=width)
            logits = logits_over(model, data.own_source, data.test_batches(), [crossing(channel, width, 0)])
            scores[mode] = auc(data.target_N[data.test_N].cpu().numpy(), logits.cpu().numpy())
        return {"auc": {mode: float(value) for mode, value in scores.items() if value is not None}}
    return {"steps_per_s": _feature_party(scenario, data, channel, arguments["turns"])}


def _feature_party(scenario: SpeedScenario, data: "SpeedData", channel: Channel, turns: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"centralized": [], "synchronous": [], "pipelined": []}
    if scenario.feature.cardinalities:
        rates["plain"] = []
    for _ in range(turns):
        torch.set_num_threads(scenario.cores)
        for mode in ("centralized", "plain"):
            if mode in rates:
                rates[mode].append(_train_joined(scenario, data, mode))
        for mode in ("synchronous", "pipelined"):
            channel.send(Turn(mode=mode))
            torch.set_num_threads(scenario.threads_in(mode))
            clock = Clock(scenario.warm_up, scenario.steps)
            train_feature(modules(scenario)[0], data, channel, _training(mode, 1), data.long_schedule(scenario.steps), clock)
            rates[mode].append(clock.rate())
    for mode in ("synchronous", "pipelined") if scenario.quality_epochs else ():
        channel.send(Turn(mode=mode))
        bottom = modules(scenario)[0]
        train_feature(bottom, data, channel, _training(mode, scenario.quality_epochs), data.schedule())
        send_embeddings(bottom, data.feature_source, data.test_batches(), channel)
    return rates


def _train_joined(scenario: SpeedScenario, data: "SpeedData", mode: str) -> float:
    clock = Clock(scenario.warm_up, scenario.steps)
    bottom, label = modules(scenario)
    if mode == "plain":
        bottom.columns = _PlainColumns(scenario.feature, embedding_width=4).to(scenario.device)
    train_joined(
        CentralizedModel([bottom], label),
        [data.feature_source, data.own_source],
        data.objective,
        training=_training("synchronous", 1),
        schedule=data.long_schedule(scenario.steps),
        steps=scenario.steps,
        progress=clock.at,
    )
    return clock.rate()


class _PlainColumns(Columns):
    """Build columns in the usual way, with PyTorch's own embedding lookup."""

    def forward(self, features: Features) -> Tensor:
        codes_BG = features.categorical_NG
        embedded = [functional.embedding(codes_BG[:, g], self.table(g)) for g in range(len(self.embeddings))]
        return torch.cat([features.numeric_NF, *embedded], dim=1)


def train_label(
    model: LabelModel,
    data: "SpeedData",
    channel: Channel,
    training: TrainingConfig,
    schedule: Schedule,
    *,
    width: int,
    step_rule: StepRule = PLAIN,
    clock: "Clock | None" = None,
) -> None:
    """Run the label party's loop, for a feature party's cut of this width, with a clock if one is given."""
    with tempfile.TemporaryDirectory() as folder:
        run = _run(training, schedule, Path(folder), clock)
        peers = [FeaturePeer(channel=channel, width=width, compression=training.compression)]
        train_label_party(model, data.own_source, data.objective, peers, run, step_rule=step_rule)


def train_feature(
    bottom: nn.Module,
    data: "SpeedData",
    channel: Channel,
    training: TrainingConfig,
    schedule: Schedule,
    clock: "Clock | None" = None,
) -> None:
    """Run the feature party's loop, with a clock if one is given."""
    with tempfile.TemporaryDirectory() as folder:
        train_feature_party(bottom, data.feature_source, channel, _run(training, schedule, Path(folder), clock))


def _run(training: TrainingConfig, schedule: Schedule, folder: Path, clock: "Clock | None") -> TrainingRun:
    progress: Progress = no_progress if clock is None else lambda _what, step, _total: clock.at(step)
    return TrainingRun(training=training, schedule=schedule, store=CheckpointStore(folder), progress=progress)


def _training(mode: str, epochs: int) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "mode": mode,
            "staleness": STALENESS,
            "epochs": epochs,
            "batch_size": 512,
            "learning_rate": 0.001,
            "patience": None,
            "checkpoint_every": 1_000_000,
            **PLAIN_ADAM,
        }
    )


def modules(scenario: SpeedScenario) -> tuple[TabularBottom, LabelModel]:
    """Build the feature party's and the label party's modules, with weights drawn from a seed."""
    with seeded(1, "feature"):
        bottom = TabularBottom(scenario.feature, embedding_width=4, hidden=scenario.bottom)
    with seeded(1, "label"):
        own = Columns(scenario.own, embedding_width=4) if scenario.own is not None else None
        width = bottom.width + (own.width if own is not None else 0)
        label = LabelModel(TabularTop(width, hidden=scenario.top, outputs=1), bottom=own)
    return bottom.to(scenario.device), label.to(scenario.device)


class Clock:
    """Measure the time between the end of the warm-up and the last step."""

    def __init__(self, warm_up: int, last: int) -> None:
        self._warm_up, self._last = warm_up, last
        self._marks: list[tuple[int, float]] = []

    def at(self, step: int) -> None:
        """Note the first step after the warm-up and the last. Several steps may pass at once."""
        if (step >= self._warm_up and not self._marks) or step == self._last:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # the requested work may not be done yet
            self._marks.append((step, time.perf_counter()))

    @property
    def began(self) -> float:
        """Return the end of the warm-up, by time.perf_counter()."""
        return self._marks[0][1]

    def rate(self) -> float:
        """Return the steps per second between the two."""
        (first, began), (last, ended) = self._marks
        return (last - first) / (ended - began)


class SpeedData:
    """Draw rows from a seed, the same in both processes. The label depends on both sides' columns."""

    def __init__(self, scenario: SpeedScenario) -> None:
        generator = torch.Generator().manual_seed(7)
        rows = scenario.rows * (2 if scenario.quality_epochs else 1)
        self._scenario = scenario
        self.feature = drawn_features(scenario.feature, rows, generator)
        self.own = drawn_features(scenario.own, rows, generator) if scenario.own is not None else None
        signal_N = _signal(self.feature, generator) + (_signal(self.own, generator) if self.own is not None else 0)
        target_N = (torch.rand(rows, generator=generator) < torch.sigmoid(signal_N)).float()
        device = torch.device(scenario.device)
        self.feature = self.feature.to(device)
        self.own = self.own.to(device) if self.own is not None else None
        self.target_N = target_N.to(device)
        self.test_N = torch.arange(scenario.rows, rows, device=device)
        self.objective = Supervised("binary", self.target_N)
        self.own_source = self.own.rows if self.own is not None else no_columns
        self.feature_source = self.feature.rows

    def schedule(self) -> Schedule:
        """Return the training rows, epoch by epoch."""
        return self._schedule(torch.arange(self._scenario.rows))

    def long_schedule(self, steps: int) -> Schedule:
        """Make one epoch of this many full batches, so that only steps are timed."""
        needed = steps * self._scenario.batch_size
        return self._schedule(torch.arange(self._scenario.rows).repeat(-(-needed // self._scenario.rows))[:needed])

    def test_batches(self) -> tuple[Tensor, ...]:
        """Return the rows that no schedule has."""
        return torch.split(self.test_N, self._scenario.batch_size)

    def _schedule(self, train_N: Tensor) -> Schedule:
        empty = torch.empty(0, dtype=torch.int64)
        train_N, empty = train_N.to(self._scenario.device), empty.to(self._scenario.device)
        return Schedule(train_N=train_N, validation_N=empty, batch_size=self._scenario.batch_size, seed=1)


def drawn_features(shape: FeatureShape, rows: int, generator: torch.Generator) -> Features:
    """Draw numbers and codes at random."""
    codes = [torch.randint(0, size, (rows,), generator=generator) for size in shape.cardinalities]
    return Features(
        numeric_NF=torch.randn(rows, shape.numeric, generator=generator),
        categorical_NG=torch.stack(codes, dim=1) if codes else torch.empty(rows, 0, dtype=torch.int64),
    )


def _signal(features: Features, generator: torch.Generator) -> Tensor:
    """Compute a smooth, not quite linear function of the numeric columns."""
    weights_F = torch.randn(features.numeric_NF.shape[1], generator=generator) / features.numeric_NF.shape[1] ** 0.5
    linear_N = features.numeric_NF @ weights_F
    signal_N: Tensor = linear_N + 0.5 * torch.sin(2 * linear_N) + 0.5 * features.numeric_NF[:, 0] * features.numeric_NF[:, 1]
    return signal_N
