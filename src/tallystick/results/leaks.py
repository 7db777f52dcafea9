"""Hold what leaked: an audit of each secret, with the attacks' findings, and defences tried beforehand."""

import msgspec

from tallystick.attacks.findings import AttackResult, CutReads, LocatedKeys, NamedKeys, RebuiltColumn
from tallystick.results.parts import Estimate


class LeakGrowth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Growth of one attack's symmetric AUC: what it had found by the end of some epochs, counted from 1."""

    name: str
    view: str
    epochs: list[int]
    symmetric_auc: list[float]


class Audit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The attacks that were run on this run's recorded views, and what defended against them.

    ``nothing_sent``: nothing that depends on what they are after was sent, so there is no view to attack. ``quick``: attacks were
    left out that a full audit runs.
    """

    summary: str = ""
    nothing_sent: bool = False
    quick: bool = False
    defense: str = ""
    attacks: list[AttackResult] = []
    growth: list[LeakGrowth] = []
    not_measured: list[str] = []  # what could not be, and why, in sentences


class MeanRebuilt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mean over all columns that the model was given."""

    known: int
    value: float


class RowGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured reconstruction of other rows than those of the training steps, for these crossed otherwise.

    Args:
        rows: which these are, such as "validation rows".
        attacked: how many of them.
        crossed: how often each.
        columns: what was rebuilt of each column that the model was given.
        means: over these columns.
    """

    rows: str
    attacked: int
    crossed: int
    columns: list[RebuiltColumn] = []
    means: list[MeanRebuilt] = []


class FeatureAudit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured reconstruction of a feature party's columns by the label party, as the feature party found at home."""

    party: str
    by: str
    through: str = "cut embeddings"  # what they are rebuilt from
    summary: str = ""
    defense: str = ""
    epsilon: float | None = None  # of all embeddings of one row together, given the model at each
    delta: float = 0.0
    releases: int = 0  # of one row at most, as far as noise is counted
    quick: bool = False  # whether attacks were left out that a full audit runs
    columns: list[RebuiltColumn] = []
    means: list[MeanRebuilt] = []
    groups: list[RowGroup] = []  # of rows that crossed outside training steps; columns and means above are of training rows
    not_measured: list[str] = []

    def worst_mean(self, known: int) -> float | None:
        """Return the greatest mean of any group of rows to one who knows so many, or None if none was measured."""
        every = [self.means, *(group.means for group in self.groups)]
        return max((mean.value for means in every for mean in means if mean.known == known), default=None)


class ToldColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured disclosure of another party's columns by cut gradients, as the columns' owner found at home.

    Args:
        party: whose columns.
        by: who could read them.
        summary: how it was measured.
        columns: what was rebuilt of each with gradients.
        without: what would be rebuilt without.
        means, means_without: over these columns.
        not_measured: what could not be, and why.
    """

    party: str
    by: str
    summary: str = ""
    columns: list[RebuiltColumn] = []
    without: list[RebuiltColumn] = []
    means: list[MeanRebuilt] = []
    means_without: list[MeanRebuilt] = []
    not_measured: list[str] = []


class Leak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finding of one attack on one tried defence: max(AUC, 1 - AUC) per batch."""

    attack: str
    reads: CutReads
    auc: Estimate
    chance: float = 0.5  # what it is for a guess
    upper_bound: bool = False  # needs labels that no attacker has


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One defence at one strength, tried in simulation: what the model is worth, and what leaks."""

    defense: str  # "none", "marvell", "cut after", ...
    strength: str = ""  # such as "4"
    guarantee: str = "no formal guarantee"
    utility: Estimate
    leaks: list[Leak] = []
    columns: Estimate | None = None  # mean over the feature party's of what the strongest attack on embeddings alone tells
    seeds: int = 1


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defences tried in simulation: utility against leakage."""

    summary: str = ""
    metric: str = "AUC"  # of utility, on test rows
    local_baseline: Estimate | None = None  # the label party alone: what joining must beat
    known: int | None = None  # rows that attacks on columns know
    columns_not_measured: list[str] = []  # and why, in sentences
    trials: list[Trial] = []


class SimilarityHistogram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Similarities of linked rows, noise included, and before noise, as far as this party can tell."""

    edges: list[float]
    counts: list[int]
    before: list[int] = []  # of links whose other end an attack placed, by the distances to there
    typical: float | None = None  # the distance of a similarity of 0, in ``unit``
    deviation: float | None = None  # how much further 1 less is
    unit: str = ""


class LinkMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links on a map: this party's own keys, and the other side's where an attack on its own view places them."""

    party: str
    peer: str
    axes: list[str]  # of both directions, with units
    rest: list[str] = []  # dimensions that the map does not show
    own: list[tuple[float, float]]
    located: list[tuple[float, float]]
    links: list[tuple[int, int]]  # (own, located)
    attack: str
    square: bool = False  # both directions have one unit


class LinkExample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts of one party's own rows, and what they are linked to as far as it knows."""

    party: str
    peer: str
    own: str  # empty at a feature party, which does not know the other row
    linked: list[str]


class LinkageSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links by similar keys as one party sees them, and what its peers could locate by them."""

    party: str
    neighbors: int
    helper_sees: str
    guarantee: str
    sigma: dict[str, float] = {}
    links: dict[str, int] = {}
    improvement: dict[str, dict[str, float]] = {}  # by feature party, over AvgSim and Top1Sim
    similarities: dict[str, SimilarityHistogram] = {}
    attacks: list[LocatedKeys] = []
    named: list[NamedKeys] = []
    maps: list[LinkMap] = []
    examples: list[LinkExample] = []
    notes: list[str] = []


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of a run's audits."""

    membership: Audit | None = None
    leakage: Audit | None = None
    features: FeatureAudit | None = None
    told: list[ToldColumns] = []
