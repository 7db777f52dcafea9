"""List every setting of the feature-leakage benchmark: cut widths, depths of the cut, and defences."""

from tallystick.defenses.defense import Defense
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.quantized_embeddings import QuantizedEmbeddings
from tallystick_experiments.defenses.feature_distance_correlation import FeatureDistanceCorrelation
from tallystick_experiments.defenses.reconstruction_penalty import ReconstructionPenalty
from tallystick_experiments.feature_leakage.runs import ALONE, WIDTH, CutSetting

DEFAULT = f"width {WIDTH}"
WIDTHS = (WIDTH, 32, 8, 4, 2, 1)
DELTA, CLIP = 1e-6, 1.0


def settings() -> tuple[CutSetting, ...]:
    """List every row of the table."""
    gaussian = [GaussianEmbeddings(epsilon=epsilon, delta=DELTA, clip=CLIP) for epsilon in (100.0, 30.0, 10.0)]
    rounded = QuantizedEmbeddings(levels=3)
    correlations = {weight: FeatureDistanceCorrelation(weight=weight) for weight in (0.03, 0.1, 0.3, 1.0)}
    rebuilt = {weight: ReconstructionPenalty(weight=weight) for weight in (0.03, 0.1, 0.3)}
    one_layer: list[tuple[int, Defense]] = [
        *((WIDTH, each) for each in gaussian),
        *((width, gaussian[0]) for width in (8, 1)),
        *((width, rounded) for width in (WIDTH, 8, 4)),
        *((WIDTH, correlations[weight]) for weight in (0.1, 0.3, 1.0)),
        (8, correlations[0.03]),
        *((WIDTH, rebuilt[weight]) for weight in (0.1, 0.3)),
        (8, rebuilt[0.03]),
    ]
    two_layers: list[tuple[int, Defense]] = [(WIDTH, gaussian[0]), (8, rounded), (4, rounded), (WIDTH, correlations[1.0])]
    return (
        CutSetting(name=ALONE, partner=False),
        *(_setting(width) for width in WIDTHS),
        *(_setting(width, depth=2) for width in (WIDTH, 4, 2, 1)),
        *(_setting(width, defense) for width, defense in one_layer),
        *(_setting(width, defense, depth=2) for width, defense in two_layers),
    )


def _setting(width: int, defense: Defense | None = None, *, depth: int = 1) -> CutSetting:
    layers = "two layers, " if depth == 2 else ""
    defended = f", {defense.method} {getattr(defense, defense.strength):g}" if defense is not None else ""
    return CutSetting(
        name=f"{layers}width {width}{defended}", cut_width=width, depth=depth, defense=(defense,) if defense is not None else ()
    )
