"""Complete a model as published: train the attacker's own bottom model further, with few labelled and many unlabelled rows.

Shapes: B rows of a batch, D cut width, O outputs, C classes, N rows seen.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from tallystick.attacks.label_inference.linear import fit_linear, log_odds
from tallystick.attacks.label_inference.observations import known_rows, whole_run
from tallystick.attacks.view import Scores, View
from tallystick.errors import DataError

CHUNK = 8192


class OfRows(nn.Module):
    """A model over the rows of a run that takes other row numbers."""

    def __init__(self, model: nn.Module, numbers_N: Tensor) -> None:
        super().__init__()
        self.model, self.numbers_N = model, numbers_N

    def forward(self, rows_B: Tensor) -> Tensor:
        """Convert the row numbers, and compute the model's output."""
        cut_BD: Tensor = self.model(self.numbers_N[rows_B])
        return cut_BD


@dataclass(frozen=True, kw_only=True)
class FineTunedCompletion:
    """Put a head on the attacker's own trained bottom model, and train both on the few known rows and on the others.

    Fu et al. 2022 (label inference attacks against vertical federated learning), section 4.2: the head completes the bottom
    model, and semi-supervised training fits both. The paper uses MixMatch (Berthelot et al. 2019); this attack uses its idea.
    Labels of unknown rows are guessed from two noisy passes and sharpened, all rows are mixed in pairs, and the weight of guesses
    grows. Tables cannot be cropped and flipped like images, so noise and mixing are applied to embeddings. It needs the
    attacker's own columns and model (``View.own_model``). A feature party has both; a label party that audits itself has neither.

    Args:
        steps: number of steps, at least 1.
        batch: number of known rows per step, and of unknown ones.
        rate: Adam's learning rate for the head; the bottom model's is a tenth of it.
        noise: deviation of the noise on embeddings, in deviations of their columns.
        weight: final weight of the guessed labels.
    """

    steps: int = 200
    batch: int = 64
    rate: float = 1e-3
    noise: float = 0.1
    weight: float = 1.0

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows of unknown label by their log odds. ``generator`` draws batches, noise and mixtures."""
        if view.own_model is None:
            raise DataError("fine-tuned completion: the view has no bottom model of the attacker's own (View.own_model)")
        rows = torch.cat([step.rows_B for step in view.steps]).unique()  # type: ignore[no-untyped-call]
        label_N = known_rows(view)[rows]
        known_rows_T, untold = rows[label_N >= 0], rows[label_N < 0]
        model = copy.deepcopy(view.own_model)
        # Fit a linear head to the known rows, with the model unchanged
        model.train(False)
        with torch.no_grad():
            cut_TD = model(known_rows_T).double()
        if not bool(torch.isfinite(cut_TD).all()):
            raise DataError("fine-tuned completion: the model gives embeddings that are NaN or infinite; training diverged")
        linear = fit_linear(cut_TD, label_N[label_N >= 0], view.classes, penalty=0.1)
        head = nn.Linear(*linear.weight_DO.shape)
        with torch.no_grad():
            head.weight.copy_(linear.weight_DO.T)
            head.bias.copy_(linear.bias_O)
        if len(known_rows_T) and len(untold):
            label_T = label_N[label_N >= 0]
            groups: list[dict[str, Any]] = [
                {"params": list(head.parameters())},
                {"params": list(model.parameters()), "lr": self.rate / 10},
            ]
            optimizer = torch.optim.Adam(groups, lr=self.rate)
            model.train(True)
            for step in range(self.steps):
                few = torch.randint(len(known_rows_T), (self.batch,), generator=generator)
                many = torch.randint(len(untold), (self.batch,), generator=generator)
                cut_BD = model(torch.cat([known_rows_T[few], untold[many]]))
                noisy = []
                for _ in range(2):
                    spread_D = cut_BD.detach().std(dim=0)
                    noisy.append(cut_BD + self.noise * spread_D * torch.randn(cut_BD.shape, generator=generator))
                with torch.no_grad():
                    guess_BC = torch.stack([_chances(head(each_BD[self.batch :])) for each_BD in noisy]).mean(dim=0).square()
                    guess_BC = guess_BC / guess_BC.sum(dim=1, keepdim=True)  # sharpened at temperature 1/2
                wanted_BC = torch.cat([one_hot(label_T[few], view.classes).float(), guess_BC])
                other_B = torch.randperm(2 * self.batch, generator=generator)
                share = 0.5 + 0.5 * float(torch.rand(1, generator=generator))  # each mixture is at least half its own row
                mixed_BD = share * noisy[0] + (1 - share) * noisy[0][other_B]
                mixed_BC = share * wanted_BC + (1 - share) * wanted_BC[other_B]
                chance_BC = _chances(head(mixed_BD))
                known_loss = -(mixed_BC * chance_BC.clamp_min(1e-7).log())[: self.batch].sum(dim=1).mean()
                guessed = (mixed_BC - chance_BC)[self.batch :].square().mean()
                optimizer.zero_grad()
                loss: Tensor = known_loss + self.weight * step / self.steps * guessed
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        with torch.no_grad():
            model.train(False)
            logits = torch.cat([head(model(part)) for part in rows.split(CHUNK)])
        return whole_run(view, rows, log_odds(logits.double()))


def _chances(logit_BO: Tensor) -> Tensor:
    """Return class probabilities (B, C) from one logit for two classes, or from one logit per class."""
    logit_BC = torch.cat([torch.zeros_like(logit_BO), logit_BO], dim=1) if logit_BO.shape[1] == 1 else logit_BO
    return logit_BC.softmax(dim=1)
