"""Prediction in batches, per role. Shapes: N aligned positions, C classes."""

from collections.abc import Callable, Sequence

import polars as pl
import torch
from torch import Tensor, nn

from tallystick.cut.forward import Source, receive_logits, send_embeddings
from tallystick.data.target import LabelCoder
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel


def predict_feature_party(bottom: nn.Module, source: Source, batches: Sequence[Tensor], channel: Channel) -> None:
    """Embed this party's rows at the aligned positions and stream the embeddings.

    Threat model: an honest-but-curious label party; no formal guarantee protects the cut embeddings that it sees.
    """
    send_embeddings(bottom, source, batches, channel)


def predict_label_party(
    model: LabelModel,
    own: Source | None,
    coder: LabelCoder,
    batches: Sequence[Tensor],
    channels: Sequence[Channel],
    widths: Sequence[int],
    *,
    calibrate: Callable[[Tensor], Tensor] = torch.clone,
) -> pl.DataFrame:
    """Score the aligned rows: a ``score`` column (probability of the positive class, or the value), or one per class.

    The feature parties learn which of their rows are scored, not the scores; ``calibrate`` maps logits to those of real rows.
    """
    logits = calibrate(receive_logits(model, own, batches, channels, widths))
    if coder.type == "multiclass":
        shares_NC = torch.softmax(logits, dim=1).numpy()
        return pl.DataFrame({f"score_{name}": shares_NC[:, c] for c, name in enumerate(coder.classes)})
    values = torch.sigmoid(logits) if coder.type == "binary" else logits * coder.deviation + coder.mean
    return pl.DataFrame({"score": values.numpy()})
