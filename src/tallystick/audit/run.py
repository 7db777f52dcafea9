"""The audits of a run once it is trained: for membership, for labels or for columns, whichever secret this party has.

Shapes: N aligned positions, R rows that are scored.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec
from torch import Tensor

from tallystick import results
from tallystick.attacks.view import Received
from tallystick.audit.columns import audit_columns, with_releases
from tallystick.audit.known_initial_weights import first_positions
from tallystick.audit.labels import AUXILIARY_LABELS, audit_labels, unattacked
from tallystick.audit.membership import audit_membership
from tallystick.audit.recorded_columns import RecordedColumns, own_columns, save_columns
from tallystick.audit.recorded_labels import RecordedLabels, sums_of
from tallystick.audit.recording import GRADIENTS, AuditedRun, pass_stores
from tallystick.audit.told_columns import NUMBERS, SIMILAR, audit_told_columns
from tallystick.cut.forward import Part
from tallystick.dataset.own_rows import OwnRows
from tallystick.msgspec_threads import prepared
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.pass_recorder import PASSES
from tallystick.run_folder.recorder import ViewStore
from tallystick.watcher import Watcher

_NOTE = "audit"


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of a run's audits."""

    membership: results.Audit | None = None
    leakage: results.Audit | None = None
    features: results.FeatureAudit | None = None
    told: list[results.ToldColumns] = []


def audit_run(run: AuditedRun, own: OwnRows, *, watcher: Watcher, during: Callable[[], AbstractContextManager[None]]) -> Audited:
    """Attack what was recorded, after training and once per run; a run that goes on after that keeps the findings.

    ``during`` is entered where there is something to attack: a phase of its own.
    """
    contract, folder = run.contract, run.folder
    if (before := audited_before(folder)) is not None:
        return before
    if not run.records:
        return Audited(leakage=unattacked(contract) if run.is_label else None)
    if not any(store.files() or sums_of(store).epochs() for store in run.stores):
        watcher.say("no step was recorded, so there is nothing to audit")
        return Audited(membership=_membership(run, watcher))
    leakage = features = None
    told_columns: list[results.ToldColumns] = []
    with during():
        membership = _membership(run, watcher)
        if run.audits_labels:
            known = max(AUXILIARY_LABELS, contract.target.classes)
            leakage = audit_labels(RecordedLabels.load(folder, contract), watcher=watcher, auxiliary_labels=known)
            told_columns = _told_by_label_party(run, own, watcher)
        if run.audits_columns:
            features = _columns(run, own, watcher)
            if run.sums_received_gradients:
                told_columns = audit_told_columns(folder, contract, role="feature", watcher=watcher)
    if not (run.audits_labels or run.audits_columns):
        folder.forget_views()  # only an audit of labels or columns may be asked for again
    audited = Audited(membership=membership, leakage=leakage, features=features, told=told_columns)
    keep_audited(folder, audited)
    return audited


def audited_before(folder: RunFolder) -> Audited | None:
    """Load what the audits of this run found; None if it was not audited yet."""
    noted = folder.noted(_NOTE)
    return msgspec.convert(noted, prepared(Audited)) if noted else None


def keep_audited(folder: RunFolder, audited: Audited) -> None:
    """Keep what was found, for a run that goes on and for its report."""
    folder.note(_NOTE, msgspec.to_builtins(audited))


def _membership(run: AuditedRun, watcher: Watcher) -> results.Audit | None:
    own_N = run.membership
    if own_N is None:
        return None
    received: Received = "cut_gradient" if run.is_label else "cut_embedding"
    (store,) = run.stores  # where membership is a secret there are two parties
    steps = store.load(received) if store.files() else ()
    sent_columns = None if run.is_label else run.dataset.sent_columns
    return audit_membership(steps, own_N, peer=store.folder.name, received=received, say=watcher.say, sent=sent_columns)


def _told_by_label_party(run: AuditedRun, own: OwnRows, watcher: Watcher) -> list[results.ToldColumns]:
    """Attack the label party's own columns in each feature party's seat, where it has any and sums of gradients were kept."""
    similar = run.contract.linkage.similar
    if (run.audits_numbers or similar) and run.dataset.encoder is not None:
        by = " or ".join(run.contract.feature_parties)
        return [results.ToldColumns(party=run.party, by=by, not_measured=[SIMILAR if similar else NUMBERS])]
    stores = [sums_of(store) for store in run.stores]
    if run.dataset.encoder is None or not all(store.epochs() for store in stores):
        return []
    seen_R = stores[0].load(stores[0].epochs()[-1]).seen_rows
    truth = own_columns(own, run.dataset, seen_R, first_B=seen_R[:0])
    save_columns(run.folder, run.contract, run.party, truth, run_id=run.run_id, part=GRADIENTS)
    return audit_told_columns(run.folder, run.contract, role="label", watcher=watcher)


def _crossed_in_passes(store: ViewStore) -> dict[Part, Tensor]:
    """Return which rows of each part crossed outside training steps."""
    stores = pass_stores(store)
    recorded = {part: stores.load(part) for part in PASSES}
    return {part: sums.seen_rows for part, sums in recorded.items() if sums is not None and bool((sums.count_N > 0).any())}


def _columns(run: AuditedRun, own: OwnRows, watcher: Watcher) -> results.FeatureAudit:
    (store,) = run.stores
    sums = sums_of(store, "cut_embedding")
    seen_R, first_B = sums.load(sums.epochs()[-1]).seen_rows, first_positions(run.contract, run.dataset)
    truth = own_columns(own, run.dataset, seen_R, first_B=first_B)
    save_columns(run.folder, run.contract, run.party, truth, run_id=run.run_id)
    for part, index_R in _crossed_in_passes(store).items():
        of_part = own_columns(own, run.dataset, index_R, first_B=first_B[:0])
        save_columns(run.folder, run.contract, run.party, of_part, run_id=run.run_id, part=part)
    store.drop_from(0)  # single steps served the audit of membership
    compute = own.party.compute
    recorded = RecordedColumns.load(run.folder, run.contract)
    audit = audit_columns(recorded, watcher=watcher, engine=compute.made() if compute is not None else None, every=False)
    return with_releases(audit, run.folder, run.contract)
