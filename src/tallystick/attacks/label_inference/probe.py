"""Train a supervised probe with half of all labels. An attacker has fewer, but the result is still a lower bound.

Shapes: N rows of a run, B rows of a minibatch, D cut width, C classes, O outputs (1 for two classes, else C).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tallystick.attacks.descent import Descent
from tallystick.attacks.label_inference.linear import fit_linear, log_odds
from tallystick.attacks.label_inference.observations import known_rows, scaled_observations, whole_run
from tallystick.attacks.view import Received, Scores, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Train a classifier on the rows whose label is known, and score all others, to see how much of the label is there at all.

    It needs labels that no attacker has. It shows how much of the label one vector per row holds at least; a better classifier
    may find more. What it finds in embeddings is partly the features' own power to predict the label, which exists without any
    training.

    Args:
        target: what it reads: each row's last cut embedding, or its mean cut gradient.
        hidden: width of the hidden layer; 0 for a logistic head.
        penalty: factor of the squared weights of the logistic head, or weight decay of the network; greater than 0.
        steps: number of the network's training steps, at least 1.
        batch: number of rows per step, at least 1.
        most: greatest number of rows that the logistic head learns from, at least 1.
    """

    target: Received = "cut_embedding"
    hidden: int = 0
    penalty: float = 1e-4
    steps: int = 400
    batch: int = 512
    most: int = 32768

    def __post_init__(self) -> None:
        if not (self.penalty > 0 and self.hidden >= 0 and min(self.steps, self.batch, self.most) >= 1):
            raise ConfigError(
                f"probe: penalty={self.penalty} must be greater than 0, hidden={self.hidden} at least 0, and steps={self.steps}, "
                f"batch={self.batch}, most={self.most} at least 1"
            )

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score rows of unknown label by their log odds. ``generator`` draws weights and minibatches."""
        rows, x_ND = scaled_observations(view, self.target, "each")
        label_N = known_rows(view)[rows]
        known_T = torch.nonzero(label_N >= 0).squeeze(1)
        known_T = known_T[torch.randperm(len(known_T), generator=generator)]
        if self.hidden and len(known_T):
            classes = view.classes
            network = nn.Sequential(
                nn.Linear(x_ND.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1 if classes == 2 else classes)
            )
            with torch.no_grad():
                for parameter in network.parameters():
                    bound = parameter.shape[-1] ** -0.5
                    parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)
            optimizer = Descent(network.parameters(), rate=1e-2, steps=self.steps, decay=self.penalty)
            for _ in range(self.steps):
                batch = known_T[torch.randint(len(known_T), (min(self.batch, len(known_T)),), generator=generator)]
                logit_BO, label_B = network(x_ND[batch]), label_N[batch]
                if classes == 2:
                    loss = binary_cross_entropy_with_logits(logit_BO.squeeze(1), label_B.float())
                else:
                    loss = cross_entropy(logit_BO, label_B)
                optimizer.down(loss)
            with torch.no_grad():
                logits = log_odds(network(x_ND).double())
            return whole_run(view, rows, logits)
        known_T = known_T[: self.most]
        return whole_run(
            view, rows, fit_linear(x_ND[known_T].double(), label_N[known_T], view.classes, penalty=self.penalty)(x_ND)
        )
