"""Round cut embeddings to a few levels. Shapes: B batch, D cut width."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tallystick.defenses.checks import check_embeddings, check_positive
from tallystick.defenses.defense import Defense, Guarantee, Stage, Strength
from tallystick.defenses.noise import Randomness, RowNoise
from tallystick.defenses.straight_through import passing
from tallystick.errors import ConfigError
from tallystick.lazy_torch import Tensor

MOST_LEVELS = 65_536


@dataclass(frozen=True, kw_only=True)
class QuantizedEmbeddings(Defense):
    """Cuts each coordinate to [-reach, reach] and rounds it to one of a few evenly spaced levels before it is sent.

    A row's embedding then holds at most D log2(levels) bits, for any training and any reader. With a narrow cut this is a hard
    bound on what one look can reveal. The gradient passes through the rounding as if it were not there, but not beyond the reach
    (Bengio et al. 2013, the straight-through estimator). A unit that is rounded to one level in all rows gives the top model
    nothing, and a ReLU that closes then would stay closed, so the built-in bottom's last layer also takes gradients that would
    open it again (``ReopeningReLU``). A bottom of one's own must do this itself.

    Threat model: an honest-but-curious label party. Guarantee: no formal guarantee of privacy; the bound in bits holds for one
    look, and every epoch is another. Not protected: what those bits reveal.

    Args:
        levels: at least 2; the built-in bottom's output is never below 0, so with an odd number it uses the middle and above.
        reach: the largest size of a coordinate.

    Raises ConfigError for values out of range, DataError for embeddings that are not finite.
    """

    method: ClassVar[str] = "quantized-embeddings"
    stage: ClassVar[Stage] = "embeddings"
    strength: ClassVar[str] = "levels"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"levels": 5})

    levels: Annotated[int, Field(strict=True, ge=2, le=MOST_LEVELS, description="values that a coordinate can take")]
    reach: Annotated[Strength, Field(description="largest size of a coordinate")] = 1.0

    def __post_init__(self) -> None:
        if not 2 <= self.levels <= MOST_LEVELS:
            raise ConfigError(f"quantized-embeddings: levels is {self.levels!r}; it must lie between 2 and {MOST_LEVELS}")
        check_positive("quantized-embeddings: reach", self.reach)

    def __call__(self, cut_BD: Tensor, *, generator: Randomness | RowNoise) -> Tensor:  # noqa: ARG002
        """Return the rounded embeddings. Nothing is drawn."""
        check_embeddings(cut_BD)
        step = 2 * self.reach / (self.levels - 1)
        within_BD = cut_BD.clamp(-self.reach, self.reach)
        rounded_BD = ((within_BD.detach() + self.reach) / step).round() * step - self.reach
        return passing(rounded_BD, within_BD)

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee, and what holds."""
        return Guarantee(
            text=f"no formal guarantee: each coordinate of a row's embedding has {self.levels} levels, at most "
            f"{log2(self.levels):.3g} bits a look"
        )
