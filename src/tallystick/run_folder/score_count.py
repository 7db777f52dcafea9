"""Count the scores of a feature party's rows that heads on shares opened, over all runs, predictions and label parties.

The count stands in the party's ledger. A score that is opened again, because a party was killed or the same rows are predicted a
second time, is the same number and counts once.

Shapes: N rows.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from tallystick.config.party import PartyFile
from tallystick.privacy.ledger import BudgetExceeded, Ledger
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import SCORES, charged, data_set, known_ledger


def count_scores(party: PartyFile, folder: RunFolder, ids: Iterable[bytes], *, outputs: int) -> None:
    """Enter the scores of these rows by a run's head, before they are opened; a party without a ledger counts none.

    Raises BudgetExceeded as ``refuse_scores`` does: a head that was trained anew, because a folder was put back as it was before,
    is another model than the ledger knows.
    """
    if party.privacy.scores_per_row is None and not party.privacy.ledger.exists():
        return
    refuse_scores(party, ids, outputs=outputs, folder=folder)
    with charged(party, folder, SCORES) as ledger:
        rows_N, dataset = np.unique(_digests(ledger, ids)), data_set(party, SCORES)
        most = int(opened_of(ledger, dataset, rows_N).max(initial=0)) + outputs
        each = f"{outputs} scores" if outputs > 1 else "one score"
        what = f"{each} of each of {len(rows_N):,} rows, by the head of run {folder.run_id}; a row has up to {most} now"
        ledger.enter_scores(dataset, rows_N.tobytes(), model=_head_of(folder), scores=outputs, what=what)


def refuse_scores(party: PartyFile, ids: Iterable[bytes], *, outputs: int, folder: RunFolder | None) -> None:
    """Refuse to open scores beyond ``privacy.scores_per_row``; those by the folder's head that are entered do not count twice.

    Raises BudgetExceeded; ConfigError where there is no ledger to count in, StorageError for one that was lost.
    """
    if (most := party.privacy.scores_per_row) is None:
        return
    ledger = known_ledger(party)
    rows_N, dataset = _digests(ledger, ids), data_set(party, SCORES)
    opened_N = opened_of(ledger, dataset, rows_N)
    again_N = opened_of(ledger, dataset, rows_N, model=_head_of(folder)) if folder is not None else np.zeros_like(opened_N)
    after_N = np.where(again_N > 0, opened_N, opened_N + outputs)
    if beyond := int((after_N > most).sum()):
        raise BudgetExceeded(
            f"privacy.scores_per_row = {most}: of {beyond:,} rows there would be up to {int(after_N.max())} scores (so far up to "
            f"{int(opened_N.max())}, over all runs in {party.privacy.ledger}); leave these rows out of the table, or raise it"
        )


def _head_of(folder: RunFolder) -> str:
    """Name the head that a run folder keeps; empty before it is trained."""
    return blake2b(folder.model.read_bytes(), digest_size=16).hexdigest() if folder.trained else ""


def opened_of(ledger: Ledger, dataset: str, rows_N: NDArray[np.int64], *, model: str | None = None) -> NDArray[np.int64]:
    """Count how many scores of each of these rows were opened, by one model or by all."""
    opened_N = np.zeros(len(rows_N), dtype=np.int64)
    for by, scores, rows in ledger.scores(dataset):
        if model in (None, by):
            opened_N += scores * np.isin(rows_N, np.frombuffer(rows, dtype=np.int64))
    return opened_N


def _digests(ledger: Ledger, ids: Iterable[bytes]) -> NDArray[np.int64]:
    """Return a digest of each id that is the same in all runs."""
    key = ledger.identity.encode()
    digests = [blake2b(each, key=key, digest_size=8, person=b"tallystick count").digest() for each in ids]
    return np.frombuffer(b"".join(digests), dtype=np.int64)
