"""The judge of label attacks: alone in seeing the labels, it says how well an attack's scores tell them.

Shapes: N rows of a group, M groups, C classes, R bootstrap replicates, F figures, L levels of a score.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, from_numpy

from tallystick.attacks.judge import Bools, Floats, Interval, rank_auc
from tallystick.attacks.matrix import two_means_cut
from tallystick.attacks.view import Scores
from tallystick.errors import ConfigError, DataError

Integers = NDArray[np.int64]
FEW_GROUPS = 5
SHUFFLES = 20


@dataclass(frozen=True, kw_only=True)
class LeakVerdict:
    """How much an attack learned of the labels: figures per batch (or of the whole run as one group), averaged.

    With several classes every figure is the mean over classes of one against the rest.

    Args:
        auc: of scores as the attacker orients them; 0.5 is a guess.
        folded: max(a, 1 - a) in every batch, averaged: an attacker who could not orient its scores.
        folding: how far above 0.5 a pure guess comes out in ``folded``.
        hard_auc: (TPR + TNR) / 2 of hard labels: scores cut by 2-means (which leaves 0 and 1 as they are), or the highest column.
        tpr_at_fpr: greatest share of positives found while at most a share ``fpr`` of negatives is.
        fpr: that share.
        chance: what ``auc`` and ``hard_auc`` of a guess are: 0.5, or more where the judge had to name clusters.
        groups: batches judged.
        skipped: batches left out, because no class is there beside another once rows with known labels are taken out.
    """

    auc: Interval
    folded: Interval
    folding: float
    hard_auc: Interval
    tpr_at_fpr: Interval
    fpr: float
    chance: float
    groups: int
    skipped: int

    def as_figures(self) -> dict[str, Any]:
        """Write the verdict as plain numbers, for JSON."""
        figures: dict[str, Any] = {}
        for name in ("auc", "folded", "hard_auc", "tpr_at_fpr"):
            interval: Interval = getattr(self, name)
            figures[name] = interval.mean
            figures[f"{name}_interval"] = [interval.low, interval.high]
        return figures | {
            "fpr": self.fpr,
            "folding": self.folding,
            "chance": self.chance,
            "groups": self.groups,
            "skipped": self.skipped,
        }


@dataclass(frozen=True, kw_only=True)
class LeakJudge:
    """Compares an attack's scores with the labels.

    Sun et al., section 6.1 "leak AUC", always by ranks; scores are never squashed first. Intervals are percentile bootstrap
    over batches; with fewer than five batches, over the rows within each, class by class. They cover the draw of batches, not the
    training's seed. Batches of several epochs hold the same rows: with more than one epoch they are somewhat too narrow.

    Args:
        fpr: false-alarm rate of ``tpr_at_fpr``, in [0, 1).
        replicates: bootstrap replicates, at least 1.
        level: coverage of the intervals.
    """

    fpr: float = 0.001
    replicates: int = 200
    level: float = 0.95

    def __post_init__(self) -> None:
        if not (0 <= self.fpr < 1 and self.replicates >= 1 and 0 < self.level < 1):
            raise ConfigError(
                f"leak judge: fpr={self.fpr} must lie in [0, 1), level={self.level} in (0, 1), "
                f"and replicates={self.replicates} must be at least 1"
            )

    def __call__(self, scores: Scores, labels_N: Tensor, *, classes: int = 2, rng: np.random.Generator) -> LeakVerdict | None:
        """Judge.

        Args:
            scores: from an attack.
            labels_N: the truth, a class number per row as the contract numbers them.
            classes: how many there are.
            rng: for the bootstrap.

        Returns:
            None if no group holds two classes.

        Raises:
            DataError: a score is not finite or of a wrong shape, or a row has no label.
        """
        groups = _groups(scores, labels_N, classes)
        judged = [(truth_N, guess) for truth_N, guess in groups if len(np.unique(truth_N)) > 1]
        if not judged:
            return None
        chance = 0.5
        if not scores.named:
            chance = float(np.mean([_chance_of_naming(truth_N, guess, rng) for truth_N, guess in judged[:SHUFFLES]]))
            judged = [(truth_N, name_clusters(truth_N, guess)) for truth_N, guess in judged]
        ranked = [_Group.of(*group, fpr=self.fpr) for group in judged]
        figures_MF = np.array([group.figures(np.ones(group.rows, dtype=np.int64)) for group in ranked])
        if len(ranked) >= FEW_GROUPS:
            drawn_RM = rng.integers(len(ranked), size=(self.replicates, len(ranked)))
            resampled_RF = figures_MF[drawn_RM].mean(axis=1)
        else:
            resampled_RF = np.mean([[group.figures(group.draw(rng)) for _ in range(self.replicates)] for group in ranked], axis=0)
        low_F, high_F = np.quantile(resampled_RF, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0)
        auc, folded, hard_auc, finds = [
            Interval(mean=float(mean), low=float(low), high=float(high))
            for mean, low, high in zip(figures_MF.mean(axis=0), low_F, high_F, strict=True)
        ]
        return LeakVerdict(
            auc=auc,
            folded=folded,
            folding=float(np.mean([_folding(truth_N, classes) for truth_N, _ in judged])),
            hard_auc=hard_auc,
            tpr_at_fpr=finds,
            fpr=self.fpr,
            chance=chance,
            groups=len(judged),
            skipped=len(groups) - len(judged),
        )


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """One class against the rest, ready to be counted with other weights: sorted once, however many replicates follow."""

    positive_N: Bools
    guess_N: Bools
    level_N: Integers  # 0 for the lowest score, equal scores share a level
    fpr: float

    def figures(self, weight_N: Integers) -> tuple[float, float, float, float]:
        positive_L = np.bincount(self.level_N, weight_N * self.positive_N)
        negative_L = np.bincount(self.level_N, weight_N * ~self.positive_N)
        positives, negatives = positive_L.sum(), negative_L.sum()
        below_L = np.cumsum(negative_L)
        auc = float((positive_L * (below_L - negative_L / 2)).sum() / (positives * negatives))
        alarms_L = negatives - below_L + negative_L
        finds = positive_L[alarms_L <= np.floor(self.fpr * negatives)].sum() / positives
        tpr = (weight_N * (self.positive_N & self.guess_N)).sum() / positives
        tnr = (weight_N * ~(self.positive_N | self.guess_N)).sum() / negatives
        return auc, max(auc, 1 - auc), float((tpr + tnr) / 2), float(finds)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A batch (or the whole run) that is judged by itself; resampled within each class, so that no class vanishes."""

    members: tuple[Integers, ...]  # positions of each class that occurs
    ranked: tuple[_Ranked, ...]
    rows: int

    @classmethod
    def of(cls, truth_N: Integers, score: Floats, *, fpr: float) -> "_Group":
        present, guess_N = np.unique(truth_N), _hard_guess(score)
        return cls(
            members=tuple(np.flatnonzero(truth_N == c) for c in present),
            ranked=tuple(
                _Ranked(
                    positive_N=truth_N == c,
                    guess_N=guess_N == c,
                    level_N=np.unique(score if score.ndim == 1 else score[:, c], return_inverse=True)[1],
                    fpr=fpr,
                )
                for c in ([1] if score.ndim == 1 else present)
            ),
            rows=len(truth_N),
        )

    def figures(self, weight_N: Integers) -> Floats:
        figures_CF: Floats = np.array([one.figures(weight_N) for one in self.ranked])
        return np.asarray(figures_CF.mean(axis=0))

    def draw(self, rng: np.random.Generator) -> Integers:
        weight_N = np.zeros(self.rows, dtype=np.int64)
        for member in self.members:
            weight_N[member] = np.bincount(rng.integers(len(member), size=len(member)), minlength=len(member))
        return weight_N


def name_clusters(truth_N: Integers, cluster_NC: Floats) -> Floats:
    """Reorder columns so that the most rows fall into the column of their class (Hungarian method)."""
    classes = cluster_NC.shape[1]
    count_CC = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(count_CC, (truth_N, cluster_NC.argmax(axis=1)), 1)
    return cluster_NC[:, linear_sum_assignment(count_CC, maximize=True)[1]]


def _chance_of_naming(truth_N: Integers, cluster_NC: Floats, rng: np.random.Generator) -> float:
    """What naming alone lifts a guess to: the mean AUC over shuffled labels."""
    aucs = []
    for _ in range(SHUFFLES):
        shuffled_N = rng.permutation(truth_N)
        named_NC = name_clusters(shuffled_N, cluster_NC)
        aucs += [rank_auc(shuffled_N == c, named_NC[:, c]) for c in np.unique(shuffled_N)]
    return float(np.mean(aucs))


def _hard_guess(score: Floats) -> Integers:
    """Give a class per row: the upper of two clusters of scores, or the highest column."""
    if score.ndim == 2:
        return np.asarray(score.argmax(axis=1))
    cut = two_means_cut(from_numpy(score))
    return np.zeros(len(score), dtype=np.int64) if cut is None else (score > cut).astype(np.int64)


def _folding(truth_N: Integers, classes: int) -> float:
    """E|a - 1/2| of a guess without ties: sqrt(2 / pi) standard deviations of the Mann-Whitney statistic."""
    wanted = [1] if classes == 2 else np.unique(truth_N)
    counts = [int((truth_N == c).sum()) for c in wanted]
    total = len(truth_N)
    errors = [((total + 1) / (12 * count * (total - count))) ** 0.5 for count in counts]
    return float(np.mean(errors) * (2 / np.pi) ** 0.5)


def _groups(scores: Scores, labels_N: Tensor, classes: int) -> list[tuple[Integers, Floats]]:
    groups = []
    for rows, values in zip(scores.rows, scores.values, strict=True):
        if len(rows) and int(rows.max()) >= len(labels_N):
            raise DataError(f"leak judge: row {int(rows.max())} is scored, but there are labels for {len(labels_N)} rows only")
        if tuple(values.shape) != ((len(rows),) if classes == 2 else (len(rows), classes)):
            raise DataError(f"leak judge: scores of shape {tuple(values.shape)} for {len(rows)} rows and {classes} classes")
        score = values.numpy().astype(np.float64)
        if not np.isfinite(score).all():
            raise DataError("leak judge: a score is NaN or infinite; an attack must give every row a finite score")
        groups.append((labels_N[rows].numpy().astype(np.int64), score))
    return groups
