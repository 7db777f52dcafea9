"""Declare which keys of a contract may be tuned within which bounds, and which of them a party allows.

A search tries one contract after the other, each with its own values of these keys. Defences and releases are not among them: how
much may leak is a decision, and must not be chosen by validation loss.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tallystick.reading import Count, Model, Problems, Text, did_you_mean, shown

TUNABLE: Mapping[str, Literal["whole", "number", "choice"]] = {
    "model.cut_after": "whole",
    "model.cut_width": "whole",
    "model.embedding_scale": "number",
    "model.embedding_width": "whole",
    "model.ensemble": "whole",
    "model.hidden": "choice",
    "model.normalization": "choice",
    "model.numeric": "choice",
    "model.wide": "choice",
    "training.batch_size": "whole",
    "training.clip": "number",
    "training.ema": "number",
    "training.epochs": "whole",
    "training.learning_rate": "number",
    "training.optimizer": "choice",
    "training.schedule": "choice",
    "training.warm_up": "number",
    "training.weight_decay": "number",
}
"""For each key of the contract, the kind of its bounds: whole numbers, any numbers, or none."""
ONLY_TOGETHER = ("model.cut_after", "model.cut_width")
"""Keys that make no difference to a network of one's own columns alone."""

Bound = Annotated[float, Field(strict=True, ge=-1e9, le=1e9)]


class TunedKey(Model):
    """Values of a key: some fixed ones, or a number within bounds."""

    values: tuple[Any, ...] = Field(default=(), max_length=100, description="what it may be set to, such as [64, 128, 256]")
    low: Bound | None = Field(default=None, description="or the smallest number that it may be set to")
    high: Bound | None = Field(default=None, description="and the largest")
    log: bool = Field(
        default=False, strict=True, description="whether numbers are tried evenly on a logarithmic scale (low above 0)"
    )

    @model_validator(mode="after")
    def _values_or_bounds(self) -> "TunedKey":
        bounds = (self.low, self.high)
        if self.values:
            Problems.raise_any(["values: does not work with low, high and log"] if bounds != (None, None) or self.log else [])
            return self
        if self.low is None or self.high is None:
            Problems.raise_any(["is without bounds; give values: [...], or low and high"])
        elif not self.low < self.high:
            Problems.raise_any([f"low = {self.low:g}: must be below high = {self.high:g}"])
        elif self.log and self.low <= 0:
            Problems.raise_any([f"low = {self.low:g}: must be above 0 with log: true"])
        return self

    def ends(self, key: str) -> tuple[Any, ...]:
        """Return all values, or the smallest and the largest."""
        if self.values:
            return self.values
        return tuple(int(end) if TUNABLE[key] == "whole" else end for end in (self.low, self.high) if end is not None)

    def admits(self, key: str, value: Any) -> bool:
        """Tell whether a key may be set to this value."""
        if self.values:
            plain = [list(each) if isinstance(each, tuple) else each for each in self.values]
            return any(type(value) is type(one) and value == one for one in plain)
        is_number = type(value) is int or (type(value) is float and TUNABLE[key] == "number")
        return is_number and self.low is not None and self.high is not None and self.low <= value <= self.high

    def problems(self, key: str) -> list[str]:
        """List the problems of a key's bounds."""
        kind = TUNABLE[key]
        if self.values:
            return []
        if kind == "choice":
            return [f"{key}: has no numbers in between; give values: [...]"]
        if kind == "whole" and any(bound != int(bound) for bound in (self.low, self.high) if bound is not None):
            return [f"{key}: low and high must be whole numbers"]
        return []


class TuningConfig(Model):
    """Keys that `tallystick tune` may try."""

    trials: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=20,
        description="most trainings, that of the contract as it is among them; each discloses what a training does",
    )
    keys: dict[Text, TunedKey] = Field(
        default_factory=dict, description="keys that may be tuned, such as training.learning_rate, and within which bounds"
    )


class TuningPermission(Model):
    """Keys that a party lets `tallystick tune` try. Each trial is a training with its part of the network."""

    allow: tuple[Text, ...] = Field(default=(), description="keys of the contract that may be tuned; none if left out")
    trials: Count | None = Field(default=None, description="most trials that this party takes part in; null is the contract's")
    at_once: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=1,
        description="with --alone: trials that may run at the same time, each chosen without the others' results; the chosen "
        "values depend on this number, and not on compute, which runs them",
    )

    @model_validator(mode="after")
    def _known(self) -> "TuningPermission":
        Problems.raise_any([unknown_key("allow", key) for key in self.allow if key not in TUNABLE])
        return self


def unknown_key(where: str, key: str) -> str:
    """Say that a key cannot be tuned."""
    return f"{where}: {shown(key)} cannot be tuned; {did_you_mean(key, TUNABLE)}"
