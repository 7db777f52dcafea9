"""Measure the success of an attack by comparing its scores with the truth, which only the evaluator sees.

Shapes: N rows of a group, M groups, C classes, R bootstrap replicates, F figures, L levels of a score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, from_numpy

from tallystick.attacks.clustered_intervals import FEW_GROUPS, GroupInfluence, half_width
from tallystick.attacks.matrix import two_means_cut
from tallystick.attacks.view import Scores
from tallystick.errors import ConfigError, DataError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]
Counts = NDArray[np.int16]
Shares = NDArray[np.float32]
SHUFFLES = 20


@dataclass(frozen=True, kw_only=True)
class IntervalEstimate:
    """A mean with a percentile bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class AttackMetrics:
    """Measured success of an attack: means over groups of rows. A group is a batch or the whole run.

    With several classes every figure is the mean over classes of one class against the rest.

    Args:
        auc: AUC of the scores as the attacker orients them.
        symmetric_auc: mean of max(a, 1 - a) over batches, for an attacker who cannot orient its scores.
        balanced_accuracy: (TPR + TNR) / 2 of hard guesses. These are scores split by 2-means (which leaves 0 and 1 unchanged), or
            the column with the highest score.
        tpr_at_fpr: greatest share of positives (members) that are found while the false-alarm rate is at most ``fpr``.
        fpr: that false-alarm rate.
        chance_auc: ``auc`` and ``balanced_accuracy`` of a guess: 0.5, or more where clusters had to be named.
        chance_symmetric_auc: ``symmetric_auc`` of a guess. Taking the better side lifts it above 0.5 by about 0.8 standard errors
            of one group's AUC.
        groups: number of evaluated groups.
        skipped: number of groups left out, because the rows with unknown labels are all of one class.
    """

    auc: IntervalEstimate
    symmetric_auc: IntervalEstimate
    balanced_accuracy: IntervalEstimate
    tpr_at_fpr: IntervalEstimate
    fpr: float
    chance_auc: float
    chance_symmetric_auc: float
    groups: int
    skipped: int

    def as_figures(self) -> dict[str, Any]:
        """Write the metrics as plain numbers, for JSON."""
        figures: dict[str, Any] = {}
        for name in ("auc", "symmetric_auc", "balanced_accuracy", "tpr_at_fpr"):
            interval: IntervalEstimate = getattr(self, name)
            figures[name] = interval.mean
            figures[f"{name}_interval"] = [interval.low, interval.high]
        return figures | {
            "fpr": self.fpr,
            "chance_auc": self.chance_auc,
            "chance_symmetric_auc": self.chance_symmetric_auc,
            "groups": self.groups,
            "skipped": self.skipped,
        }


class Bootstrap:
    """Draws bootstrap replicates from a seed. Attacks that score equally many rows of each class get the same replicates.

    Args:
        seed: seed of all draws.
    """

    def __init__(self, seed: int | Sequence[int]) -> None:
        self._seed = seed
        self._drawn: dict[tuple[int, tuple[tuple[int, ...], ...]], list[list[list[Counts]]]] = {}

    def rng(self) -> np.random.Generator:
        """Return a new generator, seeded."""
        return np.random.default_rng(self._seed)

    def within_classes(self, replicates: int, sizes: tuple[tuple[int, ...], ...]) -> list[list[list[Counts]]]:
        """Draw how often each row of a class counts, per group, replicate and class. ``sizes`` are rows per group and class."""
        if (replicates, sizes) not in self._drawn:
            rng = self.rng()
            self._drawn[replicates, sizes] = [
                [
                    [np.bincount(rng.integers(rows, size=rows), minlength=rows).astype(np.int16) for rows in group]
                    for _ in range(replicates)
                ]
                for group in sizes
            ]
        return self._drawn[replicates, sizes]


@dataclass(frozen=True, kw_only=True)
class AttackEvaluator:
    """Compares an attack's scores with the truth by ranks. Scores are not transformed first.

    Sun et al., section 6.1 "leak AUC"; FLORIST, section 3 "Evaluation Metrics", corrected: the paper reports AUCs below one
    half (.4426) as if they were safe. Intervals of AUCs are clustered by row and by batch (``half_width``), because batches of
    several epochs hold the same rows. Intervals of other figures are a percentile bootstrap over batches. With fewer than five
    batches it resamples the rows of each batch, class by class; with more than one epoch these intervals are somewhat too narrow.
    Intervals cover the draw of rows and of batches, not the training's seed.

    Args:
        fpr: false-alarm rate of ``tpr_at_fpr``, in [0, 1); at 0 only certain finds count.
        either_end: whether ``tpr_at_fpr`` takes the better of the two ends of the scores. An attacker who knows the contract
            knows which end that is.
        replicates: number of bootstrap replicates, at least 1.
        level: coverage of the intervals.
    """

    fpr: float = 0.001
    either_end: bool = False
    replicates: int = 200
    level: float = 0.95

    def __post_init__(self) -> None:
        if not (0 <= self.fpr < 1 and self.replicates >= 1 and 0 < self.level < 1):
            raise ConfigError(
                f"attack evaluator: fpr={self.fpr} must lie in [0, 1), level={self.level} in (0, 1), "
                f"and replicates={self.replicates} must be at least 1"
            )

    def __call__(self, scores: Scores, truth_N: Tensor, *, classes: int = 2, bootstrap: Bootstrap) -> AttackMetrics | None:
        """Compare scores with the truth.

        Args:
            scores: scores of an attack.
            truth_N: class number of each row of the contract; for membership, whether the other side has the row.
            classes: number of classes.
            bootstrap: draws replicates, and shuffled labels where clusters have to be named.

        Returns:
            None if no group holds two classes.

        Raises:
            DataError: a score is not finite or has a wrong shape, or a scored row has no truth.
        """
        every = []
        for rows, values in zip(scores.rows, scores.values, strict=True):
            if len(rows) and int(rows.max()) >= len(truth_N):
                raise DataError(
                    f"attack evaluator: row {int(rows.max())} is scored, but the truth is known only for {len(truth_N)} rows"
                )
            if tuple(values.shape) != ((len(rows),) if classes == 2 else (len(rows), classes)):
                raise DataError(
                    f"attack evaluator: scores of shape {tuple(values.shape)} for {len(rows)} rows and {classes} classes"
                )
            score = values.numpy().astype(np.float64)
            if not np.isfinite(score).all():
                raise DataError("attack evaluator: a score is NaN or infinite; an attack must give every row a finite score")
            every.append((truth_N[rows].numpy().astype(np.int64), score, rows.numpy().astype(np.int64)))
        usable = [(truth_N, score, rows_N) for truth_N, score, rows_N in every if len(np.unique(truth_N)) > 1]
        groups = [(truth_N, score) for truth_N, score, _ in usable]
        if not groups:
            return None
        chance = 0.5
        if not scores.named:
            rng = bootstrap.rng()
            lifted = []  # the mean AUC of each group over shuffled labels: what naming clusters alone gives
            for labels_N, cluster_NC in groups[:SHUFFLES]:
                aucs = []
                for _ in range(SHUFFLES):
                    shuffled_N = rng.permutation(labels_N)
                    named_NC = name_clusters(shuffled_N, cluster_NC)
                    aucs += [rank_auc(shuffled_N == c, named_NC[:, c]) for c in np.unique(shuffled_N)]
                lifted.append(np.mean(aucs))
            chance = float(np.mean(lifted))
            groups = [(truth_N, name_clusters(truth_N, score)) for truth_N, score in groups]
        ranked = [_Group.of(*group, fpr=self.fpr) for group in groups]
        figures_MF = np.array([group.figures([np.ones(size, dtype=np.int16) for size in group.sizes]) for group in ranked])
        if len(ranked) >= FEW_GROUPS:
            drawn_RM = bootstrap.rng().integers(len(ranked), size=(self.replicates, len(ranked)))
            resampled_RF = figures_MF[drawn_RM].mean(axis=1)
        else:
            counts = bootstrap.within_classes(self.replicates, tuple(group.sizes for group in ranked))
            resampled_RF = np.mean(
                [[group.figures(one) for one in each] for group, each in zip(ranked, counts, strict=True)], axis=0
            )
        low_F, high_F = np.quantile(resampled_RF, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0)
        auc, symmetric_auc, balanced_accuracy, *finds = [
            IntervalEstimate(mean=float(mean), low=float(low), high=float(high))
            for mean, low, high in zip(figures_MF.mean(axis=0), low_F, high_F, strict=True)
        ]
        influences = [group.influence(rows_N) for group, (_, _, rows_N) in zip(ranked, usable, strict=True)]
        auc = _around(auc.mean, half_width(influences, level=self.level))
        signs = [1 if each.auc >= 0.5 else -1 for each in influences]
        symmetric_auc = _around(symmetric_auc.mean, half_width(influences, level=self.level, signs=signs))
        lift = float(np.mean([_lift_of_symmetry(truth_N, classes) for truth_N, _ in groups]))
        return AttackMetrics(
            auc=auc,
            symmetric_auc=symmetric_auc,
            balanced_accuracy=balanced_accuracy,
            tpr_at_fpr=max(finds, key=lambda interval: interval.mean) if self.either_end else finds[0],
            fpr=self.fpr,
            chance_auc=chance,
            chance_symmetric_auc=max(chance, 0.5 + lift),
            groups=len(groups),
            skipped=len(every) - len(groups),
        )


def rank_auc(positive_N: Bools, score_N: Floats) -> float:
    """Compute P(a positive row scores higher than a negative one) + half P(equal), or NaN if either kind is missing."""
    positives, negatives = int(positive_N.sum()), int((~positive_N).sum())
    if positives == 0 or negatives == 0:
        return np.nan
    _, group_N, count_G = np.unique(score_N, return_inverse=True, return_counts=True)
    rank_G = np.cumsum(count_G) - (count_G - 1) / 2
    return float((rank_G[group_N][positive_N].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def symmetric_auc(positive_N: Tensor, score_N: Tensor) -> float:
    """Return max(a, 1 - a), where a is the AUC of a layer's or a component's scores."""
    auc = rank_auc(positive_N.numpy(), score_N.numpy())
    return max(auc, 1 - auc)


def name_clusters(truth_N: Integers, cluster_NC: Floats) -> Floats:
    """Reorder columns so that the most rows fall into the column of their class (Hungarian method)."""
    classes = cluster_NC.shape[1]
    count_CC = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(count_CC, (truth_N, cluster_NC.argmax(axis=1)), 1)
    return cluster_NC[:, linear_sum_assignment(count_CC, maximize=True)[1]]


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """Rows of one class and of the rest, sorted once for all replicates.

    P positives and M negatives, each from the lowest score to the highest.
    """

    positive_P: Integers  # the positive rows
    negative_M: Integers
    below_P: Integers  # how many negatives have a lower score than this positive
    upto_P: Integers  # how many negatives have no higher score
    found_P: Shares  # 1 for positives that are guessed to be positive
    excluded_M: Shares  # 1 for negatives that are guessed to be negative
    fpr: float

    @classmethod
    def of(cls, positive_N: Bools, guess_N: Bools, score_N: Floats, *, fpr: float) -> "_Ranked":
        order_N = np.argsort(score_N, kind="stable")
        positive_P, negative_M = order_N[positive_N[order_N]], order_N[~positive_N[order_N]]
        return cls(
            positive_P=positive_P,
            negative_M=negative_M,
            below_P=np.searchsorted(score_N[negative_M], score_N[positive_P], side="left"),
            upto_P=np.searchsorted(score_N[negative_M], score_N[positive_P], side="right"),
            found_P=guess_N[positive_P].astype(np.float32),
            excluded_M=(~guess_N[negative_M]).astype(np.float32),
            fpr=fpr,
        )

    def moves(self, auc: float) -> tuple[Floats, Floats]:
        """Compute each row's influence on the AUC: its share of correct comparisons with the other kind, minus the AUC."""
        positives, negatives = len(self.positive_P), len(self.negative_M)
        right_P = (self.below_P + self.upto_P) / (2 * negatives)
        place_M = np.arange(negatives)
        upto_M, below_M = (np.searchsorted(each_P, place_M, side="right") for each_P in (self.below_P, self.upto_P))
        above_M = 2 * positives - upto_M - below_M
        return (right_P - auc) / positives, (above_M / (2 * positives) - auc) / negatives

    def figures(self, weight_P: Counts, weight_M: Counts) -> tuple[float, ...]:
        sum_M = np.zeros(len(weight_M) + 1, dtype=np.int64)
        np.cumsum(weight_M, dtype=np.int64, out=sum_M[1:])
        below_P, upto_P = sum_M[self.below_P], sum_M[self.upto_P]
        share_P, negatives = weight_P.astype(np.float64), int(sum_M[-1])
        positives = float(share_P.sum())
        auc = float(share_P @ (below_P + upto_P)) / (2 * positives * negatives)
        # whole numbers in float32, whose sums are exact below 2^24
        tpr, tnr = float(share_P @ self.found_P) / positives, float(weight_M.astype(np.float32) @ self.excluded_M) / negatives
        allowed = int(self.fpr * negatives)
        # the positives that at most `allowed` negatives reach, and those below which at most `allowed` negatives lie
        first, last = np.searchsorted(below_P, negatives - allowed), np.searchsorted(upto_P, allowed, side="right")
        highest, lowest = float(share_P[first:].sum()) / positives, float(share_P[:last].sum()) / positives
        return auc, max(auc, 1 - auc), (tpr + tnr) / 2, highest, lowest


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A batch, or the whole run, that is evaluated by itself. It is resampled within each class, so that no class vanishes.

    All rows of a class are equally likely, so with two classes ranks are drawn in place of rows, which saves a look-up.
    """

    members: tuple[Integers, ...]  # positions of each class that occurs
    ranked: tuple[_Ranked, ...]
    rows: int

    @classmethod
    def of(cls, truth_N: Integers, score: Floats, *, fpr: float) -> "_Group":
        # A class per row: the upper of two clusters of scores, or the highest column
        if score.ndim == 2:
            guess_N = np.asarray(score.argmax(axis=1))
        else:
            cut = two_means_cut(from_numpy(score))
            guess_N = np.zeros(len(score), dtype=np.int64) if cut is None else (score > cut).astype(np.int64)
        present = np.unique(truth_N)
        return cls(
            members=tuple(np.flatnonzero(truth_N == c) for c in present),
            ranked=tuple(
                _Ranked.of(truth_N == c, guess_N == c, score if score.ndim == 1 else score[:, c], fpr=fpr)
                for c in ([1] if score.ndim == 1 else present)
            ),
            rows=len(truth_N),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Count the rows of each class that occurs."""
        return tuple(len(member) for member in self.members)

    def influence(self, rows_N: Integers) -> GroupInfluence:
        """Compute each row's influence on the group's AUC. With several classes it is the mean over classes."""
        moves_N, aucs = np.zeros(self.rows), []
        for one in self.ranked:
            aucs.append(one.figures(np.ones(len(one.positive_P), np.int16), np.ones(len(one.negative_M), np.int16))[0])
            moves_P, moves_M = one.moves(aucs[-1])
            moves_N[one.positive_P] += moves_P / len(self.ranked)
            moves_N[one.negative_M] += moves_M / len(self.ranked)
        return GroupInfluence(auc=float(np.mean(aucs)), rows_N=rows_N, moves_N=moves_N, smaller=min(self.sizes))

    def figures(self, counts: Sequence[Counts]) -> Floats:
        """Compute the figures of a resample, given how often each row of each class is drawn."""
        if len(self.ranked) == 1:
            return np.array(self.ranked[0].figures(counts[1], counts[0]))
        weight_N = np.empty(self.rows, dtype=np.int16)
        for member, count in zip(self.members, counts, strict=True):
            weight_N[member] = count
        figures_CF: Floats = np.array([one.figures(weight_N[one.positive_P], weight_N[one.negative_M]) for one in self.ranked])
        return np.asarray(figures_CF.mean(axis=0))


def _around(mean: float, half: float) -> IntervalEstimate:
    return IntervalEstimate(mean=mean, low=max(0.0, mean - half), high=min(1.0, mean + half))


def _lift_of_symmetry(truth_N: Integers, classes: int) -> float:
    """Return E|a - 1/2| for the AUC a of a guess without ties: sqrt(2 / pi) standard deviations of the Mann-Whitney statistic."""
    classes_scored = [1] if classes == 2 else np.unique(truth_N)
    counts = [int((truth_N == c).sum()) for c in classes_scored]
    total = len(truth_N)
    errors = [((total + 1) / (12 * count * (total - count))) ** 0.5 for count in counts]
    return float(np.mean(errors) * (2 / np.pi) ** 0.5)
