"""A run that is over, attacked again from what its folder recorded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tallystick.attacks.feature_inference.evaluate import KNOWN
from tallystick.audit.columns import audit_columns, with_releases
from tallystick.audit.labels import audit_labels, unattacked
from tallystick.audit.other_run import OtherRun
from tallystick.audit.recorded_columns import COLUMNS, RecordedColumns, file_of
from tallystick.audit.recorded_labels import RecordedLabels
from tallystick.audit.recording import GRADIENTS
from tallystick.audit.run import Audited, audited_before, keep_audited
from tallystick.audit.told_columns import audit_told_columns
from tallystick.errors import ConfigError
from tallystick.report.page import to_html
from tallystick.report.templating import write_page
from tallystick.results import read_result
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.listing import contract_of
from tallystick.watcher import Watcher


def audit_recorded(
    path: Path,
    *,
    watcher: Watcher,
    auxiliary_labels: int = 40,
    known_rows: Sequence[int] = KNOWN,
    also: Sequence[Path] = (),
) -> Audited:
    """Attack again what a run folder recorded, and put what was found into the run's report, if it has one.

    In the label party's folder for labels, in a feature party's for its columns: each has the truth of its own side alone.
    Nothing is sent. What was there before is replaced once the attacks are over. A run that was not finished has no report yet:
    what was recorded so far is attacked, and once the run goes on and ends it audits itself.

    Args:
        path: a run folder whose contract has an audit.
        watcher: shown the progress.
        auxiliary_labels: labels that few-label attacks are told, at least one per class.
        known_rows: numbers of rows whose columns attacks on features are told.
        also: this party's folders of other runs on the same rows, which are attacked together with this one, too.

    Raises ConfigError if this is no run folder, or ``known_rows`` are all there are, DataError if its view is empty, damaged or
    of another contract or run.
    """
    contract = contract_of(path)
    folder = RunFolder.open(path)
    folder.require(contract)
    other_runs = [OtherRun.of(each, folder, contract) for each in also]
    with folder.locked():
        if (folder.views / COLUMNS).exists():
            recorded = RecordedColumns.load(folder, contract, also=other_runs)
            rows = len(recorded.truth.rows_R)
            if all(known >= rows for known in known_rows):  # nothing could be measured, and would stand in the place of what was
                raise ConfigError(f"--known-rows {min(known_rows)}: {rows} rows were recorded, and some must be left to judge by")
            features = with_releases(audit_columns(recorded, watcher=watcher, known=known_rows), folder, contract)
            told_columns = audit_told_columns(folder, contract, role="feature", watcher=watcher)
            audited = Audited(features=features, told=told_columns)
        else:
            if (leakage := unattacked(contract)) is None:
                labels = RecordedLabels.load(folder, contract, also=other_runs)
                leakage = audit_labels(labels, watcher=watcher, auxiliary_labels=auxiliary_labels)
            has_gradients = (folder.views / file_of(GRADIENTS)).exists()
            told_columns = audit_told_columns(folder, contract, role="label", watcher=watcher) if has_gradients else []
            audited = Audited(leakage=leakage, told=told_columns)
        _replace(folder, audited)
        return audited


def _replace(folder: RunFolder, found: Audited) -> None:
    """Put what was found in the place of the audit before."""
    new: dict[str, Any] = {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not None}
    if (before := audited_before(folder)) is not None:
        keep_audited(folder, msgspec.structs.replace(before, **new))
    if folder.result.exists():
        new |= {"features": [found.features]} if found.features is not None else {}
        result = read_result(folder.read_json(folder.result))
        result = msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, **new))
        folder.write(folder.result, result.to_json())
        write_page(to_html(result), folder.report, origin=folder.origin)
