"""Declare FLORIST's experiments: the cost of imputing absent labels and features, and the leaks of each strategy.

Every strategy is trained at every ratio and seed. Attacks run at the ratio of the paper's tables, 0.5. ``page.py`` shows the rows
next to the paper's numbers.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from typer import Option

from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.errors import ConfigError
from tallystick.imputation.feature_imputers import GaussianFeatures
from tallystick.imputation.imputer import When
from tallystick.imputation.imputer_table import FEATURE_STRATEGIES, LABEL_STRATEGIES, feature_strategy, label_strategy
from tallystick.imputation.label_imputers import RandomPredictedLabels
from tallystick.imputation.spliced_features import SplicedFeatures
from tallystick.training.calibration import Calibration, LogitShift
from tallystick_experiments.catalogue.clicks import encode_clicks, give_columns, read_clicks
from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.florist.page import florist_page
from tallystick_experiments.florist.paper import ATTACKED_RATIO
from tallystick_experiments.florist.runs import BOTH, PAPERS, FloristSetting, Membership, Side, Trained, Treatment
from tallystick_experiments.grid import Latest
from tallystick_experiments.options import GROUP, seeds_option, several
from tallystick_experiments.stats import Row

RATIOS = (0.05, 0.1, 0.25, 0.5, 0.6, 0.75, 0.8, 0.9, 0.95)
BASELINES = ("baseline-partial", "baseline-full")
NUMBERS = "numbers with commas between, such as 0.25,0.5"
HELD_OUT = 0.1  # share of rows for fitting a calibration, without training
ONCE = ":once"  # drawn once per row and not again at each step; not in the paper
FIT = ":fit"  # plain training with a fitted calibration; "-fit" has the shift in training
STRATEGIES: dict[Side, tuple[str, ...]] = {
    "labels": (*BASELINES, *LABEL_STRATEGIES, "random-pos" + ONCE, "random-pred" + ONCE),
    "features": (*BASELINES, *FEATURE_STRATEGIES, "sampling" + ONCE),
    "both": (*BASELINES, *BOTH),
}
EXTRAS: dict[Side, tuple[str, ...]] = {  # run only if they are named
    "labels": (*(f"random-pred:k={k}" for k in range(1, 11)), "majority" + FIT),
    "features": (
        *(f"gaussian:scale={scale:g}" for scale in (0.25, 1, 4, 16, 64, 128)),
        "sampling" + FIT,
        "sampling-tr" + ONCE,
        *(f"splice-tr:switch={switch:g}" for switch in (0.03, 0.3, 1)),
        *(f"splice-tr:epsilon={epsilon:g}" for epsilon in (100, 30, 10)),
    ),
    "both": ("florist-vanilla" + FIT,),
}


def florist_experiment(
    *,
    data: Annotated[Path, Option(help="Kaggle's Criteo or Avazu file.")],
    seeds: Annotated[Sequence[int], seeds_option()] = range(1, 6),
    ratios: Annotated[
        Sequence[float],
        several(
            "Shares of rows that a side lacks, with commas between; the paper's nine if empty.",
            of=float,
            wanted=NUMBERS,
        ),
    ] = (),
    sides: Annotated[Sequence[str], several("Who lacks rows: labels, features, both; with commas between.")] = tuple(STRATEGIES),
    strategies: Annotated[Sequence[str], several("Strategies, with commas between; all if empty.")] = (),
    limit: Annotated[int | None, Option(help="Draw so many rows at random.")] = None,
    setting: Annotated[FloristSetting, GROUP] = PAPERS,
) -> Experiment:
    """Declare every strategy at every ratio and seed.

    Raises:
        ConfigError: an unknown side or strategy, a ratio outside (0, 1), an unusable step size, own columns with absent labels,
        or another log.
        DataError: the file is not in Kaggle's format.
    """
    ratios = ratios or RATIOS
    if not 1e-9 <= setting.learning_rate <= 1e6:  # as in a contract
        raise ConfigError(f"--learning-rate {setting.learning_rate}: must be from 1e-9 to 1e6")
    for ratio in (*ratios, setting.features_ratio):
        if ratio is not None and not 0 < ratio < 1:
            raise ConfigError(
                f"bench florist: ratio {ratio} is not a share of absent rows; expected between 0 and 1, both excluded"
            )
    if strange := [side for side in sides if side not in STRATEGIES]:
        raise ConfigError(f"--sides {strange[0]}: must be labels, features or both")
    all_names = {name for names in (*STRATEGIES.values(), *EXTRAS.values()) for name in names}
    unknown = sorted(set(strategies) - all_names)
    if unknown:
        raise ConfigError(
            f"bench florist: unknown strategies {', '.join(unknown)}; expected some of {', '.join(sorted(all_names))}"
        )
    if setting.features_ratio is not None and tuple(sides) != ("both",):
        raise ConfigError(f"--features-ratio {setting.features_ratio}: only works with --sides both; found {', '.join(sides)}")
    if setting.own_columns and any(side != "features" for side in sides):
        raise ConfigError(
            f"bench florist: own columns are for the side features, where the label party has every row; found {', '.join(sides)}"
        )

    def of_side(side: Side) -> set[str]:
        every = {*STRATEGIES[side], *EXTRAS[side]} & {*strategies} if strategies else {*STRATEGIES[side]}
        return every - {*BASELINES}

    table = read_clicks(data, limit=limit)
    about = {"name": table.name, "rows": table.frame.height, **setting.facts()}
    cases = [
        {"side": side, "strategy": name, "ratio": ratio, "seed": seed}
        for seed in seeds
        for ratio in ratios
        for side in STRATEGIES
        if side in sides
        # variants of prediction come next to the case with the same training
        for name in ("baseline-full", "baseline-partial", *sorted(of_side(side)))
    ]
    trials = _Trials(table, setting)

    def with_split() -> Row:
        clicks = trials.encoded(seed=seeds[-1])
        return about | {
            "training_rows": len(clicks.training),
            "test_rows": len(clicks.test),
            "positive_rate": float(clicks.training_labels_N.mean()),
            "batch_size": setting.batch(len(clicks.training)),
        }

    return Experiment(name="florist", cases=cases, trial=trials, page=florist_page, setting=about, about=with_split)


class _Trials:
    """Make a case's row. Cases that differ only at prediction share a training. All cases of a seed share the full baseline."""

    def __init__(self, table: TwoPartyTable, setting: FloristSetting) -> None:
        given = give_columns(table, setting.own_columns)
        self.setting, self.encoded = setting, Latest(partial(encode_clicks, given, min_count=setting.min_count))
        self.full_baseline = Latest(self._full_baseline)
        self.trained: dict[str, tuple[Trained, dict[str, Row]]] = {}

    def __call__(self, *, side: Side, strategy: str, ratio: float, seed: int) -> Row:
        """Train, if no earlier case did, and measure."""
        started, clicks = time.perf_counter(), self.encoded(seed=seed)
        if strategy == "baseline-full":
            figures = self.full_baseline(seed=seed)
        else:
            features_ratio = self.setting.features_ratio
            members = Membership.of(side, rows=len(clicks.training), ratio=ratio, seed=seed, features_ratio=features_ratio)
            if strategy == "baseline-partial":
                figures = self._baseline(members, seed)
            else:
                figures = self._strategy(strategy, side, ratio, members, seed)
        return {"attacks": {}, **figures, "seconds": time.perf_counter() - started}

    def _full_baseline(self, *, seed: int) -> Row:
        everything = torch.ones(len(self.encoded(seed=seed).training), dtype=torch.bool)
        return self._baseline(Membership(has_labels_U=everything, has_features_U=everything), seed)

    def _baseline(self, members: Membership, seed: int) -> Row:
        """Train on the rows that both sides have."""
        shared = torch.nonzero(members.has_labels_U & members.has_features_U).squeeze(1)
        treatment = Treatment(membership=members, rows=shared)
        return Trained(treatment, self.encoded(seed=seed), self.setting, seed=seed, record=False).utility()

    def _strategy(self, name: str, side: Side, ratio: float, members: Membership, seed: int) -> Row:
        attacked, clicks = ratio == ATTACKED_RATIO, self.encoded(seed=seed)
        treatment, calibration = treatment_of(name, side, members, clicks, seed=seed)
        kinds = [getattr(treatment, kind) for kind in ("labels", "features", "noise", "redraw", "shift")]
        key = repr((seed, side, ratio, kinds, len(treatment.held_out)))
        if key not in self.trained:
            self.trained.clear()  # views are large
            trained = Trained(treatment, clicks, self.setting, seed=seed, record=attacked)
            seats: dict[Literal["feature", "label"], Side] = {"feature": "features", "label": "labels"}
            leaks = {
                f"{party} party/{name}": figures
                for party, spared in seats.items()
                if attacked and side != spared
                for name, figures in trained.leaks(party).items()
            }
            self.trained[key] = (trained, leaks)
        trained, attacks = self.trained[key]
        return {**trained.utility(calibration), "attacks": attacks}


def treatment_of(name: str, side: Side, members: Membership, clicks: SplitData, *, seed: int) -> tuple[Treatment, Calibration]:
    """Return what to train, and the calibration of its logits."""
    base, _, option = name.partition(":")
    labels_name, features_name, when, exact = _strategy(base, side)
    labels, features = label_strategy(labels_name)[0], feature_strategy(features_name)[0]
    if option.startswith("k="):
        labels = RandomPredictedLabels(k=int(option[2:]))
    if option.startswith("scale="):
        features = GaussianFeatures(scale=float(option[6:]))
    if option.startswith("switch="):
        features = SplicedFeatures(switch=float(option[7:]))
    noise = GaussianEmbeddings(epsilon=float(option[8:]), delta=1e-6, clip=1.0) if option.startswith("epsilon=") else None
    rows, held_out = torch.arange(len(members.has_labels_U)), torch.arange(0)
    if when == "fitted" or option == "fit":
        shuffled = torch.from_numpy(np.random.default_rng([seed, 2]).permutation(len(rows)))
        held_out, rows = torch.tensor_split(shuffled, [round(HELD_OUT * len(rows))])
    rate = float(clicks.training_labels_N[rows[members.has_labels_U[rows]]].mean())
    imputed = labels.imputed_rate(rate) or 0.0 if side != "features" else 0.0
    shift = members.shift(rate, imputed_rate=imputed) if exact else _labels_only(members, imputed)
    treatment = Treatment(
        membership=members,
        rows=rows,
        labels=labels,
        features=features,
        noise=noise,
        redraw="once" if option == "once" else "step",
        shift=shift if when in ("training", "fitted") else None,
        held_out=held_out,
    )
    return treatment, Calibration(shift=shift, when="fitted" if option == "fit" else when, real=members.real)


def _strategy(base: str, side: Side) -> tuple[str, str, When, bool]:
    """Return the imputers by name, when to calibrate, and whether for both sides. A side that lacks nothing imputes nothing."""
    if side == "both":
        return BOTH[base]
    if side == "labels":
        return base, "sampling", label_strategy(base)[1], True
    return "majority", base, feature_strategy(base)[1], True


def _labels_only(members: Membership, imputed_rate: float) -> LogitShift:
    share = float(members.has_labels_U.double().mean())
    return LogitShift(shared=share, positive=(1 - share) * imputed_rate, negative=(1 - share) * (1 - imputed_rate))
