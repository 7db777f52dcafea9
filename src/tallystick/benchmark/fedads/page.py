"""The page of FedAds' Table 4."""

from typing import Any

from tallystick.benchmark.fedads.defenses import BESIDE
from tallystick.report.bench import Benchmark, Cell, ResultTable, spread_of


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``fedads.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"FedAds, Table 4, on {data['name']}: {data['training_rows']:,} rows, {data['positive_rate']:.2%} positive",
        command=command,
        tables=[_table(found, fusion) for fusion in dict.fromkeys(row["fusion"] for row in found["table"])],
        notes=[
            "LeakAUC: (TPR + TNR) / 2 of two clusters of the cut embeddings after training, the smaller one taken as positive.",
            "The paper prints changes only, and not the strengths of DP and Marvell; absolute values are ours alone.",
            "Symmetric is max(a, 1 - a), for an attacker whose smaller cluster is the other class; changes are of that.",
            "The other attacks read the last epoch's steps: AUC per batch as the attacker orients its scores, .5 is a guess.",
            "With one linear layer on top, cut gradients lie on one line: direction is the label, or length after MixPro.",
        ],
        facts={
            "columns": f"{data['label_party_columns']} of the label party, {data['feature_party_columns']} of the feature party",
            "test rows": f"{data['test_rows']:,}",
            "optimiser": f"Adam {data['learning_rate']:g}, batch {data['batch_size']}, epochs {data['epochs']}",
            "seeds": ", ".join(map(str, found["seeds"])),
        },
    )


def _table(found: dict[str, Any], fusion: str) -> ResultTable:
    rows: list[list[Cell]] = [
        [
            row["method"],
            row["paper_change_percent"],
            row["change_percent"],
            spread_of(row["leak_auc"]),
            spread_of(row["leak_folded"]),
            row["paper_auc"],
            spread_of(row["test_auc"]),
            *(spread_of(row["attacks"][name]) for name in BESIDE),
        ]
        for row in found["table"]
        if row["fusion"] == fusion
    ]
    columns = ["method", "paper, change %", "change %", "LeakAUC", "symmetric", "paper, test AUC", "test AUC", *BESIDE]
    between = {"linear": "a single linear layer, as in the paper", "one layer": "one hidden layer of 64"}[fusion]
    note = f"Between both parties' embeddings and the output: {between}."
    return ResultTable(name=f"Table 4, {fusion} on top", columns=columns, rows=rows, note=note)
