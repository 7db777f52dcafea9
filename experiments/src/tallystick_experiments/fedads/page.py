"""The pages of FedAds' Tables 3 and 4."""

from typing import Any

from tallystick_experiments.fedads.defenses import BESIDE, FIGURES, LADDERS, NONE, PRICE
from tallystick_experiments.fedads.unaligned import SMALL
from tallystick_experiments.page import Benchmark, Cell, Curve, ResultTable, Series, spread_of

ON_TOP = {"linear": "a single linear layer, as in the paper", "one layer": "one hidden layer of 64"}


def page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``fedads.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"FedAds, Table 4, on {data['name']}: {data['training_rows']:,} rows, {data['positive_rate']:.2%} positive",
        command=command,
        tables=[part(found, fusion) for fusion in ON_TOP for part in (_at_price, _table)],
        curves=[_prices(found, fusion) for fusion in ON_TOP],
        notes=[
            "LeakAUC: (TPR + TNR) / 2 of two clusters of the cut embeddings after training, the smaller one taken as positive.",
            "The paper prints changes only, and not the strengths of DP and Marvell; absolute values are ours alone.",
            "Symmetric is max(a, 1 - a), for an attacker whose smaller cluster is the other class; changes are of that.",
            "The other attacks read the last epoch's steps: AUC as the attacker orients its scores, .5 is a guess.",
            "Strongest is the best of all these attacks in each run, folded: a floor of what there is to be found.",
            "With one linear layer on top, cut gradients lie on one line: direction is the label, or length after MixPro.",
        ],
        facts={
            "columns": f"{data['label_party_columns']} of the label party, {data['feature_party_columns']} of the feature party",
            "test rows": f"{data['test_rows']:,}",
            "optimiser": f"Adam {data['learning_rate']:g}, batch {data['batch_size']}, epochs {data['epochs']}",
            "seeds": ", ".join(map(str, found["seeds"])),
        },
    )


def unaligned_page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``unaligned.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"FedAds, Table 3, on {data['name']}: {data['rows']:,} rows, {data['share_of_positives']:.2%} positive",
        command=command,
        tables=[_methods(found), _without_partner(found)],
        notes=[
            "Differences are of the same seed: the same rows, aligned and not, the same batches of aligned rows.",
            "ECE: 20 bins of equal mass. CPU seconds: all that training took at both parties, without looks at validation rows.",
            "Local and the tables of means read the label party's columns alone; ORALE has both parties' columns of every row.",
            "The paper's numbers are of its own data, one run each, with no interval.",
            *_order(found),
        ],
        facts={
            "aligned": f"{data['aligned']:.0%} of the training rows",
            "parts": data.get("parts", "row by row, or as the data has them"),
            "networks": data.get("networks", SMALL.words),
            "optimiser": "Adam 1e-3, batch 256, stopped by validation rows that are looked at four times a pass",
            "seeds": ", ".join(map(str, found["seeds"])),
        },
    )


def unaligned_leaks_page_of(found: dict[str, Any], *, command: str) -> Benchmark:
    """Show what ``leaks.run`` found."""
    data = found["data"]
    return Benchmark(
        title=f"What unaligned rows add to the leak, on {data['name']}: {data['rows']:,} rows",
        command=command,
        tables=[table for defense, rows in found["rows"].items() for table in _leaks(defense, rows, data["aligned"])],
        notes=[
            "max(AUC, 1 - AUC): .5 is a guess, 1 is every label. Attackers score aligned rows: of others nothing crosses.",
            "The strongest attack leaves out those that know half of all labels.",
            "A floor: what these attackers found, never that nothing else can be found.",
        ],
        facts={"seeds": ", ".join(map(str, found["seeds"]))},
    )


def _leaks(defense: str, rows: list[dict[str, Any]], aligned: float) -> list[ResultTable]:
    first, *others = rows[0]["by_method"]
    return [
        ResultTable(
            name=f"{defense}: symmetric AUC of each attack",
            columns=["figure", first, *others],
            rows=[[row["figure"], *(spread_of(row["by_method"][method]) for method in (first, *others))] for row in rows],
            note=f"By unaligned.method; the feature party has {aligned:.0%} of the rows, the same for all methods.",
        ),
        ResultTable(
            name=f"{defense}: change against {first}",
            columns=["figure", *others],
            rows=[[row["figure"], *(spread_of(row["change"][method]) for method in others)] for row in rows],
            note="Of the same seed: the same rows, parts and first weights.",
        ),
    ]


def _methods(found: dict[str, Any]) -> ResultTable:
    rows: list[list[Cell]] = [
        [
            row["method"],
            row["kind"],
            row["paper"][0] if row["paper"] else None,
            row["paper"][1] if row["paper"] else None,
            spread_of(row["auc"]),
            spread_of(row.get("over_vanilla")),
            spread_of(row.get("over_diffu_at")),
            spread_of(row.get("over_orale")),
            spread_of(row["nll"]),
            spread_of(row.get("nll_over_vanilla")),
            spread_of(row["ece"]),
            row["cpu_seconds"]["mean"],
            row.get("time_ratio"),
        ]
        for row in found["table"]
    ]
    columns = ["method", "of", "paper, AUC", "paper, NLL", "AUC", "over VanillaVFL", "over Diffu-AT", "over ORALE"]
    columns += ["NLL", "NLL over VanillaVFL's", "ECE", "CPU s", "times VanillaVFL's"]
    return ResultTable(name="Table 3", columns=columns, rows=rows)


def _order(found: dict[str, Any]) -> list[str]:
    if found["order"] is None:
        return []
    return [f"The paper's methods for unaligned rows stand in its order with a rank correlation of {found['order']:.2f}."]


def _without_partner(found: dict[str, Any]) -> ResultTable:
    parts = ("half with a partner's row", "half without", "both halves")
    rows: list[list[Cell]] = [
        [row["method"], *(spread_of(row["alone"][part][figure]) for part in parts for figure in ("auc", "ece"))]
        for row in found["table"]
        if "alone" in row
    ]
    columns = ["method", *(f"{part}: {figure}" for part in ("with", "without", "both") for figure in ("AUC", "ECE"))]
    note = "Every other test row is scored without its partner's row, by own columns, calibrated on validation rows."
    return ResultTable(name="Test rows half of which have no partner's row", columns=columns, rows=rows, note=note)


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
            spread_of(row["price"]),
            *(spread_of(row["attacks"][name]) for name in BESIDE),
        ]
        for row in found["table"]
        if row["fusion"] == fusion
    ]
    columns = ["method", "paper, change %", "change %", "LeakAUC", "symmetric", "paper, test AUC", "test AUC", "price", *BESIDE]
    note = f"Between both parties' embeddings and the output: {ON_TOP[fusion]}. Price: test AUC against no defence, same seed."
    return ResultTable(name=f"Table 4, {fusion} on top", columns=columns, rows=rows, note=note)


def _at_price(found: dict[str, Any], fusion: str) -> ResultTable:
    (plain,) = (row for row in found["table"] if (row["fusion"], row["method"]) == (fusion, NONE))
    before = [plain["leak_folded"], *(plain["attacks"][name] for name in BESIDE), plain["strongest"]]
    rows: list[list[Cell]] = [[NONE, "", *map(spread_of, before)]]
    for row in found["at_price"]:
        if row["fusion"] == fusion:
            strength = " to ".join(row["between"]) if row["figures"] else f"at most {row['highest_price']:.4f}"
            rows.append([row["family"], strength, *(spread_of((row["figures"] or {}).get(name)) for name in FIGURES)])
    note = (
        f"What each defence leaves where it costs {PRICE:g} of test AUC, on a line between the two strengths around that price; "
        f"none where no strength tried costs so much. On top: {ON_TOP[fusion]}."
    )
    return ResultTable(name=f"At equal utility, {fusion} on top", columns=["defence", "strength", *FIGURES], rows=rows, note=note)


def _prices(found: dict[str, Any], fusion: str) -> Curve:
    of_fusion = [row for row in found["table"] if row["fusion"] == fusion]
    steps = {family: [row for row in of_fusion if row["family"] in ("", family)] for family in LADDERS}
    return Curve(
        name=f"Leak against price, {fusion} on top",
        x="test AUC given up",
        y="AUC of the strongest attack",
        series=[
            Series(name=family, xs=[row["price"]["mean"] for row in rows], ys=[row["strongest"]["mean"] for row in rows])
            for family, rows in steps.items()
        ],
    )
