"""Build the FLORIST benchmark's page: the paper's tables 1, 2, 3, 5, 6, 7, 8 and figures 2 and 3, ours next to its numbers."""

from collections.abc import Mapping, Sequence

from tallystick_experiments.florist import paper
from tallystick_experiments.florist.paper import ATTACKED_RATIO
from tallystick_experiments.florist.runs import BOTH
from tallystick_experiments.observed_training import KEPT_ROWS
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, counted, seed_count, seeds_of
from tallystick_experiments.pivot import LineCell, Pivot, line_of_means, mean
from tallystick_experiments.stats import Row, at, distinct, groups, melted, over_seeds

METRICS = {"auc": "test AUC", "ace": "ACE"}
SIDES = {"labels": "labels absent", "features": "features absent", "both": "both absent"}
GRADIENTS, EMBEDDINGS = (("attacks", f"{party} party/spectral", "symmetric_auc") for party in ("feature", "label"))
_BOUNDED = (f"Attacks read evenly spread steps of each epoch, {KEPT_ROWS:,} rows of it, as the table is large.",)


def florist_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``florist.sweep``."""
    name, baseline = about["name"], {compared_with(row): row["auc"] for row in rows if row["strategy"] == "baseline-partial"}
    # against the partial baseline with the same seed, so that the luck of the test set cancels
    compared = [{**row, "change": 100 * (row["auc"] / baseline[compared_with(row)] - 1)} for row in rows]
    by_side = groups(compared, "side")
    attacked = {side: [row for row in by_side.get(side, []) if row["ratio"] == ATTACKED_RATIO] for side in SIDES}
    panels = [
        (f"Figure {paper.TABLES[name]['figure']}{letter}: {what}, {SIDES[side]}", by_side[side], metric)
        for (metric, what), letters in zip(METRICS.items(), ("abc", "def"), strict=True)
        for side, letter in zip(SIDES, letters, strict=True)
        if side in by_side
    ]
    ratios, draws = sorted(distinct(rows, "ratio")), "random-pred:k="
    of_draws = [
        {**row, "draws": row["strategy"].removeprefix(draws)} for row in attacked["labels"] if row["strategy"].startswith(draws)
    ]
    return Benchmark(
        title=f"FLORIST on {name}: {about['rows']:,} rows, {seed_count(rows)}",
        tables=[
            leak_table("labels", name, paper.LABEL_ATTACK_AUC[name], GRADIENTS).table(attacked["labels"]),
            leak_table("features", name, paper.FEATURE_ATTACK_AUC[name], EMBEDDINGS).table(attacked["features"]),
            changes(name, is_papers="features_ratio" not in about).table(
                {**row, "at": f"{row['ratio']:g}"} for row in by_side.get("both", [])
            ),
            *([DRAWN.table(of_draws)] if "draws" in paper.TABLES[name] else []),
            *(
                Pivot(
                    name=panel,
                    rows="strategy",
                    columns="ratio",
                    figure=metric,
                    heads={ratio: f"{ratio:g}" for ratio in ratios},
                ).table(of_side)
                for panel, of_side, metric in panels
                if len(ratios) > 1
            ),
            *(
                Pivot(
                    name=f"Test AUC and ACE: {SIDES[side]}",
                    rows="strategy",
                    shown={"runs": len, "test AUC": "auc", "change": "change", "ACE": "ace"},
                    note=f"Ratio {ATTACKED_RATIO:g}. The change is against baseline-partial of the same seed, in percent of AUC.",
                ).table(of_side)
                for side, of_side in attacked.items()
            ),
            *(
                Pivot(
                    name=f"Attack AUC of the {party}: {SIDES[side]}",
                    rows="strategy",
                    columns="attack",
                    figure=at("value", "symmetric_auc"),
                    note=f"Ratio {ATTACKED_RATIO:g}; below each AUC its interval over seeds.",
                ).table(
                    {**row, "attack": attack}
                    for row in melted(of_side, "attacks", name="attack")
                    for attacker, _, attack in [row["attack"].partition("/")]
                    if attacker == party
                )
                for side, of_side in attacked.items()
                for party in ("feature party", "label party")
            ),
            drops(name, rows),
            *([checks(rows)] if name == "criteo" else []),  # the bars were set on Criteo
        ],
        curves=[
            Curve(
                name=panel,
                x="share of rows that the side lacks",
                y=METRICS[metric],
                series=[
                    line_of_means(strategy, of, "ratio", metric)
                    for strategy, of in groups(sorted(of_side, key=lambda row: float(row["ratio"])), "strategy").items()
                    if ":" not in strategy or strategy.endswith(":once")  # the others ran at one ratio only
                ],
            )
            for panel, of_side, metric in panels
        ],
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


def compared_with(row: Row) -> tuple[str, float, int]:
    """Return the values that runs must share to be compared with each other."""
    return row["side"], row["ratio"], row["seed"]


def leak_table(side: str, name: str, printed: Mapping[str, float], attack: tuple[str, str, str]) -> Pivot:
    """Declare what spectral attacks find of synthetic labels in gradients, or of synthetic features in embeddings."""
    return Pivot(
        name=f"Table {paper.TABLES[name][side]}",
        rows="strategy",
        order=printed,
        shown={
            "paper": lambda of: printed[of[0]["strategy"]],
            "here": mean(at(*attack)),
            "a guess here": mean(at(*attack[:2], "chance_symmetric_auc")),
        },
        note=f"Attack AUC of synthetic {side} on {name}, ratio {ATTACKED_RATIO:g}. Symmetric, max(a, 1 - a) per batch: the last "
        "column is what guessing scores.",
    )


def changes(name: str, *, is_papers: bool) -> Pivot:
    """Declare the paper's table, which has pairs in which both sides lack the same share. It prints nothing for other pairs."""
    printed = {f"{ratio:g}": value for ratio, value in paper.AUC_CHANGE_PERCENT[name].items()}
    table, note = f"Table {paper.TABLES[name]['both']}", f"AUC change in percent against baseline-partial on {name}"
    return Pivot(
        name=table if is_papers else f"As in {table}, of other pairs",
        rows={"ratio": "at"},
        order=printed,
        shown={"paper": lambda of: printed[of[0]["at"]]} if is_papers else {},
        columns="strategy",
        figure="change",
        heads={strategy: strategy for strategy in BOTH},
        note=note + (", both sides at the ratio" if is_papers else ", by the share of labels absent"),
    )


def printed_by_draws(figure: str) -> LineCell:
    """Show the paper's figure for a number of draws."""
    return lambda of: paper.DRAWS[figure][int(of[0]["draws"])]


DRAWN = Pivot(
    name=f"Table {paper.TABLES['avazu']['draws']}",
    rows="draws",
    order=tuple(map(str, paper.DRAWS["auc"])),
    shown={
        "paper, attack AUC": printed_by_draws("attack_auc"),
        "attack AUC": mean(at(*GRADIENTS)),
        "paper, test AUC": printed_by_draws("auc"),
        "test AUC": "auc",
    },
    note=f"random-pred by the number of draws on avazu, ratio {ATTACKED_RATIO:g}",
)


def drops(name: str, rows: Sequence[Row]) -> ResultTable:
    """Show the drops that the paper's text states next to ours, in percent of AUC."""
    aucs, cells = groups(rows, "side", "strategy", "ratio"), list[list[Cell]]()
    for stated in paper.STATED_DROPS_PERCENT[name]:
        both = [
            over_seeds(aucs.get((stated["side"], stated[who], stated["ratio"]), []), "auc") for who in ("strategy", "against")
        ]
        if both[0] and both[1]:
            where = [stated["strategy"], stated["against"], f"{stated['ratio']:g}", stated["drop"]]
            cells.append([*where, 100 * (1 - both[0].value / both[1].value)])
    note = "How much lower the test AUC is, in percent; the paper's text gives only these for its figures."
    columns = ["strategy", "against", "ratio", "paper", "here"]
    return ResultTable(name="Drops that the text states", note=note, columns=columns, rows=cells)


def checks(rows: Sequence[Row]) -> ResultTable:
    """Check the goals of the project at ratio 0.5. A check whose runs are missing is left out."""
    found = groups(rows, "side", "strategy", "ratio")

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
