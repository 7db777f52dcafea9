"""Measure the steps a second through a line between two companies, and on one machine.

Two processes over mutual TLS train batches of 64 rows over a cut of 128, as ``bench training`` does. A relay between them has the
line's rate and delay.
"""

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
from typer import Option

from tallystick.config.sections import CompressionName, TrainingConfig
from tallystick.cut.compression import COMPRESSIONS
from tallystick.demo.localhost import FEATURE, PAIR, PartyContext, run_parties
from tallystick.errors import ConfigError
from tallystick.network.channel import Progress, no_progress
from tallystick.network.line_speed import answer_probes, measure_line
from tallystick.network.messages import Message
from tallystick.storage import scratch_folder
from tallystick.tables.features import FeatureShape
from tallystick.training.plan import fitting_staleness
from tallystick_experiments.observed_training import PLAIN_ADAM
from tallystick_experiments.options import several
from tallystick_experiments.page import Benchmark, Cell, ExperimentResult, ResultTable
from tallystick_experiments.speed.slow_link import SlowLink
from tallystick_experiments.speed.training import Clock, SpeedData, SpeedScenario, modules, train_feature, train_label
from tallystick_experiments.stats import Row, distinct, groups

SCENARIO = SpeedScenario(
    rows=16_384,
    batch_size=64,
    feature=FeatureShape(numeric=20, cardinalities=()),
    own=FeatureShape(numeric=20, cardinalities=()),
    bottom=(128, 128),
    top=(64,),
    threads=1,
    steps=2_000,
    warm_up=300,
    quality_epochs=0,
    turns=1,
)
WAITING_STEPS, WAITING_WARM_UP = 120, 20
"""For synchronous training through a long line, where every step waits for the line."""
EPOCH_ROWS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class LongLine:
    """Describe a line by its Mbit/s each way and its round trip. None is the machine's own line."""

    mbit_per_s: float | None = None
    round_trip_ms: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "LongLine":
        """Read ``ms:Mbit/s``. Raises ConfigError for anything else."""
        try:
            round_trip_ms, mbit_per_s = map(float, text.split(":"))
        except ValueError:
            round_trip_ms, mbit_per_s = -1.0, 0.0
        if not (0 <= round_trip_ms <= 10_000 and 0 < mbit_per_s <= 100_000):
            raise ConfigError(f"--lines {text.strip()}: must be ms:Mbit/s, as 50:100")
        return cls(mbit_per_s=mbit_per_s, round_trip_ms=round_trip_ms)

    def __str__(self) -> str:
        """Write the line like the command's option."""
        return f"{self.round_trip_ms:g}:{self.mbit_per_s:g}"

    @property
    def name(self) -> str:
        """Return the name in words."""
        return "one machine" if self.mbit_per_s is None else f"{self.round_trip_ms:g} ms, {self.mbit_per_s:g} Mbit/s"


@dataclass(frozen=True, kw_only=True)
class TrainingWay:
    """Describe a way of training: batches in flight (0 is synchronous, None as many as fit the line), and their compression."""

    staleness: int | None
    compression: CompressionName = "none"

    @property
    def name(self) -> str:
        """Return the name in words."""
        return {0: "synchronous", None: "auto"}.get(self.staleness, f"pipelined, {self.staleness} in flight")


class NextTraining(Message, frozen=True):
    """Sent by the label party: what is trained next."""

    staleness: int
    compression: CompressionName
    steps: int
    warm_up: int


WAYS = (
    TrainingWay(staleness=0),
    TrainingWay(staleness=8),
    TrainingWay(staleness=None),
    TrainingWay(staleness=None, compression="bfloat16"),
    TrainingWay(staleness=None, compression="int8"),
    TrainingWay(staleness=64),
    TrainingWay(staleness=64, compression="int8"),
)


def measure_lines(
    *,
    lines: Annotated[
        Sequence[LongLine],
        several(
            "Round trip in ms and rate in Mbit/s, as 50:100, with commas between; one machine comes first.", of=LongLine.parse
        ),
    ] = (LongLine(round_trip_ms=10, mbit_per_s=1000), LongLine(round_trip_ms=50, mbit_per_s=100)),
    turns: Annotated[int, Option(help="Repetitions.", min=1)] = 3,
    progress: Progress = no_progress,
    timeout_s: float = 900,
) -> ExperimentResult:
    """Measure the steps a second of every way, on one machine and through these lines, in turns."""
    rows, everywhere = list[Row](), [LongLine(), *lines]
    for turn in range(turns):
        for number, line in enumerate(everywhere):
            progress(line.name, turn * len(everywhere) + number, turns * len(everywhere))
            rows += [{"turn": turn + 1, **row} for row in _measure(line, timeout_s=timeout_s)]
    return ExperimentResult(experiment="line", about={"cores": os.cpu_count()}, rows=rows, page_of=line_page)


def line_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``measure_lines``: medians over turns."""
    by_line, cells = groups(rows, "line", "way", "compression"), list[list[Cell]]()
    alone = median(row["steps_per_s"] for row in by_line[LongLine().name, "synchronous", "none"])
    for (line, way, compression), of in by_line.items():
        rate, most = median(row["steps_per_s"] for row in of), of[0]["most_steps_per_s"]
        cells.append([line, way, compression, of[0]["staleness"], rate, rate / alone, most])
    return Benchmark(
        title="Training through a long line",
        tables=[
            ResultTable(
                name="Steps a second",
                columns=["line", "training.mode", "compression", "in flight", "steps/s", "of one machine's", "the rate allows"],
                rows=cells,
                note="Batches of 64 rows, a cut of 128, two processes over mutual TLS on one thread each; medians over "
                f"{len(distinct(rows, 'turn'))} turns. The share is of synchronous training on one machine. The last column is "
                "what the line's bytes a second allow.",
            ),
            ResultTable(
                name="An epoch of a million rows",
                columns=["line", "training", "compression", "MB, both ways", "minutes"],
                rows=_epochs(rows),
                note="By the steps a second above. With training.gradients: none embeddings cross once for the whole training, "
                "and not in each epoch; its minutes are those that the rate allows.",
            ),
        ],
        notes=[f"{about['cores']} cores; a relay between the processes has the line's rate and its delay."],
    )


def _epochs(rows: Sequence[Row]) -> list[list[Cell]]:
    """List how long a million rows take through each line."""
    cells = list[list[Cell]]()
    steps = EPOCH_ROWS / SCENARIO.batch_size
    for name, of_line in groups([row for row in rows if row["most_steps_per_s"] is not None], "line").items():
        for (way, compression), of in groups(of_line, "way", "compression").items():
            mega = 2 * EPOCH_ROWS * _row_bytes(compression) / 1e6
            cells.append([name, way, compression, mega, steps / median(row["steps_per_s"] for row in of) / 60])
        most = next(row["most_steps_per_s"] for row in of_line if row["compression"] == "none")
        cells.append([name, "gradients: none", "none", EPOCH_ROWS * _row_bytes("none") / 1e6, steps / most / 60])
    return cells


def _row_bytes(compression: CompressionName) -> int:
    """Return the bytes of a row's cut embedding, or of its gradient."""
    written, width = COMPRESSIONS[compression], SCENARIO.bottom[-1]
    return written.row_bytes(width) if written is not None else 4 * width


def _measure(line: LongLine, *, timeout_s: float) -> list[Row]:
    """Measure the steps a second of each way through this line."""
    with contextlib.ExitStack() as stack:
        route = None
        if line.mbit_per_s is not None:
            link = SlowLink(mbit_per_s=line.mbit_per_s, round_trip_ms=line.round_trip_ms)
            route = stack.enter_context(link.running()).to
        folder = stack.enter_context(scratch_folder())
        arguments = {"ways": [asdict(way) for way in WAYS], "waits": line.mbit_per_s is not None}
        results = run_parties(Path(folder), line_party, PAIR, arguments, timeout_s=timeout_s, route=route).results[FEATURE]
    return [
        {"line": line.name, "way": way.name, "compression": way.compression, **row, "most_steps_per_s": most_steps(line, way)}
        for way, row in zip(WAYS, results, strict=True)
    ]


def most_steps(line: LongLine, way: TrainingWay) -> float | None:
    """Return the most steps a second that the line's rate allows, by the bytes of a batch one way."""
    if line.mbit_per_s is None:
        return None
    return line.mbit_per_s * 1e6 / 8 / (SCENARIO.batch_size * _row_bytes(way.compression))


def line_party(stage: PartyContext, arguments: dict[str, Any]) -> list[Row]:
    """Run one party's process."""
    (channel,) = stage.channels.values()
    torch.set_num_threads(1)
    data, rates = SpeedData(SCENARIO), []
    for way in arguments["ways"]:
        if stage.name == FEATURE:
            answer_probes(channel)
            turn = channel.receive(NextTraining)
            clock = Clock(turn.warm_up, turn.steps)
            train_feature(modules(SCENARIO)[0], data, channel, _training(turn), data.long_schedule(turn.steps), clock)
            rates.append({"staleness": turn.staleness, "steps_per_s": clock.rate()})
            continue
        turn = _turn(TrainingWay(**way), measure_line(channel).round_trip_s, waits=arguments["waits"])
        channel.send(turn)
        train_label(
            modules(SCENARIO)[1], data, channel, _training(turn), data.long_schedule(turn.steps), width=SCENARIO.bottom[-1]
        )
    return rates


def _turn(way: TrainingWay, round_trip_s: float, *, waits: bool) -> NextTraining:
    batches = math.ceil(SCENARIO.rows / SCENARIO.batch_size)
    fitting = fitting_staleness(round_trip_s, batch_size=SCENARIO.batch_size, batches=batches)
    staleness = way.staleness if way.staleness is not None else fitting
    slow = waits and staleness == 0
    return NextTraining(
        staleness=staleness,
        compression=way.compression,
        steps=WAITING_STEPS if slow else SCENARIO.steps,
        warm_up=WAITING_WARM_UP if slow else SCENARIO.warm_up,
    )


def _training(turn: NextTraining) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "mode": "pipelined" if turn.staleness else "synchronous",
            "staleness": max(turn.staleness, 1),
            "compression": turn.compression,
            "epochs": 1,
            "batch_size": SCENARIO.batch_size,
            "patience": None,
            "checkpoint_every": 1_000_000,
            **PLAIN_ADAM,
        }
    )
