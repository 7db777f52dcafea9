"""Declare the feature-leakage benchmark: cut widths and defences, each trained with several seeds.

It must show a setting with at most half of the default's mean R² for at most .01 of test AUC, or that there is none. This holds
for the strongest of all attacks, including those that read the label party's own columns.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from tallystick.errors import ConfigError
from tallystick_experiments.catalogue.ads import read_pair
from tallystick_experiments.catalogue.table import column_names
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.feature_leakage.data import split_and_encode
from tallystick_experiments.feature_leakage.page import feature_leakage_page
from tallystick_experiments.feature_leakage.runs import run_setting
from tallystick_experiments.feature_leakage.settings import settings
from tallystick_experiments.grid import Latest, grid
from tallystick_experiments.observed_training import TrainingPlan
from tallystick_experiments.options import several
from tallystick_experiments.stats import Row


def feature_leakage_experiment(
    *,
    data: Annotated[Path, Option(help="The label party's CSV file (id, y), the IJCAI-18 sample, or Kaggle's Criteo file.")],
    partner: Annotated[Path | None, Option(help="The feature party's CSV file (id), beside the label party's.")] = None,
    seeds: Annotated[int, Option(help="Runs per row.", min=1)] = 5,
    first_seed: Annotated[int, Option(help="The first seed; others than those that a setting was chosen by.", min=0)] = 1,
    epochs: Annotated[int, Option(help="Of every training run.", min=1)] = 8,
    only: Annotated[Sequence[str], several("Settings, with semicolons between; all if empty.", separator=";")] = (),
    limit: Annotated[int | None, Option(help="Read no more rows than this of each file.")] = None,
    batch_size: int = 512,
) -> Experiment:
    """Train every setting once per seed, on one thread, and attack what the label party received.

    Raises DataError for data that is missing or of another format, ConfigError for an unknown setting.
    """
    plan = TrainingPlan(epochs=epochs, batch_size=batch_size)
    setting_of = {setting.name: setting for setting in settings()}
    if unknown := [name for name in only if name not in setting_of]:
        raise ConfigError(f"--only {unknown[0]}: is not a setting; known are: {'; '.join(setting_of)}")
    table = read_pair(data, partner, limit=limit)
    # A log of runs with fewer figures is not continued.
    about = {"figures": 2, "data": table.name, "rows": table.frame.height, "epochs": epochs}
    about |= {"batch": batch_size, "rate": plan.learning_rate}
    encoded = Latest(split_and_encode)

    def trial(seed: int, name: str) -> Row:
        return run_setting(setting_of[name], *encoded(table, seed=seed), plan, seed=seed)

    return Experiment(
        name="feature-leakage",
        cases=grid(seed=range(first_seed, first_seed + seeds), name=only or setting_of),
        trial=trial,
        page=feature_leakage_page,
        setting=about,
        about={**about, "columns": len(column_names(table.feature_party))},
    )
