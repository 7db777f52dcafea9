"""Build the label-leakage benchmark's page: the paper's tables and figures next to ours, the frontiers, and the claims."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import ge, gt, le

from tallystick_experiments.label_leakage import paper
from tallystick_experiments.label_leakage.paper import LEAK
from tallystick_experiments.label_leakage.scenarios import BY_ROWS, DEPTHS, FRONTIERS, NORMALISED, PLAIN, depth, point
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, seed_count, seeds_of
from tallystick_experiments.pivot import LineCell, Pivot, mean
from tallystick_experiments.stats import Row, Spread, at, change, distinct, groups, over_seeds, spread

HIDDEN_ENOUGH = 0.55
HOLDS = {">=": ge, ">": gt, "<=": le}
METRICS = {
    "test_auc": "test AUC",
    LEAK: "leak AUC, spectral on embeddings",
    "norm": "leak AUC, norm of gradients",
    "spectral-gradient": "leak AUC, spectral on gradients",
    "layers": "leak AUC, spectral by layer",
}
_guess = at("attacks", "spectral-embedding", "chance_symmetric_auc")  # the same for every attack without known labels
_PICTURES = (
    "The paper's figures are pictures: only what its text states can be set beside ours. Figures 3 and 6 do not say which "
    "strengths they show.",
)
_STEPS = {
    "scaled": "Batch and step size are scaled to the sample: the paper has 4.1 million rows, batch 8,192 and Adam 1e-4.",
    "paper": "The paper's steps: Adam 1e-4, numbers scaled to [0, 1], and 1,500 updates, or half as many where rows are dropped "
    "for balance. The paper makes them in 3 epochs of 4.1 million rows at batch 8,192; a sample is passed over more often, in "
    "smaller batches.",
}
_NORMALISED = (
    "Normalised top: batch normalisation where the label party takes the cut embeddings in. The paper does not mention one.",
)


def label_leakage_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``sweep.experiment``."""
    by_name, parts, data = groups(rows, "name"), about["parts"], about["data"]
    frontiers = {
        batch: points
        for batch in FRONTIERS
        if ("frontier-large" if batch else "frontier") in parts and (points := _points(batch, by_name))
    }
    seconds = sum(row["seconds"] for row in rows)
    panels = {
        f"{number}{letter}": panel
        for part in parts
        if part.startswith("figure-")
        for number in [part.removeprefix("figure-")]
        for letter, panel in paper.FIGURES[number].items()
    }
    cuts = [{**row, "below": below} for below in DEPTHS for row in by_name.get(depth(below), [])] if "depth" in parts else []
    bounds = [{**row, "plain_name": row["name"].removesuffix(BY_ROWS)} for row in rows if "bound" in parts and "by_rows" in row]
    components = [
        {**row, "component": str(number), "auc": auc} for row in rows for number, auc in enumerate(row["components"], start=1)
    ]
    return Benchmark(
        title=f"Label leakage on {data['name']}: {data['rows']:,} rows, {seed_count(rows)}",
        tables=[
            *([_claims(by_name)] if "claims" in parts else []),
            *(_paper_table(part.removeprefix("table-"), by_name) for part in parts if part.startswith("table-")),
            ResultTable(
                name="Figures: numbers that the text states",
                note="The only numbers that the paper's text gives for its figures; here after the last epoch.",
                columns=["panel", "scenario", "what", "paper, about", "here"],
                rows=[
                    [number, name, METRICS[metric], value, last(by_name[name], metric)]
                    for number, panel in panels.items()
                    for metric, value in panel.stated.items()
                    for name in _shown(panel, by_name)
                ],
            ),
            *(
                table
                for batch, points in frontiers.items()
                for table in (
                    every_attack(
                        f"Distance correlation, {_batch(batch)}",
                        {"penalty and weight": "point"},
                        points,
                        "Leak AUCs are max(a, 1 - a) per batch.",
                    ),
                    _prices(batch, points, by_name),
                )
            ),
            every_attack(
                "Depth of the cut", {"layers below": "below"}, cuts, "Layers below the cut, of seven and the output; no defence."
            ),
            BOUND.table(bounds),
            Pivot(
                name="Where the label sits",
                note="AUC of the cut embeddings' principal components, each by itself: the spectral attack reads the first.",
                rows={"scenario": "name"},
                columns="component",
                figure="auc",
            ).table(components),
            every_attack(
                "Every scenario", {"scenario": "name"}, rows, "Leak AUCs of the last epoch's steps, max(a, 1 - a) per batch."
            ),
        ],
        curves=[
            *(_panel(number, panel, by_name) for number, panel in panels.items()),
            *(
                Curve(
                    name=f"What distance correlation buys, {_batch(batch)}",
                    x=METRICS[LEAK],
                    y="test AUC",
                    series=[
                        Series.of(
                            title,
                            [
                                (leak.value, spread(map(test_auc, of)).value)
                                for of in groups(of_title, "point").values()
                                if (leak := last(of, LEAK)) is not None
                            ],
                        )
                        for title, of_title in groups(points, "title").items()
                    ],
                )
                for batch, points in frontiers.items()
            ),
        ],
        notes=[
            "Small figures below a mean are Student's 95 % interval of it over seeds."
            + (" One seed gives none." if len(distinct(rows, "seed")) < 2 else ""),
            f"Leak AUCs are symmetric per batch, max(a, 1 - a): a pure guess scores {spread(map(_guess, rows)).value:.3f} here.",
            *(_PICTURES if panels else ()),
            _STEPS["paper" if data.get("papers_steps") else "scaled"],
            *(_NORMALISED if any(NORMALISED in name for name in by_name) else ()),
            "Layers above the cut are the label party's: their AUC is no leak.",
            f"Training and attacks of all runs together took {seconds:,.0f} s on one thread.",
        ],
        seconds=seconds,
        facts={
            "model": "5 layers of 128 below the cut, 2 and the output above, if not said otherwise",
            "optimiser": f"Adam {data['learning_rate']:g}, batch {data['batch_size']:,}, {counted(data['epochs'], 'epoch')}",
            "seeds": seeds_of(rows),
        },
    )


test_auc: Callable[[Row], float] = at("epochs", -1, "test_auc")
"""Read the test AUC after the last epoch."""


def after_epoch(metric: str, epoch: int) -> Callable[[Row], float]:
    """Return a reader of a metric after an epoch."""
    return lambda row: float(row["epochs"][epoch]["test_auc"] if metric == "test_auc" else row["epochs"][epoch]["leaks"][metric])


def _attacked_epochs(rows: Sequence[Row]) -> list[int]:
    """Return the epochs after which attacks ran. A long training has only some."""
    return [number for number, epoch in enumerate(rows[0]["epochs"]) if epoch["leaks"]]


def last(rows: Sequence[Row], metric: str) -> Spread | None:
    """Return a metric after the last epoch, or None for an attack that had no batch to score with some seed."""
    if metric == "test_auc":
        return over_seeds(rows, test_auc)
    if not all(metric in row["attacks"] for row in rows):
        return None
    return over_seeds(rows, at("attacks", metric, "symmetric_auc"))


def _claims(found: Mapping[str, list[Row]]) -> ResultTable:
    """Check the paper's claims as inequalities of the means."""
    bare, defended = found["none"], found["marvell 8"]
    claims: list[tuple[str, Spread | None, str, float]] = [
        (f"no defence: {attack} on gradients", last(bare, attack), ">=", 0.9)
        for attack in ("norm", "direction-1", "direction-3", "direction-5")
    ]
    for epoch in _attacked_epochs(bare)[1:]:
        what = f"no defence: spectral on embeddings, epoch {epoch + 1}"
        claims.append((what, over_seeds(bare, after_epoch(LEAK, epoch)), ">", 0.6))
    for attack in ("norm", "direction-1", "direction-3", "direction-5", "direction-1-clean", "spectral-gradient"):
        claims.append((f"Marvell s = 8: {attack} on gradients", last(defended, attack), "<=", 0.6))
    claims.append(("Marvell s = 8: spectral on embeddings stays", last(defended, LEAK), ">", 0.6))
    rows: list[list[Cell]] = [
        [what, measured, f"{relation} {wanted:g}", measured is not None and HOLDS[relation](measured.value, wanted)]
        for what, measured, relation, wanted in claims
    ]
    return ResultTable(name="The paper's claims", columns=["what", "leak AUC", "wanted", "holds"], rows=rows)


def _paper_table(number: str, found: Mapping[str, list[Row]]) -> ResultTable:
    """Return the paper's figures next to ours. A test AUC also has its distance from weight 0 with the same seed."""
    table = paper.TABLES[number]
    metrics = list(dict.fromkeys(metric for row in table.rows for metric in row.printed))
    heads = [f"{head}{METRICS[metric]}" for metric in metrics for head in ("paper, ", "here, ", "normalised top, ")]
    rows: list[list[Cell]] = []
    for row in table.rows:
        plain_rows, normalised = (found.get(name, []) for name in (row.scenario, row.scenario + NORMALISED))
        cells = [
            cell for metric in metrics for cell in (row.printed.get(metric), last(plain_rows, metric), last(normalised, metric))
        ]
        less = change(plain_rows, found.get(row.without, []), test_auc) if row.scenario != row.without else None
        if plain_rows or normalised:
            rows.append([row.label, *cells, less])
    places_shown = [
        place for place, head in enumerate(heads, start=1) if "normalised" not in head or any(row[place] for row in rows)
    ]
    return ResultTable(
        name=f"Table {number}",
        note=f"{table.title}. The change is of our test AUC against that at weight 0, same seed.",
        columns=["weight", *(heads[place - 1] for place in places_shown), "change"],
        rows=[[row[0], *(row[place] for place in places_shown), row[-1]] for row in rows],
    )


def _shown(panel: paper.Panel, found: Mapping[str, list[Row]]) -> list[str]:
    """List a panel's scenarios in both networks, if they were run."""
    return [each for name in panel.scenarios for each in (name, name + NORMALISED) if each in found]


def _points(batch: str, found: Mapping[str, list[Row]]) -> list[Row]:
    """Return a frontier's rows, each with its form and its weight."""
    return [
        {**row, "form": form, "weight": weight, "title": title, "point": f"{title} {weight:g}"}
        for form, weights in FRONTIERS[batch].items()
        for title in [form.format("").strip().replace(" ,", ",")]
        for weight in weights
        for row in found.get(point(form, weight, batch), [])
    ]


def _batch(batch: str) -> str:
    return batch.removeprefix(", ") or "the sweep's batch"


def attacks_of(rows: Iterable[Row], *fields: str) -> dict[str, LineCell]:
    """Show every attack that each seed's run of some scenario has."""
    runs = groups(rows, *fields).values()
    names = (name for of in runs for name in of[0]["attacks"] if all(name in row["attacks"] for row in of))
    return {name: partial(last, metric=name) for name in dict.fromkeys(names)}


def every_attack(name: str, line: Mapping[str, str], rows: Sequence[Row], note: str) -> ResultTable:
    """Show the test AUC of each scenario, and the figures of every attack."""
    return Pivot(name=name, note=note, rows=line, shown={"test AUC": mean(test_auc), **attacks_of(rows, *line.values())}).table(
        rows
    )


def _prices(batch: str, points: Sequence[Row], found: Mapping[str, list[Row]]) -> ResultTable:
    """Show the smallest weight of each form that hides labels from the spectral attack."""
    base = found.get(point(PLAIN, 0.0, batch), [])  # the paper's network without a defence, for every form
    cheapest: dict[str, list[Row]] = {}
    for (form, weight), of in groups(points, "form", "weight").items():
        leak = last(of, LEAK)
        if base and weight and leak is not None and leak.value <= HIDDEN_ENOUGH:
            cheapest.setdefault(form, of)
    return Pivot(
        name=f"Price of hiding, {_batch(batch)}",
        note="Of each form, the smallest weight that brings the spectral attack on embeddings to 0.55, and what it costs against "
        "the paper's network without a defence, same seed.",
        rows={"penalty and weight": "point"},
        shown={
            "test AUC, change": lambda of: change(of, base, test_auc),
            "test AUC": mean(test_auc),
            **attacks_of(points, "point"),
        },
    ).table(row for of in cheapest.values() for row in of)


def _by_rows(which: str, what: str) -> LineCell:
    if what == "leak less AUC":
        return mean(lambda row: row["by_rows"][which]["leak"] - row["by_rows"][which]["auc"])
    return mean(at("by_rows", which, what.lower()))


BOUND = Pivot(
    name="The leak beside the network's AUC, by rows",
    note="After the last epoch. Leak: the spectral attack on cut embeddings. Training rows are judged by their true labels, also "
    "where label DP replaced them.",
    rows={"scenario": "plain_name"},
    shown={
        f"{which} rows, {what}": _by_rows(which, what)
        for which in ("training", "test")
        for what in ("leak", "AUC", "leak less AUC")
    },
)


def _panel(number: str, panel: paper.Panel, found: Mapping[str, list[Row]]) -> Curve:
    """Draw a panel by layer, or by epoch."""
    series = []
    for name in _shown(panel, found):
        rows = found[name]
        if panel.metric == "layers":
            # Average the figures of each layer over seeds
            values = [spread(values) for values in zip(*(row["layers"] for row in rows), strict=True)]
        else:
            values = [spread(after_epoch(panel.metric, epoch)(row) for row in rows) for epoch in _attacked_epochs(rows)]
        places = range(len(values)) if panel.metric == "layers" else _attacked_epochs(rows)
        series.append(Series.of(name, [(place + 1, each.value) for place, each in zip(places, values, strict=True)]))
    return Curve(
        name=f"Figure {number}: {panel.title}",
        x="layer (the cut is after the fifth)" if panel.metric == "layers" else "epoch",
        y=METRICS[panel.metric],
        series=series,
    )
