"""Count the scores of a feature party's rows that heads on shares opened, over all runs, predictions and label parties.

The count is in the party's ledger. If a score is opened again, because a party was killed or the same rows are predicted a second
time, it comes from the same shares, is the same number and counts once. A copy of a run folder opens other shares.

A row is identified by its linking key, in the contract's spelling, so a limit holds for all contracts with the same key.

Shapes: N rows.
"""

from collections.abc import Container, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.privacy.ledger import BudgetExceeded, Ledger, OpenedScores
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import SCORES, charged, data_set, known_ledger

SHARES = "score-shares-*.safetensors"
"""Names of the files in which a run folder keeps shares of scores, one for each set of rows."""


def count_scores(party: PartyFile, folder: RunFolder, ids: Iterable[bytes], contract: Contract, *, shares: Path) -> None:
    """Enter the scores of these rows before they are opened. A party without a ledger counts nothing.

    Args:
        party: the feature party.
        folder: folder of the run.
        ids: ids of the rows.
        contract: contract of the run.
        shares: the file of this party's shares of the scores.

    Raises what ``refuse_scores`` raises, and then nothing is entered.
    """
    if not _counts(party):
        return
    with charged(party, folder, SCORES) as ledger:
        rows_N, outputs = np.unique(_digests(ledger, ids)), contract.scores_of_a_row

        def judge(before: Sequence[OpenedScores]) -> str:
            opened_N = _opened(before, rows_N)
            _require_within(party, contract, before, opened_N, opened_N + outputs)
            each = f"{outputs} scores" if outputs > 1 else "one score"
            most = int(opened_N.max(initial=0)) + outputs
            return f"{each} of each of {len(rows_N):,} rows, by the head of run {folder.run_id}; a row has up to {most} now"

        opened = OpenedScores(shares=_digest_of(shares), scores=outputs, key=_key(party, contract), rows=rows_N.tobytes())
        ledger.enter_scores(data_set(party, SCORES), opened, judge=judge)


def refuse_scores(party: PartyFile, ids: Iterable[bytes], contract: Contract, *, folder: RunFolder | None) -> None:
    """Refuse to open scores beyond ``privacy.scores_per_row``. Scores whose shares the folder keeps do not count twice.

    Raises BudgetExceeded, also if rows were counted by another linking key, because then rows cannot be matched; ConfigError if
    there is no ledger, StorageError if it was lost.
    """
    if not _counts(party):
        return
    ledger = known_ledger(party)
    rows_N, before = _digests(ledger, ids), ledger.scores(data_set(party, SCORES))
    digests = {_digest_of(path) for path in folder.path.glob(SHARES)} if folder is not None else ()
    opened_N = _opened(before, rows_N)
    after_N = np.where(_opened(before, rows_N, digests) > 0, opened_N, opened_N + contract.scores_of_a_row)
    _require_within(party, contract, before, opened_N, after_N)


def forget_counted_scores(party: PartyFile, ids: Iterable[bytes]) -> bool:
    """Remove these rows from the counts of all data sets, and tell whether this party has counts.

    A person who returns later starts at zero.
    """
    if not party.privacy.ledger.exists():
        return False
    ledger = known_ledger(party)
    ledger.forget_rows(_digests(ledger, ids))
    return True


def _counts(party: PartyFile) -> bool:
    """Tell whether this party has a ledger, had one, or needs one."""
    budget = party.privacy
    return budget.scores_per_row is not None or budget.identity is not None or budget.ledger.exists()


def _require_within(
    party: PartyFile,
    contract: Contract,
    before: Sequence[OpenedScores],
    opened_N: NDArray[np.int64],
    after_N: NDArray[np.int64],
) -> None:
    if (most := party.privacy.scores_per_row) is None:
        return
    key = _key(party, contract)
    if other := next((each.key for each in before if each.key != key), None):
        raise BudgetExceeded(
            f"privacy.scores_per_row = {most}: {party.privacy.ledger} counted scores of rows by the key {other}, and this "
            f"contract's key {key} does not show which rows these are; agree on the same key and steps, or give rows without "
            "an opened score a privacy.dataset of their own"
        )
    if beyond := int((after_N > most).sum()):
        raise BudgetExceeded(
            f"privacy.scores_per_row = {most}: of {beyond:,} rows there would be up to {int(after_N.max())} scores (so far up to "
            f"{int(opened_N.max())}, over all runs in {party.privacy.ledger}); leave these rows out of the table, or raise it"
        )


def _key(party: PartyFile, contract: Contract) -> str:
    """Say which columns of this party identify a row, and how they are spelt."""
    return " and ".join(f"{party.keys[key.name]} ({', '.join(key.normalise) or 'as it is'})" for key in contract.alignment.keys)


def _digest_of(shares: Path) -> str:
    return blake2b(shares.read_bytes(), digest_size=16).hexdigest()


def _opened(before: Sequence[OpenedScores], rows_N: NDArray[np.int64], shares: Container[str] | None = None) -> NDArray[np.int64]:
    """Count how many scores of each of these rows were opened, from these shares or from all."""
    opened_N = np.zeros(len(rows_N), dtype=np.int64)
    for each in before:
        if shares is None or each.shares in shares:
            opened_N += each.scores * np.isin(rows_N, np.frombuffer(each.rows, dtype=np.int64))
    return opened_N


def _digests(ledger: Ledger, ids: Iterable[bytes]) -> NDArray[np.int64]:
    """Return a digest of each id. It is the same in all runs."""
    key = ledger.identity.encode()
    digests = [blake2b(each, key=key, digest_size=8, person=b"tallystick count").digest() for each in ids]
    return np.frombuffer(b"".join(digests), dtype=np.int64)
