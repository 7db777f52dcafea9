"""Columns told by a simulated bottom model, which learns from other people's rows alone.

Shapes: N rows, O other people's rows, B rows of a batch, P principal components, T targets, I of them that are read, H hidden
units, Q quantiles, S directions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, normalize

from tallystick.attacks.feature_inference.inputs import Targets, inputs
from tallystick.attacks.feature_inference.marginals import MarginalMatching
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.errors import ConfigError, DataError

LEAST_PEOPLE = 100
COMPONENTS, SPARE = 32, 2  # principal components of the course: at most so many, and so many more than what is read
LEAST_SHARE = 0.02  # of a category that the simulated model reads
FARTHEST = 5.0  # deviations from the mean, of what it reads
BATCH, HIDDEN, PAIRED_STEPS, PAIRED_RATE, RATE = 256, 64, 100, 1e-2, 5e-3
DIRECTIONS, DIRECTIONS_PER_STEP = 512, 32
START = MarginalMatching(reads="course")
JITTER, PENALTY = 0.1, 0.03  # of the decoder: it must not count on more than the simulated model is right


@dataclass(frozen=True, kw_only=True)
class SimulatorDecoding:
    """Teach a stand-in for the bottom model to embed other people as the real one embeds the run's rows, and invert it.

    Knows no row of the run, but has a table of other people with the same columns. What ``MarginalMatching`` guesses teaches a
    first simulated bottom model. It then learns to embed other people so that their embeddings are distributed as the received
    ones are, by the sliced Wasserstein distance. A decoder learns the way from simulated embeddings to other people's columns, by
    kernel ridge regression, and reads the received embeddings. What it reads teaches the next simulated model.

    After SDAR (Zhu et al. 2023, arXiv 2310.10483), which compares embeddings by a discriminator and guides the simulator by the
    task's loss. A narrow cut, or much noise on embeddings, leads it astray.

    Args:
        rounds: of simulating and decoding, at least 1.
        steps: of Adam in each round, at least 1.
    """

    rounds: int = 8
    steps: int = 200

    def __post_init__(self) -> None:
        if min(self.rounds, self.steps) < 1:
            raise ConfigError(f"simulator: rounds={self.rounds}, steps={self.steps}; expected at least 1 of each")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns; ``generator`` draws weights, batches and directions. Raises DataError without others."""
        if view.others is None:
            raise DataError("feature attack: no other people's rows are in the view, and this attack learns from nothing else")
        if len(view.others) < LEAST_PEOPLE:
            raise DataError(
                f"a simulated bottom model needs {LEAST_PEOPLE} other people to learn from, and has {len(view.others)}"
            )
        targets = Targets.of(view.others)
        reader = _Reader.of(targets)
        z_NP = inputs(view, "course", own_columns=False)[:, : min(COMPONENTS, len(reader.read_I) + SPARE)]
        received, others_OI = _Distribution.of(z_NP, generator=generator), reader(targets.y_KT)
        guess_NI = reader(targets.values(START(view, generator=generator)))
        for _ in range(self.rounds):
            bottom = _SimulatedBottom(len(reader.read_I), z_NP.shape[1], generator=generator)
            bottom.learn_rows(guess_NI, z_NP.float(), generator=generator)
            bottom.learn_distribution(others_OI, received, steps=self.steps, generator=generator)
            decode = _Decoder(bottom.embedded(others_OI), generator=generator)
            guess_NI = decode(others_OI.double(), z_NP).clamp(-FARTHEST, FARTHEST).float()
        return targets.reconstruction(decode(targets.y_KT, z_NP))


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reader of a simulated bottom model: which targets it reads, and on which scale."""

    read_I: Tensor
    mean_I: Tensor
    deviation_I: Tensor

    @classmethod
    def of(cls, wanted: Targets) -> "_Reader":
        mean_T, deviation_T = wanted.y_KT.mean(dim=0), wanted.y_KT.std(dim=0, correction=0)
        common_T = (mean_T >= LEAST_SHARE) & (mean_T <= 1 - LEAST_SHARE)
        common_T[: wanted.numeric] = True
        (read_I,) = (common_T & (deviation_T > 0)).nonzero(as_tuple=True)
        if not len(read_I):
            raise DataError("simulator: no column of other people varies, so there is nothing to simulate with")
        return cls(read_I=read_I, mean_I=mean_T[read_I], deviation_I=deviation_T[read_I])

    def __call__(self, y_NT: Tensor) -> Tensor:
        return ((y_NT[:, self.read_I] - self.mean_I) / self.deviation_I).clamp(-FARTHEST, FARTHEST).float()


@dataclass(frozen=True, kw_only=True)
class _Distribution:
    """Distribution of embeddings: their quantiles along random directions."""

    direction_PS: Tensor
    quantile_QS: Tensor

    @classmethod
    def of(cls, z_NP: Tensor, *, generator: torch.Generator) -> "_Distribution":
        direction_PS = normalize(torch.randn(z_NP.shape[1], DIRECTIONS, generator=generator), dim=0)
        at_Q = (torch.arange(BATCH) + 0.5) / BATCH
        return cls(direction_PS=direction_PS, quantile_QS=torch.quantile(z_NP.float() @ direction_PS, at_Q, dim=0))

    def distance(self, embedded_QP: Tensor, some_S: Tensor) -> Tensor:
        """Compute the sliced Wasserstein distance to so many simulated embeddings, along some of the directions."""
        along_QS = (embedded_QP @ self.direction_PS[:, some_S]).sort(dim=0).values
        apart: Tensor = (along_QS - self.quantile_QS[:, some_S]).abs().mean()
        return apart


class _SimulatedBottom(nn.Module):
    """A line and a network of one hidden layer, added."""

    def __init__(self, reads: int, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.line = nn.Linear(reads, width)
        self.bend = nn.Sequential(nn.Linear(reads, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, width))
        with torch.no_grad():
            for parameter in self.parameters():
                bound = parameter.shape[-1] ** -0.5
                parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)

    def forward(self, read_BI: Tensor) -> Tensor:
        embedded_BP: Tensor = self.line(read_BI) + self.bend(read_BI)
        return embedded_BP

    def embedded(self, read_OI: Tensor) -> Tensor:
        """Embed without a graph; float64."""
        with torch.no_grad():
            embedded_OP: Tensor = self(read_OI).double()
        return embedded_OP

    def learn_rows(self, read_NI: Tensor, z_NP: Tensor, *, generator: torch.Generator) -> None:
        """Learn to embed guessed rows as they were embedded."""
        optimizer = torch.optim.Adam(self.parameters(), lr=PAIRED_RATE, fused=True)
        for _ in range(PAIRED_STEPS):
            row_B = torch.randint(len(read_NI), (BATCH,), generator=generator)
            _step(optimizer, mse_loss(self(read_NI[row_B]), z_NP[row_B]))

    def learn_distribution(self, others_OI: Tensor, received: _Distribution, *, steps: int, generator: torch.Generator) -> None:
        """Learn to embed other people so that their embeddings are distributed as the received ones."""
        optimizer = torch.optim.Adam(self.parameters(), lr=RATE, fused=True)
        slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            row_B = torch.randint(len(others_OI), (BATCH,), generator=generator)
            some_S = torch.randint(DIRECTIONS, (DIRECTIONS_PER_STEP,), generator=generator)
            _step(optimizer, received.distance(self(others_OI[row_B]), some_S))
            slower.step()


class _Decoder:
    """Kernel ridge regression from simulated embeddings; its kernel's bandwidth is their median distance."""

    def __init__(self, simulated_OP: Tensor, *, generator: torch.Generator) -> None:
        jitter_OP = torch.randn(simulated_OP.shape, generator=generator, dtype=simulated_OP.dtype)
        self.simulated_OP = simulated_OP + JITTER * jitter_OP
        apart_OO = torch.cdist(self.simulated_OP, self.simulated_OP)
        self.bandwidth = float(apart_OO.median()) or 1.0
        gram_OO = self._kernel(apart_OO)
        self.factor_OO = torch.linalg.cholesky(gram_OO + PENALTY * torch.eye(len(gram_OO), dtype=gram_OO.dtype))

    def __call__(self, y_OT: Tensor, z_NP: Tensor) -> Tensor:
        """Decode these targets from the received embeddings."""
        mean_T = y_OT.mean(dim=0)
        weight_OT = torch.cholesky_solve(y_OT - mean_T, self.factor_OO)
        return mean_T + self._kernel(torch.cdist(z_NP, self.simulated_OP)) @ weight_OT

    def _kernel(self, apart: Tensor) -> Tensor:
        kernel: Tensor = torch.exp(-(apart / self.bandwidth).square() / 2)
        return kernel


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
