"""Set up a run's defences from the contract's entries, and charge the parties' ledgers for them.

Shapes: N aligned positions.
"""

import hashlib
from dataclasses import dataclass, field

import msgspec
import polars as pl
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.config.party import EXACT_USES, ExactUse, PartyFile
from tallystick.dataset.dataset import Dataset
from tallystick.defenses.chain import Defenses
from tallystick.defenses.defense import RandomBytes
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.boosting import can_boost, cross_fitted
from tallystick.job.phases.release import exact_labels, shows_weights
from tallystick.privacy.events import NotPrivate
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import LABELS, charged, enter_exact, refuse_exact
from tallystick.training.label_defense import CutDefense
from tallystick.training.run import TrainingRun

_NOTE = "defense"


@dataclass(frozen=True, kw_only=True)
class RunDefense:
    """A run's defences and the secret that all their randomness comes from. The run folder keeps the secret.

    A resumed run draws the same label flips and the same noise, so sending them again reveals nothing new. Its labels must be
    the same, too: under the same flips, a changed label would be visible.

    Args:
        defenses: what the contract asks for.
        secret: 32 bytes from the operating system.
        classes: number of classes of the target; for several labels the number of their patterns.
    """

    defenses: Defenses
    secret: bytes = field(repr=False)
    classes: int

    @classmethod
    def of(cls, contract: Contract, folder: RunFolder) -> "RunDefense":
        """Draw the secret, or load that of a resumed run. Raises ConfigError if a teacher cannot be trained."""
        check_teacher(contract)
        target = contract.target
        classes = 1 << target.outputs if target.type == "multilabel" else target.classes
        return cls(defenses=contract.defenses(), secret=folder.secret(_NOTE), classes=classes)

    def defended(self, dataset: Dataset) -> Dataset:
        """Return the same rows with the labels to train and validate on. Each call returns the same labels."""
        if not self.defenses.labels:
            return dataset
        true_N = dataset.known_labels.true_N

        # Boosting on the own columns predicts the training rows' labels. Its draws follow from the run's secret, too. Without
        # columns the prediction is the share of positives among the training rows, for test rows must shape no training.
        def teach(labels_N: Tensor) -> Tensor:
            own = dataset.own_part()
            if own.encoder is None:
                return labels_N[own.train_N.cpu()].double().mean().expand(len(labels_N))
            seed = int.from_bytes(key_stream(self.secret, b"teacher")(4), "big")
            return cross_fitted("binary", own.features_at, labels_N, own.train_N, classes=2, seed=seed).sigmoid()

        defenses = self.defenses.taught(teach)
        labels_N = defenses.defend_labels(true_N.cpu(), self.classes, random_bytes=key_stream(self.secret, b"labels"))
        return dataset.trained_on(labels_N.to(true_N.device))

    def cut(self, run: TrainingRun) -> CutDefense | None:
        """Return what training does to the cut gradients, or None if it does nothing."""
        steps = run.schedule.steps_per_epoch
        return CutDefense.of(self.defenses, secret=self.secret, steps_per_epoch=steps, steps_before=run.begins.step)

    def spend(
        self,
        contract: Contract,
        party: PartyFile,
        folder: RunFolder,
        true_N: Tensor,
        *,
        what: str,
        column: pl.Series | None = None,
        use: ExactUse = "gradients",
    ) -> None:
        """Charge the ledger once per run, before anything is sent. Training without a guarantee is recorded as not private.

        If a copy of the run folder is resumed, too, it replaces the same labels by the same values, which is the same release.

        ``column`` are the labels of the linked rows as in the table: a resumed run compares them before it calls a peer.
        ``use`` says what exact labels are used for, if no defence replaces them.

        Raises BudgetExceeded beyond the cap, and DataError if the run was charged for other labels: then nothing may be sent.
        """
        noted = folder.noted(_NOTE)
        events = self.defenses.events()
        labels = hashlib.blake2b(true_N.cpu().numpy().tobytes(), key=self.secret, digest_size=16).hexdigest()
        if noted.get("spent") and (events or noted.get("labels") == labels):
            if noted.get("labels") != labels:
                raise _other_labels(folder)
            return
        if not events:
            enter_exact(party, folder, use, what=f"{what}: {exact_labels(contract)}")
        else:
            weighted = shows_weights(contract, party)
            refuse_exact(party, ["weights"] if weighted else [], what=what)
            with charged(party, folder, LABELS) as ledger:
                for event in events:
                    ledger.spend(party.privacy.dataset, event, what=what)
                if weighted:
                    ledger.enter_not_private(party.privacy.dataset, what=f"{what}: {EXACT_USES['weights']}")
        # If it is killed in between, the resumed run is charged twice: too much, never too little.
        spent = [msgspec.to_builtins(event) for event in events or [NotPrivate()]]
        column_note = {"column": _digest(column, self.secret)} if column is not None else {}
        folder.note(_NOTE, {**noted, "spent": spent, "labels": labels, "what": what, **column_note}, private=True)


def check_charged_labels(contract: Contract, folder: RunFolder, column: pl.Series) -> None:
    """Refuse to resume with other labels than the run was charged for, before a peer is called. ``column`` are those of the
    linked rows.

    A refusal after the greeting would show that a label was corrected. Raises DataError.
    """
    noted = folder.noted(_NOTE)
    kept_digest, secret = noted.get("column"), noted.get("secret")
    if not contract.defenses().events() or not isinstance(kept_digest, str) or not isinstance(secret, str):
        return
    if kept_digest != _digest(column, bytes.fromhex(secret)):
        raise _other_labels(folder)


def _digest(column: pl.Series, secret: bytes) -> str:
    digest = hashlib.blake2b(key=secret, digest_size=16)
    # several labels in a fixed order, independent of the party file's
    several = [column.struct.field(name) for name in sorted(column.struct.fields)] if column.dtype == pl.Struct else [column]
    for text in (text for each in several for text in each.cast(pl.String)):
        digest.update(b"-" if text is None else b"%d %s" % (len(text.encode()), text.encode()))
    return digest.hexdigest()


def _other_labels(folder: RunFolder) -> DataError:
    return DataError(
        f"{folder.path}: the labels are not those that this run was charged for, and the same flips on changed labels would "
        "show which changed; put the old ones back, or start a new run without --resume"
    )


def check_teacher(contract: Contract) -> None:
    """Refuse a defence whose teacher cannot be trained here. Raises ConfigError."""
    asking = [entry.defense.method for entry in contract.defense if entry.defense.asks_teacher]
    if asking and not can_boost():
        raise ConfigError(f"defense.method = {asking[0]}: its teacher needs scikit-learn; install it, or take another defence")


def training_charged(folder: RunFolder) -> bool:
    """Tell whether the ledger was charged for this folder's training."""
    return bool(folder.noted(_NOTE).get("spent"))


def key_stream(secret: bytes, use: bytes) -> RandomBytes:
    """Derive random bytes from a secret and a use: the ChaCha20 key stream of a key for this use."""
    key = hashlib.blake2b(use, key=secret, digest_size=32).digest()
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def more(count: int) -> bytes:
        return encryptor.update(bytes(count))

    return more
