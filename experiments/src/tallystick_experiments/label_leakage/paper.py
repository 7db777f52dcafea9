"""List the numbers of the label-leakage paper: its tables 1 to 5, and the figures in its text on figures 2 to 7.

Sun et al., "Label Leakage and Protection from Forward Embedding in Vertical Federated Learning". The figures are pictures. The
text gives a number for some of their panels. It does not say which strengths s and epsilon the panels of figures 3 and 6 show,
nor which weights figure 5 shows besides .002 to .005. Those are chosen here. Scenarios are given by their names (scenarios.py).
"""

from collections.abc import Mapping
from string import ascii_lowercase
from typing import Literal, NamedTuple

MetricName = Literal["test_auc", "spectral-embedding", "norm", "spectral-gradient"]
LEAK: MetricName = "spectral-embedding"


class PaperRow(NamedTuple):
    """Describe a row of a table: its label, the scenario that makes it, its printed figures, and the scenario to
    compare it with.
    """

    label: str
    scenario: str
    printed: Mapping[MetricName, float]
    without: str  # the scenario of the same network and rows at weight 0


class PaperTable(NamedTuple):
    """Describe one of the paper's tables."""

    title: str
    rows: list[PaperRow]
    data: Literal["criteo", "avazu"] = "criteo"


class Panel(NamedTuple):
    """Describe a panel of a figure: a metric by epoch for several scenarios, or the spectral attack by layer for one."""

    title: str
    scenarios: tuple[str, ...]
    metric: MetricName | Literal["layers"]
    stated: Mapping[MetricName, float] = {}  # figures in the text, after the last epoch


_TABLE_1: Mapping[float, tuple[float | None, float | None]] = {
    0: (None, None),  # not in the paper: the others are compared with it
    0.003: (0.7769, 0.7777),
    0.005: (0.7763, 0.7773),
    0.02: (0.7528, 0.7645),
    0.03: (0.7082, 0.7518),
    0.04: (0.5848, 0.7152),
}
_BALANCED = {
    45: ((0.7607, 0.7823), (0.5048, 0.7824)),
    49: ((0.7814, 0.7849), (0.5069, 0.7837)),
    50: ((0.7817, 0.7829), (0.5061, 0.7826)),
}


def _leak_and_test(bare: tuple[float, float], defended: tuple[float, float], end: str = "") -> list[PaperRow]:
    return [
        PaperRow(f"weight {weight}", f"{name}{end}", {LEAK: leak, "test_auc": test}, f"none{end}")
        for weight, name, (leak, test) in (("0", "none", bare), ("0.03", "dcor 0.03", defended))
    ]


TABLES: Mapping[str, PaperTable] = {
    "1": PaperTable(
        "Test AUC by weight and by the label party's layers",
        [
            PaperRow(
                f"weight {weight:g}, {layers}",
                f"dcor {weight:g}{end}" if weight else f"none{end}",
                {} if auc is None else {"test_auc": auc},
                f"none{end}",
            )
            for weight, printed in _TABLE_1.items()
            for layers, end, auc in zip(("1 layer", "3 layers"), (", 1 layer above", ""), printed, strict=True)
        ],
    ),
    "2": PaperTable("Leak and test AUC on Avazu", _leak_and_test((0.7262, 0.7532), (0.5089, 0.7502)), "avazu"),
    **{
        number: PaperTable(f"Leak and test AUC on Criteo with {rate}% positives", _leak_and_test(*printed, f", {rate}% positive"))
        for number, (rate, printed) in zip("345", _BALANCED.items(), strict=True)
    },
}


def _by_layer(what: str, scenario: str, stated: Mapping[MetricName, float] | None = None) -> Panel:
    return Panel(f"spectral attack by layer, {what}", (scenario,), "layers", stated or {})


MARVELLS = tuple(f"marvell {power}" for power in (1, 4, 8, 16))  # the text names 8 only
LABEL_DPS = tuple(f"label-dp {epsilon:g}" for epsilon in (0.5, 1, 2, 4))  # the text names .5 and 2 only
_DCORS = ("none", "dcor 0.002", "dcor 0.003", "dcor 0.005")
_WITH_MARVELL = ("marvell 8", "marvell 8 + dcor 0.002", "marvell 8 + dcor 0.005")

FIGURES: Mapping[str, Mapping[str, Panel]] = {
    number: dict(zip(ascii_lowercase, panels, strict=False))
    for number, panels in {
        "2": (
            _by_layer("no defence", "none", {LEAK: 0.78}),
            _by_layer("Marvell s = 8", "marvell 8", {LEAK: 0.75}),
            _by_layer("label DP ε = 0.5", "label-dp 0.5", {LEAK: 0.75}),
        ),
        "3": (
            Panel("test AUC, Marvell", MARVELLS, "test_auc"),
            Panel("spectral attack on the cut, Marvell", MARVELLS, LEAK),
            Panel("test AUC, label DP", LABEL_DPS, "test_auc"),
            Panel("spectral attack on the cut, label DP", LABEL_DPS, LEAK),
        ),
        "4": (
            _by_layer("weight 0.003", "dcor 0.003", {LEAK: 0.5, "test_auc": 0.78}),
            _by_layer("weight 0.005", "dcor 0.005", {LEAK: 0.5, "test_auc": 0.78}),
            _by_layer("Marvell and weight 0.002", "marvell 8 + dcor 0.002"),
            _by_layer("Marvell and weight 0.005", "marvell 8 + dcor 0.005"),
        ),
        "5": (
            Panel("spectral attack on the cut by weight", _DCORS, LEAK),
            Panel("test AUC by weight", _DCORS, "test_auc"),
            Panel("spectral attack on the cut by weight, with Marvell", _WITH_MARVELL, LEAK),
            Panel("test AUC by weight, with Marvell", _WITH_MARVELL, "test_auc"),
        ),
        "6": (
            Panel("norm attack, Marvell", MARVELLS, "norm"),
            Panel("spectral attack on gradients, Marvell", MARVELLS, "spectral-gradient"),
            Panel("norm attack, label DP", LABEL_DPS, "norm"),
            Panel("spectral attack on gradients, label DP", LABEL_DPS, "spectral-gradient"),
        ),
        "7": (
            _by_layer("no defence", "none"),
            _by_layer("weight 0.002", "dcor 0.002"),
            _by_layer("weight 0.003", "dcor 0.003"),
            _by_layer("weight 0.005", "dcor 0.005"),
            _by_layer("Marvell s = 8", "marvell 8"),
            _by_layer("Marvell s = 8 and weight 0.002", "marvell 8 + dcor 0.002"),
            _by_layer("label DP ε = 2", "label-dp 2"),
            _by_layer("label DP ε = 2 and weight 0.002", "label-dp 2 + dcor 0.002"),
        ),
    }.items()
}
