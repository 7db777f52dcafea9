"""Find the label party's privacy ledger: the one that its party file states and to which its run folders were charged."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from tallystick.config.party import EXACT_USES, ExactUse, PartyFile
from tallystick.errors import ConfigError, DamagedFile, StorageError
from tallystick.evaluation.private.result import NothingReleased
from tallystick.msgspec_threads import prepared
from tallystick.privacy.events import Entered
from tallystick.privacy.ledger import BudgetExceeded, Cap, Ledger
from tallystick.run_folder.folder import TRIAL, RunFolder

LEDGER_NOTE, _TAKEN_UP = "ledger", "charge-taken-up"
LABELS, KEYS, EMBEDDINGS, SCORES = "", "-keys", "-embeddings", "-scores"
"""Suffixes of ``privacy.dataset`` in the ledger. Each budget is about something else, and so has a separate sum."""
_LOST = (
    "Nothing was spent and nothing may be released from its data sets: restore the ledger as it was after the last release, or "
    "treat their budget as used up and create a new ledger for new data sets"
)


class LedgerNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a run folder knows about the ledger to which its run was charged."""

    party: str
    dataset: str
    identity: str
    entries: int  # and the hash of its chain at that time
    chain: str


def known_ledger(party: PartyFile) -> Ledger:
    """Return the party's ledger: the one that its party file states and to which its run folders were charged. It creates none.

    Raises ConfigError if there never was a ledger, or if a party file states a cap and does not name its ledger; StorageError if
    it is lost, damaged, replaced by another one or by an older copy.
    """
    budget = party.privacy
    notes = {path: note for path, note in _ledger_notes(party).items() if note.dataset == budget.dataset}
    if not budget.ledger.exists():
        if budget.identity is None and not notes:
            whose = "" if party.label else "; a feature party needs one where its columns or keys get noise"
            raise ConfigError(
                f"privacy.ledger = {budget.ledger}: there is no ledger; `tallystick ledger PARTY.yaml --create` makes it, once, "
                f"for all jobs on these rows{whose}"
            )
        knows = "privacy.identity in the party file" if budget.identity is not None else str(next(iter(notes)))
        raise StorageError(
            f"the privacy ledger {budget.ledger} is gone: {knows} knows of it. Does privacy.ledger name the right file? {_LOST}"
        )
    ledger = Ledger(budget.ledger, party=party.party)
    if budget.identity not in (None, ledger.identity):
        raise StorageError(
            f"the privacy ledger {budget.ledger} is {ledger.identity}, not privacy.identity = {budget.identity}. {_LOST}"
        )
    if budget.cap is not None and budget.identity is None:
        raise ConfigError(
            f"privacy.cap = {budget.cap:g}: the party file does not say which ledger the cap is of, so a new ledger, in "
            f"another place with other runs, would begin at 0; put identity: {ledger.identity} under privacy"
        )
    for path, note in notes.items():
        if note.identity != ledger.identity:
            raise StorageError(
                f"the privacy ledger {budget.ledger} is {ledger.identity}, but {path} says that a run on data set "
                f"{note.dataset!r} was charged to {note.identity}. {_LOST}"
            )
        if not ledger.holds(note.entries, note.chain):
            raise StorageError(
                f"the privacy ledger {budget.ledger} is an older copy of itself: {path} knows of its entry {note.entries}, "
                f"which it lacks. {_LOST}"
            )
    return ledger


def create_ledger(party: PartyFile) -> Ledger:
    """Create the party's ledger, once. Raises ConfigError if there is one, StorageError if there was one."""
    try:
        known_ledger(party)
    except ConfigError:
        if not party.privacy.ledger.exists():
            return Ledger.create(party.privacy.ledger, party=party.party)
    raise ConfigError(f"{party.privacy.ledger} exists already; a ledger is created once and then kept")


def with_ledger_named(party: PartyFile) -> PartyFile:
    """Return the party file with the identity of its existing ledger, if it states a cap and names none."""
    budget = party.privacy
    if budget.cap is None or budget.identity is not None or not budget.ledger.exists():
        return party
    identity = Ledger(budget.ledger, party=party.party).identity
    return party.model_copy(update={"privacy": budget.model_copy(update={"identity": identity})})


def data_set(party: PartyFile, of: str) -> str:
    """Return the name of the ledger's data set for a party's labels, linking keys or embeddings."""
    return f"{party.privacy.dataset}{of}"


@contextmanager
def charged(party: PartyFile, folder: RunFolder, of: str) -> Iterator[Ledger]:
    """Yield the party's ledger for charges for labels, linking keys or embeddings, with the cap that its file states.

    The cap applies to each of the three separately. The run folder notes the ledger's state before and after.
    """
    ledger, budget = known_ledger(party), party.privacy
    if budget.cap is not None and ledger.cap(data_set(party, of)) != (cap := Cap(epsilon=budget.cap, delta=budget.delta)):
        ledger.set_cap(data_set(party, of), cap)

    def note() -> None:
        entries, chain = ledger.head()
        ledger_note = LedgerNote(
            party=party.party, dataset=budget.dataset, identity=ledger.identity, entries=entries, chain=chain
        )
        folder.note(LEDGER_NOTE, msgspec.to_builtins(ledger_note))

    note()
    try:
        yield ledger
    except NothingReleased:  # it is spent all the same
        note()
        raise
    note()


def takes_up(party: PartyFile, folder: RunFolder, of: str) -> bool:
    """Tell whether a run folder's charge is its own, before each use. It is not if a copy of the folder took it up.

    Of two copies of a folder, the first that is resumed owns the charge. Noise follows from the values that it hides, so the
    other copy would send other noise wherever it sends other values. It must be charged again, and is then a separate folder. If
    the process is killed in between, it is charged again as well: too much, never too little. ``of`` names what was charged.
    """
    noted, successor = folder.noted(_TAKEN_UP), secrets.token_hex(16)
    name, _, token = str(noted.get(of, "")).partition(" ")
    ledger = known_ledger(party)
    is_own = not name or ledger.hold(name, token, successor)
    if not (name and is_own):
        name = secrets.token_hex(16)
        ledger.hold(name, successor, successor)
    folder.note(_TAKEN_UP, {**noted, of: f"{name} {successor}"})
    return is_own


def known_budget(party: PartyFile, of: str) -> tuple[list[Entered], Cap | None]:
    """Return the party's ledger entries for labels, keys or embeddings, and the cap. It neither creates nor changes a ledger."""
    budget, ledger = party.privacy, known_ledger(party)
    cap = Cap(epsilon=budget.cap, delta=budget.delta) if budget.cap is not None else None
    name = data_set(party, of)
    return [entry.event for entry in ledger.entries(name)], cap or ledger.cap(name)


def refuse_exact(party: PartyFile, uses: Sequence[ExactUse], *, what: str) -> None:
    """Refuse to send figures that depend on exact labels under a cap, unless the party file allows it. Raises BudgetExceeded.

    Such figures have no DP event, so no sum that the cap limits can include them.
    """
    refused = [use for use in uses if use not in party.privacy.allow]
    if not refused or (party.privacy.cap is None and not party.privacy.ledger.exists()):
        return
    _, cap = known_budget(party, LABELS)
    if cap is not None:
        exact_uses = "; ".join(f"{use} ({EXACT_USES[use]})" for use in refused)
        raise BudgetExceeded(
            f"privacy.cap = {cap.epsilon:.6g}: {what} would send figures that depend on exact labels and have no epsilon to "
            "count: "
            f"{exact_uses}; leave it out or defend labels with an epsilon (a new contract), or allow it by name in the party "
            f"file: privacy.allow: [{', '.join([*party.privacy.allow, *refused])}]"
        )


def enter_exact(party: PartyFile, folder: RunFolder, use: ExactUse, *, what: str) -> None:
    """Enter figures that depend on exact labels as not private, before they are sent. Raises BudgetExceeded as
    refuse_exact does.
    """
    refuse_exact(party, [use], what=what)
    with charged(party, folder, LABELS) as ledger:
        ledger.enter_not_private(party.privacy.dataset, what=what)


def _ledger_notes(party: PartyFile) -> dict[Path, LedgerNote]:
    """Read what every run folder, and every trial of a search, knows about its ledger."""
    notes = {}
    for place, above in ((f"*/{LEDGER_NOTE}.json", 0), (f"*/{TRIAL}*/{LEDGER_NOTE}.json", 1)):
        for path in sorted(party.runs.glob(place)):
            try:
                folder = replace(RunFolder.open(path.parents[above], key=party.run_key), path=path.parent)
            except DamagedFile:
                continue  # no command can use this folder; the others and the party file know the ledger, too
            notes[path] = msgspec.convert(folder.noted(LEDGER_NOTE), prepared(LedgerNote))
    return notes
