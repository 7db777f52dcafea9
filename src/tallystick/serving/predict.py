"""Prediction in batches, per role. Shapes: N aligned positions, C classes."""

from collections.abc import Sequence

import polars as pl
import torch
from torch import Tensor, nn

from tallystick.cut.forward import receive_logits, send_embeddings
from tallystick.data.encoder import Encoder
from tallystick.data.target import LabelCoder
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel


def predict_feature_party(bottom: nn.Module, encoder: Encoder, frame: pl.DataFrame, channel: Channel, *, batch_size: int) -> None:
    """Embed this party's aligned rows with the saved encoder and stream the embeddings.

    Threat model: an honest-but-curious label party; no formal guarantee protects the cut embeddings that it sees.
    """
    features = encoder.encode(frame)
    send_embeddings(bottom, features.rows, _batches(frame.height, batch_size), channel)


def predict_label_party(
    model: LabelModel,
    encoder: Encoder | None,
    coder: LabelCoder,
    frame: pl.DataFrame,
    channels: Sequence[Channel],
    widths: Sequence[int],
    *,
    batch_size: int,
) -> pl.DataFrame:
    """Score the aligned rows: a ``score`` column (probability of the positive class, or the value), or one per class.

    The feature parties learn which of their rows are scored, not the scores.
    """
    own = encoder.encode(frame).rows if encoder is not None else None
    logits = receive_logits(model, own, _batches(frame.height, batch_size), channels, widths)
    if coder.type == "multiclass":
        shares_NC = torch.softmax(logits, dim=1).numpy()
        return pl.DataFrame({f"score_{name}": shares_NC[:, c] for c, name in enumerate(coder.classes)})
    values = torch.sigmoid(logits) if coder.type == "binary" else logits * coder.deviation + coder.mean
    return pl.DataFrame({"score": values.numpy()})


def _batches(rows: int, batch_size: int) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(rows), batch_size)
