"""What leaves the label party of an evaluation: one AUC under differential privacy, spent in the ledger first."""

import numpy as np
import torch
from torch import Tensor

from tallystick.config.contract import PrivateRelease
from tallystick.config.party import Privacy
from tallystick.evaluation.messages import Finished
from tallystick.evaluation.private.release import release
from tallystick.evaluation.private.result import PrivateAuc
from tallystick.privacy.ledger import Cap, Ledger
from tallystick.report import result as shown


def release_auc(wanted: PrivateRelease, budget: Privacy, party: str, target_N: Tensor, logits_N: Tensor) -> PrivateAuc:
    """Spend and release the joint model's AUC on the test rows; raises BudgetExceeded, and releases nothing, over the cap."""
    ledger = Ledger(budget.ledger, party=party)
    if budget.cap is not None and ledger.cap(budget.dataset) != Cap(epsilon=budget.cap):
        ledger.set_cap(budget.dataset, Cap(epsilon=budget.cap))
    scores_N = torch.sigmoid(logits_N.double().cpu()).numpy()
    return release(
        target_N.cpu().numpy().astype(np.int64),
        scores_N,
        epsilon=wanted.epsilon,
        unit=wanted.unit,
        ledger=ledger,
        dataset=budget.dataset,
        what="AUC of the joint model",
    )


def finished(rows: int, released: PrivateAuc | None) -> Finished:
    """The last message of a run, with what was released."""
    if released is None:
        return Finished(rows=rows)
    return Finished(
        rows=rows,
        auc=released.auc,
        low=released.interval[0],
        high=released.interval[1],
        epsilon=released.epsilon,
        mechanism=released.mechanism,
        protects=released.protects,
        reveals=released.reveals,
    )


def privacy_section(message: Finished, party: str, budget: Privacy | None) -> shown.Privacy | None:
    """The report's section on what was released; ``budget`` is the label party's own."""
    if message.epsilon is None:
        return None
    what = f"AUC {message.auc:.4f}, 95 % interval {message.low:.4f} to {message.high:.4f} for the exact one"
    released = shown.Release(
        what=what,
        mechanism=message.mechanism,
        protects=message.protects,
        epsilon=message.epsilon,
        party=party,
        note=f"Besides it this reveals {message.reveals}.",
    )
    if budget is None:
        return shown.Privacy(
            releases=[released], spent_epsilon=message.epsilon, summary="What the label party released in this run."
        )
    spent = Ledger(budget.ledger, party=party).total(budget.dataset)
    return shown.Privacy(releases=[released], spent_epsilon=spent, cap_epsilon=budget.cap, summary=f"Data set: {budget.dataset}.")
