"""Keep numbers that are not finite out of checkpoints, whichever party caused them. Shapes: B batch, D cut width."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from tallystick.cut.cut_messages import all_finite
from tallystick.errors import Diverged
from tallystick.training.updates import Updates


def refuse_lost_weights(module: nn.Module, updates: Updates | None, *, step: int) -> None:
    """Raise Diverged, before a step is committed, unless all weights and their optimizer state are finite.

    It names the largest numbers from peers since the last committed step. A module's buffers may intentionally hold infinities,
    such as those of a mask, but no NaN.
    """
    for name, weight in module.named_parameters():
        tensors = {name: weight.detach()}
        if updates is not None:
            tensors |= {f"the optimizer's {key} of {name}": value for key, value in updates.kept_of(weight).items()}
        for what, values in tensors.items():
            if isinstance(values, Tensor) and not all_finite(values):
                raise _lost(what, "NaN or infinite", step, updates)
    for name, buffer in module.named_buffers():
        if bool(buffer.isnan().any()):
            raise _lost(name, "NaN", step, updates)
    if updates is not None:
        updates.received.clear()


def _lost(what: str, how: str, step: int, updates: Updates | None) -> Diverged:
    largest = str(updates.received) if updates is not None else ""
    received = f", the largest number since the last step that was kept {largest}" if largest else ""
    return Diverged(
        f"training diverged by step {step}: {what} is {how}, though all that was received is finite{received}; the step was "
        "dropped; lower training.learning_rate, or look for extreme values among the columns"
    )


def refuse_lost_loss(loss: Tensor, *, step: int, received: Sequence[tuple[str, Tensor]]) -> None:
    """Raise Diverged, before gradients are sent, for a loss that is not finite. It names the largest numbers from peers."""
    if math.isfinite(loss.item()):
        return
    largest = [f"{values_BD.abs().max().item():.3g} from {peer}" for peer, values_BD in received if len(values_BD)]
    largest_text = f" (the largest number received for it: {', '.join(largest)})" if largest else ""
    raise Diverged(
        f"training diverged by step {step}: the loss is {loss.item()}{largest_text}; lower training.learning_rate, or look for "
        "extreme values among the columns"
    )
