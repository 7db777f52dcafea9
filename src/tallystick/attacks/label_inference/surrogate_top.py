"""Fit a surrogate top model and labels that together explain the received gradients.

Shapes: N rows seen, S rows of a fitting step, D cut width, C classes, H hidden units, K = C + H.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tallystick.attacks.descent import Descent
from tallystick.attacks.label_inference.linear import LinearHead, fit_linear, log_odds
from tallystick.attacks.label_inference.observations import known_rows, observations, whole_run
from tallystick.attacks.label_inference.spectral import orient
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError

SCORED = 4096  # rows that are scored at a time
PENALTY = 0.3  # penalty of the head that is fitted to known labels


@dataclass(frozen=True, kw_only=True)
class SurrogateTop:
    """Fit a small top model together with the rows' labels, so that its gradients match those received, and return the labels.

    After ExPLoit (Kariyappa and Qureshi, arXiv 2112.01299), which matches gradients by a surrogate model with surrogate labels
    and adds regularisers, and after the label inference of UnSplit (Erdoğan et al., arXiv 2108.09033). Only the abstracts of both
    were at hand, so the method is our own. Unlike ``LabelEnumeration`` it needs no starting weights.

    Cross-entropy sends back (p - y) J: p is the surrogate's softmax at the row's own cut embedding, J the slopes of its logits
    there, and y the row's label. For two classes the surrogate is the sum of a linear model and one with a hidden layer, whose
    share starts at 0. For several classes it is linear. The model of the view has two parts. First, the label depends on the
    embedding through a second softmax, which links embeddings to gradients and acts as the label prior. Second, a gradient is
    that of its label plus noise with a single deviation. Training maximises the likelihood of the gradients, summed over labels;
    then each row's best label follows in closed form. The attack reads one vector per row: its mean gradient, in which fresh
    noise averages out, and its last embedding. Some starts find nothing, so several are tried, and the likeliest is trained to
    the end.

    It needs no label. For two classes it knows which is rarer. With several classes it returns unnamed clusters, and the
    evaluator names them in the best way. Known labels of several classes give the start, and their likelihood counts as much as
    that of all gradients; for two classes they did not help and are not used. It does not simulate what other parties send into
    the top model. Because it also reads embeddings, its findings come from them where gradients show nothing.

    Args:
        guess: "gradient": how well each label explains the row's gradient; "prediction": the label that follows from the row's
            embedding. If labels were replaced before training, the gradient shows the replaced label, and the prediction shows
            the label that similar rows share.
        hidden: number of hidden units for two classes; 0 for none.
        steps: number of Adam steps, at least 1.
        batch: number of rows per step.
        rate: Adam's first learning rate; it falls to 0.
        sample: greatest number of rows to fit; all rows are scored.
        starts: number of starts to try, at least 1. Several classes get three times as many, because their starts differ more.
    """

    guess: Literal["gradient", "prediction"] = "gradient"
    hidden: int = 32
    steps: int = 200
    batch: int = 256
    rate: float = 3e-2
    sample: int = 4096
    starts: int = 3

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "sample", "starts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"surrogate top: {name}={getattr(self, name)}; expected at least 1")
        if self.hidden < 0:
            raise ConfigError(f"surrogate top: hidden={self.hidden}; expected at least 0")
        if not self.rate > 0:
            raise ConfigError(f"surrogate top: rate={self.rate}; expected a number greater than 0")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows that were seen by their log odds. ``generator`` draws the surrogate's start and batches.

        Raises DataError if gradients or embeddings are missing or not all finite.
        """
        rows, _ = observations(view, "cut_gradient")
        gradient_NC, prediction_NC = self._likelihoods(view, generator)
        odds_NC = log_odds((prediction_NC if self.guess == "prediction" else gradient_NC).double())
        if view.classes == 2:
            return whole_run(view, rows, orient(odds_NC[:, 1]))
        return whole_run(view, rows, odds_NC, named=bool((known_rows(view) >= 0).any()))

    def _likelihoods(self, view: View, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Compute the likelihoods of each row's labels, by its gradient and by its embedding.

        Both guesses use the same fit if their generators are equal.
        """
        cache = view.steps[0].observed if len(view.steps) == 1 else {}
        rows, grad_ND = observations(view, "cut_gradient")
        label_N = known_rows(view)[rows]
        state = generator.get_state().numpy().tobytes()
        fit = replace(self, guess="gradient"), view.classes, state, label_N.numpy().tobytes()
        if fit not in cache:
            cut_ND = observations(view, "cut_embedding")[1]
            if not bool(grad_ND.any()):  # nothing to fit, and the start would only show embeddings
                nothing_NC = torch.zeros(len(grad_ND), view.classes)
                return nothing_NC, nothing_NC
            surrogate = self._fitted(cut_ND, grad_ND, label_N, view.classes, generator)
            some = zip(
                torch.split(cut_ND, SCORED), torch.split(grad_ND, SCORED), strict=True
            )  # in parts, because slopes need memory
            with torch.no_grad():
                cache[fit] = (
                    torch.cat([surrogate(cut_SD, grad_SD) for cut_SD, grad_SD in some]),
                    surrogate.predicted(cut_ND),
                )
        return cache[fit]

    def _fitted(self, cut_ND: Tensor, grad_ND: Tensor, label_N: Tensor, classes: int, generator: torch.Generator) -> "_Surrogate":
        """Fit from the head of known labels, or else from the best of several starts after a quarter of the steps."""
        sample = torch.randperm(len(cut_ND), generator=generator)[: self.sample]
        fitting = _Fitting(self, cut_ND[sample], grad_ND[sample], generator)
        told_N = (label_N >= 0) & (classes > 2)
        if bool(told_N.any()):
            surrogate = _Surrogate(cut_ND.shape[1], classes, 0, generator)
            surrogate.start_from(fit_linear(cut_ND[told_N].double(), label_N[told_N], classes, penalty=PENALTY))
            fitting(surrogate, self.steps, known_rows=(cut_ND[told_N], grad_ND[told_N], label_N[told_N]))
            return surrogate
        starts, hidden = (self.starts, self.hidden) if classes == 2 else (3 * self.starts, 0)
        candidates = [_Surrogate(cut_ND.shape[1], classes, hidden, generator) for _ in range(starts)]
        for surrogate in candidates:
            fitting(surrogate, -(-self.steps // 4))
        best = max(candidates, key=fitting.likelihood)
        fitting(best, self.steps)
        return best


@dataclass(frozen=True)
class _Fitting:
    """Maximises the likelihood of a sample's gradients, and of the known labels if there are any, by Adam."""

    how: SurrogateTop
    cut_SD: Tensor
    grad_SD: Tensor
    generator: torch.Generator

    def __call__(self, surrogate: "_Surrogate", steps: int, *, known_rows: tuple[Tensor, Tensor, Tensor] | None = None) -> None:
        optimizer = Descent(surrogate.parameters(), rate=self.how.rate, steps=steps)
        for _ in range(steps):
            some = torch.randint(len(self.cut_SD), (self.how.batch,), generator=self.generator)
            loss = -surrogate(self.cut_SD[some], self.grad_SD[some]).logsumexp(dim=1).mean()
            if known_rows is not None:
                cut_TD, grad_TD, label_T = known_rows
                loss = loss - surrogate(cut_TD, grad_TD).gather(1, label_T[:, None]).mean()
            optimizer.down(loss)

    def likelihood(self, surrogate: "_Surrogate") -> float:
        """Log likelihood of the sample, by row."""
        with torch.no_grad():
            return float(surrogate(self.cut_SD, self.grad_SD).logsumexp(dim=1).mean())


class _Surrogate(torch.nn.Module):
    """A top model, a head that predicts labels, and the scale and deviation of received gradients relative to the model's."""

    def __init__(self, width: int, classes: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight_DC = torch.nn.Parameter(torch.randn(width, classes, generator=generator) / width**0.5)
        self.bias_C = torch.nn.Parameter(torch.zeros(classes))
        self.hidden_DH = torch.nn.Parameter(torch.randn(width, hidden, generator=generator) * (2 / width) ** 0.5)
        self.bias_H = torch.nn.Parameter(torch.zeros(hidden))
        self.out_HC = torch.nn.Parameter(torch.zeros(hidden, classes))
        self.label_DC = torch.nn.Parameter(self.weight_DC.detach().clone())
        self.share_C = torch.nn.Parameter(torch.zeros(classes))
        self.log_scale, self.log_deviation = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(()))

    def start_from(self, head: LinearHead) -> None:
        """Copy a head that was fitted to known labels into the top model and into the label head."""
        with torch.no_grad():
            for weight_DC, bias_C in ((self.weight_DC, self.bias_C), (self.label_DC, self.share_C)):
                weight_DC.copy_(head.weight_DO)
                bias_C.copy_(head.bias_O)

    def predicted(self, cut_SD: Tensor) -> Tensor:
        """Compute the log probability of each class at each row's embedding, (S, C)."""
        return (cut_SD @ self.label_DC + self.share_C).log_softmax(dim=1)

    def logits(self, cut_SD: Tensor) -> Tensor:
        """Compute the top model's logits, (S, C)."""
        return self._above(cut_SD, cut_SD @ self.hidden_DH + self.bias_H)

    def _above(self, cut_SD: Tensor, unit_SH: Tensor) -> Tensor:
        return cut_SD @ self.weight_DC + self.bias_C + unit_SH.relu() @ self.out_HC

    def forward(self, cut_SD: Tensor, grad_SD: Tensor) -> Tensor:
        """Compute the log likelihood of each row's gradient together with each label, up to a constant, (S, C)."""
        scale = self.log_scale.exp()
        # For each label's gradient (p - y) J, compute its product with the received gradient and its squared length
        if self.out_HC.shape[0]:
            # With a hidden layer every slope is a combination of the K columns of one matrix: the linear model's, and those into
            # hidden units. Comparing the K coefficients avoids a tensor of S C D numbers.
            column_DK = torch.cat([self.weight_DC, self.hidden_DH], dim=1)
            unit_SH = cut_SD @ self.hidden_DH + self.bias_H
            chance_SC = self._above(cut_SD, unit_SH).softmax(dim=1)
            linear_SCC = torch.eye(chance_SC.shape[1]).expand(len(cut_SD), -1, -1)
            slope_SCK = torch.cat([linear_SCC, (unit_SH > 0)[:, None] * self.out_HC.T], dim=2)
            sent_SCK = (chance_SC[:, :, None] * slope_SCK).sum(dim=1, keepdim=True) - slope_SCK
            along_SC = (sent_SCK * (grad_SD @ column_DK)[:, None]).sum(dim=2)
            length_SC = (sent_SCK @ (column_DK.T @ column_DK) * sent_SCK).sum(dim=2)
        else:
            mean_SD = self.logits(cut_SD).softmax(dim=1) @ self.weight_DC.T
            along_SC = (grad_SD * mean_SD).sum(dim=1, keepdim=True) - grad_SD @ self.weight_DC
            across_SC = mean_SD.square().sum(dim=1, keepdim=True) - 2 * mean_SD @ self.weight_DC
            length_SC = across_SC + self.weight_DC.square().sum(dim=0)
        distance_SC = grad_SD.square().sum(dim=1, keepdim=True) - 2 * scale * along_SC + scale.square() * length_SC
        spread = distance_SC / (2 * (2 * self.log_deviation).exp()) + grad_SD.shape[1] * self.log_deviation
        return self.predicted(cut_SD) - spread
