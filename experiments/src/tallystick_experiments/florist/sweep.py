"""FLORIST's experiments: what imputing absent labels and features costs, and what each strategy leaks.

``run`` trains every strategy at every ratio and seed and gives each run's figures, their summaries, the paper's tables 1, 2, 3,
5, 6, 7, 8 and the curves of figures 2 and 3 beside the paper's numbers, and what is checked on them. Attacks run at the ratio
that the paper's tables use, 0.5. Runs of several calls (say, one per seed) can be joined: ``report_of(runs, data=...)``.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.errors import ConfigError
from tallystick.imputation.gaussian_features import GaussianFeatures
from tallystick.imputation.imputer import When
from tallystick.imputation.random_predicted_labels import RandomPredictedLabels
from tallystick.imputation.registry import FEATURE_STRATEGIES, LABEL_STRATEGIES, feature_strategy, label_strategy
from tallystick.imputation.spliced_features import SplicedFeatures
from tallystick.training.calibration import Calibration, LogitShift
from tallystick_experiments.clicks import ClickData, ClickTable, encode_clicks, read_clicks, split_columns
from tallystick_experiments.florist import paper
from tallystick_experiments.florist.runs import Membership, Setting, Side, Trained, Treatment
from tallystick_experiments.grid import Case, Keeping, Latest, run_cases
from tallystick_experiments.stats import summarize_seeds

RATIOS = (0.05, 0.1, 0.25, 0.5, 0.6, 0.75, 0.8, 0.9, 0.95)
_SEEDS = (1, 2, 3, 4, 5)
ATTACKED_RATIO = 0.5
BASELINES = ("baseline-partial", "baseline-full")
HELD_OUT = 0.1  # share of rows on which a calibration is fitted and nothing trained
ONCE = ":once"  # drawn once per row instead of anew each step; not in the paper
FIT = ":fit"  # plain training, calibration fitted; "-fit" has the shift in training
BOTH: dict[
    str, tuple[str, str, When, bool]
] = {  # label imputer, feature imputer, when to calibrate, for both sides or labels only
    "florist-vanilla": ("majority", "sampling", "prediction", False),
    "florist-tr": ("majority", "sampling", "training", True),
    "florist-te": ("majority", "sampling", "prediction", True),
    "florist-fit": ("majority", "sampling", "fitted", True),
}
STRATEGIES: dict[Side, tuple[str, ...]] = {
    "labels": (*BASELINES, *LABEL_STRATEGIES, "random-pos" + ONCE, "random-pred" + ONCE),
    "features": (*BASELINES, *FEATURE_STRATEGIES, "sampling" + ONCE),
    "both": (*BASELINES, *BOTH),
}
EXTRAS: dict[Side, tuple[str, ...]] = {  # run only when asked for by name
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


@dataclass(frozen=True, kw_only=True)
class FloristRun:
    """One strategy at one ratio and seed."""

    side: Side
    strategy: str
    ratio: float
    seed: int
    auc: float
    ace: float
    attacks: dict[str, dict[str, Any]]  # "label party/spectral" -> figures
    seconds: float = 0.0  # of training and attacks; variants that share a training count it once


def run(
    *,
    data: Path,
    seeds: Sequence[int] = _SEEDS,
    ratios: Sequence[float] = RATIOS,
    sides: Sequence[Side] = ("labels", "features", "both"),
    strategies: Sequence[str] | None = None,
    setting: Setting | None = None,
    limit: int | None = None,
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Run the sweep on one thread.

    Args:
        data: Kaggle's Criteo or Avazu file, or a folder that holds just it.
        seeds: of the train-test split, absence, initialisation and training.
        ratios: shares of rows that a side lacks, in (0, 1).
        sides: who lacks rows.
        strategies: names from STRATEGIES or EXTRAS; by default all of STRATEGIES. Baselines are always run.
        setting: model and optimiser.
        limit: draw so many rows at random.
        keeping: of the runs; nowhere if left out.

    Raises:
        ConfigError: an unknown strategy, a ratio outside (0, 1), own columns beside absent labels, or a log of another sweep.
        DataError: the file is not in Kaggle's format.
    """
    setting, keeping = setting or Setting(), keeping or Keeping()
    _check(ratios, strategies)
    if setting.own_columns and any(side != "features" for side in sides):
        raise ConfigError(
            f"bench florist: own columns are for the side features, where the label party has every row; found {', '.join(sides)}"
        )
    table = read_clicks(data, limit=limit)
    about = {"name": table.name, "rows": table.frame.height, **setting.facts()}
    total = len(seeds) * len(ratios) * sum(len(BASELINES) + len(_chosen(side, strategies)) for side in sides)
    encoded = Latest(partial(_encoded, table, setting))
    cases = (case for seed in seeds for case in _Cases(encoded(seed=seed), setting, seed).of(ratios, sides, strategies))
    runs = [FloristRun(**each) for each in run_cases(cases, keeping, dict(about), total=total)]
    clicks = encoded(seed=seeds[-1])
    about |= {
        "training_rows": len(clicks.training),
        "test_rows": len(clicks.test),
        "positive_rate": float(clicks.training_labels_N.mean()),
        "batch_size": setting.batch(len(clicks.training)),
    }
    return report_of(runs, data=about)


def _encoded(table: ClickTable, setting: Setting, *, seed: int) -> ClickData:
    """The feature party's columns, and with them the label party's if it has any."""
    feature_party, label_party = split_columns(table, label_party=setting.own_columns)
    clicks = encode_clicks(table, seed=seed, min_count=setting.min_count, columns=feature_party)
    if not setting.own_columns:
        return clicks
    return replace(clicks, own=encode_clicks(table, seed=seed, min_count=setting.min_count, columns=label_party))


def _check(ratios: Sequence[float], strategies: Sequence[str] | None) -> None:
    for ratio in ratios:
        if not 0 < ratio < 1:
            raise ConfigError(
                f"bench florist: ratio {ratio} is not a share of absent rows; expected between 0 and 1, both excluded"
            )
    known = {name for names in (*STRATEGIES.values(), *EXTRAS.values()) for name in names}
    unknown = sorted(set(strategies or ()) - known)
    if unknown:
        raise ConfigError(f"bench florist: unknown strategies {', '.join(unknown)}; expected some of {', '.join(sorted(known))}")


def _chosen(side: Side, strategies: Sequence[str] | None) -> list[str]:
    if strategies is None:
        return [name for name in STRATEGIES[side] if name not in BASELINES]
    return [name for name in (*STRATEGIES[side], *EXTRAS[side]) if name not in BASELINES and name in strategies]


class _Cases:
    """Every run of a seed; those that differ at prediction only share a training, as all do the full baseline's."""

    def __init__(self, clicks: ClickData, setting: Setting, seed: int) -> None:
        self.clicks, self.setting, self.seed = clicks, setting, seed
        everything = torch.ones(len(clicks.training), dtype=torch.bool)
        whole = Membership(has_labels_U=everything, has_features_U=everything)
        self.full = Treatment(membership=whole, rows=torch.arange(len(clicks.training)))
        self.full_figures: dict[str, float] = {}
        self.trained: dict[str, tuple[Trained, dict[str, dict[str, Any]]]] = {}

    def of(self, ratios: Sequence[float], sides: Sequence[Side], strategies: Sequence[str] | None) -> Iterator[Case]:
        """The baselines and the chosen strategies at every ratio and side."""
        for ratio in ratios:
            for side in sides:
                members = Membership.of(side, rows=len(self.clicks.training), ratio=ratio, seed=self.seed)
                yield self._case(side, "baseline-full", ratio, self._full_baseline)
                yield self._case(side, "baseline-partial", ratio, partial(self._partial_baseline, members))
                for name in sorted(_chosen(side, strategies)):  # variants that differ at prediction only come next to each other
                    yield self._case(side, name, ratio, partial(self._strategy, name, side, ratio, members))

    def _case(self, side: Side, strategy: str, ratio: float, figures: Callable[[], Mapping[str, Any]]) -> Case:
        def trial() -> dict[str, Any]:
            started = time.perf_counter()
            found = figures()
            return {"attacks": {}, **found, "seconds": time.perf_counter() - started}

        key = {"side": side, "strategy": strategy, "ratio": ratio, "seed": self.seed}
        return Case(key=key, trial=trial, title=f"seed {self.seed}: {side} {strategy} at {ratio:g}")

    def _full_baseline(self) -> Mapping[str, Any]:
        if not self.full_figures:
            self.full_figures = self._utility(self.full)
        return self.full_figures

    def _partial_baseline(self, members: Membership) -> Mapping[str, Any]:
        shared = torch.nonzero(members.has_labels_U & members.has_features_U).squeeze(1)
        return self._utility(Treatment(membership=members, rows=shared))

    def _utility(self, treatment: Treatment) -> dict[str, float]:
        return Trained(treatment, self.clicks, self.setting, seed=self.seed, record=False).utility()

    def _strategy(self, name: str, side: Side, ratio: float, members: Membership) -> Mapping[str, Any]:
        attacked = ratio == ATTACKED_RATIO
        treatment, calibration = _treatment(name, side, members, self.clicks, seed=self.seed)
        kinds = [getattr(treatment, kind) for kind in ("labels", "features", "noise", "redraw", "shift")]
        key = repr((side, ratio, kinds, len(treatment.held_out)))
        if key not in self.trained:
            self.trained.clear()  # views are large
            trained = Trained(treatment, self.clicks, self.setting, seed=self.seed, record=attacked)
            self.trained[key] = (trained, _leaks(trained, side) if attacked else {})
        trained, attacks = self.trained[key]
        return {**trained.utility(calibration), "attacks": attacks}


def _leaks(trained: Trained, side: Side) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if side != "features":
        found |= {f"feature party/{name}": figures for name, figures in trained.leaks("feature").items()}
    if side != "labels":
        found |= {f"label party/{name}": figures for name, figures in trained.leaks("label").items()}
    return found


def _treatment(name: str, side: Side, members: Membership, clicks: ClickData, *, seed: int) -> tuple[Treatment, Calibration]:
    """Give what to train, and what prediction does to its logits."""
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
    """Give the imputers by name, when to calibrate, and whether for both sides; a side that lacks nothing imputes nothing."""
    if side == "both":
        return BOTH[base]
    if side == "labels":
        return base, "sampling", label_strategy(base)[1], True
    return "majority", base, feature_strategy(base)[1], True


def _labels_only(members: Membership, imputed_rate: float) -> LogitShift:
    share = float(members.has_labels_U.double().mean())
    return LogitShift(shared=share, positive=(1 - share) * imputed_rate, negative=(1 - share) * (1 - imputed_rate))


# --- what the runs say


def report_of(runs: Sequence[FloristRun], *, data: dict[str, Any]) -> dict[str, Any]:
    """Summarise runs over seeds, and set the paper's tables, curves and checks beside them."""
    groups: dict[tuple[Side, str, float], list[FloristRun]] = defaultdict(list)
    for each in runs:
        groups[each.side, each.strategy, each.ratio].append(each)
    partial = {(each.side, each.ratio, each.seed): each.auc for each in runs if each.strategy == "baseline-partial"}
    summaries = [_summary(*key, found, partial) for key, found in groups.items()]
    by_key = {(each["side"], each["strategy"], each["ratio"]): each for each in summaries}
    return {
        "benchmark": "florist",
        "data": data,
        "seeds": sorted({each.seed for each in runs}),
        "ratios": sorted({each.ratio for each in runs}),
        "seconds": sum(each.seconds for each in runs),
        "runs": [each.__dict__ for each in runs],
        "summaries": summaries,
        "tables": _tables(by_key, data["name"]),
        "curves": _curves(summaries, data["name"]),
        "stated_drops": _stated_drops(by_key, data["name"]),
        "checks": _checks(by_key) if data["name"] == "criteo" else [],  # the bars were set on Criteo
    }


def _summary(
    side: Side, strategy: str, ratio: float, runs: Sequence[FloristRun], partial: dict[tuple[Side, float, int], float]
) -> dict[str, Any]:
    attacks = {
        name: {
            figure: summarize_seeds([each.attacks[name][figure] for each in runs if name in each.attacks])
            for figure in ("symmetric_auc", "chance_symmetric_auc", "tpr_at_fpr")
        }
        for name in runs[0].attacks
    }
    return {
        "side": side,
        "strategy": strategy,
        "ratio": ratio,
        "auc": summarize_seeds([each.auc for each in runs]),
        "ace": summarize_seeds([each.ace for each in runs]),
        # of the same seed, so the luck of the test set cancels
        "auc_change_percent": summarize_seeds([100 * (each.auc / partial[side, ratio, each.seed] - 1) for each in runs]),
        "attacks": attacks,
    }


ByKey = dict[tuple[str, str, float], dict[str, Any]]


def _tables(by_key: ByKey, name: str) -> dict[str, Any]:
    numbers = paper.TABLES[name]
    tables: dict[str, Any] = {}
    for side, party, printed in (
        ("labels", "feature party", paper.LABEL_ATTACK_AUC[name]),
        ("features", "label party", paper.FEATURE_ATTACK_AUC[name]),
    ):
        tables[numbers[side]] = {
            "title": f"Attack AUC of synthetic {side} on {name}, ratio {ATTACKED_RATIO:g}",
            "rows": [
                {
                    "strategy": strategy,
                    "paper": value,
                    "measured": (attack := found["attacks"].get(f"{party}/spectral", {})).get("symmetric_auc"),
                    "chance": attack.get("chance_symmetric_auc"),
                }
                for strategy, value in printed.items()
                if (found := by_key.get((side, strategy, ATTACKED_RATIO))) is not None
            ],
        }
    tables[numbers["both"]] = {
        "title": f"AUC change in percent against baseline-partial on {name}, both sides at the ratio",
        "rows": [
            {
                "ratio": ratio,
                "paper": value,
                **{strategy: by_key.get(("both", strategy, ratio), {}).get("auc_change_percent") for strategy in BOTH},
            }
            for ratio, value in paper.AUC_CHANGE_PERCENT[name].items()
            if ("both", "baseline-partial", ratio) in by_key
        ],
    }
    draws = {k: by_key.get(("labels", f"random-pred:k={k}", ATTACKED_RATIO)) for k in paper.DRAWS["auc"]}
    if "draws" in numbers and any(draws.values()):
        tables[numbers["draws"]] = {
            "title": f"random-pred by the number of draws on {name}, ratio {ATTACKED_RATIO:g}",
            "rows": [
                {
                    "k": k,
                    "paper_auc": paper.DRAWS["auc"][k],
                    "auc": found["auc"],
                    "paper_attack_auc": paper.DRAWS["attack_auc"][k],
                    "attack_auc": found["attacks"]["feature party/spectral"]["symmetric_auc"],
                }
                for k, found in draws.items()
                if found is not None
            ],
        }
    return tables


def _stated_drops(by_key: ByKey, name: str) -> list[dict[str, Any]]:
    """Set the drops that the paper's text states beside ours, in percent of AUC."""
    found = []
    for stated in paper.STATED_DROPS_PERCENT[name]:
        ours, theirs = (by_key.get((stated["side"], stated[who], stated["ratio"])) for who in ("strategy", "against"))
        if ours is not None and theirs is not None:
            found.append({**stated, "measured": 100 * (1 - ours["auc"]["mean"] / theirs["auc"]["mean"])})
    return found


def _curves(summaries: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Figure 2 or 3: AUC (panels a to c) and ACE (d to f) against the ratio, by side and strategy."""
    figure = paper.TABLES[name]["figure"]
    panels: dict[str, Any] = {}
    for metric, letters in (("auc", "abc"), ("ace", "def")):
        for side, letter in zip(("labels", "features", "both"), letters, strict=True):
            curves: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for each in sorted(summaries, key=lambda summary: summary["ratio"]):
                if each["side"] == side:
                    curves[each["strategy"]].append({"ratio": each["ratio"], **each[metric]})
            panels[f"{figure}{letter}"] = {"side": side, "metric": metric, "curves": dict(curves)}
    return panels


def _checks(by_key: ByKey) -> list[dict[str, Any]]:
    """What the project set out to show at ratio 0.5; a check whose runs are missing is left out."""

    def figure(side: str, strategy: str, *path: str) -> float | None:
        found: Any = by_key.get((side, strategy, ATTACKED_RATIO))
        for step in (*path, "mean"):
            found = found.get(step) if found is not None else None
        return None if found is None else float(found)

    gradients, embeddings = (
        ("attacks", "feature party/spectral", "symmetric_auc"),
        ("attacks", "label party/spectral", "symmetric_auc"),
    )
    ace = figure("labels", "majority", "ace")
    partial = figure("labels", "baseline-partial", "auc")
    majority = figure("labels", "majority", *gradients)
    wanted: list[tuple[str, float | None, str, float | None]] = [
        ("attack AUC of random features", figure("features", "random", *embeddings), ">=", 0.8),
        ("attack AUC of sampling", figure("features", "sampling", *embeddings), "<=", 0.56),
        ("attack AUC of minority labels, against majority's", figure("labels", "minority", *gradients), ">=", majority),
        ("attack AUC of random-pred", figure("labels", "random-pred", *gradients), "<=", 0.55),
        ("ACE of majority-tr, against 70 % of majority's", figure("labels", "majority-tr", "ace"), "<=", ace and 0.7 * ace),
        ("ACE of majority-te, against 70 % of majority's", figure("labels", "majority-te", "ace"), "<=", ace and 0.7 * ace),
        (
            "AUC of majority-tr, against baseline-partial - .03",
            figure("labels", "majority-tr", "auc"),
            ">=",
            partial and partial - 0.03,
        ),
    ]
    return [
        {
            "what": what,
            "measured": value,
            "wanted": f"{sign} {bound:.4g}",
            "passed": value >= bound if sign == ">=" else value <= bound,
        }
        for what, value, sign, bound in wanted
        if value is not None and bound is not None
    ]
