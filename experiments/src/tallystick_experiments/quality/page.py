"""Build the page of the quality benchmark: every method on every table, its distance from boosting, its cost, and a picture."""

from collections.abc import Mapping, Sequence

import numpy as np

from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, seeds_of
from tallystick_experiments.quality.figure import METRIC
from tallystick_experiments.stats import Figure, Row, change, distinct, groups, over_seeds, spread

WITHIN = {"tabm": 0.001, "tabm-refit": 0.001, "own": 0.001, "lightgbm-own": 0.001}
"""How far behind a rival a method may be to count as equally good, in AUC; for RMSE ten times that, relatively."""
USUALLY_WITHIN = 0.002
FEW_TABLES = 4
"""The number of tables below which the page states nothing over tables."""
AUC_BEHIND, RMSE_BEHIND = 0.005, 0.05
"""The distance that is too far behind."""
KEPT_AUC_BEHIND, KEPT_RMSE_BEHIND = 0.005, 0.03
"""How far behind LightGBM on the joined table a head on shares may be to count as near it."""
SHOWN = {
    "boosting-own": "boosting, own half",
    "boosting": "boosting, joined",
    "boosting-early": "boosting, joined, early stopping",
    "lightgbm": "LightGBM, joined, early stopping, refit",
    "tabm": "TabM, joined",
    "tabm-refit": "TabM, joined, refit",
    "lightgbm-own": "LightGBM, own half",
    "own": "default, own half",
    "shared": "run, head on shares",
    "unmatched": "run, rows without a partner's row",
    "joined": "default, joined",
    "default": "default, split",
    "open-ended": "the same, open-ended at .002",
    "no-folds": "one network, split",
    "unscreened": "default, split, nothing screened",
    "no-gradients": "default, no gradient sent",
}
BEHIND = {
    "behind boosting": ("default", "boosting"),
    "behind early stopping": ("default", "boosting-early"),
    "behind LightGBM": ("default", "lightgbm"),
    "behind TabM": ("default", "tabm"),
    "behind TabM refit": ("default", "tabm-refit"),
    "without a partner's row, behind own half": ("unmatched", "own"),
    "without a partner's row, behind LightGBM on it": ("unmatched", "lightgbm-own"),
}
"""The methods that are compared, by the head of the column."""
GAIN = ("lightgbm-own", "lightgbm", "shared")
"""Own columns, the joined table, and the method that keeps a share of the gain between them."""
_OTHERWISE_SPLIT = (
    "A run draws validation rows by a hash of ids, an eighth of the rows that are not for test, and `own` at random. Up to 9,999 "
    "training rows the run has four networks of own columns, each without a fold, where `own` has one from 2,000 on. With the "
    "same rows in the same folds both are the same network to the bit."
)
OURS = {"default": "The default is", "unmatched": "Scores of rows without a partner's row are"}
ByMethod = Mapping[str, Sequence[Row]]  # rows of one table


def quality_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``sweep.run``."""
    by_table = {name: groups(of, "method") for name, of in groups(rows, "table").items()}
    tables = {name: (by_table[name], METRIC.get(of["target"], "auc")) for name, of in about["data"].items()}
    methods = {name: title for name, title in SHOWN.items() if any(name in of for of in by_table.values())}
    gaps = {
        name: {table: gap for table, of in tables.items() if (gap := _gap(*of, *both)) is not None}
        for name, both in BEHIND.items()
    }
    subject = "A split network beside gradient boosting on the joined table"
    if "unmatched" in methods and "default" not in methods:
        subject = "Rows without a partner's row beside own columns alone"
    if "shared" in methods and "default" not in methods:
        subject = "A head on shares beside gradient boosting on the joined table"
    by_time = [name for name, of in about["data"].items() if of.get("by_time")]
    return Benchmark(
        title=f"{subject}: {counted(len(tables), 'table')}, {counted(len(distinct(rows, 'seed')), 'seed')}",
        tables=[
            _figures(about["data"], tables, methods, gaps),
            *_over_tables(tables, methods),
            *_kept_gains(tables, methods),
            *_seed_by_seed(tables, methods),
            *_cost_table(tables, methods),
        ],
        curves=[
            Curve(
                name="Ahead of boosting on the joined table, in hundredths of AUC or percent of RMSE",
                x="table, by its number above",
                y="ahead",
                series=[
                    Series.of(
                        title,
                        [
                            (number, None if (gap := _gap(*of, name, "boosting")) is None else -100 * gap)
                            for number, of in enumerate(tables.values(), 1)
                        ],
                    )
                    for name, title in methods.items()
                    if name != "boosting"
                ],
            )
        ],
        notes=[
            *(
                sentence
                for name, of in gaps.items()
                if (sentence := count_within(*BEHIND[name], [(tables[table][1], gap) for table, gap in of.items()]))
            ),
            *([_count_kept(tables)] if set(GAIN) <= methods.keys() else []),
            "Columns are shared out at random, by the seed, and so are rows: 70 % training, 10 % validation, 20 % test. "
            "Boosting is fitted on training and validation rows, LightGBM after validation rows have stopped it early; networks "
            "keep the weights that validate best.",
            *([_OTHERWISE_SPLIT] if "unmatched" in methods else []),
            *([f"By time, not at random, are split: {', '.join(by_time)}; networks refit there."] if by_time else []),
            "Intervals are over seeds, which draw other test rows and halves: methods of one seed share them.",
        ],
        facts={"seeds": seeds_of(rows)},
    )


def behind(metric: str, ours: float, theirs: float) -> float:
    """Return how far behind a figure is, negative if ahead: AUC as a difference, RMSE relatively."""
    return (ours - theirs) / theirs if metric != "auc" else theirs - ours


def _gap(found: ByMethod, metric: str, ours: str, theirs: str) -> float | None:
    """Return how far the mean of one method is behind another's, or None if one of them was not run."""
    both = [over_seeds(found.get(name, []), "value") for name in (ours, theirs)]
    return None if both[0] is None or both[1] is None else behind(metric, both[0].value, both[1].value)


def count_within(ours: str, rival: str, gaps: Sequence[tuple[str, float]]) -> str:
    """Count the tables on which a method of OURS is as good as a rival, and those on which it is too far behind."""
    if not gaps:
        return ""
    of_auc = WITHIN.get(rival, USUALLY_WITHIN)
    within = sum(gap <= (10 * of_auc if metric != "auc" else of_auc) for metric, gap in gaps)
    far = sum(gap > (RMSE_BEHIND if metric != "auc" else AUC_BEHIND) for metric, gap in gaps)
    bounds = f"{of_auc:.3f}".removeprefix("0") + f" AUC or {1000 * of_auc:.0f} % RMSE"
    return (
        f"{OURS[ours]} within {bounds} of {rival}, or better, on {within} of "
        f"{counted(len(gaps), 'table')}, and behind by more than .005 or 5 % on {far}."
    )


def _figures(
    about: Row, tables: Mapping[str, tuple[ByMethod, str]], methods: Mapping[str, str], gaps: Mapping[str, Mapping[str, float]]
) -> ResultTable:
    compared = [name for name in BEHIND if gaps[name]]
    cells: list[list[Cell]] = []
    for number, (name, (found, metric)) in enumerate(tables.items(), 1):
        figures = [over_seeds(found.get(method, []), "value") for method in methods]
        facts = [number, name, about[name]["rows"], about[name]["columns"], metric]
        cells.append([*facts, *figures, *(gaps[each].get(name) for each in compared)])
    return ResultTable(
        name="Test figures",
        columns=["", "table", "rows", "columns", "metric", *methods.values(), *compared],
        rows=cells,
        note="AUC (of several classes the mean of each against the rest): more is better; RMSE: less is better. "
        "Behind: as a difference of AUC, or as a share of RMSE; below 0 is ahead.",
    )


def _over_tables(tables: Mapping[str, tuple[ByMethod, str]], methods: Mapping[str, str]) -> list[ResultTable]:
    """Return how far the default is ahead of each other method, over tables, or nothing for few tables."""
    cells: list[list[Cell]] = []
    for rival in methods:
        gaps = [(_gap(*of, "default", rival), of[1]) for of in tables.values()]
        points = [-gap * (10 if metric == "rmse" else 100) for gap, metric in gaps if gap is not None]
        if rival != "default" and len(points) >= FEW_TABLES:
            cells.append(
                [methods[rival], len(points), spread(points), float(np.median(points)), sum(each > 0 for each in points)]
            )
    if not cells:
        return []
    return [
        ResultTable(
            name="The default less the others, over tables",
            columns=["the other", "tables", "points ahead", "median", "ahead on"],
            rows=cells,
            note="A point is .01 of AUC or 10 % of the other's RMSE, on a table's mean over seeds. Intervals are over tables.",
        )
    ]


def _kept_gain(found: ByMethod, metric: str) -> float | None:
    """Return the share of the gain from own columns to the joined table that a head on shares keeps, by means over seeds.

    It is None if a method was not run, or if the gain is not above the bound for equally good methods: a share of so little says
    nothing.
    """
    own, joint, shared = (over_seeds(found.get(name, []), "value") for name in GAIN)
    if own is None or joint is None or shared is None:
        return None
    bound = USUALLY_WITHIN * (10 if metric != "auc" else 1)
    if behind(metric, own.value, joint.value) <= bound:
        return None
    return (shared.value - own.value) / (joint.value - own.value)


def _kept_gains(tables: Mapping[str, tuple[ByMethod, str]], methods: Mapping[str, str]) -> list[ResultTable]:
    """Return the share of the gain that a head on shares keeps, by table."""
    if not set(GAIN) <= methods.keys():
        return []
    cells: list[list[Cell]] = []
    for name, of in tables.items():
        own, joint = (_gap(*of, "shared", rival) for rival in GAIN[:2])
        megabytes = over_seeds(of[0].get("shared", []), lambda row: row["crossing_bytes"] / 1e6)
        cells.append([name, of[1], len(of[0].get("shared", [])), _kept_gain(*of), own, joint, megabytes])
    return [
        ResultTable(
            name="What a head on shares keeps of the gain",
            columns=[
                "table",
                "metric",
                "seeds",
                "share of the gain",
                "behind LightGBM, own half",
                "behind LightGBM, joined",
                "MB",
            ],
            rows=cells,
            note="The share, of means over seeds, is left out where joining brings LightGBM no more than .002 AUC or 2 % RMSE. "
            "MB: all that crossed in training and scoring, the helper's included.",
        )
    ]


def _count_kept(tables: Mapping[str, tuple[ByMethod, str]]) -> str:
    """Say over tables which share of the gain a head on shares keeps, and how often it is below own columns or near the joined
    table.
    """
    shares = [share for of in tables.values() if (share := _kept_gain(*of)) is not None]
    gaps = [(of[1], _gap(*of, "shared", GAIN[0]), _gap(*of, "shared", GAIN[1])) for of in tables.values()]
    whole = [(metric, own, joint) for metric, own, joint in gaps if own is not None and joint is not None]
    below = sum(own > USUALLY_WITHIN * (10 if metric != "auc" else 1) for metric, own, _ in whole)
    near = sum(joint <= (KEPT_RMSE_BEHIND if metric != "auc" else KEPT_AUC_BEHIND) for metric, _, joint in whole)
    middle = f"{np.median(shares):.2f}".removeprefix("0") if shares else "no figure"
    return (
        f"A head on shares keeps {middle} of the gain, the median of {counted(len(shares), 'table')} on which joining brings "
        f"LightGBM more than .002 AUC or 2 % RMSE. It is behind LightGBM's own half by more than that on {below} of "
        f"{counted(len(whole), 'table')}, and within .005 AUC or 3 % RMSE of LightGBM on the joined table, or better, on {near}."
    )


def _seed_by_seed(tables: Mapping[str, tuple[ByMethod, str]], methods: Mapping[str, str]) -> list[ResultTable]:
    """Return how far scores of rows without a partner's row are behind own columns alone, on the same test rows and columns."""
    if not {"unmatched", "own"} <= methods.keys():
        return []
    cells: list[list[Cell]] = []
    for name, (found, metric) in tables.items():
        own_values = {row["seed"]: row["value"] for row in found.get("own", [])}
        gaps = [
            behind(metric, row["value"], own_values[row["seed"]])
            for row in found.get("unmatched", [])
            if row["seed"] in own_values
        ]
        gap_spread = spread(gaps) if gaps else None
        bound = (10 if metric != "auc" else 1) * WITHIN["own"]
        says = "nothing" if gap_spread is None or gap_spread.low is None or gap_spread.low <= bound else "behind"
        cells.append([name, metric, len(gaps), gap_spread, sum(gap > 0 for gap in gaps), says])
    return [
        ResultTable(
            name="Behind own half, seed by seed",
            columns=["table", "metric", "seeds", "behind", "seeds behind", "the interval shows"],
            rows=cells,
            note="Mean over seeds of the difference of AUC, or of the share of RMSE; below 0 is ahead. The interval shows that "
            "scores are behind where all of it is above .001, or 1 % of RMSE.",
        )
    ]


def _cost_table(tables: Mapping[str, tuple[ByMethod, str]], methods: Mapping[str, str]) -> list[ResultTable]:
    """Return the time of each method. If networks with and without gradients are compared, also return the data that crosses."""
    both_kinds = [name for name in ("default", "no-gradients") if name in methods]
    if len(both_kinds) < 2:
        seconds = [
            [name, *(over_seeds(found.get(method, []), "seconds") for method in methods)] for name, (found, _) in tables.items()
        ]
        note = "In one process, without a network and without waiting for a partner."
        if "tabm" in methods:
            note += " TabM's are of the device that the command names, beside other runs on it."
        return [ResultTable(name="Seconds", columns=["table", *methods.values()], rows=seconds, note=note)]
    prices: Mapping[str, Figure] = {
        "MB that cross": lambda row: None if row.get("crossing_bytes") is None else row["crossing_bytes"] / 1e6,
        "seconds": "seconds",
    }
    cells: list[list[Cell]] = []
    for name, (found, _) in tables.items():
        price = change(found.get("no-gradients", []), found.get("default", []), "value")
        cells.append(
            [name, price, *(over_seeds(found.get(method, []), what) for what in prices.values() for method in both_kinds)]
        )
    columns = [f"{methods[name]}: {what}" for what in prices for name in both_kinds]
    return [
        ResultTable(
            name="What it takes",
            columns=["table", "figure without less with gradients, by seed", *columns],
            rows=cells,
            note="Cut embeddings and cut gradients of training, validation and test rows, of four bytes a number. Seconds in one "
            "process on one thread, without a network and without waiting for a partner.",
        )
    ]
