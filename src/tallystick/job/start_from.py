"""Find the finished run that `--start-from` names, and check that its network is the contract's."""

from contextlib import suppress
from typing import Any

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.sections import LEAST_FOLDED
from tallystick.errors import ConfigError, StorageError
from tallystick.job.run_selection import run_at
from tallystick.reading import shown
from tallystick.run_folder.folder import ERASED, RunFolder
from tallystick.run_folder.trained import kept_folds

_SCRATCH = "start from scratch, without --start-from on all sides"


def run_to_start_from(contract: Contract, party: PartyFile, name: str) -> RunFolder:
    """Return the finished run of that id, folder name or path. It may be of another contract whose network is the same.

    Raises ConfigError if there is none, or this contract cannot start from it; StorageError for a damaged one.
    """
    if contract.role_of(party.party) == "helper":
        raise ConfigError(f"--start-from {name}: {party.party} is a helper, which keeps nothing of a run; leave it out here")
    folder = run_at(party, name, option="--start-from")
    for path in sorted(party.runs.glob("*/contract.json")) if folder is None else ():
        with suppress(ConfigError, StorageError):  # skip contracts that this version cannot read
            other = RunFolder.open(path.parent, key=party.run_key)
            if other.origin.party == party.party and other.run_id == name:
                folder = other
                break
    if folder is None:
        raise ConfigError(
            f"--start-from {name}: there is no such run in {party.runs}; give the id of a finished run, which all sides have, or "
            f"{_SCRATCH}"
        )
    if not folder.trained:
        raise ConfigError(f"--start-from {name}: {folder.path} holds no trained model; finish it, or {_SCRATCH}")
    if facts := folder.noted(ERASED):
        raise ConfigError(
            f"--start-from {name}: persons were erased from {folder.path.name} on {facts['on']}, and its weights still hold what "
            f"training learnt of them; {_SCRATCH}"
        )
    folder.check(trained=True)
    for damage in folder.damage():
        raise damage
    earlier = folder.contract()
    where = f"--start-from {name}"
    if contract.linkage.imputes:
        raise ConfigError(
            f"{where}: on a union a row's embedding stays and a stand-in's changes from one run to the next, so the others could "
            f"tell which is which; {_SCRATCH}"
        )
    network, earlier_network = _network(contract), _network(earlier)
    if differ := [key for key in network if network[key] != earlier_network[key]]:
        key = differ[0]
        raise ConfigError(
            f"{where}: its contract has {key} = {shown(earlier_network[key])}, this one {shown(network[key])}: the networks "
            f"differ; put it back, or {_SCRATCH}"
        )
    if contract.defense and contract.defense != earlier.defense:
        raise ConfigError(
            f"{where}: the run was trained with other defences; everything sent would contain what its weights show without "
            f"this contract's; {_SCRATCH}"
        )
    networks = kept_folds(folder)
    setting = contract.training.folds
    without = contract.without_unaligned() if contract.unaligned.facts.dispensable else contract
    if not (setting == networks or (setting == "auto" and (networks == 1 or without.folds(LEAST_FOLDED) > 1))):
        raise ConfigError(
            f"--start-from {name}: its model is of {networks} networks side by side, this contract's training.folds = {setting} "
            f"of {contract.folds(LEAST_FOLDED)}; put training.folds = {networks}, or {_SCRATCH}"
        )
    return folder


def _network(contract: Contract) -> dict[str, Any]:
    """Return the contract's keys that decide the network and the meaning of its inputs and outputs, with their values."""
    network: dict[str, Any] = {"parties": {name: party.role for name, party in sorted(contract.parties.items())}}
    for section in ("target", "model", "unaligned"):
        values = getattr(contract, section).model_dump(mode="json")
        network |= {f"{section}.{key}": value for key, value in values.items()}
    del network["model.embedding_scale"]  # epochs before embeddings are made up: this training starts from the run's weights
    network["training.gradients"] = contract.training.gradients
    network["alignment.method"] = contract.alignment.method
    terms = contract.alignment.similarity
    network["alignment.similarity"] = terms.model_dump(mode="json") if terms is not None else None
    return network
