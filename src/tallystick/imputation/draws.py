"""Draw uniform numbers per row, from which imputers choose. Shapes: B rows of a batch, K draws per row, U rows of the union."""

from dataclasses import dataclass
from typing import Literal

from tallystick.lazy_torch import Generator, Tensor, torch

Redraw = Literal["once", "step"]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Give uniform numbers per row of the union, from which imputers choose labels and donors.

    With ``redraw="once"`` a row keeps its numbers for the whole run, so that nothing about it changes between epochs that would
    not change for a real row. With ``"step"`` it gets new ones each time (the paper's choice). No formal guarantee: which of the
    two leaks less depends on the attack (docs/results/unions.md).
    """

    fixed_UK: Tensor | None
    k: int
    generator: Generator

    @classmethod
    def of(cls, *, rows: int, k: int, redraw: Redraw, generator: Generator) -> "Draws":
        """Prepare draws for a union of ``rows`` rows with ``k`` numbers each."""
        fixed_UK = torch.rand(rows, k, generator=generator, device=generator.device) if redraw == "once" else None
        return cls(fixed_UK=fixed_UK, k=k, generator=generator)

    def at(self, rows_B: Tensor) -> Tensor:
        """Return the numbers of a batch's rows, B x K."""
        if self.fixed_UK is not None:
            return self.fixed_UK[rows_B]
        return torch.rand(rows_B.shape[0], self.k, generator=self.generator, device=self.generator.device)
