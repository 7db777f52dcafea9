"""Choose the run whose model a prediction uses: the latest complete run, or a named one."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError, StorageError
from tallystick.job.handshake import PromotedHalf, ResumeState
from tallystick.run_folder.folder import RunFolder

_MOST_TOLD = 20  # the most complete runs that peers hear of


def chosen_run(contract: Contract, party: PartyFile, name: str | None, *, say: Callable[[str], None]) -> RunFolder:
    """Return the run of that id, folder name or path. Without a name return the latest complete run, and say which runs are
    skipped.

    Raises ConfigError if there is none, or it holds no trained model, and StorageError for a damaged one. Without gradients the
    label party does not skip a run whose training failed or is not finished: the others would learn that from its choice of an
    older run.
    """
    if name is None:
        latest = RunFolder.latest(party.runs, contract, party.party, key=party.run_key)
        runs = RunFolder.all(party.runs, contract, party.party, key=party.run_key)
        folder = next((each for each in runs if each.complete(contract)), latest)
        if folder != latest:
            say(f"{latest.path.name} was not finished: predicting with the latest complete run, {folder.path.name}")
    else:
        folder = named_run(contract, party, name)
    require_trained(folder, contract)
    return folder


def require_trained(folder: RunFolder, contract: Contract) -> None:
    """Raise ConfigError if the run holds no trained model."""
    if folder.trained:
        return
    if folder.complete(contract):
        raise ConfigError(
            f"{folder.path} has all embeddings but no trained model: the label party's training has not ended, or it failed. "
            "Other parties do not learn which; one that waits for this prediction sees that nobody comes. Wait for the "
            "training, go on "
            "with it by `tallystick run --resume` on all sides, or name another run with --run on all sides"
        )
    raise ConfigError(
        f"{folder.path} holds no trained model: its training was not finished; go on with it by `tallystick run --resume` on "
        "all sides, or name another run"
    )


def require_complete(folder: RunFolder, contract: Contract) -> None:
    """Raise ConfigError if other parties must not be told of this run."""
    if not folder.complete(contract):
        require_trained(folder, contract)


def offered(
    contract: Contract, party: PartyFile, *, command: str, run_id: str, promoted: tuple[PromotedHalf, ...], chosen: bool
) -> ResumeState:
    """Return what this side says about trained models in the handshake: its complete runs, ``run_id`` first."""
    return ResumeState(
        command=command,
        resume=True,
        run_id=run_id,
        trained=True,
        complete=tuple(dict.fromkeys((run_id, *complete_ids(contract, party)))),
        promoted=promoted,
        chosen=chosen,
    )


def complete_ids(contract: Contract, party: PartyFile) -> list[str]:
    """List the ids of this party's newest complete runs of the contract, newest first. Damaged runs are left out."""
    run_ids: list[str] = []
    for folder in RunFolder.all(party.runs, contract, party.party, unusable=False, key=party.run_key):
        try:
            if folder.complete(contract) and (run_id := folder.run_id):
                run_ids.append(run_id)
        except StorageError:
            continue
        if len(run_ids) == _MOST_TOLD:
            break
    return run_ids


def named_run(contract: Contract, party: PartyFile, name: str, *, option: str = "--run") -> RunFolder:
    """Return the run of that id, folder name or path. Raises ConfigError that names the option if there is none."""
    if (at_hand := run_at(party, name, option=option)) is not None:
        at_hand.require(contract)
        return at_hand
    for folder in RunFolder.all(party.runs, contract, party.party, unusable=False, key=party.run_key):
        with suppress(StorageError):
            if folder.run_id == name:
                return folder
    complete = ", ".join(complete_ids(contract, party)) or "none"
    raise ConfigError(
        f"{option} {name}: there is no such run of contract {contract.name} ({contract.hash[:8]}) in {party.runs}; give the id "
        f"of a complete run ({complete}), or the name or path of its folder"
    )


def run_at(party: PartyFile, name: str, *, option: str) -> RunFolder | None:
    """Return the run with this path or folder name. Raises ConfigError that names the option for another party's."""
    path = next((path for path in (Path(name), party.runs / name) if (path / "contract.json").is_file()), None)
    if path is None:
        return None
    folder = RunFolder.open(path, key=party.run_key)
    if folder.origin.party != party.party:
        raise ConfigError(f"{option} {name}: is a run of {folder.origin.party}; give one of {party.party}, under {party.runs}")
    return folder
