"""Define a defence: five kinds, by who applies them where, and what each promises.

Shapes: N rows, B rows of a step's batch, D cut width (of all feature parties together), C classes, F numeric columns,
G categorical columns.

    label party:   labels -> [LabelDefense, once] -> loss + [PenaltyDefense] -> cut gradient -> [GradientDefense] -> wire
    feature party: columns -> bottom model -> [EmbeddingPenalty, on the backward pass] -> [EmbeddingDefense] -> wire
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import Field

from tallystick.defenses.noise import Randomness, RowNoise
from tallystick.lazy_torch import Tensor
from tallystick.privacy.events import Event

RandomBytes = Callable[[int], bytes]
"""Gives that many cryptographically random bytes."""
Teacher = Callable[[Tensor], Tensor]
"""Gives for binary labels (N,) the probability of a positive by the label party's own columns, for each of these rows."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Promise of a defence, as data: for the ledger, the report and the docs.

    Args:
        text: one sentence; begins with "no formal guarantee" where there is none.
        event: what one training run costs the labels; None where nothing is promised.
    """

    text: str
    event: Event | None = None


Stage = Literal["labels", "penalties", "gradients", "embedding penalties", "embeddings"]
FEATURE_STAGES: tuple[Stage, ...] = ("embedding penalties", "embeddings")
"""Those that a feature party applies, to hide its columns; the others hide labels."""
BINARY, CLASSES = ("binary",), ("binary", "multiclass")
ANY = (*CLASSES, "multilabel", "regression", "count", "survival", "quantile")
Fraction = Annotated[float, Field(strict=True, gt=0, lt=1)]
Epsilon = Annotated[float, Field(strict=True, ge=1e-6, le=100)]
Strength = Annotated[float, Field(strict=True, ge=1e-6, le=1e12)]


class Defense(ABC):
    """Facts that a defence states about itself, beside what it does: everybody who asks reads them here.

    Its fields that carry a pydantic ``Field`` are its keys in a contract: name, type, range and help are taken from them.
    """

    method: ClassVar[str]
    """Its name in a contract."""
    stage: ClassVar[Stage]
    """Where it applies."""
    targets: ClassVar[tuple[str, ...]] = ANY
    """Target types that it allows."""
    instead: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What to take for a target type that it does not allow."""
    needs_classes: ClassVar[bool] = False
    """Whether it needs labels that are classes, not numbers between."""
    soft_labels: ClassVar[bool] = False
    """Whether it makes labels numbers between the classes."""
    asks_teacher: ClassVar[bool] = False
    """Whether it distils labels, by what the label party's own columns tell of them."""
    own_target_only: ClassVar[bool] = False
    """Whether its guarantee holds only where a label sets no other row's target."""
    strength: ClassVar[str]
    """The key that a sweep varies."""
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Keys of a first try, those without a default: a sweep varies ``strength`` among them, a benchmark times them."""

    @classmethod
    def hides_features(cls) -> bool:
        """Tell whether a feature party applies it, to hide its columns."""
        return cls.stage in FEATURE_STAGES

    def parts(self) -> "tuple[Defense, ...]":
        """Return its parts, each with a stage of its own: itself, unless it works in several."""
        return (self,)

    def taught(self, teacher: Teacher) -> Self:  # noqa: ARG002
        """Return the same defence, which asks this teacher if it distils labels."""
        return self

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""


class LabelDefense(Protocol):
    """Replaces labels once, before anything is trained on them: all that follows is post-processing."""

    def __call__(self, labels_N: Tensor, *, classes: int, random_bytes: RandomBytes) -> Tensor:
        """Return the labels to train and to validate on, of the same shape and type."""
        ...

    def taught(self, teacher: Teacher) -> Self:
        """Return the same defence, which asks this teacher if it distils labels."""
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...


class PenaltyDefense(Protocol):
    """Adds to the loss a measure of what the cut embeddings tell of the labels."""

    def __call__(self, cut_BD: Tensor, labels_B: Tensor, *, epoch: float = math.inf) -> Tensor:
        """Return the scalar that is added to the batch's mean loss. Its gradient reaches the cut embeddings alone.

        ``epoch`` is how many epochs are over, with fractions, for a penalty that warms up.
        """
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...


class GradientDefense(Protocol):
    """Changes a batch's cut gradients before they are sent. It never gives them back unchanged without saying so."""

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:
        """Return the gradients to send, of the same shape and type."""
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...


class EmbeddingPenalty(Protocol):
    """Adds to a feature party's share of the loss a measure of what its cut embeddings tell of its own columns."""

    def __call__(self, cut_BD: Tensor, numeric_BF: Tensor, codes_BG: Tensor) -> Tensor:
        """Return the scalar. Its gradient joins the cut gradient that came back."""
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...


class EmbeddingDefense(Protocol):
    """Changes cut embeddings before they are sent: in training, for validation, in evaluation and for predictions alike."""

    def __call__(self, cut_BD: Tensor, *, generator: Randomness | RowNoise) -> Tensor:
        """Return the embeddings to send, of the same shape and type. Gradients flow back through it."""
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...
