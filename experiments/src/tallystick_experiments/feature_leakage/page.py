"""The feature-leakage benchmark's page: what each setting costs, how much of the columns comes back, and the frontiers."""

from typing import Any

from tallystick_experiments.feature_leakage.runs import AIDED, ALONE, ANY, EMBEDDINGS, HIDDEN
from tallystick_experiments.feature_leakage.sweep import DEFAULT, MOST
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, spread_of

STRONGEST = f"{ANY}, {MOST} rows"
READS = (f"{EMBEDDINGS}, 20 rows", f"{EMBEDDINGS}, {MOST} rows", f"{AIDED}, 20 rows", f"{AIDED}, {MOST} rows", STRONGEST)
PICTURES = {
    EMBEDDINGS: "Test AUC against what embeddings alone give away",
    ANY: "Test AUC against all attacks, own columns included",
}


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``sweep.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"Feature leakage on {data['data']}: {data['rows']:,} rows, {counted(len(found['seeds']), 'seed')}",
        command=command,
        tables=[_prices(found), *(table for reads in (ANY, EMBEDDINGS) for table in _by_column(found, reads))],
        curves=[_frontier(found, reads) for reads in PICTURES],
        notes=[
            "Rebuilt: the mean over the feature party's columns of what the strongest attack tells, of numbers R², of categories "
            "how far accuracy rises from the most frequent one's; on training rows that the attacker does not know.",
            "Own columns alone: what the label party rebuilds from its own columns, without any partner's embedding. No "
            "defence of embeddings takes that away.",
            "Strongest of all: of every column the attack that tells most, whether or not it reads own columns.",
            "The pictures' lines follow, of each family and the default, the settings that no other of them beats in both; the "
            "table has them all.",
            "Every figure is a floor: another attack may find more.",
            *(f"Not measured: {line}." for line in found["not_measured"]),
        ],
        facts={
            "model": f"layers {'-'.join(map(str, HIDDEN))}, cut after the first or as named, there as wide as named",
            "optimiser": f"Adam {data['rate']:g}, batch {data['batch']:,}, {counted(data['epochs'], 'epoch')}",
            "seeds": ", ".join(map(str, found["seeds"])),
        },
    )


def _prices(found: dict[str, Any]) -> ResultTable:
    rows: list[list[Cell]] = [
        [
            row["setting"],
            spread_of(row["test_auc"]),
            spread_of(row["change"]),
            *(spread_of(row["rebuilt"][reads]) for reads in READS),
            spread_of(row["share"]),
            row["strongest"],
            row.get("target"),
        ]
        for row in found["table"]
    ]
    columns = ["setting", "test AUC", "change", *READS, "of the default's", "strongest on embeddings", "half for .01"]
    note = (
        f"Of the default's: the share of what {DEFAULT} gives away to the strongest of all attacks, own columns included. "
        "Half for .01: at most half of it for at most .01 of test AUC, both by their means; intervals may leave it open."
    )
    return ResultTable(name="What hiding columns costs", note=note, columns=columns, rows=rows)


def _by_column(found: dict[str, Any], reads: str) -> list[ResultTable]:
    """Of every column what came back; and of categories, which have one, the accuracy beside a guess's."""
    asked = f"{reads}, {MOST} known rows"
    names = list(dict.fromkeys(name for each in found["columns"] for name in each[reads]))
    rows: list[list[Cell]] = [
        [each["setting"], *(spread_of(each[reads].get(name)) for name in names)] for each in found["columns"]
    ]
    tables = [ResultTable(name=f"By column: {asked}", columns=["setting", *names], rows=rows)]
    accuracies = [(each["setting"], each[f"{reads}, accuracy"]) for each in found["columns"]]
    if coded := list(dict.fromkeys(name for _, each in accuracies for name in each)):
        guesses = {name: values["majority"] for _, each in reversed(accuracies) for name, values in each.items()}
        rows = [["a guess: the most frequent category", *(spread_of(guesses[name]) for name in coded)]]
        rows += [[name, *(spread_of(each.get(one, {}).get("accuracy")) for one in coded)] for name, each in accuracies]
        tables.append(ResultTable(name=f"Accuracy on categories: {asked}", columns=["setting", *coded], rows=rows))
    return tables


def _frontier(found: dict[str, Any], reads: str) -> Curve:
    """Of each family the settings that none of it beats in test AUC and in what comes back, from the default on."""
    points: dict[str, list[tuple[float, float]]] = {}
    (default,) = [_place(row, reads) for row in found["table"] if row["setting"] == DEFAULT] or [None]
    for row in found["table"]:
        if (place := _place(row, reads)) is not None and row["setting"] != DEFAULT:
            begun = [default] if default is not None and row["family"] != ALONE else []
            points.setdefault(row["family"], begun).append(place)
    if not points and default is not None:
        points["no defence"] = [default]
    return Curve(
        name=PICTURES[reads],
        x=f"mean over the columns of what comes back (R², or its like), {MOST} known rows",
        y="test AUC",
        series=[
            Series(name=family, xs=[x for x, _ in kept], ys=[y for _, y in kept])
            for family, kept in ((family, unbeaten(of)) for family, of in points.items())
        ],
    )


def _place(row: dict[str, Any], reads: str) -> tuple[float, float] | None:
    rebuilt = row["rebuilt"][f"{reads}, {MOST} rows"]
    return None if rebuilt is None else (rebuilt["mean"], row["test_auc"]["mean"])


def unbeaten(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (leak, utility) beside which no other leaks less at as much utility; the least leak first."""
    kept: list[tuple[float, float]] = []
    for leak, utility in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or utility > kept[-1][1]:
            kept.append((leak, utility))
    return kept
