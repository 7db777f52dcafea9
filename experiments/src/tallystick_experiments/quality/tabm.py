"""Train TabM on the joined table (Gorishniy, Kotelnikov and Babenko, ICLR 2025) with its authors' package and recipe.

Members share most weights, and each is trained by its own loss on the same batches. Numbers become normal scores by quantiles and
then piecewise-linear embeddings. Categories are one-hot, with codes as in the contract's default.

Shapes: N rows, T test rows, F numbers, G categories, B batch, K members, C outputs (one of a binary label or a number).
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from tallystick.errors import ConfigError, DataError
from tallystick.metrics import TargetType
from tallystick.tables.encoder import Encoder
from tallystick_experiments.catalogue.public import PublicTable
from tallystick_experiments.quality.figure import Figure, Ints, coder_of, test_figure

RATE, WEIGHT_DECAY, BATCH, PATIENCE, LARGEST_NORM = 2e-3, 3e-4, 256, 16, 1.0
BINS, EMBEDDING = 48, 16
ROWS_AT_A_TIME = 2048  # in a pass without training; each row is as wide as all its categories, for every member
JITTER = 1e-5  # standard deviations of a column, so that quantiles of equal numbers differ


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Hold rows as TabM reads them, and their labels as its losses read them."""

    target: TargetType
    numbers_NF: Tensor  # float32
    codes_NG: Tensor  # int64
    codes: tuple[int, ...]  # the number of codes of each category
    labels_N: Tensor

    def to(self, device: torch.device) -> "Examples":
        """Move to a device."""
        return Examples(
            target=self.target,
            numbers_NF=self.numbers_NF.to(device),
            codes_NG=self.codes_NG.to(device),
            codes=self.codes,
            labels_N=self.labels_N.to(device),
        )

    def outputs(self, network: nn.Module, index_B: Tensor) -> Tensor:
        """Compute the members' outputs for these rows: (B, K, C)."""
        numbers_BF = self.numbers_NF[index_B] if self.numbers_NF.shape[1] else None
        codes_BG = self.codes_NG[index_B] if self.codes else None
        output_BKC: Tensor = network(numbers_BF, codes_BG)
        return output_BKC


def examples_of(table: PublicTable, fitted: Ints, labels_N: Tensor, *, seed: int) -> Examples:
    """Encode all rows, fitted on the ``fitted`` ones. A missing number becomes the median, and also a category of its own."""
    from sklearn.preprocessing import QuantileTransformer

    encoder = Encoder.fit(table.frame, table.columns, np.sort(fitted))  # none of its columns is constant on the fitted rows
    features = encoder.encode(table.frame).unpacked()
    missing_NM = features.numeric_NF[:, len(encoder.numeric) :].to(torch.int64)
    codes = (2,) * missing_NM.shape[1] + encoder.feature_shape.cardinalities
    numbers_NF = np.zeros((table.frame.height, 0))
    if encoder.numeric:
        columns = [table.frame.get_column(column.name).cast(pl.Float64).to_numpy() for column in encoder.numeric]
        raw_NF = np.column_stack(columns)
        rows_MF = raw_NF[fitted]
        deviation_F = np.nanstd(rows_MF, axis=0)
        noise_MF = np.random.default_rng([seed, 14]).normal(size=rows_MF.shape) * JITTER * deviation_F
        quantiles = QuantileTransformer(
            n_quantiles=min(max(min(len(fitted) // 30, 1000), 10), len(fitted)), output_distribution="normal", subsample=10**9
        )
        numbers_NF = np.nan_to_num(quantiles.fit(rows_MF + noise_MF).transform(raw_NF))
    return Examples(
        target=table.target,
        numbers_NF=torch.from_numpy(numbers_NF).to(torch.float32),
        codes_NG=torch.cat([missing_NM, features.categorical_NG], dim=1),
        codes=codes,
        labels_N=labels_N,
    )


def member_loss(target: TargetType, outputs_BKC: Tensor, labels_B: Tensor) -> Tensor:
    """Compute the mean of the members' own losses."""
    rows_RC, labels_R = outputs_BKC.flatten(0, 1), labels_B.repeat_interleave(outputs_BKC.shape[1])
    if target == "multiclass":
        return functional.cross_entropy(rows_RC, labels_R)
    loss = functional.mse_loss if target == "regression" else functional.binary_cross_entropy_with_logits
    return loss(rows_RC.squeeze(-1), labels_R)


def mean_prediction(target: TargetType, outputs_BKC: Tensor) -> Tensor:
    """Average over the members: probabilities, float64 (B, C), or (B,) for a binary label, or numbers in regression."""
    outputs_BKC = outputs_BKC.double()
    if target == "multiclass":
        return outputs_BKC.softmax(-1).mean(1)
    outputs_BK = outputs_BKC.squeeze(-1)
    return (outputs_BK if target == "regression" else outputs_BK.sigmoid()).mean(1)


def loss_of(target: TargetType, predicted_N: Tensor, labels_N: Tensor) -> float:
    """Compute the squared error of predictions, or the log loss of probabilities. It chooses the best epoch."""
    if target == "multiclass":
        return functional.nll_loss(predicted_N.log(), labels_N).item()
    loss = functional.mse_loss if target == "regression" else functional.binary_cross_entropy
    return loss(predicted_N, labels_N.double()).item()


@torch.no_grad()
def mean_predictions(network: nn.Module, examples: Examples, rows_N: Tensor) -> Tensor:
    """Compute the members' mean on these rows."""
    network.eval()
    parts = [mean_prediction(examples.target, examples.outputs(network, part)) for part in torch.split(rows_N, ROWS_AT_A_TIME)]
    return torch.cat(parts)


def epochs_of(network: nn.Module, examples: Examples, rows_N: Tensor, generator: torch.Generator) -> Iterator[int]:
    """Train on these rows, one epoch for each value that the caller takes, and yield the number of epochs."""
    fused = rows_N.device.type == "cuda"
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY, fused=fused)
    epochs = 0
    while True:
        network.train()
        order_N = rows_N[torch.randperm(len(rows_N), generator=generator).to(rows_N.device)]
        for batch_B in torch.split(order_N, BATCH):
            optimizer.zero_grad()
            loss = member_loss(examples.target, examples.outputs(network, batch_B), examples.labels_N[batch_B])
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), LARGEST_NORM)
            optimizer.step()
        epochs += 1
        yield epochs


def train_with_patience(
    network: nn.Module, examples: Examples, train_N: Tensor, validation_N: Tensor, generator: torch.Generator
) -> tuple[int, int]:
    """Train until more than PATIENCE epochs bring no better loss on the validation rows. The network ends with the best weights.

    Return the best epoch, and the number of epochs.
    """
    labels_V = examples.labels_N[validation_N]
    lowest, best, best_weights = float("inf"), 0, None
    for epoch in epochs_of(network, examples, train_N, generator):
        loss = loss_of(examples.target, mean_predictions(network, examples, validation_N), labels_V)
        if loss < lowest:
            lowest, best = loss, epoch
            best_weights = {name: value.clone() for name, value in network.state_dict().items()}
        if epoch - best > PATIENCE:
            assert best_weights is not None, "some validation loss is finite"
            network.load_state_dict(best_weights)
            return best, epoch
    raise AssertionError("epochs go on for ever")


def build_tabm(examples: Examples, train_N: Tensor, outputs: int) -> nn.Module:
    """Build TabM with its authors' defaults, and with bins of the training rows.

    It draws from PyTorch's own generator.

    Raises DataError if the package is not installed.
    """
    try:
        import rtdl_num_embeddings
        import tabm
    except ImportError:
        raise DataError("method tabm: TabM is not installed; run: pip install tabm") from None
    embeddings, numbers = None, examples.numbers_NF.shape[1]
    if numbers:
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # for a column of two values with a single bin
            bins = rtdl_num_embeddings.compute_bins(examples.numbers_NF[train_N], n_bins=min(BINS, len(train_N) - 1))
            embeddings = rtdl_num_embeddings.PiecewiseLinearEmbeddings(bins, EMBEDDING, activation=False, version="B")
    network: nn.Module = tabm.TabM.make(
        n_num_features=numbers, cat_cardinalities=list(examples.codes), d_out=outputs, num_embeddings=embeddings
    )
    return network


@dataclass(frozen=True, kw_only=True)
class TabMMethod:
    """Train TabM on all columns with its authors' recipe: 32 members, patience of 16 epochs on the validation rows.

    Args:
        refit: when to train again on training and validation rows, for the best number of epochs: if the split is by time, as a
            contract does, or always, as the compared boosting does.
        device: the device of the training, as PyTorch names it. On CUDA, matrix products use TF32.
    """

    refit: Literal["by-time", "always"]
    device: str = "cpu"

    def __call__(self, table: PublicTable, seed: int) -> Figure:
        """Train and score the test rows. Raises DataError if TabM is not installed."""
        if table.target == "count":
            raise DataError("method tabm: its authors' example has no loss of counts; take lightgbm, or --target regression")
        started, device = time.perf_counter(), torch.device(self.device)
        train, validation, test = table.parts(seed)
        coder = coder_of(table, train)
        labels_N = coder.encode(table.frame.get_column(table.label))
        validation_N, both = torch.from_numpy(validation).to(device), np.concatenate([train, validation])

        def begin(rows: Ints) -> tuple[nn.Module, Examples, Tensor]:
            examples = examples_of(table, rows, labels_N, seed=seed)
            network = build_tabm(examples, torch.from_numpy(rows), table.classes if table.target == "multiclass" else 1)
            return network.to(device), examples.to(device), torch.from_numpy(rows).to(device)

        generator = torch.Generator().manual_seed(seed)
        with _drawn_from(seed, device):
            network, examples, rows_N = begin(train)
            best, epochs = train_with_patience(network, examples, rows_N, validation_N, generator)
            if self.refit == "always" or table.times is not None:
                network, examples, rows_N = begin(both)
                for epoch in epochs_of(network, examples, rows_N, generator):
                    if epoch == best:
                        break
            means_T = mean_predictions(network, examples, torch.from_numpy(test).to(device)).cpu()
        scores_T = means_T.log() if table.target == "multiclass" else means_T  # the AUC of a binary label depends on ranks alone
        value = test_figure(table, coder, test, coder.predictions(scores_T.numpy()))
        return Figure(value=value, seconds=time.perf_counter() - started, epochs=epochs)


def require_device(name: str) -> None:
    """Raise ConfigError for a device that PyTorch does not know, or does not find here."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name}: PyTorch has no such device here ({str(error).splitlines()[0]}); take cpu") from None


@contextmanager
def _drawn_from(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's own generators, which the package uses, and restore them. On CUDA, multiply in TF32 in this block."""
    precision = torch.get_float32_matmul_precision()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
