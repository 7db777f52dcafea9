"""What the label-leakage paper prints, as data: its tables 1 to 5, and all that its text says of figures 2 to 7.

Sun et al., "Label Leakage and Protection from Forward Embedding in Vertical Federated Learning". The figures are pictures; the
text gives a number for some of their panels, and does not say which strengths s and epsilon the panels of figures 3 and 6 show,
nor which weights figure 5 shows beside .002 to .005. Those are chosen here.
"""

from dataclasses import dataclass, field
from typing import Literal

DCOR_WEIGHTS = (0.002, 0.003, 0.005, 0.02, 0.03, 0.04)  # of table 1 and of figures 4, 5 and 7
MARVELL_POWERS = (1.0, 4.0, 8.0, 16.0)  # the text names 8 only
LABEL_DP_EPSILONS = (0.5, 1.0, 2.0, 4.0)  # the text names .5 and 2 only
POSITIVE_RATES = (0.45, 0.49, 0.5)

MetricName = Literal["test_auc", "spectral-embedding", "norm", "spectral-gradient"]
LEAK: MetricName = "spectral-embedding"


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A row of a table: what it is called, the scenario that makes it, and the numbers printed there."""

    label: str
    scenario: str
    printed: dict[MetricName, float]


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """One of the paper's tables."""

    title: str
    rows: tuple[PaperRow, ...]
    data: Literal["criteo", "avazu"] = "criteo"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure: a metric by epoch for several scenarios, or the spectral attack by layer for one."""

    title: str
    scenarios: tuple[str, ...]
    metric: MetricName | Literal["layers"]
    stated: dict[MetricName, float] = field(default_factory=dict)  # what the text says of it, after the last epoch


def marvell(power: float) -> str:
    """Name of the scenario."""
    return f"marvell {power:g}"


def label_dp(epsilon: float) -> str:
    """Name of the scenario."""
    return f"label-dp {epsilon:g}"


def dcor(weight: float, *, also: str = "", small: bool = False, rate: float | None = None) -> str:
    """Name of the scenario: distance correlation in the paper's form, perhaps after another defence."""
    parts = [also, f"dcor {weight:g}" if weight else "none"]
    return " + ".join(part for part in parts if part) + (", 1 layer above" if small else "") + _at(rate)


def _at(rate: float | None) -> str:
    return "" if rate is None else f", {rate:.0%} positive"


TABLE_1 = {
    0.003: (0.7769, 0.7777),
    0.005: (0.7763, 0.7773),
    0.02: (0.7528, 0.7645),
    0.03: (0.7082, 0.7518),
    0.04: (0.5848, 0.7152),
}
_BALANCED = {
    0.45: ((0.7607, 0.7823), (0.5048, 0.7824)),
    0.49: ((0.7814, 0.7849), (0.5069, 0.7837)),
    0.5: ((0.7817, 0.7829), (0.5061, 0.7826)),
}


def _leak_and_test(weight: float, printed: tuple[float, float], rate: float | None = None) -> PaperRow:
    return PaperRow(
        label=f"weight {weight:g}", scenario=dcor(weight, rate=rate), printed={LEAK: printed[0], "test_auc": printed[1]}
    )


TABLES: dict[str, PaperTable] = {
    "1": PaperTable(
        title="Test AUC by weight and by the label party's layers",
        rows=tuple(
            PaperRow(
                label=f"weight {weight:g}, {name}", scenario=dcor(weight, small=small), printed={"test_auc": printed[not small]}
            )
            for weight, printed in TABLE_1.items()
            for name, small in (("1 layer", True), ("3 layers", False))
        ),
    ),
    "2": PaperTable(
        title="Leak and test AUC on Avazu",
        rows=(_leak_and_test(0, (0.7262, 0.7532)), _leak_and_test(0.03, (0.5089, 0.7502))),
        data="avazu",
    ),
    **{
        number: PaperTable(
            title=f"Leak and test AUC on Criteo with {rate:.0%} positives",
            rows=tuple(_leak_and_test(weight, printed, rate) for weight, printed in zip((0, 0.03), _BALANCED[rate], strict=True)),
        )
        for number, rate in zip(("3", "4", "5"), POSITIVE_RATES, strict=True)
    },
}

_MARVELLS, _LABEL_DPS = tuple(map(marvell, MARVELL_POWERS)), tuple(map(label_dp, LABEL_DP_EPSILONS))
_WEIGHTS = (0.0, 0.002, 0.003, 0.005)
_MARVELL_8, _LABEL_DP_2 = marvell(8), label_dp(2)

FIGURES: dict[str, dict[str, Panel]] = {
    "2": {
        "a": Panel(title="spectral attack by layer, no defence", scenarios=("none",), metric="layers", stated={LEAK: 0.78}),
        "b": Panel(
            title="spectral attack by layer, Marvell s = 8", scenarios=(_MARVELL_8,), metric="layers", stated={LEAK: 0.75}
        ),
        "c": Panel(
            title="spectral attack by layer, label DP ε = 0.5", scenarios=(label_dp(0.5),), metric="layers", stated={LEAK: 0.75}
        ),
    },
    "3": {
        "a": Panel(title="test AUC, Marvell", scenarios=_MARVELLS, metric="test_auc"),
        "b": Panel(title="spectral attack on the cut, Marvell", scenarios=_MARVELLS, metric=LEAK),
        "c": Panel(title="test AUC, label DP", scenarios=_LABEL_DPS, metric="test_auc"),
        "d": Panel(title="spectral attack on the cut, label DP", scenarios=_LABEL_DPS, metric=LEAK),
    },
    "4": {
        "a": Panel(
            title="spectral attack by layer, weight 0.003",
            scenarios=(dcor(0.003),),
            metric="layers",
            stated={LEAK: 0.5, "test_auc": 0.78},
        ),
        "b": Panel(
            title="spectral attack by layer, weight 0.005",
            scenarios=(dcor(0.005),),
            metric="layers",
            stated={LEAK: 0.5, "test_auc": 0.78},
        ),
        "c": Panel(
            title="spectral attack by layer, Marvell and weight 0.002", scenarios=(dcor(0.002, also=_MARVELL_8),), metric="layers"
        ),
        "d": Panel(
            title="spectral attack by layer, Marvell and weight 0.005", scenarios=(dcor(0.005, also=_MARVELL_8),), metric="layers"
        ),
    },
    "5": {
        "a": Panel(title="spectral attack on the cut by weight", scenarios=tuple(map(dcor, _WEIGHTS)), metric=LEAK),
        "b": Panel(title="test AUC by weight", scenarios=tuple(map(dcor, _WEIGHTS)), metric="test_auc"),
        "c": Panel(
            title="spectral attack on the cut by weight, with Marvell",
            scenarios=(_MARVELL_8, dcor(0.002, also=_MARVELL_8), dcor(0.005, also=_MARVELL_8)),
            metric=LEAK,
        ),
        "d": Panel(
            title="test AUC by weight, with Marvell",
            scenarios=(_MARVELL_8, dcor(0.002, also=_MARVELL_8), dcor(0.005, also=_MARVELL_8)),
            metric="test_auc",
        ),
    },
    "6": {
        "a": Panel(title="norm attack, Marvell", scenarios=_MARVELLS, metric="norm"),
        "b": Panel(title="spectral attack on gradients, Marvell", scenarios=_MARVELLS, metric="spectral-gradient"),
        "c": Panel(title="norm attack, label DP", scenarios=_LABEL_DPS, metric="norm"),
        "d": Panel(title="spectral attack on gradients, label DP", scenarios=_LABEL_DPS, metric="spectral-gradient"),
    },
    "7": {
        letter: Panel(title=f"spectral attack by layer, {title}", scenarios=(scenario,), metric="layers")
        for letter, title, scenario in (
            ("a", "no defence", "none"),
            ("b", "weight 0.002", dcor(0.002)),
            ("c", "weight 0.003", dcor(0.003)),
            ("d", "weight 0.005", dcor(0.005)),
            ("e", "Marvell s = 8", _MARVELL_8),
            ("f", "Marvell s = 8 and weight 0.002", dcor(0.002, also=_MARVELL_8)),
            ("g", "label DP ε = 2", _LABEL_DP_2),
            ("h", "label DP ε = 2 and weight 0.002", dcor(0.002, also=_LABEL_DP_2)),
        )
    },
}
