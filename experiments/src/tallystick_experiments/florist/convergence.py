"""Make Figure 2 h to j: losses and test AUC during training on a union whose sides both lack rows."""

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
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.florist.runs import BOTH, PAPERS, FloristSetting, Membership, Trained
from tallystick_experiments.florist.sweep import NUMBERS, treatment_of
from tallystick_experiments.grid import grid
from tallystick_experiments.options import seeds_option, several
from tallystick_experiments.page import Benchmark, Curve, seeds_of
from tallystick_experiments.pivot import Pivot, line_of_means, mean
from tallystick_experiments.stats import Row, at, groups

EVERY = 20
"""Steps between two evaluations of the test rows."""
NEAR = 0.002
"""A test AUC is stable from the step at which it stays this near to its last value, or above."""
PANELS = (("h: training loss", "training_loss"), ("i: test loss", "test_loss"), ("j: test AUC", "auc"))


def florist_convergence_experiment(
    *,
    data: Annotated[Path, Option(help="Kaggle's Criteo or Avazu file.")],
    seeds: Annotated[Sequence[int], seeds_option()] = range(1, 6),
    ratios: Annotated[
        Sequence[float], several("Shares of rows that a side lacks, with commas between.", of=float, wanted=NUMBERS)
    ] = (0.05, 0.5, 0.95),
    strategy: Annotated[str, Option(help="Where both sides lack rows.")] = "florist-te",
    limit: Annotated[int | None, Option(help="Draw so many rows at random.")] = None,
    setting: FloristSetting = PAPERS,
) -> Experiment:
    """Train one strategy at each ratio and seed. Raises ConfigError for an unknown strategy."""
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

    setting_of_log = {"strategy": strategy, "rows": table.frame.height}
    return Experiment(
        name="florist-convergence",
        cases=grid(ratio=ratios, seed=seeds),
        trial=trial,
        page=florist_convergence_page,
        setting=setting_of_log,
        about={**setting_of_log, "table": table.name},
    )


def florist_convergence_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``florist_convergence_experiment``."""
    looks = [{"ratio": row["ratio"], **look} for row in rows for look in row["course"]]
    return Benchmark(
        title="FLORIST: convergence with both sides' rows absent",
        tables=[
            Pivot(
                name="By the share of absent rows",
                rows={"absent": "ratio"},
                shown={
                    "step of a stable AUC": mean(lambda row: stable_step(row["course"])),
                    **{panel.partition(": ")[2]: mean(at("course", -1, figure)) for panel, figure in PANELS},
                    "ups of the test loss": mean(lambda row: ups(row["course"])),
                },
                note=f"{about['strategy']} on {about['rows']:,} rows of {about['table']}. The step from which test AUC stays "
                f"within {NEAR} of its last value, or above it; figures at the last step; all that the test loss rises from one "
                "look to the next, added up.",
            ).table(rows)
        ],
        curves=[
            Curve(
                name=f"Figure 2{panel}",
                x="step",
                y=panel.partition(": ")[2],
                series=[line_of_means(f"{ratio:g}", of, "step", figure) for ratio, of in groups(looks, "ratio").items()],
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
    """Return the first step from which the test AUC is never below its last value by more than ``NEAR``."""
    least = course[-1]["auc"] - NEAR
    below = [row["step"] for row in course if row["auc"] < least]
    later = [row["step"] for row in course if not below or row["step"] > below[-1]]
    return int(later[0])


def ups(course: Sequence[Row]) -> float:
    """Add up all increases of the test loss from one evaluation to the next."""
    return float(sum(max(after["test_loss"] - before["test_loss"], 0.0) for before, after in pairwise(course)))
