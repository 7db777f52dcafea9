"""Membership attacks on a union run: which of my rows does the other side have? They read a View and nothing else.

Shapes: B rows of a step's batch, D cut width, N rows of the union.

In a union run a row that the other side lacks carries a synthetic label (seen by the feature party through cut gradients)
or a synthetic feature (seen by the label party as cut embeddings). Each attack scores how real a row looks.
Threat model of all: an honest-but-curious party with its own view, the contract and its own rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from tallystick.attacks.discriminator import LearnedDiscriminator
from tallystick.attacks.matrix import rescaled, top_direction
from tallystick.attacks.view import Attack, Scores, StepView, View, scored, scored_rows
from tallystick.errors import ConfigError

TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True)
class SpectralMembership:
    """Distance from the batch's mean along its top singular direction, |<x - mean, v>|.

    FLORIST, appendix C (after Tran et al. 2018): x is the cut gradient for the feature party and [embedding; label] for the
    label party. The paper leaves the label's scale open; here the label column is centred and multiplied by ``label_scale``
    times the embeddings' root mean square deviation per column.

    Args:
        signed: keep the sign of the projection: stronger where real and synthetic rows form two equally large clusters,
            which the absolute value folds onto each other.
        label_scale: weight of the label column, at least 0.
    """

    signed: bool = False
    label_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.label_scale >= 0:
            raise ConfigError(f"spectral membership attack: label_scale={self.label_scale}; expected at least 0")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score every batch by itself; no randomness is used."""
        return scored(view, [self._score(step) for step in view.steps])

    def _score(self, step: StepView) -> Tensor:
        features_BD = rescaled(step.received_BD)
        if step.targets_B is not None and self.label_scale > 0:
            label_B = (step.targets_B.double() - step.targets_B.double().mean()) * self.label_scale
            features_BD = torch.cat([features_BD, label_B[:, None]], dim=1)
        projection_B = features_BD @ top_direction(features_BD)
        return projection_B if self.signed else -projection_B.abs()


def _oriented_cosine(grad_BD: Tensor) -> Tensor:
    """Cosine of each gradient with the batch's main direction, oriented so that the rarer side of 0 is positive.

    A cut gradient is (p - y) times the top model's slope at that row. Slopes are much alike, so the sign of the cosine tells
    the labels apart; residuals of a fitted model add up to 0, so the rarer label has the longer gradients.
    """
    cosine_B = cosine_similarity(grad_BD.double(), top_direction(grad_BD)[None, :], dim=1)
    return cosine_B if (cosine_B > 0).double().mean() <= 0.5 else -cosine_B


@dataclass(frozen=True, kw_only=True)
class GradientDirection:
    """Direction of a row's cut gradient: a row whose gradient points the way of a label that is never filled in is real.

    Not in the paper. Perfect for its share: under majority labels every positive-looking gradient belongs to a shared row
    (TPR = rate of positives at FPR 0), under minority every negative-looking one. For the feature party's view.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score every batch by itself; no randomness is used."""
        return scored(view, [_oriented_cosine(step.received_BD) for step in view.steps])


@dataclass(frozen=True, kw_only=True)
class DirectionFlips:
    """Does a row's gradient change sides between epochs? A real label never changes; one drawn anew each step does.

    Not in the paper, whose attacks look at one batch at a time. Aimed at random-pred and random-pos with fresh draws.
    A run of one epoch gives it nothing to see: it then scores no rows.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score each row by |mean sign of its cosine| over the run; no randomness is used."""
        sum_N, count_N = torch.zeros(view.rows, dtype=torch.float64), torch.zeros(view.rows, dtype=torch.float64)
        for step in view.steps:
            sum_N[step.rows_B] += torch.sign(_oriented_cosine(step.received_BD))
            count_N[step.rows_B] += 1
        return scored_rows(view, sum_N.abs(), torch.where(count_N > 1, count_N, 0.0))


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """How alike are the things received for one row in consecutive epochs? A stand-in drawn anew each time is not.

    Not in the paper. Aimed at sampled, random and Gaussian features with fresh draws (embeddings drift, stand-ins jump), and
    at fresh labels. A run of one epoch gives it nothing to see: it then scores no rows.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score each row by the mean cosine between standardised vectors of consecutive sightings; no randomness is used."""
        width = view.steps[0].received_BD.shape[1]
        last_ND, seen_N = torch.zeros(view.rows, width), torch.zeros(view.rows, dtype=torch.bool)
        sum_N, count_N = torch.zeros(view.rows, dtype=torch.float64), torch.zeros(view.rows, dtype=torch.float64)
        for step in view.steps:
            now_BD = rescaled(step.received_BD)
            again_B = seen_N[step.rows_B]
            rows = step.rows_B[again_B]
            sum_N[rows] += cosine_similarity(now_BD[again_B], last_ND[rows].double(), dim=1)
            count_N[rows] += 1
            last_ND[step.rows_B], seen_N[step.rows_B] = now_BD.float(), True
        return scored_rows(view, sum_N, count_N)


@dataclass(frozen=True, kw_only=True)
class IdenticalEmbeddings:
    """Is there another row with (nearly) the same embedding nearby? A stand-in has its donor's.

    FLORIST's fea-sampling feeds a real row's features for an absent one, so both have one embedding: to the bit in one batch,
    nearly in batches a few steps apart, and to the bit over the whole union in any pass that does not train (validation,
    prediction). Both rows of a pair look the same, so a donor is suspected with its copies. For the label party's view.

    Rows are compared with those that lie next to them in the order of a few random projections: copies always do, and for
    the rest an upper bound of the distance will do. This costs O(N log N) where all pairs would cost N^2.

    Args:
        pool: how many consecutive steps are compared with each other (1: only within a batch), at least 1.
        projections: random directions, at least 1.
        reach: neighbours on each side in each order, at least 1.
    """

    pool: int = 1
    projections: int = 4
    reach: int = 3

    def __post_init__(self) -> None:
        if min(self.pool, self.projections, self.reach) < 1:
            raise ConfigError(
                f"identical-embeddings attack: pool={self.pool}, projections={self.projections}, reach={self.reach} "
                "must be at least 1"
            )

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score each row of each step by its distance to the nearest other row in the pool; ``generator`` draws directions."""
        nearest: list[Tensor] = []
        for start in range(0, len(view.steps), self.pool):
            steps = view.steps[start : start + self.pool]
            distance_N = self._nearest(
                torch.cat([step.received_BD for step in steps]), torch.cat([step.rows_B for step in steps]), generator
            )
            nearest += torch.split(distance_N, [len(step.rows_B) for step in steps])
        return scored(view, nearest)

    def _nearest(self, x_ND: Tensor, rows_N: Tensor, generator: torch.Generator) -> Tensor:
        least_N = torch.full((len(x_ND),), torch.inf)
        direction_DP = torch.randn(x_ND.shape[1], self.projections, generator=generator)
        for order_N in torch.argsort(x_ND @ direction_DP, dim=0).T:
            for offset in range(1, min(self.reach, len(x_ND) - 1) + 1):
                one, other = order_N[:-offset], order_N[offset:]
                distance = torch.linalg.vector_norm(x_ND[one] - x_ND[other], dim=1)
                distance[rows_N[one] == rows_N[other]] = torch.inf  # a row seen twice is no copy of itself
                least_N[one] = torch.minimum(least_N[one], distance)
                least_N[other] = torch.minimum(least_N[other], distance)
        greatest = least_N[least_N.isfinite()].max() if least_N.isfinite().any() else least_N.new_tensor(0.0)
        return torch.where(least_N.isfinite(), least_N, greatest).double()


@dataclass(frozen=True, kw_only=True)
class TwinEmbeddings:
    """Does another row look alike at every stage of training? A stand-in moves with its donor wherever their batches are.

    Not in the paper. Copies that never share a batch differ by what the bottom model learned between the two; standardising
    each batch takes out most of that. Compares each row's last sighting with everyone else's, by cosine. Aimed at sampled
    features that keep their donor (drawn once). For the label party's view.

    Args:
        queries: rows to score, a random sample (each is compared with all rows), at least 1.
    """

    queries: int = 2000

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ConfigError(f"twin-embeddings attack: queries={self.queries}; expected at least 1")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score sampled rows by minus their greatest cosine with another row; ``generator`` draws the sample."""
        last_ND = torch.zeros(view.rows, view.steps[0].received_BD.shape[1])
        seen_N = torch.zeros(view.rows, dtype=torch.bool)
        for step in view.steps:
            x_BD = step.received_BD - step.received_BD.mean(dim=0)
            deviation_D = x_BD.std(dim=0, correction=0)
            last_ND[step.rows_B] = normalize(x_BD / (deviation_D + 1e-3 * deviation_D.mean() + TINY), dim=1)
            seen_N[step.rows_B] = True
        unknown = torch.nonzero(seen_N & (view.known() == 0)).squeeze(1)
        rows = unknown[torch.randperm(len(unknown), generator=generator)[: self.queries]]
        alike_Q = torch.empty(len(rows), dtype=torch.float64)
        for part in torch.split(torch.arange(len(rows)), 256):
            cosine_QN = last_ND[rows[part]] @ last_ND.T
            cosine_QN[torch.arange(len(part)), rows[part]] = -1.0
            alike_Q[part] = cosine_QN.max(dim=1).values.double()
        return Scores(rows=(rows,), values=(-alike_Q,))


FEATURE_PARTY_ATTACKS: Mapping[str, Attack] = {
    "spectral": SpectralMembership(),
    "direction": GradientDirection(),
    "flips": DirectionFlips(),
    "consistency": Consistency(),
    "learned": LearnedDiscriminator(),
}
LABEL_PARTY_ATTACKS: Mapping[str, Attack] = {
    "spectral": SpectralMembership(),
    "spectral-signed": SpectralMembership(signed=True),
    "identical": IdenticalEmbeddings(),
    "twins": TwinEmbeddings(),
    "consistency": Consistency(),
    "learned": LearnedDiscriminator(),
}
