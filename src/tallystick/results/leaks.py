"""Hold findings on leaks: an audit of each secret with the attacks' results, and defences tried before the run."""

import msgspec

from tallystick.attacks.findings import AttackResult, CutReads, LocatedKeys, NamedKeys, RebuiltColumn
from tallystick.results.parts import Estimate


class LeakGrowth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the growth of one attack's symmetric AUC at the end of some epochs, counted from 1."""

    name: str
    view: str
    epochs: list[int]
    symmetric_auc: list[float]


class Audit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the attacks on this run's recorded views, and the defence against them.

    ``nothing_sent``: nothing that depends on their target was sent, so there is no view to attack. ``quick``: some attacks of a
    full audit were left out.
    """

    summary: str = ""
    nothing_sent: bool = False
    quick: bool = False
    defense: str = ""
    attacks: list[AttackResult] = []
    growth: list[LeakGrowth] = []
    not_measured: list[str] = []  # attacks that could not be made, and why, in sentences


class MeanRebuilt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the mean over all columns that the model was given."""

    known: int
    value: float


class RowGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the measured reconstruction of rows outside the training steps, because these crossed in another way.

    Args:
        rows: the group, such as "validation rows".
        attacked: how many of them were attacked.
        crossed: how often each of them crossed.
        columns: the reconstruction of each column that the model was given.
        means: the means over these columns.
    """

    rows: str
    attacked: int
    crossed: int
    columns: list[RebuiltColumn] = []
    means: list[MeanRebuilt] = []


class FeatureAudit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the measured reconstruction of a feature party's columns by the label party, as the feature party found at home."""

    party: str
    by: str
    through: str = "cut embeddings"  # the data from which they are rebuilt
    summary: str = ""
    defense: str = ""
    epsilon: float | None = None  # epsilon of all embeddings of one row together, given the model at each
    delta: float = 0.0
    releases: int = 0  # greatest number of a row's noisy embeddings
    quick: bool = False  # whether some attacks of a full audit were left out
    columns: list[RebuiltColumn] = []
    means: list[MeanRebuilt] = []
    groups: list[RowGroup] = []  # rows that crossed outside training steps; columns and means above are for training rows
    not_measured: list[str] = []

    def worst_mean(self, known: int) -> float | None:
        """Return the largest mean over groups of rows for an attacker who knows this many rows, or None if none was measured."""
        every = [self.means, *(group.means for group in self.groups)]
        return max((mean.value for means in every for mean in means if mean.known == known), default=None)


class ColumnsFromGradients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold the measured disclosure of another party's columns by cut gradients, as the columns' owner found at home.

    Args:
        party: the owner of the columns.
        by: the party that could read them.
        summary: how it was measured.
        columns: the reconstruction of each column with gradients.
        without: the reconstruction without gradients.
        means, means_without: the means over these columns.
        not_measured: what could not be measured, and why.
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
    """Hold the result of one attack on one tried defence: max(AUC, 1 - AUC) per batch."""

    attack: str
    reads: CutReads
    auc: Estimate
    chance: float = 0.5  # its value for a guess
    upper_bound: bool = False  # needs labels that no attacker has


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold one defence at one strength, tried in simulation: the model's metric, and the leaks."""

    defense: str  # "none", "marvell", "cut after", ...
    strength: str = ""  # such as "4"
    guarantee: str = "no formal guarantee"
    utility: Estimate
    leaks: list[Leak] = []
    columns: Estimate | None = None  # mean over the feature party's of what the strongest embeddings-only attack rebuilds
    seeds: int = 1


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold defences tried in simulation: utility against leakage."""

    summary: str = ""
    metric: str = "AUC"  # metric of utility, on test rows
    local_baseline: Estimate | None = None  # the label party alone, which joining must beat
    known: int | None = None  # rows that attacks on columns know
    columns_not_measured: list[str] = []  # and why, in sentences
    trials: list[Trial] = []


class SimilarityHistogram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold similarities of linked rows, with noise and, as far as this party can tell, before noise."""

    edges: list[float]
    counts: list[int]
    before: list[int] = []  # links whose other end an attack placed, by their distances
    typical: float | None = None  # the distance of a similarity of 0, in ``unit``
    deviation: float | None = None  # the further distance of a similarity lower by 1
    unit: str = ""


class LinkMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold links on a map: this party's own keys, and the other side's at the places where an attack on its own view
    puts them.
    """

    party: str
    peer: str
    axes: list[str]  # names of both axes, with units
    rest: list[str] = []  # dimensions that the map does not show
    own: list[tuple[float, float]]
    located: list[tuple[float, float]]
    links: list[tuple[int, int]]  # (own, located)
    attack: str
    square: bool = False  # both directions have one unit


class LinkExample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold texts of one party's own rows, and the texts linked to them as far as it knows."""

    party: str
    peer: str
    own: str  # empty at a feature party, which does not know the other row
    linked: list[str]


class LinkageSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold links by similar keys as one party sees them, and what its peers could locate with them."""

    party: str
    neighbors: int
    helper_sees: str
    guarantee: str
    sigma: dict[str, float] = {}
    links: dict[str, int] = {}
    improvement: dict[str, dict[str, float]] = {}  # gain over AvgSim and Top1Sim, by feature party
    similarities: dict[str, SimilarityHistogram] = {}
    attacks: list[LocatedKeys] = []
    named: list[NamedKeys] = []
    maps: list[LinkMap] = []
    examples: list[LinkExample] = []
    notes: list[str] = []


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the findings of a run's audits."""

    membership: Audit | None = None
    leakage: Audit | None = None
    features: FeatureAudit | None = None
    told: list[ColumnsFromGradients] = []
