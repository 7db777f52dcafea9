"""Declare what a contract says of rows that only the label party has: the methods of training/unaligned/, and keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from tallystick.reading import Count, Model, Text, WholeShare

MOST_EVALUATIONS = 1000  # a diffusion has so many steps of noise


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """Facts about a method for unaligned rows, for the checks of a contract and for a feature party.

    Args:
        what: in one phrase.
        implemented: where in training/unaligned/ its class is, as file.Class; it is loaded when a party trains. Empty for none.
        joint_before: epochs on aligned rows come first.
        embeds: the embeddings of the training rows are sent once more after these epochs.
        local_steps: steps on unaligned rows lie among the joint ones, in which nothing crosses.
        pretrains_bottoms: the feature parties train their bottom models on all their own rows first, without labels.
        teaches_bottoms: the feature parties' bottom models learn by cut gradients in the epochs before, so it needs these.
        two_classes: the target must be binary.
        groups: rows are grouped by ``unaligned.group``.
        one_feature_party: there may be only one.
        dispensable: where the label party has no unaligned row to train on, a run goes on as with none.
    """

    what: str
    implemented: str = ""
    joint_before: bool = False
    embeds: bool = False
    local_steps: bool = True
    pretrains_bottoms: bool = False
    teaches_bottoms: bool = False
    two_classes: bool = False
    groups: bool = False
    one_feature_party: bool = False
    dispensable: bool = False


METHODS: Mapping[str, MethodFacts] = {
    "none": MethodFacts(what="they are left out (VanillaVFL)", local_steps=False),
    "warm-start": MethodFacts(
        what="the label party's model starts from one that was trained on them",
        implemented="warm_start.WarmStart",
        local_steps=False,
        dispensable=True,
    ),
    "offset": MethodFacts(
        what="a model trained on them gives a logit, which the joint model corrects",
        implemented="warm_start.Offset",
        local_steps=False,
    ),
    "multi-task": MethodFacts(
        what="they train the label party's bottom model through a top of their own", implemented="multi_task.MultiTask"
    ),
    "average": MethodFacts(what="offset and multi-task over one cut, their logits averaged", implemented="average.Average"),
    "heuristic": MethodFacts(
        what="a row gets the mean embedding of the aligned rows of its group",
        implemented="heuristic.Heuristic",
        joint_before=True,
        embeds=True,
        groups=True,
    ),
    "regressor": MethodFacts(
        what="a regression gives the missing embedding", implemented="regressor.Regressor", joint_before=True, embeds=True
    ),
    "diffu-at": MethodFacts(
        what="a conditional diffusion gives the missing embedding (Diffu-AT)",
        implemented="diffu_at.DiffuAT",
        joint_before=True,
        embeds=True,
    ),
    "jpl": MethodFacts(
        what="a mapping learnt beside the model gives the missing embedding (JPL)", implemented="jpl.JointPrivilegedLearning"
    ),
    "fedcvt": MethodFacts(
        what="attention over aligned rows gives the missing embedding (FedCVT)",
        implemented="fedcvt.FedCVT",
        two_classes=True,
        one_feature_party=True,
    ),
    "ss-vfl": MethodFacts(
        what="each party's bottom model starts from momentum contrast on all its rows (SS-VFL)",
        implemented="ss_vfl.SelfSupervised",
        local_steps=False,
        pretrains_bottoms=True,
    ),
    "fedhssl": MethodFacts(
        what="each party's bottom model starts from SimSiam on all its rows and from the other's embeddings (FedHSSL)",
        implemented="fedhssl.FedHSSL",
        joint_before=True,
        local_steps=False,
        pretrains_bottoms=True,
        teaches_bottoms=True,
    ),
    "vfl-mpd": MethodFacts(
        what="the bottom models start from telling matched pairs of embeddings from mismatched ones (VFL-MPD)",
        implemented="vfl_mpd.MatchedPairs",
        joint_before=True,
        local_steps=False,
        teaches_bottoms=True,
    ),
}
"""The contract's unaligned.method to what it is: the one table of these methods, with a file of its own for each."""

if TYPE_CHECKING:
    Method: TypeAlias = str
else:
    Method = Literal[tuple(METHODS)]

_HELP = "; ".join(f"{name}: {facts.what}" for name, facts in METHODS.items())


class UnalignedConfig(Model):
    """Use of the label party's rows without a partner's row (FedAds, section 4.1, and what does better)."""

    method: Method = Field(default="none", description=f"how they train, and get a score: {_HELP}")
    epochs: Count = Field(
        default=30,
        description="most epochs of what comes before the joint model: a model on unaligned rows, stopped after the first that "
        "their validation rows find no better; self-supervision takes a tenth of them",
    )
    joint_epochs: Count = Field(
        default=1,
        description="epochs on aligned rows before embeddings are made up (heuristic, regressor, diffu-at), or before "
        "labels are used (fedhssl, vfl-mpd)",
    )
    local_steps: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=1, description="steps on unaligned rows for each joint step; each epoch's share all of these rows"
    )
    warm_rate: WholeShare = Field(
        default=0.3,
        description="learning rate of a bottom model that starts from another's weights, as a share of the usual; 0 freezes it",
    )
    dropout: Annotated[float, Field(strict=True, ge=0, lt=1)] = Field(
        default=0.5, description="warm-start, offset: share of the joint top's inputs that each step leaves out, at random"
    )
    label_condition: bool = Field(
        default=False, strict=True, description="regressor, diffu-at: the label too conditions what is made up, as in FedAds"
    )
    prediction: Literal["epsilon", "x0", "v"] = Field(default="epsilon", description="diffu-at: what its network predicts")
    evaluations: Annotated[int, Field(strict=True, ge=1, le=MOST_EVALUATIONS)] = Field(
        default=20, description=f"diffu-at: evaluations of its network per embedding, at most {MOST_EVALUATIONS}"
    )
    sampling: Literal["ddim", "ddpm"] = Field(
        default="ddim",
        description="diffu-at: ddim adds no noise between evaluations, ddpm does; FedAds has ddpm in 1000 evaluations, at fifty "
        "times the time",
    )
    masked: Annotated[float, Field(strict=True, gt=0, lt=1)] = Field(
        default=0.3, description="ss-vfl, fedhssl: share of a row's cells that each of its two views hides"
    )
    masked_by: Literal["missing", "other-row"] = Field(
        default="missing",
        description="ss-vfl, fedhssl: what stands in a hidden cell: nothing, or another row's cell",
    )
    self_supervision_rate: Annotated[float, Field(strict=True, gt=0, le=100)] = Field(
        default=1.0, description="ss-vfl, fedhssl: learning rate of self-supervision, as a multiple of the usual"
    )
    group: Text | None = Field(
        default=None,
        description="heuristic: the label party's categorical column that groups rows, such as a user's id; null is one group",
    )

    @property
    def facts(self) -> MethodFacts:
        """Return the method's facts."""
        return METHODS[self.method]

    @property
    def used(self) -> bool:
        """Tell whether unaligned rows are used."""
        return self.method != "none"


def unaligned_problems(unaligned: UnalignedConfig, *, alignment: str, target: str, feature_parties: int, wide: bool) -> list[str]:
    """List what is wrong with a method for unaligned rows beside the rest of a contract."""
    if not unaligned.used:
        return []
    where, facts = f"unaligned.method = {unaligned.method}", unaligned.facts
    problems = []
    if alignment != "intersection":
        problems.append(
            f"{where}: alignment.method = {alignment} leaves no row without a partner's row: by similarity every row has its "
            "nearest candidates, and a union makes up what a side lacks; use none, or an intersection"
        )
    if facts.two_classes and target != "binary":
        problems.append(f"{where}: needs two classes; target.type = {target}; choose multi-task or average")
    if unaligned.group is not None and not facts.groups:
        problems.append(f"{where}: groups nothing; leave unaligned.group = {unaligned.group} out")
    if facts.one_feature_party and feature_parties > 1:
        problems.append(f"{where}: is for one feature party, found {feature_parties}; choose multi-task or average")
    if wide:
        problems.append(f"{where}: goes with model.wide = false only; a wide part would read the label party's columns twice")
    return problems
