"""Complete the attacker's own bottom model by a head that is learned from a few labels.

Shapes: N rows of a run, D cut width, C classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from tallystick.attacks.label_inference.linear import fit_linear, standardised
from tallystick.attacks.label_inference.observations import known_rows, observations, scaled_observations, whole_run
from tallystick.attacks.matrix import principal_components
from tallystick.attacks.view import Received, Scores, View
from tallystick.errors import ConfigError

COMPONENTS = 5


@dataclass(frozen=True, kw_only=True)
class ModelCompletion:
    """Put a logistic head on the cut embeddings (or gradients), fit it to the few rows of known label, and score all others.

    Fu et al. 2022 (label inference attacks against vertical federated learning), section 4, with a linear head in place of
    MixMatch. Unlabelled rows still help: embeddings are centred and divided by one scale for all columns, so the strong penalty
    prefers directions of large variance over all rows, where training has put the label. Self-training on the most certain rows
    did not find more. The bottom model is not fine-tuned on raw features; an attacker who does that might find more.

    A defence may move the label out of the directions of large variance (distance correlation does). Then a single scale misses
    it, and ``columns="each"`` divides each column by its own deviation. Forty labels cannot choose among 128 columns, but they
    can choose among the few principal components that hold the label: ``columns="components"``. An attacker tries all three.

    Args:
        target: what it reads: each row's last cut embedding, its mean cut gradient, or both side by side.
        columns: "alike" keeps the columns' proportions; "each" scales all columns to the same deviation; "components" replaces
            them by COMPONENTS principal components, or one per class if that is more, scaled to the same deviation.
        penalty: factor of the squared weights, greater than 0.
    """

    target: Received | Literal["both"] = "cut_embedding"
    columns: Literal["alike", "each", "components"] = "alike"
    penalty: float = 0.3

    def __post_init__(self) -> None:
        if not self.penalty > 0:
            raise ConfigError(f"model completion: penalty={self.penalty}; expected a number greater than 0")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score rows of unknown label by their log odds.

        If all known labels are of one class, all rows get the same score.
        """
        targets: tuple[Received, ...] = ("cut_embedding", "cut_gradient") if self.target == "both" else (self.target,)
        if self.columns == "components":
            parts_read = [observations(view, target) for target in targets]
            parts = [standardised(principal_components(x_ND, max(COMPONENTS, view.classes))) for _, x_ND in parts_read]
        else:
            parts_read = [scaled_observations(view, target, self.columns) for target in targets]
            parts = [x_ND for _, x_ND in parts_read]
        rows, x_ND = parts_read[0][0], torch.cat(parts, dim=1)
        label_N = known_rows(view)[rows]
        told_N = label_N >= 0
        head = fit_linear(x_ND[told_N].double(), label_N[told_N], view.classes, penalty=self.penalty)
        return whole_run(view, rows, head(x_ND))
