"""Train on soft labels, replace cut gradients by those of similar rows, and limit norms. Shapes: N rows, B batch, D cut width."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from tallystick.defenses.checks import check_between, check_gradients, check_positive, class_numbers
from tallystick.defenses.defense import BINARY, Defense, Fraction, Guarantee, RandomBytes, Stage, Teacher
from tallystick.defenses.known_attacks import ReadBy
from tallystick.defenses.noise import Randomness
from tallystick.errors import DataError

READ_BY = ReadBy(attack="surrogate-top", auc=0.998)
_ROWS = 1024  # rows compared with all others of a batch at a time


@dataclass(frozen=True, kw_only=True)
class Ladsg(Defense):
    """Trains on labels mixed with a teacher's answers, and sends the part of each cut gradient along the most similar row's.

    This is Yan et al. 2025 (LADSG: Label-Anonymized Distillation and Similar Gradient Substitution for Label Privacy in Vertical
    Federated Learning, arXiv 2506.06742), of which only the abstract could be read. The abstract gives the three parts and their
    order: distillation replaces true labels by soft ones, each gradient is replaced by a semantically similar one, and a check of
    gradient norms comes last. All details are our own reading, so its figures are not those of the paper:

    - the teacher knows the label party's own columns (in a job, cross-fitted boosting, so that no row's label is in its own
      answer; without columns, the training rows' share of positives). It enters the label with weight ``soft``, as in Hinton et
      al. 2015, where the two losses equal one loss on the mixed target;
    - a row's gradient is projected on that of the other row of the batch with the highest cosine to it;
    - a row whose norm is more than ``limit`` standard deviations above the batch's mean is scaled down to that.

    Threat model: a feature party that follows the protocol and studies norms and directions of the cut gradients. Guarantee: no
    formal guarantee. Not protected: a soft label still reveals its label, which changes it by 1 - ``soft``; the most similar row
    is mostly of the same class, so the projection keeps the difference of the classes; it changes nothing if all gradients lie on
    one line, as below a linear top model, or if a row has a twin; cut embeddings. It draws nothing, so nothing can be averaged
    away. A batch of one row is sent as zeros, because it has no other row. It is refused on a union, and if a half of the
    training rows lacks a class.

    Args:
        soft: the teacher's weight in a label, above 0 and below 1.
        limit: the standard deviations above the mean norm that are allowed, 1e-6 to 1e6.
        teacher: see ``Teacher``; None answers with the share of positives.

    Raises ConfigError for values out of range, DataError for labels other than 0 and 1, answers that are not probabilities, or
    gradients that are not finite.
    """

    method: ClassVar[str] = "ladsg"
    stage: ClassVar[Stage] = "labels"
    targets: ClassVar[tuple[str, ...]] = BINARY
    soft_labels: ClassVar[bool] = True
    asks_teacher: ClassVar[bool] = True
    strength: ClassVar[str] = "soft"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"soft": 0.5})

    soft: Annotated[Fraction, Field(description="the teacher's weight in a label, above 0 and below 1")]
    limit: Annotated[
        float,
        Field(
            strict=True, ge=1e-6, le=1e6, description="standard deviations over the batch's mean norm that a gradient may have"
        ),
    ] = 3.0
    teacher: Teacher | None = None

    def __post_init__(self) -> None:
        check_between("ladsg: soft", self.soft, 0, 1)
        check_positive("ladsg: limit", self.limit)

    def taught(self, teacher: Teacher) -> Self:
        """Return the same defence with this teacher."""
        return replace(self, teacher=teacher)

    def parts(self) -> tuple[Defense, ...]:
        """Return the part for labels and the part for gradients."""
        return (self, SimilarGradients(limit=self.limit, text=self.guarantee().text))

    def __call__(self, labels_N: Tensor, *, classes: int, random_bytes: RandomBytes) -> Tensor:  # noqa: ARG002
        """Return the soft labels to train on."""
        label_N = class_numbers(labels_N, classes, "ladsg").double()
        answer_N = label_N.mean().expand_as(label_N) if self.teacher is None else self.teacher(labels_N).double()
        if answer_N.shape != label_N.shape or not bool(((answer_N >= 0) & (answer_N <= 1)).all()):
            raise DataError(f"ladsg: the teacher gave {tuple(answer_N.shape)} answers; expected a probability for each label")
        dtype = labels_N.dtype if labels_N.is_floating_point() else torch.float32
        return torch.lerp(label_N, answer_N.to(label_N.device), self.soft).to(dtype)

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee."""
        return Guarantee(
            text=f"no formal guarantee: labels with a share of {self.soft:g} of a teacher's answers, cut gradients projected on "
            f"the most similar row's, norms at most {self.limit:g} standard deviations over the mean; {READ_BY.sentence}"
        )


@dataclass(frozen=True, kw_only=True)
class SimilarGradients(Defense):
    """Hold the part of ``Ladsg`` that changes gradients.

    Args:
        limit: the standard deviations above the mean norm that are allowed.
        text: the text of the whole defence's guarantee.
    """

    method: ClassVar[str] = Ladsg.method
    stage: ClassVar[Stage] = "gradients"

    limit: float
    text: str

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:  # noqa: ARG002
        """Return the gradients along the most similar rows', without anomalous norms."""
        check_gradients(grad_BD, labels_B)
        if len(grad_BD) < 2:
            return torch.zeros_like(grad_BD)
        exact_BD = grad_BD.double()
        unit_BD = normalize(exact_BD, dim=1, eps=torch.finfo(torch.float64).tiny)
        along_BD = unit_BD[_most_similar(unit_BD.to(grad_BD.dtype))]
        substituted_BD = (exact_BD * along_BD).sum(dim=1, keepdim=True) * along_BD
        norm_B = substituted_BD.norm(dim=1)
        most = norm_B.mean() + self.limit * norm_B.std(correction=0)
        scale_B = torch.where(norm_B > most, most / norm_B, 1.0)
        return (scale_B[:, None] * substituted_BD).to(grad_BD.dtype)

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the whole defence."""
        return Guarantee(text=self.text)


def _most_similar(unit_BD: Tensor) -> Tensor:
    """Find the other row with the highest cosine to each row, the first if there are several. It takes time B^2 D."""
    nearest = []
    for part in torch.split(torch.arange(len(unit_BD), device=unit_BD.device), _ROWS):
        cosine = unit_BD[part] @ unit_BD.T
        cosine[torch.arange(len(part), device=part.device), part] = -torch.inf
        nearest.append(cosine.argmax(dim=1))
    return torch.cat(nearest)
