"""Figure 2 h to j: losses and test AUC in the course of training on a union whose sides both lack rows."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from torch.nn.functional import binary_cross_entropy_with_logits
from typer import Option

from tallystick.errors import ConfigError
from tallystick.metrics import auc_statistic
from tallystick.training.single_process import CrossedStep
from tallystick_experiments.catalogue.clicks import encode_clicks, read_clicks
from tallystick_experiments.command import seeds_option, several
from tallystick_experiments.florist.runs import BOTH, PAPERS, FloristSetting, Membership, Trained
from tallystick_experiments.florist.sweep import NUMBERS, treatment_of
from tallystick_experiments.grid import NOWHERE, Keeping, grid, run_cases
from tallystick_experiments.page import Benchmark, Cell, Curve, ExperimentResult, ResultTable, Series, seeds_of
from tallystick_experiments.stats import Row, groups, spread

EVERY = 20
"""Steps between two looks at the test rows."""
NEAR = 0.002
"""A test AUC is stable once it stays so near to its last value, or above."""
PANELS = (("h: training loss", "training_loss"), ("i: test loss", "test_loss"), ("j: test AUC", "auc"))


def run(
    *,
    data: Annotated[Path, Option(help="Kaggle's Criteo or Avazu file.")],
    seeds: Annotated[Sequence[int], seeds_option()] = range(1, 6),
    ratios: Annotated[
        Sequence[float], several("Shares of rows that a side lacks, with commas between.", of=float, wanted=NUMBERS)
    ] = (0.05, 0.5, 0.95),
    strategy: Annotated[str, Option(help="Where both sides lack rows.")] = "florist-te",
    limit: Annotated[int | None, Option(help="Draw so many rows at random.")] = None,
    setting: FloristSetting = PAPERS,
    keeping: Keeping = NOWHERE,
) -> ExperimentResult:
    """Train one strategy at each ratio and seed; raises ConfigError for an unknown one."""
    if strategy not in BOTH:
        raise ConfigError(f"--strategy {strategy}: must be of {', '.join(BOTH)}")
    table = read_clicks(data, limit=limit)

    def trial(seed: int, ratio: float) -> Row:
        clicks = encode_clicks(table, seed=seed, min_count=setting.min_count)
        members = Membership.of("both", rows=len(clicks.training), ratio=ratio, seed=seed)
        treatment, calibration = treatment_of(strategy, "both", members, clicks, seed=seed)
        labels_T = clicks.test_labels_T.double()
        losses, course = list[float](), list[Row]()

        def watch(trained: Trained, step: CrossedStep) -> None:
            losses.append(step.answer.loss.item())
            if step.batch.step % EVERY == 0:
                logits_T = trained.test_logits(calibration)
                course.append(
                    {
                        "step": step.batch.step,
                        "training_loss": sum(losses[-EVERY:]) / EVERY,
                        "test_loss": binary_cross_entropy_with_logits(logits_T, labels_T).item(),
                        "auc": auc_statistic(labels_T.numpy(), logits_T.numpy())(np.ones(len(logits_T))),
                    }
                )

        Trained(treatment, clicks, setting, seed=seed, record=False, watch=watch)
        return {"course": course}

    rows = run_cases(grid(ratio=ratios, seed=seeds), trial, keeping, {"strategy": strategy, "rows": table.frame.height})
    about = {"strategy": strategy, "rows": table.frame.height, "table": table.name}
    return ExperimentResult(experiment="florist-convergence", about=about, rows=rows, page_of=page_of)


def page_of(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``run``."""
    by_ratio = groups(rows, "ratio")
    cells: list[list[Cell]] = [
        [
            ratio,
            spread(stable_step(row["course"]) for row in of),
            *(spread(row["course"][-1][figure] for row in of) for _, figure in PANELS),
            spread(_roughness([each["test_loss"] for each in row["course"]]) for row in of),
        ]
        for ratio, of in by_ratio.items()
    ]
    return Benchmark(
        title="FLORIST: convergence with both sides' rows absent",
        tables=[
            ResultTable(
                name="By the share of absent rows",
                columns=["absent", "step of a stable AUC", "training loss", "test loss", "test AUC", "ups of the test loss"],
                rows=cells,
                note=f"{about['strategy']} on {about['rows']:,} rows of {about['table']}. The step from which test AUC stays "
                f"within {NEAR} of its last value, or above it; figures at the last step; all that the test loss rises from one "
                "look to the next, added up.",
            )
        ],
        curves=[
            Curve(
                name=f"Figure 2{panel}",
                x="step",
                y=panel.partition(": ")[2],
                series=[Series.of(f"{ratio:g}", _mean_course(of, figure)) for ratio, of in by_ratio.items()],
            )
            for panel, figure in PANELS
        ],
        notes=[
            "Both sides lack the same share of rows, each by itself. The training loss is of labels as they stand in for absent "
            f"ones; the test rows are looked at every {EVERY} steps; curves are means over seeds.",
            "The paper: losses decrease to stable points everywhere, the largest share is slowest, and its test loss alone "
            "fluctuates. It prints no numbers.",
        ],
        facts={"seeds": seeds_of(rows)},
    )


def stable_step(course: Sequence[Row]) -> int:
    """Return the first step from which on the test AUC is never below its last value by more than ``NEAR``."""
    least = course[-1]["auc"] - NEAR
    below = [row["step"] for row in course if row["auc"] < least]
    later = [row["step"] for row in course if not below or row["step"] > below[-1]]
    return int(later[0])


def _roughness(values: Sequence[float]) -> float:
    """All that values rise from one to the next, added up."""
    return sum(max(after - before, 0.0) for before, after in pairwise(values))


def _mean_course(rows: Sequence[Row], figure: str) -> list[tuple[float, float]]:
    steps = groups([each for row in rows for each in row["course"]], "step")
    return [(step, _mean([each[figure] for each in of])) for step, of in steps.items()]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
