"""Build the feature-leakage benchmark's page: the cost of each setting, how well columns are rebuilt, and the frontiers."""

from collections.abc import Sequence

import numpy as np

from tallystick.attacks.feature_inference.evaluate import KNOWN
from tallystick_experiments.feature_leakage.runs import AIDED, ALONE, ANY, EMBEDDINGS, HIDDEN
from tallystick_experiments.feature_leakage.settings import DEFAULT, settings
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, seed_count, seeds_of
from tallystick_experiments.stats import Figure, Row, Spread, at, change, groups, over_seeds, read, spread

MOST = max(KNOWN)
HALF, PRICE = 0.5, 0.01  # which a recommendation must reach
READS = {
    f"{reads}, {known} rows": at("mean", reads, str(known))
    for reads, known in ((EMBEDDINGS, 20), (EMBEDDINGS, MOST), (AIDED, 20), (AIDED, MOST), (ANY, MOST))
}
COMPARED = [f"{reads}, {MOST} known rows, of rows compared on once an epoch" for reads in (EMBEDDINGS, ANY)]
PICTURES = {
    EMBEDDINGS: "Test AUC against what embeddings alone give away",
    ANY: "Test AUC against all attacks, own columns included",
}


def feature_leakage_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``sweep.run``."""
    by_name = groups(rows, "name")
    unmeasured = sorted({line for row in rows for line in row["not_measured"]})
    return Benchmark(
        title=f"Feature leakage on {about['data']}: {about['rows']:,} rows, {seed_count(rows)}",
        tables=[_prices(by_name), *(table for reads in (ANY, EMBEDDINGS) for table in _by_column(by_name, reads))],
        curves=[_frontier(by_name, reads) for reads in PICTURES],
        notes=[
            "Rebuilt: the mean over the feature party's columns of what the strongest attack tells, of numbers R², of categories "
            "how far accuracy rises from the most frequent one's; on training rows that the attacker does not know.",
            "Own columns alone: what the label party rebuilds from its own columns, without any partner's embedding. No "
            "defence of embeddings takes that away.",
            "Strongest of all: of every column the attack that tells most, whether or not it reads own columns.",
            "The pictures' lines follow, of each family and the default, the settings that no other of them beats in both; the "
            "table has them all.",
            "Rows compared on: held out of training, embedded once after each epoch by weights that stand still, as validation "
            "rows are; the test rows stand for them.",
            "Every figure is a floor: another attack may find more.",
            *(f"Not measured: {line}." for line in unmeasured),
        ],
        facts={
            "model": f"layers {'-'.join(map(str, HIDDEN))}, cut after the first or as named, there as wide as named",
            "optimiser": f"Adam {about['rate']:g}, batch {about['batch']:,}, {counted(about['epochs'], 'epoch')}",
            "seeds": seeds_of(rows),
        },
    )


def final_auc(row: Row) -> float:
    """Return the AUC after the last epoch."""
    return float(row["test_auc"][-1])


def rebuilt(rows: Sequence[Row], figure: Figure) -> Spread | None:
    """Average over seeds. It is None if one of the seeds could not be measured, because the mean would then be of other
    trainings.
    """
    return over_seeds(rows, figure) if all(read(row, figure) is not None for row in rows) else None


def share_of_default(rows: Sequence[Row], default: Sequence[Row]) -> Spread | None:
    """Return the share of the default's leakage to all attacks, or None if that is nothing or was not measured."""
    whole = {row["seed"]: row["mean"][ANY][str(MOST)] for row in default}
    both = [(row["mean"][ANY][str(MOST)], whole[row["seed"]]) for row in rows if row["seed"] in whole]
    if not both or not all(mine is not None and base for mine, base in both):
        return None
    return spread(mine / base for mine, base in both)


def _prices(found: dict[str, list[Row]]) -> ResultTable:
    default, cells = found.get(DEFAULT, []), list[list[Cell]]()
    for name, rows in found.items():
        changed, share = change(rows, default, final_auc), share_of_default(rows, default)
        half = None if share is None or changed is None else share.value <= HALF and changed.value >= -PRICE
        leaks = [rebuilt(rows, figure) for figure in READS.values()]
        cells.append([name, over_seeds(rows, final_auc), changed, *leaks, share, _strongest(rows), half])
    columns = ["setting", "test AUC", "change", *READS, "of the default's", "strongest on embeddings", "half for .01"]
    if any("mean_compared" in row for rows in found.values() for row in rows):
        columns += COMPARED
        for line, rows in zip(cells, found.values(), strict=True):
            line += [
                rebuilt(rows, at("mean_compared", reads, str(MOST))) if all("mean_compared" in row for row in rows) else None
                for reads in (EMBEDDINGS, ANY)
            ]
    note = (
        f"Of the default's: the share of what {DEFAULT} gives away to the strongest of all attacks, own columns included. "
        "Half for .01: at most half of it for at most .01 of test AUC, both by their means; intervals may leave it open."
    )
    return ResultTable(name="What hiding columns costs", note=note, columns=columns, rows=cells)


def _strongest(rows: Sequence[Row]) -> str | None:
    """Return the attack on embeddings alone, with most known rows, that rebuilds most on average, or None if there is none."""
    means: dict[str, float] = {
        name: float(np.mean([row["attacks"][name] for row in rows]))
        for name in rows[0]["attacks"]
        if name.endswith(f"{MOST} rows") and "own-columns" not in name
    }
    best = max(means, key=lambda name: means[name], default=None)
    return None if best is None else best.partition(",")[0]


def _by_column(found: dict[str, list[Row]], reads: str) -> list[ResultTable]:
    """Show how well every column was rebuilt. For categories, show the accuracy next to that of a guess."""

    def spread_of(rows: Sequence[Row], column: str, what: str) -> Spread | None:
        return over_seeds(rows, at("columns", reads, str(MOST), column, what))

    question = f"{reads}, {MOST} known rows"
    every = list(dict.fromkeys(name for rows in found.values() for row in rows for name in row["columns"][ANY][str(MOST)]))
    names = [name for name in every if any(spread_of(rows, name, "value") for rows in found.values())]
    cells: list[list[Cell]] = [[setting, *(spread_of(rows, name, "value") for name in names)] for setting, rows in found.items()]
    tables = [ResultTable(name=f"By column: {question}", columns=["setting", *names], rows=cells)]
    if coded := [name for name in names if any(spread_of(rows, name, "accuracy") for rows in found.values())]:
        guesses = [
            next(guess for rows in found.values() if (guess := spread_of(rows, name, "majority")) is not None) for name in coded
        ]
        cells = [["a guess: the most frequent category", *guesses]]
        cells += [[setting, *(spread_of(rows, name, "accuracy") for name in coded)] for setting, rows in found.items()]
        tables.append(ResultTable(name=f"Accuracy on categories: {question}", columns=["setting", *coded], rows=cells))
    return tables


def _frontier(found: dict[str, list[Row]], reads: str) -> Curve:
    """Return the settings of each family that no other of it beats in both test AUC and leakage, starting with the default."""
    families = {setting.name: setting.family for setting in settings()}
    places = {
        name: (leak.value, spread(map(final_auc, rows)).value)
        for name, rows in found.items()
        if (leak := rebuilt(rows, at("mean", reads, str(MOST)))) is not None
    }
    start = [places.pop(DEFAULT)] if DEFAULT in places else []
    points: dict[str, list[tuple[float, float]]] = {}
    for name, place in places.items():
        family = families[name]
        points.setdefault(family, [] if family == ALONE else start.copy()).append(place)
    if not points and start:
        points["no defence"] = start
    return Curve(
        name=PICTURES[reads],
        x=f"mean over the columns of what comes back (R², or its like), {MOST} known rows",
        y="test AUC",
        series=[Series.of(family, unbeaten(of)) for family, of in points.items()],
    )


def unbeaten(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (leak, utility) for which no other leaks less at the same utility or more. The least leak comes first."""
    frontier: list[tuple[float, float]] = []
    for leak, utility in sorted(points, key=lambda point: (point[0], -point[1])):
        if not frontier or utility > frontier[-1][1]:
            frontier.append((leak, utility))
    return frontier
