"""bench faults: what mutated messages, damaged files, kills and a bad network do to a job."""

from typing import TYPE_CHECKING, Annotated

import typer

from tallystick_experiments.command import experiment

if TYPE_CHECKING:
    from tallystick_experiments.grid import Keeping
    from tallystick_experiments.page import ExperimentResult


@experiment
def faults(
    campaign: Annotated[str, typer.Option(help="messages, methods, files, folders, kills, network or all.")] = "all",
    count: Annotated[
        int | None,
        typer.Option(help="Cases; 100,000, 10,000, 10,000, 1,000, 200, 100 of the six campaigns if left out.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(help="What the cases are drawn from.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Cases at a time; one per core if left out.", min=1)] = None,
    case: Annotated[int | None, typer.Option(help="Run this case alone, by its number.", min=0)] = None,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """Mutated messages, damaged files, random kills and network faults: exit code 3 if any was not withstood or refused."""
    from tallystick_experiments.page import ExperimentResult
    from tallystick_robustness import campaign as benchmark
    from tallystick_robustness.page import page_of

    rows = benchmark.run(campaign=campaign, count=count, seed=seed, jobs=jobs, case=case, keeping=keeping)
    failed = sum(figures["ended"].get("failed", 0) for figures in rows)
    said = f"{failed} cases failed; the report of --out names each kind and how to see it again" if failed else ""
    return ExperimentResult(experiment="faults", about={"seed": seed}, rows=rows, page_of=page_of, failed=said)
