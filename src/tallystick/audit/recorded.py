"""The audit of a run that is over: attack again what its label party recorded."""

from pathlib import Path

import msgspec

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.reading import read_yaml
from tallystick.errors import ConfigError, StorageError
from tallystick.job.audit import audit_labels, audited_before, keep_audited
from tallystick.job.folder import RunFolder
from tallystick.job.phases import Watcher
from tallystick.report.page import render
from tallystick.report.result import Audit, read_result
from tallystick.storage import write_json


def audit_recorded(path: Path, *, watcher: Watcher, hints: int = 40, seed: int = 0) -> Audit:
    """Attack the views in the label party's run folder, and put what was found into the run's report, if it has one.

    The label party's side only: it alone has labels to judge by. Nothing is sent. What was there before is replaced once the
    attacks are over. A run that was not finished has no report yet: what was recorded so far is attacked, and once the run goes
    on and ends it audits itself.

    Args:
        path: a run folder whose contract says ``audit: true``.
        watcher: shown the progress.
        hints: labels that few-label attacks are told, at least one per class.
        seed: of the told labels, of attacks that draw, and of the intervals.

    Raises ConfigError if this is no run folder, DataError if its view is empty, damaged or of another contract or run.
    """
    folder = RunFolder(path=path)
    contract = contract_of(path)
    with folder.locked():
        return _audit(folder, contract, watcher=watcher, hints=hints, seed=seed)


def _audit(folder: RunFolder, contract: Contract, *, watcher: Watcher, hints: int, seed: int) -> Audit:
    found = audit_labels(folder, contract, watcher=watcher, hints=hints, seed=seed)
    if (before := audited_before(folder)) is not None:
        keep_audited(folder, msgspec.structs.replace(before, leakage=found))
    if folder.result.exists():
        result = read_result(folder.read_json(folder.result))
        result = msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, leakage=found))
        write_json(folder.result, result.to_json().encode())
        render(result, folder.report)
    return found


def contract_of(path: Path) -> Contract:
    """The contract that a run folder is of; raises ConfigError if it holds none that can be read."""
    file = path / "contract.json"
    if not file.is_file():
        raise ConfigError(f"{path}: is not a run folder (it holds no contract.json); give one of the folders under `runs`")
    try:
        return parse_contract(read_yaml(file), source=str(file))  # JSON is YAML
    except StorageError as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
