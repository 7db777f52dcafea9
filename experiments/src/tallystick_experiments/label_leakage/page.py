"""The label-leakage benchmark's page: the paper's tables and figures beside ours, the frontiers, the claims."""

from collections.abc import Callable, Iterator, Sequence

from tallystick_experiments.label_leakage import paper
from tallystick_experiments.label_leakage.paper import LEAK
from tallystick_experiments.label_leakage.scenarios import BY_ROWS, DEPTHS, FRONTIERS, NORMALISED, PLAIN, depth, point
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, seed_count, seeds_of
from tallystick_experiments.stats import Row, Spread, at, change, distinct, groups, over_seeds, spread

HIDDEN_ENOUGH = 0.55
METRICS = {
    "test_auc": "test AUC",
    LEAK: "leak AUC, spectral on embeddings",
    "norm": "leak AUC, norm of gradients",
    "spectral-gradient": "leak AUC, spectral on gradients",
    "layers": "leak AUC, spectral by layer",
}
ByName = dict[str, list[Row]]
_guess = at("attacks", "spectral-embedding", "chance_symmetric_auc")  # as every attack's that is told nothing
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


def page_of(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``sweep.run``."""
    by_name, parts, data = groups(rows, "name"), about["parts"], about["data"]
    frontiers = [at for at in FRONTIERS if ("frontier-large" if at else "frontier") in parts]
    seconds = sum(row["seconds"] for row in rows)
    figures = [part.removeprefix("figure-") for part in parts if part.startswith("figure-")]
    return Benchmark(
        title=f"Label leakage on {data['name']}: {data['rows']:,} rows, {seed_count(rows)}",
        tables=[
            table
            for table in (
                *([_claims(by_name)] if "claims" in parts else []),
                *(_paper_table(part.removeprefix("table-"), by_name) for part in parts if part.startswith("table-")),
                _stated(figures, by_name),
                *(table for at in frontiers for table in (_frontier(at, by_name), _prices(at, by_name))),
                *([_depth(by_name)] if "depth" in parts else []),
                *([_bound(by_name)] if "bound" in parts else []),
                _components(by_name),
                _scenarios(by_name),
            )
            if table.rows
        ],
        curves=[
            *(
                _panel(f"{number}{letter}", panel, by_name)
                for number in figures
                for letter, panel in paper.FIGURES[number].items()
            ),
            *(_trade(at, by_name) for at in frontiers),
        ],
        notes=[
            "Small figures below a mean are Student's 95 % interval of it over seeds."
            + (" One seed gives none." if len(distinct(rows, "seed")) < 2 else ""),
            f"Leak AUCs are symmetric per batch, max(a, 1 - a): a pure guess scores {spread(map(_guess, rows)).value:.3f} here.",
            *(_PICTURES if figures else ()),
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


def test_auc(row: Row) -> float:
    """After the last epoch."""
    return float(row["epochs"][-1]["test_auc"])


def after_epoch(metric: str, epoch: int) -> Callable[[Row], float]:
    """Return a reader of a metric after an epoch."""
    return lambda row: float(row["epochs"][epoch]["test_auc"] if metric == "test_auc" else row["epochs"][epoch]["leaks"][metric])


def _attacked_epochs(rows: Sequence[Row]) -> list[int]:
    """Those after which attacks were run: of a long training some."""
    return [number for number, epoch in enumerate(rows[0]["epochs"]) if epoch["leaks"]]


def last(rows: Sequence[Row], metric: str) -> Spread | None:
    """Return a metric after the last epoch; None for an attack that found no batch to score in some seed."""
    if metric == "test_auc":
        return over_seeds(rows, test_auc)
    if not all(metric in row["attacks"] for row in rows):
        return None
    return over_seeds(rows, at("attacks", metric, "symmetric_auc"))


def _attacks(runs: Sequence[Sequence[Row]]) -> list[str]:
    """Attacks that every seed's run of some scenario has."""
    names = (name for rows in runs for name in rows[0]["attacks"] if all(name in row["attacks"] for row in rows))
    return list(dict.fromkeys(names))


def _claims(found: ByName) -> ResultTable:
    """Check the paper's claims as inequalities: the means must hold them."""
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
        [what, measured, f"{relation} {wanted:g}", measured is not None and _holds(measured.value, relation, wanted)]
        for what, measured, relation, wanted in claims
    ]
    return ResultTable(name="The paper's claims", columns=["what", "leak AUC", "wanted", "holds"], rows=rows)


def _holds(value: float, relation: str, wanted: float) -> bool:
    return {">=": value >= wanted, ">": value > wanted, "<=": value <= wanted}[relation]


def _paper_table(number: str, found: ByName) -> ResultTable:
    """Return the paper's figures beside ours; for test AUC also the distance from weight 0, with the same seed."""
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


def _shown(panel: paper.Panel, found: ByName) -> list[str]:
    """List a panel's scenarios in both networks, if they were run."""
    return [each for name in panel.scenarios for each in (name, name + NORMALISED) if each in found]


def _stated(numbers: Sequence[str], found: ByName) -> ResultTable:
    return ResultTable(
        name="Figures: numbers that the text states",
        note="The only numbers that the paper's text gives for its figures; here after the last epoch.",
        columns=["panel", "scenario", "what", "paper, about", "here"],
        rows=[
            [f"{number}{letter}", name, METRICS[metric], value, last(found[name], metric)]
            for number in numbers
            for letter, panel in paper.FIGURES[number].items()
            for metric, value in panel.stated.items()
            for name in _shown(panel, found)
        ],
    )


def _points(at: str, found: ByName) -> Iterator[tuple[str, str, float, list[Row]]]:
    """Yield a frontier's form, its title, a weight, and its runs."""
    for form, weights in FRONTIERS[at].items():
        for weight in weights:
            if rows := found.get(point(form, weight, at)):
                yield form, form.format("").strip().replace(" ,", ","), weight, rows


def _batch(at: str) -> str:
    return at.removeprefix(", ") or "the sweep's batch"


def _leaks(rows: Sequence[Row], attacks: Sequence[str]) -> list[Spread | None]:
    return [last(rows, name) for name in attacks]


def _frontier(at: str, found: ByName) -> ResultTable:
    """Per form and weight: what it costs and what still leaks."""
    points = [(f"{title} {weight:g}", rows) for _, title, weight, rows in _points(at, found)]
    note = "Leak AUCs are max(a, 1 - a) per batch."
    return _by_scenario(f"Distance correlation, {_batch(at)}", "penalty and weight", points, note)


def _prices(at: str, found: ByName) -> ResultTable:
    """Return the smallest weight of each form that hides from the spectral attack."""
    points = list(_points(at, found))
    attacks = _attacks([rows for *_, rows in points])
    base = found.get(point(PLAIN, 0.0, at), [])  # the paper's network without a defence, whatever the form's own network
    cheapest: dict[str, tuple[str, float, list[Row]]] = {}
    for form, title, weight, rows in points:
        leak = last(rows, LEAK)
        if base and weight and leak is not None and leak.value <= HIDDEN_ENOUGH:
            cheapest.setdefault(form, (title, weight, rows))
    return ResultTable(
        name=f"Price of hiding, {_batch(at)}",
        note="Of each form, the smallest weight that brings the spectral attack on embeddings to 0.55, and what it costs against "
        "the paper's network without a defence, same seed.",
        columns=["penalty and weight", "test AUC, change", "test AUC", *attacks],
        rows=[
            [f"{title} {weight:g}", change(rows, base, test_auc), over_seeds(rows, test_auc), *_leaks(rows, attacks)]
            for title, weight, rows in cheapest.values()
        ],
    )


def _depth(found: ByName) -> ResultTable:
    cuts = [(below, rows) for below in DEPTHS if (rows := found.get(depth(below)))]
    return _by_scenario("Depth of the cut", "layers below", cuts, "Layers below the cut, of seven and the output; no defence.")


def _bound(found: ByName) -> ResultTable:
    """Compare the network's AUC with the leak, on rows that it learnt from and on rows that it did not."""
    cells: list[list[Cell]] = []
    for name, rows in ((name, rows) for name, rows in found.items() if "by_rows" in rows[0]):
        line: list[Cell] = [name.removesuffix(BY_ROWS)]
        for which in ("training", "test"):
            leak, auc = (at("by_rows", which, figure) for figure in ("leak", "auc"))
            line += [over_seeds(rows, leak), over_seeds(rows, auc), spread(leak(row) - auc(row) for row in rows)]
        cells.append(line)
    return ResultTable(
        name="The leak beside the network's AUC, by rows",
        note="After the last epoch. Leak: the spectral attack on cut embeddings. Training rows are judged by their true labels, "
        "also where label DP replaced them.",
        columns=[
            "scenario",
            *(f"{which} rows, {what}" for which in ("training", "test") for what in ("leak", "AUC", "leak less AUC")),
        ],
        rows=cells,
    )


def _by_place(rows: Sequence[Row], kind: str) -> list[Spread]:
    """Over seeds, the figures of each layer or component."""
    return [spread(values) for values in zip(*(row[kind] for row in rows), strict=True)]


def _components(found: ByName) -> ResultTable:
    rows: list[list[Cell]] = [[name, *_by_place(runs, "components")] for name, runs in found.items() if runs[0]["components"]]
    note = "AUC of the cut embeddings' principal components, each by itself: the spectral attack reads the first."
    columns = ["scenario", *(str(number) for number in range(1, len(rows[0]) if rows else 1))]
    return ResultTable(name="Where the label sits", note=note, columns=columns, rows=rows)


def _scenarios(found: ByName) -> ResultTable:
    note = "Leak AUCs of the last epoch's steps, max(a, 1 - a) per batch."
    return _by_scenario("Every scenario", "scenario", list(found.items()), note)


def _by_scenario(name: str, first: str, named: Sequence[tuple[Cell, list[Row]]], note: str) -> ResultTable:
    """Of each scenario the test AUC, and what every attack found."""
    attacks = _attacks([rows for _, rows in named])
    cells = [[title, over_seeds(rows, test_auc), *_leaks(rows, attacks)] for title, rows in named]
    return ResultTable(name=name, note=note, columns=[first, "test AUC", *attacks], rows=cells)


def _panel(number: str, panel: paper.Panel, found: ByName) -> Curve:
    """By layer, or by epoch."""
    series = []
    for name in _shown(panel, found):
        rows = found[name]
        if panel.metric == "layers":
            values = _by_place(rows, "layers")
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


def _trade(at: str, found: ByName) -> Curve:
    lines: dict[str, list[tuple[float, float]]] = {}
    for _, title, _, rows in _points(at, found):
        leak = last(rows, LEAK)
        if leak is not None:
            lines.setdefault(title, []).append((leak.value, spread(map(test_auc, rows)).value))
    return Curve(
        name=f"What distance correlation buys, {_batch(at)}",
        x=METRICS[LEAK],
        y="test AUC",
        series=[Series.of(title, points) for title, points in lines.items()],
    )
