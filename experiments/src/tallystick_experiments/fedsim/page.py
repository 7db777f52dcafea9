"""Build the FedSim benchmark's page: its tables and figures, with ours next to the paper's numbers."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tallystick.models.similarity.model import LOOKED_AT
from tallystick_experiments.fedsim import paper
from tallystick_experiments.fedsim.methods import BY_CONTRACT, TREES
from tallystick_experiments.fedsim.parts import PARTS
from tallystick_experiments.fedsim.runs import RECIPES
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, Shown, counted
from tallystick_experiments.pivot import Pivot, first, line_of_means, mean
from tallystick_experiments.stats import Row, at, distinct, groups, paired, spread

PAIRED = (
    ("FedSim", "Solo"),
    ("FedSim", "Top1Sim"),
    ("attention", "Top1Sim"),
    ("attention", "FedSim"),
    ("FedSim", TREES),
    ("attention", TREES),
    (BY_CONTRACT, TREES),
    (BY_CONTRACT, "attention"),
    ("FedSim", "AvgSim"),
    ("FedSim", "FeatureSim"),
    *(("FedSim", f"FedSim without {part}") for part in ("weight gate", "sort gate", "CNN")),
    ("attention, width 10", "FedSim"),
    ("attention, width 10, sigmoid", "FedSim"),
    ("attention, FedSim's links", "FedSim"),
    ("FedSim's merge, attention's links", "FedSim"),
)
"""Methods that are compared on the same split."""
_NOTES = (
    "Intervals are Student's 95 % over seeds; with varied splits they include the choice of test rows, with the paper's fixed "
    "split the randomness of training alone.",
    "All methods have the same columns; those that give a place away are left out. The paper's house, hdb and bike are larger "
    "files, and its Solo saw the coordinates, so its numbers stand beside ours for their order, not their size.",
    "Boosted trees see the joined table, which no partner would allow: own columns, K rows side by side, similarities.",
)
NOISES = {"noise on keys": "keys", "noise from tau": "tau"}  # the beginning of their settings' names


def fedsim_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``sweep.run``. ``about`` says which rows belong to each part."""
    rows = [{"recipe": "ours", **row} for row in rows]  # older rows have no other recipe
    parts = {part: [rows[place] for place in dict.fromkeys(places)] for part, places in about["parts"].items()}
    trained = f"on {', '.join(about['sets'])}: {counted(len(about['seeds']), 'seed')}, {about['split']} split"
    synthetic = {"rows of the synthetic tables": f"{about['rows']:,}"} if "rows" in about else {}
    weighed = [row for row in rows if row.get("weights")]
    return Benchmark(
        title=f"FedSim {trained if rows else 'without training'}",
        tables=[
            *(
                _TABLES.get(part, _table)(part, name, of_set)
                for part, of in parts.items()
                for name, of_set in groups(of, "set").items()
            ),
            _differences([*parts.get("table-1", []), *(row for row in parts.get("table-10", []) if row["neighbors"] == 30)]),
            _differences(parts.get("merges", [])),
            _differences(parts.get("contract", [])),
            *(_setting_differences(part, of) for part, of in parts.items() if PARTS[part].varies and part not in _TABLES),
            GAINS.table(_gains(parts.get("gains", []))),
            FIGURE_10.table(row for row in weighed if not row["noise"] and not row["parties"] and row["recipe"] == "ours"),
            *(ResultTable.of(name, about.get(key, []), columns, note=note) for key, (name, columns, note) in MEASURED.items()),
        ],
        curves=[
            *_by_neighbors(parts.get("neighbors", [])),
            *_by_tau(parts.get("tau", [])),
            *_frontiers(parts.get("frontier", [])),
            *_weights(weighed),
            *_importances([row for row in rows if row.get("importance")]),
        ],
        notes=_NOTES if rows else (),
        seconds=about["seconds"],
        facts={"seeds": ", ".join(map(str, about["seeds"])), "split": about["split"]} | synthetic if rows else {},
    )


def _table(part: str, name: str, rows: Sequence[Row]) -> ResultTable:
    """Show a line per method and setting, with the spread over seeds."""
    varies, (metric, *others) = PARTS[part].varies, PARTS[part].figures_of(name)
    setting = {varies.replace("_", " "): "setting"} if varies else {}
    problems = "; ".join(sorted({row["problem"] for row in rows if "problem" in row}))
    note = "" if varies == "neighbors" else f"K = {rows[0]['neighbors']}."
    printed = _of_table_11 if part in ("table-11", "windows") else of_paper
    return Pivot(
        name=f"{PARTS[part].title}: {name}",
        note=f"{note} Not made: {problems}." if problems else note,
        rows={"method": "method", **setting},
        shown={
            f"paper, {metric}": lambda of: printed(of[0]),
            **{figure: figure for figure in (metric, *others)},
            "weights": first("parameters"),
        },
    ).table({**row, "setting": _words(row.get(varies, ""))} for row in rows)


def _words(value: str | float) -> str:
    return (value or "none") if isinstance(value, str) else f"{value:g}"


def of_paper(row: Row) -> float | None:
    """Return the paper's figure for a row, if it has one."""
    name, method, neighbors = row["set"], row["method"], row["neighbors"]
    if name in paper.FIGURE_5:
        figures = paper.FIGURE_5[name].get(method)
        return figures[paper.KEY_NOISE.index(row["key_noise"])] if figures is not None else None
    if row["parties"]:
        return paper.TABLE_6.get(row["parties"]) if name == "house" and method == "FedSim" else None
    if row["noise"]:
        by_filters = paper.FIGURE_6.get(method, {}) if name == "house" else {}
        plain = paper.TABLE_11.get(name) if method == "FedSim" and row["noise"] == "tau 1" else None
        return by_filters.get(row["noise"], plain)
    if name == "synthetic-random":
        return paper.TABLE_10.get(method, {}).get(neighbors)
    if method == "Secondary":
        return paper.TABLE_2[name]["Secondary"]
    by_neighbors = paper.FIGURE_9.get(name, {}) if method == "FedSim" else {}
    if neighbors in by_neighbors:
        return by_neighbors[neighbors]
    figure = paper.TABLE_1.get(name, {}).get(method.removesuffix(" with the keys"))
    return figure[0] if figure is not None and neighbors in (RECIPES[name].neighbors, paper.NEIGHBORS[name]) else None


def _of_table_11(row: Row) -> float | None:
    """Return the paper's figures with either distance, both at its own K."""
    printed = {"": paper.TABLE_1[row["set"]]["FedSim"][0], "tau 1": paper.TABLE_11[row["set"]]}
    return printed.get(row["noise"]) if row["method"] == "FedSim" else None


def _noise_table(part: str, name: str, rows: Sequence[Row]) -> ResultTable:
    """Show the cost of noise next to what it hides."""
    return Pivot(
        name=f"{PARTS[part].title}: {name}",
        note=f"K = {rows[0]['neighbors']}. Median metres from the truth that each attack came to, and RMSE by method.",
        rows="noise",
        shown={f"{attack}, m": partial(_metres, attack=attack) for attack in rows[0]["located"]},
        columns="method",
        figure="rmse",
        heads={method: f"{method}, rmse" for method in distinct(rows, "method")},
    ).table(rows)


def _metres(rows: Sequence[Row], attack: str) -> float:
    """Return how near an attack came, as a mean over seeds. It is the same for every trained method."""
    of_method = next(iter(groups(rows, "method").values()))
    return float(sum(row["located"][attack] for row in of_method) / len(of_method))


def _time_table(part: str, name: str, rows: Sequence[Row]) -> ResultTable:
    """Show the time of an epoch by method, and its ratio to that with the most similar link alone, seed by seed."""
    alone = {row["seed"]: row["epoch_s"] for row in rows if row["method"] == "Top1Sim"}
    return Pivot(
        name=f"{PARTS[part].title}: {name}",
        note=f"K = {rows[0]['neighbors']}. Here processor seconds on one thread, reckoned from a few steps.",
        rows="method",
        shown={
            "paper, s on four A100": lambda of: paper.TABLE_8[name].get(of[0]["method"]),
            "here, s": "epoch_s",
            "times Top1Sim's": mean(lambda row: row["epoch_s"] / alone[row["seed"]]),
            "steps": first("steps"),
        },
    ).table(rows)


_TABLES = {"frontier": _noise_table, "table-8": _time_table}  # the table of a part, by default _table


def _frontiers(rows: Sequence[Row]) -> Iterator[Curve]:
    """Plot RMSE by what trilateration located: a line for noise from tau and one for noise on keys, per method."""
    for name, of in groups(rows, "set").items():
        series = []
        for method, mine in groups(of, "method").items():
            places = {noise: _metres(each, "trilateration") for noise, each in groups(mine, "noise").items()}
            placed = [{**row, "metres": places[row["noise"]]} for row in mine]
            series += [
                line_of_means(f"{method}, {kind}", [row for row in placed if row["noise"].startswith(start)], "metres", "rmse")
                for kind, start in NOISES.items()
            ]
        yield Curve(
            name=f"{name}: RMSE by what is located",
            x="metres from the truth, median",
            y="rmse",
            series=[each for each in series if each.xs],
            log_x=True,
            log_y=True,
        )


def method_differences(rows: Sequence[Row]) -> list[list[Cell]]:
    """Show differences of methods on the same split, by set. Their spread is that of the methods, not of the test rows."""
    cells: list[list[Cell]] = []
    for name, of in groups(rows, "set").items():
        metric, by_method = paper.METRIC[name], groups(of, "method")
        for one, other in PAIRED:
            if gaps := paired(by_method.get(one, []), by_method.get(other, []), metric):
                cells.append([f"{one} less {other}", name, metric, spread(gaps), len(gaps)])
    return cells


def _differences(rows: Sequence[Row]) -> ResultTable:
    columns = ["difference", "set", "metric", "mean", "splits"]
    return ResultTable(name="Differences on the same split", columns=columns, rows=method_differences(rows))


def _setting_differences(part: str, rows: Sequence[Row]) -> ResultTable:
    """Return the effect of a part's setting on the same split: each value minus the first, by set and method."""
    setting, cells = PARTS[part].varies, list[list[Cell]]()
    for (name, method), of in groups(rows, "set", "method").items():
        metric = PARTS[part].figures_of(name)[0]
        (first_value, base), *others = groups(of, setting).items()
        for value, mine in others:
            if gaps := paired(mine, base, metric):
                cells.append([name, method, f"{_words(value)} less {_words(first_value)}", metric, spread(gaps), len(gaps)])
    columns = ["set", "method", setting.replace("_", " "), "metric", "mean", "splits"]
    title = f"{PARTS[part].title.partition(':')[0]}, differences on the same split"
    return ResultTable(name=title, columns=columns, rows=cells)


FIGURE_10 = Pivot(
    name="Figure 10: weights and what the merge reads",
    note="From 3 deviations below the mean to 3 above. Shares are of integrated gradients of what the merge is given.",
    rows={"set": "set", "method": "method", "K": "neighbors"},
    apart=("key_noise",),
    shown={
        "weight rises with similarity": lambda of: f"{sum(row['weights'][-1] > row['weights'][0] for row in of)} of {len(of)}",
        "share of the most similar link": mean(at("importance", -1)),
        "of the least similar": mean(at("importance", 0)),
    },
)


def gain(rmse: float, alone: float) -> float:
    """Return by how many per cent an RMSE is below that of the most similar link alone."""
    return 100 * (1 - rmse / alone)


GAINS = Pivot(
    name="Figure 5 ii: gains beside the estimate",
    rows={"set": "set", "K": "neighbors"},
    shown={
        "paper, the estimate": lambda of: paper.DELTA[of[0]["set"]],
        "paper, gain in %": lambda of: gain(*(paper.TABLE_1[of[0]["set"]][method][0] for method in ("FedSim", "Top1Sim"))),
        "gain in %": "gain",
        "splits": len,
    },
)


def _gains(rows: Sequence[Row]) -> list[Row]:
    """Add FedSim's gain, split by split."""
    alone = {(row["set"], row["seed"]): row["rmse"] for row in rows if row["method"] == "Top1Sim"}
    return [{**row, "gain": gain(row["rmse"], alone[row["set"], row["seed"]])} for row in rows if row["method"] == "FedSim"]


def _widths(widths: Sequence[int]) -> str:
    return "-".join(map(str, widths))


MEASURED: Mapping[str, tuple[str, Mapping[str, Shown], str]] = {
    "cut": (
        "The cut: each distinct row once, or every link",
        {
            "what crosses": "form",
            "K": "neighbors",
            "batch": "batch_size",
            "bytes a step": lambda row: round(row["bytes_per_step"]),
            "steps a second": "steps_per_s",
            "largest difference to one process": "difference",
        },
        "Two processes over mutual TLS on this machine, the weights of FedSim after the last step.",
    ),
    "delta": (
        "The estimate of Table 1: what FedSim may bring, without training",
        {
            "set": "set",
            "rows": "rows",
            "K": "neighbors",
            "paper, over Top1Sim": "paper",
            **{f"over {method}": at("delta", method) for method in ("Top1Sim", "AvgSim")},
        },
        "",
    ),
    "linkage": (
        "Table 7: the linkage's time",
        {
            **{"set": "set", "rows": "rows", "others": "others", "K": "neighbors"},
            "paper, in the clear, min": at("paper", "clear"),
            "in the clear, s": at("seconds", "clear"),
            "paper, privately, min": at("paper", "private"),
            "privately, s": at("seconds", "private"),
            "times as long": lambda row: row["seconds"]["private"] / row["seconds"]["clear"],
            "paper, times as long": lambda row: row["paper"]["private"] / row["paper"]["clear"],
            "share of either side's rows": "share",
        },
        "Processor seconds of one process, of generated keys and without the network; in minutes the paper's, on two Xeons. "
        "Names are compared with all others, so their time goes with the pairs: it is that of a share of the rows, times the "
        "pairs.",
    ),
    "sizes": (
        "Table 9: numbers of weights",
        {
            **{"set": "set", "method": "method", "paper": "paper", "here": "weights"},
            "same": lambda row: row["weights"] == row["paper"],
            "widths": lambda row: _widths(row["widths"]),
            "other widths that give the paper's": lambda row: (
                None if row["weights"] == row["paper"] else ", ".join(map(_widths, row["others"])) or "none"
            ),
        },
        "Widths of a bottom's two layers and of the layer above the cut. Where the set's own widths give another number, all "
        "combinations of the paper's widths (50, 100, 200, 400) were tried.",
    ),
}
"""Measurements without runs: each table's name, its columns and its note."""


def _by_neighbors(rows: Sequence[Row]) -> Iterator[Curve]:
    for name, of in sorted(groups(rows, "set").items()):
        metric = paper.METRIC[name]
        series = []
        for method, mine in groups(of, "method").items():
            points = [(k, spread(row[metric] for row in each).value) for k, each in groups(mine, "neighbors").items()]
            level = [(k, points[0][1]) for k in sorted(distinct(of, "neighbors"))]  # level line of a method that reads one link
            series.append(Series.of(method, points if len(points) > 1 else level))
        if of_paper := paper.FIGURE_9.get(name):
            series.append(Series.of("FedSim, the paper's", of_paper.items()))
        yield Curve(name=f"{name}: {metric} by the number of links", x="K", y=metric, series=series, log_x=True)


def _by_tau(rows: Sequence[Row]) -> Iterator[Curve]:
    """Draw Figure 6: ours and the paper's, by tau."""
    for name, of in groups(rows, "set").items():
        metric = paper.METRIC[name]
        series = []
        for method, mine in groups((row for row in of if metric in row), "method").items():
            points = groups(mine, "noise").items()
            series.append(Series.of(method, [(_tau(n), spread(row[metric] for row in each).value) for n, each in points]))
        if name == "house":
            paper_points = paper.FIGURE_6.items()
            series += [Series.of(f"{method}, the paper's", [(_tau(n), y) for n, y in of.items()]) for method, of in paper_points]
        yield Curve(name=f"{name}: {metric} by tau", x="tau", y=metric, series=series, log_x=True)


def _tau(noise: str) -> float:
    return float(noise.removeprefix("tau "))


def _importances(rows: Sequence[Row]) -> Iterator[Curve]:
    """Draw Figure 10: the share of each link in FedSim's merge, for the first seed of each set and method, at the largest K."""
    plain = [row for row in rows if not row["noise"] and not row["parties"]]
    for name, of in groups(plain, "set").items():
        count = max(row["neighbors"] for row in of)
        methods = groups((row for row in of if row["neighbors"] == count), "method")
        yield Curve(
            name=f"{name}: share of the merge's integrated gradients by link, K = {count}",
            x="link, the most similar last",
            y="share",
            series=[
                Series(name=method, xs=list(range(1, count + 1)), ys=each[0]["importance"]) for method, each in methods.items()
            ],
        )


def _weights(rows: Sequence[Row]) -> Iterator[Curve]:
    """Draw Figure 10: the function that the weight gate learnt, once per set and method."""
    for name, of in groups(rows, "set").items():
        yield Curve(
            name=f"{name}: learnt weight by similarity, of the first seed",
            x="similarity, in standard deviations",
            y="weight",
            series=[Series(name=method, xs=LOOKED_AT, ys=each[0]["weights"]) for method, each in groups(of, "method").items()],
        )
