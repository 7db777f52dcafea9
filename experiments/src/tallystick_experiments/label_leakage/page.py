"""The label-leakage benchmark's page: the paper's tables and figures beside ours, the frontiers, the claims."""

from collections.abc import Sequence
from typing import Any

from tallystick_experiments.label_leakage.paper import LEAK
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, spread_of

_METRICS = {
    "test_auc": "test AUC",
    LEAK: "leak AUC, spectral on embeddings",
    "norm": "leak AUC, norm of gradients",
    "spectral-gradient": "leak AUC, spectral on gradients",
    "layers": "leak AUC, spectral by layer",
}


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``leakage.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"Label leakage on {data['name']}: {data['rows']:,} rows, {counted(len(found['seeds']), 'seed')}",
        command=command,
        tables=[
            *_claims(found["claims"]),
            *(_paper_table(number, table) for number, table in found["tables"].items()),
            *_stated(found["figures"]),
            *(table for frontier in found["frontiers"] for table in _frontier(frontier)),
            *_depth(found["depth"]),
            *_components(found["scenarios"]),
            *_scenarios(found["scenarios"]),
        ],
        curves=[
            *(_panel(number, letter, panel) for number, panels in found["figures"].items() for letter, panel in panels.items()),
            *(_trade(frontier) for frontier in found["frontiers"]),
        ],
        notes=_notes(found),
        seconds=found["seconds"],
        facts={
            "model": "5 layers of 128 below the cut, 2 and the output above, if not said otherwise",
            "optimiser": f"Adam {data['learning_rate']:g}, batch {data['batch_size']:,}, {counted(data['epochs'], 'epoch')}",
            "seeds": ", ".join(map(str, found["seeds"])),
        },
    )


def _claims(claims: Sequence[dict[str, Any]]) -> list[ResultTable]:
    rows = [[each["what"], spread_of(each["measured"]), each["wanted"], each["passed"]] for each in claims]
    return [ResultTable(name="The paper's claims", columns=["what", "leak AUC", "wanted", "holds"], rows=rows)] if rows else []


def _paper_table(number: str, table: dict[str, Any]) -> ResultTable:
    metrics = list(table["rows"][0]["paper"])
    columns = [f"{head}{_METRICS[metric]}" for metric in metrics for head in ("paper, ", "here, ", "normalised top, ")]
    rows: list[list[Cell]] = []
    for row in table["rows"]:
        cells = [
            cell
            for metric in metrics
            for cell in (row["paper"][metric], spread_of(row["measured"][metric]), spread_of(row["normalised"][metric]))
        ]
        rows.append([row["row"], *cells])
    return ResultTable(name=f"Table {number}", note=f"{table['title']}.", columns=["weight", *columns], rows=rows)


def _stated(figures: dict[str, dict[str, Any]]) -> list[ResultTable]:
    rows: list[list[Cell]] = [
        [f"{number}{letter}", name, _METRICS[each["metric"]], each["paper"], spread_of(each[name])]
        for number, panels in figures.items()
        for letter, panel in panels.items()
        for each in panel["stated"]
        for name in panel["series"]
    ]
    note = "The only numbers that the paper's text gives for its figures; here after the last epoch."
    columns = ["panel", "scenario", "what", "paper, about", "here"]
    return [ResultTable(name="Figures: numbers that the text states", note=note, columns=columns, rows=rows)] if rows else []


def _frontier(frontier: dict[str, Any]) -> list[ResultTable]:
    at = f"batch {frontier['batch']}" if frontier["batch"] else "the sweep's batch"
    attacks = list(dict.fromkeys(name for curve in frontier["curves"] for each in curve["points"] for name in each["leaks"]))
    points: list[list[Cell]] = [
        [
            f"{curve['form']} {each['weight']:g}",
            spread_of(each["test_auc"]),
            *(spread_of(each["leaks"].get(name)) for name in attacks),
        ]
        for curve in frontier["curves"]
        for each in curve["points"]
    ]
    prices: list[list[Cell]] = [
        [
            f"{each['form']} {each['weight']:g}",
            spread_of(each["test_auc_change"]),
            spread_of(each["test_auc"]),
            *(spread_of(each["leaks"].get(name)) for name in attacks),
        ]
        for each in frontier["prices"]
    ]
    tables = []
    if points:
        note = "Leak AUCs are max(a, 1 - a) per batch."
        columns = ["penalty and weight", "test AUC", *attacks]
        tables.append(ResultTable(name=f"Distance correlation, {at}", note=note, columns=columns, rows=points))
    if prices:
        note = (
            "Of each form, the smallest weight that brings the spectral attack on embeddings to 0.55, and what it costs against "
            "the paper's network without a defence, same seed."
        )
        columns = ["penalty and weight", "test AUC, change", "test AUC", *attacks]
        tables.append(ResultTable(name=f"Price of hiding, {at}", note=note, columns=columns, rows=prices))
    return tables


def _depth(depths: Sequence[dict[str, Any]]) -> list[ResultTable]:
    if not depths:
        return []
    attacks = list(depths[0]["leaks"])
    rows: list[list[Cell]] = [
        [each["below"], spread_of(each["test_auc"]), *(spread_of(each["leaks"][name]) for name in attacks)] for each in depths
    ]
    note = "Layers below the cut, of seven and the output; no defence."
    return [ResultTable(name="Depth of the cut", note=note, columns=["layers below", "test AUC", *attacks], rows=rows)]


def _components(scenarios: Sequence[dict[str, Any]]) -> list[ResultTable]:
    rows: list[list[Cell]] = [[each["name"], *map(spread_of, each["components"])] for each in scenarios if each["components"]]
    if not rows:
        return []
    note = "AUC of the cut embeddings' principal components, each by itself: the spectral attack reads the first."
    columns = ["scenario", *(str(number) for number in range(1, len(rows[0])))]
    return [ResultTable(name="Where the label sits", note=note, columns=columns, rows=rows)]


def _scenarios(scenarios: Sequence[dict[str, Any]]) -> list[ResultTable]:
    attacks = list(dict.fromkeys(name for each in scenarios for name in each["attacks"]))
    rows: list[list[Cell]] = [
        [
            each["name"],
            spread_of(each["test_auc"]),
            *(spread_of(each["attacks"][name]["symmetric_auc"]) if name in each["attacks"] else None for name in attacks),
        ]
        for each in scenarios
    ]
    note = "Leak AUCs of the last epoch's steps, max(a, 1 - a) per batch."
    return [ResultTable(name="Every scenario", note=note, columns=["scenario", "test AUC", *attacks], rows=rows)]


def _panel(number: str, letter: str, panel: dict[str, Any]) -> Curve:
    by_layer = panel["metric"] == "layers"
    return Curve(
        name=f"Figure {number}{letter}: {panel['title']}",
        x="layer (the cut is after the fifth)" if by_layer else "epoch",
        y=_METRICS[panel["metric"]],
        series=[
            Series(name=name, xs=list(range(1, len(values) + 1)), ys=[each["mean"] for each in values])
            for name, values in panel["series"].items()
        ],
    )


def _trade(frontier: dict[str, Any]) -> Curve:
    at = f"batch {frontier['batch']}" if frontier["batch"] else "the sweep's batch"
    return Curve(
        name=f"What distance correlation buys, {at}",
        x=_METRICS[LEAK],
        y="test AUC",
        series=[
            Series(
                name=curve["form"],
                xs=[each["leaks"][LEAK]["mean"] for each in curve["points"]],
                ys=[each["test_auc"]["mean"] for each in curve["points"]],
            )
            for curve in frontier["curves"]
            if curve["points"]
        ],
    )


def _notes(found: dict[str, Any]) -> list[str]:
    one = len(found["seeds"]) < 2
    return [
        "Small figures below a mean are Student's 95 % interval of it over seeds." + (" One seed gives none." if one else ""),
        "Leak AUCs are symmetric per batch, max(a, 1 - a): a pure guess scores about .52 at batch 512.",
        "The paper's figures are pictures: only what its text states can be set beside ours. Figures 3 and 6 do not say which "
        "strengths they show.",
        "Batch and step size are scaled to the sample: the paper has 4.1 million rows, batch 8,192 and Adam 1e-4.",
        "Normalised top: batch normalisation where the label party takes the cut embeddings in. The paper does not mention one.",
        "Layers above the cut are the label party's: their AUC is no leak.",
        f"Training and attacks of all runs together took {found['seconds']:,.0f} s on one thread.",
    ]
