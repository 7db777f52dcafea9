"""Every scenario of the label-leakage benchmark by name, and which part of the benchmark needs which.

A scenario with distance correlation comes in two networks: as the paper describes it, and with batch normalisation where the
label party takes the cut embeddings in (", normalised"): the weights that the paper recommends work there and not without.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tallystick.defenses.distance_correlation import DistanceCorrelation
from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.isotropic import Isotropic
from tallystick.defenses.label_dp import LabelDP
from tallystick.defenses.marvell import Marvell
from tallystick.defenses.mixpro import MixPro
from tallystick_experiments.experiment import TrainingPlan
from tallystick_experiments.label_leakage import paper
from tallystick_experiments.label_leakage.runs import PaperNetwork, Scenario

NORMALISED = ", normalised"
LARGE_BATCH = 8192
PLAIN, LOG, LOG_WARM, LOG_NORMALISED = "plain dcor {}", "dcor {}", "dcor {}, warm-up", "dcor {}" + NORMALISED
WARM_UP = 2.0  # epochs over which the weight rises
_WEIGHTS = {
    PLAIN: (0.03, 0.1, 0.3, 1.0, 3.0),
    LOG: (0.002, 0.005, 0.01),
    LOG_WARM: (0.01, 0.05),
    LOG_NORMALISED: (0.0005, 0.002, 0.005, 0.02),
}
LARGE_WEIGHTS = {PLAIN: (0.1, 0.3, 1.0, 3.0), LOG: (0.002, 0.01), LOG_NORMALISED: (0.002, 0.005, 0.02)}
LAYERS = 7  # hidden ones, of both parties
DEPTHS = (1, 2, 3, 4, 5, 6)


def scenarios(large: TrainingPlan) -> dict[str, Scenario]:
    """Give all of them; ``large`` is the plan of those that train at a batch of 8,192."""
    known = {each.name: each for each in (*_of_the_paper(), *_frontier(large), *_others(), *_depths())}
    attacked = {name for part in ATTACKED_PARTS for name in _parts_as_printed()[part]}
    return {name: replace(each, every_attack=name in attacked) for name, each in known.items()}


def _of_the_paper() -> Iterator[Scenario]:
    yield Scenario(name="none", by_layer=True)
    for power in paper.MARVELL_POWERS:
        yield Scenario(name=paper.marvell(power), defense=(_marvell(power),), by_layer=True)
    for epsilon in paper.LABEL_DP_EPSILONS:
        yield Scenario(name=paper.label_dp(epsilon), defense=(_label_dp(epsilon),), by_layer=True)
    for weight in paper.DCOR_WEIGHTS:
        for small in (False, True) if weight in paper.TABLE_1 else (False,):
            name, network = paper.dcor(weight, small=small), PaperNetwork(above=0) if small else PaperNetwork()
            yield from _both(Scenario(name=name, defense=(_dcor(weight),), network=network, by_layer=True))
    for weight in (0.002, 0.005):
        name = paper.dcor(weight, also=paper.marvell(8))
        yield from _both(Scenario(name=name, defense=(_dcor(weight), _marvell(8)), by_layer=True))
    name = paper.dcor(0.002, also=paper.label_dp(2))
    yield from _both(Scenario(name=name, defense=(_label_dp(2), _dcor(0.002)), by_layer=True))
    for rate in paper.POSITIVE_RATES:
        yield Scenario(name=paper.dcor(0, rate=rate), positive_rate=rate)
        yield from _both(Scenario(name=paper.dcor(0.03, rate=rate), defense=(_dcor(0.03),), positive_rate=rate))


def _both(scenario: Scenario) -> Iterator[Scenario]:
    yield scenario
    yield replace(scenario, name=scenario.name + NORMALISED, network=replace(scenario.network, normalised=True))


def _frontier(large: TrainingPlan) -> Iterator[Scenario]:
    """Distance correlation by form, weight and batch; without a batch in its name a scenario has the sweep's."""
    for at, forms in frontier_curves().items():
        for form, weights in forms.items():
            for weight in weights:
                yield Scenario(
                    name=point(form, weight, at),
                    defense=(_of_form(form, weight),) if weight else (),
                    network=PaperNetwork(normalised=form == LOG_NORMALISED),
                    plan=large if at else None,
                    by_layer=not at,
                )


def _others() -> Iterator[Scenario]:
    """Defences that the paper does not try, and one of each view's together."""
    yield Scenario(name=BOTH_VIEWS, defense=(_of_form(PLAIN, 1.0), _marvell(8)))
    yield Scenario(name="mixpro", defense=(MixPro(),))
    yield Scenario(name="isotropic 1", defense=(Isotropic(power=1.0),))
    yield Scenario(name="gaussian 8", defense=(GaussianGradients(epsilon=8.0, delta=1e-6, clip=0.25),))


def _of_form(form: str, weight: float) -> DistanceCorrelation:
    return DistanceCorrelation(
        weight=weight,
        form="plain" if form == PLAIN else "log",
        warm_up=WARM_UP if form == LOG_WARM else 0.0,
    )


def _depths() -> Iterator[Scenario]:
    for below in DEPTHS:
        yield Scenario(name=depth(below), network=PaperNetwork(below=below, above=LAYERS - below), by_layer=True)


def at_batch(size: int) -> str:
    """How a scenario's name ends if it has a batch of its own."""
    return f", batch {size}"


def depth(below: int) -> str:
    """Name of the scenario: a cut after that many layers; the paper's is after the fifth."""
    return "none" if below == PaperNetwork().below else f"cut after {below}"


def _marvell(power: float) -> Marvell:
    return Marvell(power=power)


def _label_dp(epsilon: float) -> LabelDP:
    return LabelDP(epsilon=epsilon)


def _dcor(weight: float) -> DistanceCorrelation:
    return _of_form(LOG, weight)


def frontier_curves() -> dict[str, dict[str, tuple[float, ...]]]:
    """Per batch ("" is the sweep's) and form: weights, 0 first."""
    return {
        at: {form: (0.0, *of_form) for form, of_form in weights.items()}
        for at, weights in (("", _WEIGHTS), (at_batch(LARGE_BATCH), LARGE_WEIGHTS))
    }


def point(form: str, weight: float, at: str) -> str:
    """Name of a frontier's scenario."""
    if weight:
        return form.format(f"{weight:g}") + at
    return "none" + (NORMALISED if form == LOG_NORMALISED else "") + at


BOTH_VIEWS = paper.marvell(8) + " + " + point(PLAIN, 1.0, "")
CHOICES = (
    "none",
    point(PLAIN, 0.3, ""),
    point(PLAIN, 1.0, ""),
    point(LOG_NORMALISED, 0.002, ""),
    point(LOG_NORMALISED, 0.02, ""),
    BOTH_VIEWS,
    "mixpro",
    "isotropic 1",
    "gaussian 8",
)
CLAIMS = ("none", *map(paper.marvell, paper.MARVELL_POWERS))


ATTACKED_PARTS = ("claims", "choices", "frontier", "frontier-large", "depth")  # by every attack there is


def _parts_as_printed() -> dict[str, tuple[str, ...]]:
    named: dict[str, tuple[str, ...]] = {"claims": CLAIMS, "choices": CHOICES}
    for number, table in paper.TABLES.items():
        named[f"table-{number}"] = tuple(row.scenario for row in table.rows)
    for number, panels in paper.FIGURES.items():
        named[f"figure-{number}"] = tuple(name for panel in panels.values() for name in panel.scenarios)
    for at, forms in frontier_curves().items():
        points = [point(form, weight, at) for form, weights in forms.items() for weight in weights]
        named["frontier-large" if at else "frontier"] = tuple(points)
    return named | {"depth": tuple(map(depth, DEPTHS))}


def parts() -> dict[str, tuple[str, ...]]:
    """What can be asked for with --only, and the scenarios that it needs: of tables and figures in both networks."""
    known = scenarios(TrainingPlan())
    return {
        part: tuple(dict.fromkeys(each for name in names for each in (name, name + NORMALISED) if _needed(part, each, known)))
        for part, names in _parts_as_printed().items()
    }


def _needed(part: str, name: str, known: Mapping[str, Scenario]) -> bool:
    return name in known and (part.startswith(("table", "figure")) or name in _parts_as_printed()[part])
