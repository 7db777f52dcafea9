"""The FedSim benchmark's page: its tables and figures, ours beside the paper's numbers."""

from collections.abc import Iterator, Sequence

from tallystick.models.similarity.model import LOOKED_AT
from tallystick_experiments.fedsim import paper
from tallystick_experiments.fedsim.methods import BY_CONTRACT, TREES
from tallystick_experiments.fedsim.runs import RECIPES
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, Shown, counted
from tallystick_experiments.stats import Row, at, distinct, groups, over_seeds, paired, spread

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
TITLES = {
    "table-1": "Table 1: methods and ablations",
    "table-2": "Table 2: either side alone",
    "table-6": "Table 6: three feature parties that share the columns out, and fewer of them",
    "table-8": "Table 8: an epoch's training",
    "neighbors": "Figure 9: by the number of links K",
    "tau": "Figure 6: noise on the similarities of filters, from tau",
    "table-11": "Table 11: distances of keys, or of their filters",
    "windows": "Why filters cost: how far they reach",
    "gains": "Figure 5 ii: what FedSim brings over the most similar link",
    "merges": "Why attention is ahead: its merge, width and activation apart",
    "recipes": "FedSim by how it is trained",
    "contract": "What a contract does by default, beside boosted trees",
    "frontier": "What noise costs and what it hides",
    "synthetic": "Figure 5: noise on the keys of one table split by columns",
    "table-10": "Table 10: keys that tell nothing but which rows are one thing",
}
VARIED = {
    "table-6": "parties",
    "neighbors": "neighbors",
    "tau": "noise",
    "table-11": "noise",
    "windows": "noise",
    "recipes": "recipe",
    "synthetic": "key_noise",
    "table-10": "neighbors",
}
"""Which setting a part varies besides the method."""
_NOTES = (
    "Intervals are Student's 95 % over seeds; with varied splits they include the choice of test rows, with the paper's fixed "
    "split the randomness of training alone.",
    "All methods have the same columns; those that give a place away are left out. The paper's house, hdb and bike are larger "
    "files, and its Solo saw the coordinates, so its numbers stand beside ours for their order, not their size.",
    "Boosted trees see the joined table, which no partner would allow: own columns, K rows side by side, similarities.",
)
NOISES = {"noise on keys": "keys", "noise from tau": "tau"}  # how the names of their settings begin


def page_of(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``sweep.run``; ``about`` says which of them each part is made of."""
    rows = [{"recipe": "ours", **row} for row in rows]  # older rows have no other
    parts = {part: [rows[place] for place in dict.fromkeys(places)] for part, places in about["parts"].items()}
    trained = f"on {', '.join(about['sets'])}: {counted(len(about['seeds']), 'seed')}, {about['split']} split"
    synthetic = {"rows of the synthetic tables": f"{about['rows']:,}"} if "rows" in about else {}
    return Benchmark(
        title=f"FedSim {trained if rows else 'without training'}",
        tables=[
            table
            for table in (
                *(
                    _TABLES.get(part, _table)(part, name, of_set)
                    for part, of in parts.items()
                    for name, of_set in groups(of, "set").items()
                ),
                _differences([*parts.get("table-1", []), *(row for row in parts.get("table-10", []) if row["neighbors"] == 30)]),
                _differences(parts.get("merges", [])),
                _differences(parts.get("contract", [])),
                *(_setting_differences(part, of) for part, of in parts.items() if part in VARIED),
                _gains(parts.get("gains", [])),
                _figure_10([row for row in rows if row.get("weights")]),
                _cut(about["cut"]),
                _deltas(about["delta"]),
                _linkage(about.get("linkage", [])),
                _sizes(about["sizes"]),
            )
            if table.rows
        ],
        curves=[
            *_by_neighbors(parts.get("neighbors", [])),
            *_by_tau(parts.get("tau", [])),
            *_frontiers(parts.get("frontier", [])),
            *_weights([row for row in rows if row.get("weights")]),
            *_importances([row for row in rows if row.get("importance")]),
        ],
        notes=_NOTES if rows else (),
        seconds=about["seconds"],
        facts={"seeds": ", ".join(map(str, about["seeds"])), "split": about["split"]} | synthetic if rows else {},
    )


def _table(part: str, name: str, rows: Sequence[Row]) -> ResultTable:
    """Return a row per method and setting, with the spread over seeds."""
    metric, varied = _metric(part, name), VARIED.get(part)
    other_figures = OTHERS.get(part, ("r2",) if metric == "rmse" else ())
    cells: list[list[Cell]] = []
    for (method, *_), of in groups(rows, "method", *SETTINGS).items():
        setting = [] if varied is None else [_words(of[0].get(varied, ""))]
        figures = [over_seeds(of, figure) for figure in (metric, *other_figures)]
        printed = _of_table_11(of[0]) if part in ("table-11", "windows") else of_paper(of[0])
        cells.append([method, *setting, printed, *figures, of[0].get("parameters")])
    problems = "; ".join(sorted({row["problem"] for row in rows if "problem" in row}))
    note = "" if varied == "neighbors" else f"K = {rows[0]['neighbors']}."
    return ResultTable(
        name=f"{TITLES[part]}: {name}",
        note=f"{note} Not made: {problems}." if problems else note,
        columns=[
            "method",
            *([varied.replace("_", " ")] if varied else []),
            f"paper, {metric}",
            metric,
            *other_figures,
            "weights",
        ],
        rows=cells,
    )


SETTINGS = ("neighbors", "key_noise", "split", "noise", "parties", "recipe")
OTHERS = {"table-6": ("rmse",), "recipes": ("r2", "dead")}
"""What a part shows besides its metric; of a regression it is else R-squared."""


def _metric(part: str, name: str) -> str:
    return "r2" if part == "table-6" else paper.METRIC[name]


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
    """Return the paper's figures by either distance, which are both at its own K."""
    printed = {"": paper.TABLE_1[row["set"]]["FedSim"][0], "tau 1": paper.TABLE_11[row["set"]]}
    return printed.get(row["noise"]) if row["method"] == "FedSim" else None


def _noise_table(part: str, name: str, rows: Sequence[Row]) -> ResultTable:
    """Return what noise costs beside what it hides."""
    methods, attacks = distinct(rows, "method"), list(rows[0]["located"])
    cells: list[list[Cell]] = []
    for noise, of in groups(rows, "noise").items():
        here = groups(of, "method")
        metres = [_metres(next(iter(here.values())), attack) for attack in attacks]
        cells.append([noise, *metres, *(over_seeds(here[method], "rmse") for method in methods)])
    return ResultTable(
        name=f"{TITLES[part]}: {name}",
        note=f"K = {rows[0]['neighbors']}. Median metres from the truth that each attack came to, and RMSE by method.",
        columns=["noise", *(f"{attack}, m" for attack in attacks), *(f"{method}, rmse" for method in methods)],
        rows=cells,
    )


def _time_table(part: str, name: str, rows: Sequence[Row]) -> ResultTable:
    """Return what an epoch takes by method, and its ratio to the most similar link alone, seed by seed."""
    cells: list[list[Cell]] = []
    alone = {row["seed"]: row["epoch_s"] for row in rows if row["method"] == "Top1Sim"}
    for method, of in groups(rows, "method").items():
        times = spread(row["epoch_s"] / alone[row["seed"]] for row in of)
        cells.append([method, paper.TABLE_8[name].get(method), over_seeds(of, "epoch_s"), times, of[0]["steps"]])
    return ResultTable(
        name=f"{TITLES[part]}: {name}",
        note=f"K = {rows[0]['neighbors']}. Here processor seconds on one thread, reckoned from a few steps.",
        columns=["method", "paper, s on four A100", "here, s", "times Top1Sim's", "steps"],
        rows=cells,
    )


_TABLES = {"frontier": _noise_table, "table-8": _time_table}  # of what a part shows; else _table


def _metres(rows: Sequence[Row], attack: str) -> float:
    return float(sum(row["located"][attack] for row in rows) / len(rows))


def _frontiers(rows: Sequence[Row]) -> Iterator[Curve]:
    """RMSE by what trilateration located: a line for noise from tau and one for noise on keys, per method."""
    for name, of in groups(rows, "set").items():
        lines = {
            f"{method}, {kind}": [
                (_metres(each, "trilateration"), spread(row["rmse"] for row in each).value)
                for noise, each in groups(mine, "noise").items()
                if noise.startswith(start)
            ]
            for method, mine in groups(of, "method").items()
            for kind, start in NOISES.items()
        }
        yield Curve(
            name=f"{name}: RMSE by what is located",
            x="metres from the truth, median",
            y="rmse",
            series=[Series.of(line, points) for line, points in lines.items() if points],
            log_x=True,
            log_y=True,
        )


def method_differences(rows: Sequence[Row]) -> list[list[Cell]]:
    """Differences of methods on the same split, by set: as wide as methods differ, not as test rows do."""
    cells: list[list[Cell]] = []
    for name, of in groups(rows, "set").items():
        metric, by_method = paper.METRIC[name], groups(of, "method")
        for first, second in PAIRED:
            if gaps := paired(by_method.get(first, []), by_method.get(second, []), metric):
                cells.append([f"{first} less {second}", name, metric, spread(gaps), len(gaps)])
    return cells


def _differences(rows: Sequence[Row]) -> ResultTable:
    columns = ["difference", "set", "metric", "mean", "splits"]
    return ResultTable(name="Differences on the same split", columns=columns, rows=method_differences(rows))


def _setting_differences(part: str, rows: Sequence[Row]) -> ResultTable:
    """Return what a part's setting changes on the same split: each of its values less the first, by set and method."""
    setting, cells = VARIED[part], list[list[Cell]]()
    for (name, method), of in groups(rows, "set", "method").items():
        metric = _metric(part, name)
        (first, base), *others = groups(of, setting).items()
        for value, mine in others:
            if gaps := paired(mine, base, metric):
                cells.append([name, method, f"{_words(value)} less {_words(first)}", metric, spread(gaps), len(gaps)])
    columns = ["set", "method", setting.replace("_", " "), "metric", "mean", "splits"]
    return ResultTable(name=f"{TITLES[part].partition(':')[0]}, differences on the same split", columns=columns, rows=cells)


def _figure_10(rows: Sequence[Row]) -> ResultTable:
    """Return what the weight gate and FedSim's merge learnt, over the seeds."""
    cells: list[list[Cell]] = []
    plain = [row for row in rows if not row["noise"] and not row["parties"] and row["recipe"] == "ours"]
    for (name, method, count, *_), of in groups(plain, "set", "method", "neighbors", "key_noise").items():
        rising = sum(row["weights"][-1] > row["weights"][0] for row in of)
        read = [row["importance"] for row in of if "importance" in row]
        shares = [spread(each[place] for each in read) if read else None for place in (-1, 0)]
        cells.append([name, method, count, f"{rising} of {len(of)}", *shares])
    columns = ["set", "method", "K", "weight rises with similarity", "share of the most similar link", "of the least similar"]
    note = "From 3 deviations below the mean to 3 above. Shares are of integrated gradients of what the merge is given."
    return ResultTable(name="Figure 10: weights and what the merge reads", columns=columns, rows=cells, note=note)


def _cut(rows: Sequence[Row]) -> ResultTable:
    return ResultTable.of(
        "The cut: each distinct row once, or every link",
        rows,
        {
            "what crosses": "form",
            "K": "neighbors",
            "batch": "batch_size",
            "bytes a step": lambda row: round(row["bytes_per_step"]),
            "steps a second": "steps_per_s",
            "largest difference to one process": "difference",
        },
        note="Two processes over mutual TLS on this machine, the weights of FedSim after the last step.",
    )


def _deltas(rows: Sequence[Row]) -> ResultTable:
    columns: dict[str, Shown] = {"set": "set", "rows": "rows", "K": "neighbors", "paper, over Top1Sim": "paper"}
    columns |= {f"over {method}": at("delta", method) for method in ("Top1Sim", "AvgSim")}
    return ResultTable.of("The estimate of Table 1: what FedSim may bring, without training", rows, columns)


def _linkage(rows: Sequence[Row]) -> ResultTable:
    columns: dict[str, Shown] = {"set": "set", "rows": "rows", "others": "others", "K": "neighbors"}
    for way, said in (("clear", "in the clear"), ("private", "privately")):
        columns |= {f"paper, {said}, min": at("paper", way), f"{said}, s": at("seconds", way)}
    columns["times as long"] = lambda row: row["seconds"]["private"] / row["seconds"]["clear"]
    columns["paper, times as long"] = lambda row: row["paper"]["private"] / row["paper"]["clear"]
    columns["share of either side's rows"] = "share"
    return ResultTable.of(
        "Table 7: the linkage's time",
        rows,
        columns,
        note="Processor seconds of one process, of generated keys and without the network; in minutes the paper's, on two Xeons. "
        "Names are compared with all others, so their time goes with the pairs: it is that of a share of the rows, times the "
        "pairs.",
    )


def _sizes(rows: Sequence[Row]) -> ResultTable:
    def said(widths: Sequence[int]) -> str:
        return "-".join(map(str, widths))

    return ResultTable.of(
        "Table 9: numbers of weights",
        rows,
        {
            "set": "set",
            "method": "method",
            "paper": "paper",
            "here": "weights",
            "same": lambda row: row["weights"] == row["paper"],
            "widths": lambda row: said(row["widths"]),
            "other widths that give the paper's": lambda row: (
                None if row["weights"] == row["paper"] else ", ".join(map(said, row["others"])) or "none"
            ),
        },
        note="Widths of a bottom's two layers and of the layer above the cut. Where the set's own widths give another number, "
        "all combinations of the paper's widths (50, 100, 200, 400) were tried.",
    )


def _by_neighbors(rows: Sequence[Row]) -> Iterator[Curve]:
    for name, of in sorted(groups(rows, "set").items()):
        metric = paper.METRIC[name]
        series = []
        for method, mine in groups(of, "method").items():
            points = [(k, spread(row[metric] for row in each).value) for k, each in groups(mine, "neighbors").items()]
            level = [(k, points[0][1]) for k in sorted(distinct(of, "neighbors"))]  # of a method that reads one link
            series.append(Series.of(method, points if len(points) > 1 else level))
        if of_paper := paper.FIGURE_9.get(name):
            series.append(Series.of("FedSim, the paper's", of_paper.items()))
        yield Curve(name=f"{name}: {metric} by the number of links", x="K", y=metric, series=series, log_x=True)


def _by_tau(rows: Sequence[Row]) -> Iterator[Curve]:
    """Figure 6: ours and the paper's, by tau."""
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


def _gains(rows: Sequence[Row]) -> ResultTable:
    """Figure 5 ii: by how many per cent of its RMSE FedSim is below the most similar link alone, split by split."""
    cells: list[list[Cell]] = []
    for name, of in groups(rows, "set").items():
        by_method, paper_row = groups(of, "method"), paper.TABLE_1[name]
        alone = {row["seed"]: row["rmse"] for row in by_method["Top1Sim"]}
        gains = spread(100 * (1 - row["rmse"] / alone[row["seed"]]) for row in by_method["FedSim"])
        published = 100 * (1 - paper_row["FedSim"][0] / paper_row["Top1Sim"][0])
        cells.append([name, of[0]["neighbors"], paper.DELTA[name], published, gains, len(by_method["FedSim"])])
    columns = ["set", "K", "paper, the estimate", "paper, gain in %", "gain in %", "splits"]
    return ResultTable(name="Figure 5 ii: gains beside the estimate", columns=columns, rows=cells)


def _importances(rows: Sequence[Row]) -> Iterator[Curve]:
    """Figure 10: what each link counts for FedSim's merge, of the first seed of each set and method, at the largest K."""
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
    """Figure 10: what the weight gate learnt, once per set and method."""
    for name, of in groups(rows, "set").items():
        yield Curve(
            name=f"{name}: learnt weight by similarity, of the first seed",
            x="similarity, in standard deviations",
            y="weight",
            series=[Series(name=method, xs=LOOKED_AT, ys=each[0]["weights"]) for method, each in groups(of, "method").items()],
        )
