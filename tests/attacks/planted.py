"""Views in which a label is planted with known strength, or not at all."""

from dataclasses import replace

import torch

from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.scoring import AttackMetrics
from tallystick.attacks.view import Start, StepView, View

ROWS, BATCH, EPOCHS, WIDTH = 3000, 300, 2, 6


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels(classes: int = 2, *, seed: int = 5) -> torch.Tensor:
    """Make labels with a quarter of positives; several classes get shares 3 : 2 : 1 and so on."""
    if classes == 2:
        return (torch.rand(ROWS, generator=generator(seed)) < 0.25).long()
    weight_C = torch.arange(classes, 0, -1).double()
    return torch.multinomial(weight_C / weight_C.sum(), ROWS, replacement=True, generator=generator(seed))


def planted_view(label_N: torch.Tensor, *, gap: float, batch: int = BATCH, epochs: int = EPOCHS, seed: int = 0) -> View:
    """Class c's gradients are around ``gap`` (c + 1) on axis c, with noise of deviation 1 that is fresh in every epoch.

    Its embeddings are around ``gap`` on axis c, with constant noise. With two classes class 0 is around 0, and the first axis has
    by far the greatest spread, so the spectral attack's score is binormal with that gap. With ``gap`` 0 nothing reveals a label.
    """
    source = generator(seed)
    classes = int(label_N.max()) + 1
    axis_CD = torch.eye(classes, WIDTH)
    quiet_D = torch.full((WIDTH,), 0.2)
    quiet_D[:classes] = 1.0
    if classes == 2:  # one axis is informative, the other is quiet
        axis_CD, quiet_D[1] = torch.stack([torch.zeros(WIDTH), axis_CD[0]]), 0.2
    kept_ND = torch.randn(len(label_N), WIDTH, generator=source) * quiet_D + gap * axis_CD[label_N]
    towards_CD = torch.eye(classes, WIDTH) * torch.arange(1, classes + 1)[:, None]
    steps = []
    for epoch in range(epochs):
        for rows_B in torch.randperm(len(label_N), generator=source).split(batch):
            noise_BD = torch.randn(len(rows_B), WIDTH, generator=source)
            steps.append(
                StepView(
                    epoch=epoch,
                    rows_B=rows_B,
                    own_B=torch.ones(len(rows_B), dtype=torch.bool),
                    received_BD=gap * towards_CD[label_N[rows_B]] + noise_BD,
                    sent_BD=kept_ND[rows_B],
                )
            )
    return View(
        received="cut_gradient",
        steps=tuple(steps),
        classes=classes,
        start=planted_start(classes),
        own_model=PlantedModel(kept_ND),
        flip=0.01,
    )


def noisy_class(label_N: torch.Tensor, *, share: float, epochs: int = 4, seed: int = 0) -> View:
    """One class of equal means has noise in all directions, the other in half of them. The largest noise is equal."""
    view, source = planted_view(label_N, gap=0.0, epochs=epochs), generator(seed)
    loud_D = torch.where(torch.arange(6) < 3, 10.0, 1.0)
    steps = []
    for step in view.steps:
        quiet_B1 = torch.where(label_N[step.rows_B, None] == 1, share, 1.0)
        quiet_BD = torch.where(torch.arange(6) < 3, 1.0, quiet_B1)
        steps.append(replace(step, received_BD=torch.randn(len(step.rows_B), 6, generator=source) * loud_D * quiet_BD))
    return replace(view, steps=tuple(steps))


class PlantedModel(torch.nn.Module):
    """Make an own model whose embeddings are those of the view, and which can be trained on."""

    def __init__(self, kept_ND: torch.Tensor) -> None:
        super().__init__()
        self.kept_ND, self.turn = kept_ND, torch.nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.turn.weight.copy_(torch.eye(WIDTH))
            self.turn.bias.zero_()

    def forward(self, rows_B: torch.Tensor) -> torch.Tensor:
        return self.turn(self.kept_ND[rows_B])


def planted_start(classes: int) -> Start:
    """Make a linear label model whose gradient under label c points along axis c, as those of ``planted_view`` do."""
    axis_CD = torch.eye(classes, WIDTH)
    return lambda cut_BD: cut_BD @ (axis_CD[0] - axis_CD[1])[:, None] if classes == 2 else -cut_BD @ axis_CD.T


def audit_by_epoch(view: View, label_N: torch.Tensor, *, clean=None, attacks=None) -> dict[int, dict[str, AttackMetrics]]:
    """Audit each epoch's steps separately."""
    return {
        epoch: evaluate_label_inference(
            view.epoch(epoch),
            label_N,
            clean=clean and [clean_BD for clean_BD, step in zip(clean, view.steps, strict=True) if step.epoch == epoch],
            attacks=attacks,
        )
        for epoch in view.epochs
    }
