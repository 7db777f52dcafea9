"""Keep running sums per row over a whole training. In bounded memory they replace what an attacker would keep message by message.

Shapes: N chosen rows, B rows of a step's batch, D cut width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.second_moments import HALVES, SecondMoments, StepRows, standing_rows
from tallystick.attacks.view import Received, StepView, View
from tallystick.errors import DataError

PENDING_STEPS, PENDING_NUMBERS = 16, 2**19  # the most steps that are summed together


class _Step(NamedTuple):
    """A step that is not summed yet: its number in the epoch, the rows of its batch, and the messages in float32."""

    number: int
    rows_B: Tensor
    embedding_BD: Tensor
    gradient_BD: Tensor


@dataclass(kw_only=True)
class RowSums:
    """For each chosen row, the sum of its messages over the cut, their number, and its last cut embedding.

    A peer sees every row in every epoch. Few attacks need each message by itself: noise that is drawn anew averages out, and a
    label never changes. In a feature party's view (``received`` is "cut_gradient") gradients are summed. The gradients of each
    batch are first centred and divided by one scale, and so are the last embeddings, because between two batches the model
    changes and the rows do not. In the label party's view ("cut_embedding") embeddings are summed unchanged.

    Args:
        received: what the owner of the view received.
        rows_N: int64, distinct, in ascending order.
        sum_ND: float32, of gradients or embeddings.
        last_ND: float32, the last embedding.
        length_N: float32, sum of the gradients' lengths, each in deviations from its batch's mean length.
        energy_NH: float32, sums of the gradients' energies, from ``SecondMoments``; (N, 0) without second moments, which the
            label party's view never has.
        white_ND: float32, sum of the gradients, whitened by the covariance of earlier steps; (N, 0) without second moments.
        square_N: float32, sum of the squared lengths of the whitened gradients.
        white_count_N: int64, number of whitened gradients; the first epoch has none.
        count_N: int64, how often the row was seen.
        white_DD: matrix that whitens the gradients of the next epoch; (0, 0) before there is one.
        epochs: epochs that the sums hold, in order.
        looks_LND: float32, in the label party's view the embeddings of L single epochs, among them the first and the last. Each
            epoch's bottom model shows the same columns in another way, which the last and the mean embedding do not.
        looks_at_LN: int64, the step of its epoch, from 0, in which each of these was sent: weights differ from batch to batch.
        look_epochs: the epochs of ``looks_LND``.
        looks: greatest L; None takes what the width allows (``most_looks``).
    """

    received: Received
    rows_N: Tensor
    sum_ND: Tensor
    last_ND: Tensor
    length_N: Tensor
    energy_NH: Tensor
    white_ND: Tensor
    square_N: Tensor
    white_count_N: Tensor
    count_N: Tensor
    white_DD: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    epochs: tuple[int, ...] = ()
    looks_LND: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))
    looks_at_LN: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    look_epochs: tuple[int, ...] = ()
    looks: int | None = None

    def __post_init__(self) -> None:
        greatest = int(self.rows_N.max()) if len(self.rows_N) else -1
        self._place = torch.full((greatest + 2,), -1, dtype=torch.int32)  # the last entry serves all greater row numbers
        self._place[self.rows_N] = torch.arange(len(self.rows_N), dtype=torch.int32)
        white_DD = self.white_DD if self.white_DD.numel() else None
        self._moments = SecondMoments(white_DD=white_DD) if self.energy_NH.shape[1] else None
        self._pending: list[_Step] = []
        self._step, self._last_at_N = 0, torch.zeros(len(self.rows_N), dtype=torch.int64)

    @classmethod
    def zero(cls, received: Received, rows_N: Tensor, width: int, *, looks: int | None = None, moments: bool = True) -> "RowSums":
        """Make sums of 0 for these rows. Without ``moments``, gradients' second moments are left out, which take most time."""
        rows, size = rows_N.sort().values, len(rows_N)
        has_moments = moments and received == "cut_gradient"
        return cls(
            received=received,
            rows_N=rows,
            sum_ND=torch.zeros(size, width),
            last_ND=torch.zeros(size, width),
            length_N=torch.zeros(size),
            energy_NH=torch.zeros(size, len(HALVES) if has_moments else 0),
            white_ND=torch.zeros(size, width if has_moments else 0),
            square_N=torch.zeros(size),
            white_count_N=torch.zeros(size, dtype=torch.int64),
            count_N=torch.zeros(size, dtype=torch.int64),
            looks_LND=torch.zeros(0, size, width),
            looks_at_LN=torch.zeros(0, size, dtype=torch.int64),
            looks=looks,
        )

    @property
    def nbytes(self) -> int:
        """Count the bytes of memory."""
        tensors = [
            self.looks_LND,
            self.rows_N,
            self.sum_ND,
            self.last_ND,
            self.length_N,
            self.energy_NH,
            self.count_N,
            self._place,
        ]
        tensors += [self.white_ND, self.square_N, self.white_count_N, self.white_DD, self.looks_at_LN, self._last_at_N]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def seen_rows(self) -> Tensor:
        """Return the chosen rows that were seen, in order."""
        self.settle()
        return self.rows_N[self.count_N > 0]

    def add(self, rows_B: Tensor, embedding_BD: Tensor, gradient_BD: Tensor) -> None:
        """Add a step. The caller must not change its tensors afterwards.

        Several steps are summed together, because for small tensors the number of calls takes the time, and between two steps of
        a training the processor's caches hold nothing that a call needs.
        """
        if self._pending and embedding_BD.shape != self._pending[-1].embedding_BD.shape:
            self.settle()
        self._pending.append(_Step(self._step, rows_B, embedding_BD, gradient_BD))
        self._step += 1
        if self._moments is not None:
            self._moments.find_directions()  # in the step after the sum: the wait for the peer hides one, not both
        if len(self._pending) >= steps_together(embedding_BD.numel()):
            self.settle()

    def settle(self) -> None:
        """Sum the steps that were added since the last call."""
        steps, self._pending = self._pending, []
        if not steps:
            return
        # Find the chosen rows of the batches, their places in the sums, and the steps that have any
        rows_R = np.concatenate([step.rows_B.numpy() for step in steps])
        place_R = self._place.numpy().take(np.minimum(rows_R, len(self._place) - 1))
        chosen_S = np.flatnonzero(place_R >= 0)
        if not len(chosen_S):
            return
        step_S, some_S = np.divmod(chosen_S, len(steps[0].rows_B))
        number_G, first_G = np.unique(step_S, return_index=True)
        steps, place_S = [steps[number] for number in number_G], torch.from_numpy(place_R[chosen_S].astype(np.int64))
        of_step = [torch.from_numpy(some) for some in np.split(some_S, first_G[1:])]
        if self.received == "cut_gradient":
            self._sum_gradients(steps, place_S, of_step)
        else:
            asked_SD = torch.cat([step.embedding_BD.index_select(0, some) for step, some in zip(steps, of_step, strict=True)])
            self.sum_ND.index_add_(0, place_S, asked_SD)
            self.last_ND[place_S] = asked_SD
            self._last_at_N[place_S] = torch.tensor([step.number for step in steps]).repeat_interleave(_lengths(of_step))
        self.count_N.index_add_(0, place_S, torch.ones_like(place_S))

    def _sum_gradients(self, steps: Sequence[_Step], place_S: Tensor, of_step: Sequence[Tensor]) -> None:
        """Sum the gradients of the rows at ``place_S``. ``of_step`` holds their places in each batch."""
        standing = standing_rows(*steps[0].gradient_BD.shape)
        step_S = torch.arange(len(steps)).repeat_interleave(_lengths(of_step))

        def rows_of(matrices_BD: Sequence[Tensor], standing: slice) -> StepRows:
            return StepRows.scaled(
                torch.stack([matrix_BD[standing] for matrix_BD in matrices_BD]),
                torch.cat([matrix_BD.index_select(0, some) for matrix_BD, some in zip(matrices_BD, of_step, strict=True)]),
                torch.stack([matrix_BD.mean(dim=0) for matrix_BD in matrices_BD]),
                step_S,
            )

        gradients_BD = [step.gradient_BD for step in steps]
        gradients = rows_of(gradients_BD, standing)
        embeddings = rows_of([step.embedding_BD for step in steps], standing)
        lengths = rows_of([torch.linalg.vector_norm(each_BD, dim=1, keepdim=True) for each_BD in gradients_BD], slice(None))
        self.sum_ND.index_add_(0, place_S, gradients.asked_SD)
        self.last_ND[place_S] = embeddings.asked_SD
        self.length_N.index_add_(0, place_S, lengths.asked_SD.squeeze(1))
        if self._moments is None:
            return
        energy_SH, white_SD = self._moments(gradients)
        self.energy_NH.index_add_(0, place_S, energy_SH)
        if white_SD is not None:
            square_S = torch.linalg.vector_norm(white_SD, dim=1).square_()
            self.white_ND.index_add_(0, place_S, white_SD)
            self.square_N.index_add_(0, place_S, square_S)
            self.white_count_N.index_add_(0, place_S, (square_S != 0).to(place_S.dtype))

    def epoch_ended(self, epoch: int) -> None:
        """End an epoch, to which all steps since the end of the last one belong."""
        self.settle()
        self.epochs = (*self.epochs, epoch)
        if self._moments is not None:
            self._moments.epoch_ended()
            if self._moments.white_DD is not None:
                self.white_DD = self._moments.white_DD
        if self.received == "cut_embedding":
            most = most_looks(self.last_ND.shape[1]) if self.looks is None else self.looks
            looks = spread_over([*self.look_epochs, epoch], most=most)
            place = [index for index, each in enumerate(self.look_epochs) if each in looks]
            self.looks_LND = torch.cat([self.looks_LND[place], self.last_ND[None].clone()])
            self.looks_at_LN = torch.cat([self.looks_at_LN[place], self._last_at_N[None].clone()])
            self.look_epochs = tuple(looks)
        self._step = 0

    def some(self, most: int) -> "RowSums":
        """Return the sums of at most ``most`` of the rows, spread evenly over them."""
        self.settle()
        place = chosen_rows(torch.arange(len(self.rows_N)), most=most)
        return RowSums(
            received=self.received,
            rows_N=self.rows_N[place],
            sum_ND=self.sum_ND[place],
            last_ND=self.last_ND[place],
            length_N=self.length_N[place],
            energy_NH=self.energy_NH[place],
            white_ND=self.white_ND[place],
            square_N=self.square_N[place],
            white_count_N=self.white_count_N[place],
            count_N=self.count_N[place],
            white_DD=self.white_DD,
            epochs=self.epochs,
            looks_LND=self.looks_LND[:, place] if self.looks_LND.numel() else self.looks_LND,
            looks_at_LN=self.looks_at_LN[:, place] if self.looks_at_LN.numel() else self.looks_at_LN,
            look_epochs=self.look_epochs,
            looks=self.looks,
        )

    def view(self, *, classes: int = 2) -> View:
        """Return the sums as a view of one step with each row once: mean gradients and last embeddings, or embeddings only.

        Raises DataError if no chosen row was seen.
        """
        self.settle()
        seen_N = self.count_N > 0
        if not bool(seen_N.any()):
            raise DataError("attack: none of the chosen rows was seen in the recorded training")
        # The mean inner product of a row's whitened gradients over pairs of epochs
        paired_N = self.white_count_N.double()
        pairs_N = self.white_ND.double().square().sum(dim=1) - self.square_N
        pairs_N = (pairs_N / (paired_N * (paired_N - 1)).clamp(min=1)).nan_to_num(
            nan=torch.inf, posinf=torch.inf, neginf=torch.inf
        )
        pairs_N = torch.where(paired_N > 1, pairs_N, torch.nan)
        count_N1 = self.count_N[seen_N, None]
        mean_ND, last_ND = self.sum_ND[seen_N] / count_N1, self.last_ND[seen_N]
        step = StepView(
            epoch=self.epochs[-1] if self.epochs else 0,
            rows_B=self.rows_N[seen_N],
            own_B=torch.ones(int(seen_N.sum()), dtype=torch.bool),
            received_BD=mean_ND if self.received == "cut_gradient" else last_ND,
            sent_BD=last_ND if self.received == "cut_gradient" else None,
            length_B=self.length_N[seen_N] / self.count_N[seen_N] if self.received == "cut_gradient" else None,
            energy_BH=self.energy_NH[seen_N] / count_N1 if self._moments is not None else None,
            pairs_B=pairs_N[seen_N] if self._moments is not None else None,
            mean_BD=mean_ND if self.received == "cut_embedding" else None,
            looks_BE=self.looks_LND[:, seen_N].permute(1, 0, 2).flatten(1) if self.received == "cut_embedding" else None,
            looks_at_BL=self.looks_at_LN[:, seen_N].T if self.received == "cut_embedding" else None,
            sightings_B=self.count_N[seen_N],
        )
        return View(received=self.received, steps=(step,), classes=classes)


def _lengths(lists: Sequence[Tensor]) -> Tensor:
    return torch.tensor([len(each) for each in lists])


def steps_together(numbers: int) -> int:
    """Return how many steps are summed together if each holds ``numbers`` numbers."""
    return min(PENDING_STEPS, PENDING_NUMBERS // max(1, numbers))


def chosen_rows(train_N: Tensor, *, most: int) -> Tensor:
    """Choose at most ``most`` of the training rows, spread evenly over them."""
    if len(train_N) <= most:
        return train_N.cpu()
    place = torch.linspace(0, len(train_N) - 1, most, dtype=torch.float64).round().long()
    return train_N.cpu().sort().values[place]


LOOK_COLUMNS = 256


def most_looks(width: int) -> int:
    """Return the number of epochs whose embeddings are kept one by one: two for a wide cut, up to 64 for a narrow one."""
    return max(2, min(64, LOOK_COLUMNS // width))


def spread_over(epochs: Sequence[int], *, most: int) -> list[int]:
    """Choose at most ``most`` of these epochs: the first, the last, and others spread as evenly as possible between them."""
    remaining = sorted(epochs)
    while len(remaining) > most:
        gaps = {epoch: after - before for before, epoch, after in zip(remaining, remaining[1:], remaining[2:], strict=False)}
        remaining.remove(min(gaps, key=gaps.__getitem__))  # the epoch whose absence leaves the smallest gap
    return remaining


def epochs_in_words(epochs: Sequence[int]) -> str:
    """Write epochs as runs, counted from 1: "1 to 7 and 9"."""
    runs: list[list[int]] = []
    for epoch in epochs:
        if runs and epoch == runs[-1][-1] + 1:
            runs[-1].append(epoch)
        else:
            runs.append([epoch])
    parts = [str(run[0] + 1) if len(run) == 1 else f"{run[0] + 1} to {run[-1] + 1}" for run in runs]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
