"""bench: the figures that the documentation quotes, each by one command."""

from typing import Annotated, Any

import typer

from tallystick.benchmark import alignment as alignment_benchmark
from tallystick.benchmark import lossless as lossless_benchmark
from tallystick.benchmark import training as training_benchmark
from tallystick.cli.output import JsonFlag, finish, guarded

app = typer.Typer(no_args_is_help=True, help="Measure tallystick: speed, losslessness, and the papers' tables.")


@app.command()
def training(
    scenario: Annotated[str, typer.Option(help="small, criteo or all.")] = "all",
    turns: Annotated[int, typer.Option(help="Repetitions, in turns with the joined model.", min=1)] = 5,
    as_json: JsonFlag = False,
) -> None:
    """Steps per second over mutual TLS beside the same model in one process."""

    def work() -> None:
        names = list(training_benchmark.SCENARIOS) if scenario == "all" else [scenario]
        found: dict[str, Any] = {}
        for name in names:
            measured = training_benchmark.run(scenario=name, turns=turns)
            found |= measured if name == names[0] else {name: measured}
        finish(found, as_json=as_json)

    guarded(work, as_json=as_json)


@app.command()
def lossless(
    seed: Annotated[int, typer.Option(help="Seed of data and weights.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """The largest difference of any weight between two processes and one, after 200 steps."""
    guarded(lambda: finish(lossless_benchmark.run(seed=seed), as_json=as_json), as_json=as_json)


@app.command()
def alignment(
    rows: Annotated[int, typer.Option(help="Rows of each party.", min=1)] = 100_000,
    protocol: Annotated[str, typer.Option(help="intersection, union or union-with-helper.")] = "intersection",
    as_json: JsonFlag = False,
) -> None:
    """Seconds, scalar multiplications and efficiency of a private alignment."""
    guarded(lambda: finish(alignment_benchmark.run(rows=rows, protocol=protocol), as_json=as_json), as_json=as_json)
