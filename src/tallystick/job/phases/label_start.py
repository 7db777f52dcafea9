"""The label party's model as it was before training, as far as anybody who has the contract can make it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from tallystick.attacks.view import Start
from tallystick.config.contract import Contract
from tallystick.dataset.dataset import Dataset
from tallystick.job.job import Job
from tallystick.models.build import top_at_start


@dataclass(frozen=True, kw_only=True)
class KnownStart:
    """What, beside the contract, makes the top model's starting weights: few numbers, which an attacker tries in turn.

    Args:
        widths: of the feature parties' cuts, in the contract's order.
        own_width: of the label party's own part; 0 if it has no columns.
    """

    widths: tuple[int, ...]
    own_width: int

    @classmethod
    def of(cls, job: Job, dataset: Dataset, widths: Sequence[int]) -> "KnownStart | None":
        """None where they follow from something else: a secret, modules of a party's own, merged links, several branches."""
        model = job.contract.model
        own_modules = job.top is not None or job.bottom is not None or model.top is not None or job.name in model.bottoms
        if job.contract.training.starts == "secret" or own_modules or dataset.candidates or job.contract.unaligned.used:
            return None
        own = dataset.encoder is not None and dataset.encoder.feature_shape is not None
        return cls(widths=tuple(widths), own_width=model.hidden[model.cut_after - 1] if own else 0)

    @classmethod
    def read(cls, facts: dict[str, Any] | None) -> "KnownStart | None":
        """From what ``facts`` gave; raises KeyError, TypeError or ValueError if it is something else."""
        if facts is None:
            return None
        return cls(widths=tuple(int(width) for width in facts["widths"]), own_width=int(facts["own_width"]))

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"widths": list(self.widths), "own_width": self.own_width}

    def seen_by(self, number: int, contract: Contract) -> Start:
        """The model as a feature party simulates it: its own cut embeddings in, 0 for all that others send."""
        outputs = contract.target.classes if contract.target.type == "multiclass" else 1
        made = {"own_width": self.own_width, "outputs": outputs, "seed": contract.seed}
        top = top_at_start(contract.model, contract.label_party, self.widths, **made)
        before, after = sum(self.widths[:number]), sum(self.widths[number + 1 :]) + self.own_width

        def start(cut_BD: Tensor) -> Tensor:
            logits: Tensor = top(pad(cut_BD, (before, after)))
            return logits

        return start
