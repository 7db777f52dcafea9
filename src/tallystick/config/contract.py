"""Define the contract: the job file that all parties agree on, hashed and compared before any data moves."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, PrivateAttr, model_validator

from tallystick.alignment.linkages import LINKAGES, Linkage
from tallystick.config.alignment import AlignmentConfig, IntersectionConfig
from tallystick.config.defense import DefenseEntry, defense_problems
from tallystick.config.explore import ExploreConfig
from tallystick.config.imputation import (
    defended_imputation_problems,
    imputation_problems,
)
from tallystick.config.overlap import OverlapConfig
from tallystick.config.promotion import PromotionConfig, promotion_problems
from tallystick.config.sections import (
    FULL_ALONE,
    WITHIN,
    BinaryTarget,
    ContractParty,
    EvaluationConfig,
    NetworkConfig,
    NetworkModel,
    SplitConfig,
    SynchronousTraining,
    TargetConfig,
    TrainingKeys,
    TrainingSettings,
    UnionConfig,
    fitting_folds,
)
from tallystick.config.serving import FeaturePartyAsks, ServingConfig
from tallystick.config.tuning import TUNABLE, TuningConfig, unknown_key
from tallystick.config.unaligned import NoneConfig, UnalignedConfig, unaligned_problems
from tallystick.defenses.chain import Defenses, EmbeddingDefenses, chain, embedding_chain
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.errors import ConfigError
from tallystick.metrics import METRICS
from tallystick.reading import Model, Name, Problems, Role, did_you_mean, read_yaml, shown, validate

MOST_REPLACED = 4
"""Greatest number of labels of a row that label-dp can replace."""


class Contract(Model):
    """A job that several parties agree on. See docs/reference/configuration.md for every key."""

    version: Literal[1] = Field(default=1, description="version of this format")
    name: Name = Field(description="name of the job")
    parties: dict[Name, ContractParty] = Field(description="party name to its role: one label party, one or more feature parties")
    alignment: AlignmentConfig = Field(description="how rows are matched")
    union: UnionConfig = Field(
        default_factory=UnionConfig, description="how the union's absent rows are imputed (union methods only)"
    )
    unaligned: UnalignedConfig = Field(
        default_factory=NoneConfig,
        description="how the label party's rows without a partner's row are used (intersection only)",
    )
    target: TargetConfig = Field(default_factory=BinaryTarget, description="what is predicted")
    split: SplitConfig = Field(default_factory=SplitConfig, description="training, validation and test rows")
    model: NetworkModel = Field(default_factory=NetworkModel, description="the split network")
    training: TrainingSettings = Field(default_factory=SynchronousTraining, description="how the network is trained")
    defense: tuple[DefenseEntry, ...] = Field(
        default=(), description="how labels and features are defended: a list of methods, each with its own keys"
    )
    audit: Literal["quick", True, False] = Field(
        default="quick",
        description="each party records what crosses its cut and attacks it after training, for its labels or its columns: "
        "quick with the cheapest attacks, true with all, false with none",
    )
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="what is measured")
    promotion: PromotionConfig = Field(
        default_factory=PromotionConfig, description="when a new run takes the place of the one in use (`compare --decide`)"
    )
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="when a peer counts as lost")
    tuning: TuningConfig = Field(
        default_factory=TuningConfig, description="what `tallystick tune` may try, if every party allows it; a run ignores it"
    )
    serving: ServingConfig | None = Field(
        default=None, description="whether `tallystick serve` may answer requests one by one, and how; null allows none"
    )
    overlap: OverlapConfig | None = Field(
        default=None, description="whether `tallystick overlap` may count common ids, and who learns the count; null forbids it"
    )
    explore: ExploreConfig | None = Field(
        default=None,
        description="whether `tallystick explore` may estimate the gain, on a sample; null forbids it",
    )
    seed: int = Field(
        default=1, strict=True, ge=0, le=100_000_000_000_000, description="seed of everything random that the parties share"
    )
    _agreed: "Contract | None" = PrivateAttr(default=None)  # the contract from which this one was derived, after rows were linked

    @model_validator(mode="after")
    def _cross_checks(self) -> "Contract":
        Problems.raise_any(
            _party_problems(self) + _value_problems(self) + defense_problems(self.defense, self.target.type, self.linkage)
        )
        problems = []
        for key, tuned in self.tuning.keys.items():  # the contract must allow every value of a key by itself
            if key not in TUNABLE:
                problems.append(unknown_key("tuning.keys", key))
                continue
            if wrong := tuned.problems(key):
                problems += [f"tuning.keys.{line}" for line in wrong]
                continue
            for value in tuned.ends(key):
                try:
                    self.tuned({key: value})
                except ConfigError as error:
                    problems += [f"tuning.keys.{key}: {line.partition(': ')[2]}" for line in str(error).splitlines()]
        if self.tuning.keys and not self.split.validation:
            problems.append("tuning.keys: trials are compared by their loss on validation rows; split.validation must be above 0")
        problems += _no_gradient_problems(self)
        training = self.training
        problems += [f"training.refit = true, {problem}" for problem in _against_refit(self) if training.refit is True]
        if training.validations not in ("auto", 1) and not self.split.validation:
            problems.append(
                f"training.validations = {training.validations}: split.validation is 0, so there are no validation rows; "
                "leave it out"
            )
        problems += [
            f"training.folds = {training.folds}, {problem}; leave training.folds out"
            for problem in _against_folds(self)
            if training.folds not in ("auto", 1)
        ]
        Problems.raise_any(problems)
        return self

    @property
    def label_party(self) -> str:
        """Name of the label party."""
        return next(name for name, party in self.parties.items() if party.role == "label")

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """List the feature parties, sorted: the same order for every party, whatever the layout of its file."""
        return tuple(sorted(name for name, party in self.parties.items() if party.role == "feature"))

    @property
    def sends_gradients(self) -> bool:
        """Tell whether cut gradients go back to the feature parties."""
        return self.training.gradients == "sent"

    @property
    def embeds_once(self) -> bool:
        """Tell whether each row's embedding crosses once and no gradient crosses."""
        return self.training.gradients == "none"

    @property
    def shares_head(self) -> bool:
        """Tell whether a head is trained on secret shares, so that neither embeddings nor gradients cross."""
        return self.training.gradients == "shared"

    @property
    def scores_of_a_row(self) -> int:
        """Count the scores that a head on shares gives a row: one, or one for each of several classes."""
        return self.target.outputs

    @property
    def needs_helper(self) -> bool:
        """Tell whether a third party without rows takes part, in linking rows or in training."""
        return self.linkage.helper or self.shares_head

    @property
    def refits(self) -> bool:
        """Tell whether training is repeated with the validation rows, for the number of epochs that they chose.

        The contract may ask for this. By default it is so if the split is by time and nothing prevents it.
        """
        setting = self.training.refit
        return self.split.method == "time" and not _against_refit(self) if setting == "auto" else setting

    @property
    def own_refits(self) -> bool:
        """Tell whether training of own columns alone is repeated. A method for rows without a partner's row does not prevent
        this.
        """
        setting = self.training.refit
        return self.split.method == "time" and not _against_refit_of_rows(self) if setting == "auto" else setting

    def folds(self, rows: int) -> int:
        """Return how many networks train side by side, each without one fold of the rows, for this many training rows.

        The number is the contract's, or by default several if there are few rows and nothing prevents it.
        """
        return 1 if self.training.folds == "auto" and _against_folds(self) else self.training.resolved(rows).folds

    def own_folds(self, rows: int) -> int:
        """Return how many networks of own columns alone score rows without a partner's row, for this many own training rows.

        They cost no bytes at a cut, so several are used for more rows than with joint networks.
        """
        plain = self.split.method == "hash" and self.split.validation
        is_own = bool(self.model.bottoms) or self.model.top is not None
        return 1 if self.training.folds != "auto" or not plain or is_own else fitting_folds(rows, full=FULL_ALONE)

    def validations(self, training: TrainingKeys) -> int:
        """Return how often in an epoch of joint training the weights are compared on validation rows.

        If ``training`` is the contract's, before it is resolved for its rows and line, this is the largest number. "auto" is one
        comparison if another embedding of a row costs more than time. With a defence of columns or a narrowed cut it is another
        look at the hidden values, and noise is charged for it. On a union it is another look at made-up rows. A pipeline is
        emptied for each comparison. With folds all rows cross for each.
        """
        setting = self.training.validations
        if setting != "auto":
            return setting
        hidden = self.model.narrowed or any(entry.defense.hides_features() for entry in self.defense)
        if hidden or self.linkage.imputes or training.mode == "pipelined" or training.folds not in ("auto", 1):
            return 1
        return WITHIN if training.validations == "auto" else training.validations

    @property
    def agreed(self) -> "Contract":
        """Return the contract that the parties agreed on: this one, or the one from which it was derived."""
        return self._agreed or self

    def without_unaligned(self) -> "Contract":
        """Derive the contract for training if the label party has no row without a partner's row.

        Everything that unaligned rows would prevent, such as folds, is possible again. The hash stays that of the agreed
        contract.
        """
        derived = self.model_copy(update={"unaligned": NoneConfig()})
        derived._agreed = self.agreed
        return derived

    def of_own_columns(self) -> "Contract":
        """Derive the contract for training own columns alone. It has a network's settings if the joint model is not a network."""
        if not self.shares_head:
            return self
        derived = self.model_copy(update={"training": SynchronousTraining()})
        derived._agreed = self.agreed
        return derived

    def explored(self) -> "Contract":
        """Derive the contract of an exploration: compared with own columns, and not audited. The hash stays the agreed one."""
        bootstrap = self.evaluation.bootstrap or EvaluationConfig.model_fields["bootstrap"].default
        evaluation = self.evaluation.model_copy(update={"own_columns_baseline": True, "bootstrap": bootstrap})
        derived = self.model_copy(update={"audit": False, "evaluation": evaluation})
        derived._agreed = self.agreed
        return derived

    def for_trial(self) -> "Contract":
        """Derive the contract of a search's trial: neither audited nor refitted, because validation compares trials."""
        training = self.training.model_copy(update={"refit": False})
        trial = self.model_copy(update={"audit": False, "training": training})
        trial._agreed = self._agreed.for_trial() if self._agreed is not None else None
        return trial

    @property
    def feature_model(self) -> NetworkModel:
        """Return the network for feature parties' bottom models. It differs if these are not trained."""
        return self.model if self.sends_gradients else self.model.still()

    def screens(self, party: str) -> bool:
        """Tell whether training can close columns of a party that do not help (``training/screening.py``).

        It needs exact labels or gradients: with the defended gradients of a feature party, useful columns would look useless.
        With links by similarity, and with rows without a partner's row, the label party's columns are only closed for the model
        of own columns alone.
        """
        if self.linkage.imputes or party in self.model.bottoms:
            return False
        beside = self.linkage.similar or self.unaligned.used
        return self.role_of(party) == "label" or (self.sends_gradients and not self.defense and not beside)

    @property
    def measures_columns(self) -> bool:
        """Tell whether the validation rows are embedded once more after training, to measure columns."""
        measures = self.evaluation.importance.own_columns or self.evaluation.importance.feature_columns != "none"
        return measures and not self.linkage.imputes and self.split.validation > 0 and not self.shares_head

    @property
    def linkage(self) -> Linkage:
        """Return the facts of the linkage."""
        linkage = LINKAGES[self.alignment.method]
        secure = linkage.against_cheaters if self.alignment.security == "malicious" else None
        return secure if secure is not None else linkage

    @property
    def helper(self) -> str | None:
        """Name of the helper, if there is one."""
        return next((name for name, party in self.parties.items() if party.role == "helper"), None)

    def defenses(self) -> Defenses:
        """Build the defences of labels, ready to apply."""
        return chain([entry.make() for entry in self.defense], target=self.target.type)

    @property
    def hides_labels(self) -> bool:
        """Tell whether a defence with a guarantee replaces labels before training. Then nothing sent may depend on
        exact labels.
        """
        return any(entry.covers_labels for entry in self.defense)

    def embedding_defenses(self) -> EmbeddingDefenses:
        """Build the defences of every feature party's columns, ready to apply."""
        return embedding_chain([entry.make() for entry in self.defense])

    def tuned(self, values: Mapping[str, Any]) -> "Contract":
        """Derive the contract with these values of some keys, written section.key, and without keys to tune.

        Omitted keys stay omitted. Raises ConfigError for values that the contract cannot have together.
        """
        if self._agreed is not None:
            return self._agreed.tuned(values).without_unaligned()
        changed = self.model_dump(mode="json", exclude_unset=True)
        changed.pop("tuning", None)
        for key, value in values.items():
            section, name = key.split(".")
            changed.setdefault(section, {})[name] = value
        return parse_contract(changed, source="contract, as tuned")

    def values_of(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the contract's values of these keys, written section.key, in the form for ``tuned``."""
        values = self.model_dump(mode="json")
        return {key: values[section][name] for key in keys for section, name in [key.split(".")]}

    def role_of(self, name: str) -> Role:
        """Return the role of a party. Raises KeyError for a name that is not in the contract."""
        return self.parties[name].role

    def canonical_json(self) -> str:
        """Write the contract with sorted keys and all defaults, so that layout, aliases and omissions do not matter.

        Keys that were added later are omitted at their defaults, so that hashes of older contracts stay the same: no serving, no
        count of common ids, no exploration, no limit in minutes, no alternative keys, the usual levels, one label.
        """
        allowed = ("serving", "overlap", "explore")
        values = self.model_dump(mode="json", exclude={key for key in allowed if getattr(self, key) is None})
        if self.training.minutes is None:
            del values["training"]["minutes"]
        if not self.alignment.any_of:
            values["alignment"].pop("alternatives", None)
        if self.target.type != "quantile" or self.target.levels == type(self.target).model_fields["levels"].default:
            values["target"].pop("levels", None)
        if self.target.type != "multilabel":
            values["target"].pop("labels", None)
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the agreed contract's canonical JSON, in hex."""
        return hashlib.sha256(self.agreed.canonical_json().encode()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Contract":
        """Copy the contract, with other values of some keys. The copy has a hash of its own."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("hash", None)
        return copy


def load_contract(path: Path | str) -> Contract:
    """Read and validate a contract. Raises ConfigError with one line per problem."""
    path = Path(path)
    values = read_yaml(path)
    if isinstance(values, dict) and "party" in values and "parties" not in values:
        raise ConfigError(f"{path.name}: is a party file (it has the key party, and not parties); give a contract")
    return validate(Contract, values, source=path.name)


def parse_contract(data: Mapping[str, Any], *, source: str = "contract") -> Contract:
    """Validate a contract given as plain values. Raises ConfigError with one line per problem."""
    return validate(Contract, data, source=source)


def _party_problems(contract: Contract) -> list[str]:
    roles = [party.role for party in contract.parties.values()]
    labels, features, helpers = (roles.count(role) for role in ("label", "feature", "helper"))
    method, linkage = contract.alignment.method, contract.linkage
    problems = []
    if labels != 1:
        problems.append(f"parties: {labels} label parties; exactly one party must have role label")
    if features < 1:
        problems.append("parties: no feature party; at least one party must have role feature")
    if contract.needs_helper and helpers != 1:
        why = f"alignment.method = {method}" if linkage.helper else "training.gradients = shared"
        problems.append(f"parties: {helpers} helpers; {why} needs exactly one party with role helper")
    if not contract.needs_helper and helpers:
        helped = " or ".join(name for name, facts in LINKAGES.items() if facts.helper)
        problems.append(
            f"parties: {helpers} helpers; only alignment.method = {helped} has one, not {method}, and training.gradients = shared"
        )
    if not linkage.several and features > 1:
        problems.append(f"alignment.method = {shown(method)}: takes exactly one feature party, found {features}")
    # A count of common ids, which two parties compute from equal keys
    if (overlap := contract.overlap) is not None:
        if len(contract.parties) != 2 or linkage.similar:
            problems.append(
                "overlap: two parties count it, by equal keys; leave it out, or make a contract of two parties for it"
            )
        elif overlap.groups is not None and overlap.groups not in contract.parties:
            problems.append(
                f"overlap.groups = {shown(overlap.groups)}: is not a party; choose one of {', '.join(contract.parties)}"
            )
        elif overlap.groups is not None and overlap.told_to == contract.role_of(overlap.groups):
            problems.append(
                f"overlap.told_to = {overlap.told_to}: the party without groups counts, so it learns the count; choose both, "
                "or the other side"
            )
    if contract.explore is not None and not contract.shares_head:
        problems.append("explore: needs a head on shares; set training.gradients to shared, or leave it out")
    if contract.explore is not None and len(contract.feature_parties) > 1:
        problems.append(
            f"explore: two parties draw a sample, and this contract has {len(contract.feature_parties)} feature parties; "
            "explore with one of them, under a separate contract"
        )
    if contract.explore is not None and not contract.split.test:
        problems.append("explore: measures test rows; split.test must be above 0")
    problems += _any_key_problems(contract)
    problems += [
        f"model.bottoms.{name}: is not a party with a table; allowed: label and feature parties of this contract"
        for name in contract.model.bottoms
        if name not in contract.parties or contract.parties[name].role == "helper"
    ]
    return problems


def _any_key_problems(contract: Contract) -> list[str]:
    """List what cannot be combined with alternative keys, any of which may link two rows."""
    alignment, where, problems = contract.alignment, "alignment.alternatives", []
    if not isinstance(alignment, IntersectionConfig) or alignment.alternatives is None:
        return []
    names = [key.name for key in alignment.keys]
    key_names = {name for alternative in alignment.alternatives for name in alternative}
    problems += [f"{where}: {shown(name)} is not a key; {did_you_mean(name, names)}" for name in sorted(key_names - set(names))]
    problems += [
        f"{where}: no alternative has the key {shown(name)}; add it to one, or leave it out of alignment.keys"
        for name in names
        if name not in key_names
    ]
    if alignment.duplicates == "all":
        problems.append(f"{where}, alignment.duplicates = all: a row links to one row at most; use first, drop or error")
    if len(contract.feature_parties) > 1:
        problems.append(
            f"{where}: alternative keys are for two parties, and this contract has {len(contract.feature_parties)} feature "
            "parties: each would learn which ids it has in common with only the label party; leave it out"
        )
    if contract.overlap is not None:
        problems.append(f"overlap: counts ids by one key; leave it out, or {where}")
    if contract.serving is not None:
        problems.append(f"serving: finds a row by one key; leave it out, or {where}")
    if contract.shares_head:
        problems.append(
            f"training.gradients = shared: scores are counted by a row's key, and with {where} another one may link it the next "
            "time; leave it out"
        )
    return problems


def _value_problems(contract: Contract) -> list[str]:
    split, model, target, network = contract.split, contract.model, contract.target, contract.network
    problems = []
    if contract.alignment.security == "malicious" and contract.alignment.protocol == "diffie-hellman":
        problems.append("alignment.security = malicious: is by oblivious transfer; leave alignment.protocol out")
    if split.validation + split.test >= 1:
        problems.append(f"split.validation + split.test = {split.validation + split.test:g}: must be below 1")
    if contract.training.patience is not None and split.validation == 0:
        problems.append("split.validation = 0: must be above 0, or set training.patience to null (nothing to stop early on)")
    if contract.training.is_open_ended and (contract.training.patience is None or not split.validation):
        problems.append(
            "training.schedule = open-ended: validation has to end it; split.validation must be above 0, and "
            "training.patience not null"
        )
    if contract.training.warm_up and contract.training.schedule != "cosine":
        problems.append(f"training.warm_up = {contract.training.warm_up:g}: only works with training.schedule = cosine")
    if contract.training.starts == "public" and contract.defense:
        problems.append("training.starts = public: starting weights reveal what a defence hides; use secret, or no defence")
    if contract.training.starts == "public" and contract.linkage.imputes:
        problems.append(
            "training.starts = public: with public weights a party can repeat the whole training and find out which rows of a "
            "union are imputed; use secret, or align by intersection"
        )
    if model.normalization == "batch" and GaussianEmbeddings in [entry.defense for entry in contract.defense]:
        problems.append(
            "model.normalization = batch: spreads a row's columns over the embeddings of its whole batch, which "
            f"{GaussianEmbeddings.method} does not cover; use none, or another defence"
        )
    if model.ensemble > 1:
        where = f"model.ensemble = {model.ensemble}"
        if model.top is not None:
            problems.append(f"{where}: model.top = {model.top} is everything above the cut; leave one of the two out")
        if model.cut_after >= len(model.hidden):
            problems.append(
                f"{where}: no layer of model.hidden is above the cut, so all networks would be the same; lower model.cut_after"
            )
        if contract.alignment.similarity is not None:
            problems.append(f"{where}: links of similar rows are merged by a single network; leave model.ensemble out")
        if contract.unaligned.used:
            problems.append(
                f"{where}: unaligned.method = {contract.unaligned.method} brings networks of its own; leave model.ensemble out"
            )
    if target.type == "multilabel" and target.outputs > MOST_REPLACED and contract.hides_labels:
        problems.append(
            f"defense: label-dp draws one of all patterns of labels, and would keep hardly any of {target.outputs} labels; use "
            "at most "
            f"{MOST_REPLACED} labels, or training.gradients = none"
        )
    if model.cut_after > len(model.hidden):
        problems.append(
            f"model.cut_after = {model.cut_after}: must be at most {len(model.hidden)}, the number of layers in model.hidden"
        )
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
    problems += _serving_problems(contract)
    problems += _disclosure_problems(contract) + promotion_problems(contract.promotion, target.type)
    if network.heartbeat_s >= network.deadline_s:
        problems.append(
            f"network.heartbeat_s = {network.heartbeat_s:g}: must be below network.deadline_s = {network.deadline_s:g}"
        )
    return problems


def _disclosure_problems(contract: Contract) -> list[str]:
    """List problems of what the label party sends in addition to gradients: it must exist, and must not undo a guarantee."""
    evaluation, target = contract.evaluation, contract.target.type
    allowed, shared = METRICS[target], evaluation.share_metrics
    problems = [
        f"evaluation.share_metrics.{number} = {shown(name)}: is not a metric of {target} targets; allowed: {', '.join(allowed)}"
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
    if any(entry.defense.hides_features() for entry in contract.defense):
        problems.append(
            f"{where}: embeddings with one column shuffled disclose that column of every row, in spite of a defence; set it to "
            "none, or leave the defence of columns out"
        )
    if columns == "both" and contract.hides_labels:
        problems.append(f"{where}: exact figures of validation labels undo what the label defence promises; use label-party")
    return problems


def _serving_problems(contract: Contract) -> list[str]:
    """List what of this section the rest of the contract does not allow."""
    serving, linkage, method = contract.serving, contract.linkage, contract.alignment.method
    if serving is None:
        return []
    problems = []
    if len(set(serving.ways)) != len(serving.ways):
        problems.append("serving.ways: each way must be given once")
    if linkage.similar:
        problems.append(
            f"serving: does not work with alignment.method = {method}, whose rows cannot be found by a key; leave it out"
        )
    elif linkage.helper:
        problems.append(
            f"serving: does not work with alignment.method = {method}, whose helper would have to keep running; use union"
        )
    hidden = ("ahead", *get_args(FeaturePartyAsks))
    if linkage.imputes and (wrong := [way for way in serving.ways if way not in hidden]):
        problems.append(
            f"serving.ways: {', '.join(wrong)} would show on a union which rows the label party has; use {' or '.join(hidden)}"
        )
    of_feature_party = [way for way in serving.ways if way in get_args(FeaturePartyAsks)]
    if not of_feature_party:
        return problems
    ways = " and ".join(of_feature_party)
    if len(of_feature_party) < len(serving.ways):
        problems.append(
            f"serving.ways: by {ways} the feature party asks, and by the others the label party; keep the ways of one party"
        )
    if len(contract.feature_parties) > 1:
        problems.append(f"serving.ways: by {ways} one feature party asks, and this contract has {len(contract.feature_parties)}")
    if contract.target.outputs > 1 or contract.target.type == "quantile":
        several = "several" if contract.target.outputs > 1 else "one of a level, by whose name it is called"
        problems.append(f"serving.ways: {ways} give one number for a row, and target.type = {contract.target.type} has {several}")
    if "embedding" in of_feature_party and serving.questions_a_day_per_row is not None:
        problems.append(
            "serving.questions_a_day_per_row: with embedding no party knows which row is asked for; limit questions_a_day instead"
        )
    if "agreed-batch" in of_feature_party and contract.alignment.duplicates == "all":
        problems.append("serving.ways: agreed-batch needs one row for each id, and alignment.duplicates = all allows several")
    return problems


def _no_gradient_problems(contract: Contract) -> list[str]:
    """List parts of a contract that need a gradient, or that reveal labels to the feature parties in another way."""
    training, evaluation, where = contract.training, contract.evaluation, "training.gradients = none"
    if training.gradients == "shared":
        return _shared_head_problems(contract)
    if training.gradients == "sent":
        return []
    problems = []  # all defences of labels, and those of columns that act while a bottom model is trained
    for number, entry in enumerate(contract.defense):
        entry_key = f"{where}, defense.{number}.method = {entry.defense.method}"
        if not entry.defense.hides_features():
            problems.append(
                f"{entry_key}: hides labels in what the label party sends, but nothing that it sends here depends on a label; "
                "leave it out"
            )
        elif entry.defense.stage == "embedding penalties":
            problems.append(
                f"{entry_key}: acts while a bottom model learns from cut gradients, but there are none here; leave it out, or "
                "choose one that changes the embeddings themselves"
            )
    if contract.linkage.imputes:
        problems.append(
            f"{where}, alignment.method = {contract.alignment.method}: stand-ins for a union's absent rows are drawn anew in "
            "each epoch, but here each row crosses once; align by intersection, or send gradients"
        )
    if contract.unaligned.facts.teaches_bottoms:
        problems.append(
            f"{where}, unaligned.method = {contract.unaligned.method}: trains the feature parties' bottom models with cut "
            "gradients; choose another method, or send gradients"
        )
    if contract.tuning.keys:
        problems.append(
            f"{where}, tuning.keys: the values that a search tries next depend on validation labels, and every party sees them; "
            "leave tuning.keys out"
        )
    if evaluation.privacy is not None:
        problems.append(f"{where}, evaluation.privacy: sends a figure of the test labels; set it to null")
    if evaluation.share_metrics:
        problems.append(
            f"{where}, evaluation.share_metrics = {shown(list(evaluation.share_metrics))}: are figures of the test labels; "
            "leave them out"
        )
    if evaluation.importance.feature_columns != "none":
        problems.append(
            f"{where}, evaluation.importance.feature_columns = {evaluation.importance.feature_columns}: makes feature parties "
            "embed rows again after training, but here each row crosses once; set it to none"
        )
    if contract.serving is not None and contract.serving.feature_party_asks:
        problems.append(
            f"{where}, serving.ways = {shown(list(contract.serving.ways))}: answers a feature party with scores, by a model "
            "that was trained on labels; choose ways in which the label party asks, or send gradients"
        )
    return problems


def _shared_head_problems(contract: Contract) -> list[str]:
    """List parts of a contract that cannot be combined with a head on shares."""
    training, evaluation, where = contract.training, contract.evaluation, "training.gradients = shared"
    problems = []
    if contract.alignment.method != "intersection" or contract.alignment.duplicates == "all":
        problems.append(
            f"{where}, alignment.method = {contract.alignment.method}, alignment.duplicates = "
            f"{contract.alignment.duplicates}: a head on shares needs one row of each side; align by intersection, with each "
            "id once"
        )
    if contract.unaligned.used:
        problems.append(
            f"{where}, unaligned.method = {contract.unaligned.method}: a head on shares cannot use such rows; set it to none"
        )
    for number, entry in enumerate(contract.defense):
        problems.append(
            f"{where}, defense.{number}.method = {entry.defense.method}: neither embeddings nor gradients cross, so there is "
            "nothing to defend; leave it out"
        )
    usual = NetworkModel()
    if given := [f"model.{key}" for key in type(usual).model_fields if getattr(contract.model, key) != getattr(usual, key)]:
        problems.append(f"{where}, {', '.join(given)}: the features of a head on shares are built in; leave it out")
    allowed = {"gradients", "mode", "epochs", "batch_size", "learning_rate", "weight_decay", "checkpoint_every"}
    problems += [
        f"{where}, training.{key}: a head on shares has no such setting; leave it out"
        for key in sorted(training.model_fields_set - allowed)
        if getattr(training, key) != type(training).model_fields[key].default
    ]
    if contract.target.type == "multilabel":
        problems.append(
            f"{where}, target.type = multilabel: a head on shares opens one score of a row, or one for each class; choose one "
            "label"
        )
    if contract.target.type in ("count", "survival", "quantile"):
        problems.append(
            f"{where}, target.type = {contract.target.type}: a head on shares only has squared and logistic loss; choose "
            "regression"
        )
    most = 0.5 if contract.target.is_number else 1.0
    if training.learning_rate > most:
        problems.append(
            f"{where}, training.learning_rate = {training.learning_rate:g}: steps could leave the range of shares, and "
            f"nothing would show it; choose at most {most:g}"
        )
    if training.batch_size != "auto" and training.batch_size < 32:
        problems.append(
            f"{where}, training.batch_size = {training.batch_size}: with so few rows a step, scores could leave the range of "
            "shares, and nothing would show it; choose at least 32"
        )
    if contract.tuning.keys:
        problems.append(f"{where}, tuning.keys: each trial would open scores of the same rows again; leave it out")
    if contract.serving is not None and contract.serving.ways != ("ahead",):
        problems.append(
            f"{where}, serving.ways = {shown(list(contract.serving.ways))}: a row has one score, which tallystick predict "
            "opens; choose only ahead, which answers requests with these scores"
        )
    if (serving := contract.serving) is not None and (serving.questions_a_day or serving.questions_a_day_per_row):
        problems.append(
            f"{where}, serving.questions_a_day, serving.questions_a_day_per_row: no question crosses; leave them out, and "
            "limit scores by privacy.scores_per_row in the feature party's file"
        )
    if evaluation.privacy is not None or evaluation.share_metrics:
        problems.append(
            f"{where}, evaluation: figures of the test labels would leave the label party; set privacy to null, and leave "
            "share_metrics out"
        )
    if evaluation.importance.feature_columns != "none":
        problems.append(
            f"{where}, evaluation.importance.feature_columns = {evaluation.importance.feature_columns}: would score rows again; "
            "set it to none"
        )
    return problems


def _against_refit(contract: Contract) -> list[str]:
    problems = _against_refit_of_rows(contract)
    if contract.unaligned.used:
        problems.append(
            f"unaligned.method = {contract.unaligned.method}: its models are fitted to each other on validation rows, which a "
            "refit does not have; leave training.refit out"
        )
    return problems


def _against_refit_of_rows(contract: Contract) -> list[str]:
    """List properties of the rows that prevent a refit: there are none to add, or they are made up."""
    problems = []
    if not contract.split.validation:
        problems.append("split.validation = 0: there are no validation rows to train on; leave training.refit out")
    if contract.linkage.imputes:
        problems.append(
            f"alignment.method = {contract.alignment.method}: stand-ins for a union's absent rows would be drawn a second "
            "time, and the change between the two trainings shows which rows they are; leave training.refit out"
        )
    return problems


def _against_folds(contract: Contract) -> list[str]:
    training, model = contract.training, contract.model
    problems = []
    if not contract.split.validation:
        problems.append("split.validation = 0: the first fold is the validation rows, and there are none")
    if contract.split.method == "time":
        problems.append(
            "split.method = time: the newest rows judge the network, and with folds later rows would teach earlier ones"
        )
    if training.refit is True:
        problems.append("training.refit = true: with folds the validation rows already train all networks but one")
    if training.starts == "public":
        problems.append("training.starts = public: the audit rebuilds the first models, and can do so for one network only")
    if contract.alignment.method != "intersection":
        problems.append(f"alignment.method = {contract.alignment.method}: folds only work with alignment.method = intersection")
    if contract.unaligned.used:
        problems.append(f"unaligned.method = {contract.unaligned.method}: it brings networks of its own")
    if contract.defense:
        problems.append(
            f"defense.0.method = {contract.defense[0].defense.method}: it defends the embeddings and gradients of one network"
        )
    if model.bottoms or model.top is not None:
        key = "model.top" if model.top is not None else f"model.bottoms.{next(iter(model.bottoms))}"
        problems.append(f"{key}: folds only work with the built-in networks")
    return problems
