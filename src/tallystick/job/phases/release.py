"""Release results of the label party under differential privacy: training labels, and one AUC. The ledger is charged first."""

import hashlib
import json
import math

import numpy as np

from tallystick import results
from tallystick.config.contract import Contract
from tallystick.config.party import EXACT_USES, ExactUse, PartyFile, PrivacyConfig
from tallystick.config.sections import PrivateRelease
from tallystick.disclosure.evaluation import shared_with_feature_parties
from tallystick.evaluation.evaluation_messages import Finished
from tallystick.evaluation.private.release import release_private_auc
from tallystick.evaluation.private.result import NothingReleased, PrivateAuc
from tallystick.lazy_torch import Tensor, torch
from tallystick.privacy.events import Event, PureDP
from tallystick.privacy.ledger import USUAL_DELTA, Ledger
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import LABELS, charged, refuse_exact

RELEASE_NOTE = "release"
SHARED_NOTE = "shared"


def release_event(private_release: PrivateRelease) -> Event:
    """Return the privacy cost of a release by any mechanism."""
    return PureDP(epsilon=private_release.epsilon, unit=private_release.unit)


def release_auc(
    private_release: PrivateRelease, party: PartyFile, folder: RunFolder, target_N: Tensor, logits_N: Tensor
) -> PrivateAuc:
    """Charge the ledger, and release the joint model's AUC on the test rows.

    Raises BudgetExceeded beyond the cap, NothingReleased (after the charge) if the noise leaves no AUC. All parties see how a
    run ends, so a missing class is not an error: only the noisy counts may show it.
    """
    scores_N = torch.sigmoid(logits_N.double().cpu()).numpy()
    with charged(party, folder, LABELS) as ledger:
        return release_private_auc(
            target_N.cpu().numpy().astype(np.int64),
            scores_N,
            epsilon=private_release.epsilon,
            unit=private_release.unit,
            ledger=ledger,
            dataset=party.privacy.dataset,
            what="AUC of the joint model",
            check_classes=False,
        )


def enter_shared(contract: Contract, party: PartyFile, folder: RunFolder, figures: object, *, run_id: str) -> None:
    """Record exact figures as not private before they are sent: once per run, unless a later evaluation sends others."""
    digest = hashlib.blake2b(json.dumps(figures).encode(), digest_size=16).hexdigest()
    if folder.noted(SHARED_NOTE).get("digest") == digest:
        return
    what = f"evaluation of {contract.name}, run {run_id}: {shared_with_feature_parties(contract)}, sent to the feature parties"
    refuse_exact(party, exact_figures(contract), what=what)
    with charged(party, folder, LABELS) as ledger:
        ledger.enter_not_private(party.privacy.dataset, what=what)
    folder.note(SHARED_NOTE, {"digest": digest}, private=True)  # if it is killed before this, a resumed run records it again


def exact_figures(contract: Contract) -> list[ExactUse]:
    """Name the exact figures of labels that an evaluation sends."""
    uses: list[ExactUse] = ["share_metrics"] if contract.evaluation.share_metrics else []
    return uses + (["importance"] if contract.evaluation.importance.feature_columns == "both" else [])


def shows_weights(contract: Contract, party: PartyFile) -> bool:
    """Tell whether cut gradients show the rows' weights, which no defence hides, while a defence replaces labels.

    The length of a gradient depends on its row's weight. Weights that follow from labels, such as those that balance classes,
    reveal the labels at any epsilon.
    """
    return party.weight is not None and contract.sends_gradients and contract.hides_labels


def finished(rows: int, released: PrivateAuc | NothingReleased) -> Finished:
    """Build the last message of a run, with the released figures.

    If there is an epsilon but no AUC, the epsilon was spent for nothing.
    """
    if isinstance(released, NothingReleased):
        spent = released.mechanism
        return Finished(rows=rows, epsilon=spent.epsilon, mechanism=spent.name, protects=spent.protects, reveals=str(released))
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


def privacy_section(
    contract: Contract,
    message: Finished,
    budget: PrivacyConfig | None,
    *,
    trainings: int,
    shared: bool = False,
    alone: bool = False,
    weighted: bool = False,
) -> results.PrivacySummary | None:
    """Build the report's section on releases. ``budget`` is known to the label party only, whose ledger has the total.

    The defences' guarantees are in the contract, so every party can list them. ``trainings`` is the number of trainings that
    used labels; each is a release of its own. ``shared`` says whether exact figures were sent, and ``weighted`` whether row
    weights changed gradients.
    """
    party = contract.label_party
    used = "the values that were chosen, which the contract shows" if alone else "what training sends"
    sent = "the values that were chosen" if alone else "all that training sends"
    released = trainings * [
        results.Release(
            what=f"labels of the training and validation rows, in {sent}",
            mechanism=entry.defense.method,
            protects="labels",
            party=party,
            **{key: value for key, value in entry.model_dump().items() if key in ("epsilon", "delta")},
        )
        for entry in contract.defense
        if entry.covers_labels
    ]
    if message.epsilon is not None:
        what, note = f"no AUC: {message.reveals}", "Nothing else was released; the epsilon is spent all the same."
        if message.auc is not None:
            what = f"AUC {message.auc:.4f}, 95 % interval {message.low:.4f} to {message.high:.4f} for the exact one"
            note = f"Besides it this reveals {message.reveals}."
        released.append(
            results.Release(
                what=what, mechanism=message.mechanism, protects=message.protects, epsilon=message.epsilon, party=party, note=note
            )
        )
    exact = []
    if trainings and not contract.hides_labels and contract.sends_gradients:  # everything sent that depends on exact labels
        exact = [f"{used}, which comes from {exact_labels(contract)} of the training and validation rows"]
    elif trainings and weighted:
        exact = [f"{EXACT_USES['weights']}: no ε holds for a label that its row's weight reveals"]
    not_private = [f"{what}; {trainings} times, once in each trial" if trainings > 1 else what for what in exact]
    if shared:
        not_private.append(f"what the evaluation sent to the feature parties: {shared_with_feature_parties(contract)}")
    if not released and not not_private:
        return None
    if budget is None:
        spent = sum(release.epsilon for release in released)
        delta = sum(release.delta for release in released)
        summary = "What the label party released in this run."
        return results.PrivacySummary(
            not_private=not_private, releases=released, spent_epsilon=spent, spent_delta=delta, summary=summary
        )
    ledger = Ledger(budget.ledger, party=party)
    delta = budget.delta or max((release.delta for release in released), default=0.0)
    repeated = len(exact) * (trainings - 1)
    if further := len(ledger.not_private(budget.dataset)) - len(not_private) - repeated:
        not_private.append(f"{further} more, of other runs on data set {budget.dataset} (`tallystick ledger` lists them)")
    spent = ledger.total(budget.dataset, delta=delta)
    if math.isinf(spent) and delta == 0:  # an earlier run released with Gaussian noise
        delta = USUAL_DELTA
        spent = ledger.total(budget.dataset, delta=delta)
    return results.PrivacySummary(
        not_private=not_private,
        releases=released,
        spent_epsilon=spent,
        spent_delta=delta,
        cap_epsilon=budget.cap,
        summary=f"Data set: {budget.dataset}. What is spent counts all runs so far.",
    )


def exact_labels(contract: Contract) -> str:
    """Name the labels that training uses without a guarantee, and the defences that give none."""
    methods = ", ".join(entry.defense.method for entry in contract.defense if not entry.defense.hides_features())
    return "exact labels" + (f" (behind {methods}: no guarantee for the whole run)" if methods else "")
