"""Measure steps per second by the number of a party's training workers: ``tallystick bench training --training-workers 2``.

The feature party has Criteo's columns, as in ``training.py``: 26 categoricals of 100,000 values at width 4 and 13 numerics, batch
8,192, Adam. Both parties have the same number of workers of one thread each. They are compared with one process of one thread and
one of as many threads. A shared machine gives other seconds in every turn, and processor time depends less on the other users. So
both are given, by process.
"""

import os
import statistics
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tallystick.compute.ray_cluster import RayEngine
from tallystick.config.sections import NetworkModel, TrainingConfig
from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, run_parties
from tallystick.models.split import LabelModel
from tallystick.training.plan import batches_per_message, staleness_of
from tallystick.training.workers.plan import WorkerPlan
from tallystick.training.workers.team import Team
from tallystick_experiments.speed.training import SCENARIOS, Clock, SpeedData, train_feature, train_label

STEPS, WARM_UP = 36, 12
SHAPE = SCENARIOS["criteo"]
NETWORKS = {
    "criteo": NetworkModel(embedding_width=4, hidden=(128, 128, 128, 128), cut_after=2),
    "larger": NetworkModel(embedding_width=4, hidden=(512, 512, 128, 512, 512), cut_after=3),
}
MODES: tuple[Literal["synchronous"], Literal["pipelined"]] = ("synchronous", "pipelined")


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Describe the processes of a party: their number, their threads, and whether the further ones run here or on a
    Ray cluster.
    """

    workers: int
    threads: int
    ray: str | None = None

    @property
    def name(self) -> str:
        """Return the name in words."""
        return f"{self.workers} workers, {self.threads} threads" + ", on Ray" * (self.ray is not None)

    @property
    def engine(self) -> RayEngine | None:
        """Return the cluster of the further workers."""
        return RayEngine(address=self.ray, workers=self.workers - 1, threads=self.threads) if self.ray is not None else None


def ways_of(workers: int, ray: str | None) -> tuple[Processes, ...]:
    """Return one process of one thread, the workers, one process of as many threads and, if there is a cluster,
    workers on Ray.
    """
    here = (Processes(workers=1, threads=1), Processes(workers=workers, threads=1), Processes(workers=1, threads=workers))
    return here if ray is None else (*here, Processes(workers=workers, threads=1, ray=ray))


def measure_workers(
    *, workers: int, network: str = "criteo", turns: int = 3, ray: str | None = None, timeout_s: float = 1800
) -> dict[str, Any]:
    """Measure all ways and modes in turns. Return medians of steps per second, and of a step's processor milliseconds by process.

    ``ray`` is the address of a cluster. Processor time of its workers is not measured.
    """
    arguments = {"workers": workers, "network": network, "turns": turns, "ray": ray}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        results = run_parties(Path(folder), workers_party, PAIR, arguments, timeout_s=timeout_s).results
    figures: dict[str, Any] = {"network": network, "workers": workers, "cores": len(os.sched_getaffinity(0)), "load_before": load}
    one, *_ = (way.name for way in ways_of(workers, ray))
    for mode in MODES:
        rates = {way.name: results[FEATURE][f"{mode}, {way.name}"]["steps_per_s"] for way in ways_of(workers, ray)}
        figures[mode] = {
            name: {
                "steps_per_s": statistics.median(rate),
                "times_one": statistics.median(new / old for new, old in zip(rate, rates[one], strict=True)),
                "processor_ms_per_step": {party: results[party][f"{mode}, {name}"]["processor_ms"] for party in (LABEL, FEATURE)},
            }
            for name, rate in rates.items()
        }
    return figures


def workers_party(stage: PartyContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one party's process."""
    (channel,) = stage.channels.values()
    network, data = NETWORKS[arguments["network"]], SpeedData(SHAPE)
    schedule = data.long_schedule(STEPS)
    measured: dict[str, list[_ProcessorClock]] = {}
    for _ in range(arguments["turns"]):
        for mode in MODES:
            training = TrainingConfig(mode=mode, epochs=1, batch_size=SHAPE.batch_size, patience=None, checkpoint_every=1_000_000)
            for way in ways_of(arguments["workers"], arguments["ray"]):
                torch.set_num_threads(way.threads)
                late = staleness_of(training) if stage.name == FEATURE else 0
                plan = WorkerPlan(
                    network=network.model_dump_json(),
                    training=training.model_dump_json(),
                    party=stage.name,
                    own=SHAPE.feature if stage.name == FEATURE else None,
                    cut_widths=(network.built_in_cut_width,) if stage.name == LABEL else None,
                    batch_rows=SHAPE.batch_size,
                    in_flight=late + batches_per_message(training) if late else 1,
                    workers=way.workers,
                    threads=way.threads,
                    late=late > 0,
                )
                module, clock = plan.module(), _ProcessorClock(WARM_UP, STEPS)
                with Team(module, plan, way.engine) if way.workers > 1 else nullcontext():
                    if isinstance(module, LabelModel):
                        train_label(module, data, channel, training, schedule, width=network.built_in_cut_width, clock=clock)
                    else:
                        train_feature(module, data, channel, training, schedule, clock)
                measured.setdefault(f"{mode}, {way.name}", []).append(clock)
    return {
        name: {
            "steps_per_s": [clock.rate() for clock in clocks],
            "processor_ms": [statistics.median(its) for its in zip(*(clock.processor_ms() for clock in clocks), strict=True)],
        }
        for name, clocks in measured.items()
    }


class _ProcessorClock(Clock):
    """Measure time, and also the processor time of this process and of those that it started."""

    def __init__(self, warm_up: int, last: int) -> None:
        super().__init__(warm_up, last)
        self._seconds: list[list[float]] = []

    def at(self, step: int) -> None:
        """Note the first step after the warm-up and the last."""
        before = len(self._marks)
        super().at(step)
        if len(self._marks) > before:
            lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
            children = sorted(int(child) for text in lists for child in text.split())  # those that this process started, in order
            self._seconds.append([time.process_time(), *map(_processor_seconds, children)])

    def processor_ms(self) -> list[float]:
        """Return the processor milliseconds of a step by process, this one first."""
        began, ended = self._seconds
        (first, _), (last, _) = self._marks
        return [1e3 * (until - since) / (last - first) for since, until in zip(began, ended, strict=True)]


def _processor_seconds(process: int) -> float:
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
