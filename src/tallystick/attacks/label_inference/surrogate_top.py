"""A surrogate top model: which labels, and which model of the attacker's own, would have sent these gradients back?

Shapes: N rows seen, S rows of a fitting step, D cut width, C classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tallystick.attacks.label_inference.linear import log_odds
from tallystick.attacks.label_inference.observations import observations, whole_run
from tallystick.attacks.label_inference.spectral import orient
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SurrogateTop:
    """Fit a linear top model and the rows' labels together, so that its gradients are those received, and read the labels off.

    After ExPLoit (Kariyappa and Qureshi, arXiv 2112.01299), which matches gradients by a surrogate model with surrogate labels
    and adds regularisers, and the label inference of UnSplit (Erdoğan et al., arXiv 2108.09033); of both texts only the abstracts
    were at hand, so that what follows is our own. Needs no starting weights, as ``LabelEnumeration`` does.

    Cross-entropy sends (p - y) W back, p being the surrogate's softmax at the row's own cut embedding and y its label. The
    label in turn is taken to follow from the embedding by a softmax of its own, which ties embeddings to gradients and stands
    for the label prior, and the gradient to lie about that of its label with noise of one deviation. What is fitted is the
    likelihood of the gradients, summed over labels; per row the labels that are optimal for it follow in closed form. One
    vector per row is read: mean gradients, in which noise that is drawn anew averages out, and last embeddings. Knows no label;
    of two classes it knows which is rarer, the clusters of several stay unnamed, and the evaluator names them as fits best.
    Simulates neither what other parties send into the top model nor its hidden layers. Starts that are drawn otherwise find
    more or less by some hundredths.

    Args:
        guess: "gradient": how well each label explains the row's gradient; "prediction": the label that follows from
            the row's embedding. Where labels were replaced before training, the gradient tells of the label that replaced the
            true one, and the prediction of what rows like this one have in common.
        steps: of Adam, at least 1.
        batch: rows per step.
        rate: of Adam, falling to 0.
        sample: at most so many rows are fitted; all are scored.
    """

    guess: Literal["gradient", "prediction"] = "gradient"
    steps: int = 200
    batch: int = 512
    rate: float = 3e-2
    sample: int = 4096

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "sample"):
            if getattr(self, name) < 1:
                raise ConfigError(f"surrogate top: {name}={getattr(self, name)}; expected at least 1")
        if not self.rate > 0:
            raise ConfigError(f"surrogate top: rate={self.rate}; expected a number greater than 0")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows that were seen by their log odds; ``generator`` draws the surrogate's start and batches.

        Raises DataError if gradients or embeddings are missing or not all finite.
        """
        rows, grad_ND = observations(view, "cut_gradient")
        cut_ND = observations(view, "cut_embedding")[1].float()
        surrogate = _Surrogate(cut_ND.shape[1], view.classes, generator)
        grad_ND = grad_ND.float()
        self._fit(surrogate, cut_ND, grad_ND, generator)
        with torch.no_grad():
            like_NC = surrogate(cut_ND, grad_ND) if self.guess == "gradient" else surrogate.predicted(cut_ND)
        odds_NC = log_odds(like_NC.double())
        if view.classes == 2:
            return whole_run(view, rows, orient(odds_NC[:, 1]))
        return whole_run(view, rows, odds_NC, named=False)

    def _fit(self, surrogate: "_Surrogate", cut_ND: Tensor, grad_ND: Tensor, generator: torch.Generator) -> None:
        chosen = torch.randperm(len(cut_ND), generator=generator)[: self.sample]
        optimizer = torch.optim.Adam(surrogate.parameters(), lr=self.rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        for _ in range(self.steps):
            some = chosen[torch.randint(len(chosen), (self.batch,), generator=generator)]
            loss = -surrogate(cut_ND[some], grad_ND[some]).logsumexp(dim=1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            falling.step()


class _Surrogate(torch.nn.Module):
    """A linear top model, a head that predicts labels, and scale and deviation of the gradients compared with the model's own."""

    def __init__(self, width: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight_DC = torch.nn.Parameter(torch.randn(width, classes, generator=generator) / width**0.5)
        self.bias_C = torch.nn.Parameter(torch.zeros(classes))
        self.label_DC = torch.nn.Parameter(self.weight_DC.detach().clone())
        self.share_C = torch.nn.Parameter(torch.zeros(classes))
        self.log_scale, self.log_deviation = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(()))

    def predicted(self, cut_SD: Tensor) -> Tensor:
        """Log probability of each class at each row's embedding, (S, C)."""
        return (cut_SD @ self.label_DC + self.share_C).log_softmax(dim=1)

    def forward(self, cut_SD: Tensor, grad_SD: Tensor) -> Tensor:
        """Log likelihood of each row's gradient together with each label, less a constant, (S, C).

        The squared distance of a gradient from each label's is taken apart, so that no tensor of S C D numbers is made.
        """
        chance_SC, scale = (cut_SD @ self.weight_DC + self.bias_C).softmax(dim=1), self.log_scale.exp()
        gram_CC = self.weight_DC.T @ self.weight_DC
        onto_SC = grad_SD @ self.weight_DC
        along_SC = (chance_SC * onto_SC).sum(dim=1, keepdim=True) - onto_SC  # gradient times the label's (p - y) W
        mixed_SC = chance_SC @ gram_CC
        length_SC = gram_CC.diagonal() - 2 * mixed_SC + (chance_SC * mixed_SC).sum(dim=1, keepdim=True)
        distance_SC = grad_SD.square().sum(dim=1, keepdim=True) - 2 * scale * along_SC + scale.square() * length_SC
        spread = distance_SC / (2 * (2 * self.log_deviation).exp()) + grad_SD.shape[1] * self.log_deviation
        return self.predicted(cut_SD) - spread
