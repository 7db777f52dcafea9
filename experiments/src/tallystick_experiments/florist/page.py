"""The FLORIST benchmark's page: the paper's tables 1, 2, 3, 5, 6, 7, 8 and figures 2 and 3, ours beside its numbers."""

from collections.abc import Sequence

from tallystick_experiments.experiment import KEPT_ROWS
from tallystick_experiments.florist import paper
from tallystick_experiments.florist.paper import ATTACKED_RATIO
from tallystick_experiments.florist.runs import BOTH
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, seed_count, seeds_of
from tallystick_experiments.stats import Row, Spread, at, distinct, groups, over_seeds, spread

METRICS = {"auc": "test AUC", "ace": "ACE"}
SIDES = {"labels": "labels absent", "features": "features absent", "both": "both absent"}
GRADIENTS, EMBEDDINGS = (("attacks", f"{party} party/spectral", "symmetric_auc") for party in ("feature", "label"))
_BOUNDED = (f"Attacks read evenly spread steps of each epoch, {KEPT_ROWS:,} rows of it, as the table is large.",)
ByKey = dict[tuple[str, str, float], list[Row]]  # by side, strategy and ratio


def page_of(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``florist.run``."""
    by_setting, name = groups(rows, "side", "strategy", "ratio"), about["name"]
    panels = [
        (f"{paper.TABLES[name]['figure']}{letter}", side, metric)
        for metric, letters in zip(METRICS, ("abc", "def"), strict=True)
        for side, letter in zip(SIDES, letters, strict=True)
        if any(key[0] == side for key in by_setting)
    ]
    return Benchmark(
        title=f"FLORIST on {name}: {about['rows']:,} rows, {seed_count(rows)}",
        tables=[
            table
            for table in (
                *(_leak_table(side, name, by_setting) for side in ("labels", "features")),
                _changes(name, by_setting, features_ratio=about.get("features_ratio")),
                *([_draws(name, by_setting)] if "draws" in paper.TABLES[name] else []),
                *(_figure_table(number, side, metric, by_setting) for number, side, metric in panels),
                *(_utility(side, by_setting) for side in SIDES),
                *(_attacks(side, party, by_setting) for side in SIDES for party in ("feature party", "label party")),
                _drops(name, by_setting),
                *([_checks(by_setting)] if name == "criteo" else []),  # the bars were set on Criteo
            )
            if table.rows
        ],
        curves=[_panel(number, side, metric, by_setting) for number, side, metric in panels],
        notes=[
            "Small figures below a mean are Student's 95 % interval of it over seeds."
            + (" There is one seed, so there are none." if len(distinct(rows, "seed")) < 2 else ""),
            "The paper prints no numbers for figures 2 and 3; the drops that its text states are in a table above. Panels h to j "
            "(convergence) are not drawn.",
            "Batch and step size are scaled to the sample: the paper has 4.1 million rows, batch 8,192 and Adam 1e-4.",
            *(_BOUNDED if about["training_rows"] > KEPT_ROWS else ()),
            "-te variants are the plain variants' training runs, calibrated at prediction: their attack figures are equal.",
            f"Training and attacks of all runs together took {sum(row['seconds'] for row in rows):,.0f} s on one thread.",
        ],
        seconds=sum(row["seconds"] for row in rows),
        facts={
            "rows": f"{about['training_rows']:,} for training, {about['test_rows']:,} for tests",
            "model": f"layers {'-'.join(map(str, about['hidden']))}, cut after {about['cut_after']}",
            "optimiser": f"Adam {about['learning_rate']:g}, batch {about['batch_size']:,}, {counted(about['epochs'], 'epoch')}",
            "calibration": f"ACE over {about['ace_bins']} bins of equal mass",
            "seeds": seeds_of(rows),
            "ratios": ", ".join(f"{ratio:g}" for ratio in sorted(distinct(rows, "ratio"))),
            **({"features absent": f"{about['features_ratio']:g} of the rows"} if "features_ratio" in about else {}),
        },
    )


def _change(side: str, strategy: str, ratio: float, found: ByKey) -> Spread | None:
    """Of AUC in percent against the partial baseline of the same seed, so that the luck of the test set cancels."""
    base = {row["seed"]: row["auc"] for row in found.get((side, "baseline-partial", ratio), [])}
    return over_seeds(found.get((side, strategy, ratio), []), lambda row: 100 * (row["auc"] / base[row["seed"]] - 1))


def _leak_table(side: str, name: str, found: ByKey) -> ResultTable:
    """Return what spectral attacks read of synthetic labels in gradients, and of synthetic features in embeddings."""
    printed, attack = (
        (paper.LABEL_ATTACK_AUC[name], GRADIENTS) if side == "labels" else (paper.FEATURE_ATTACK_AUC[name], EMBEDDINGS)
    )
    note = f"Attack AUC of synthetic {side} on {name}, ratio {ATTACKED_RATIO:g}. "
    return ResultTable(
        name=f"Table {paper.TABLES[name][side]}",
        note=note + "Symmetric, max(a, 1 - a) per batch: the last column is what guessing scores.",
        columns=["strategy", "paper", "here", "a guess here"],
        rows=[
            [strategy, value, over_seeds(rows, at(*attack)), over_seeds(rows, at(*attack[:2], "chance_symmetric_auc"))]
            for strategy, value in printed.items()
            if (rows := found.get((side, strategy, ATTACKED_RATIO)))
        ],
    )


def _changes(name: str, found: ByKey, *, features_ratio: float | None = None) -> ResultTable:
    """Return the paper's table, where both sides lack the same share; it prints nothing for other pairs."""
    rows: list[list[Cell]] = [
        [f"{ratio:g}", value, *(_change("both", strategy, ratio, found) for strategy in BOTH)]
        for ratio, value in paper.AUC_CHANGE_PERCENT[name].items()
        if ("both", "baseline-partial", ratio) in found
    ]
    note = f"AUC change in percent against baseline-partial on {name}, both sides at the ratio"
    if features_ratio is None:
        columns = ["ratio", "paper", *BOTH]
        return ResultTable(name=f"Table {paper.TABLES[name]['both']}", note=note, columns=columns, rows=rows)
    return ResultTable(
        name=f"As in Table {paper.TABLES[name]['both']}, of other pairs",
        note=f"AUC change in percent against baseline-partial on {name}, by the share of labels absent",
        columns=["ratio", *BOTH],
        rows=[[ratio, *changes] for ratio, _, *changes in rows],
    )


def _draws(name: str, found: ByKey) -> ResultTable:
    printed = paper.DRAWS
    return ResultTable(
        name=f"Table {paper.TABLES[name]['draws']}",
        note=f"random-pred by the number of draws on {name}, ratio {ATTACKED_RATIO:g}",
        columns=["draws", "paper, attack AUC", "attack AUC", "paper, test AUC", "test AUC"],
        rows=[
            [str(k), printed["attack_auc"][k], over_seeds(rows, at(*GRADIENTS)), printed["auc"][k], over_seeds(rows, "auc")]
            for k in printed["auc"]
            if (rows := found.get(("labels", f"random-pred:k={k}", ATTACKED_RATIO)))
        ],
    )


def _figure_table(number: str, side: str, metric: str, found: ByKey) -> ResultTable:
    """Return what a panel draws, as numbers: every strategy at every ratio; no row if there is one ratio alone."""
    ratios = sorted({ratio for _, _, ratio in found})
    strategies = list(dict.fromkeys(strategy for of, strategy, _ in found if of == side))
    return ResultTable(
        name=f"Figure {number}: {METRICS[metric]}, {SIDES[side]}",
        columns=["strategy", *(f"{ratio:g}" for ratio in ratios)],
        rows=[
            [strategy, *(over_seeds(found.get((side, strategy, ratio), []), metric) for ratio in ratios)]
            for strategy in strategies
            if len(ratios) > 1
        ],
    )


def _utility(side: str, found: ByKey) -> ResultTable:
    """Test AUC and ACE of every strategy at the ratio of the paper's tables."""
    return ResultTable(
        name=f"Test AUC and ACE: {SIDES[side]}",
        note=f"Ratio {ATTACKED_RATIO:g}. The change is against baseline-partial of the same seed, in percent of AUC.",
        columns=["strategy", "runs", "test AUC", "change", "ACE"],
        rows=[
            [strategy, len(rows), over_seeds(rows, "auc"), _change(side, strategy, ratio, found), over_seeds(rows, "ace")]
            for (of, strategy, ratio), rows in found.items()
            if (of, ratio) == (side, ATTACKED_RATIO)
        ],
    )


def _attacks(side: str, party: str, found: ByKey) -> ResultTable:
    """Every attack of a party on every strategy, where this side lacks rows."""
    rows_by_strategy = {
        strategy: rows
        for (of, strategy, ratio), rows in found.items()
        if (of, ratio) == (side, ATTACKED_RATIO) and any(name.startswith(party) for name in rows[0]["attacks"])
    }
    names = list(
        dict.fromkeys(name for rows in rows_by_strategy.values() for name in rows[0]["attacks"] if name.startswith(party))
    )
    return ResultTable(
        name=f"Attack AUC of the {party}: {SIDES[side]}",
        note=f"Ratio {ATTACKED_RATIO:g}; below each AUC its interval over seeds.",
        columns=["strategy", *(name.partition("/")[2] for name in names)],
        rows=[
            [strategy, *(over_seeds(rows, at("attacks", name, "symmetric_auc")) for name in names)]
            for strategy, rows in rows_by_strategy.items()
        ],
    )


def _drops(name: str, found: ByKey) -> ResultTable:
    """Return the drops that the paper's text states beside ours, in percent of AUC."""
    rows: list[list[Cell]] = []
    for stated in paper.STATED_DROPS_PERCENT[name]:
        both = [found.get((stated["side"], stated[who], stated["ratio"])) for who in ("strategy", "against")]
        if both[0] and both[1]:
            our_auc, base_auc = (spread(row["auc"] for row in of).value for of in both if of)
            where = [stated["strategy"], stated["against"], f"{stated['ratio']:g}", stated["drop"]]
            rows.append([*where, 100 * (1 - our_auc / base_auc)])
    note = "How much lower the test AUC is, in percent; the paper's text gives only these for its figures."
    columns = ["strategy", "against", "ratio", "paper", "here"]
    return ResultTable(name="Drops that the text states", note=note, columns=columns, rows=rows)


def _checks(found: ByKey) -> ResultTable:
    """Check what the project set out to show at ratio 0.5; a check whose runs are missing is left out."""

    def figure(side: str, strategy: str, *path: str) -> float | None:
        measured = over_seeds(found.get((side, strategy, ATTACKED_RATIO), []), at(*path))
        return None if measured is None else measured.value

    ace = figure("labels", "majority", "ace")
    partial = figure("labels", "baseline-partial", "auc")
    majority = figure("labels", "majority", *GRADIENTS)
    auc_bar = partial and partial - 0.03
    checks: list[tuple[str, float | None, str, float | None]] = [
        ("attack AUC of random features", figure("features", "random", *EMBEDDINGS), ">=", 0.8),
        ("attack AUC of sampling", figure("features", "sampling", *EMBEDDINGS), "<=", 0.56),
        ("attack AUC of minority labels, against majority's", figure("labels", "minority", *GRADIENTS), ">=", majority),
        ("attack AUC of random-pred", figure("labels", "random-pred", *GRADIENTS), "<=", 0.55),
        ("ACE of majority-tr, against 70 % of majority's", figure("labels", "majority-tr", "ace"), "<=", ace and 0.7 * ace),
        ("ACE of majority-te, against 70 % of majority's", figure("labels", "majority-te", "ace"), "<=", ace and 0.7 * ace),
        ("AUC of majority-tr, against baseline-partial - .03", figure("labels", "majority-tr", "auc"), ">=", auc_bar),
    ]
    return ResultTable(
        name="Checks",
        columns=["what", "measured", "wanted", "holds"],
        rows=[
            [what, value, f"{sign} {bound:.4g}", value >= bound if sign == ">=" else value <= bound]
            for what, value, sign, bound in checks
            if value is not None and bound is not None
        ],
    )


def _panel(name: str, side: str, metric: str, found: ByKey) -> Curve:
    """Return a panel of figure 2 or 3: AUC or ACE against the ratio, a line for each strategy."""
    points: dict[str, list[tuple[float, float]]] = {}
    for (of, strategy, ratio), rows in sorted(found.items(), key=lambda item: item[0][2]):
        if of == side and (":" not in strategy or strategy.endswith(":once")):  # the others ran at one ratio only
            points.setdefault(strategy, []).append((ratio, spread(row[metric] for row in rows).value))
    what = METRICS[metric]
    return Curve(
        name=f"Figure {name}: {what}, {SIDES[side]}",
        x="share of rows that the side lacks",
        y=what,
        series=[Series.of(strategy, line) for strategy, line in points.items()],
    )
