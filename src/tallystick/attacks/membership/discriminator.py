"""Train a discriminator on rows whose presence at the other side the attacker knows.

Shapes: B rows of a step's batch, D cut width, P features per observation, S observations of known rows, N rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from tallystick.attacks.descent import Descent
from tallystick.attacks.membership.observations import mean_over_run
from tallystick.attacks.view import Scores, StepView, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LearnedDiscriminator:
    """Train a small network to separate known real rows from known synthetic ones, and score the other rows with it.

    Not in the paper. The attacker gets its known rows for free: the other side certainly has the rows of the union that the
    attacker lacks, and certainly lacks the dummy rows that the attacker planted (View.known_absent). Without planted rows the
    network learns known-present against unknown rows (positive-unlabelled learning, Elkan and Noto 2008), which gives the same
    ranking. The score of a row is the mean over all its observations, so more epochs find more. It is the strongest of these
    attacks, but no bound on other attackers.

    Args:
        hidden: width of the one hidden layer.
        steps: Descent steps over all known observations.
        weight_decay: L2 penalty.
        most: greatest number of observations per class to learn from.
    """

    hidden: int = 32
    steps: int = 150
    weight_decay: float = 1e-2
    most: int = 8192

    def __post_init__(self) -> None:
        if min(self.hidden, self.steps, self.most) < 1:
            raise ConfigError(
                f"learned discriminator: hidden={self.hidden}, steps={self.steps}, most={self.most} must be at least 1"
            )

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Learn and score. It scores no rows if the view holds no known row of either kind."""
        known_N = view.known()
        real, synthetic = known_N == 1, known_N == -1
        if not synthetic.any():
            synthetic = known_N == 0
        sum_N, count_N = torch.zeros(view.rows, dtype=torch.float64), torch.zeros(view.rows, dtype=torch.float64)
        if not (real.any() and synthetic.any()):
            return mean_over_run(view, sum_N, count_N)
        samples = [
            x_SP[torch.randperm(len(x_SP), generator=generator)[: self.most]]
            for x_SP in (_observations(view, real), _observations(view, synthetic))
        ]
        x_SP = torch.cat(samples)
        y_S = torch.cat([torch.ones(len(samples[0])), torch.zeros(len(samples[1]))])
        weight_S = torch.cat([torch.full((len(x),), 0.5 / len(x)) for x in samples])  # both classes weigh the same
        network = nn.Sequential(nn.Linear(x_SP.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1))
        with torch.no_grad():
            for parameter in network.parameters():
                bound = parameter.shape[-1] ** -0.5
                parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)
        optimizer = Descent(network.parameters(), rate=1e-2, decay=self.weight_decay)
        for _ in range(self.steps):
            loss = binary_cross_entropy_with_logits(network(x_SP).squeeze(1), y_S, weight=weight_S, reduction="sum")
            optimizer.down(loss)
        with torch.no_grad():
            for step in view.steps:
                sum_N[step.rows_B] += network(observation(step)).squeeze(1).double()
                count_N[step.rows_B] += 1
        return mean_over_run(view, sum_N, count_N)

    def unmet(self, view: View) -> str:  # noqa: ARG002
        """Say that it needs rows to learn from."""
        return "it learns from rows that the attacker knows, and there are too few to learn from some and measure on others"


def _observations(view: View, wanted_N: Tensor) -> Tensor:
    """Describe all observations of the wanted rows, step by step, because all at once may not fit into memory."""
    return torch.cat([observation(step)[wanted_N[step.rows_B]] for step in view.steps])


def observation(step: StepView) -> Tensor:
    """Describe each row of a step: its vector relative to the batch, its length and direction, and its fit with the label."""
    x_BD = step.received_BD.float()
    mean_D, deviation_D = x_BD.mean(dim=0), x_BD.std(dim=0, correction=0)
    z_BD = ((x_BD - mean_D) / (deviation_D + 1e-3 * deviation_D.mean() + torch.finfo(torch.float32).tiny)).clamp(-5, 5)
    log_norm_B = torch.log(x_BD.norm(dim=1) + torch.finfo(torch.float32).tiny)
    log_norm_B = (log_norm_B - log_norm_B.median()).clamp(-5, 5)
    columns = [z_BD, normalize(x_BD, dim=1), log_norm_B[:, None], (x_BD < 0).float().mean(dim=1, keepdim=True)]
    if step.targets_B is not None:
        label_B1 = (step.targets_B.float() - step.targets_B.float().mean())[:, None]
        columns += [label_B1, label_B1 * z_BD]
    return torch.cat(columns, dim=1)
