"""The contract's defences: what may be asked for, and for which target. ``defenses/build.py`` makes them."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from tallystick.config.reading import Model, Problems

Open = Annotated[float, Field(strict=True, gt=0, lt=1)]
Epsilon = Annotated[float, Field(strict=True, ge=1e-6, le=100)]
Strength = Annotated[float, Field(strict=True, ge=1e-6, le=1e12)]

METHOD = "which defence: marvell, isotropic, mixpro, gaussian, label-dp, label-dp-prior, gaussian-labels or distance-correlation"
BINARY = ("binary",)
CLASSES = ("binary", "multiclass")
ANY = ("binary", "multiclass", "regression")


class Marvell(Model):
    """Optimal Gaussian noise on the cut gradients of two classes."""

    method: Literal["marvell"] = Field(description=METHOD)
    power: Strength | None = Field(default=None, description="noise power in units of the squared distance of the class means")
    max_sum_kl: float | None = Field(
        default=None,
        strict=True,
        ge=1e-4,
        le=4,
        description="instead of power: raise it batch by batch until the sum of both KL divergences is at most this",
    )

    @model_validator(mode="after")
    def _one_strength(self) -> "Marvell":
        if (self.power is None) == (self.max_sum_kl is None):
            Problems.raise_any(["power, max_sum_kl: give exactly one of the two (power: 4, for example)"])
        return self


class Isotropic(Model):
    """Gaussian noise of one size on all cut gradients."""

    method: Literal["isotropic"] = Field(description=METHOD)
    power: Strength = Field(description="noise power in units of the batch's largest squared gradient norm")


class MixPro(Model):
    """Cut gradients mixed in pairs and turned towards the batch's mean gradient (FedAds)."""

    method: Literal["mixpro"] = Field(description=METHOD)
    goal: Open = Field(default=0.75**0.5, description="least cosine to the batch's mean gradient, above 0 and below 1")
    alpha: float = Field(default=0.6, strict=True, ge=1e-3, le=1e3, description="mixing weights are Beta(alpha, alpha)")


class LabelDP(Model):
    """Randomised response on the labels, once."""

    method: Literal["label-dp"] = Field(description=METHOD)
    epsilon: Epsilon = Field(description="label-DP budget of the run, 1e-6 to 100")


class LabelDPPrior(Model):
    """Randomised response over the likeliest classes, once."""

    method: Literal["label-dp-prior"] = Field(description=METHOD)
    epsilon: Epsilon = Field(description="label-DP budget of the run, 1e-6 to 100")


class GaussianLabels(Model):
    """Gaussian noise on the labels, once."""

    method: Literal["gaussian-labels"] = Field(description=METHOD)
    epsilon: Epsilon = Field(description="label-DP budget of the run, 1e-6 to 100")
    delta: Open = Field(description="chance that the budget does not hold; well below one over the number of rows")


class Gaussian(Model):
    """Clipping and Gaussian noise on every cut gradient."""

    method: Literal["gaussian"] = Field(description=METHOD)
    epsilon: Epsilon = Field(description="label-DP budget of one step's cut gradients, 1e-6 to 100")
    delta: Open = Field(description="chance that the budget does not hold; well below one over the number of rows")
    clip: Strength = Field(description="largest norm of one row's gradient of its own loss (batch size times its cut gradient)")


class DistanceCorrelation(Model):
    """A loss on what the cut embeddings tell of the labels."""

    method: Literal["distance-correlation"] = Field(description=METHOD)
    weight: Strength = Field(description="weight of the penalty beside the mean loss")
    form: Literal["log", "plain"] = Field(
        default="plain", description="the distance correlation itself, or its logarithm as in the paper"
    )
    warm_up: float = Field(default=0.0, strict=True, ge=0, le=65_535, description="epochs over which the weight rises from 0")


DefenseEntry: TypeAlias = Annotated[
    Marvell | Isotropic | MixPro | LabelDP | LabelDPPrior | GaussianLabels | Gaussian | DistanceCorrelation,
    Field(discriminator="method", examples=[{"method": "marvell", "power": 4}]),
]

LABEL_KINDS = (LabelDP, LabelDPPrior, GaussianLabels)
TARGETS: dict[str, tuple[str, ...]] = {
    "marvell": BINARY,
    "isotropic": ANY,
    "mixpro": ANY,
    "label-dp": CLASSES,
    "label-dp-prior": ("multiclass",),
    "gaussian-labels": BINARY,
    "gaussian": ANY,
    "distance-correlation": CLASSES,
}
"""Target types that a method allows."""


def defense_problems(entries: tuple[DefenseEntry, ...], target_type: str, alignment: str) -> list[str]:
    """List what is wrong with a contract's defences together, and beside its target."""
    problems = []
    for number, entry in enumerate(entries):
        allowed = TARGETS[entry.method]
        if target_type not in allowed:
            problems.append(
                f"defense.{number}.method = {entry.method}: is for {' or '.join(allowed)} targets; target.type = {target_type}"
                + _instead(entry, target_type)
            )
        if isinstance(entry, LABEL_KINDS) and alignment != "intersection":
            problems.append(
                f"defense.{number}.method = {entry.method}: labels are replaced once, but a union fills absent ones anew; "
                "align by intersection"
            )
    kinds: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        kinds.setdefault("labels" if isinstance(entry, LABEL_KINDS) else entry.method, []).append(number)
    for kind, numbers in kinds.items():
        if len(numbers) > 1:
            named = ", ".join(f"defense.{number}" for number in numbers)
            what = "replace the labels (label-dp, label-dp-prior, gaussian-labels)" if kind == "labels" else f"are {kind}"
            problems.append(f"{named}: {len(numbers)} entries {what}; give one")
    soft = next((number for number, entry in enumerate(entries) if isinstance(entry, GaussianLabels)), None)
    problems += [
        f"defense.{number}.method = {entry.method}: needs labels of two classes, but defense.{soft} makes them numbers between; "
        "use label-dp instead of gaussian-labels"
        for number, entry in enumerate(entries)
        if soft is not None and isinstance(entry, Marvell | DistanceCorrelation)
    ]
    return problems


def _instead(entry: Any, target_type: str) -> str:
    if target_type == "binary" and isinstance(entry, LabelDPPrior):
        return "; use label-dp: for two classes a prior changes nothing"
    if target_type == "multiclass" and isinstance(entry, Marvell):
        return "; use isotropic or label-dp"
    return ""
