"""Define the sections of a contract, with every key: parties, target, split, model, training, evaluation, network."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from tallystick.config.imputation import (
    FEATURES,
    LABELS,
    FeatureStrategy,
    LabelStrategy,
)
from tallystick.config.merge import AttentionMergeConfig, MergeConfig
from tallystick.metrics import METRICS, TargetType
from tallystick.reading import Count, Model, Name, Role, Share, Text, Variant, Width, each_once, usual

ROLE_ALIASES: dict[str, Role] = {
    **dict.fromkeys(("active", "primary", "guest", "leader"), "label"),
    **dict.fromkeys(("passive", "secondary", "host", "follower"), "feature"),
    **dict.fromkeys(("server", "coordinator", "arbiter"), "helper"),
}

Dummies = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Epochs = Annotated[int, Field(strict=True, ge=1, le=65_535)]
Validations = Annotated[int, Field(strict=True, ge=1, le=64)]
Rate = Annotated[float, Field(strict=True, ge=1e-9, le=1e6)]
ReleaseEpsilon = Annotated[float, Field(strict=True, ge=1e-9, le=100)]
Level = Annotated[float, Field(strict=True, ge=0.001, le=0.999)]
ModulePath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


if TYPE_CHECKING:
    RoleName: TypeAlias = str
else:
    RoleName = Literal[("label", "feature", "helper", *ROLE_ALIASES)]


class ContractParty(Model):
    """One party of the contract."""

    role: Annotated[
        Role,
        BeforeValidator(
            lambda role: ROLE_ALIASES.get(role, role) if isinstance(role, str) else role, json_schema_input_type=RoleName
        ),
    ] = Field(
        description="label (also active, primary, guest, leader), feature (passive, secondary, host, follower) "
        "or helper (server, coordinator, arbiter)"
    )


class UnionConfig(Model):
    """Imputation for rows that a side lacks, when the parties train on their union (FLORIST)."""

    labels: LabelStrategy = Field(default="settled", description=LABELS)
    features: FeatureStrategy = Field(default="splice", description=FEATURES)
    label_dummies: Dummies = Field(default=0, description="limit of made-up ids that the label party adds to blur its size")
    feature_dummies: Dummies = Field(default=0, description="limit of made-up ids that the feature party adds to blur its size")
    audit: bool = Field(default=True, strict=True, description="attack the run's own views for membership and report the result")


class TargetKeys(Variant):
    """Base of the targets of the prediction."""

    is_number: ClassVar[bool] = False
    """Whether labels are numbers, not classes."""

    @property
    def outputs(self) -> int:
        """Count the outputs of a model for the target."""
        return 1


class BinaryTarget(TargetKeys):
    """One of two classes."""

    type: Literal["binary"] = Field(default="binary", description="kind of label")

    classes: ClassVar[int] = 2


class MulticlassTarget(TargetKeys):
    """One of several classes."""

    type: Literal["multiclass"] = Field(description="kind of label")
    classes: int = Field(strict=True, ge=3, le=100_000, description="number of classes")

    @property
    def outputs(self) -> int:
        """Count the classes."""
        return self.classes


class MultilabelTarget(TargetKeys):
    """Several labels of a row, each of two classes."""

    type: Literal["multilabel"] = Field(description="kind of label")
    labels: Annotated[tuple[Text, ...], Field(min_length=2, max_length=16), AfterValidator(each_once)] = Field(
        default=(),
        validate_default=True,
        description="the label party's label columns, whose names all parties read",
    )

    classes: ClassVar[int] = 2

    @property
    def outputs(self) -> int:
        """Count the labels."""
        return len(self.labels)


class RegressionTarget(TargetKeys):
    """A number."""

    type: Literal["regression"] = Field(description="kind of label")

    classes: ClassVar[int] = 2
    is_number: ClassVar[bool] = True


class CountTarget(TargetKeys):
    """How often something happens: a whole number from 0 on."""

    type: Literal["count"] = Field(description="kind of label")

    classes: ClassVar[int] = 2
    is_number: ClassVar[bool] = True


class SurvivalTarget(TargetKeys):
    """How long until something happens: a positive number, or minus the time over which it did not."""

    type: Literal["survival"] = Field(description="kind of label")

    classes: ClassVar[int] = 2
    is_number: ClassVar[bool] = True


def _ascending(levels: tuple[float, ...]) -> tuple[float, ...]:
    # Six digits of a level name its scores and shares.
    if any(upper <= lower or f"{upper:g}" == f"{lower:g}" for lower, upper in pairwise(levels)):
        shown_levels = ", ".join(f"{level:g}" for level in levels)
        raise ValueError(f"are {shown_levels}, in six digits; give each level once, the lowest first")
    return levels


class QuantileTarget(TargetKeys):
    """Numbers that a label stays below with given probabilities."""

    type: Literal["quantile"] = Field(description="kind of label")
    levels: Annotated[tuple[Level, ...], Field(min_length=1, max_length=99), AfterValidator(_ascending)] = Field(
        default=(0.1, 0.5, 0.9),
        description="probabilities that a label is at most the predicted number, ascending; each level has its own score",
    )

    classes: ClassVar[int] = 2
    is_number: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """Count the levels."""
        return len(self.levels)


TargetConfig: TypeAlias = Annotated[
    BinaryTarget | MulticlassTarget | MultilabelTarget | RegressionTarget | CountTarget | SurvivalTarget | QuantileTarget,
    Field(discriminator="type"),
    usual("type", "binary"),
]


def target_of(kind: TargetType, *, classes: int) -> TargetConfig:
    """Return the target of this kind."""
    if kind == "multiclass":
        return MulticlassTarget(type=kind, classes=classes)
    if kind == "count":
        return CountTarget(type=kind)
    if kind == "survival":
        return SurvivalTarget(type=kind)
    if kind == "quantile":
        return QuantileTarget(type=kind)
    return RegressionTarget(type=kind) if kind == "regression" else BinaryTarget()


class SplitConfig(Model):
    """Rows for training, validation and test."""

    method: Literal["hash", "time"] = Field(
        default="hash", description="keyed hash of the id, or the label party's time column (latest rows are test)"
    )
    validation: Share = Field(default=0.1, description="share of rows for validation, 0 or more")
    test: Share = Field(default=0.2, description="share of rows for test, 0 or more; validation + test < 1")


WIDE_CUT = 512
"""The default cut width if bottom models are not trained: a wide layer makes up for random weights."""
STILL_SCALE = 0.3
"""Scale of the embeddings of all categories there, because they do not grow in training (docs/results/no-gradients-price.md)."""


class NetworkModel(Model):
    """The split network."""

    embedding_width: Annotated[int, Field(strict=True, ge=1, le=4096)] | Literal["auto"] = Field(
        default="auto",
        description="width of each categorical's embedding; auto: its number of categories and two more, for missing and for "
        "rare or unseen values; at most 16",
    )
    embedding_scale: Annotated[float, Field(strict=True, gt=0, le=100)] | Literal["auto"] = Field(
        default="auto",
        description="standard deviation of embeddings of categories before training; auto: 0.3 for a column with at least 200 "
        "training rows for each category on average (missing and rare values count as two more), 0.1 for others, and "
        "0.3 for all columns of a feature party where training.gradients is none",
    )
    numeric: Literal["auto", "plain", "piecewise-linear", "periodic"] = Field(
        default="auto",
        description="what a built-in bottom adds to each number: plain: nothing; piecewise-linear: a function that is "
        "linear within up to 128 bins, 12 wide, with a linear term, whose weights begin at zero (Gorishniy et al. "
        "2022, 3.2.1); periodic: sines and cosines at learnt frequencies, 12 wide (3.2.2); auto: each party takes "
        "piecewise-linear from 400 training rows on, and plain below",
    )
    normalization: Literal["none", "batch"] = Field(
        default="none", description="of the built-in bottoms' layers: none, or by the batch's mean and deviation"
    )
    hidden: tuple[Width, ...] = Field(
        default=(128, 256, 256), min_length=1, max_length=100, description="widths of the hidden layers"
    )
    cut_after: Count = Field(default=1, description="hidden layers below the cut, 1 to the number of hidden layers")
    ensemble: int = Field(
        default=1,
        strict=True,
        ge=1,
        le=64,
        description="networks side by side above the cut, each with layers a quarter as wide; they learn separately, and the "
        "mean of their logits predicts; nothing more crosses the cut; 1 is a single network",
    )
    cut_width: Width | None = Field(
        default=None,
        description="width of a feature party's cut embedding; null takes that of its last hidden layer, or "
        f"{WIDE_CUT} if training.gradients is none",
    )
    wide: bool = Field(default=False, strict=True, description="the label party's own columns also reach the output linearly")
    bottoms: dict[Name, ModulePath] = Field(
        default_factory=dict, description="party name to its own bottom: package.module:Class"
    )
    top: ModulePath | None = Field(default=None, description="own top model: package.module:Class; null is the built-in one")
    merge: MergeConfig = Field(default_factory=AttentionMergeConfig, description="how linked rows are merged (similarity only)")

    @property
    def narrowed(self) -> bool:
        """Tell whether the cut is narrower than the layer before it."""
        return self.cut_width is not None and self.cut_width < self.hidden[self.cut_after - 1]

    @property
    def built_in_cut_width(self) -> int:
        """Return the width of a feature party's cut embedding if its bottom is built in."""
        return self.cut_width or self.hidden[self.cut_after - 1]

    def still(self) -> "NetworkModel":
        """Return the network for a feature party whose bottom model is not trained."""
        scale = STILL_SCALE if self.embedding_scale == "auto" else self.embedding_scale
        return self.model_copy(update={"cut_width": self.cut_width or WIDE_CUT, "embedding_scale": scale})


CompressionName: TypeAlias = Literal["none", "bfloat16", "int8"]
"""How the numbers of a training step are encoded for the wire (cut/compression.py)."""


WITHIN, WITHIN_LONG, SHORT = 4, 2, 100
"""Comparisons on validation rows per epoch of fewer than SHORT steps, and per longer epoch: there four gained nothing over two
(docs/results/quality.md).
"""


FOLDS, MOST_FOLDS = 4, 16
LEAST_FOLDED, FULL, FULL_ALONE = 200, 2_000, 10_000
"""Training rows from which ``training.folds: auto`` uses FOLDS networks, and from which it uses one again: joint networks
(docs/results/quality.md), and networks of own columns alone (docs/results/unaligned.md).
"""


_GRADIENTS = (
    "what is sent back over the cut: gradients, from which bottom models learn and labels can be read; or nothing: each row's "
    "embedding crosses once, from an untrained bottom model, and then the label party trains alone; or shared: nothing "
    "crosses in the clear, and a linear head is trained on secret shares, with a helper"
)
_MODE = (
    "lossless, or the parties overlap, with stale cut gradients; auto: the label party measures the round trip before "
    "training, and chooses pipelined from 5 ms on, with enough batches in flight to fill it"
)
Folds = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=MOST_FOLDS)] | Literal["auto"],
    Field(
        description="number of networks; each trains on the training and validation rows without one fold, which chooses its "
        "weights; the mean of their logits predicts. Thresholds and column importance come from the network without the "
        "validation rows. Embeddings are wider by this factor. auto: "
        f"{FOLDS} for {LEAST_FOLDED} to {FULL - 1:,} training rows, if the split is by hash and nothing in the contract "
        "excludes folds, otherwise 1"
    ),
]
Compression = Annotated[
    CompressionName,
    Field(
        description="how the numbers of a training step are sent, in both directions: unchanged; bfloat16 with two bytes "
        "each; int8 with one, and four bytes per row. Validation, test and prediction are sent unchanged. Not a defence"
    ),
]
Staleness = Annotated[
    int,
    Field(
        strict=True,
        ge=1,
        le=1024,
        description="batches in flight; from 4 on, half of them travel in one message, of at most 4,096 rows, which is faster",
    ),
]


class TrainingKeys(Model):
    """Keys of training that apply whatever crosses the cut. ``auto`` depends on the number of training rows."""

    epochs: Epochs | Literal["auto"] = Field(
        default="auto",
        description="limit of passes over the training rows; auto: as many as take about 6,000 steps, 4 to 60, or 40,000, "
        "20 to 400, if schedule is open-ended",
    )
    batch_size: Count | Literal["auto"] = Field(
        default="auto",
        description="rows per step; auto is a power of two: a fortieth of the training rows within 16 to 128, and from "
        "50,000 rows on a four-hundredth, at most 1,024",
    )
    optimizer: Literal["adam", "adamw", "lamb", "sgd"] = Field(
        default="adamw",
        description="optimizer of every party; adamw decouples weight decay from the gradient, lamb is FedSim's",
    )
    learning_rate: Rate = Field(default=0.001, description="learning rate of every party")
    schedule: Literal["constant", "cosine", "open-ended"] = Field(
        default="cosine",
        description="how the learning rate changes: constant; falling to 0 along half a cosine over all epochs; or open-ended: "
        "constant, for as long as validation improves, which takes twice the time and pays on some tables",
    )
    warm_up: float = Field(
        default=0.0, strict=True, ge=0, lt=1, description="share of all steps over which the rate first rises (cosine only)"
    )
    weight_decay: float = Field(default=0.0, strict=True, ge=0, le=100, description="weight decay of every party")
    clip: float | None = Field(
        default=None,
        strict=True,
        ge=1e-9,
        le=1e9,
        description="largest norm of the gradients of a party's weights; null sets no limit",
    )
    ema: float | None = Field(
        default=0.995,
        strict=True,
        gt=0,
        lt=1,
        description="how much of the averaged weights a step keeps (less in the first steps); each party averages its own; "
        "epochs are compared by the averages, which are the trained model; null turns averaging off",
    )
    gradients: Literal["sent", "none", "shared"] = Field(default="sent", description=_GRADIENTS)
    mode: Literal["synchronous", "pipelined", "auto"] = Field(default="synchronous", description=_MODE)
    patience: Count | Literal["auto"] | None = Field(
        default="auto",
        description="epochs without a better validation loss before stopping; auto: as many as take 200 steps, 2 to 5, or "
        "1,000 steps, 3 to 16, if schedule is open-ended; null never stops",
    )
    minutes: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=1e6,
        description="limit of minutes for a training, by the label party's clock; it ends after the epoch in which they are "
        "over, so another run may give other bits; a refit repeats as many passes; null sets no limit",
    )
    validations: Validations | Literal["auto"] = Field(
        default="auto",
        description="how often per epoch the weights are compared on the validation rows, the last time at its end; auto: 4 "
        "if an epoch has fewer than 100 steps, otherwise 2; but 1 with a defence of columns, a narrowed cut "
        "(model.cut_width), a union, pipelined training or folds",
    )
    refit: Literal["auto", True, False] = Field(
        default="auto",
        description="whether training begins again with the validation rows among the training rows, for the number of passes "
        "that validated best; thresholds and column importance come from the model before; auto: if the split is by time, "
        "because the newest rows are the validation rows",
    )
    folds: Folds = "auto"
    starts: Literal["secret", "public"] = Field(
        default="secret",
        description="source of the initial weights: each party's own secret, or the contract's seed, with which every party "
        "can rebuild the others' first models and read columns and labels from the first batches; public is for "
        "experiments, without a defence and not on a union",
    )
    checkpoint_every: Count = Field(default=200, description="steps between checkpoints; all parties commit the same step")

    @property
    def is_open_ended(self) -> bool:
        """Tell whether training goes on at one rate as long as validation improves, without a planned end."""
        return self.schedule == "open-ended"

    def folds_notes(self, count: int) -> list[str]:
        """Describe several networks side by side. Return nothing for a single one."""
        if count == 1:
            return []
        return [
            f"training.folds = {self.folds}: {count} networks side by side, each trained on the training and validation rows but "
            "one fold"
        ]

    def resolved(self, rows: int) -> "TrainingConfig":
        """Resolve ``auto`` by the number of training rows, which every party knows after rows are linked."""
        batch_size = fitting_batch_size(rows) if self.batch_size == "auto" else self.batch_size
        open_ended = self.is_open_ended
        epochs, patience = self.epochs, self.patience
        if epochs == "auto":
            epochs = longest_epochs(rows, batch_size) if open_ended else fitting_epochs(rows, batch_size)
        if patience == "auto":
            patience = (longest_patience if open_ended else fitting_patience)(rows, batch_size)
        mode = "synchronous" if self.mode == "auto" and self.gradients == "none" else self.mode  # nothing waits for the network
        folds = self.folds
        if folds == "auto":
            folds = fitting_folds(rows) if self.gradients == "sent" else 1
        validations = self.validations
        if validations == "auto":
            within = WITHIN if steps_of_epoch(rows, batch_size) < SHORT else WITHIN_LONG
            validations = within if folds == 1 else 1
        values: dict[str, Any] = {
            "batch_size": batch_size,
            "epochs": epochs,
            "mode": mode,
            "validations": validations,
            "patience": patience,
        }
        values |= {"folds": folds, "schedule": "constant" if open_ended else self.schedule}
        return TrainingConfig.model_validate(self.model_dump() | values)

    def resolved_notes(self, rows: int) -> list[str]:
        """Say which values ``auto`` gets for this many training rows."""
        config = self.resolved(rows)
        return [
            f"training.{key} = auto: {getattr(config, key)}, by {rows:,} training rows"
            for key in ("batch_size", "epochs", "patience")
            if getattr(self, key) == "auto"
        ]


class TrainingChoice(TrainingKeys, Variant):
    """Base of the ways of training that a contract can ask for."""


class SynchronousTraining(TrainingChoice):
    """Training in which every step waits for its gradients, or which chooses its mode itself."""

    gradients: Literal["sent"] = Field(default="sent", description=_GRADIENTS)
    mode: Literal["synchronous", "auto"] = Field(default="synchronous", description=_MODE)
    compression: Compression = "none"

    staleness: ClassVar[int] = 2


class PipelinedTraining(TrainingChoice):
    """Training with several batches in flight."""

    gradients: Literal["sent"] = Field(default="sent", description=_GRADIENTS)
    mode: Literal["pipelined"] = Field(description=_MODE)
    staleness: Staleness = 2
    compression: Compression = "none"


class StillTraining(TrainingChoice):
    """Training without gradients: each row crosses once, for one network, and nothing waits for gradients."""

    gradients: Literal["none"] = Field(description=_GRADIENTS)
    mode: Literal["synchronous", "auto"] = Field(default="synchronous", description=_MODE)
    folds: Literal["auto", 1] = Field(default="auto", description="number of networks: one, whose embeddings cross once")

    staleness: ClassVar[int] = 2
    compression: ClassVar[Literal["none"]] = "none"


class SharedTraining(TrainingChoice):
    """Training of a linear head on secret shares, on features that no training changes."""

    gradients: Literal["shared"] = Field(description=_GRADIENTS)
    mode: Literal["synchronous"] = Field(default="synchronous", description=_MODE)
    folds: Literal["auto", 1] = Field(default="auto", description="number of heads: one")
    learning_rate: Rate = Field(
        default=0.5,
        description="learning rate of the first step; it falls evenly to 0. For numbers a batch counts as at least 512 rows",
    )
    weight_decay: float = Field(
        default=0.1,
        strict=True,
        ge=0,
        le=100,
        description="weight decay of the head, times features per training row (at most .3), and times the share of the "
        "labels' variance that the label party's own columns do not explain, which no other party learns",
    )

    staleness: ClassVar[int] = 2
    compression: ClassVar[Literal["none"]] = "none"

    def resolved(self, rows: int) -> "TrainingConfig":
        """Resolve epochs and batches: at least 300 steps with few, large batches, because a step takes five exchanges."""
        large = min(max(2 ** round(math.log2(max(rows, 1) / 24)), 128), 1024)
        batch_size = large if self.batch_size == "auto" else self.batch_size
        epochs = max(12, math.ceil(300 / steps_of_epoch(rows, batch_size))) if self.epochs == "auto" else self.epochs
        settings = {"epochs": epochs, "batch_size": batch_size}
        return super(SharedTraining, self.model_copy(update=settings)).resolved(rows)


SentGradients: TypeAlias = Annotated[
    SynchronousTraining | PipelinedTraining, Field(discriminator="mode"), usual("mode", "synchronous")
]
TrainingSettings: TypeAlias = Annotated[
    SentGradients | StillTraining | SharedTraining, Field(discriminator="gradients"), usual("gradients", "sent")
]


class TrainingConfig(TrainingKeys):
    """Training of the network with every number resolved. The defaults are those of the papers, which train plainly."""

    epochs: Epochs = 5
    batch_size: Count = 512
    optimizer: Literal["adam", "adamw", "lamb", "sgd"] = "adam"
    schedule: Literal["constant", "cosine"] = "constant"
    ema: float | None = None
    patience: Count | None = 2
    validations: Validations = 1
    refit: Literal["auto", True, False] = False
    folds: Annotated[int, Field(strict=True, ge=1, le=MOST_FOLDS)] = 1
    staleness: Staleness = 2
    compression: Compression = "none"


def fitting_folds(rows: int, *, full: int = FULL) -> int:
    """Choose several networks for few rows, because a single one has too few rows for training and validation. Choose 1 for very
    few rows, or for at least ``full``.
    """
    return FOLDS if LEAST_FOLDED <= rows < full else 1


def fitting_batch_size(rows: int) -> int:
    """Return a power of two: about a fortieth of a small table, 128 for a middling one, a four-hundredth of a large one."""
    small, large = (2 ** round(math.log2(max(rows, 1) / parts)) for parts in (40, 400))
    return int(max(min(max(small, 16), 128), min(large, 1024)))


def longest_epochs(rows: int, batch_size: int) -> int:
    """Bound a training that validation ends: 40,000 steps, within 20 to 400 epochs."""
    return min(max(round(40_000 / steps_of_epoch(rows, batch_size)), 20), 400)


def longest_patience(rows: int, batch_size: int) -> int:
    """Choose as many epochs as take 1,000 steps, within 3 to 16. They end a training that has no other end."""
    return min(max(math.ceil(1000 / steps_of_epoch(rows, batch_size)), 3), 16)


def fitting_epochs(rows: int, batch_size: int) -> int:
    """Choose as many epochs as take about 6,000 steps, within 4 to 60."""
    return min(max(round(6000 / steps_of_epoch(rows, batch_size)), 4), 60)


def fitting_patience(rows: int, batch_size: int) -> int:
    """Choose as many epochs as take 200 steps, within 2 to 5."""
    return min(max(math.ceil(200 / steps_of_epoch(rows, batch_size)), 2), 5)


def steps_of_epoch(rows: int, batch_size: int) -> int:
    """Count the batches of this many training rows."""
    return math.ceil(max(rows, 1) / batch_size)


class PrivateRelease(Model):
    """A number that the label party may show the others: released under differential privacy, and recorded in its ledger."""

    epsilon: ReleaseEpsilon = Field(description="what the released AUC may cost the labels of the test rows")
    unit: Literal["label", "record"] = Field(default="label", description="what is protected: labels, or whole records")


class ImportanceConfig(Model):
    """Permutation importance of columns, on validation rows (intersection only)."""

    own_columns: bool = Field(
        default=True, strict=True, description="measure the label party's own columns, with validation rows embedded once more"
    )
    feature_columns: Literal["none", "label-party", "both"] = Field(
        default="none",
        description="measure the feature parties' columns, by further embeddings, which disclose these columns to the label "
        "party; the losses by column number go to the label party, or also to the owner of the columns",
    )
    repeats: int = Field(default=5, strict=True, ge=1, le=100, description="shuffles per column")
    rows: int = Field(default=10_000, strict=True, ge=1, le=1_000_000, description="limit of validation rows used for it")


class EvaluationConfig(Model):
    """Figures that are measured on the test rows."""

    calibration_bins: int = Field(
        default=20, strict=True, ge=1, le=10_000, description="equal-mass bins of the adaptive calibration error"
    )
    bootstrap: int = Field(default=200, strict=True, ge=0, le=100_000, description="resamples for the intervals; 0 for none")
    own_columns_baseline: bool = Field(default=True, strict=True, description="also train on the label party's columns alone")
    own_columns_boosting: bool = Field(
        default=True,
        strict=True,
        description="use gradient boosting for that baseline if it validates better (needs scikit-learn: pip install "
        "'tallystick[quality]')",
    )
    privacy: PrivateRelease | None = Field(
        default=None, description="release the AUC to the other parties under differential privacy; null sends them nothing"
    )
    share_metrics: tuple[Text, ...] = Field(
        default=(),
        description="metrics of the joint model that the label party sends the feature parties, exact and not private: "
        + "; ".join(f"{target} {', '.join(metrics)}" for target, metrics in METRICS.items()),
    )
    importance: ImportanceConfig = Field(default_factory=ImportanceConfig, description="how much each column matters")


class NetworkConfig(Model):
    """Limits of the connection: how peers talk, and when one counts as lost."""

    heartbeat_s: float = Field(default=2.0, strict=True, ge=0.01, le=3600, description="seconds between signs of life")
    deadline_s: float = Field(
        default=10.0, strict=True, ge=0.1, le=86_400, description="seconds of silence after which a peer is lost"
    )
    wait_s: float = Field(
        default=60.0, strict=True, ge=0, le=604_800, description="seconds to wait for a peer that is not up yet"
    )
    max_message_mib: int = Field(default=64, strict=True, ge=1, le=256, description="largest message that is accepted, in MiB")
