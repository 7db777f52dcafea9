"""The feature-leakage benchmark: cut widths and defences, each trained with several seeds, and the frontier that they leave.

What it must show: at most half of the default's mean R² for at most .01 of test AUC, or that this cannot be had; by the strongest
attack of all, those that read the label party's own columns included.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.attacks.feature_inference.evaluate import KNOWN
from tallystick.defenses.defense import Defense
from tallystick.defenses.feature_distance_correlation import FeatureDistanceCorrelation
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.quantized_embeddings import QuantizedEmbeddings
from tallystick.defenses.reconstruction_penalty import ReconstructionPenalty
from tallystick.errors import ConfigError
from tallystick_experiments.experiment import TrainingPlan
from tallystick_experiments.feature_leakage.data import read_pair, split_and_encode
from tallystick_experiments.feature_leakage.runs import AIDED, ALONE, ANY, EMBEDDINGS, WIDTH, CutSetting, run_setting
from tallystick_experiments.grid import Case, Keeping, Latest, run_cases
from tallystick_experiments.stats import change, summarize_seeds

DEFAULT = f"width {WIDTH}"
WIDTHS = (WIDTH, 32, 8, 4, 2, 1)
PLAN = TrainingPlan(epochs=8)
DELTA, CLIP = 1e-6, 1.0
HALF, PRICE = 0.5, 0.01  # what a recommendation has to reach
MOST = max(KNOWN)


def settings() -> tuple[CutSetting, ...]:
    """Every row of the table."""
    gaussian = [GaussianEmbeddings(epsilon=epsilon, delta=DELTA, clip=CLIP) for epsilon in (100.0, 30.0, 10.0)]
    rounded = QuantizedEmbeddings(levels=3)
    correlations = {weight: FeatureDistanceCorrelation(weight=weight) for weight in (0.03, 0.1, 0.3, 1.0)}
    rebuilt = {weight: ReconstructionPenalty(weight=weight) for weight in (0.03, 0.1, 0.3)}
    one_layer: list[tuple[int, Defense]] = [
        *((WIDTH, each) for each in gaussian),
        *((width, gaussian[0]) for width in (8, 1)),
        *((width, rounded) for width in (WIDTH, 8, 4)),
        *((WIDTH, correlations[weight]) for weight in (0.1, 0.3, 1.0)),
        (8, correlations[0.03]),
        *((WIDTH, rebuilt[weight]) for weight in (0.1, 0.3)),
        (8, rebuilt[0.03]),
    ]
    two_layers: list[tuple[int, Defense]] = [(WIDTH, gaussian[0]), (8, rounded), (4, rounded), (WIDTH, correlations[1.0])]
    return (
        CutSetting(name=ALONE, partner=False),
        *(_setting(width) for width in WIDTHS),
        *(_setting(width, depth=2) for width in (WIDTH, 4, 2, 1)),
        *(_setting(width, defense) for width, defense in one_layer),
        *(_setting(width, defense, depth=2) for width, defense in two_layers),
    )


def _setting(width: int, defense: Defense | None = None, *, depth: int = 1) -> CutSetting:
    layers = "two layers, " if depth == 2 else ""
    defended = f", {defense.method} {getattr(defense, defense.strength):g}" if defense is not None else ""
    return CutSetting(
        name=f"{layers}width {width}{defended}", cut_width=width, depth=depth, defense=(defense,) if defense is not None else ()
    )


def run(
    *,
    data: Path,
    partner: Path | None = None,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    only: Sequence[str] = (),
    plan: TrainingPlan = PLAN,
    limit: int | None = None,
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Train every setting once per seed, on one thread, and attack what the label party received.

    Args:
        data: the label party's CSV file (id, y and columns) beside ``partner``, or one file of the FedAds benchmark's formats.
        partner: the feature party's CSV file (id and columns).
        seeds: of split, initialisation, batches and noise.
        only: names of settings; all of them if empty.
        plan: of every training; the last epoch's weights are those that are tested.
        limit: read no more rows than this of each file.
        keeping: of the runs; nowhere if left out.

    Raises DataError for data that is absent or of another format, ConfigError for an unknown setting.
    """
    known = {setting.name: setting for setting in settings()}
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(f"--only {unknown[0]}: is no setting; known are: {'; '.join(known)}")
    table, keeping = read_pair(data, partner, limit=limit), keeping or Keeping()
    # A log of runs that noted fewer figures is not gone on with.
    about = {"figures": 2, "data": table.name, "rows": table.frame.height, "epochs": plan.epochs}
    about |= {"batch": plan.batch_size, "rate": plan.learning_rate}
    chosen = [known[name] for name in only] if only else list(known.values())
    encoded = Latest(split_and_encode)

    def case(setting: CutSetting, seed: int) -> Case:
        return Case(
            key={"name": setting.name, "seed": seed},
            trial=lambda: run_setting(setting, *encoded(table, seed=seed), plan, seed=seed),
            title=f"seed {seed}: {setting.name}",
        )

    cases = [case(setting, seed) for seed in seeds for setting in chosen]
    runs = run_cases(cases, keeping, about, total=len(cases))
    columns = len(table.feature_party.numeric) + len(table.feature_party.categorical)
    return report_of(runs, data=about | {"columns": columns})


def report_of(runs: Sequence[dict[str, Any]], *, data: dict[str, Any]) -> dict[str, Any]:
    """What came back, and what hiding costs, by setting."""
    known = {setting.name: setting for setting in settings()}
    chosen = [known[name] for name in dict.fromkeys(each["name"] for each in runs)]
    return {
        "benchmark": "feature-leakage",
        "data": data,
        "seeds": list(dict.fromkeys(each["seed"] for each in runs)),
        "table": _table(chosen, runs),
        "columns": _columns(chosen, runs),
        "not_measured": sorted({line for one in runs for line in one["not_measured"]}),
        "runs": list(runs),
    }


def _table(chosen: Sequence[CutSetting], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per setting: test AUC and its change from the default with the same seed, and what came back."""
    defaults = {one["seed"]: one for one in runs if one["name"] == DEFAULT}
    rows = []
    for setting in chosen:
        mine = [one for one in runs if one["name"] == setting.name]
        both = [(one, defaults[one["seed"]]) for one in mine if one["seed"] in defaults]
        row: dict[str, Any] = {
            "setting": setting.name,
            "family": setting.family,
            "guarantee": "; ".join(defense.guarantee().text for defense in setting.defense),
            "test_auc": summarize_seeds([one["test_auc"][-1] for one in mine]),
            "change": change(mine, list(defaults.values()), lambda one: float(one["test_auc"][-1])),
            "rebuilt": {
                f"{reads}, {count} rows": _over_seeds(_mean(one, reads, count) for one in mine)
                for reads in (EMBEDDINGS, AIDED, ANY)
                for count in KNOWN
            },
            "strongest": _strongest(mine),
        }
        row["share"] = _over_seeds(_share(one, base) for one, base in both) if both else None
        if row["share"] is not None:
            row["target"] = row["share"]["mean"] <= HALF and row["change"]["mean"] >= -PRICE
        rows.append(row)
    return rows


def _over_seeds(values: Iterable[float | None]) -> dict[str, float] | None:
    """Over seeds; None if it could not be measured with one of them: without it the mean would be of other trainings."""
    given = list(values)
    known = [value for value in given if value is not None]
    return summarize_seeds(known) if len(known) == len(given) else None


def _mean(one: dict[str, Any], reads: str, known: int) -> float | None:
    found: float | None = one["mean"][reads][str(known)]
    return found


def _share(one: dict[str, Any], base: dict[str, Any]) -> float | None:
    """Of what the default gives away; None where that is nothing, or was not measured."""
    mine, default = _mean(one, ANY, MOST), _mean(base, ANY, MOST)
    return mine / default if mine is not None and default else None


def _strongest(mine: Sequence[dict[str, Any]]) -> str | None:
    """The attack on embeddings alone with 200 known rows that rebuilds most on average; None where none could be run."""
    means: dict[str, float] = {
        name: float(np.mean([one["attacks"][name] for one in mine]))
        for name in mine[0]["attacks"]
        if name.endswith(f"{MOST} rows") and "own-columns" not in name
    }
    best = max(means, key=lambda name: means[name], default=None)
    return None if best is None else best.partition(",")[0]


def _columns(chosen: Sequence[CutSetting], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What came back of every column, by what the attacks read, with most known rows; of categories the accuracy, too."""
    found = []
    for setting in chosen:
        mine = [one["columns"] for one in runs if one["name"] == setting.name]
        names = list(dict.fromkeys(name for one in mine for name in one[ANY][str(MOST)]))
        row: dict[str, Any] = {"setting": setting.name}
        for reads in (EMBEDDINGS, ANY):
            columns = {name: [one[reads][str(MOST)][name] for one in mine if name in one[reads][str(MOST)]] for name in names}
            row[reads] = {name: summarize_seeds([each["value"] for each in of]) for name, of in columns.items() if of}
            row[f"{reads}, accuracy"] = {
                name: {kind: summarize_seeds([each[kind] for each in of]) for kind in ("accuracy", "majority")}
                for name, of in columns.items()
                if of and of[0]["accuracy"] is not None
            }
        found.append(row)
    return found
