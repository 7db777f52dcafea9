"""Probe gradients whose direction depends on the row's embedding, with half of all labels known.

Shapes: N rows of a run, G gradient components, E embedding components.
"""

from dataclasses import dataclass

import torch

from tallystick.attacks.label_inference.linear import fit_linear, standardised
from tallystick.attacks.label_inference.observations import known_rows, observations, whole_run
from tallystick.attacks.matrix import principal_components
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BilinearProbe:
    """Train a logistic head on components of the mean gradient and of the last embedding, and on their products.

    In no paper. A row's gradient is (p - y) J, and the direction of J changes from row to row. A linear model of gradients cannot
    follow that; products with the embedding can. It needs labels that no attacker has. Its findings may come from embeddings
    alone; ``Probe`` shows how much does.

    Args:
        gradients, embeddings: number of principal components of each, at least 1.
        penalty: factor of the squared weights, greater than 0.
        most: greatest number of rows that it learns from, at least 1.
    """

    gradients: int = 24
    embeddings: int = 12
    penalty: float = 0.3
    most: int = 8192

    def __post_init__(self) -> None:
        if not (self.penalty > 0 and min(self.gradients, self.embeddings, self.most) >= 1):
            raise ConfigError(
                f"bilinear probe: penalty={self.penalty} must be greater than 0, and gradients={self.gradients}, "
                f"embeddings={self.embeddings}, most={self.most} at least 1"
            )

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score rows of unknown label by their log odds. ``generator`` draws the rows to learn from."""
        rows, grad_ND = observations(view, "cut_gradient")
        _, embedding_ND = observations(view, "cut_embedding")
        grad_NG = standardised(principal_components(grad_ND, self.gradients))
        embedding_NE = standardised(principal_components(embedding_ND, self.embeddings))
        products_NP = (grad_NG[:, :, None] * embedding_NE[:, None, :]).flatten(1)
        x_NF = torch.cat([grad_NG, embedding_NE, standardised(products_NP)], dim=1)
        label_N = known_rows(view)[rows]
        known_rows_T = torch.nonzero(label_N >= 0).squeeze(1)
        known_rows_T = known_rows_T[torch.randperm(len(known_rows_T), generator=generator)][: self.most]
        return whole_run(
            view, rows, fit_linear(x_NF[known_rows_T], label_N[known_rows_T], view.classes, penalty=self.penalty)(x_NF)
        )
