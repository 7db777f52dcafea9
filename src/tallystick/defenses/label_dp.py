"""Replace labels by randomised response, for label differential privacy. Shapes: N rows, C classes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tallystick.defenses.checks import check_between, check_defense_epsilon, class_numbers
from tallystick.defenses.defense import CLASSES, Defense, Epsilon, Guarantee, RandomBytes, Stage
from tallystick.errors import ConfigError
from tallystick.lazy_torch import Tensor, torch
from tallystick.privacy.events import PureDP

WORDS = 1 << 64


@dataclass(frozen=True, kw_only=True)
class LabelDP(Defense):
    """Keeps a label with probability e^epsilon / (e^epsilon + C - 1), and else draws one of the other classes.

    It does so once, before training. Several labels of a row count as one label here, whose classes are their C = 2^K patterns,
    so epsilon is for all of them together.

    It is from Warner 1965 and Ghazi et al. 2021 (Deep learning with label differential privacy), section 2. The labels are
    replaced once and then reused in every epoch, so the run costs as much as one draw.

    Threat model: any adversary who sees anything of the run and knows anything except the labels. Guarantee: epsilon-label-DP for
    the labels given, in training and validation, from 64-bit integer coins of a cryptographic generator, rounded so that epsilon
    is never exceeded. Not protected: features; which classes the table has; test labels, whose metrics are exact unless the
    contract releases them privately; what a good model reveals about anyone's label.

    The model learns P(replaced label), so its probabilities are pulled towards 1/C (for two classes p -> f + (1 - 2 f) p with
    flip rate f): calibration suffers while ranks stay.

    Args:
        epsilon: the budget, 1e-6 to 100.

    Raises ConfigError for an epsilon out of range, DataError for labels that are not class numbers.
    """

    method: ClassVar[str] = "label-dp"
    stage: ClassVar[Stage] = "labels"
    targets: ClassVar[tuple[str, ...]] = (*CLASSES, "multilabel")
    strength: ClassVar[str] = "epsilon"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"epsilon": 1.0})

    epsilon: Annotated[Epsilon, Field(description="label-DP budget of the run, 1e-6 to 100")]

    def __post_init__(self) -> None:
        check_defense_epsilon("label-dp", self.epsilon)

    def __call__(self, labels_N: Tensor, *, classes: int, random_bytes: RandomBytes) -> Tensor:
        """Return the labels to train on."""
        numbers_N = class_numbers(labels_N, classes, "label-dp").cpu().numpy()
        replaced_N = respond(numbers_N, classes, self.epsilon, random_bytes)
        return torch.from_numpy(replaced_N).to(device=labels_N.device, dtype=labels_N.dtype)

    def guarantee(self) -> Guarantee:
        """Return the epsilon as an event."""
        return Guarantee(
            text=f"{self.epsilon:g}-label-DP: labels of training and validation rows replaced once by randomised response",
            event=PureDP(epsilon=self.epsilon, unit="label"),
        )


@dataclass(frozen=True, kw_only=True)
class LabelDPPrior(Defense):
    """Applies randomised response over the k likeliest classes, with the k of at least 2 that keeps most labels.

    It is Ghazi et al. 2021, algorithm 2 (RRWithPrior) with a class prior. The prior comes from the data without costing budget
    twice, as in their multi-stage training (algorithm 3): a random share of the rows gets plain randomised response, their
    corrected counts are the prior for the others, and every label is read once. A public prior may be given instead. If their k
    is 1, which would give every row the same class and teach nothing, the two likeliest classes are used.

    Threat model, guarantee and what is not protected: as ``LabelDP``. The choice of the k classes sees no label of the second
    stage, and labels of the first stage only after replacement. Given the classes, a label among them is reported as itself with
    chance e^eps / (e^eps + k - 1), and as each of the others with 1 / (e^eps + k - 1). A label outside is reported as each with 1
    / k. No two of these chances differ by more than the factor e^eps, so epsilon holds. No epsilon-label-DP mechanism keeps more
    labels; tests check this by linear programming. A class outside the top k never appears among the labels of the second stage,
    so the model hardly learns it.

    Args:
        epsilon: the budget, 1e-6 to 100.
        prior: the probability of each class, known without looking at the labels; None estimates it.
        first_stage: the share of rows from which the prior is estimated.

    Raises ConfigError for values out of range, DataError for labels that are not class numbers.
    """

    method: ClassVar[str] = "label-dp-prior"
    stage: ClassVar[Stage] = "labels"
    targets: ClassVar[tuple[str, ...]] = ("multiclass",)
    instead: ClassVar[Mapping[str, str]] = MappingProxyType({"binary": "use label-dp: for two classes a prior changes nothing"})
    strength: ClassVar[str] = "epsilon"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"epsilon": 2.0})

    epsilon: Annotated[Epsilon, Field(description="label-DP budget of the run, 1e-6 to 100")]
    prior: tuple[float, ...] | None = None
    first_stage: float = 0.1

    def __post_init__(self) -> None:
        check_defense_epsilon("label-dp-prior", self.epsilon)
        check_between("label-dp-prior: first_stage", self.first_stage, 0, 1)
        if self.prior is not None and (min(self.prior) < 0 or not math.isclose(sum(self.prior), 1, abs_tol=1e-6)):
            raise ConfigError(f"label-dp-prior: prior is {self.prior}; it must be probabilities that sum to 1")

    def __call__(self, labels_N: Tensor, *, classes: int, random_bytes: RandomBytes) -> Tensor:
        """Return the labels to train on."""
        numbers_N = class_numbers(labels_N, classes, "label-dp-prior").cpu().numpy()
        if self.prior is not None:
            if len(self.prior) != classes:
                raise ConfigError(f"label-dp-prior: prior has {len(self.prior)} classes; the labels have {classes}")
            first_N = np.zeros(len(numbers_N), dtype=bool)
            prior_C = np.array(self.prior)
        else:
            first_N = _words(len(numbers_N), random_bytes) < np.uint64(int(self.first_stage * WORDS))
        replaced_N = np.empty_like(numbers_N)
        replaced_N[first_N] = respond(numbers_N[first_N], classes, self.epsilon, random_bytes)
        if self.prior is None:
            prior_C = estimated_prior(replaced_N[first_N], classes, self.epsilon)
        top_K = best_classes(prior_C, self.epsilon)
        # Respond among the top classes; a row of another class draws one of them uniformly
        rest_N = numbers_N[~first_N]
        place_C = np.full(int(max(top_K.max(), rest_N.max(initial=0))) + 1, -1)
        place_C[top_K] = np.arange(len(top_K))
        place_N = place_C[rest_N]
        outside_N = place_N < 0
        # The remainder of a 64-bit word favours a class by at most k / 2^64, far less than epsilon >= 1e-6 allows.
        place_N[outside_N] = (_words(int(outside_N.sum()), random_bytes) % np.uint64(len(top_K))).astype(np.int64)
        place_N[~outside_N] = respond(place_N[~outside_N], len(top_K), self.epsilon, random_bytes)
        replaced_N[~first_N] = top_K[place_N]
        return torch.from_numpy(replaced_N).to(device=labels_N.device, dtype=labels_N.dtype)

    def guarantee(self) -> Guarantee:
        """Return the epsilon as an event."""
        return Guarantee(
            text=f"{self.epsilon:g}-label-DP: labels of training and validation rows replaced once by randomised response over "
            "the likeliest classes",
            event=PureDP(epsilon=self.epsilon, unit="label"),
        )


def respond(numbers_N: NDArray[np.int64], classes: int, epsilon: float, random_bytes: RandomBytes) -> NDArray[np.int64]:
    """Replace class numbers by plain randomised response. One 64-bit word decides about a row, in integer arithmetic."""
    each = other_words(classes, epsilon)
    words_N = _words(len(numbers_N), random_bytes)
    flipped_N = words_N < np.uint64((classes - 1) * each)
    step_N = (words_N[flipped_N] // np.uint64(each)).astype(np.int64) + 1  # 1 to classes - 1: which of the others
    replaced_N = numbers_N.copy()
    replaced_N[flipped_N] = (numbers_N[flipped_N] + step_N) % classes
    return replaced_N


def other_words(classes: int, epsilon: float) -> int:
    """Return how many of the 2^64 words stand for each other class: the smallest number that does not exceed epsilon."""
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(WORDS) / (Decimal(epsilon).exp() + classes - 1)
        return max(int(exact.to_integral_value(ROUND_CEILING)), 1)


def estimated_prior(replaced_N: NDArray[np.int64], classes: int, epsilon: float) -> NDArray[np.float64]:
    """Estimate the class shares from labels after ``respond``. The estimate is uniform if there are none."""
    if not len(replaced_N):
        return np.full(classes, 1 / classes)
    seen_C = np.bincount(replaced_N, minlength=classes) / len(replaced_N)
    other = other_words(classes, epsilon) / WORDS
    share_C = np.clip((seen_C - other) / (1 - classes * other), 0, None)
    total = share_C.sum()
    return share_C / total if total > 0 else np.full(classes, 1 / classes)


def best_classes(prior_C: NDArray[np.float64], epsilon: float) -> NDArray[np.int64]:
    """Return the top classes of the prior, at least two: as many as best keep a label, e^eps / (e^eps + k - 1) *
    (their prior).
    """
    order_C = np.argsort(-prior_C, kind="stable")
    k_C = np.arange(1, len(prior_C) + 1)
    kept_C = np.cumsum(prior_C[order_C]) / (1 + (k_C - 1) * math.exp(-epsilon))
    return order_C[: 2 + int(np.argmax(kept_C[1:]))]


def _words(count: int, random_bytes: RandomBytes) -> NDArray[np.uint64]:
    return np.frombuffer(random_bytes(8 * count), dtype=np.uint64, count=count)
