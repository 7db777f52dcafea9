"""Apply the label party's defences to a training step. Shapes: B batch, D cut width of one peer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor

from tallystick.defenses.chain import Defenses
from tallystick.defenses.noise import NoiseStream


@dataclass(frozen=True, kw_only=True)
class CutDefense:
    """The penalties and gradient defences of a run, applied to the cuts of all feature parties together.

    Feature parties that combine what they receive gain nothing. The noise of a step comes from the secret, the step's number and
    the hidden values: a resumed run sends the same bits, no state has to be kept, and no two gradients share noise.

    Threat model: honest-but-curious feature parties, which may collude. Guarantee: that of ``defenses``, if any. Not protected:
    the cut embeddings, except by a penalty.

    Args:
        defenses: the contract's defences.
        secret: at least 16 random bytes that never leave this party; with them the noise could be removed.
        steps_per_epoch: for penalties with a warm-up.
        steps_before: steps of the run before the training to which the warm-up refers.
    """

    defenses: Defenses
    secret: bytes = field(repr=False)
    steps_per_epoch: int
    steps_before: int = 0

    @classmethod
    def of(cls, defenses: Defenses, *, secret: bytes, steps_per_epoch: int, steps_before: int = 0) -> "CutDefense | None":
        """Build the defences, or return None if they do nothing in a step."""
        if not (defenses.penalties or defenses.gradients):
            return None
        return cls(defenses=defenses, secret=secret, steps_per_epoch=steps_per_epoch, steps_before=steps_before)

    def __call__(self, cuts_BD: Sequence[Tensor], grads_BD: Sequence[Tensor], targets_B: Tensor, *, step: int) -> list[Tensor]:
        """Return the cut gradients to send, one per feature party: those of the loss and of the penalties, defended together."""
        leaf_BD = _joined(cuts_BD).detach().requires_grad_()
        penalty = self.defenses.penalty(leaf_BD, targets_B, epoch=(step - 1 - self.steps_before) / self.steps_per_epoch)
        penalty_BD: Tensor | float = 0.0
        if penalty is not None and penalty.requires_grad:
            penalty_BD = torch.autograd.grad(penalty, leaf_BD)[0]
        grad_BD = _joined(grads_BD) + penalty_BD
        if self.defenses.gradients:
            digest = blake2b()
            for tensor in (grad_BD, targets_B):
                digest.update(tensor.detach().cpu().numpy().tobytes())
            noise = NoiseStream(self.secret, step=step, hides=digest.digest())
            grad_BD = self.defenses.defend_gradients(grad_BD, targets_B, generator=noise)
        return list(torch.split(grad_BD, [part_BD.shape[1] for part_BD in grads_BD], dim=1))


def _joined(parts_BD: Sequence[Tensor]) -> Tensor:
    return parts_BD[0] if len(parts_BD) == 1 else torch.cat(list(parts_BD), dim=1)
