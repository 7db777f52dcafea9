"""Rebuild columns by a simulated bottom model, which learns from other people's rows alone.

Shapes: N rows, O other people's rows, B rows of a batch, P principal components, T targets, I targets that the simulated model
reads, H hidden units, Q quantiles, S directions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tallystick.attacks.descent import Descent
from tallystick.attacks.feature_inference.inputs import Targets, inputs
from tallystick.attacks.feature_inference.marginals import MarginalMatching
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.errors import ConfigError, DataError

LEAST_PEOPLE = 100
COMPONENTS, SPARE = 32, 2  # use SPARE more principal components of the course than targets, but at most COMPONENTS
LEAST_SHARE = 0.02  # least share of a category that the simulated model reads
FARTHEST = 5.0  # inputs are cut at this many deviations from the mean
BATCH, HIDDEN, PAIRED_STEPS, PAIRED_RATE, RATE = 256, 64, 100, 1e-2, 5e-3
MOST_TAUGHT = 1500  # greatest number of guessed rows that teach it in a round
DIRECTIONS, DIRECTIONS_PER_STEP = 512, 32
OTHER_SEED = 1_000
START = MarginalMatching(reads="course")
JITTER, PENALTY = 0.1, 0.03  # keep the decoder from trusting the simulated model beyond its accuracy


@dataclass(frozen=True, kw_only=True)
class SimulatorDecoding:
    """Teach a stand-in for the bottom model to embed other people as the real one embeds the run's rows, and invert it.

    It knows no row of the run, but has a table of other people with the same columns. The guesses of ``MarginalMatching`` train a
    first simulated bottom model. This model then learns to embed other people so that their embeddings have the distribution of
    the received ones, by the sliced Wasserstein distance. A decoder learns the map from simulated embeddings to other people's
    columns, by kernel ridge regression, and decodes the received embeddings. Its guesses train the next simulated model.

    After SDAR (Zhu et al. 2023, arXiv 2310.10483), which compares embeddings by a discriminator and guides the simulator by the
    task's loss. It fails for a narrow cut, or much noise on embeddings.

    Args:
        rounds: number of rounds of simulating and decoding, at least 1.
        steps: number of Adam steps in each round, at least 1.
    """

    rounds: int = 4
    steps: int = 200

    def __post_init__(self) -> None:
        if min(self.rounds, self.steps) < 1:
            raise ConfigError(f"simulator: rounds={self.rounds}, steps={self.steps}; expected at least 1 of each")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. ``generator`` draws weights, batches and directions. Raises DataError without others."""
        if view.others is None:
            raise DataError("feature attack: the view has no rows of other people, and this attack needs them")
        if len(view.others) < LEAST_PEOPLE:
            raise DataError(
                f"a simulated bottom model needs {LEAST_PEOPLE} other people to learn from, and has {len(view.others)}"
            )
        start, targets = view.guess(START, seed=generator.initial_seed()), Targets.of(view.others)
        generator = torch.Generator().manual_seed(
            generator.initial_seed() + OTHER_SEED
        )  # its draws are not those of the first guess
        reader = _Reader.of(targets)
        z_NP = inputs(view, "course", own_columns=False)[:, : min(COMPONENTS, len(reader.read_I) + SPARE)]
        received, others_OI = _Distribution.of(z_NP, generator=generator), reader(targets.y_KT)
        some_N = torch.linspace(0, len(z_NP) - 1, min(len(z_NP), MOST_TAUGHT), dtype=torch.float64).round().long()
        guess_NI, some_NP = reader(targets.values(start))[some_N], z_NP[some_N].float()
        for _ in range(self.rounds):
            bottom = _SimulatedBottom(len(reader.read_I), z_NP.shape[1], generator=generator)
            bottom.learn_rows(guess_NI, some_NP, generator=generator)
            bottom.learn_distribution(others_OI, received, steps=self.steps, generator=generator)
            decode = _Decoder(bottom.embedded(others_OI), generator=generator)
            guess_NI = decode(others_OI, some_NP).clamp(-FARTHEST, FARTHEST)
        fitted_S = targets.fitted()
        return targets.reconstruction(decode(targets.y_KT[:, fitted_S].float(), z_NP.float()).double().T, fitted_S)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Selects and scales the targets that a simulated bottom model reads."""

    read_I: Tensor
    mean_I: Tensor
    deviation_I: Tensor

    @classmethod
    def of(cls, targets: Targets) -> "_Reader":
        mean_T, deviation_T = targets.y_KT.mean(dim=0), targets.y_KT.std(dim=0, correction=0)
        common_T = (mean_T >= LEAST_SHARE) & (mean_T <= 1 - LEAST_SHARE)
        common_T[: targets.numeric] = True
        (read_I,) = (common_T & (deviation_T > 0)).nonzero(as_tuple=True)
        if not len(read_I):
            raise DataError("simulator: no column of other people varies, so there is nothing to simulate with")
        return cls(read_I=read_I, mean_I=mean_T[read_I], deviation_I=deviation_T[read_I])

    def __call__(self, y_NT: Tensor) -> Tensor:
        return ((y_NT[:, self.read_I] - self.mean_I) / self.deviation_I).clamp(-FARTHEST, FARTHEST).float()


@dataclass(frozen=True, kw_only=True)
class _Distribution:
    """Distribution of embeddings, as quantiles along random directions."""

    direction_SP: Tensor
    quantile_SQ: Tensor

    @classmethod
    def of(cls, z_NP: Tensor, *, generator: torch.Generator) -> "_Distribution":
        direction_PS = normalize(torch.randn(z_NP.shape[1], DIRECTIONS, generator=generator), dim=0)
        direction_SP = direction_PS.T.contiguous()
        along_SN = np.sort((direction_SP @ z_NP.float().T).numpy(), axis=1)  # many times as fast as PyTorch's sort and quantile
        at_Q = (np.arange(BATCH) + 0.5) / BATCH * (len(z_NP) - 1)
        below_Q = at_Q.astype(np.int64)
        above_Q, part_Q = np.minimum(below_Q + 1, len(z_NP) - 1), (at_Q - below_Q).astype(np.float32)
        quantile_SQ = along_SN[:, below_Q] * (1 - part_Q) + along_SN[:, above_Q] * part_Q
        return cls(direction_SP=direction_SP, quantile_SQ=torch.from_numpy(quantile_SQ))

    def slope(self, embedded_QP: Tensor, some_S: Tensor) -> Tensor:
        """Return the slope of the sliced Wasserstein distance to this many simulated embeddings, along some of the directions."""
        direction_SP, quantile_SQ = self.direction_SP[some_S], self.quantile_SQ[some_S]
        along_SQ = direction_SP @ embedded_QP.T
        order_SQ = torch.from_numpy(np.argsort(along_SQ.numpy(), axis=1))
        sign_SQ = (along_SQ.gather(1, order_SQ) - quantile_SQ).sign_().div_(quantile_SQ.numel())
        return torch.empty_like(along_SQ).scatter_(1, order_SQ, sign_SQ).T @ direction_SP


class _SimulatedBottom:
    """The sum of a linear map and a network with one hidden layer. Its gradients are written out, because automatic ones take
    most of the time.
    """

    def __init__(self, reads: int, width: int, *, generator: torch.Generator) -> None:
        self.weights: list[Tensor] = []
        for inputs_of_layer, outputs in ((reads, width), (reads, HIDDEN), (HIDDEN, width)):
            for shape in ((outputs, inputs_of_layer), (outputs,)):
                self.weights.append((torch.rand(shape, generator=generator) * 2 - 1) * shape[-1] ** -0.5)

    def embedded(self, read_BI: Tensor) -> Tensor:
        """Embed rows of these columns."""
        return self._above(read_BI, self._units(read_BI))

    def _units(self, read_BI: Tensor) -> Tensor:
        _, _, in_HI, in_H, _, _ = self.weights
        return torch.addmm(in_H, read_BI, in_HI.T).relu_()

    def _above(self, read_BI: Tensor, unit_BH: Tensor) -> Tensor:
        line_PI, line_P, _, _, out_PH, out_P = self.weights
        return torch.addmm(line_P + out_P, read_BI, line_PI.T).addmm_(unit_BH, out_PH.T)

    def learn_rows(self, read_NI: Tensor, z_NP: Tensor, *, generator: torch.Generator) -> None:
        """Learn to give guessed rows the embeddings that were received for them."""
        adam = Descent(self.weights, rate=PAIRED_RATE)
        for _ in range(PAIRED_STEPS):
            row_B = torch.randint(len(read_NI), (BATCH,), generator=generator)
            self._step(adam, read_NI[row_B], partial(_squared_slope, to_BP=z_NP[row_B]))

    def learn_distribution(self, others_OI: Tensor, received: _Distribution, *, steps: int, generator: torch.Generator) -> None:
        """Learn to embed other people so that their embeddings have the distribution of the received ones."""
        adam = Descent(self.weights, rate=RATE, steps=steps)
        for _ in range(steps):
            row_B = torch.randint(len(others_OI), (BATCH,), generator=generator)
            some_S = torch.randint(DIRECTIONS, (DIRECTIONS_PER_STEP,), generator=generator)
            self._step(adam, others_OI[row_B], partial(received.slope, some_S=some_S))

    def _step(self, adam: Descent, read_BI: Tensor, slope_of: Callable[[Tensor], Tensor]) -> None:
        """Take a step that lowers a loss of these rows' embeddings, given the slope of the loss."""
        unit_BH = self._units(read_BI)
        slope_BP = slope_of(self._above(read_BI, unit_BH))
        slope_PI, slope_P = slope_BP.T @ read_BI, slope_BP.sum(dim=0)
        slope_BH = (slope_BP @ self.weights[4]).mul_(unit_BH > 0)
        adam.step([slope_PI, slope_P, slope_BH.T @ read_BI, slope_BH.sum(dim=0), slope_BP.T @ unit_BH, slope_P])


class _Decoder:
    """Kernel ridge regression from simulated embeddings. Its kernel's bandwidth is their median distance."""

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


def _squared_slope(embedded_BP: Tensor, *, to_BP: Tensor) -> Tensor:
    """Return the slope of the mean squared distance to the wanted embeddings."""
    return (embedded_BP - to_BP) * (2 / to_BP.numel())
