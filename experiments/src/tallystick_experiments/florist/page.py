"""The FLORIST benchmark's page: the paper's tables 1, 2, 3, 5, 6, 7, 8 and figures 2 and 3, ours beside its numbers."""

from typing import Any

from tallystick_experiments.florist.sweep import ATTACKED_RATIO, BOTH
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, counted, spread_of

METRICS = {"auc": "test AUC", "ace": "ACE"}


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``florist.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"FLORIST on {data['name']}: {data['rows']:,} rows, {counted(len(found['seeds']), 'seed')}",
        command=command,
        tables=[
            *(_paper_table(number, table) for number, table in found["tables"].items() if table["rows"]),
            *_figure_tables(found),
            *_utility_tables(found),
            *_attack_tables(found),
            *_drops(found),
            *_checks(found),
        ],
        curves=[_panel(name, panel) for name, panel in found["curves"].items() if any(panel["curves"].values())],
        notes=_notes(found),
        seconds=found["seconds"],
        facts={
            "rows": f"{data['training_rows']:,} for training, {data['test_rows']:,} for tests",
            "model": f"layers {'-'.join(map(str, data['hidden']))}, cut after {data['cut_after']}",
            "optimiser": f"Adam {data['learning_rate']:g}, batch {data['batch_size']:,}, {counted(data['epochs'], 'epoch')}",
            "calibration": f"ACE over {data['ace_bins']} bins of equal mass",
            "seeds": ", ".join(map(str, found["seeds"])),
            "ratios": ", ".join(f"{ratio:g}" for ratio in found["ratios"]),
        },
    )


def _paper_table(number: str, table: dict[str, Any]) -> ResultTable:
    rows = table["rows"]
    title = f"Table {number}"
    if "k" in rows[0]:
        return ResultTable(
            name=title,
            note=table["title"],
            columns=["draws", "paper, attack AUC", "attack AUC", "paper, test AUC", "test AUC"],
            rows=[
                [str(row["k"]), row["paper_attack_auc"], spread_of(row["attack_auc"]), row["paper_auc"], spread_of(row["auc"])]
                for row in rows
            ],
        )
    if "ratio" in rows[0]:
        return ResultTable(
            name=title,
            note=table["title"],
            columns=["ratio", "paper", *BOTH],
            rows=[[f"{row['ratio']:g}", row["paper"], *(spread_of(row[name]) for name in BOTH)] for row in rows],
        )
    return ResultTable(
        name=title,
        note=f"{table['title']}. Symmetric, max(a, 1 - a) per batch: the last column is what guessing scores.",
        columns=["strategy", "paper", "here", "a guess here"],
        rows=[[row["strategy"], row["paper"], spread_of(row["measured"]), spread_of(row["chance"])] for row in rows],
    )


def _figure_tables(found: dict[str, Any]) -> list[ResultTable]:
    """What the panels of a figure draw, as numbers: every strategy at every ratio, per side and metric."""
    tables = []
    for number, panel in found["curves"].items():
        side, metric = panel["side"], panel["metric"]
        by_key = {(each["strategy"], each["ratio"]): each[metric] for each in found["summaries"] if each["side"] == side}
        if by_key and len(found["ratios"]) > 1:
            tables.append(
                ResultTable(
                    name=f"Figure {number}: {METRICS[metric]}, {_side(side)}",
                    columns=["strategy", *(f"{ratio:g}" for ratio in found["ratios"])],
                    rows=[
                        [name, *(spread_of(of) if (of := by_key.get((name, ratio))) else None for ratio in found["ratios"])]
                        for name in dict.fromkeys(strategy for strategy, _ in by_key)
                    ],
                )
            )
    return tables


def _utility_tables(found: dict[str, Any]) -> list[ResultTable]:
    """Test AUC and ACE of every strategy at the ratio of the paper's tables, per side."""
    tables = []
    for side in ("labels", "features", "both"):
        chosen = [each for each in found["summaries"] if each["side"] == side and each["ratio"] == ATTACKED_RATIO]
        if chosen:
            tables.append(
                ResultTable(
                    name=f"Test AUC and ACE: {_side(side)}",
                    note=f"Ratio {ATTACKED_RATIO:g}. The change is against baseline-partial of the same seed, in percent of AUC.",
                    columns=["strategy", "runs", "test AUC", "change", "ACE"],
                    rows=[
                        [
                            each["strategy"],
                            each["auc"]["n"],
                            spread_of(each["auc"]),
                            spread_of(each["auc_change_percent"]),
                            spread_of(each["ace"]),
                        ]
                        for each in chosen
                    ],
                )
            )
    return tables


def _attack_tables(found: dict[str, Any]) -> list[ResultTable]:
    """Every attack on every strategy, per side that lacks rows and party that attacks."""
    tables = []
    for side in ("labels", "features", "both"):
        for party in ("feature party", "label party"):
            chosen = [
                (each["strategy"], attacks)
                for each in found["summaries"]
                if each["side"] == side
                and (attacks := {name.partition("/")[2]: a for name, a in each["attacks"].items() if name.startswith(party)})
            ]
            if chosen:
                names = list(dict.fromkeys(name for _, attacks in chosen for name in attacks))
                tables.append(
                    ResultTable(
                        name=f"Attack AUC of the {party}: {_side(side)}",
                        note=f"Ratio {ATTACKED_RATIO:g}; below each AUC its interval over seeds.",
                        columns=["strategy", *names],
                        rows=[
                            [
                                strategy,
                                *(spread_of(attacks[name]["symmetric_auc"]) if name in attacks else None for name in names),
                            ]
                            for strategy, attacks in chosen
                        ],
                    )
                )
    return tables


def _drops(found: dict[str, Any]) -> list[ResultTable]:
    rows: list[list[Cell]] = [
        [each["strategy"], each["against"], f"{each['ratio']:g}", each["drop"], each["measured"]]
        for each in found["stated_drops"]
    ]
    columns = ["strategy", "against", "ratio", "paper", "here"]
    note = "How much lower the test AUC is, in percent; the paper's text gives only these for its figures."
    return [ResultTable(name="Drops that the text states", note=note, columns=columns, rows=rows)] if rows else []


def _checks(found: dict[str, Any]) -> list[ResultTable]:
    rows: list[list[Cell]] = [[each["what"], each["measured"], each["wanted"], each["passed"]] for each in found["checks"]]
    return [ResultTable(name="Checks", columns=["what", "measured", "wanted", "holds"], rows=rows)] if rows else []


def _panel(name: str, panel: dict[str, Any]) -> Curve:
    what = METRICS[panel["metric"]]
    return Curve(
        name=f"Figure {name}: {what}, {_side(panel['side'])}",
        x="share of rows that the side lacks",
        y=what,
        series=[
            Series(name=strategy, xs=[point["ratio"] for point in points], ys=[point["mean"] for point in points])
            for strategy, points in panel["curves"].items()
            if ":" not in strategy or strategy.endswith(":once")  # the others ran at one ratio only
        ],
    )


def _side(side: str) -> str:
    return {"labels": "labels absent", "features": "features absent", "both": "both absent"}[side]


def _notes(found: dict[str, Any]) -> list[str]:
    few = len(found["seeds"]) < 2
    return [
        "Small figures below a mean are Student's 95 % interval of it over seeds."
        + (" There is one seed, so there are none." if few else ""),
        "The paper prints no numbers for figures 2 and 3; the drops that its text states are in a table above. Panels h to j "
        "(convergence) are not drawn.",
        "Batch and step size are scaled to the sample: the paper has 4.1 million rows, batch 8,192 and Adam 1e-4.",
        "-te variants are the plain variants' training runs, calibrated at prediction: their attack figures are equal.",
        f"Training and attacks of all runs together took {found['seconds']:,.0f} s on one thread.",
    ]
