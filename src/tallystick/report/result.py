"""Result: everything that a run's report shows, as frozen structs that go to JSON and back.

Whoever runs a job fills these in; the report renders them and computes nothing. A party puts in only what it knows:
what is absent is left out of the page or named as kept by the other side. ``merge`` joins the results of all
parties of one run, for a demo that owns them all.
"""

import html
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args

import msgspec
import numpy as np

from tallystick.config.reading import Role
from tallystick.errors import DataError
from tallystick.evaluation.decisions import Decisions, Grouping
from tallystick.evaluation.measure import Comparison, MetricValue
from tallystick.metrics import TargetType
from tallystick.storage import SEAL, unsealed
from tallystick.structs import prepared

RESULT_VERSION = 2
SettingValue = str | int | float | bool | None


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every part of a result."""


class PartyInfo(_Part, frozen=True, kw_only=True):
    """A party of the contract."""

    name: str
    role: Role


class ContractInfo(_Part, frozen=True, kw_only=True):
    """The contract that all parties agreed on."""

    name: str
    hash: str  # hexadecimal
    yaml: str = ""  # full text
    summary: dict[str, SettingValue] = {}  # the settings worth seeing at a glance, such as {"batch size": 512}


class PhaseRecord(_Part, frozen=True, kw_only=True):
    """One phase of a party's run, with what crossed the network in it."""

    name: str  # "handshake", "alignment", "training", "evaluation", ...
    party: str
    seconds: float
    started: float | None = None  # seconds after the run began; None: right after this party's phase before
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0  # sent and received


class AlignmentSummary(_Part, frozen=True, kw_only=True):
    """How rows were matched."""

    method: str
    sizes: dict[str, int] = {}  # such as {"rows of carrier": 327346, "rows in common": 300000}
    learnt: list[str] = []  # one sentence each


class Learnt(_Part, frozen=True, kw_only=True):
    """What one party learnt from the others in one step, and what protects the rest."""

    step: str
    party: str
    what: str
    guarantee: str  # such as "semi-honest, DDH" or "no formal guarantee"


class ColumnSummary(_Part, frozen=True, kw_only=True):
    """Which columns a party brought; names stay home unless the party puts them into the note."""

    party: str
    numeric: int
    categorical: int
    sequences: int = 0
    note: str = ""
    names: list[str] = []  # a party's own page names its own columns; they are sent to nobody


class DataSummary(_Part, frozen=True, kw_only=True):
    """The rows that took part, per split, and the columns that each party brought."""

    rows: dict[str, int]  # in order: train, validation, test
    columns: list[ColumnSummary] = []
    notes: list[str] = []  # such as "12 rows with a null key were dropped"


class EpochRecord(_Part, frozen=True, kw_only=True):
    """One epoch; a loss is None where it is unknown, or was not finite."""

    epoch: int  # counted from 1
    train_loss: float | None
    validation_loss: float | None = None
    seconds: float | None = None


class TrainingSummary(_Part, frozen=True, kw_only=True):
    """One training: the joint one, or that of the label party's own columns."""

    mode: str
    steps: int
    best_epoch: int | None = None  # the epoch whose weights were kept
    history: list[EpochRecord] = []
    seconds: float | None = None
    steps_per_s: float | None = None
    resumed_from: int | None = None  # step, if the run was interrupted
    dropout: float = 0.0  # largest share of numbers that a layer of this party's part left out in training


class ModelPart(_Part, frozen=True, kw_only=True):
    """One party's part of the network."""

    party: str
    name: str  # "bottom model", "top model"
    layers: str  # such as "3 embeddings, 20-128-64"
    parameters: int


CutReads = Literal["cut gradients and cut embeddings", "cut gradients", "cut embeddings"]


def above_guess(auc: float, chance: float) -> float:
    """How far an AUC lies above what a guess has, as if that were 0.5: certainty is 0.5 above, whatever a guess has."""
    return (auc - chance) / (2 * max(1 - chance, 1e-9))


class AttackResult(_Part, frozen=True, kw_only=True):
    """How well one attack told one class from the other: AUC 0.5 is guessing, 1 is certainty.

    ``auc`` is of scores as the attacker turns them; ``symmetric_auc`` is max(a, 1 - a) per batch, for one who cannot tell which
    way is which; ``balanced_accuracy`` is (TPR + TNR) / 2 of hard guesses. Where the label is a number there is ``spearman`` in
    their place, the rank correlation, whichever way round, and ``r_squared`` of the best straight line.
    """

    name: str
    view: str  # in whose seat, such as "weather, from cut gradients"
    auc: float | None
    low: float | None = None
    high: float | None = None
    symmetric_auc: float | None = None
    symmetric_low: float | None = None
    symmetric_high: float | None = None
    symmetric_chance: float = 0.5  # what symmetric_auc is for a guess
    balanced_accuracy: float | None = None
    chance: float = 0.5  # what auc is for a guess; above 0.5 where the evaluator had to name clusters
    spearman: float | None = None
    spearman_low: float | None = None  # may be below 0, the other way round
    spearman_high: float | None = None
    spearman_chance: float = 0.0  # what spearman is for a guess
    r_squared: float | None = None
    rows: int | None = None  # that were ranked
    tpr_at_fpr_0: float | None = None  # share of positives that it names without one false alarm
    tpr_at_fpr_001: float | None = None  # share that it names with one false alarm in a thousand negatives
    upper_bound: bool = False  # needs labels that no attacker has
    note: str = ""

    @property
    def reads(self) -> CutReads:
        """What of the cut it reads, as its view says."""
        found: CutReads = next(reads for reads in get_args(CutReads) if f"from {reads}" in self.view)
        return found


class LeakGrowth(_Part, frozen=True, kw_only=True):
    """How one attack's symmetric AUC grew: what it had found by the end of some epochs, counted from 1."""

    name: str
    view: str
    epochs: list[int]
    symmetric_auc: list[float]


class Audit(_Part, frozen=True, kw_only=True):
    """The attacks that were run on this run's recorded views, and what defended against them.

    ``nothing_sent``: nothing that depends on what they are after was sent, so there is no view to attack.
    """

    summary: str = ""
    nothing_sent: bool = False
    defense: str = ""
    attacks: list[AttackResult] = []
    growth: list[LeakGrowth] = []
    not_measured: list[str] = []  # what could not be, and why, in sentences


class ColumnRebuilt(_Part, frozen=True, kw_only=True):
    """How much of one column the strongest attack rebuilt, knowing some rows: 0 is a guess, 1 all of it; see ``ColumnLeak``."""

    name: str
    kind: Literal["numeric", "categorical"]
    known: int
    attack: str
    value: float
    low: float
    high: float
    accuracy: float | None = None
    majority: float | None = None
    luck: float = 0.0  # what attacks find in 99 of 100 audits where there is nothing to find, at most
    used: bool = True  # False: the table has it, and the model was not given it


class MeanRebuilt(_Part, frozen=True, kw_only=True):
    """The mean over all columns that the model was given."""

    known: int
    value: float


class FeatureAudit(_Part, frozen=True, kw_only=True):
    """How well the label party could rebuild a feature party's columns, as that party found at home."""

    party: str
    by: str
    summary: str = ""
    defense: str = ""
    epsilon: float | None = None  # of all embeddings of one row together, given the model at each
    delta: float = 0.0
    releases: int = 0  # of one row at most, as far as noise is counted
    columns: list[ColumnRebuilt] = []
    means: list[MeanRebuilt] = []
    not_measured: list[str] = []


class Estimate(_Part, frozen=True, kw_only=True):
    """A mean over seeds, with a 95 % interval; of two seeds, which have no interval worth the name, with both values."""

    mean: float
    low: float
    high: float
    spread: Literal["interval", "min to max"] = "interval"


class Leak(_Part, frozen=True, kw_only=True):
    """What one attack got out of one tried defence: max(AUC, 1 - AUC) per batch."""

    attack: str
    reads: CutReads
    auc: Estimate
    chance: float = 0.5  # what it is for a guess
    upper_bound: bool = False  # needs labels that no attacker has


class Trial(_Part, frozen=True, kw_only=True):
    """One defence at one strength, tried in simulation: what the model is worth, and what leaks."""

    defense: str  # "none", "marvell", "cut after", ...
    strength: str = ""  # such as "4"
    guarantee: str = "no formal guarantee"
    utility: Estimate
    leaks: list[Leak] = []
    columns: Estimate | None = None  # mean over the feature party's of what the strongest attack on embeddings alone tells
    seeds: int = 1


class Sweep(_Part, frozen=True, kw_only=True):
    """Defences tried in simulation: utility against leakage."""

    summary: str = ""
    metric: str = "AUC"  # of utility, on test rows
    local_baseline: Estimate | None = None  # the label party alone: what joining must beat
    known: int | None = None  # rows that attacks on columns know
    columns_not_measured: list[str] = []  # and why, in sentences
    trials: list[Trial] = []


class TunedTrial(_Part, frozen=True, kw_only=True):
    """One training of a search."""

    number: int
    values: str  # in words
    loss: float | None = None  # on validation rows; the label party alone knows it
    epochs: int = 0
    embedded: int = 0  # rows of cut embeddings that each feature party sent
    answered: int = 0  # rows of cut gradients that it was sent
    seconds: float = 0.0
    problem: str = ""


class Tuning(_Part, frozen=True, kw_only=True):
    """What a search tried."""

    summary: str
    trials: list[TunedTrial] = []
    best: int | None = None  # where the losses are known


class Release(_Part, frozen=True, kw_only=True):
    """One number, or set of numbers, that left a label holder under differential privacy."""

    what: str
    mechanism: str
    protects: str  # "labels" or "whole records"
    epsilon: float
    delta: float = 0.0
    party: str = ""
    note: str = ""


class PrivacySummary(_Part, frozen=True, kw_only=True):
    """The privacy ledger after this run."""

    not_private: list[str] = []  # what left without a guarantee: in no sum
    releases: list[Release] = []
    spent_epsilon: float = 0.0  # composed, not added up
    spent_delta: float = 0.0
    cap_epsilon: float | None = None
    summary: str = ""
    columns: str = ""  # what a feature party's own noisy embeddings cost


class ColumnFall(_Part, frozen=True, kw_only=True):
    """By how much the metric falls when a column is shuffled: mean and standard deviation over repeats; no name of a peer's."""

    number: int  # from 1, in the order in which its party encodes its columns
    name: str | None
    mean: float
    deviation: float


class ImportanceSummary(_Part, frozen=True, kw_only=True):
    """Permutation importance of one party's columns for the joint model, on validation rows."""

    party: str
    metric: str  # title
    rows: int
    repeats: int
    before: float | None = None  # the metric with nothing shuffled, where it is known
    columns: list[ColumnFall] = []


class Shared(_Part, frozen=True, kw_only=True):
    """Exact results that the label party sent a feature party, as the contract says."""

    party: str  # who measured
    target: TargetType
    rows: int
    metrics: dict[str, MetricValue] = {}


class LinkWeights(_Part, frozen=True, kw_only=True):
    """What a link to a row of a feature party weighs in the trained network, by its similarity in standard deviations."""

    party: str
    similarities: list[float]
    weights: list[float]


class LocatedResult(_Part, frozen=True, kw_only=True):
    """How near one attack came to keys that were linked by similarity: distances from the truth, in ``unit``."""

    name: str
    attacker: str
    located: str  # whose keys
    placed: int
    median: float
    low: float
    high: float
    tenth: float  # a tenth of the keys are placed at least so well
    chance: float  # median of a guess at random
    unit: str = ""
    dimensions: list[str] = []  # of the keys, in which the distance is taken
    bounds: int = 0  # of the placed ones, those of which only a bound is known
    note: str = ""  # what stood in for what only the other side has


class NamedResult(_Part, frozen=True, kw_only=True):
    """How many text keys one attack named rightly, with a list that they are all on."""

    name: str
    attacker: str
    located: str  # whose keys
    named: int
    right: float  # share of these
    low: float
    high: float
    chance: float
    note: str = ""


class SimilarityHistogram(_Part, frozen=True, kw_only=True):
    """How similar linked rows are, noise included; and before noise, as far as this party can tell."""

    edges: list[float]
    counts: list[int]
    before: list[int] = []  # of links whose other end an attack placed, by the distances to there
    typical: float | None = None  # the distance of a similarity of 0, in ``unit``
    deviation: float | None = None  # how much further 1 less is
    unit: str = ""


class LinkMap(_Part, frozen=True, kw_only=True):
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


class LinkExample(_Part, frozen=True, kw_only=True):
    """Texts of one party's own rows, and what they are linked to as far as it knows."""

    party: str
    peer: str
    own: str  # empty at a feature party, which does not know the other row
    linked: list[str]


class LinkageSummary(_Part, frozen=True, kw_only=True):
    """Links by similar keys as one party sees them, and what its peers could locate by them."""

    party: str
    neighbors: int
    helper_sees: str
    guarantee: str
    sigma: dict[str, float] = {}
    links: dict[str, int] = {}
    improvement: dict[str, dict[str, float]] = {}  # by feature party, over AvgSim and Top1Sim
    similarities: dict[str, SimilarityHistogram] = {}
    attacks: list[LocatedResult] = []
    named: list[NamedResult] = []
    maps: list[LinkMap] = []
    examples: list[LinkExample] = []
    notes: list[str] = []


class Sections(_Part, frozen=True, kw_only=True):
    """Parts that only some runs have; each is shown when present."""

    decisions: Decisions | None = None
    groups: list[Grouping] = []
    importance: list[ImportanceSummary] = []
    shared: Shared | None = None
    link_weights: list[LinkWeights] = []

    membership: Audit | None = None
    leakage: Audit | None = None
    linkage: LinkageSummary | None = None
    features: list[FeatureAudit] = []  # one per feature party whose result this is
    sweep: Sweep | None = None
    tuning: Tuning | None = None
    privacy: PrivacySummary | None = None
    notes: list[str] = []


class Result(_Part, frozen=True, kw_only=True):
    """One run, as one party saw it, or as all did."""

    version: int = RESULT_VERSION
    run_id: str
    party: str | None  # whose result this is; None: all parties'
    parties: list[PartyInfo]
    contract: ContractInfo
    started: str  # ISO 8601 with time zone
    seconds: float
    phases: list[PhaseRecord] = []
    alignment: AlignmentSummary | None = None
    learnt: list[Learnt] = []
    data: DataSummary | None = None
    model: list[ModelPart] = []
    training: TrainingSummary | None = None
    local_baseline_training: TrainingSummary | None = None
    evaluation: Comparison | None = None  # None where it stays with the label party
    versions: dict[str, str] = {}  # such as {"tallystick": "0.1.0", "python": "3.11.2"}
    sections: Sections = Sections()

    @property
    def role(self) -> Role | None:
        """Role of the party whose result this is; None if it is all parties'."""
        return next((party.role for party in self.parties if party.name == self.party), None)

    @property
    def joint(self) -> Mapping[str, MetricValue]:
        """The joint model's metrics; none where they stay with the label party."""
        return self.evaluation["joint"] if self.evaluation is not None else {}

    @property
    def local_baseline(self) -> Mapping[str, MetricValue]:
        """The metrics of the label party's own columns alone; none where there is no such model, or they stay with it."""
        return (self.evaluation["local_baseline"] if self.evaluation is not None else None) or {}

    @property
    def label_audit(self) -> Audit:
        """What the attacks on labels found; an empty audit where none was made."""
        return self.sections.leakage or Audit()

    def __repr__(self) -> str:
        """One line per metric; the whole of it is in ``to_dict()``."""
        head = f"Result of {self.contract.name!r}, run {self.run_id}: {self._told()}"
        return "\n".join([head, *(f"  {name:<9} " + "   ".join(cells) for name, cells in self._metrics())])

    def _repr_html_(self) -> str:
        """The metrics as a table, for a notebook."""
        escape = html.escape
        head = f"<b>{escape(self.contract.name)}</b>, run {escape(self.run_id)}: {escape(self._told())}"
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for name, cells in self._metrics()
        )
        return f"<p>{head}</p>" + (f"<table><tbody>{rows}</tbody></table>" if rows else "")

    def _told(self) -> str:
        """Who took part, and on how many rows."""
        parts = [", ".join(f"{party.name} ({party.role})" for party in self.parties)]
        if self.data is not None:
            parts.append(", ".join(f"{count:,} {part}" for part, count in self.data.rows.items()) + " rows")
        if self.evaluation is not None and self.evaluation.get("weighted"):
            parts.append("metrics weighted by the sample weights")
        return "; ".join([*parts, f"{self.seconds:.1f} s"])

    def _metrics(self) -> list[tuple[str, list[str]]]:
        """Per metric: the joint model's, and what the label party's own columns give."""
        found = []
        for name, joint in self.joint.items():
            own = self.local_baseline.get(name)
            cells = [f"joint {metric_in_words(joint)}"] + (
                [f"own columns only {metric_in_words(own)}"] if own is not None else []
            )
            found.append((name, cells))
        return found

    def to_json(self) -> str:
        """Give the result as indented JSON; numbers that are not finite become null."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=_plain), indent=2).decode()

    def to_dict(self) -> dict[str, Any]:
        """Give the result as what json.loads(to_json()) gives."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, enc_hook=_plain))
        return found


def metric_in_words(metric: MetricValue) -> str:
    """Give a metric's value and, if there is one, its interval; or why there is no value."""
    if metric["value"] is None:
        return f"none: {metric['reason']}"
    interval = f" [{metric['low']:.4f}, {metric['high']:.4f}]" if metric["low"] is not None else ""
    return f"{metric['value']:.4f}{interval}"


def read_result(source: str | bytes | dict[str, Any]) -> Result:
    """Read a result from JSON or from its dictionary; raises DataError that names the field that does not fit."""
    try:
        _require_version(source)
        if isinstance(source, dict):
            return msgspec.convert({name: value for name, value in source.items() if name != SEAL}, prepared(Result))
        return msgspec.json.decode(unsealed(source.encode() if isinstance(source, str) else source), type=Result)
    except msgspec.MsgspecError as error:
        raise DataError(f"this is not a result of tallystick: {error}") from None


class _Versioned(msgspec.Struct, frozen=True):
    """What every version of a result says first."""

    version: int = RESULT_VERSION


def _require_version(source: str | bytes | dict[str, Any]) -> None:
    """Refuse a result of another version in one line, not by the first of its fields that has changed."""
    written = (
        msgspec.convert(source, prepared(_Versioned))
        if isinstance(source, dict)
        else msgspec.json.decode(source, type=prepared(_Versioned))
    )
    if written.version != RESULT_VERSION:
        which = "an earlier" if written.version < RESULT_VERSION else "a later"
        raise DataError(
            f"this is a result of {which} version of tallystick (format {written.version}; this one reads {RESULT_VERSION}); "
            "use that version for it"
        )


T = TypeVar("T")


def merge(results: Sequence[Result]) -> Result:
    """Join the results of the parties of one run into one that covers them all.

    What only one party has (evaluation, training) comes from the first that has it, the label party before the others.
    Raises DataError if the results are not of one run of one contract.
    """
    if not results:
        raise DataError("there are no results to merge; give one per party")
    for field, found in {
        "run": {result.run_id for result in results},
        "contract": {result.contract.hash for result in results},
    }.items():
        if len(found) > 1:
            raise DataError(f"the results are of more than one {field}: {', '.join(sorted(found))}; merge the parties of one run")
    ordered = sorted(results, key=lambda result: result.role != "label")
    first, began = ordered[0], min(_instant(result) for result in ordered)
    return msgspec.structs.replace(
        first,
        party=None,
        parties=_unique([party for result in ordered for party in result.parties]),
        started=min(ordered, key=_instant).started,
        seconds=max(result.seconds for result in ordered),
        phases=[phase for result in ordered for phase in _shifted(result.phases, _instant(result) - began)],
        alignment=_first([result.alignment for result in ordered]),
        learnt=_by_step(_unique([learnt for result in ordered for learnt in result.learnt])),
        data=_merged_data([result.data for result in ordered if result.data is not None]),
        model=_unique([part for result in ordered for part in result.model]),
        training=_first([result.training for result in ordered]),
        local_baseline_training=_first([result.local_baseline_training for result in ordered]),
        evaluation=_first([result.evaluation for result in ordered]),
        versions={name: version for result in reversed(ordered) for name, version in result.versions.items()},
        sections=Sections(
            membership=_merged_audit([result.sections.membership for result in ordered]),
            leakage=_first([result.sections.leakage for result in ordered]),
            linkage=_merged_linkage([result.sections.linkage for result in ordered]),
            features=[audit for result in ordered for audit in result.sections.features],
            sweep=_first([result.sections.sweep for result in ordered]),
            tuning=_first([result.sections.tuning for result in ordered]),
            privacy=_first([result.sections.privacy for result in ordered]),
            decisions=_first([result.sections.decisions for result in ordered]),
            link_weights=[one for result in ordered for one in result.sections.link_weights],
            groups=[grouping for result in ordered for grouping in result.sections.groups],
            importance=_merged_importance([one for result in ordered for one in result.sections.importance]),
            notes=_unique([note for result in ordered for note in result.sections.notes]),
        ),
    )


def _instant(result: Result) -> float:
    try:
        return datetime.fromisoformat(result.started).timestamp()
    except ValueError:
        raise DataError(
            f"started is {result.started!r}; it must be an ISO 8601 time, such as 2026-01-31T09:30:00+00:00"
        ) from None


def _shifted(phases: list[PhaseRecord], seconds: float) -> list[PhaseRecord]:
    return [
        phase if phase.started is None else msgspec.structs.replace(phase, started=phase.started + seconds) for phase in phases
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a result holds {value!r} of {type(value)}; give plain numbers, texts, lists and dictionaries")


def _merged_data(found: list[DataSummary]) -> DataSummary | None:
    if not found:
        return None
    return DataSummary(
        rows=found[0].rows,
        columns=_unique([columns for data in found for columns in data.columns]),
        notes=_unique([note for data in found for note in data.notes]),
    )


def _merged_audit(found: list[Audit | None]) -> Audit | None:
    """Each party audits what it sent: together these are all parties' views."""
    audits = [audit for audit in found if audit is not None]
    if not audits:
        return None
    return Audit(
        summary=" ".join(_unique([audit.summary for audit in audits])),
        defense=audits[0].defense,
        attacks=[attack for audit in audits for attack in audit.attacks],
        not_measured=_unique([line for audit in audits for line in audit.not_measured]),
    )


def _merged_linkage(found: list[LinkageSummary | None]) -> LinkageSummary | None:
    """The label party's, with what every party found of its own exposure."""
    parts = [one for one in found if one is not None]
    if not parts:
        return None
    whole = max(parts, key=lambda one: len(one.improvement))
    notes = _unique([note for one in parts for note in one.notes])
    return msgspec.structs.replace(
        whole,
        attacks=[attack for one in parts for attack in one.attacks],
        named=[each for one in parts for each in one.named],
        maps=[each for one in parts for each in one.maps],
        examples=[each for one in parts for each in one.examples],
        notes=notes,
    )


def _merged_importance(found: list[ImportanceSummary]) -> list[ImportanceSummary]:
    """One per party: what the party itself says of its columns has their names, and what its peer measured has the start."""
    merged: dict[str, ImportanceSummary] = {}
    for one in found:
        before = merged.get(one.party)
        merged[one.party] = one if before is None else msgspec.structs.replace(before, columns=one.columns)
    return list(merged.values())


def _by_step(found: list[Learnt]) -> list[Learnt]:
    """Group by step, in the order in which the steps first come; within a step the order stays."""
    steps = [learnt.step for learnt in found]
    return sorted(found, key=lambda learnt: steps.index(learnt.step))


def _first(values: list[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _unique(values: list[T]) -> list[T]:
    return [value for i, value in enumerate(values) if value not in values[:i]]
