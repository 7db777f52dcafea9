"""Define every scenario of the label-leakage benchmark by name, and say which parts of the benchmark need which.

A name describes a scenario: defences with their strengths, then other differences, such as "marvell 8 + dcor 0.002, normalised".
A scenario with distance correlation comes in two networks: as in the paper, and with batch normalisation of the label party's cut
embeddings (", normalised"), because the weights that the paper recommends work only there.
"""

import re
from collections.abc import Callable, Mapping

from tallystick.defenses.defense import Defense
from tallystick.defenses.distance_correlation import DistanceCorrelation
from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.isotropic import Isotropic
from tallystick.defenses.label_dp import LabelDP
from tallystick.defenses.marvell import Marvell
from tallystick.defenses.mixpro import MixPro
from tallystick_experiments.label_leakage import paper
from tallystick_experiments.label_leakage.runs import PaperNetwork, Scenario
from tallystick_experiments.observed_training import TrainingPlan

NORMALISED, WARM_UP, BY_ROWS = ", normalised", ", warm-up", ", by rows"
LARGE_BATCH = 8192
PLAIN, LOG, LOG_WARM, LOG_NORMALISED = "plain dcor {}", "dcor {}", "dcor {}" + WARM_UP, "dcor {}" + NORMALISED
FRONTIERS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "": {
        PLAIN: (0, 0.03, 0.1, 0.3, 1, 3),
        LOG: (0, 0.002, 0.005, 0.01),
        LOG_WARM: (0, 0.01, 0.05),
        LOG_NORMALISED: (0, 0.0005, 0.002, 0.005, 0.02),
    },
    f", batch {LARGE_BATCH}": {PLAIN: (0, 0.1, 0.3, 1, 3), LOG: (0, 0.002, 0.01), LOG_NORMALISED: (0, 0.002, 0.005, 0.02)},
}
"""By batch ("" is the sweep's) and form of distance correlation: the weights, 0 first."""
LAYERS = 7  # hidden layers of both parties
DEPTHS = (1, 2, 3, 4, 5, 6)


def point(form: str, weight: float, at: str = "") -> str:
    """Return the name of a frontier's scenario."""
    return (form.format(f"{weight:g}") if weight else "none" + NORMALISED * (form == LOG_NORMALISED)) + at


def depth(below: int) -> str:
    """Return the name of the scenario with a cut after this many layers. The paper's cut is after the fifth."""
    return "none" if below == PaperNetwork().below else f"cut after {below}"


OTHERS = ("marvell 8 + plain dcor 1", "mixpro", "isotropic 1", "gaussian 8")
"""A defence of both views together, and defences that the paper does not try."""
PRINTED: Mapping[str, tuple[str, ...]] = {
    "claims": ("none", *paper.MARVELLS),
    "choices": ("none", "plain dcor 0.3", "plain dcor 1", "dcor 0.002, normalised", "dcor 0.02, normalised", *OTHERS),
    **{f"table-{number}": tuple(row.scenario for row in table.rows) for number, table in paper.TABLES.items()},
    **{
        f"figure-{number}": tuple(name for panel in panels.values() for name in panel.scenarios)
        for number, panels in paper.FIGURES.items()
    },
    **{
        "frontier-large" if at else "frontier": tuple(point(form, each, at) for form, of in forms.items() for each in of)
        for at, forms in FRONTIERS.items()
    },
    "depth": tuple(map(depth, DEPTHS)),
    "bound": tuple(name + BY_ROWS for name in ("none", *paper.MARVELLS, *paper.LABEL_DPS)),
}
ATTACKED = {name for part in ("claims", "choices", "frontier", "frontier-large", "depth") for name in PRINTED[part]}
"""Scenarios that every attack is run on."""


def parts(*, papers: bool = False) -> dict[str, tuple[str, ...]]:
    """Return the parts for --only, and the scenarios that each needs. Tables and figures are made in both networks.

    With ``papers``, only the paper's network is used.
    """
    return {
        part: tuple(
            dict.fromkeys(each for name in names for each in _networks(part, name) if not (papers and each.endswith(NORMALISED)))
        )
        for part, names in PRINTED.items()
    }


def _networks(part: str, name: str) -> tuple[str, ...]:
    printed = part.startswith(("table", "figure")) and ("dcor" in name or name == "none")
    return (name, name + NORMALISED) if printed or name + NORMALISED in PRINTED[part] else (name,)


_MADE: Mapping[str, Callable[[float], Defense]] = {
    "label-dp": lambda epsilon: LabelDP(epsilon=epsilon),
    "plain dcor": lambda weight: DistanceCorrelation(weight=weight, form="plain"),
    "dcor": lambda weight: DistanceCorrelation(weight=weight, form="log"),
    "dcor" + WARM_UP: lambda weight: DistanceCorrelation(weight=weight, form="log", warm_up=2.0),  # epochs
    "marvell": lambda power: Marvell(power=power),
    "isotropic": lambda power: Isotropic(power=power),
    "gaussian": lambda epsilon: GaussianGradients(epsilon=epsilon, delta=1e-6, clip=0.25),
    "mixpro": lambda _: MixPro(),
}


def scenarios(large: TrainingPlan) -> dict[str, Scenario]:
    """Return all scenarios. ``large`` is the plan of those that train at a batch of 8,192."""
    return {name: _scenario(name, large) for names in parts().values() for name in names}


def _scenario(name: str, large: TrainingPlan) -> Scenario:
    """Build the scenario that the name describes."""
    defended, _, options = name.partition(", ")
    strengths = dict(re.findall(r"([a-z -]*[a-z]) ?([\d.]*)", part)[0] for part in defended.split(" + "))
    below = int(strengths.pop("cut after", PaperNetwork().below))
    rate = re.search(r"(\d+)% positive", options)
    if WARM_UP in name:
        strengths = {kind + WARM_UP: strength for kind, strength in strengths.items()}
    return Scenario(
        name=name,
        defense=tuple(made(float(strengths[kind] or 0)) for kind, made in _MADE.items() if kind in strengths),
        network=PaperNetwork(
            below=below, above=0 if "1 layer above" in options else LAYERS - below, normalised="normalised" in options
        ),
        plan=large if "batch" in options else None,
        positive_rate=int(rate[1]) / 100 if rate else None,
        by_layer=not (rate or "batch" in options or name in OTHERS or BY_ROWS in name),
        every_attack=name in ATTACKED,
        by_rows=BY_ROWS in name,
    )
