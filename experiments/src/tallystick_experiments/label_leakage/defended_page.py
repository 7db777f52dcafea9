"""The page of every label attack against every defence."""

from typing import Any

from tallystick_experiments.label_leakage.defended import VIEWS
from tallystick_experiments.page import Benchmark, Cell, ResultTable, counted, spread_of


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``defended.run`` found."""
    return Benchmark(
        title=f"Label attacks against defences: {', '.join(found['data'])}, {counted(len(found['seeds']), 'seed')}",
        command=command,
        tables=[
            table
            for name, rows in found["tables"].items()
            for table in (_strongest(name, found["data"][name], rows), *_columns(name, rows), _every(name, rows))
        ],
        notes=[
            "Leak AUCs are max(a, 1 - a), of batches or of the whole run: for a guess above .5, as the last column says. Where "
            "the label is a number, they are Spearman's rank correlation, whichever way round, and the test figure is RMSE.",
            "Strongest: of the attacks on that view that somebody could run, the one that comes furthest from a guess to "
            "certainty. Chosen after seeing them all, so it leans upwards a little.",
            "All rows but cut-after have the cut after the first of three hidden layers, where moving it (layer adjustment, "
            "arXiv 2603.18680) ends; cut-after 2 and 3 are what it is moved from.",
            "Small figures below a mean are Student's 95 % interval of it over seeds. Every figure is a floor.",
        ],
        facts={
            "model": "a contract's default; half of the columns at each party, of credit-default as its files have them",
            "training": f"{counted(found['epochs'], 'epoch')} of about 40 steps, AdamW 1e-3, cosine",
            "seeds": ", ".join(map(str, found["seeds"])),
        },
    )


def _strongest(name: str, data: dict[str, Any], rows: list[dict[str, Any]]) -> ResultTable:
    cells: list[list[Cell]] = []
    for row in rows:
        best = [row["strongest"][view] for view in VIEWS]
        named: list[Cell] = [cell for each in best for cell in ((each["attack"], spread_of(each)) if each else (None, None))]
        cells.append([row["defense"], spread_of(row["test"]), spread_of(row["change"]), *named])
    ranked = data["target"] == "regression"
    test, leak = ("test RMSE", "Spearman") if ranked else ("test AUC", "AUC")
    columns = ["defence", test, "change", *(head for view in VIEWS for head in (view, leak))]
    note = f"{data['rows']:,} rows" + ("." if ranked else f", {data['classes']} classes.")
    return ResultTable(name=f"{name}: the strongest attack of each view", note=note, columns=columns, rows=cells)


def _columns(name: str, rows: list[dict[str, Any]]) -> list[ResultTable]:
    """How much of the feature party's columns comes back, by how many of its rows the label party knows."""
    counts = sorted({known for row in rows for known in row["columns"]}, key=int)
    if not counts:
        return []
    cells: list[list[Cell]] = [
        [row["defense"], spread_of(row["test"]), *(spread_of(row["columns"].get(known)) for known in counts)] for row in rows
    ]
    heads = ["no row known" if known == "0" else f"{known} rows known" for known in counts]
    note = "Mean over columns of what the strongest attack rebuilt: R², or its like for categories. 0 is a guess, 1 is exact."
    return [ResultTable(name=f"{name}: columns rebuilt", note=note, columns=["defence", "test", *heads], rows=cells)]


def _every(name: str, rows: list[dict[str, Any]]) -> ResultTable:
    """Attacks down, defences across."""
    attacks = list(dict.fromkeys(attack for row in rows for attack in row["attacks"]))
    cells: list[list[Cell]] = [
        [attack, *(spread_of(row["attacks"].get(attack)) for row in rows), rows[0]["chance"].get(attack)] for attack in attacks
    ]
    columns = ["attack", *(row["defense"] for row in rows), "a guess"]
    return ResultTable(name=f"{name}: every attack", columns=columns, rows=cells)
