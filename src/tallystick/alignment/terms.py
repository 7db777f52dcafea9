"""Declare the contract's terms of linking rows by similar keys (FedSim): dimensions, what the helper sees, and noise."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tallystick.privacy.exact import LEAST_DELTA, MOST_EPSILON
from tallystick.reading import Model, Positive, Problems, Share, Step, Text, shown

Sees = Literal["ranks", "filters", "clear"]
KeyNoise = Literal["none", "planar-laplace", "gaussian"]

MAX_PIVOTS = 1 << 26
"""Limit of pivots, one for each bit of a number's filter: they are drawn and sorted, 8 bytes each."""
Tau = Annotated[float, Field(strict=True, gt=0, le=1)]
Coordinate = Annotated[float, Field(strict=True, ge=-1e12, le=1e12)]
Small = Annotated[int, Field(strict=True, ge=1, le=10_000)]


class DimensionConfig(Model):
    """One dimension of the keys."""

    name: Text = Field(description="name in this contract; each party file maps it to its own column (keys)")
    kind: Literal["number", "text"] = Field(default="number", description="compared as a number or as text")
    unit: Text | None = Field(
        default=None, description="unit of a number, such as degree or euro; each party file must state the same (units)"
    )
    scale: Positive = Field(default=1.0, description="number of units that count as 1 in a distance (numbers)")
    weight: Positive = Field(default=1.0, description="weight of this dimension in the distance")
    low: Coordinate | None = Field(default=None, description="least value that any party has (numbers, unless clear)")
    high: Coordinate | None = Field(default=None, description="greatest value that any party has (numbers, unless clear)")
    metres: Positive | None = Field(
        default=None, description="metres in one unit, if the key is a place; the report then gives located places in metres"
    )
    normalise: tuple[Step, ...] = Field(default=(), description="steps applied to text, as for alignment.keys")

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the least and greatest value of a number.

        They are infinite if the contract gives none, which it may if keys are in the clear.
        """
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high


class SimilarityNoiseConfig(Model):
    """Noise on similarities, and on keys."""

    tau: Tau | None = Field(
        default=None,
        description="the helper adds noise to similarities so that FedSim's greedy attacker hits a distance exactly with at most "
        "this probability; no formal guarantee; null and 1 add none",
    )
    resolution: Positive = Field(
        default=1.0, description="a guess within half of this hits a distance; in bits, or in the distance's own unit"
    )
    keys: KeyNoise = Field(
        default="none",
        description="noise that every party adds to its keys before it sends anything: planar-laplace (places), gaussian",
    )
    epsilon: Annotated[float, Field(strict=True, ge=1e-6, le=MOST_EPSILON)] = Field(
        default=1.0, description="budget of the noise on keys, for two keys at most radius apart, 1e-6 to 100"
    )
    delta: Share = Field(default=1e-6, description="chance that the guarantee does not hold (gaussian)")
    radius: Positive = Field(default=1.0, description="distance, after scale, within which the budget protects keys")


class SimilarityConfig(Model):
    """Linking of rows to the most similar rows of each feature party (alignment.method = similarity)."""

    dimensions: tuple[DimensionConfig, ...] = Field(
        min_length=1, max_length=16, description="dimensions of the keys, in their order"
    )
    neighbors: Small = Field(description="K: rows of a feature party that each row is linked to; no feature party may have fewer")
    keep: Small | None = Field(
        default=None, description="number of these to keep, with the highest noisy similarity; null keeps all"
    )
    least_similarity: Annotated[float, Field(strict=True, gt=0, le=1)] | None = Field(
        default=None,
        description="links with a lower similarity are left out: 1 means equal; 0 means nothing in common, for numbers from "
        "twice the window on; texts are compared by Dice's coefficient of their filters, or Levenshtein's distance; several "
        "dimensions by their weighted mean; a row without a link is scored by own columns; null links every row to its nearest",
    )
    helper_sees: Sees = Field(
        default="ranks",
        description="ranks of numbers among secret pivots and filters of text; filters of both; or keys in the clear",
    )
    window: Positive = Field(default=0.01, description="t: beyond twice this, after scale, all numbers are equally dissimilar")
    deviation: Annotated[float, Field(strict=True, ge=1e-3, lt=1)] = Field(
        default=0.03, description="epsilon of FEDERAL: how far a filter's count of ones may fall short"
    )
    failure: Annotated[float, Field(strict=True, ge=1e-9, lt=1)] = Field(
        default=0.03, description="delta of FEDERAL: how likely it may be that it falls short by more"
    )
    gram: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(default=2, description="characters of a text's q-grams")
    hashes: Annotated[int, Field(strict=True, ge=1, le=256)] = Field(default=20, description="bits that a q-gram sets")
    text_bits: Annotated[int, Field(strict=True, ge=64, le=1 << 20, multiple_of=8)] = Field(
        default=4096, description="bits of a text's filter, a multiple of 8"
    )
    block: Annotated[int, Field(strict=True, ge=0, le=100)] = Field(
        default=0, description="compare rows only if this many first characters of their first text agree; 0 compares all"
    )
    noise: SimilarityNoiseConfig = Field(default_factory=SimilarityNoiseConfig, description="noise on similarities, and on keys")

    @model_validator(mode="after")
    def _cross_checks(self) -> "SimilarityConfig":
        noise, problems = self.noise, []
        if noise.keys != "none" and self.texts:
            problems.append(f"noise.keys = {noise.keys}: is for numbers, and {self.texts[0].name} is text; use tau")
        if noise.keys == "planar-laplace" and len(self.numbers) != 2:
            problems.append(
                f"noise.keys = planar-laplace: is for places of 2 dimensions, found {len(self.numbers)}; use gaussian"
            )
        if noise.keys == "gaussian" and noise.delta == 0:
            problems.append("noise.delta = 0: must be above 0 for noise.keys = gaussian")
        elif noise.keys == "gaussian" and noise.delta < LEAST_DELTA:
            problems.append(
                f"noise.delta = {noise.delta:g}: must be at least {LEAST_DELTA:g}, so that the error of sampling (2^-100) is "
                "negligible"
            )
        # Compare values, because a run folder's contract has all its defaults written out.
        fields = SimilarityNoiseConfig.model_fields
        settings = {name for name in ("epsilon", "delta", "radius") if getattr(noise, name) != fields[name].default}
        if noise.keys == "none" and settings:
            problems.append(f"noise.{min(settings)}: only works with noise.keys; leave it out, or say which noise keys get")
        if self.helper_sees == "clear" and noise.tau not in (None, 1) and "resolution" not in noise.model_fields_set:
            problems.append(
                "noise.resolution: is missing; without filters, noise.tau needs to know what counts as hitting a distance"
            )
        Problems.raise_any(_dimension_problems(self) + problems)
        return self

    @property
    def numbers(self) -> tuple[DimensionConfig, ...]:
        """Return the dimensions that are numbers."""
        return tuple(dimension for dimension in self.dimensions if dimension.kind == "number")

    @property
    def texts(self) -> tuple[DimensionConfig, ...]:
        """Return the dimensions that are text."""
        return tuple(dimension for dimension in self.dimensions if dimension.kind == "text")

    @property
    def links(self) -> int:
        """Return the greatest number of links that a row keeps."""
        return self.neighbors if self.keep is None else self.keep

    def pivots(self, dimension: DimensionConfig) -> int:
        """Count the pivots of a number: FEDERAL's 2 range ln(1/delta) / (t epsilon^2), a multiple of 8."""
        low, high = dimension.bounds
        extent = (high - low) / dimension.scale
        return 8 * math.ceil(extent * math.log(1 / self.failure) / (self.window * self.deviation**2) / 4)


def _dimension_problems(terms: SimilarityConfig) -> list[str]:
    problems = []
    names = [dimension.name for dimension in terms.dimensions]
    if len(set(names)) != len(names):
        problems.append(f"dimensions = {shown(names)}: each name must be given once")
    for index, dimension in enumerate(terms.dimensions):
        where = f"dimensions.{index} ({dimension.name})"
        if dimension.kind == "text":
            number_keys = [key for key in ("unit", "low", "high", "metres") if getattr(dimension, key) is not None]
            number_keys += ["scale"] if dimension.scale != 1 else []
            problems += [f"{where}: {key} only works with kind = number; leave it out" for key in number_keys]
            continue
        if dimension.normalise:
            problems.append(f"{where}: normalise only works with kind = text; leave it out")
        if terms.helper_sees == "clear":
            continue
        if dimension.low is None or dimension.high is None or not dimension.low < dimension.high:
            problems.append(
                f"{where}: low and high must be given, low below high: with helper_sees = {terms.helper_sees} filters cover a "
                f"range"
            )
        elif (pivots := terms.pivots(dimension)) > MAX_PIVOTS:
            problems.append(
                f"{where}: a filter of {pivots:,} bits is more than {MAX_PIVOTS:,}; use a larger window, deviation or failure"
            )
    if terms.keep is not None and terms.keep > terms.neighbors:
        problems.append(f"keep = {terms.keep}: must be at most neighbors = {terms.neighbors}")
    if terms.block and not terms.texts:
        problems.append(f"block = {terms.block}: only works with text; leave it out")
    return problems
