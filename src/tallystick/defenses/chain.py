"""Chain defences ready to apply: labels, penalties, gradients. Shapes: N rows, B batch, D cut width."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tallystick.defenses.defense import (
    FEATURE_STAGES,
    Defense,
    EmbeddingDefense,
    EmbeddingPenalty,
    GradientDefense,
    Guarantee,
    LabelDefense,
    PenaltyDefense,
    RandomBytes,
    Teacher,
)
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.noise import Randomness, RowNoise
from tallystick.errors import ConfigError
from tallystick.lazy_torch import Tensor
from tallystick.privacy.events import Event


@dataclass(frozen=True, kw_only=True)
class Defenses:
    """Chain the defences of labels in a run: labels first, then penalties, then gradients, each kind in the contract's order.

    A penalty's gradient is part of the cut gradient that the gradient defences get, so their noise covers the sum.
    """

    labels: tuple[LabelDefense, ...] = ()
    penalties: tuple[PenaltyDefense, ...] = ()
    gradients: tuple[GradientDefense, ...] = ()

    def taught(self, teacher: Teacher) -> "Defenses":
        """Return the same defences, in which those that distil labels ask this teacher."""
        return replace(self, labels=tuple(part.taught(teacher) for part in self.labels))

    def defend_labels(self, labels_N: Tensor, classes: int, random_bytes: RandomBytes) -> Tensor:
        """Return the labels to train and to validate on. Call it once per run and keep what it returns."""
        for defense in self.labels:
            labels_N = defense(labels_N, classes=classes, random_bytes=random_bytes)
        return labels_N

    def penalty(self, cut_BD: Tensor, labels_B: Tensor, epoch: float = math.inf) -> Tensor | None:
        """Return the penalty to add to the batch's mean loss, or None if there is none.

        ``epoch`` is the number of finished epochs, with fractions.
        """
        total: Tensor | None = None
        for defense in self.penalties:
            part = defense(cut_BD, labels_B, epoch=epoch)
            total = part if total is None else total + part
        return total

    def defend_gradients(self, grad_BD: Tensor, labels_B: Tensor, generator: Randomness) -> Tensor:
        """Return the cut gradients to send. A job passes a ``NoiseStream``, see defenses/noise.py."""
        for defense in self.gradients:
            grad_BD = defense(grad_BD, labels_B, generator=generator)
        return grad_BD

    def guarantees(self) -> tuple[Guarantee, ...]:
        """Return each defence's promise, in the order in which they apply."""
        parts: tuple[LabelDefense | PenaltyDefense | GradientDefense, ...] = (*self.labels, *self.penalties, *self.gradients)
        return tuple(dict.fromkeys(part.guarantee() for part in parts))  # once for a defence with several parts

    def events(self) -> tuple[Event, ...]:
        """Return the events of a run that cost privacy of the labels, for the ledger."""
        return tuple(guarantee.event for guarantee in self.guarantees() if guarantee.event is not None)


@dataclass(frozen=True, kw_only=True)
class EmbeddingDefenses:
    """Hold the defences of a feature party's columns in a run: penalties in training, and changes to everything that it sends."""

    penalties: tuple[EmbeddingPenalty, ...] = ()
    embeddings: tuple[EmbeddingDefense, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.penalties or self.embeddings)

    @property
    def noisy(self) -> bool:
        """Tell whether any of them draws noise for the data that is sent."""
        return any(isinstance(each, GaussianEmbeddings) for each in self.embeddings)

    def penalty(self, cut_BD: Tensor, numeric_BF: Tensor, codes_BG: Tensor) -> Tensor | None:
        """Return the penalty to add to this party's share of the loss, or None if there is none."""
        total: Tensor | None = None
        for defense in self.penalties:
            part = defense(cut_BD, numeric_BF, codes_BG)
            total = part if total is None else total + part
        return total

    def defend(self, cut_BD: Tensor, generator: Randomness | RowNoise) -> Tensor:
        """Return the cut embeddings to send. A job passes ``RowNoise``, see defenses/noise.py."""
        for defense in self.embeddings:
            cut_BD = defense(cut_BD, generator=generator)
        return cut_BD

    def guarantees(self) -> tuple[Guarantee, ...]:
        """Return each defence's promise."""
        parts: tuple[EmbeddingPenalty | EmbeddingDefense, ...] = (*self.penalties, *self.embeddings)
        return tuple(part.guarantee() for part in parts)


NO_DEFENSE = Defenses()
NO_EMBEDDING_DEFENSE = EmbeddingDefenses()


def chain(parts: Sequence[Defense], *, target: str = "binary") -> Defenses:
    """Put the defences of labels in the order in which they apply. Defences of features are left out.

    Raises ConfigError for a defence that the target type does not allow.
    """
    by_stage: dict[str, list[Any]] = {"labels": [], "penalties": [], "gradients": []}
    for whole in parts:
        if target not in whole.targets:
            raise ConfigError(f"defense {whole.method} is for {' or '.join(whole.targets)} targets; target.type is {target}")
        for part in whole.parts():
            if part.stage not in FEATURE_STAGES:
                by_stage[part.stage].append(part)
    return Defenses(**{stage: tuple(found) for stage, found in by_stage.items()})


def embedding_chain(parts: Sequence[Defense]) -> EmbeddingDefenses:
    """Put the defences of features in the order in which they apply. Defences of labels are left out."""
    by_stage: dict[str, list[Any]] = {stage: [] for stage in FEATURE_STAGES}
    for part in parts:
        if part.stage in FEATURE_STAGES:
            by_stage[part.stage].append(part)
    return EmbeddingDefenses(penalties=tuple(by_stage["embedding penalties"]), embeddings=tuple(by_stage["embeddings"]))
