"""What leaves the label party under differential privacy: labels that train, and one AUC. The ledger is charged first."""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from tallystick.config.contract import Contract, PrivateRelease
from tallystick.config.party import PartyFile, Privacy
from tallystick.errors import ConfigError, StorageError
from tallystick.evaluation.messages import Finished
from tallystick.evaluation.private.release import release
from tallystick.evaluation.private.result import NothingReleased, PrivateAuc
from tallystick.job.disclosure import shared_with_feature_parties
from tallystick.job.folder import RunFolder
from tallystick.privacy.events import Event, PureDP
from tallystick.privacy.ledger import Cap, Ledger
from tallystick.report import result as shown

USUAL_DELTA = 1e-6
RELEASE_NOTE = "release"
LEDGER_NOTE = "ledger"
SHARED_NOTE = "shared"
LOST = (
    "Nothing was spent and nothing may be released from its data sets: restore the ledger as it was after the last release, or "
    "treat their budget as used up and create a new ledger for new data sets"
)


class LedgerNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a run folder knows of the ledger that its run was charged to."""

    party: str
    dataset: str
    identity: str
    entries: int  # and the hash that its chain had come to
    chain: str


def known_ledger(party: PartyFile) -> Ledger:
    """The label party's ledger: the one that its party file states and its run folders were charged to. Makes none.

    Raises ConfigError if there never was one, StorageError if it is gone, damaged, another one or an older copy of itself.
    """
    budget = party.privacy
    notes = {path: note for path, note in _ledger_notes(party.runs).items() if _of_budget(note, party)}
    if not budget.ledger.exists():
        if budget.identity is None and not notes:
            raise ConfigError(
                f"privacy.ledger = {budget.ledger}: there is no ledger; `tallystick ledger PARTY.yaml --create` makes it, once, "
                "for all jobs on these labels"
            )
        knows = "privacy.identity in the party file" if budget.identity is not None else str(next(iter(notes)))
        raise StorageError(
            f"the privacy ledger {budget.ledger} is gone: {knows} knows of it. Does privacy.ledger name the right file? {LOST}"
        )
    ledger = Ledger(budget.ledger, party=party.party)
    if budget.identity not in (None, ledger.identity):
        raise StorageError(
            f"the privacy ledger {budget.ledger} is {ledger.identity}, not privacy.identity = {budget.identity}. {LOST}"
        )
    for path, note in notes.items():
        if note.identity != ledger.identity:
            raise StorageError(
                f"the privacy ledger {budget.ledger} is {ledger.identity}, but {path} says that a run on data set "
                f"{note.dataset!r} was charged to {note.identity}. {LOST}"
            )
        if not ledger.holds(note.entries, note.chain):
            raise StorageError(
                f"the privacy ledger {budget.ledger} is an older copy of itself: {path} knows of its entry {note.entries}, "
                f"which it lacks. {LOST}"
            )
    return ledger


def create_ledger(party: PartyFile) -> Ledger:
    """Make the label party's ledger, once; raises ConfigError if there is one, StorageError if there was one."""
    try:
        known_ledger(party)
    except ConfigError:
        return Ledger.create(party.privacy.ledger, party=party.party)
    raise ConfigError(f"{party.privacy.ledger} exists already; a ledger is created once and then kept")


@contextmanager
def charged(party: PartyFile, folder: RunFolder) -> Iterator[Ledger]:
    """The party's ledger, to be charged within, with the cap that its file states; the run folder knows it before and after."""
    ledger, budget = known_ledger(party), party.privacy
    if budget.cap is not None and ledger.cap(budget.dataset) != (cap := Cap(epsilon=budget.cap, delta=budget.delta)):
        ledger.set_cap(budget.dataset, cap)

    def note() -> None:
        entries, chain = ledger.head()
        known = LedgerNote(party=party.party, dataset=budget.dataset, identity=ledger.identity, entries=entries, chain=chain)
        folder.note(LEDGER_NOTE, msgspec.to_builtins(known))

    note()
    try:
        yield ledger
    except NothingReleased:  # it is spent all the same
        note()
        raise
    note()


def known_budget(party: PartyFile) -> tuple[list[Event], Cap | None]:
    """What the party's ledger holds of its data set, and the cap that will hold; makes no ledger and writes to none."""
    budget, ledger = party.privacy, known_ledger(party)
    cap = Cap(epsilon=budget.cap, delta=budget.delta) if budget.cap is not None else None
    return [entry.event for entry in ledger.entries(budget.dataset)], cap or ledger.cap(budget.dataset)


def _ledger_notes(runs: Path) -> dict[Path, LedgerNote]:
    """What every run folder knows of the ledger that it was charged to."""
    found = {}
    for path in sorted(runs.glob(f"*/{LEDGER_NOTE}.json")):
        found[path] = msgspec.convert(RunFolder(path=path.parent).noted(LEDGER_NOTE), LedgerNote)
    return found


def _of_budget(note: LedgerNote, party: PartyFile) -> bool:
    return (note.party, note.dataset) == (party.party, party.privacy.dataset)


def release_event(wanted: PrivateRelease) -> Event:
    """What a release costs, whichever mechanism makes it."""
    return PureDP(epsilon=wanted.epsilon, unit=wanted.unit)


def release_auc(wanted: PrivateRelease, party: PartyFile, folder: RunFolder, target_N: Tensor, logits_N: Tensor) -> PrivateAuc:
    """Spend and release the joint model's AUC on the test rows.

    Raises BudgetExceeded over the cap, NothingReleased (after spending) where the noise leaves no AUC. A run's end is seen by all
    its parties, so that a class is missing is left to the noisy count to say.
    """
    scores_N = torch.sigmoid(logits_N.double().cpu()).numpy()
    with charged(party, folder) as ledger:
        return release(
            target_N.cpu().numpy().astype(np.int64),
            scores_N,
            epsilon=wanted.epsilon,
            unit=wanted.unit,
            ledger=ledger,
            dataset=party.privacy.dataset,
            what="AUC of the joint model",
            check_classes=False,
        )


def enter_shared(contract: Contract, party: PartyFile, folder: RunFolder, figures: object, *, run_id: str) -> None:
    """Enter exact figures as not private before they are sent: once per run, unless it comes to send others."""
    digest = hashlib.blake2b(json.dumps(figures).encode(), digest_size=16).hexdigest()
    if folder.noted(SHARED_NOTE).get("digest") == digest:
        return
    what = f"evaluation of {contract.name}, run {run_id}: {shared_with_feature_parties(contract)}, sent to the feature parties"
    with charged(party, folder) as ledger:
        ledger.enter_not_private(party.privacy.dataset, what=what)
    folder.note(SHARED_NOTE, {"digest": digest}, private=True)  # killed before this, a resumed run enters it again


def finished(rows: int, released: PrivateAuc | NothingReleased) -> Finished:
    """The last message of a run, with what was released; an epsilon without an AUC: spent for nothing, ``reveals`` says why."""
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
    contract: Contract, message: Finished, budget: Privacy | None, *, trained: bool, shared: bool = False
) -> shown.Privacy | None:
    """The report's section on what was released; ``budget`` is the label party's own, whose ledger knows the total.

    What the defences promise is in the contract, so every party can list it; ``trained``: whether labels were used at all,
    ``shared``: whether exact figures were sent.
    """
    party = contract.label_party
    released = _label_releases(contract) if trained else []
    if message.epsilon is not None:
        what, note = f"no AUC: {message.reveals}", "Nothing else was released; the epsilon is spent all the same."
        if message.auc is not None:
            what = f"AUC {message.auc:.4f}, 95 % interval {message.low:.4f} to {message.high:.4f} for the exact one"
            note = f"Besides it this reveals {message.reveals}."
        released.append(
            shown.Release(
                what=what, mechanism=message.mechanism, protects=message.protects, epsilon=message.epsilon, party=party, note=note
            )
        )
    not_private = _not_private(contract) if trained else []
    if shared:
        not_private.append(f"what the evaluation sent the feature parties: {shared_with_feature_parties(contract)}")
    if not released and not not_private:
        return None
    if budget is None:
        spent = sum(release.epsilon for release in released)
        delta = sum(release.delta for release in released)
        summary = "What the label party released in this run."
        return shown.Privacy(not_private=not_private, releases=released, spent_epsilon=spent, spent_delta=delta, summary=summary)
    ledger = Ledger(budget.ledger, party=party)
    delta = budget.delta or max((release.delta for release in released), default=0.0)
    if others := len(ledger.not_private(budget.dataset)) - len(not_private):
        not_private.append(f"{others} more, of other runs on data set {budget.dataset} (`tallystick ledger` lists them)")
    spent = ledger.total(budget.dataset, delta=delta)
    if math.isinf(spent) and delta == 0:  # an earlier run released with Gaussian noise
        delta = USUAL_DELTA
        spent = ledger.total(budget.dataset, delta=delta)
    return shown.Privacy(
        not_private=not_private,
        releases=released,
        spent_epsilon=spent,
        spent_delta=delta,
        cap_epsilon=budget.cap,
        summary=f"Data set: {budget.dataset}. Spent by all runs so far.",
    )


def _not_private(contract: Contract) -> list[str]:
    """What training told without a guarantee for the whole run: all that hangs on exact labels."""
    if _label_releases(contract):
        return []
    return [f"what training sends, which comes from {exact_labels(contract)} of the training and validation rows"]


def exact_labels(contract: Contract) -> str:
    """Name the labels that training without a guarantee uses, and the defences that make up for none."""
    methods = ", ".join(entry.defense.method for entry in contract.defense)
    return "exact labels" + (f" (behind {methods}: no guarantee for the whole run)" if methods else "")


def _label_releases(contract: Contract) -> list[shown.Release]:
    return [
        shown.Release(
            what="labels of the training and validation rows, in all that training sends",
            mechanism=entry.defense.method,
            protects="labels",
            party=contract.label_party,
            **{key: value for key, value in entry.model_dump().items() if key in ("epsilon", "delta")},
        )
        for entry in contract.defense
        if entry.defense.stage == "labels"
    ]
