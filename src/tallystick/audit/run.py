"""Run the audits of a run: for membership, labels or columns, depending on which secret this party has.

``audit_run`` attacks after training. ``audit_recorded`` attacks what a run folder holds, at any later time.

Shapes: N aligned positions, R rows that are scored.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from tallystick import results
from tallystick.attacks.feature_inference.evaluate import KNOWN
from tallystick.attacks.view import Received
from tallystick.audit.columns import audit_columns, with_releases
from tallystick.audit.columns_from_gradients import NUMBERS, SIMILAR, audit_columns_from_gradients
from tallystick.audit.known_initial_weights import first_positions
from tallystick.audit.labels import AUXILIARY_LABELS, audit_labels, unattacked
from tallystick.audit.membership import audit_membership
from tallystick.audit.other_run import OtherRun
from tallystick.audit.recorded_columns import COLUMNS, RecordedColumns, Truth, file_of, own_columns, save_columns
from tallystick.audit.recorded_labels import RecordedLabels, sums_of
from tallystick.audit.recording import GRADIENTS, AuditedRun, pass_stores
from tallystick.audit.shared_head import audit_shared_head
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import ConfigError
from tallystick.msgspec_threads import prepared
from tallystick.report.page import to_html
from tallystick.report.templating import write_page
from tallystick.results import Audited, read_result
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.listing import contract_of
from tallystick.run_folder.pass_recorder import PASSES
from tallystick.watcher import Watcher

_NOTE = "audit"


def audit_run(run: AuditedRun, own: OwnRows, *, watcher: Watcher, during: Callable[[], AbstractContextManager[None]]) -> Audited:
    """Attack what was recorded, once per run, after training. If the run is resumed after that, it keeps the findings.

    If there is something to attack, the attacks are a phase of their own, which ``during`` opens.
    """
    contract, folder = run.contract, run.folder
    if (before := audited_before(folder)) is not None:
        return before
    if contract.shares_head and not run.is_label and contract.audit is not False:
        with during():
            audited = Audited(features=audit_shared_head(folder, contract, watcher=watcher))
        keep_audited(folder, audited)
        return audited
    if contract.shares_head or not run.records:
        return Audited(leakage=unattacked(contract) if run.is_label else None)
    if not any(store.files() or sums_of(store).epochs() for store in run.stores):
        watcher.say("no step was recorded, so there is nothing to audit")
        return Audited(membership=_membership(run, watcher))
    leakage = features = None
    from_gradients: list[results.ColumnsFromGradients] = []
    with during():
        membership = _membership(run, watcher)
        if run.audits_labels:
            known_labels = max(AUXILIARY_LABELS, contract.target.classes)
            leakage = audit_labels(RecordedLabels.load(folder, contract), watcher=watcher, auxiliary_labels=known_labels)
            from_gradients = _label_party_columns(run, own, watcher)
        if run.audits_columns:
            (store,) = run.stores
            sums = sums_of(store, "cut_embedding")
            seen_R, first_B = sums.load(sums.epochs()[-1]).seen_rows, first_positions(run.contract, run.dataset)
            truth = own_columns(own, run.dataset, seen_R, first_B=first_B)
            save_columns(folder, contract, run.party, truth, run_id=run.run_id)
            recorded_passes = pass_stores(store)
            for part in PASSES:  # they crossed outside training steps
                of_pass = recorded_passes.load(part)
                if of_pass is not None and bool((of_pass.count_N > 0).any()):
                    of_part = own_columns(own, run.dataset, of_pass.seen_rows, first_B=first_B[:0])
                    save_columns(folder, contract, run.party, of_part, run_id=run.run_id, part=part)
            store.drop_from(0)  # only the audit of membership needed single steps
            engine = own.party.compute.made() if own.party.compute is not None else None
            columns_audit = audit_columns(RecordedColumns.load(folder, contract), watcher=watcher, engine=engine, every=False)
            features = with_releases(columns_audit, folder, contract)
            if run.sums_received_gradients:
                from_gradients = audit_columns_from_gradients(folder, contract, role="feature", watcher=watcher)
    if not (run.audits_labels or run.audits_columns):
        folder.forget_views()  # only an audit of labels or columns can be repeated later
    audited = Audited(membership=membership, leakage=leakage, features=features, told=from_gradients)
    keep_audited(folder, audited)
    return audited


def audited_before(folder: RunFolder) -> Audited | None:
    """Load what the audits of this run found, or None if it was not audited yet."""
    noted = folder.noted(_NOTE)
    return msgspec.convert(noted, prepared(Audited)) if noted else None


def keep_audited(folder: RunFolder, audited: Audited) -> None:
    """Keep the findings, for a resumed run and for its report."""
    folder.note(_NOTE, msgspec.to_builtins(audited))


def _membership(run: AuditedRun, watcher: Watcher) -> results.Audit | None:
    own_N = run.membership
    if own_N is None:
        return None
    received: Received = "cut_gradient" if run.is_label else "cut_embedding"
    (store,) = run.stores  # membership is a secret only between two parties
    steps = store.load(received) if store.files() else ()
    sent_columns = None if run.is_label else run.dataset.sent_columns
    return audit_membership(steps, own_N, peer=store.folder.name, received=received, say=watcher.say, sent=sent_columns)


def _label_party_columns(run: AuditedRun, own: OwnRows, watcher: Watcher) -> list[results.ColumnsFromGradients]:
    """Attack the label party's own columns in the role of each feature party, if it has any and sums of gradients were kept.

    Weights of rows count as a column.
    """
    similar, weight_N = run.contract.linkage.similar, run.dataset.known_labels.weight_N
    has_any = run.dataset.encoder is not None or weight_N is not None
    if (run.audits_numbers or similar) and has_any:
        by = " or ".join(run.contract.feature_parties)
        return [results.ColumnsFromGradients(party=run.party, by=by, not_measured=[SIMILAR if similar else NUMBERS])]
    stores = [sums_of(store) for store in run.stores]
    if not has_any or not all(store.epochs() for store in stores):
        return []
    seen_R = stores[0].load(stores[0].epochs()[-1]).seen_rows
    if run.dataset.encoder is not None:
        truth = own_columns(own, run.dataset, seen_R, first_B=seen_R[:0])
    else:
        truth = Truth.without_columns(seen_R[run.dataset.is_own(seen_R)])
    if weight_N is not None:
        truth = truth.with_number(f"weight {own.party.weight}", weight_N.cpu()[truth.rows_R])
    save_columns(run.folder, run.contract, run.party, truth, run_id=run.run_id, part=GRADIENTS)
    return audit_columns_from_gradients(run.folder, run.contract, role="label", watcher=watcher)


def audit_recorded(
    path: Path,
    *,
    watcher: Watcher,
    auxiliary_labels: int = 40,
    known_rows: Sequence[int] = KNOWN,
    also: Sequence[Path] = (),
) -> Audited:
    """Attack what a run folder recorded once more, and put the findings into the run's report, if it has one.

    The label party's folder is audited for labels, a feature party's for its columns: each has only its own side's truth.
    Nothing is sent. Earlier findings are replaced when the attacks are finished. An unfinished run has no report yet: what was
    recorded so far is attacked, and the run audits itself when it is resumed and ends.

    Args:
        path: a run folder whose contract has an audit.
        watcher: shown the progress.
        auxiliary_labels: number of labels that few-label attacks know, at least one per class.
        known_rows: number of rows whose columns attacks on columns know; several numbers are tried in turn.
        also: this party's folders of other runs on the same rows, to attack together with this one.

    Raises ConfigError if this is not a run folder, or if ``known_rows`` leaves no row to attack; DataError if its view is empty,
    damaged or of another contract or run.
    """
    contract_of(path)  # raises an error that names what was given instead of a run folder
    folder = RunFolder.open(path)
    contract = folder.contract()
    folder.require_rows()
    other_runs = [OtherRun.of(each, folder, contract) for each in also]
    with folder.locked():
        if contract.shares_head and (folder.views / COLUMNS).exists():
            audited = Audited(features=audit_shared_head(folder, contract, watcher=watcher, known=known_rows))
        elif (folder.views / COLUMNS).exists():
            recorded = RecordedColumns.load(folder, contract, also=other_runs)
            rows = len(recorded.truth.rows_R)
            if all(known >= rows for known in known_rows):  # nothing could be measured, and must not replace earlier findings
                raise ConfigError(
                    f"--known-rows {min(known_rows)}: {rows} rows were recorded, and some must be left for the measurement"
                )
            features = with_releases(audit_columns(recorded, watcher=watcher, known=known_rows), folder, contract)
            from_gradients = audit_columns_from_gradients(folder, contract, role="feature", watcher=watcher)
            audited = Audited(features=features, told=from_gradients)
        else:
            if (leakage := unattacked(contract)) is None:
                labels = RecordedLabels.load(folder, contract, also=other_runs)
                leakage = audit_labels(labels, watcher=watcher, auxiliary_labels=auxiliary_labels)
            has_gradients = (folder.views / file_of(GRADIENTS)).exists()
            from_gradients = (
                audit_columns_from_gradients(folder, contract, role="label", watcher=watcher) if has_gradients else []
            )
            audited = Audited(leakage=leakage, told=from_gradients)
        new: dict[str, Any] = {name: value for name in audited.__struct_fields__ if (value := getattr(audited, name)) is not None}
        if (before := audited_before(folder)) is not None:
            keep_audited(folder, msgspec.structs.replace(before, **new))
        if folder.result.exists():
            new |= {"features": [audited.features]} if audited.features is not None else {}
            result = read_result(folder.read_json(folder.result))
            result = msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, **new))
            folder.write(folder.result, result.to_json())
            write_page(to_html(result), folder.report, origin=folder.origin)
        return audited
