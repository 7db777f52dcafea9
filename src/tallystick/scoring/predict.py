"""Predict in batches, for each role, with a trained party and a dataset of rows. Shapes: N linked positions, C classes."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.cut.forward import Cuts, FeatureSource, crossing, logits_over, send_embeddings, whole_tiles
from tallystick.dataset.dataset import Dataset
from tallystick.errors import ProtocolError
from tallystick.metrics.survival import MOST_LOG
from tallystick.network.channel import Channel, Progress, no_progress
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message
from tallystick.run_folder.local_scores import final_logits, logits_alone
from tallystick.run_folder.trained import TrainedFeatureParty, TrainedLabelParty
from tallystick.tables.features import Features
from tallystick.tables.target import LabelCoder

SCORES_A_MESSAGE = 1 << 20


class UnionScores(Message, frozen=True):
    """Sent to the feature party, on a union: a score for every position, so that the label party does not learn whose
    is wanted.
    """

    limit = MAX_MESSAGE_BYTES
    scores: Array


def predict_feature_party(
    trained: TrainedFeatureParty,
    dataset: Dataset,
    batches: Sequence[Tensor],
    channel: Channel,
    *,
    rows: int,
    progress: Progress = no_progress,
) -> None:
    """Embed this party's rows at the linked positions and stream the embeddings.

    Threat model: an honest-but-curious label party; no formal guarantee protects the cut embeddings that it sees.
    """
    send_embeddings(trained.bottom, _counted(dataset.features_at, rows, progress), batches, channel)


def cuts_of(channels: Sequence[Channel], widths: Sequence[int], dataset: Dataset) -> list[Cuts]:
    """Return the Cuts of each feature party, received on demand."""
    numbered = enumerate(zip(channels, widths, strict=True))
    return [crossing(channel, width, peer, cut_rows=dataset.cut_rows) for peer, (channel, width) in numbered]


def received(cuts: Sequence[Cuts], batches: Sequence[Tensor], *, progress: Progress = no_progress) -> list[Cuts]:
    """Receive the embeddings of all batches, and return Cuts that need no more messages."""
    parts = []
    for number, index_B in enumerate(batches):
        parts.append([each(number, index_B) for each in cuts])
        progress("receiving embeddings", number + 1, len(batches))

    def kept(peer: int) -> Cuts:
        return lambda number, index_B: parts[number][peer]  # noqa: ARG005

    return [kept(peer) for peer in range(len(cuts))]


def predict_label_party(
    trained: TrainedLabelParty,
    dataset: Dataset,
    batches: Sequence[Tensor],
    cuts: Sequence[Cuts],
    *,
    rows: int,
    progress: Progress = no_progress,
) -> pl.DataFrame:
    """Score the linked rows: a ``score`` column (probability of the positive class, or the value), or one per class, label or
    level.

    They are the first ``rows`` positions of the batches (``tiled_batches``).

    The feature parties learn which of their rows are scored, not the scores.
    """
    logits = logits_over(trained.model, _counted(dataset.features_at, rows, progress), batches, cuts)
    index_N = torch.cat(list(batches)) if batches else torch.empty(0, dtype=torch.int64)
    return scores_of(trained.coder, final_logits(trained, dataset, logits, index_N)[:rows])


def _counted(features_at: FeatureSource, rows: int, progress: Progress) -> FeatureSource:
    """Return the same source, which also reports how many rows it has returned."""
    rows_read = 0

    def counted_at(index_B: Tensor) -> Features:
        nonlocal rows_read
        rows_read += len(index_B)
        progress("scoring", min(rows_read, rows), rows)  # the last batch is padded
        return features_at(index_B)

    return counted_at


def predict_alone(trained: TrainedLabelParty, dataset: Dataset) -> pl.DataFrame:
    """Score the label party's rows that no partner has, by its own columns, calibrated as the joint scores are.

    Nothing crosses, and no party learns which rows these are.
    """
    assert trained.alone is not None, "the contract's method scores such rows"
    return scores_of(trained.coder, trained.alone(logits_alone(trained.model, dataset, dataset.unaligned.test_N)))


def scores_of(coder: LabelCoder, logits: Tensor) -> pl.DataFrame:
    """Turn outputs into scores: a ``score`` column, or one per class, label or level."""
    return pl.DataFrame(score_columns(coder, logits))


def score_columns(coder: LabelCoder, logits: Tensor) -> dict[str, NDArray[np.float32]]:
    """Return the same scores, as arrays by column."""
    rows = len(logits)
    whole = logits[whole_tiles(torch.arange(rows))]
    if coder.type == "multiclass":
        shares_NC = torch.softmax(whole, dim=1)[:rows].numpy()
        return {name: shares_NC[:, c] for c, name in enumerate(coder.score_names)}
    if coder.type == "multilabel":
        chances_NK = torch.sigmoid(whole)[:rows].numpy()
        return {name: chances_NK[:, place] for place, name in enumerate(coder.score_names)}
    if coder.type == "quantile":
        sorted_NL = whole.reshape(len(whole), len(coder.levels)).sort(dim=1).values
        values_NL = (sorted_NL * coder.deviation + coder.mean)[:rows].numpy()
        return {name: values_NL[:, place] for place, name in enumerate(coder.score_names)}
    if coder.type == "binary":
        return {"score": torch.sigmoid(whole)[:rows].numpy()}
    if coder.type == "count":
        return {"score": (coder.mean * torch.exp(whole.clamp(max=coder.most_output)))[:rows].numpy()}
    if coder.type == "survival":
        log_times = (coder.deviation * whole).clamp(min=-MOST_LOG, max=MOST_LOG)
        return {"score": (coder.mean * torch.exp(log_times))[:rows].numpy()}
    values = whole * coder.deviation + coder.mean
    return {"score": values[:rows].numpy()}


def send_scores(scores: pl.DataFrame, channel: Channel) -> None:
    """Send a score for every position back."""
    values_N = scores.get_column("score").to_numpy()
    for start in range(0, len(values_N), SCORES_A_MESSAGE):
        channel.send(UnionScores(scores=Array.of(values_N[start : start + SCORES_A_MESSAGE])))


def receive_scores(channel: Channel, rows: int) -> pl.DataFrame:
    """Receive the scores of all positions."""
    parts = [receive_scores_message(channel, min(SCORES_A_MESSAGE, rows - start)) for start in range(0, rows, SCORES_A_MESSAGE)]
    return pl.DataFrame({"score": torch.cat(parts).numpy()})


def receive_scores_message(channel: Channel, rows: int) -> Tensor:
    """Receive the next scores. Raises ProtocolError for another number of scores, another type, or values that are no
    probabilities.
    """
    try:
        scores_B = channel.receive(UnionScores).scores.tensor(rows, dtype=torch.float32)
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{channel.peer}: UnionScores: {error}") from None
    wrong_B = ~((scores_B >= 0) & (scores_B <= 1))  # NaN is neither
    if bool(wrong_B.any()):
        raise ProtocolError(
            channel.peer, f"{channel.peer}: UnionScores: {int(wrong_B.sum())} of {rows} scores are not numbers from 0 to 1"
        )
    return scores_B
