"""Build the DPAUC benchmark's page: the paper's Tables 1 to 5 next to ours, and the results of other mechanisms at the same
epsilon.
"""

from collections.abc import Sequence

from tallystick_experiments.page import Benchmark, Curve, ResultTable, Series, Shown
from tallystick_experiments.stats import Row, groups


def dpauc_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``dpauc.run``."""
    tables, predictions, first = groups(rows, "in"), about["predictions"], next(iter(about["exact_auc"]))
    rows_of_both = [
        {**row, "named": _named(row)}
        for row in (*tables["table_4"], *tables["mechanisms"])
        if (row["scenario"], row["partition"]) == (first, "IID")
    ]
    return Benchmark(
        title=f"DPAUC: {about['rows']:,} rows, {about['positives']:,} positives",
        tables=[
            ResultTable.of(
                "Every mechanism at epsilon 1",
                [row for row in rows_of_both if row["epsilon"] == 1],
                {"mechanism": "named", "clients": "clients", "sd": "sd_many", "bias": "bias", "predicted sd": "predicted_sd"},
                note=f"{first}; sd and bias over {max(about['repeats'], about['check_repeats']):,} draws of the noise.",
            ),
            _table("Table 1", "Randomised response, 200 thresholds.", tables["table_1"]),
            ResultTable.of(
                "Table 2",
                tables["table_2"],
                {
                    "k": _in_words("k"),
                    "paper, positives": "paper_positives",
                    **{field: field for field in ("positives", "precision", "recall")},
                },
                note=f"{first}: positives among the k rows of highest score, which shared scores give away.",
            ),
            ResultTable.of(
                "Table 3",
                tables["table_3"],
                {
                    **{"scores": "scenario", "epsilon": _in_words("epsilon"), "paper, mean": "paper_mean"},
                    **{"mean": "mean", "sd": "sd", "predicted mean": "predicted_mean"},
                },
                note="Laplace noise on the scores, labels in the clear: for comparison only.",
            ),
            _table("Table 4", "Laplace noise as published, 100 thresholds.", tables["table_4"], "partition", "clients"),
            _table("Table 5", "As published, 10 clients, by the number of thresholds.", tables["table_5"], "thresholds"),
            _table("Mechanisms", "What the same epsilon buys otherwise.", tables["mechanisms"], "partition", "clients"),
        ],
        curves=[
            *(
                Curve(
                    name=f"Error against epsilon, {clients:,} clients",
                    x="epsilon",
                    y="sd of the AUC",
                    log_x=True,
                    log_y=True,
                    series=[
                        Series.of(name, [(row["epsilon"], row["sd_many"]) for row in of])
                        for name, of in groups((row for row in rows_of_both if row["clients"] == clients), "named").items()
                    ],
                )
                for clients in (10, 1000)
            ),
            *(
                Curve(
                    name=f"Figure 3, {scenario}",
                    x="score",
                    y="density",
                    series=[
                        Series.of(name, [(row["score"], row["density"]) for row in of_class])
                        for name, of_class in groups(of, "class").items()
                    ],
                )
                for scenario, of in groups(tables["figure_3"], "scenario").items()
            ),
        ],
        notes=[
            f"Source: {about['source']}. Means and sds are over {about['repeats']} draws of the noise, on fixed data; bias, and "
            f"the ratio of predicted to measured sd, over {about['check_repeats']}.",
            f"Predicted sds lie between {predictions['ratio_min']:.2f} and {predictions['ratio_max']:.2f} of the measured ones, "
            f"over {predictions['rows']} rows.",
            "IID and non-IID differ in nothing but their seeds: only sums of the clients' counts enter.",
            "Exact AUC: " + ", ".join(f"{name} {auc:.6f}" for name, auc in about["exact_auc"].items()) + ".",
        ],
        seconds=about["seconds"],
        facts={"repeats": str(about["repeats"]), "seed": str(about["seed"])},
    )


def _named(row: Row) -> str:
    return f"{row['mechanism']} ({row['accounting']})" if row["accounting"] else str(row["mechanism"])


def _table(name: str, note: str, rows: Sequence[Row], *settings: str) -> ResultTable:
    """Show means and sds next to the paper's, if it has any."""
    columns: dict[str, Shown] = {"scores": "scenario"}
    if len({_named(row) for row in rows}) > 1:
        columns |= {"mechanism": _named}
    columns |= {setting: _in_words(setting) for setting in (*settings, "epsilon")}
    if any(row["paper_mean"] is not None for row in rows):
        columns |= {"paper, mean": "paper_mean", "paper, sd": "paper_sd"}
    columns |= {"mean": "mean", "sd": "sd", "bias": "bias", "predicted sd": "predicted_sd"}
    return ResultTable.of(name, rows, columns, note=note)


def _in_words(field: str) -> Shown:
    """Show a setting that is not a figure."""
    return lambda row: row[field] if isinstance(row[field], str) else f"{row[field]:g}"
