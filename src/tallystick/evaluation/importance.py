"""Measure permutation importance across the cut: how much the metric falls if one column is shuffled among validation rows.

Breiman (2001), "Random Forests", section 10, applied to the split network's own weights. The label party shuffles its own
columns, while the feature parties' embeddings of the same rows stay the same. A feature party's column needs forward passes at
that party: it shuffles the column and sends the embeddings of all rows again, once per repeat. The label party scores them and
learns the fall, by the column's number.

Threat model: honest-but-curious parties; no formal guarantee. **Measuring a feature party's columns discloses them.** The
decrease of a row's embedding, averaged over the repeats, is what that column added to it (attacks/feature_inference/contrast.py).
A contract must ask for it by name, and not together with a defence of columns; the audit of columns attacks what crossed. A fall
is computed from validation labels: if it is sent, it is an exact figure about them.

Shapes: V validation rows, D cut width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from tallystick.cut.cut_messages import receive_embedding
from tallystick.cut.forward import SCORED_AT_A_TIME, send_embeddings, unwatched
from tallystick.errors import ProtocolError
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel, Progress, no_progress
from tallystick.network.messages import Message
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import Features

MAX_COLUMNS = 1000  # further columns are not measured, because each takes a pass over all rows per repeat

ShuffleWatch = Callable[[int, float, Tensor, Tensor], None]
"""Called with a column's number, its share of the repeats, rows' places, and their embeddings with the column shuffled."""

Scorer = Callable[[Tensor], float]
"""A function from logits of the V rows to a metric whose sign makes more better."""


class ShuffledColumns(Message, frozen=True):
    """Sent by the feature party: how many of its columns it will shuffle."""

    columns: int


class Fall(TypedDict):
    """How much the metric falls without a column: mean and standard deviation over the repeats. Below 0 it rises."""

    mean: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class ColumnPlace:
    """Place of a column in the encoded features. A number and its missing-indicator belong together."""

    name: str
    numeric: tuple[int, ...] = ()
    categorical: tuple[int, ...] = ()


def column_places(encoder: Encoder) -> list[ColumnPlace]:
    """Return the place of each of a party's columns, numeric ones and vectors first, MAX_COLUMNS at most."""
    of_numeric: dict[str, tuple[int, ...]] = {}
    indicator = len(encoder.numeric)
    for index, column in enumerate(encoder.numeric):
        own = (index, indicator) if column.indicator else (index,)
        name = column.vector or column.name
        of_numeric[name] = of_numeric.get(name, ()) + own  # all numbers of a vector belong together
        indicator += column.indicator
    places = [ColumnPlace(name=name, numeric=own) for name, own in of_numeric.items()]
    places += [ColumnPlace(name=column.name, categorical=(index,)) for index, column in enumerate(encoder.categorical)]
    start = len(encoder.categorical)
    for sequence in encoder.sequences:
        end = start + sequence.shape.columns
        places.append(ColumnPlace(name=sequence.name, categorical=tuple(range(start, end))))
        start = end
    return places[:MAX_COLUMNS]


def shuffled(features: Features, place: ColumnPlace, order_V: Tensor) -> Features:
    """Return the same rows with one column's cells in another order."""
    numeric_VF, categorical_VG = features.numeric_NF.clone(), features.categorical_NG.clone()
    for values, columns in ((numeric_VF, place.numeric), (categorical_VG, place.categorical)):
        for column in columns:
            values[:, column] = values[order_V, column]
    return replace(features, numeric_NF=numeric_VF, categorical_NG=categorical_VG)


def sampled_rows(validation_N: Tensor, most: int, *, seed: int) -> Tensor:
    """Return the validation positions for measuring importance: all, or ``most`` drawn by the seed, the same at every party."""
    if len(validation_N) <= most:
        return validation_N
    picks = torch.randperm(len(validation_N), generator=torch.Generator().manual_seed(seed))[:most]
    return validation_N[picks.sort().values.to(validation_N.device)]


@dataclass(frozen=True, kw_only=True)
class Shuffling:
    """Settings of shuffling: how often each column is shuffled, how many rows cross at a time, and who is told of progress."""

    repeats: int
    batch_size: int
    progress: Progress = no_progress


def send_shuffled(
    bottom: nn.Module,
    features: Features,
    places: Sequence[ColumnPlace],
    channel: Channel,
    how: Shuffling,
    *,
    generator: torch.Generator,
    watch: ShuffleWatch | None = None,
) -> None:
    """Send the number of columns, as the feature party, then the embeddings of all rows for each column and repeat.

    ``generator`` must be this party's own. Keeping it secret protects nothing: see above.
    """
    channel.send(ShuffledColumns(columns=len(places)))
    device = features.numeric_NF.device
    batches = torch.split(torch.arange(len(features), device=device), how.batch_size)
    for done, place in enumerate(places):
        for _ in range(how.repeats):
            order_V = torch.randperm(len(features), generator=generator).to(device)
            observer = partial(watch, done, 1 / how.repeats) if watch is not None else unwatched
            send_embeddings(bottom, shuffled(features, place, order_V).rows, batches, channel, watch=observer)
        how.progress("column importance", done + 1, len(places))


def receive_falls(
    model: LabelModel,
    own: Features,
    cuts_VD: Sequence[Tensor],
    number: int,
    channel: Channel,
    scorer: Scorer,
    how: Shuffling,
) -> list[Fall]:
    """Score the embeddings of feature party ``number`` with each of its columns shuffled, as the label party. Return a Fall each.

    Raises ProtocolError if the number of columns is out of range, or if embeddings do not fit.
    """
    columns = channel.receive(ShuffledColumns).columns
    if not 0 <= columns <= MAX_COLUMNS:
        raise ProtocolError(
            channel.peer, f"{channel.peer}: ShuffledColumns names {columns} columns; 0 to {MAX_COLUMNS} are allowed"
        )
    before = scorer(complete_logits(model, own, cuts_VD))
    rows, width = cuts_VD[number].shape
    falls = []
    for done in range(columns):
        after = []
        for _ in range(how.repeats):
            changed = list(cuts_VD)
            changed[number] = receive_rows(channel, rows, width, batch_size=how.batch_size, device=cuts_VD[number].device)
            after.append(scorer(complete_logits(model, own, changed)))
        falls.append(_fall(before, after))
        how.progress(f"column importance of {channel.peer}", done + 1, columns)
    return falls


def own_falls(
    model: LabelModel,
    own: Features,
    places: Sequence[ColumnPlace],
    cuts_VD: Sequence[Tensor],
    scorer: Scorer,
    how: Shuffling,
    *,
    generator: torch.Generator,
) -> list[Fall]:
    """Shuffle the label party's own columns one by one, and return a Fall per place. Nothing is sent."""
    before = scorer(complete_logits(model, own, cuts_VD))
    falls = []
    for done, place in enumerate(places):
        orders = [torch.randperm(len(own), generator=generator).to(own.numeric_NF.device) for _ in range(how.repeats)]
        after = [scorer(complete_logits(model, shuffled(own, place, order_V), cuts_VD)) for order_V in orders]
        falls.append(_fall(before, after))
        how.progress("column importance", done + 1, len(places))
    return falls


@torch.no_grad()
def complete_logits(model: LabelModel, own: Features, cuts_VD: Sequence[Tensor]) -> Tensor:
    """Compute the logits of the V rows from embeddings that are already here."""
    model.eval()
    parts = [
        model(own.crossing(cuts_VD, index_B), own.rows(index_B))
        for index_B in torch.split(torch.arange(len(own), device=cuts_VD[0].device), SCORED_AT_A_TIME)
    ]
    model.train()
    return torch.cat(parts)


def receive_rows(channel: Channel, rows: int, width: int, *, batch_size: int, device: torch.device) -> Tensor:
    """Receive the embeddings of ``rows`` rows in batches. Raises ProtocolError if they do not fit."""
    sizes = [min(batch_size, rows - start) for start in range(0, rows, batch_size)]
    return torch.cat([receive_embedding(channel, number, size, width).to(device) for number, size in enumerate(sizes)])


def _fall(before: float, after: Sequence[float]) -> Fall:
    falls = before - np.asarray(after)
    return Fall(mean=float(falls.mean()), deviation=float(falls.std(ddof=1)) if len(falls) > 1 else 0.0)
