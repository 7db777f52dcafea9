"""Declare the overlap as a number: what `tallystick overlap` may reveal, and to whom."""

from typing import Literal

from pydantic import Field, model_validator

from tallystick.alignment.overlap import OverlapNoise, OverlapTerms
from tallystick.defenses.checks import LEAST_EPSILON, MOST_EPSILON
from tallystick.reading import Count, Model, Name, Problems


class OverlapConfig(Model):
    """Size of the intersection as far as `tallystick overlap` may tell it. A contract without this section allows none."""

    told_to: Literal["both", "label", "feature"] = Field(
        default="both", description="which side learns it, by its role: both, or one; the other then learns that it was counted"
    )
    groups: Name | None = Field(
        default=None,
        description="the party whose ids are counted by group, by the column that its file names under overlap_groups; both "
        "sides learn their names and sizes; null counts all together",
    )
    least: int = Field(
        default=100,
        strict=True,
        ge=0,
        le=1_000_000_000,
        description="an exact count below this, or that leaves fewer of a set, is withheld; not with epsilon",
    )
    answers: Count = Field(
        default=1,
        description="most exact counts with the same party in a `runs` folder, over all contracts; not with epsilon",
    )
    epsilon: float | None = Field(
        default=None,
        strict=True,
        ge=LEAST_EPSILON,
        le=MOST_EPSILON,
        description="each side learns a count with discrete Laplace noise: (epsilon, delta)-DP of the ids that the other has, "
        "by group with twice the noise, charged to both ledgers; null gives exact counts",
    )
    delta: float = Field(
        default=1e-9, strict=True, gt=0, lt=0.01, description="chance that epsilon does not hold; with epsilon only"
    )

    @model_validator(mode="after")
    def _keys_together(self) -> "OverlapConfig":
        extra = [key for key in ("least", "answers") if key in self.model_fields_set]
        if self.epsilon is not None and extra:
            Problems.raise_any(
                [f"{', '.join(extra)}: limit exact counts, and with epsilon = {self.epsilon:g} there are none; leave them out"]
            )
        if self.epsilon is None and "delta" in self.model_fields_set:
            Problems.raise_any([f"delta = {self.delta:g}: only works with epsilon; give it, or leave delta out"])
        return self

    @property
    def noise(self) -> OverlapNoise | None:
        """Return the noise on counts, or None for exact ones."""
        return OverlapNoise(epsilon=self.epsilon, delta=self.delta) if self.epsilon is not None else None

    def terms(self, *, permuting: Literal["label", "feature"]) -> OverlapTerms:
        """Return the terms of the protocol, if the side of this role permutes."""
        return OverlapTerms(
            least=self.least if self.epsilon is None else 0, noise=self.noise, told=self.told_to in ("both", permuting)
        )
