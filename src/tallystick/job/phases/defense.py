"""Defences in a run: from the contract's entries to what training calls, and what the parties' ledgers are charged.

Shapes: N aligned positions.
"""

import hashlib
import math
from dataclasses import dataclass, field

import msgspec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.config.linkage import LINKAGES
from tallystick.config.party import PartyFile
from tallystick.dataset.dataset import Dataset
from tallystick.defenses.chain import Defenses
from tallystick.defenses.defense import RandomBytes, Teacher
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.boosting import can_boost, cross_fitted
from tallystick.job.phases.release import RELEASE_NOTE, exact_labels, release_event
from tallystick.party.folder import RunFolder
from tallystick.party.ledger import charged, known_budget
from tallystick.privacy.events import NotPrivate
from tallystick.privacy.ledger import BudgetExceeded, Outlook, outlook
from tallystick.training.defended import CutDefense
from tallystick.training.plan import Schedule

_NOTE = "defense"
_EMBEDDINGS_NOTE = "embeddings-charged"
EMBEDDINGS_DATASET = "-embeddings"
"""What the ledger's data set of noisy cut embeddings adds to the name of a feature party's own."""


@dataclass(frozen=True, kw_only=True)
class RunDefense:
    """A run's defences with the secret that all their randomness comes from, kept in the run folder.

    A resumed run draws the same label flips and the same noise: for somebody who saw both, nothing new. It must have the same
    labels, too: one that had changed would differ under the same flips, and so stand out.

    Args:
        defenses: what the contract asks for.
        secret: 32 bytes from the operating system.
        classes: number of classes of the target.
    """

    defenses: Defenses
    secret: bytes = field(repr=False)
    classes: int

    @classmethod
    def of(cls, contract: Contract, folder: RunFolder) -> "RunDefense":
        """Draw the secret, or take the one of the run that goes on; raises ConfigError where a teacher cannot be trained."""
        check_teacher(contract)
        noted = folder.noted(_NOTE)
        kept = noted.get("secret")
        secret = bytes.fromhex(kept) if isinstance(kept, str) else folder.draw(_NOTE)
        if not kept:
            folder.note(_NOTE, {"secret": secret.hex()}, private=True)
        return cls(defenses=contract.defenses(), secret=secret, classes=contract.target.classes)

    def defended(self, dataset: Dataset) -> Dataset:
        """The same rows with the labels to train and validate on, the same ones every time it is asked."""
        if not self.defenses.labels:
            return dataset
        true_N = dataset.known_labels.true_N
        defenses = self.defenses.taught(self._teacher(dataset))
        labels_N = defenses.defend_labels(true_N.cpu(), self.classes, random_bytes=key_stream(self.secret, b"labels"))
        return dataset.trained_on(labels_N.to(true_N.device))

    def _teacher(self, dataset: Dataset) -> Teacher:
        """What the own columns tell of the training rows' labels, by boosting, whose draws are the run's secret too.

        Without columns it is the share of positives among these rows: those for tests shape nothing that is trained on.
        """

        def teach(labels_N: Tensor) -> Tensor:
            own = dataset.own_part()
            if own.encoder is None:
                return labels_N[own.train_N.cpu()].double().mean().expand(len(labels_N))
            seed = int.from_bytes(key_stream(self.secret, b"teacher")(4), "big")
            return cross_fitted("binary", own.features_at, labels_N, own.train_N, classes=2, seed=seed).sigmoid()

        return teach

    def cut(self, schedule: Schedule) -> CutDefense | None:
        """What training does to the cut gradients; None where it does nothing."""
        return CutDefense.of(self.defenses, secret=self.secret, steps_per_epoch=schedule.steps_per_epoch)

    def spend(self, contract: Contract, party: PartyFile, folder: RunFolder, true_N: Tensor, *, what: str) -> None:
        """Charge the ledger once per run, before anything is sent; training without a guarantee is entered as not private.

        Raises BudgetExceeded over the cap, and DataError if the run was charged for other labels: then nothing may be sent.
        """
        noted = folder.noted(_NOTE)
        events = self.defenses.events()
        labels = hashlib.blake2b(true_N.cpu().numpy().tobytes(), key=self.secret, digest_size=16).hexdigest()
        if noted.get("spent") and (events or noted.get("labels") == labels):
            if noted.get("labels") != labels:
                raise DataError(
                    f"{folder.path}: the labels are not those that this run was charged for, and flipping others alike would "
                    "show which changed; put the old ones back, or start a new run without --resume"
                )
            return
        dataset = party.privacy.dataset
        with charged(party, folder) as ledger:
            for event in events:
                ledger.spend(dataset, event, what=what)
            if not events:
                ledger.enter_not_private(dataset, what=f"{what}: {exact_labels(contract)}")
        # Killed in between, a resumed run is charged twice: too much, never too little.
        spent = [msgspec.to_builtins(event) for event in events or [NotPrivate()]]
        folder.note(_NOTE, {**noted, "spent": spent, "labels": labels, "what": what}, private=True)


def spend_on_embeddings(contract: Contract, party: PartyFile, folder: RunFolder, *, epochs: int, what: str) -> None:
    """Charge a feature party's ledger, once per run, for the noisy embeddings of one training row over all epochs.

    The guarantee is given the bottom model's weights, which learn from all rows, so it is kept in a data set of its own, apart
    from what holds without a condition, and the entry says so. Validation, evaluation and predictions are not in it: there a
    row's embedding costs the defence's epsilon each time that it is sent. Where a row may serve for others, on a union, linked by
    similarity or with several rows of the label party for it, nothing bounds how often it is sent, and the entry is one of what
    is not private. Raises BudgetExceeded over the cap.
    """
    noises = noises_on_embeddings(contract)
    if not noises or folder.noted(_EMBEDDINGS_NOTE):
        return
    data_set = f"{party.privacy.dataset}{EMBEDDINGS_DATASET}"
    with charged(party, folder) as ledger:
        if serves_others(contract):
            ledger.enter_not_private(data_set, what=f"{what}: noisy embeddings, each row's any number of times")
        else:
            said = f"{what}: embeddings of each training row, up to {epochs}, given the bottom model's weights at each"
            for each in noises:
                ledger.spend(data_set, each.event(epochs), what=said)
    folder.note(_EMBEDDINGS_NOTE, {"epochs": epochs})


def check_teacher(contract: Contract) -> None:
    """Refuse a defence whose teacher cannot be trained here; raises ConfigError."""
    asking = [entry.defense.method for entry in contract.defense if entry.defense.asks_teacher]
    if asking and not can_boost():
        raise ConfigError(f"defense.method = {asking[0]}: its teacher needs scikit-learn; install it, or take another defence")


def serves_others(contract: Contract) -> bool:
    """Whether a feature party's row may be sent several times in an epoch.

    On a union, linked by similarity, and where the label party may have several rows for it.
    """
    linkage = LINKAGES[contract.alignment.method]
    return linkage.imputes or linkage.similar or contract.alignment.duplicates == "all"


def noises_on_embeddings(contract: Contract) -> list[GaussianEmbeddings]:
    """The contract's defences of embeddings that a ledger counts."""
    return [each for each in contract.embedding_defenses().embeddings if isinstance(each, GaussianEmbeddings)]


def training_charged(folder: RunFolder) -> bool:
    """Whether the training of this folder was charged for."""
    return bool(folder.noted(_NOTE).get("spent"))


def budget_outlook(
    contract: Contract, party: PartyFile, folder: RunFolder | None = None, *, trials: int | None = None
) -> Outlook | None:
    """Say what a run would bring the label party's budget to, without spending or writing anything; None if it costs nothing.

    Raises ConfigError if the label party has no ledger yet, StorageError if it is not the one that was charged before.
    ``folder`` is that of a run that goes on: what it was charged for before is not charged again. ``trials``, of a search: so
    many trainings, and nothing released.
    """
    if contract.role_of(party.party) != "label":
        return None
    spent, cap = known_budget(party)
    trained = folder is not None and training_charged(folder)
    released = trials is not None or (folder is not None and bool(folder.noted(RELEASE_NOTE)))
    ahead = [] if trained else list(contract.defenses().events()) * (1 if trials is None else trials)
    if contract.evaluation.privacy is not None and not released:
        ahead.append(release_event(contract.evaluation.privacy))
    if not ahead:
        return None
    return outlook(party.privacy.dataset, spent, ahead, cap=cap)


def over_budget(found: Outlook, *, resumed: bool = False, trials: int | None = None) -> str:
    """Say by how much a run would pass the cap, and what helps."""
    assert found.cap is not None
    if math.isinf(found.after) and not math.isinf(found.spent) and not found.cap.delta:
        helps = "Gaussian noise counts at a delta above 0 only: give privacy.delta in the party file"
    else:
        helps = "raise privacy.cap in the party file, or agree on a smaller epsilon (a new contract)"
    what = "going on with this run" if resumed else "a new run of this contract"
    if trials is not None:
        what, helps = f"{trials} trials, each charged like a run,", f"{helps}, or to fewer tuning.trials"
    return (
        f"privacy.cap = {found.cap.epsilon:.6g}: {what} would bring the label-DP epsilon of data set {found.dataset!r} from "
        f"{found.spent:.6g} to {found.after:.6g} at delta {found.cap.delta:g}, over the cap; {helps}"
        + (", and pass --resume again" if resumed else "")
    )


def check_budget(contract: Contract, party: PartyFile, folder: RunFolder | None = None, *, trials: int | None = None) -> None:
    """Refuse a run, or a search, that would pass the cap before anybody is told of it; raises BudgetExceeded."""
    found = budget_outlook(contract, party, folder, trials=trials)
    if found is not None and not found.fits:
        raise BudgetExceeded(over_budget(found, resumed=folder is not None, trials=trials))


def key_stream(secret: bytes, use: bytes) -> RandomBytes:
    """Cryptographically random bytes that follow from a secret key and a use: the ChaCha20 key stream of that use's own key."""
    key = hashlib.blake2b(use, key=secret, digest_size=32).digest()
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def more(count: int) -> bytes:
        return encryptor.update(bytes(count))

    return more
