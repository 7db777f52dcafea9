"""The contract: the job file that all parties agree on, hashed and compared before any data moves."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from tallystick.alignment.registry import LINKAGES, Linkage
from tallystick.alignment.terms import SimilarityConfig
from tallystick.config.defense import DefenseEntry, defense_problems
from tallystick.config.gradients import WIDE_CUT, no_gradient_problems, still
from tallystick.config.imputation import (
    FEATURES,
    LABELS,
    FeatureStrategy,
    LabelStrategy,
    defended_imputation_problems,
    imputation_problems,
)
from tallystick.config.merge import MergeConfig, merge_problems
from tallystick.config.tuning import TUNABLE, TuningConfig, unknown_key
from tallystick.config.unaligned import UnalignedConfig, unaligned_problems
from tallystick.defenses.chain import Defenses, EmbeddingDefenses, chain, embedding_chain
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.errors import ConfigError
from tallystick.metrics import METRICS
from tallystick.reading import Count, Model, Name, Problems, Role, Share, Step, Text, Width, read_yaml, shown, validate

ROLE_ALIASES: dict[str, Role] = {
    **dict.fromkeys(("active", "primary", "guest", "leader"), "label"),
    **dict.fromkeys(("passive", "secondary", "host", "follower"), "feature"),
    **dict.fromkeys(("server", "coordinator", "arbiter"), "helper"),
}
MAX_DIFFERENCES = 50
MAX_IDS = 1_000_000_000

if TYPE_CHECKING:
    LinkageName: TypeAlias = str
else:
    LinkageName = Literal[tuple(LINKAGES)]

Dummies = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Epochs = Annotated[int, Field(strict=True, ge=1, le=65_535)]
Rate = Annotated[float, Field(strict=True, ge=1e-9, le=1e6)]
ReleaseEpsilon = Annotated[float, Field(strict=True, ge=1e-9, le=100)]
ModulePath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


def _canonical_role(role: Any) -> Any:
    return ROLE_ALIASES.get(role, role) if isinstance(role, str) else role


class ContractParty(Model):
    """One party of the contract."""

    role: Annotated[Role, BeforeValidator(_canonical_role)] = Field(
        description="label (also active, primary, guest, leader), feature (passive, secondary, host, follower) "
        "or helper (server, coordinator, arbiter)"
    )


class KeyColumn(Model):
    """One column of the key by which rows are matched."""

    name: Text = Field(description="name of the key column in this contract; each party file maps it to its own column")
    normalise: tuple[Step, ...] = Field(
        default=(), description="steps applied in this order: trim, lower, upper, nfkc, email, phone, digits"
    )


class AlignmentConfig(Model):
    """How rows are matched."""

    method: LinkageName = Field(
        default="intersection", description="rows that all parties have, or every row that any of two has"
    )
    protocol: Literal["auto", "diffie-hellman", "oblivious-transfer"] = Field(
        default="auto",
        description="how common ids are found (intersection only); auto: Diffie-Hellman for up to 5,000 ids of two parties "
        "together, else oblivious transfer, which is many times as fast",
    )
    keys: tuple[KeyColumn, ...] = Field(
        default=(), description="key columns, in the order in which they are joined (all methods but similarity)"
    )
    similarity: SimilarityConfig | None = Field(default=None, description="how rows are linked by similar keys (similarity only)")
    nulls: Literal["drop", "error"] = Field(
        default="drop", description="rows with a null in any key column: leave them out, or stop"
    )
    duplicates: Literal["first", "all", "drop", "error"] = Field(
        default="first",
        description="rows with the same key: keep the first; keep all of the label party, each with the others' row of its key "
        "(intersection only); leave all of them out; or stop",
    )
    max_rows: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=MAX_IDS,
        description="most ids that any party may bring to the alignment; null lets each party accept ten times its own, and "
        "at least 100,000",
    )
    min_match_rate: float = Field(
        default=0.0,
        strict=True,
        ge=0,
        le=1,
        description="least share of the label party's ids that all parties have; with fewer the run ends before training",
    )

    @property
    def leaves_unlinked(self) -> bool:
        """Whether rows are linked by similarity and some of them to none."""
        return self.similarity is not None and self.similarity.least_similarity is not None

    @property
    def key_names(self) -> tuple[str, ...]:
        """What each party file maps to its own columns: key columns, or the dimensions of similar keys."""
        return tuple(part.name for part in (self.similarity.dimensions if self.similarity is not None else self.keys))


class UnionConfig(Model):
    """What is imputed for rows that a side lacks, when the parties train on their union (FLORIST)."""

    labels: LabelStrategy = Field(default="settled", description=LABELS)
    features: FeatureStrategy = Field(default="sampling", description=FEATURES)
    label_dummies: Dummies = Field(default=0, description="most made-up ids that the label party adds to blur its size")
    feature_dummies: Dummies = Field(default=0, description="most made-up ids that the feature party adds to blur its size")
    audit: bool = Field(default=True, strict=True, description="attack the run's own views for membership and report the result")


class TargetConfig(Model):
    """What is predicted."""

    type: Literal["binary", "multiclass", "regression"] = Field(default="binary", description="kind of label")
    classes: int = Field(default=2, strict=True, ge=2, le=100_000, description="number of classes (multiclass only, at least 3)")


class SplitConfig(Model):
    """Which rows are for training, validation and test."""

    method: Literal["hash", "time"] = Field(
        default="hash", description="keyed hash of the id, or the label party's time column (latest rows are test)"
    )
    validation: Share = Field(default=0.1, description="share of rows for validation, 0 or more")
    test: Share = Field(default=0.2, description="share of rows for test, 0 or more; validation + test < 1")


class NetworkModel(Model):
    """The split network."""

    embedding_width: Annotated[int, Field(strict=True, ge=1, le=4096)] | Literal["auto"] = Field(
        default="auto", description="width of each categorical's embedding; auto: 2 to 8, more for more categories"
    )
    embedding_scale: float = Field(
        default=0.1, strict=True, gt=0, le=100, description="standard deviation of embeddings of categories before training"
    )
    numeric: Literal["auto", "plain", "piecewise-linear", "periodic"] = Field(
        default="auto", description="what a built-in bottom puts beside plain numbers; auto: each party by its training rows"
    )
    normalization: Literal["none", "batch"] = Field(
        default="none", description="of the built-in bottoms' layers: none, or by the batch's mean and deviation"
    )
    hidden: tuple[Width, ...] = Field(
        default=(128, 256, 256), min_length=1, max_length=100, description="widths of the hidden layers"
    )
    cut_after: Count = Field(default=1, description="hidden layers below the cut, 1 to the number of hidden layers")
    cut_width: Width | None = Field(
        default=None,
        description="width of a feature party's cut embedding; null is that of its last hidden layer, and "
        f"{WIDE_CUT} where training.gradients is none",
    )
    wide: bool = Field(default=False, strict=True, description="the label party's own columns also reach the output linearly")
    bottoms: dict[Name, ModulePath] = Field(
        default_factory=dict, description="party name to its own bottom: package.module:Class"
    )
    top: ModulePath | None = Field(default=None, description="own top model: package.module:Class; null is the built-in one")
    merge: MergeConfig = Field(default_factory=MergeConfig, description="how linked rows are merged (similarity only)")

    @property
    def built_in_cut_width(self) -> int:
        """Width of a feature party's cut embedding where its bottom is the built-in one."""
        return self.cut_width or self.hidden[self.cut_after - 1]


class TrainingTerms(Model):
    """How the network is trained, as the contract says it: what is ``auto`` hangs on the number of training rows."""

    epochs: Epochs | Literal["auto"] = Field(
        default="auto", description="most passes over the training rows; auto: 4 to 60, fewer for more rows"
    )
    batch_size: Count | Literal["auto"] = Field(
        default="auto", description="rows per step; auto: 16 to 1,024, more for more rows"
    )
    optimizer: Literal["adam", "adamw", "lamb", "sgd"] = Field(default="adamw", description="optimizer of every party")
    learning_rate: Rate = Field(default=0.001, description="learning rate of every party")
    schedule: Literal["constant", "cosine"] = Field(
        default="cosine", description="how the learning rate goes: the same at every step, or down to 0 along half a cosine"
    )
    warm_up: float = Field(
        default=0.0, strict=True, ge=0, lt=1, description="share of all steps over which the rate first rises (cosine only)"
    )
    weight_decay: float = Field(default=0.0, strict=True, ge=0, le=100, description="weight decay of every party")
    clip: float | None = Field(
        default=None, strict=True, ge=1e-9, le=1e9, description="largest norm of the gradients of a party's weights; null is any"
    )
    ema: float | None = Field(
        default=0.995,
        strict=True,
        gt=0,
        lt=1,
        description="how much of the averaged weights a step keeps; they are validated and kept; null averages none",
    )
    gradients: Literal["sent", "none"] = Field(
        default="sent",
        description="what goes back over the cut: gradients, by which bottom models learn and labels can be read, or nothing: "
        "each row's embedding crosses once, of a bottom model that stays as it is, and the label party trains at home",
    )
    mode: Literal["synchronous", "pipelined"] = Field(
        default="synchronous", description="lossless, or overlapping the parties with stale cut gradients"
    )
    staleness: int = Field(default=2, strict=True, ge=1, le=1024, description="batches in flight (pipelined only)")
    patience: Count | None = Field(
        default=5, description="epochs without a better validation loss before stopping; null is never"
    )
    starts: Literal["secret", "public"] = Field(
        default="secret",
        description="what weights are drawn from before training: each party's own secret, or the contract's seed, by which "
        "every party can make the others' first models and read columns and labels off the first batches",
    )
    checkpoint_every: Count = Field(default=200, description="steps between checkpoints; all parties commit the same step")

    def for_rows(self, rows: int) -> "TrainingConfig":
        """Settle what is ``auto`` by the number of training rows, which every party knows once rows are linked."""
        batch_size = fitting_batch_size(rows) if self.batch_size == "auto" else self.batch_size
        epochs = fitting_epochs(rows, batch_size) if self.epochs == "auto" else self.epochs
        return TrainingConfig.model_validate({**self.model_dump(), "batch_size": batch_size, "epochs": epochs})

    def settled_notes(self, rows: int) -> list[str]:
        """What ``auto`` comes to for so many training rows, in words."""
        settled = self.for_rows(rows)
        return [
            f"training.{key} = auto: {getattr(settled, key)}, by {rows:,} training rows"
            for key in ("batch_size", "epochs")
            if getattr(self, key) == "auto"
        ]


class TrainingConfig(TrainingTerms):
    """How the network is trained, with every number settled; what is left out is as in the papers, which train plainly."""

    epochs: Epochs = 5
    batch_size: Count = 512
    optimizer: Literal["adam", "adamw", "lamb", "sgd"] = "adam"
    schedule: Literal["constant", "cosine"] = "constant"
    ema: float | None = None
    patience: Count | None = 2


def fitting_batch_size(rows: int) -> int:
    """A power of two: about a fortieth of a small table, 128 for a middling one, a four-hundredth of a large one."""
    small, large = (2 ** round(math.log2(max(rows, 1) / parts)) for parts in (40, 400))
    return int(max(min(max(small, 16), 128), min(large, 1024)))


def fitting_epochs(rows: int, batch_size: int) -> int:
    """So many that training takes about 6,000 steps, within 4 to 60."""
    return min(max(round(6000 / math.ceil(max(rows, 1) / batch_size)), 4), 60)


class PrivateRelease(Model):
    """A number that the label party may show the others: released under differential privacy, on the record of its ledger."""

    epsilon: ReleaseEpsilon = Field(description="what the released AUC may cost the labels of the test rows")
    unit: Literal["label", "record"] = Field(default="label", description="what is protected: labels, or whole records")


class ImportanceConfig(Model):
    """Permutation importance of columns, on validation rows (intersection only)."""

    own_columns: bool = Field(
        default=True, strict=True, description="measure the label party's own columns, with validation rows embedded once more"
    )
    feature_columns: Literal["none", "label-party", "both"] = Field(
        default="none",
        description="measure the feature parties' columns, by further embeddings; the falls by column number go to the label "
        "party, or to both it and the party whose columns they are",
    )
    repeats: int = Field(default=5, strict=True, ge=1, le=100, description="shuffles per column")
    rows: int = Field(default=10_000, strict=True, ge=1, le=1_000_000, description="most validation rows that it is measured on")


class EvaluationConfig(Model):
    """What is measured on the test rows."""

    calibration_bins: int = Field(
        default=20, strict=True, ge=1, le=10_000, description="equal-mass bins of the adaptive calibration error"
    )
    bootstrap: int = Field(default=200, strict=True, ge=0, le=100_000, description="resamples for the intervals; 0 is none")
    own_columns_baseline: bool = Field(default=True, strict=True, description="also train on the label party's columns alone")
    own_columns_boosting: bool = Field(
        default=True,
        strict=True,
        description="let that baseline be gradient boosting where it validates better than the network (needs scikit-learn)",
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
    """How peers talk, and when one counts as lost."""

    heartbeat_s: float = Field(default=2.0, strict=True, ge=0.01, le=3600, description="seconds between signs of life")
    deadline_s: float = Field(
        default=10.0, strict=True, ge=0.1, le=86_400, description="seconds of silence after which a peer is lost"
    )
    wait_s: float = Field(
        default=60.0, strict=True, ge=0, le=604_800, description="seconds to wait for a peer that is not up yet"
    )
    max_message_mib: int = Field(default=64, strict=True, ge=1, le=256, description="largest message that is accepted, in MiB")


class Contract(Model):
    """A job that several parties agree on; see docs/config.md for every key."""

    version: Literal[1] = Field(default=1, description="version of this format")
    name: Name = Field(description="name of the job")
    parties: dict[Name, ContractParty] = Field(description="party name to its role: one label party, one or more feature parties")
    alignment: AlignmentConfig = Field(description="how rows are matched")
    union: UnionConfig = Field(
        default_factory=UnionConfig, description="how the union's absent rows are imputed (union methods only)"
    )
    unaligned: UnalignedConfig = Field(
        default_factory=UnalignedConfig,
        description="what the label party's rows without a partner's row are good for (intersection only)",
    )
    target: TargetConfig = Field(default_factory=TargetConfig, description="what is predicted")
    split: SplitConfig = Field(default_factory=SplitConfig, description="training, validation and test rows")
    model: NetworkModel = Field(default_factory=NetworkModel, description="the split network")
    training: TrainingTerms = Field(default_factory=TrainingTerms, description="how the network is trained")
    defense: tuple[DefenseEntry, ...] = Field(
        default=(), description="how labels and features are defended: a list of methods, each with its own keys"
    )
    audit: Literal["quick", True, False] = Field(
        default="quick",
        description="each party records what crosses its cut and attacks it after training, for its labels or for its columns: "
        "quick by the cheapest attacks, true by all, false not at all",
    )
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="what is measured")
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="when a peer counts as lost")
    tuning: TuningConfig = Field(
        default_factory=TuningConfig, description="what `tallystick tune` may try, where every party allows it; a run ignores it"
    )
    seed: int = Field(
        default=1, strict=True, ge=0, le=100_000_000_000_000, description="seed of everything random that the parties share"
    )

    @model_validator(mode="after")
    def _cross_checks(self) -> "Contract":
        Problems.raise_any(
            _party_problems(self) + _value_problems(self) + defense_problems(self.defense, self.target.type, self.linkage)
        )
        Problems.raise_any(_tuning_problems(self) + no_gradient_problems(self))
        return self

    @property
    def label_party(self) -> str:
        """Name of the label party."""
        return next(name for name, party in self.parties.items() if party.role == "label")

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """Names of the feature parties, sorted: the same order for every party, however its file is laid out."""
        return tuple(sorted(name for name, party in self.parties.items() if party.role == "feature"))

    @property
    def sends_gradients(self) -> bool:
        """Whether cut gradients go back to the feature parties."""
        return self.training.gradients == "sent"

    @property
    def feature_model(self) -> NetworkModel:
        """The network as feature parties build their bottom models: another where these stay as they are."""
        return self.model if self.sends_gradients else still(self.model)

    @property
    def measures_columns(self) -> bool:
        """Whether the validation rows are embedded once more after training, to measure columns."""
        wanted = self.evaluation.importance.own_columns or self.evaluation.importance.feature_columns != "none"
        return wanted and not self.linkage.imputes and self.split.validation > 0

    @property
    def linkage(self) -> Linkage:
        """What is to be known of the way in which rows are linked."""
        return LINKAGES[self.alignment.method]

    @property
    def helper(self) -> str | None:
        """Name of the helper, if there is one."""
        return next((name for name, party in self.parties.items() if party.role == "helper"), None)

    def defenses(self) -> Defenses:
        """The defences of labels, ready to apply."""
        return chain([entry.make() for entry in self.defense], target=self.target.type)

    @property
    def hides_labels(self) -> bool:
        """Whether labels are replaced under a guarantee before they train: then nothing that leaves may hang on exact ones."""
        return any(entry.covers_labels for entry in self.defense)

    def embedding_defenses(self) -> EmbeddingDefenses:
        """The defences of every feature party's columns, ready to apply."""
        return embedding_chain([entry.make() for entry in self.defense])

    def tuned(self, values: Mapping[str, Any]) -> "Contract":
        """The contract with these values of some keys, written section.key, and nothing left to tune.

        What was left out stays out. Raises ConfigError for values that the contract cannot have together.
        """
        changed = self.model_dump(mode="json", exclude_unset=True)
        changed.pop("tuning", None)
        for key, value in values.items():
            section, name = key.split(".")
            changed.setdefault(section, {})[name] = value
        return parse_contract(changed, source="contract, as tuned")

    def role_of(self, name: str) -> Role:
        """Give the role of a party; raises KeyError for a name that is not in the contract."""
        return self.parties[name].role

    def canonical_json(self) -> str:
        """Write the contract with sorted keys and all defaults, so that layout, aliases and omissions do not matter."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


def load_contract(path: Path | str) -> Contract:
    """Read and validate a contract; raises ConfigError with one line per problem."""
    path = Path(path)
    values = read_yaml(path)
    if isinstance(values, dict) and "party" in values and "parties" not in values:
        raise ConfigError(f"{path.name}: is a party file (it has the key party, and no parties), where a contract is due")
    return validate(Contract, values, source=path.name)


def parse_contract(data: Mapping[str, Any], *, source: str = "contract") -> Contract:
    """Validate a contract given as plain values; raises ConfigError with one line per problem."""
    return validate(Contract, data, source=source)


def differences(own: str, theirs: str) -> list[str]:
    """List the keys in which two canonical JSONs differ, with both values.

    ``theirs`` comes from a peer: it may be anything, and what is shown of it is shortened and escaped. A contract holds
    nothing private.
    """
    try:
        other = _flat(_bounded(json.loads(theirs)))
    except (ValueError, RecursionError):
        return ["the peer's contract is not readable JSON; install the same tallystick on both sides"]
    mine = _flat(json.loads(own))
    lines = [
        f"{_printable(key)}: ours {_side(mine, key)}, theirs {_side(other, key)}"
        for key in sorted(mine.keys() | other.keys())
        if key not in mine or key not in other or mine[key] != other[key] or type(mine[key]) is not type(other[key])
    ]
    if len(lines) > MAX_DIFFERENCES:
        lines[MAX_DIFFERENCES:] = [f"and {len(lines) - MAX_DIFFERENCES} more"]
    return lines


def _party_problems(contract: Contract) -> list[str]:
    roles = [party.role for party in contract.parties.values()]
    labels, features, helpers = (roles.count(role) for role in ("label", "feature", "helper"))
    method, linkage = contract.alignment.method, contract.linkage
    problems = []
    if labels != 1:
        problems.append(f"parties: {labels} label parties; exactly one party must have role label")
    if features < 1:
        problems.append("parties: no feature party; at least one party must have role feature")
    if linkage.helper and helpers != 1:
        problems.append(f"parties: {helpers} helpers; alignment.method = {method} needs exactly one party with role helper")
    if not linkage.helper and helpers:
        helped = " or ".join(name for name, facts in LINKAGES.items() if facts.helper)
        problems.append(f"parties: {helpers} helpers; only alignment.method = {helped} has one, not {method}")
    if not linkage.several and features > 1:
        problems.append(f"alignment.method = {shown(method)}: takes exactly one feature party, found {features}")
    problems += [
        f"model.bottoms.{name}: is not a party with a table; allowed: label and feature parties of this contract"
        for name in contract.model.bottoms
        if name not in contract.parties or contract.parties[name].role == "helper"
    ]
    return problems


def _key_problems(alignment: AlignmentConfig, linkage: Linkage) -> list[str]:
    problems = []
    method, names = alignment.method, [key.name for key in alignment.keys]
    if alignment.protocol != "auto" and method != "intersection":
        problems.append(f"alignment.protocol = {shown(alignment.protocol)}: goes with alignment.method = intersection only")
    if linkage.similar:
        if alignment.similarity is None:
            problems.append(f"alignment.similarity: is missing; alignment.method = {method} links by it")
        if names:
            problems.append(f"alignment.keys: alignment.method = {method} has none; give alignment.similarity.dimensions")
        if alignment.duplicates == "all":
            problems.append(f"alignment.duplicates = all: alignment.method = {method} links every row anyway; leave it out")
        return problems
    if not names:
        problems.append(f"alignment.keys: is missing; alignment.method = {method} needs at least one")
    if alignment.similarity is not None:
        problems.append("alignment.similarity: goes with alignment.method = similarity only; leave it out")
    if alignment.duplicates == "all" and linkage.imputes:
        problems.append(
            "alignment.duplicates = all: on a union the number of an id's rows would tell the feature party which of its ids are "
            "common; align by intersection, or let the label party's file say under repeats which row counts"
        )
    if len(set(names)) != len(names):
        problems.append(f"alignment.keys = {shown(names)}: each key name must be given once")
    return problems


def _value_problems(contract: Contract) -> list[str]:
    split, model, target, network = contract.split, contract.model, contract.target, contract.network
    problems = _key_problems(contract.alignment, contract.linkage)
    if split.validation + split.test >= 1:
        problems.append(f"split.validation + split.test = {split.validation + split.test:g}: must be below 1")
    if contract.training.patience is not None and split.validation == 0:
        problems.append("split.validation = 0: must be above 0, or set training.patience to null (nothing to stop early on)")
    if contract.training.warm_up and contract.training.schedule == "constant":
        problems.append(f"training.warm_up = {contract.training.warm_up:g}: goes with training.schedule = cosine only")
    if contract.training.starts == "public" and contract.defense:
        problems.append(
            "training.starts = public: whoever knows the starting weights reads what a defence hides; use secret, or no defence"
        )
    if contract.training.starts == "public" and contract.linkage.imputes:
        problems.append(
            "training.starts = public: from public weights the whole training can be gone through again, and so which rows of a "
            "union are imputed read; use secret, or align by intersection"
        )
    problems += merge_problems(model.merge)
    if model.normalization == "batch" and GaussianEmbeddings in [entry.defense for entry in contract.defense]:
        problems.append(
            "model.normalization = batch: by it a row's columns are in the embeddings of its whole batch, which "
            f"{GaussianEmbeddings.method} does not cover; use none, or another defence"
        )
    if model.cut_after > len(model.hidden):
        problems.append(
            f"model.cut_after = {model.cut_after}: must be at most {len(model.hidden)}, the number of layers in model.hidden"
        )
    if target.type == "multiclass" and target.classes < 3:
        problems.append(f"target.classes = {target.classes}: must be at least 3 for target.type = multiclass")
    if target.type != "multiclass" and target.classes != 2:
        problems.append(f"target.classes = {target.classes}: goes with target.type = multiclass only; leave it out")
    problems += imputation_problems(contract.union.labels, contract.union.features, validation=split.validation)
    if contract.linkage.imputes:
        if target.type != "binary":
            problems.append(f"target.type = {target.type}: labels can be imputed for binary targets only; align by intersection")
        if split.method == "time":
            problems.append(
                "split.method = time: times of absent rows are unknown on a union; use hash, or align by intersection"
            )
        problems += defended_imputation_problems(contract.union.labels, [entry.defense for entry in contract.defense])
    problems += unaligned_problems(
        contract.unaligned,
        alignment=contract.alignment.method,
        target=target.type,
        feature_parties=len(contract.feature_parties),
        wide=model.wide,
    )
    if contract.evaluation.privacy is not None and target.type != "binary":
        problems.append(f"evaluation.privacy: releases an AUC, which target.type = {target.type} does not have; set it to null")
    problems += _disclosure_problems(contract)
    if network.heartbeat_s >= network.deadline_s:
        problems.append(
            f"network.heartbeat_s = {network.heartbeat_s:g}: must be below network.deadline_s = {network.deadline_s:g}"
        )
    return problems


def _disclosure_problems(contract: Contract) -> list[str]:
    """What the label party sends besides gradients must exist, and must not undo what is promised elsewhere."""
    evaluation, target = contract.evaluation, contract.target.type
    allowed, shared = METRICS[target], evaluation.share_metrics
    problems = [
        f"evaluation.share_metrics.{number} = {shown(name)}: is no metric of {target} targets; allowed: {', '.join(allowed)}"
        for number, name in enumerate(shared)
        if name not in allowed
    ]
    if len(set(shared)) != len(shared):
        problems.append(f"evaluation.share_metrics = {shown(list(shared))}: each metric must be given once")
    if shared and evaluation.privacy is not None:
        problems.append(
            "evaluation.share_metrics, evaluation.privacy: exact metrics undo what the private AUC promises; give one of the two"
        )
    columns = evaluation.importance.feature_columns
    if columns == "none":
        return problems
    where = f"evaluation.importance.feature_columns = {columns}"
    if contract.linkage.imputes:
        problems.append(f"{where}: embeddings sent again would tell which rows of a union are imputed; align by intersection")
    if contract.split.validation == 0:
        problems.append(f"{where}: is measured on validation rows; give split.validation a value above 0, or set it to none")
    if columns == "both" and contract.hides_labels:
        problems.append(f"{where}: exact figures of validation labels undo what the label defence promises; use label-party")
    return problems


def _bounded(value: Any) -> Any:
    """Give JSON back that is no larger than any contract; raises ValueError, for the paths of many deep values add up."""
    waiting, seen = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if seen > 20_000 or depth > 16 or (isinstance(item, dict) and any(len(key) > 100 for key in item)):
            raise ValueError("no contract has so many values, or such keys")
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        waiting += [(child, depth + 1) for child in children]
    return value


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        parts = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list) and value:
        parts = ((f"{path}.{index}", item) for index, item in enumerate(value))
    else:
        return {path: value}
    return {key: found for prefix, item in parts for key, found in _flat(item, prefix).items()}


def _printable(text: str) -> str:
    return json.dumps(text)[1:-1][:120]


def _side(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key])[:80] if key in values else "absent"


def _tuning_problems(contract: Contract) -> list[str]:
    """Every value has to be one that the contract could have in its own place."""
    problems = []
    for key, tuned in contract.tuning.keys.items():
        if key not in TUNABLE:
            problems.append(unknown_key("tuning.keys", key))
            continue
        if wrong := tuned.problems(key):
            problems += [f"tuning.keys.{line}" for line in wrong]
            continue
        for value in tuned.ends(key):
            try:
                contract.tuned({key: value})
            except ConfigError as error:
                problems += [f"tuning.keys.{key}: {line.partition(': ')[2]}" for line in str(error).splitlines()]
    if contract.tuning.keys and not contract.split.validation:
        problems.append("tuning.keys: trials are compared by their loss on validation rows; split.validation must be above 0")
    return problems
