"""The page of the quality benchmark: one table, one picture."""

from typing import Any

from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, spread_of
from tallystick_experiments.quality.sweep import behind

SHOWN = {
    "boosting-own": "boosting, own half",
    "boosting": "boosting, joined",
    "boosting-early": "boosting, joined, early stopping",
    "lightgbm": "LightGBM, joined, early stopping, refit",
    "joined": "default, joined",
    "default": "default, split",
    "no-gradients": "default, no gradient sent",
}
BEHIND = {
    "behind_boosting": "behind boosting",
    "behind_boosting-early": "behind early stopping",
    "behind_lightgbm": "behind LightGBM",
}
LEAKING = {
    "default": "default",
    "no-gradients": "no gradient sent",
    "no-gradients-32": "the same, cut width 32",
    "no-gradients-8": "cut width 8",
    "no-gradients-4": "cut width 4",
    "no-gradients-noise-100": "gaussian-embeddings, ε = 100",
    "no-gradients-noise-30": "ε = 30",
}


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``quality.run`` found."""
    rows = found["tables"]
    methods = {name: title for name, title in SHOWN.items() if any(name in row["figures"] for row in rows)}
    against = found["against"]
    rivals = {name: title for name, title in BEHIND.items() if any(name in row for row in rows)}
    return Benchmark(
        title=f"A split network beside gradient boosting on the joined table: {len(rows)} tables, {len(found['seeds'])} seeds",
        command=command,
        tables=[
            ResultTable(
                name="Test figures",
                columns=["", "table", "rows", "columns", "metric", *methods.values(), *rivals.values()],
                rows=[_cells(number, row, list(methods), list(rivals)) for number, row in enumerate(rows, 1)],
                note="AUC (of several classes the mean of each against the rest): more is better; RMSE: less is better. "
                "Behind: as a difference of AUC, or as a share of RMSE; below 0 is ahead.",
            ),
            *_cost_table(rows, methods),
        ],
        curves=[
            Curve(
                name="Ahead of boosting on the joined table, in hundredths of AUC or percent of RMSE",
                x="table, by its number above",
                y="ahead",
                series=[_series(title, name, rows) for name, title in methods.items() if name != "boosting"],
            )
        ],
        notes=[
            f"The default is within .002 AUC or 2 % RMSE of {rival}, or better, on {count['within']} of {count['tables']} "
            f"tables, and behind by more than .005 or 5 % on {count['far_behind']}."
            for rival, count in against.items()
            if count["tables"]
        ]
        + [
            "Columns are shared out at random, by the seed, and so are rows: 70 % training, 10 % validation, 20 % test. "
            "Boosting, which needs no validation rows, is fitted on both; networks keep the epoch that validates best.",
            "Intervals are over seeds, which draw other test rows and halves: methods of one seed share them.",
        ],
        facts={"seeds": ", ".join(map(str, found["seeds"]))},
    )


def _cost_table(rows: list[dict[str, Any]], methods: dict[str, str]) -> list[ResultTable]:
    """What crosses and how long it takes, where networks with and without gradients stand beside each other."""
    shown = [name for name in ("default", "no-gradients") if name in methods]
    if len(shown) < 2:
        return []
    columns = [f"{methods[name]}: {what}" for what in ("MB that cross", "seconds") for name in shown]
    return [
        ResultTable(
            name="What it takes",
            columns=["table", "figure without less with gradients, by seed", *columns],
            rows=[
                [
                    row["table"],
                    spread_of(row.get("price")),
                    *(spread_of(row[of].get(name)) for of in ("megabytes", "seconds") for name in shown),
                ]
                for row in rows
            ],
            note="Cut embeddings and cut gradients of training, validation and test rows, of four bytes a number. Seconds in one "
            "process on one thread, without a network and without waiting for a partner.",
        )
    ]


def leaks_page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``quality.leaks.run`` found."""
    return Benchmark(
        title="What networks tell attackers, by how they are trained",
        command=command,
        tables=[
            ResultTable(
                name="What attacks found",
                columns=["table", "attack", *(LEAKING[name] for name in found["methods"])],
                rows=[
                    [row["table"], row["attack"], *(spread_of(row[name]) for name in found["methods"])] for row in found["rows"]
                ],
                note="Labels: max(AUC, 1 - AUC) per batch, .5 is a guess, 1 is every label. Columns: the mean share "
                "that the strongest attack rebuilt of the feature party's, R² or its like for categories; 0 is a guess.",
            )
        ],
        notes=["A floor: what these attackers found, never that nothing else can be found."],
        facts={"seeds": ", ".join(map(str, found["seeds"]))},
    )


def _cells(number: int, row: dict[str, Any], methods: list[str], rivals: list[str]) -> list[Cell]:
    figures = [spread_of(row["figures"].get(name)) for name in methods]
    gaps = [row.get(name) for name in rivals]
    return [number, row["table"], row["rows"], row["columns"], row["metric"], *figures, *gaps]


def _series(title: str, name: str, rows: list[dict[str, Any]]) -> Series:
    ahead = [
        -100 * behind(row["metric"], row["figures"][name]["mean"], row["figures"]["boosting"]["mean"])
        if name in row["figures"] and "boosting" in row["figures"]
        else None
        for row in rows
    ]
    return Series(name=title, xs=list(range(1, len(rows) + 1)), ys=ahead)
