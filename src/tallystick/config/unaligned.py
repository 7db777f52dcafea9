"""Declare how a contract uses rows that only the label party has: one class for each ``unaligned.method``, with its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

from pydantic import Field

from tallystick.reading import Count, Text, Variant, WholeShare, usual

MOST_EVALUATIONS = 1000  # a diffusion has this many steps of noise


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """Facts about a method for unaligned rows, for the checks of a contract and for a feature party.

    Args:
        what: the method in one phrase.
        implemented: its class in training/unaligned/, as file.Class, loaded when a party trains; empty for none.
        embeds: whether the embeddings of the training rows are sent once more, after the first joint epochs.
        pretrains_bottoms: whether the feature parties first train their bottom models on all their own rows, without labels.
        teaches_bottoms: whether the feature parties' bottom models learn from cut gradients in the first joint epochs, so that
            the contract must send gradients.
        two_classes: whether the target must be binary.
        one_feature_party: whether there may be only one feature party.
        dispensable: whether a run without any unaligned training row goes on as with none.
    """

    what: str
    implemented: str = ""
    embeds: bool = False
    pretrains_bottoms: bool = False
    teaches_bottoms: bool = False
    two_classes: bool = False
    one_feature_party: bool = False
    dispensable: bool = False


_HELP = "how they are trained on, and scored"
Epochs = Annotated[
    Count,
    Field(
        description="limit of epochs before the joint model: of a model on unaligned rows, stopped after the first epoch that "
        "does not validate better; of a generator of embeddings; or of self-supervision, which takes a tenth of them"
    ),
]
JointEpochs = Annotated[
    Count, Field(description="epochs on aligned rows before embeddings are made up, or before labels are used")
]
LocalSteps = Annotated[
    int,
    Field(
        strict=True,
        ge=1,
        le=1000,
        description="steps on unaligned rows for each joint step; in an epoch they use all of these rows",
    ),
]
WarmRate = Annotated[
    WholeShare,
    Field(
        description="learning rate of a bottom model that starts from another's weights, as a share of the usual; 0 freezes it"
    ),
]
Dropout = Annotated[
    float,
    Field(strict=True, ge=0, lt=1, description="share of the joint top's inputs that each step drops at random"),
]
LabelCondition = Annotated[
    bool, Field(strict=True, description="whether generated embeddings depend on the label, too, as in FedAds")
]
Masked = Annotated[float, Field(strict=True, gt=0, lt=1, description="share of a row's cells that each of its two views hides")]
MaskedBy = Annotated[
    Literal["missing", "other-row"],
    Field(description="content of a hidden cell: nothing, or another row's cell"),
]
SelfSupervisionRate = Annotated[
    float, Field(strict=True, gt=0, le=100, description="learning rate of self-supervision, as a multiple of the usual")
]


class UnalignedKeys(Variant):
    """Base of the uses of the label party's rows without a partner's row (FedAds, section 4.1, and better methods)."""

    facts: ClassVar[MethodFacts]
    method: str

    @property
    def used(self) -> bool:
        """Tell whether unaligned rows are used."""
        return bool(self.facts.implemented)

    @property
    def epochs_before(self) -> int:
        """Return how many joint epochs come before embeddings are made up, or before labels are used."""
        epochs: int = getattr(self, "joint_epochs", 0)
        return epochs

    @property
    def steps_beside(self) -> int:
        """Return how many steps on unaligned rows follow each joint step. Nothing crosses in them."""
        steps: int = getattr(self, "local_steps", 0)
        return steps


class NoneConfig(UnalignedKeys):
    """They are left out."""

    facts = MethodFacts(what="they are left out (VanillaVFL)")
    method: Literal["none"] = Field(default="none", description=_HELP)


class WarmStartConfig(UnalignedKeys):
    """A model that was trained on them starts the joint one."""

    facts = MethodFacts(
        what="the label party's model starts from one that was trained on them",
        implemented="warm_start.WarmStart",
        dispensable=True,
    )
    method: Literal["warm-start"] = Field(description=_HELP)
    epochs: Epochs = 30
    warm_rate: WarmRate = 0.3
    dropout: Dropout = 0.5


class OffsetConfig(UnalignedKeys):
    """A model that was trained on them is corrected by the joint one."""

    facts = MethodFacts(
        what="a model trained on them gives a logit, which the joint model corrects", implemented="warm_start.Offset"
    )
    method: Literal["offset"] = Field(description=_HELP)
    epochs: Epochs = 30
    warm_rate: WarmRate = 0.3
    dropout: Dropout = 0.5


class MultiTaskConfig(UnalignedKeys):
    """They train the label party's bottom model together with the joint one."""

    facts = MethodFacts(
        what="they train the label party's bottom model through a top of their own", implemented="multi_task.MultiTask"
    )
    method: Literal["multi-task"] = Field(description=_HELP)
    local_steps: LocalSteps = 1


class AverageConfig(UnalignedKeys):
    """The mean of offset and multi-task."""

    facts = MethodFacts(what="offset and multi-task over one cut, their logits averaged", implemented="average.Average")
    method: Literal["average"] = Field(description=_HELP)
    epochs: Epochs = 30
    local_steps: LocalSteps = 1
    warm_rate: WarmRate = 0.3


class HeuristicConfig(UnalignedKeys):
    """A row gets the mean embedding of a group of aligned rows."""

    facts = MethodFacts(
        what="a row gets the mean embedding of the aligned rows of its group", implemented="heuristic.Heuristic", embeds=True
    )
    method: Literal["heuristic"] = Field(description=_HELP)
    joint_epochs: JointEpochs = 1
    local_steps: LocalSteps = 1
    group: Text | None = Field(
        default=None,
        description="the label party's categorical column that groups rows, such as a user's id; null is one group",
    )


class RegressorConfig(UnalignedKeys):
    """A regression gives a row's missing embedding."""

    facts = MethodFacts(what="a regression gives the missing embedding", implemented="regressor.Regressor", embeds=True)
    method: Literal["regressor"] = Field(description=_HELP)
    epochs: Epochs = 30
    joint_epochs: JointEpochs = 1
    local_steps: LocalSteps = 1
    label_condition: LabelCondition = False


class DiffuATConfig(UnalignedKeys):
    """A diffusion gives a row's missing embedding (Diffu-AT)."""

    facts = MethodFacts(
        what="a conditional diffusion gives the missing embedding (Diffu-AT)", implemented="diffu_at.DiffuAT", embeds=True
    )
    method: Literal["diffu-at"] = Field(description=_HELP)
    epochs: Epochs = 30
    joint_epochs: JointEpochs = 1
    local_steps: LocalSteps = 1
    label_condition: LabelCondition = False
    prediction: Literal["epsilon", "x0", "v"] = Field(default="epsilon", description="what its network predicts")
    evaluations: Annotated[int, Field(strict=True, ge=1, le=MOST_EVALUATIONS)] = Field(
        default=20, description=f"evaluations of its network per embedding, at most {MOST_EVALUATIONS}"
    )
    sampling: Literal["ddim", "ddpm"] = Field(
        default="ddim",
        description="ddim adds no noise between evaluations, ddpm does; FedAds uses ddpm with 1000 evaluations, which takes "
        "fifty times the time",
    )


class JPLConfig(UnalignedKeys):
    """A mapping that is learnt together with the model gives a row's missing embedding (JPL)."""

    facts = MethodFacts(
        what="a mapping learnt with the model gives the missing embedding (JPL)", implemented="jpl.JointPrivilegedLearning"
    )
    method: Literal["jpl"] = Field(description=_HELP)
    local_steps: LocalSteps = 1


class FedCVTConfig(UnalignedKeys):
    """Attention over aligned rows gives a row's missing embedding (FedCVT)."""

    facts = MethodFacts(
        what="attention over aligned rows gives the missing embedding (FedCVT)",
        implemented="fedcvt.FedCVT",
        two_classes=True,
        one_feature_party=True,
    )
    method: Literal["fedcvt"] = Field(description=_HELP)
    local_steps: LocalSteps = 1


class SSVFLConfig(UnalignedKeys):
    """Bottom models start from momentum contrast (SS-VFL)."""

    facts = MethodFacts(
        what="each party's bottom model starts from momentum contrast on all its rows (SS-VFL)",
        implemented="ss_vfl.SelfSupervised",
        pretrains_bottoms=True,
    )
    method: Literal["ss-vfl"] = Field(description=_HELP)
    epochs: Epochs = 30
    masked: Masked = 0.3
    masked_by: MaskedBy = "missing"
    self_supervision_rate: SelfSupervisionRate = 1.0


class FedHSSLConfig(UnalignedKeys):
    """Bottom models start from SimSiam and from the other party's embeddings (FedHSSL)."""

    facts = MethodFacts(
        what="each party's bottom model starts from SimSiam on all its rows and from the other's embeddings (FedHSSL)",
        implemented="fedhssl.FedHSSL",
        pretrains_bottoms=True,
        teaches_bottoms=True,
    )
    method: Literal["fedhssl"] = Field(description=_HELP)
    epochs: Epochs = 30
    joint_epochs: JointEpochs = 1
    masked: Masked = 0.3
    masked_by: MaskedBy = "missing"
    self_supervision_rate: SelfSupervisionRate = 1.0


class VFLMPDConfig(UnalignedKeys):
    """Bottom models start from matched and mismatched pairs (VFL-MPD)."""

    facts = MethodFacts(
        what="the bottom models start from separating matched pairs of embeddings from mismatched ones (VFL-MPD)",
        implemented="vfl_mpd.MatchedPairs",
        teaches_bottoms=True,
    )
    method: Literal["vfl-mpd"] = Field(description=_HELP)
    joint_epochs: JointEpochs = 1


UnalignedConfig: TypeAlias = Annotated[
    NoneConfig
    | WarmStartConfig
    | OffsetConfig
    | MultiTaskConfig
    | AverageConfig
    | HeuristicConfig
    | RegressorConfig
    | DiffuATConfig
    | JPLConfig
    | FedCVTConfig
    | SSVFLConfig
    | FedHSSLConfig
    | VFLMPDConfig,
    Field(discriminator="method"),
    usual("method", "none"),
]

CLASSES: Mapping[str, type[UnalignedKeys]] = {
    get_args(choice.model_fields["method"].annotation)[0]: choice
    for choice in UnalignedKeys.choices()
    if issubclass(choice, UnalignedKeys)
}
METHODS: Mapping[str, MethodFacts] = {name: choice.facts for name, choice in CLASSES.items()}
"""Each name of the contract's unaligned.method, and its facts. training/unaligned/ has a file for each."""


def unaligned_problems(unaligned: UnalignedKeys, *, alignment: str, target: str, feature_parties: int, wide: bool) -> list[str]:
    """List the problems of a method for unaligned rows with the rest of a contract."""
    if not unaligned.used:
        return []
    where, facts = f"unaligned.method = {unaligned.method}", unaligned.facts
    problems = []
    if alignment != "intersection":
        problems.append(
            f"{where}: with alignment.method = {alignment} every row has a partner's row: by similarity its nearest "
            "candidates, on a union a made-up one; use none, or an intersection"
        )
    if target == "multilabel":
        problems.append(f"{where}: its models take one label of a row; target.type = multilabel has several; use none")
    elif target == "survival":
        problems.append(f"{where}: mixes labels with predictions, which is not possible for target.type = survival; use none")
    elif facts.two_classes and target != "binary":
        problems.append(f"{where}: needs two classes; target.type = {target}; choose multi-task or average")
    if facts.one_feature_party and feature_parties > 1:
        problems.append(f"{where}: is for one feature party, found {feature_parties}; choose multi-task or average")
    if wide:
        problems.append(f"{where}: only works with model.wide = false; a wide part would read the label party's columns twice")
    return problems
