"""Measure the saving when each distinct candidate is sent once, between two processes over mutual TLS, with the same weights.

Both processes read the set, link it and take their half of the same network. The label party also trains it in one process.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tallystick.compute.threads import limited_threads
from tallystick.dataset.similarity import AllCandidates, DistinctCandidates
from tallystick.demo.localhost import LABEL, PAIR, PartyContext, run_parties
from tallystick.models.build import width_of
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.feature_party import train_feature_party
from tallystick.training.label_party import FeaturePeer, train_label_party
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun
from tallystick_experiments.catalogue.pairs import READERS
from tallystick_experiments.fedsim.methods import METHODS
from tallystick_experiments.fedsim.runs import RECIPES, link_pair, network_of
from tallystick_experiments.speed.lossless import keep_weights, kept_weights, largest_difference

FORMS = {"distinct rows": DistinctCandidates, "every link": AllCandidates}
"""The data that crosses for a batch."""
BATCH = 128  # the paper's for hdb


def measure_cut(folder: Path, *, name: str, neighbors: int, steps: int) -> list[dict[str, Any]]:
    """Train ``steps`` steps in both forms.

    Return a row for each: bytes a step, steps a second, and the largest difference to one process.
    """
    rows = []
    for form in FORMS:
        with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as scratch:
            arguments = {"folder": str(folder.absolute()), "set": name, "neighbors": neighbors, "steps": steps, "form": form}
            results = run_parties(Path(scratch), cut_party, PAIR, arguments, timeout_s=900).results
            weights_by_role = {role: kept_weights(Path(scratch) / role) for role in results}
        network, _ = _network(arguments, FORMS["distinct rows"])
        with limited_threads(1):  # like the parties: more threads add up in another order
            for _ in network.epoch(0):
                pass
        here = {role: dict((network.model if role == LABEL else network.bottoms[0]).state_dict()) for role in results}
        compared = {"neighbors": neighbors, "batch_size": BATCH, "difference": largest_difference(here, weights_by_role)}
        rows.append({"form": form, "set": name, **compared, **results[LABEL]})
    return rows


def cut_party(stage: PartyContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one party's process."""
    torch.set_num_threads(1)
    network, schedule = _network(arguments, FORMS[arguments["form"]])
    (channel,) = stage.channels.values()
    run = TrainingRun(training=network.training, schedule=schedule, store=CheckpointStore(stage.home / "checkpoints"))
    (bottom,), (source,) = network.bottoms, network.sources
    before = channel.traffic.bytes_sent + channel.traffic.bytes_received
    started = time.perf_counter()
    if stage.name == LABEL:
        train_label_party(
            network.model, network.own, network.objective, [FeaturePeer(channel=channel, width=width_of(bottom))], run
        )
    else:
        train_feature_party(bottom, source, channel, run)
    seconds = time.perf_counter() - started
    crossed = channel.traffic.bytes_sent + channel.traffic.bytes_received - before
    keep_weights(network.model if stage.name == LABEL else bottom, stage.home)
    return {"bytes_per_step": crossed / run.steps, "steps_per_s": run.steps / seconds, "steps": run.steps}


def _network(arguments: dict[str, Any], form: type[DistinctCandidates]) -> tuple[Any, Schedule]:
    name, recipe = arguments["set"], RECIPES[arguments["set"]]
    recipe = replace(recipe, neighbors=arguments["neighbors"], epochs=1, batch_size=BATCH)
    linked = link_pair(READERS[name](Path(arguments["folder"])), neighbors=arguments["neighbors"], seed=1)
    linked = linked.first(arguments["steps"] * BATCH)
    network = network_of(linked, METHODS["FedSim"], recipe, seed=1, crossing=form)
    return network, network.schedule
