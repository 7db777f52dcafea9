"""Evaluate every label inference attack on one feature party's view, for a report's label section.

Shapes: N rows of the run.

The label party runs it, because it has the labels and can record all that it sends and receives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
from tallystick.attacks.label_inference.auxiliary import FewLabels, LabelsPerBatch
from tallystick.attacks.label_inference.fine_tuned import OfRows
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics, Bootstrap
from tallystick.attacks.view import Received, Scores, View, renumbered
from tallystick.errors import ConfigError, DataError


def evaluate_label_inference(
    view: View,
    labels_N: Tensor,
    *,
    whole: View | None = None,
    auxiliary_labels: int = 40,
    clean: Sequence[Tensor] | None = None,
    attacks: Mapping[str, LabelInferenceAttack] | None = None,
    evaluator: AttackEvaluator | None = None,
    seed: int = 0,
) -> dict[str, AttackMetrics]:
    """Attack one feature party's view and measure how well the attacks find the labels.

    No guarantee: no attack here found more, another may.

    Args:
        view: the feature party's view, with the number of classes; the labels that it knows are drawn here, one set per attack.
        whole: the whole training's sums per row (``RowSums.view``), for attacks that read one vector per row. If None, these
            attacks compute it from the view's steps.
        labels_N: the truth: class number of each row of the contract (0 or 1 if binary; floats are accepted).
        auxiliary_labels: number of labels that the few-label attacks know, at least one per class.
        clean: per step (B, D), the undefended cut gradients. The attacker gets those of its known rows, like Marvell's attacker.
            If None, it has only what it received.
        attacks: by name; by default all that can read this view and target. Attacks on embeddings need recorded embeddings, some
            need a start or an own model, and some work for two classes only.
        evaluator: by default TPR at FPR 0.001, intervals of 95 %.
        seed: seed of the known labels, of attacks that draw, and of the bootstrap.

    Returns:
        metrics per attack, without attacks for which no batch could be evaluated, and without those whose attacker knows no
        label or labels of one class only, because such guesses say nothing about the leak.

    Raises:
        DataError: the view is broken, or labels do not fit it.
        ConfigError: an attack in ``attacks`` cannot be used on this target.
    """
    few = FewLabels(count=auxiliary_labels)
    evaluation = LabelInferenceEvaluation(view, labels_N, whole=whole, clean=clean, evaluator=evaluator, seed=seed)
    metrics_by_name = {}
    for name, row in (evaluation.usable() if attacks is None else attacks).items():
        metrics_by_name[name] = evaluation(replace(row, knows=few) if isinstance(row.knows, FewLabels) else row)
    return {name: metrics for name, metrics in metrics_by_name.items() if metrics is not None}


class LabelInferenceEvaluation:
    """Runs single attacks of ``evaluate_label_inference`` on one feature party's view.

    Vectors per row are computed once for all attacks that read them. Arguments are those of ``evaluate_label_inference``.
    ``view`` has the number of classes; each attack's row has the number of labels that it knows.
    """

    def __init__(
        self,
        view: View,
        labels_N: Tensor,
        *,
        whole: View | None = None,
        clean: Sequence[Tensor] | None = None,
        evaluator: AttackEvaluator | None = None,
        seed: int = 0,
    ) -> None:
        classes = view.classes
        if classes < 2:
            raise ConfigError(f"label inference: classes={classes}; expected at least 2 (a regression target has none to attack)")
        rows = max(view.rows, whole.rows if whole is not None else 0)
        if labels_N.ndim != 1 or len(labels_N) < rows:
            raise DataError(
                f"label inference: labels of shape {tuple(labels_N.shape)} for a view that names row {rows - 1}; "
                "give one label per row"
            )
        given_N, labels_N = labels_N, labels_N.to(torch.int64)
        if not bool(((labels_N == given_N) & (labels_N >= 0) & (labels_N < classes)).all()):
            raise DataError(f"label inference: labels must be class numbers 0 to {classes - 1}; found others")
        self.stepwise = _compact(view, labels_N, view.classes)
        self.trained = _compact(whole, labels_N, view.classes) if whole is not None else self.stepwise
        self.evaluator, self.clean, self.seed = evaluator or AttackEvaluator(), clean, seed
        self.bootstrap = Bootstrap([seed, 4])

    def __call__(self, row: LabelInferenceAttack) -> AttackMetrics | None:
        """Run an attack and measure it.

        Return None if no batch can be evaluated, or if an attacker who needs known labels has none, or has one class only.
        """
        scores = self._scores(row)
        attacked, truth_N = self.trained if row.over_training else self.stepwise
        if scores is None:
            return None
        return self.evaluator(scores, truth_N, classes=attacked.classes, bootstrap=self.bootstrap)

    def each_label(self, row: LabelInferenceAttack, labels: int) -> list[AttackMetrics | None]:
        """Run an attack for which each pattern of a row's labels is a class, and measure it on each label.

        A label's score compares the patterns with it and those without it: the logarithm of the sum of the exponentials of
        their scores. The columns of scores have to be named.
        """
        scores = self._scores(row)
        if scores is None:
            return [None] * labels
        assert scores.named, "clusters without names are no patterns"
        _, truth_N = self.trained if row.over_training else self.stepwise
        found = []
        for bit in range(labels):
            has_it_P = (torch.arange(1 << labels) >> bit) & 1 == 1
            values = tuple(each[:, has_it_P].logsumexp(1) - each[:, ~has_it_P].logsumexp(1) for each in scores.values)
            of_label = Scores(rows=scores.rows, values=values)
            found.append(self.evaluator(of_label, (truth_N >> bit) & 1, bootstrap=self.bootstrap))
        return found

    def _scores(self, row: LabelInferenceAttack) -> Scores | None:
        """Return an attack's scores, or None if it needs known labels and has none, or has one class only."""
        attacked, truth_N = self.trained if row.over_training else self.stepwise
        informed = row.knows.reveal(attacked, truth_N, rng=np.random.default_rng([self.seed, 3]))
        if informed.known_labels is not None:
            labels = torch.cat(informed.known_labels)
            classes_told = int((torch.bincount(labels[labels >= 0]) > 0).sum())
            if classes_told < (1 if isinstance(row.knows, LabelsPerBatch) else 2):
                return None
        clean = self.clean
        if not row.over_training and clean is not None and informed.known_labels is not None:
            if [len(clean_BD) for clean_BD in clean] != [len(step.rows_B) for step in informed.steps]:
                raise DataError(
                    f"label inference: clean gradients for {len(clean)} steps do not fit the view's {len(informed.steps)} "
                    "step by step"
                )
            hints = [clean_BD[label_B >= 0] for clean_BD, label_B in zip(clean, informed.known_labels, strict=True)]
            informed = replace(informed, clean_hints=tuple(hints))
        return row.attack(informed, generator=torch.Generator().manual_seed(self.seed))

    def usable(self) -> dict[str, LabelInferenceAttack]:
        """List all attacks that can read this view and target."""
        view = self.stepwise[0]
        recorded: set[Received] = set()
        if any(step.received_BD.numel() for step in view.steps):
            recorded.add("cut_gradient")
        if any(step.sent_BD is not None for step in view.steps):
            recorded.add("cut_embedding")
        return {
            name: row
            for name, row in LABEL_INFERENCE_ATTACKS.items()
            if row.reads in recorded
            and row.allows(view.classes)
            and (not row.with_embeddings or "cut_embedding" in recorded)
            and (not row.from_start or view.start is not None)
            and (not row.from_flip or view.flip is not None)
            and (not row.of_several or view.labels > 1)
            and (not row.with_model or view.own_model is not None)
        }


def _compact(view: View, labels_N: Tensor, classes: int) -> tuple[View, Tensor]:
    """Return the view with its rows numbered from 0, and their labels."""
    steps, numbers_N = renumbered(view.steps)
    own_model = OfRows(view.own_model, numbers_N) if view.own_model is not None else None
    return replace(view, steps=steps, classes=classes, own_model=own_model), labels_N[numbers_N]
