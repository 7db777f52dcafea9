"""Update a party's own weights: the rate at each step, clipped gradients, the optimizer, averaged weights.

Everything depends only on the contract and the step's number, so every party, and training in one process, does the same.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from tallystick.config.sections import TrainingConfig
from tallystick.models.normalization import statistics_of
from tallystick.models.tabular import Columns
from tallystick.training.optimizers import optimizer_of


def rate_at(training: TrainingConfig, step: int, steps: int) -> float:
    """Compute the learning rate of a step.

    With ``schedule: cosine`` it rises linearly over the warm-up and then falls along half a cosine to nearly 0 at the last step
    (Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts).

    Args:
        training: the contract's settings.
        step: the step's number, counted from 1.
        steps: number of steps of the whole run, if it is not stopped early.
    """
    if training.schedule == "constant":
        return training.learning_rate
    rising = math.ceil(training.warm_up * steps)
    if step <= rising:
        return training.learning_rate * step / rising
    return training.learning_rate * (1 + math.cos(math.pi * (step - rising - 1) / (steps - rising))) / 2


def decay_at(ema: float, step: int) -> float:
    """Return the average's decay at a step. It is smaller in the first steps, whose weights soon become useless."""
    return min(ema, (1 + step) / (10 + step))


class Received:
    """The largest number from each peer, or worker, since the last kept step. It is reported if training diverges."""

    def __init__(self) -> None:
        self._largest: dict[str, Tensor] = {}

    def note(self, peer: str, values: Tensor) -> None:
        """Record the values of one sender."""
        if values.numel():
            least, most = values.detach().aminmax()
            largest = torch.maximum(-least, most)  # stays on the device: fetching each would wait for the device
            self._largest[peer] = torch.maximum(self._largest.get(peer, largest), largest)

    def clear(self) -> None:
        """Delete the largest numbers when a step is kept."""
        self._largest.clear()

    def __str__(self) -> str:
        """Return the largest number from each sender, as text for brackets; empty if nothing arrived."""
        return ", ".join(f"{largest.item():.3g} from {peer}" for peer, largest in self._largest.items())


class Updates:
    """The optimizer of one party's module, with the contract's settings around it. A module without weights has none.

    Clipping limits the norm of all gradients of this party's own weights: a norm over all parties' would be another number that
    crosses. Averaged weights are an exponential mean over the steps (Polyak and Juditsky 1992); training continues from the
    weights themselves.

    Args:
        training: the contract's settings.
        module: the module that this party trains.
        steps: number of steps of the whole run, if it is not stopped early: the schedule's length.
        before: number of steps before this module's first one.
        rates: share of the learning rate by the prefix of a weight's name, as for optimizer_of.
    """

    def __init__(
        self,
        training: TrainingConfig,
        module: nn.Module,
        *,
        steps: int,
        before: int = 0,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.optimizer = optimizer_of(training, module, rates)
        self.received = Received()
        self._training = training
        self._steps = steps
        self._before = before
        self._weights = dict(module.named_parameters())
        # Running statistics depend on the weights, so they are averaged like weights.
        self._averaged = {**self._weights, **statistics_of(module)} if training.ema else {}
        self._tables = next((part.updates for part in module.modules() if isinstance(part, Columns) and part.updates), None)
        shared = [id(table) for table in self._tables.tables] if self._tables is not None else []
        self._averaged_here = [name for name, weight in self._averaged.items() if id(weight) not in shared]
        self._averages = {}
        for name in self._averaged:
            weight = self._averaged[name].detach()
            if self._tables is None or name in self._averaged_here:
                self._averages[name] = weight.clone()
            else:
                self._averages[name] = self._tables.average_of(self._weights[name]).copy_(weight)
        self._keep_where_shared()

    @property
    def are_none(self) -> bool:
        """Tell whether there is nothing to update."""
        return self.optimizer is None

    def zero_grad(self) -> None:
        """Delete the gradients."""
        if self.optimizer is not None:
            self.optimizer.zero_grad()

    def step(self, number: int) -> None:
        """Update the weights by their gradients. ``number`` is the run's step of these gradients, counted from 1."""
        if self.optimizer is None:
            return
        if self._training.clip is not None:
            if self._tables is not None:
                self._tables.make_gradients()
            nn.utils.clip_grad_norm_(self._weights.values(), self._training.clip)
        rate = rate_at(self._training, number - self._before, self._steps)
        decay = decay_at(self._training.ema, number - self._before) if self._training.ema else 0.0
        with self._tables.update(rate=rate, decay=decay) if self._tables is not None else nullcontext():
            self.optimizer.step(rate)
            if self._training.ema:
                with torch.no_grad():
                    averages, weights = ([of[name] for name in self._averaged_here] for of in (self._averages, self._averaged))
                    torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Provide the module with the averaged weights within this block, if the contract asks for them."""
        present = {name: weight.detach().clone() for name, weight in self._averaged.items()}
        self._put(self._averages)
        try:
            yield
        finally:
            self._put(present)

    def kept_of(self, weight: nn.Parameter) -> Mapping[str, Tensor]:
        """Return the optimizer's state of a weight."""
        return self.optimizer.kept.get(weight, {}) if self.optimizer is not None else {}

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors for a checkpoint."""
        averages = {f"average/{name}": average for name, average in self._averages.items()}
        if self.optimizer is None:
            return averages
        return averages | {
            f"optimizer/{index}/{name}": value
            for index, weight in enumerate(self.optimizer.weights)
            for name, value in self.kept_of(weight).items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that ``tensors`` returned. Other names are ignored."""
        for name, average in self._averages.items():
            average.copy_(tensors[f"average/{name}"])
        if self.optimizer is None:
            return
        self.optimizer.kept.clear()
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                weight = self.optimizer.weights[int(index)]
                self.optimizer.kept.setdefault(weight, {})[key] = tensor.to(weight.device)
        self._keep_where_shared()

    def _keep_where_shared(self) -> None:
        """Make the optimizer's state of tables use the memory of the code that updates them."""
        if self._tables is None or self.optimizer is None:
            return
        for table in self._tables.tables:
            own_state, shared_state = self.kept_of(table), self._tables.kept_of(table)
            for name, value in shared_state.items():
                value.copy_(own_state[name] if name in own_state else torch.zeros_like(value))
            self.optimizer.kept[table] = shared_state

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights in place, because a pipelined party identifies its weights by their memory."""
        with torch.no_grad():
            for name, weight in weights.items():
                self._averaged[name].copy_(weight)
