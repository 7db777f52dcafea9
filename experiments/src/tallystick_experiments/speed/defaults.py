"""Speed of a step of the default network beside the former default's, over TLS: ``tallystick bench training --compare-default``.

Rows, batches and threads are those of the scenarios of ``training.py``; the networks are what a contract that says nothing of
``model`` and ``training`` makes of such columns, now and before numbers were embedded. Both are trained in turns, synchronously,
so that both see the same machine; the ratio is the median over the turns.
"""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tallystick.config.sections import NetworkModel, TrainingConfig, TrainingSettings
from tallystick.data.bins import bin_edges
from tallystick.data.features import Features, FeatureShape
from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, run_parties
from tallystick.models.build import build_bottom, build_label_model, width_of
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel
from tallystick_experiments.quality.methods import FORMER_MODEL, former_training
from tallystick_experiments.speed.training import SCENARIOS, Clock, SpeedData, SpeedScenario, Turn, train_feature, train_label

MODELS = {"former": FORMER_MODEL, "default": NetworkModel()}


def run(*, scenario: str = "small", turns: int | None = None, timeout_s: float = 900) -> dict[str, Any]:
    """Measure one scenario: steps per second of both, and how many times as long a step of the default takes."""
    arguments = {"scenario": scenario, "turns": turns or SCENARIOS[scenario].turns}
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        rates = run_parties(Path(folder), __name__, PAIR, arguments, timeout_s=timeout_s).results[FEATURE]["steps_per_s"]
    return {
        "scenario": scenario,
        **{f"{name}_steps_per_s": statistics.median(each) for name, each in rates.items()},
        "step_time_ratio": statistics.median(a / b for a, b in zip(rates["former"], rates["default"], strict=True)),
        "turns": rates,
        "cores": SCENARIOS[scenario].cores,
    }


def party(stage: PartyContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """One party's process."""
    (channel,) = stage.channels.values()
    scenario = SCENARIOS[arguments["scenario"]]
    torch.set_num_threads(scenario.cores)
    data = SpeedData(scenario)
    if stage.name == LABEL:
        for _ in range(len(MODELS) * arguments["turns"]):
            name = channel.receive(Turn).mode
            bottom, model = _modules(MODELS[name], scenario, data)
            schedule = data.long_schedule(scenario.steps)
            train_label(model, data, channel, _training(name, scenario), schedule, width=width_of(bottom))
        return {}
    rates: dict[str, list[float]] = {name: [] for name in MODELS}
    for _ in range(arguments["turns"]):
        for name in MODELS:
            rates[name].append(_rate(name, scenario, data, channel))
    return {"steps_per_s": rates}


def _rate(name: str, scenario: SpeedScenario, data: SpeedData, channel: Channel) -> float:
    channel.send(Turn(mode=name))
    bottom, _ = _modules(MODELS[name], scenario, data)
    clock = Clock(scenario.warm_up, scenario.steps)
    train_feature(bottom, data, channel, _training(name, scenario), data.long_schedule(scenario.steps), clock)
    return clock.rate()


def _modules(model: NetworkModel, scenario: SpeedScenario, data: SpeedData) -> tuple[nn.Module, LabelModel]:
    bottom = build_bottom(model, FEATURE, _shape(model, scenario.feature, data.feature), seed=1)
    own = _shape(model, scenario.own, data.own) if scenario.own is not None and data.own is not None else None
    return bottom, build_label_model(model, LABEL, own, [width_of(bottom)], outputs=1, seed=1)


def _shape(model: NetworkModel, shape: FeatureShape, columns: Features) -> FeatureShape:
    """The columns as an encoder hands them to this model: with the bins of an embedding, unless numbers stay plain."""
    return shape if model.numeric == "plain" else binned(shape, columns)


def binned(shape: FeatureShape, columns: Features) -> FeatureShape:
    """These columns' shape with the bins of their numbers."""
    edges = tuple(bin_edges(column_N.double().numpy()) for column_N in columns.numeric_NF.T)
    return replace(shape, numbers="piecewise-linear", edges=edges)


def _training(name: str, scenario: SpeedScenario) -> TrainingConfig:
    return timed(former_training(scenario.rows) if name == "former" else TrainingSettings().resolved(scenario.rows), scenario)


def timed(settled: TrainingConfig, scenario: SpeedScenario) -> TrainingConfig:
    """A default's own optimizer, schedule and averages, for an epoch of the scenario's batches that nothing stops."""
    changed = {"epochs": 1, "batch_size": scenario.batch_size, "patience": None, "checkpoint_every": 1_000_000}
    return settled.model_copy(update=changed)
