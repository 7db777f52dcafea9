"""bench faults: what mutated messages, damaged files, kills and a bad network do to a job."""

from typing import Annotated

import typer

from tallystick.cli.options import JsonFlag
from tallystick.cli.output import guarded
from tallystick.errors import TallystickError
from tallystick_experiments.command import LOADS, OutFolder, automatic_watcher, finish_bench, prepare_folder


def faults(
    campaign: Annotated[str, typer.Option(help="messages, methods, files, folders, kills, network or all.")] = "all",
    count: Annotated[
        int | None,
        typer.Option(help="Cases; 100,000, 10,000, 10,000, 1,000, 200, 100 of the six campaigns if left out.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(help="What the cases are drawn from.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Cases at a time; one per core if left out.", min=1)] = None,
    case: Annotated[int | None, typer.Option(help="Run this case alone, by its number.", min=0)] = None,
    out: OutFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the cases that --out lacks.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Mutated messages, damaged files, random kills and network faults: exit code 3 if any was not withstood or refused."""

    def work() -> None:
        from tallystick_experiments.page import ExperimentResult
        from tallystick_robustness import campaign as benchmark
        from tallystick_robustness.page import page_of

        folder = prepare_folder(out, resume=resume)
        found = benchmark.run(
            campaign=campaign,
            count=count,
            seed=seed,
            jobs=jobs,
            case=case,
            log=folder and folder / "runs.jsonl",
            resume=resume,
            progress=automatic_watcher().progress,
        )
        rows = list(found["campaigns"].values())
        finish_bench(
            ExperimentResult(experiment="faults", about={"seed": seed}, rows=rows, page_of=page_of), out=out, as_json=as_json
        )
        if found["failed"]:
            raise TallystickError(f"{found['failed']} cases failed; the report of --out names each kind and how to see it again")

    guarded(work, as_json=as_json, loads=LOADS)
