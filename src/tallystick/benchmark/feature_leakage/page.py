"""The feature-leakage benchmark's page: what each setting costs, and how much of the columns comes back."""

from typing import Any

from tallystick.benchmark.feature_leakage.runs import HIDDEN
from tallystick.report.bench import Benchmark, Cell, ResultTable, counted, spread_of

READS = (
    "embeddings, 20 rows",
    "embeddings, 200 rows",
    "embeddings and own columns, 20 rows",
    "embeddings and own columns, 200 rows",
)


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``sweep.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"Feature leakage on {data['data']}: {data['rows']:,} rows, {counted(len(found['seeds']), 'seed')}",
        command=command,
        tables=[_prices(found), _by_column(found)],
        notes=[
            "Rebuilt: the mean over the feature party's columns of what the strongest attack tells, of numbers R², of categories "
            "how far accuracy rises from the most frequent one's; on training rows that the attacker does not know.",
            "Own columns alone: what the label party rebuilds from its own columns, without any partner's embedding.",
            "Every figure is a floor: another attack may find more.",
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
            spread_of(row["change"]) if row["change"] is not None else None,
            *(spread_of(row["rebuilt"][reads]) for reads in READS),
            row["strongest"],
            row.get("target"),
        ]
        for row in found["table"]
    ]
    columns = ["setting", "test AUC", "change", *READS, "strongest", "half for .01"]
    note = "Half for .01: at most half of the default's from embeddings with 200 known rows, for at most .01 of test AUC."
    return ResultTable(name="What hiding columns costs", note=note, columns=columns, rows=rows)


def _by_column(found: dict[str, Any]) -> ResultTable:
    names = list(found["columns"][0]["columns"]) if found["columns"] else []
    names = list(dict.fromkeys(name for each in found["columns"] for name in each["columns"])) or names
    rows: list[list[Cell]] = [
        [each["setting"], *(spread_of(each["columns"].get(name)) for name in names)] for each in found["columns"]
    ]
    return ResultTable(name="By column, from embeddings with 200 known rows", columns=["setting", *names], rows=rows)
