"""Predict a job's cost for a party's budgets (labels, linking keys, embeddings) before any other party hears of the job."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tallystick.alignment.key_noise import key_event
from tallystick.config.contract import Contract
from tallystick.config.party import ExactUse, PartyFile
from tallystick.job.phases.defense import training_charged
from tallystick.job.phases.release import RELEASE_NOTE, exact_figures, release_event, shows_weights
from tallystick.privacy.events import Event
from tallystick.privacy.ledger import BudgetExceeded, Outlook, outlook
from tallystick.run_folder.embedding_charge import (
    Sent,
    evaluation_ahead,
    noise_on_embeddings,
    sent_by,
    serves_others,
    training_ahead,
)
from tallystick.run_folder.folder import NOISY_KEYS, RunFolder
from tallystick.run_folder.ledger import EMBEDDINGS, KEYS, LABELS, data_set, known_budget, known_ledger, refuse_exact
from tallystick.run_folder.score_count import refuse_scores
from tallystick.tables.keys import Keys
from tallystick.tables.split import TRAINING, split_by_hash


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """A job whose cost is predicted.

    Args:
        contract: of the job.
        party: whose budget it is.
        folder: of the run that is resumed or whose model predicts: what was charged for it is not charged again.
        trials: of a search: it has this many trainings, and no evaluation.
        predicts: whether it scores new rows.
        keys: this party's, if they were read.
    """

    contract: Contract
    party: PartyFile
    folder: RunFolder | None = None
    trials: int | None = None
    predicts: bool = False
    keys: Keys | None = None

    @property
    def is_label(self) -> bool:
        """Tell whether the party has the labels."""
        return self.contract.role_of(self.party.party) == "label"

    def of_labels(self) -> list[Event]:
        """Return what training and a released AUC cost labels."""
        if not self.is_label or self.predicts:
            return []
        folder, release = self.folder, self.contract.evaluation.privacy
        trained = folder is not None and training_charged(folder)
        released = self.trials is not None or (folder is not None and bool(folder.noted(RELEASE_NOTE)))
        events = [] if trained else list(self.contract.defenses().events()) * (1 if self.trials is None else self.trials)
        return events + ([release_event(release)] if release is not None and not released else [])

    def exact(self) -> list[ExactUse]:
        """List what the label party sends from exact labels that no budget can count."""
        contract, folder = self.contract, self.folder
        if not self.is_label:
            return []
        if self.predicts:
            return ["scores"] if contract.linkage.shares_scores and not contract.hides_labels else []
        weights: list[ExactUse] = ["weights"] if shows_weights(contract, self.party) else []
        if self.trials is not None:
            return weights if contract.hides_labels else ["tuning"]
        is_over = folder is not None and folder.trained and training_charged(folder)
        uses: list[ExactUse] = ["gradients"] if contract.sends_gradients and not contract.hides_labels else weights
        return ([] if is_over else uses) + exact_figures(contract)

    @property
    def what(self) -> str:
        """Name the job in a sentence."""
        if self.trials is not None:
            return f"{self.trials} trials, each charged like a run,"
        if self.predicts:
            return "a prediction"
        return "going on with this run" if self.folder is not None else "a new run of this contract"

    def of_keys(self) -> list[Event]:
        """Return the cost of noise on keys, unless it was drawn before."""
        terms = self.contract.alignment.similarity
        event = key_event(terms) if terms is not None and self.contract.role_of(self.party.party) != "helper" else None
        if event is None:
            return []
        if self.folder is not None:
            similar = self.keys.similar if self.keys is not None else None
            if similar is None:
                has_noise = (self.folder.path / NOISY_KEYS).exists()
            else:
                has_noise = self.folder.load_noisy_keys(of=similar.noise_name(self.contract.hash)) is not None
            return [] if has_noise else [event]
        return [event]

    def of_embeddings(self) -> list[Event]:
        """Return the greatest cost of noisy embeddings, or nothing if it has no bound and no cap can judge it."""
        contract, noise = self.contract, noise_on_embeddings(self.contract)
        if self.is_label or contract.role_of(self.party.party) == "helper" or noise is None or serves_others(contract):
            return []
        count = sent_by(self.folder) if self.folder is not None else Sent()
        if self.predicts:
            most = count.and_then(Sent(prediction=1)).most
        elif self.trials is not None:
            contracts, key = [contract], "training.epochs"
            epochs = contract.tuning.keys.get(key)
            if epochs is not None and key in self.party.tuning.allow:  # with the largest values that may be tried
                contracts.append(contract.tuned({key: max(epochs.ends(key))}))
            trainings = [each.training.resolved(self._rows) for each in contracts]
            most = self.trials * max(training_ahead(contract.for_trial(), training).most for training in trainings)
        else:
            ahead = evaluation_ahead(contract)
            if not count.charged:  # otherwise the rest of training is charged, or was charged already
                # If every id of the label party is common, a refit, which unaligned rows rule out, is possible again.
                most_sent = contract.without_unaligned() if contract.unaligned.facts.dispensable else contract
                ahead = ahead.and_then(training_ahead(most_sent, contract.training.resolved(self._rows)))
            most = count.and_then(ahead).most
        return [noise.event(most - count.charged)] if most > count.charged else []

    @property
    def _rows(self) -> int:
        return len(self.keys.ids) if self.keys is not None else 1


def budget_outlooks(ahead: Ahead) -> list[Outlook]:
    """Say how much of a party's budgets would be spent after a job. Nothing is spent or written.

    Budgets that the job does not use are left out.

    Raises ConfigError if a charged party has no ledger yet, StorageError if its ledger is not the one that was charged before.
    """
    noisy = noise_on_embeddings(ahead.contract) is not None and ahead.contract.role_of(ahead.party.party) == "feature"
    if ahead.exact() or (ahead.is_label and not ahead.predicts and ahead.contract.sends_gradients) or noisy:
        known_ledger(ahead.party)  # the ledger also records what is not private
    event_lists = ((LABELS, ahead.of_labels()), (KEYS, ahead.of_keys()), (EMBEDDINGS, ahead.of_embeddings()))
    outlooks = []
    for of, events in event_lists:
        if events:
            spent, cap = known_budget(ahead.party, of)
            outlooks.append(outlook(data_set(ahead.party, of), spent, events, cap=cap))
    return outlooks


def over_budget(outlook: Outlook, ahead: Ahead) -> str:
    """Say by how much a job would exceed the cap, and what to do."""
    assert outlook.cap is not None
    if math.isinf(outlook.after) and not math.isinf(outlook.spent) and not outlook.cap.delta:
        helps = "Gaussian noise counts at a delta above 0 only: give privacy.delta in the party file"
    else:
        helps = "raise privacy.cap in the party file, or agree on a smaller epsilon (a new contract)"
        if outlook.unit == "record" and not ahead.predicts:
            helps += " or fewer training.epochs"
    resumed = ahead.folder is not None and not ahead.predicts
    if ahead.trials is not None:
        helps = f"{helps}, or to fewer tuning.trials"
    return (
        f"privacy.cap = {outlook.cap.epsilon:.6g}: {ahead.what} would bring the {outlook.epsilon_of} of data set "
        f"{outlook.dataset!r} from {outlook.spent:.6g} to {outlook.after:.6g} at delta {outlook.cap.delta:g}, over the cap; "
        f"{helps}" + (", and pass --resume again" if resumed else "")
    )


def check_budget(ahead: Ahead) -> Sequence[Outlook]:
    """Refuse a job that would exceed a cap, or that sends what no cap can count, before any other party hears of it.

    Return the predictions. Raises BudgetExceeded.
    """
    contract, party, keys, folder = ahead.contract, ahead.party, ahead.keys, ahead.folder
    if contract.shares_head and contract.role_of(party.party) == "feature" and keys is not None:
        rows_N = np.arange(len(keys.rows_R))
        if contract.split.method == "hash" and not ahead.predicts:
            rows_N = np.flatnonzero(split_by_hash(keys.ids_of(rows_N), contract.split, seed=contract.seed) != TRAINING)
        refuse_scores(party, keys.ids_of(rows_N), contract, folder=folder)
    outlooks = budget_outlooks(ahead)
    over = [over_budget(found, ahead) for found in outlooks if not found.fits]
    try:
        refuse_exact(ahead.party, ahead.exact(), what=ahead.what)
    except BudgetExceeded as error:
        over.append(str(error))
    if over:
        raise BudgetExceeded("\n".join(over))
    return outlooks
