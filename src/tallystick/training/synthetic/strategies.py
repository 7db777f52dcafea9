"""Strategies by name: a fill, and where calibration applies (``-tr``: in training, ``-te``: at prediction, ``-fit``: fitted).

Shapes: B rows of a batch, K draws per row, U rows of the union.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tallystick.errors import ConfigError
from tallystick.training.calibration import When
from tallystick.training.synthetic.features import FEATURE_FILLS, FeatureFill
from tallystick.training.synthetic.labels import LABEL_FILLS, LabelFill

Redraw = Literal["once", "step"]

LABEL_STRATEGIES: Mapping[str, tuple[str, When]] = {
    **{name: (name, "never") for name in LABEL_FILLS},
    "majority-tr": ("majority", "training"),
    "majority-te": ("majority", "prediction"),
    "majority-fit": ("majority", "fitted"),
}
FEATURE_STRATEGIES: Mapping[str, tuple[str, When]] = {
    **{name: (name, "never") for name in FEATURE_FILLS},
    "sampling-tr": ("sampling", "training"),
    "sampling-te": ("sampling", "prediction"),
    "sampling-fit": ("sampling", "fitted"),
}


def label_strategy(name: str) -> tuple[LabelFill, When]:
    """Look up a strategy for absent labels; raises ConfigError for an unknown name."""
    fill, when = _look_up(name, LABEL_STRATEGIES, "labels")
    return LABEL_FILLS[fill](), when


def feature_strategy(name: str) -> tuple[FeatureFill, When]:
    """Look up a strategy for absent features; raises ConfigError for an unknown name."""
    fill, when = _look_up(name, FEATURE_STRATEGIES, "features")
    return FEATURE_FILLS[fill](), when


def _look_up(name: str, table: Mapping[str, tuple[str, When]], what: str) -> tuple[str, When]:
    if name not in table:
        raise ConfigError(f"synthetic {what}: unknown strategy {name!r}; expected one of {', '.join(table)}")
    return table[name]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Uniform numbers per row of the union, from which fills choose labels and donors.

    With ``redraw="once"`` a row keeps its numbers for the whole run, so that nothing about it changes between epochs that
    would not change for a real row; with ``"step"`` it gets new ones each time (the paper's choice). No formal guarantee:
    which of the two leaks less depends on the attack (docs/union.md).
    """

    fixed_UK: Tensor | None
    k: int
    generator: torch.Generator

    @classmethod
    def of(cls, *, rows: int, k: int, redraw: Redraw, generator: torch.Generator) -> "Draws":
        """Prepare draws for a union of ``rows`` rows with ``k`` numbers each."""
        fixed_UK = torch.rand(rows, k, generator=generator, device=generator.device) if redraw == "once" else None
        return cls(fixed_UK=fixed_UK, k=k, generator=generator)

    def at(self, rows_B: Tensor) -> Tensor:
        """Give the numbers of a batch's rows, B x K."""
        if self.fixed_UK is not None:
            return self.fixed_UK[rows_B]
        return torch.rand(rows_B.shape[0], self.k, generator=self.generator, device=self.generator.device)
