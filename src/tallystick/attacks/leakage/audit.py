"""The label audit: every attack on one feature party's view, judged; what a report's label section holds.

Shapes: N rows of the run.

The label party runs it: it can record what it sends and receives, which is all that crosses the wire, and it has the labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.leakage.averaged import OverEpochs
from tallystick.attacks.leakage.clusters import ClusterAttack
from tallystick.attacks.leakage.completion import ModelCompletion
from tallystick.attacks.leakage.direction import DirectionAttack
from tallystick.attacks.leakage.judge import LeakJudge, LeakVerdict
from tallystick.attacks.leakage.knowledge import FewLabels, HintsPerBatch, Knowledge, NoLabels, ShareOfLabels
from tallystick.attacks.leakage.norm import NormAttack
from tallystick.attacks.leakage.probe import Probe
from tallystick.attacks.leakage.spectral import SpectralAttack
from tallystick.attacks.view import Attack, Received, View
from tallystick.errors import ConfigError, DataError

NO_LABELS = NoLabels()


@dataclass(frozen=True, kw_only=True)
class LeakageAttack:
    """One row of the table: an attack, and what it is given.

    Args:
        attack: scores rows of a view.
        plain: what it does, in a line for people who have never heard of it; reports show it beside the name.
        reads: what it reads of a step.
        knows: which labels the attacker is told.
        multiclass: whether it can tell more than two classes apart.
        upper_bound: needs labels that no attacker has; says what is there to be found, not what is lost.
    """

    attack: Attack
    plain: str
    reads: Received
    knows: Knowledge = NO_LABELS
    multiclass: bool = True
    upper_bound: bool = False


DIRECTION = "rows whose gradients point the way of a known row's share its label"
SPECTRAL = "rows are told apart by which side of the batch's main direction they lie on"
CLUSTERS = "rows are sorted into as many heaps as there are classes; the smaller heap is the rarer class"
AVERAGED = "each row's scores averaged over the epochs, so that fresh noise cancels out"

LEAKAGE_ATTACKS: Mapping[str, LeakageAttack] = MappingProxyType(
    {
        "norm": LeakageAttack(
            attack=NormAttack(),
            plain="the longer a row's gradient, the likelier the row is of the rarer class",
            reads="cut_gradient",
            multiclass=False,
        ),
        "direction-1": LeakageAttack(
            attack=DirectionAttack(), plain=DIRECTION, reads="cut_gradient", knows=HintsPerBatch(count=1)
        ),
        "direction-3": LeakageAttack(
            attack=DirectionAttack(), plain=DIRECTION, reads="cut_gradient", knows=HintsPerBatch(count=3)
        ),
        "direction-5": LeakageAttack(
            attack=DirectionAttack(), plain=DIRECTION, reads="cut_gradient", knows=HintsPerBatch(count=5)
        ),
        "spectral-gradient": LeakageAttack(
            attack=SpectralAttack(target="cut_gradient"), plain=SPECTRAL, reads="cut_gradient", multiclass=False
        ),
        "spectral-embedding": LeakageAttack(
            attack=SpectralAttack(target="cut_embedding"), plain=SPECTRAL, reads="cut_embedding", multiclass=False
        ),
        "clusters-gradient": LeakageAttack(
            attack=ClusterAttack(target="cut_gradient", scope="batch"), plain=CLUSTERS, reads="cut_gradient"
        ),
        "clusters-embedding": LeakageAttack(attack=ClusterAttack(target="cut_embedding"), plain=CLUSTERS, reads="cut_embedding"),
        "norm-averaged": LeakageAttack(
            attack=OverEpochs(attack=NormAttack()),
            plain=f"as norm, {AVERAGED}",
            reads="cut_gradient",
            multiclass=False,
        ),
        "direction-5-averaged": LeakageAttack(
            attack=OverEpochs(attack=DirectionAttack()),
            plain=f"as direction-5, {AVERAGED}",
            reads="cut_gradient",
            knows=HintsPerBatch(count=5),
            multiclass=False,
        ),
        "completion": LeakageAttack(
            attack=ModelCompletion(),
            plain="a small model on the embeddings, taught by a few known rows, labels all the others",
            reads="cut_embedding",
            knows=FewLabels(),
        ),
        "completion-standardised": LeakageAttack(
            attack=ModelCompletion(columns="each"),
            plain="as completion, each embedding column brought to the same spread first",
            reads="cut_embedding",
            knows=FewLabels(),
        ),
        "completion-gradient": LeakageAttack(
            attack=ModelCompletion(target="cut_gradient"),
            plain="a small model on the gradients, taught by a few known rows, labels all the others",
            reads="cut_gradient",
            knows=FewLabels(),
        ),
        "probe": LeakageAttack(
            attack=Probe(),
            plain="a linear model on the embeddings, taught by half of all labels",
            reads="cut_embedding",
            knows=ShareOfLabels(),
            upper_bound=True,
        ),
        "probe-network": LeakageAttack(
            attack=Probe(hidden=64),
            plain="a small network on the embeddings, taught by half of all labels",
            reads="cut_embedding",
            knows=ShareOfLabels(),
            upper_bound=True,
        ),
        "probe-gradient": LeakageAttack(
            attack=Probe(target="cut_gradient"),
            plain="a linear model on the gradients, taught by half of all labels",
            reads="cut_gradient",
            knows=ShareOfLabels(),
            upper_bound=True,
        ),
    }
)


def audit_leakage(
    view: View,
    labels_N: Tensor,
    *,
    classes: int = 2,
    hints: int = 40,
    clean: Sequence[Tensor] | None = None,
    attacks: Mapping[str, LeakageAttack] | None = None,
    judge: LeakJudge | None = None,
    seed: int = 0,
) -> dict[str, LeakVerdict]:
    """Attack one feature party's view and judge.

    No guarantee: no attack here found more, another may.

    Args:
        view: what the feature party saw; labels that it knows are drawn here, one set per attack.
        labels_N: the truth, a class number per row as the contract numbers them (0 or 1 if binary; floats will do).
        classes: of the target, at least 2.
        hints: labels that the few-label attacks are told, at least one per class.
        clean: per step (B, D), the cut gradients before any defence, of which the attacker gets those of the rows that it is
            told: a stronger attacker, and Marvell's. None: it has only what it received.
        attacks: by name; by default all that can read this view and target: a view without recorded embeddings leaves out those
            that read them, several classes leave out those for two.
        judge: by default TPR at FPR 0.001, intervals of 95 %.
        seed: of the told labels, of attacks that draw, and of the bootstrap.

    Returns:
        a verdict per attack, leaving out attacks for which no batch could be judged.

    Raises:
        DataError: the view is broken, or labels do not fit it.
        ConfigError: an attack in ``attacks`` cannot be used on this target.
    """
    labels_N = _checked(labels_N, view, classes)
    view = replace(view, classes=classes)
    judge = judge or LeakJudge()
    found = {}
    for name, row in (_usable(view) if attacks is None else attacks).items():
        knows = FewLabels(count=hints) if isinstance(row.knows, FewLabels) else row.knows
        told = _with_clean_hints(knows.tell(view, labels_N, rng=np.random.default_rng([seed, 3])), clean)
        scores = row.attack(told, generator=torch.Generator().manual_seed(seed))
        verdict = judge(scores, labels_N, classes=classes, rng=np.random.default_rng([seed, 4]))
        if verdict is not None:
            found[name] = verdict
    return found


def _with_clean_hints(view: View, clean: Sequence[Tensor] | None) -> View:
    if clean is None or view.known_labels is None:
        return view
    if [len(clean_BD) for clean_BD in clean] != [len(step.rows_B) for step in view.steps]:
        raise DataError(
            f"label audit: clean gradients for {len(clean)} steps do not fit the view's {len(view.steps)} step by step"
        )
    hints = [clean_BD[label_B >= 0] for clean_BD, label_B in zip(clean, view.known_labels, strict=True)]
    return replace(view, clean_hints=tuple(hints))


def _usable(view: View) -> dict[str, LeakageAttack]:
    recorded: set[Received] = set()
    if any(step.received_BD.numel() for step in view.steps):
        recorded.add("cut_gradient")
    if any(step.sent_BD is not None for step in view.steps):
        recorded.add("cut_embedding")
    return {name: row for name, row in LEAKAGE_ATTACKS.items() if row.reads in recorded and (row.multiclass or view.classes == 2)}


def _checked(labels_N: Tensor, view: View, classes: int) -> Tensor:
    if classes < 2:
        raise ConfigError(f"label audit: classes={classes}; expected at least 2 (a regression target has none to attack)")
    if labels_N.ndim != 1 or len(labels_N) < view.rows:
        raise DataError(
            f"label audit: labels of shape {tuple(labels_N.shape)} for a view that names row {view.rows - 1}; "
            "give one label per row"
        )
    whole_N = labels_N.to(torch.int64)
    if not bool(((whole_N == labels_N) & (whole_N >= 0) & (whole_N < classes)).all()):
        raise DataError(f"label audit: labels must be class numbers 0 to {classes - 1}; found others")
    return whole_N
