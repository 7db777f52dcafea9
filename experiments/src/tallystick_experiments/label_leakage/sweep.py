"""Declare the label-leakage paper's tables 1 to 5 and figures 2 to 7, and the frontiers that it does not draw.

Every scenario that the chosen parts need is trained once per seed. ``page.py`` shows the rows next to the paper's numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Annotated

from typer import Option

from tallystick.errors import ConfigError
from tallystick_experiments.catalogue.clicks import TEST_SHARE, encode_clicks, read_clicks
from tallystick_experiments.catalogue.table import SplitData
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import Latest, grid
from tallystick_experiments.label_leakage import paper
from tallystick_experiments.label_leakage.page import label_leakage_page
from tallystick_experiments.label_leakage.runs import balanced, run_scenario
from tallystick_experiments.label_leakage.scenarios import LARGE_BATCH, parts, scenarios
from tallystick_experiments.observed_training import TrainingPlan
from tallystick_experiments.options import GROUP, seeds_option, several
from tallystick_experiments.stats import Row

_PAPER_ROWS = 1_000_000  # from this size on, the paper's own batch and step size
UPDATES_PER_EPOCH = 140
UPDATES = 1500  # number of updates of the paper's training: 3 epochs of a tenth of Criteo


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Hold options of the networks' training."""

    papers_steps: Annotated[
        bool,
        Option(
            "--papers-steps",
            help="Adam 1e-4, 1,500 updates and numbers in [0, 1], as in the paper, and its network alone.",
        ),
    ] = False
    epochs: Annotated[int | None, Option(help="Of every training run but those at batch 8,192; 3 if left out.", min=1)] = None
    batch_size: Annotated[int | None, Option(help="Rows per step; scaled to the file if left out.", min=2)] = None
    learning_rate: Annotated[float | None, Option(help="Of Adam; scaled to the file if left out.")] = None


USUAL = StepOptions()


def plan_for(
    rows: int,
    *,
    papers_steps: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
) -> TrainingPlan:
    """Return the paper's plan (3 epochs, batch 8,192, Adam 1e-4), scaled to a sample where no value is given.

    A tenth of Criteo gives 500 updates an epoch. A sample of 72,000 rows would give 9, so it gets batches of about a 140th of its
    rows and ten times the step size. ``papers_steps`` keeps Adam 1e-4, for as many epochs as 1,500 updates need.
    """
    large, scaled = rows >= _PAPER_ROWS, min(LARGE_BATCH, max(16, 2 ** round(log2(rows / UPDATES_PER_EPOCH))))
    size = (LARGE_BATCH if large else scaled) if batch_size is None else batch_size
    enough = max(1, round(UPDATES / ceil((1 - TEST_SHARE) * rows / size)))
    return TrainingPlan(
        epochs=epochs or (enough if papers_steps and not large else 3),
        batch_size=size,
        learning_rate=(1e-4 if large or papers_steps else 1e-3) if learning_rate is None else learning_rate,
    )


def large_plan(rows: int) -> TrainingPlan:
    """Return the plan at the paper's batch of 8,192. For a sample it has the values that did best there without a defence."""
    return plan_for(rows) if rows >= _PAPER_ROWS else TrainingPlan(epochs=8, batch_size=LARGE_BATCH, learning_rate=3e-3)


def label_leakage_experiment(
    *,
    data: Annotated[Path, Option(help="Kaggle's Criteo or Avazu file.")],
    seeds: Annotated[Sequence[int], seeds_option("Runs per scenario.")] = range(1, 6),
    only: Annotated[
        Sequence[str],
        several(
            "Parts, with commas between: table-1 to -5, figure-2 to -7, frontier, frontier-large, depth, bound, choices, claims."
        ),
    ] = (),
    scenario: Annotated[
        list[str] | None, Option(help="One scenario by its name, such as none; may be repeated. With --only, of its parts.")
    ] = None,
    steps: Annotated[StepOptions, GROUP] = USUAL,
    limit: Annotated[int | None, Option(help="Draw so many rows at random.")] = None,
    min_count: int = 10,
) -> Experiment:
    """Declare every scenario that the chosen parts need, once per seed.

    Raises:
        ConfigError: an unknown part, or a log of another sweep.
        DataError: the file is not in Kaggle's format.
    """
    table, names = read_clicks(data, limit=limit), scenario or []
    parts_chosen = _chosen(only, table.name) if only or not names else []
    rows = table.frame.height
    plan, papers_steps = plan_for(rows, **vars(steps)), steps.papers_steps
    about = {
        "name": table.name,
        "rows": rows,
        "min_count": min_count,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "learning_rate": plan.learning_rate,
        **({"papers_steps": True} if papers_steps else {}),
    }
    every = scenarios(large_plan(rows))
    offered = list(dict.fromkeys(name for part in parts_chosen for name in parts(papers=papers_steps)[part])) or list(every)
    if unknown := sorted(set(names) - set(offered)):
        raise ConfigError(f"bench label-leakage: unknown scenario {', '.join(unknown)}; choose from {', '.join(offered)}")

    @Latest
    def encoded(rate: float | None, seed: int) -> SplitData:
        clicks = table if rate is None else balanced(table, rate, seed=seed)
        return encode_clicks(clicks, seed=seed, min_count=min_count, unit_numbers=papers_steps)

    def trial(name: str, seed: int) -> Row:
        clicks = encoded(every[name].positive_rate, seed)
        return run_scenario(every[name], clicks, plan=plan, seed=seed)

    # one share of positives is encoded at a time
    names_due = sorted((name for name in offered if not names or name in names), key=lambda name: every[name].positive_rate or 0)
    return Experiment(
        name="label-leakage",
        cases=grid(seed=seeds, name=names_due),
        trial=trial,
        page=label_leakage_page,
        setting=about,
        about={"data": about, "parts": parts_chosen},
    )


def _chosen(only: Sequence[str], data: str) -> list[str]:
    unknown = sorted(set(only) - set(parts()))
    if unknown:
        raise ConfigError(f"bench label-leakage: unknown part {', '.join(unknown)}; choose from {', '.join(parts())}")
    elsewhere = {f"table-{number}" for number, table in paper.TABLES.items() if table.data != data}
    if data == "avazu" and not only:
        return [part for part in parts() if part.startswith("table-") and part not in elsewhere]
    return [part for part in parts() if (part in only if only else part not in elsewhere)]
