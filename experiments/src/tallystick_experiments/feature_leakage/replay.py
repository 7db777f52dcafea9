"""Replay a bottom model's training from the gradients that the label party sent, and compare this with the audit's attacks.

The label party knows every gradient that it sent, every embedding that it received, the rows of each batch, and the contract's
optimizer. So the weights of all steps follow from two unknowns: the weights before the first step, and the columns. Both are
fitted together, so that the replayed training embeds each batch as it was embedded. The known rows' columns are fixed, and the
others start at the guess of the attack *weighted-mean*. The bottom has one layer and reads only numbers.

Shapes: N rows, K known rows, F columns, B rows of a batch, D cut width.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from typer import Option

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.feature_inference.evaluate import evaluate_feature_inference
from tallystick.attacks.feature_inference.view import FeatureView, SentEmbeddings
from tallystick.attacks.row_sums import RowSums
from tallystick.defenses.chain import NO_DEFENSE
from tallystick.errors import DataError
from tallystick.models.build import seeded
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick.training.single_process import CrossedStep
from tallystick_experiments.catalogue.ads import read_pair
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.feature_leakage.data import split_and_encode
from tallystick_experiments.feature_leakage.runs import EMBEDDING_WIDTH, HIDDEN
from tallystick_experiments.grid import grid
from tallystick_experiments.observed_training import ObservedTraining, TrainingPlan, summed_epoch
from tallystick_experiments.options import several
from tallystick_experiments.page import Benchmark, seed_count, seeds_of
from tallystick_experiments.pivot import Pivot
from tallystick_experiments.stats import Row

KNOWN = (20, 200)
WEIGHT_RATE, COLUMN_RATE, PULL, KNOWN_COUNT = 2e-3, 2e-2, 1e-4, 5.0
BETAS, EPSILON = (0.9, 0.999), 1e-8  # defaults of PyTorch's Adam, as in the contract


def replay_experiment(
    *,
    data: Annotated[Path, Option(help="The label party's CSV file (id, y).")],
    partner: Annotated[Path | None, Option(help="The feature party's CSV file (id): numbers alone.")] = None,
    seeds: Annotated[int, Option(help="Runs per row.", min=1)] = 2,
    first_seed: Annotated[int, Option(help="The first seed.", min=0)] = 1,
    epochs: Annotated[int, Option(help="Of the training.", min=1)] = 8,
    limit: Annotated[int, Option(help="Read no more rows than this of each file.", min=1)] = 3000,
    widths: Annotated[Sequence[int], several("Of the cut, with commas between.", of=int)] = (4, 2),
    steps: Annotated[int, Option(help="Of the fit: each plays the training once.", min=1)] = 2000,
    batch_size: int = 128,
) -> Experiment:
    """Train behind narrow cuts, and attack with the table's attacks and with the replay.

    Raises DataError for columns that are not numbers.
    """
    table = read_pair(data, partner, limit=limit)
    plan = TrainingPlan(epochs=epochs, batch_size=batch_size, learning_rate=5e-3)

    def trial(seed: int, width: int, known: int) -> Row:
        return _trial(table, plan, seed=seed, width=width, known=known, steps=steps)

    about = {"data": table.name, "rows": table.frame.height, "epochs": epochs, "steps": steps, "batch": batch_size}
    cases = grid(seed=range(first_seed, first_seed + seeds), width=widths, known=KNOWN)
    return Experiment(name="replay", cases=cases, trial=trial, page=replay_page, setting=about, about=about)


def replay_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``replay_experiment``."""
    replay = Pivot(
        name="Mean R² over the feature party's columns",
        rows={"case": "case"},
        shown={
            "strongest of each column": "attacks",
            "weighted-mean": "start",
            "replay from there": "replay",
            "its seconds": "seconds",
        },
    )
    cases = [{**row, "case": f"width {row['width']}, {row['known']} known rows"} for row in rows]
    return Benchmark(
        title=f"A bottom's training played again on {about['data']}: {about['rows']:,} rows, {seed_count(rows)}",
        tables=[replay.table(cases)],
        facts={"steps": str(about["steps"]), "epochs": str(about["epochs"]), "seeds": seeds_of(rows)},
    )


def _trial(table: Any, plan: TrainingPlan, *, seed: int, width: int, known: int, steps: int) -> Row:
    split, columns = split_and_encode(table, seed=seed)
    if columns.categorical or split.own_shape is None:
        raise DataError(f"{table.name}: the replay is of numbers alone, beside own columns; give another table")
    with seeded(seed, "replay"):
        bottom = TabularBottom(split.shape, embedding_width=EMBEDDING_WIDTH, hidden=(width,))
        own = TabularBottom(split.own_shape, embedding_width=EMBEDDING_WIDTH, hidden=HIDDEN[:1])
        top = TabularTop(own.width + width, hidden=HIDDEN[1:], outputs=1)
    network = ObservedTraining(bottom, LabelModel(top, bottom=own), split, plan, seed=seed).network(NO_DEFENSE)
    sums = RowSums.zero("cut_embedding", network.schedule.train_N, width)
    crossed = [step for epoch in range(plan.epochs) for step in summed_epoch(network, epoch, sums)]
    (view,) = sums.view().steps
    embeddings, columns = SentEmbeddings.of(view), columns.rows(view.rows_B)
    known_K = torch.from_numpy(np.random.default_rng([seed, known]).permutation(len(columns))[:known])
    attacks = {
        name: row
        for name, row in FEATURE_INFERENCE_ATTACKS.items()
        if not (row.knows_no_row or row.from_shuffled or row.own_columns)
    }
    means = evaluate_feature_inference(embeddings, columns, known={known: [known_K]}, attacks=attacks, seed=seed).mean(known)
    attacker = FeatureView(
        last_ND=embeddings.last_BD,
        mean_ND=embeddings.mean_BD,
        looks_NE=embeddings.looks_BE,
        looks_at_NL=embeddings.looks_at_BL,
        known_K=known_K,
        columns_K=columns.rows(known_K),
    )
    generator, started = torch.Generator().manual_seed(seed), time.perf_counter()
    start = FEATURE_INFERENCE_ATTACKS["weighted-mean"].attack(attacker, generator=generator).numeric_NF.float()
    guess_NF = replayed(crossed, start, known_K, columns.numeric_NF[known_K].float(), rate=plan.learning_rate, steps=steps)
    rest_N = torch.ones(len(columns), dtype=torch.bool)
    rest_N[known_K] = False
    truth_NF = columns.numeric_NF[rest_N].double()
    return {
        "attacks": means,
        "start": _told(truth_NF, start[rest_N]),
        "replay": _told(truth_NF, guess_NF[rest_N]),
        "seconds": time.perf_counter() - started,
    }


def _told(truth_NF: Tensor, guess_NF: Tensor) -> float:
    error_F = (truth_NF - guess_NF.double()).square().sum(dim=0)
    return float((1 - error_F / (truth_NF - truth_NF.mean(dim=0)).square().sum(dim=0)).clamp(min=0).mean())


def replayed(
    crossed: Sequence[CrossedStep], start_NF: Tensor, known_K: Tensor, columns_KF: Tensor, *, rate: float, steps: int
) -> Tensor:
    """Fit the bottom's starting weights and the unknown columns (N, F) to everything that crossed. The training uses Adam.

    ``start_NF`` is the first guess at the columns.
    """
    known_N1 = torch.zeros(len(start_NF), 1, dtype=torch.bool)
    known_N1[known_K] = True
    fixed_NF = start_NF.clone()
    fixed_NF[known_K] = columns_KF
    weight_DF1 = torch.nn.Parameter(_first_weights(crossed, fixed_NF, known_N1[:, 0]))
    columns_NF = torch.nn.Parameter(fixed_NF.clone())
    parameters = [{"params": [weight_DF1], "lr": WEIGHT_RATE}, {"params": [columns_NF], "lr": COLUMN_RATE}]
    optimizer = torch.optim.Adam(parameters)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scale = torch.cat([step.embeddings_BD[0] for step in crossed]).std()
    for _ in range(steps):
        x_NF = torch.where(known_N1, fixed_NF, columns_NF)
        pulled = (columns_NF - fixed_NF).square().sum() / len(start_NF)
        loss = _mismatch(crossed, weight_DF1, x_NF, known_N1[:, 0], scale, rate) + PULL * pulled
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        slower.step()
    return torch.where(known_N1, fixed_NF, columns_NF).detach()


def _first_weights(crossed: Sequence[CrossedStep], x_NF: Tensor, known_N: Tensor) -> Tensor:
    """Solve for the layer, with its bias, that embeds the known rows as they were first embedded, (D, F + 1)."""
    first: dict[int, Tensor] = {}
    for step in crossed:
        for row, cut_D in zip(step.batch.index_B.tolist(), step.embeddings_BD[0], strict=True):
            if bool(known_N[row]):
                first.setdefault(row, cut_D)
    rows_K = torch.tensor(list(first))
    layer = torch.nn.Linear(x_NF.shape[1], crossed[0].embeddings_BD[0].shape[1])
    torch.nn.init.constant_(layer.bias, 0.1)
    torch.nn.init.normal_(layer.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    optimizer, wanted_KD = torch.optim.Adam(layer.parameters(), lr=1e-2), torch.stack(list(first.values()))
    for _ in range(500):
        loss = (torch.relu(layer(x_NF[rows_K])) - wanted_KD).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach()


def _mismatch(
    crossed: Sequence[CrossedStep], weight_DF1: Tensor, x_NF: Tensor, known_N: Tensor, scale: Tensor, rate: float
) -> Tensor:
    """Play the training again, and return how far its embeddings are from those that crossed, known rows counting more."""
    x_NF1 = torch.cat([x_NF, torch.ones(len(x_NF), 1)], dim=1)
    mean, square, total = torch.zeros_like(weight_DF1), torch.zeros_like(weight_DF1), x_NF.new_zeros(())
    for number, step in enumerate(crossed, 1):
        rows_B, (sent_BD,), (answer_BD,) = step.batch.index_B, step.embeddings_BD, step.answer.grads_BD
        x_BF1, is_open_BD = x_NF1[rows_B], sent_BD > 0
        before_BD = x_BF1 @ weight_DF1.T
        apart_BD = torch.where(is_open_BD, before_BD - sent_BD, torch.relu(before_BD)) / scale
        total = total + (apart_BD.square().sum(dim=1) * (1 + (KNOWN_COUNT - 1) * known_N[rows_B])).mean()
        gradient = (answer_BD * is_open_BD).T @ x_BF1
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient.square()
        root = (square / (1 - BETAS[1] ** number) + 1e-20).sqrt()  # its slope is finite at 0
        weight_DF1 = weight_DF1 - rate * (mean / (1 - BETAS[0] ** number)) / (root + EPSILON)
    return total / len(crossed)
