"""Hold the facts of a run other than leaks: parties, rows, training, importance, releases, as frozen structs for JSON."""

from typing import Literal

import msgspec

from tallystick.evaluation.measure import MetricValue
from tallystick.metrics import TargetType
from tallystick.reading import Role

SettingValue = str | int | float | bool | None


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every part of a result."""


class PartyInfo(Part, frozen=True, kw_only=True):
    """A party of the contract."""

    name: str
    role: Role


class ContractInfo(Part, frozen=True, kw_only=True):
    """Hold the contract that all parties agreed on."""

    name: str
    hash: str  # hexadecimal
    yaml: str = ""  # full text
    summary: dict[str, SettingValue] = {}  # the most important settings, such as {"batch size": 512}


class PhaseRecord(Part, frozen=True, kw_only=True):
    """Hold one phase of a party's run, with the traffic on the network in it."""

    name: str  # "handshake", "alignment", "training", "evaluation", ...
    party: str
    seconds: float
    started: float | None = None  # seconds after the run began; None: right after this party's phase before
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0  # sent and received


class AlignmentSummary(Part, frozen=True, kw_only=True):
    """Hold the matching of rows in a run."""

    method: str
    sizes: dict[str, int] = {}  # such as {"rows of carrier": 327346, "rows in common": 300000}
    learnt: list[str] = []  # one sentence each


class SampleSummary(Part, frozen=True, kw_only=True):
    """Hold the sample of ids of an exploration."""

    ids: dict[str, int]  # all ids of each party
    drawn: int  # ids drawn from this party
    common: int  # to both samples
    share: float  # share of all ids that was drawn


class Learnt(Part, frozen=True, kw_only=True):
    """Hold the knowledge that one party gained from the others in one step, and the protection of the rest."""

    step: str
    party: str
    what: str
    guarantee: str  # such as "semi-honest, DDH" or "no formal guarantee"


class ColumnSummary(Part, frozen=True, kw_only=True):
    """Hold the columns that a party brought. Names stay home unless the party puts them into the note."""

    party: str
    numeric: int
    categorical: int
    sequences: int = 0
    note: str = ""
    names: list[str] = []  # a party's own page names its own columns; they are not sent


class DataSummary(Part, frozen=True, kw_only=True):
    """Hold the rows that took part, per split, and the columns that each party brought."""

    rows: dict[str, int]  # in order: train, validation, test
    columns: list[ColumnSummary] = []
    notes: list[str] = []  # such as "12 rows with a null key were dropped"


class EpochRecord(Part, frozen=True, kw_only=True):
    """Hold one epoch. A loss is None if it is unknown or not finite."""

    epoch: int  # counted from 1
    train_loss: float | None
    validation_loss: float | None = None  # the lowest of the epoch's validations
    seconds: float | None = None


class TrainingSummary(Part, frozen=True, kw_only=True):
    """Hold one training: the joint one, or that of the label party's own columns."""

    mode: str
    steps: int
    best_epoch: int | None = None  # the epoch whose weights were kept; with folds the one that validated best in all
    best_step: int | None = None  # the step of that epoch after which they were kept; with folds the last one's, of any epoch
    history: list[EpochRecord] = []
    seconds: float | None = None
    steps_per_s: float | None = None
    resumed_from: int | None = None  # step, if the run was interrupted
    refit_epochs: int = 0  # the last of the history's epochs, which began again with the validation rows; 0 without a refit
    refit_steps: int = 0  # steps of these epochs; the last epoch may end early
    folds: int = 1  # networks side by side, each trained on the rows without one fold of them; 1 is a single network
    dropout: float = 0.0  # largest share of numbers that a layer of this party's part dropped in training


class ModelPart(Part, frozen=True, kw_only=True):
    """Hold one party's part of the network."""

    party: str
    name: str  # "bottom model", "top model"
    layers: str  # such as "3 embeddings, 20-128-64"
    parameters: int


class Estimate(Part, frozen=True, kw_only=True):
    """Hold a mean over seeds, with a 95 % interval. Two seeds give no useful interval, so both values are given instead."""

    mean: float
    low: float
    high: float
    spread: Literal["interval", "min to max"] = "interval"


class TunedTrial(Part, frozen=True, kw_only=True):
    """Hold one training of a search."""

    number: int
    values: str  # in words
    loss: float | None = None  # on validation rows; only the label party knows it
    epochs: int = 0
    embedded: int = 0  # rows of cut embeddings that each feature party sent
    answered: int = 0  # rows of cut gradients that it received
    seconds: float = 0.0
    problem: str = ""


class Tuning(Part, frozen=True, kw_only=True):
    """Hold the trials of a search."""

    summary: str
    trials: list[TunedTrial] = []
    best: int | None = None  # if the losses are known


class Release(Part, frozen=True, kw_only=True):
    """Hold one number, or set of numbers, that left a label holder under differential privacy."""

    what: str
    mechanism: str
    protects: str  # "labels" or "whole records"
    epsilon: float
    delta: float = 0.0
    party: str = ""
    note: str = ""


class PrivacySummary(Part, frozen=True, kw_only=True):
    """Hold the privacy ledger after this run."""

    not_private: list[str] = []  # releases without a guarantee, which are in no sum
    releases: list[Release] = []
    spent_epsilon: float = 0.0  # composed, not added up
    spent_delta: float = 0.0
    cap_epsilon: float | None = None
    summary: str = ""
    columns: str = ""  # the cost of a feature party's own noisy embeddings


class ColumnFall(Part, frozen=True, kw_only=True):
    """Hold the fall of the metric if a column is shuffled: mean and standard deviation over repeats.

    It never holds the name of a peer's column.
    """

    number: int  # from 1, in the order in which its party encodes its columns
    name: str | None
    mean: float
    deviation: float


class ImportanceSummary(Part, frozen=True, kw_only=True):
    """Hold the permutation importance of one party's columns for the joint model, on validation rows."""

    party: str
    metric: str  # title
    rows: int
    repeats: int
    before: float | None = None  # the metric without shuffling, if it is known
    columns: list[ColumnFall] = []


class Shared(Part, frozen=True, kw_only=True):
    """Hold exact results that the label party sent a feature party, as the contract says."""

    party: str  # the party that measured
    target: TargetType
    rows: int
    metrics: dict[str, MetricValue] = {}


class LinkWeights(Part, frozen=True, kw_only=True):
    """Hold the weights of links to a feature party's rows in the trained network, by similarity in standard deviations."""

    party: str
    similarities: list[float]
    weights: list[float]
