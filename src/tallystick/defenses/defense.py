"""Define a defence. There are five kinds, by the party that applies them and the place, and each states its promise.

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
"""Gives this many cryptographically random bytes."""
Teacher = Callable[[Tensor], Tensor]
"""Gives for binary labels (N,) the probability of a positive for each row, predicted from the label party's own columns."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """State a defence's promise as data, for the ledger, the report and the docs.

    Args:
        text: one sentence; it begins with "no formal guarantee" if there is none.
        event: the cost of one training run for the labels; None if nothing is promised.
    """

    text: str
    event: Event | None = None


Stage = Literal["labels", "penalties", "gradients", "embedding penalties", "embeddings"]
FEATURE_STAGES: tuple[Stage, ...] = ("embedding penalties", "embeddings")
"""Stages that a feature party applies to hide its columns. The others hide labels."""
BINARY, CLASSES = ("binary",), ("binary", "multiclass")
ANY = (*CLASSES, "multilabel", "regression", "count", "survival", "quantile")
Fraction = Annotated[float, Field(strict=True, gt=0, lt=1)]
Epsilon = Annotated[float, Field(strict=True, ge=1e-6, le=100)]
Strength = Annotated[float, Field(strict=True, ge=1e-6, le=1e12)]


class Defense(ABC):
    """Base of defences: the facts that a defence states about itself, in addition to its work. All other code reads them here.

    Fields that carry a pydantic ``Field`` are its keys in a contract: name, type, range and help come from them.
    """

    method: ClassVar[str]
    """Its name in a contract."""
    stage: ClassVar[Stage]
    """The place where it applies."""
    targets: ClassVar[tuple[str, ...]] = ANY
    """Target types that it allows."""
    instead: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The defence to use instead for a target type that it does not allow."""
    needs_classes: ClassVar[bool] = False
    """Whether it needs labels that are classes, and not numbers between them."""
    soft_labels: ClassVar[bool] = False
    """Whether it turns labels into numbers between the classes."""
    asks_teacher: ClassVar[bool] = False
    """Whether it distils labels, with predictions from the label party's own columns."""
    own_target_only: ClassVar[bool] = False
    """Whether its guarantee holds only if a label sets no other row's target."""
    strength: ClassVar[str]
    """The key that a sweep varies."""
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Keys without a default, for a first try. A sweep varies ``strength`` among them, and a benchmark times them."""

    @classmethod
    def hides_features(cls) -> bool:
        """Tell whether a feature party applies it to hide its columns."""
        return cls.stage in FEATURE_STAGES

    def parts(self) -> "tuple[Defense, ...]":
        """Return its parts, each with a stage of its own. This is the defence itself, unless it works in several stages."""
        return (self,)

    def taught(self, teacher: Teacher) -> Self:  # noqa: ARG002
        """Return the same defence, which asks this teacher if it distils labels."""
        return self

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""


class LabelDefense(Protocol):
    """Replaces labels once, before anything is trained on them. Everything after that is post-processing."""

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
    """Adds to the loss a measure of what the cut embeddings reveal about the labels."""

    def __call__(self, cut_BD: Tensor, labels_B: Tensor, *, epoch: float = math.inf) -> Tensor:
        """Return the scalar to add to the batch's mean loss. Its gradient reaches only the cut embeddings.

        ``epoch`` is the number of finished epochs, with fractions, for a penalty that warms up.
        """
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...


class GradientDefense(Protocol):
    """Changes a batch's cut gradients before they are sent. It never returns them unchanged without saying so."""

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:
        """Return the gradients to send, of the same shape and type."""
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...


class EmbeddingPenalty(Protocol):
    """Adds to a feature party's share of the loss a measure of what its cut embeddings reveal about its own columns."""

    def __call__(self, cut_BD: Tensor, numeric_BF: Tensor, codes_BG: Tensor) -> Tensor:
        """Return the scalar. Its gradient is added to the cut gradient that came back."""
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...


class EmbeddingDefense(Protocol):
    """Changes cut embeddings before they are sent: in training, for validation, in evaluation and for predictions."""

    def __call__(self, cut_BD: Tensor, *, generator: Randomness | RowNoise) -> Tensor:
        """Return the embeddings to send, of the same shape and type. Gradients flow back through it."""
        ...

    def guarantee(self) -> Guarantee:
        """Return what the defence promises."""
        ...
