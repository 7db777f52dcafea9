"""The secret that a party's noise follows from: one for all its runs, beside its ledger, for as long as that."""

import json
import os
import secrets
from pathlib import Path

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import DamagedFile, StorageError, advice
from tallystick.storage import Origin, read_json, remove, sync_folder, write_json

SECRET_BYTES = 32
_HELPS = (
    "put back a copy; or remove it, and noise is drawn anew: what was sent before is then another release, which can be averaged "
    "with the next"
)


def row_noise_secret(contract: Contract, party: PartyFile) -> bytes | None:
    """The secret of a feature party whose embeddings get noise; None where nothing is drawn."""
    noisy = contract.role_of(party.party) == "feature" and contract.embedding_defenses().noisy
    return noise_secret(party) if noisy else None


def noise_secret(party: PartyFile) -> bytes:
    """Give the party's secret; made once, readable by its owner alone. A thing that is sent again then has the noise it had.

    It lies beside the ledger, as that counts on it: whoever has it can take the noise off. Raises StorageError, or DamagedFile
    with what helps.
    """
    path = party.privacy.ledger.with_suffix(".noise.json")
    if not path.exists():
        _make(path)
    try:
        secret = bytes.fromhex(json.loads(read_json(path, origin=_origin(path)))["secret"])
    except DamagedFile as error:
        raise DamagedFile(path, error.why, _HELPS) from None
    return secret


def _origin(path: Path) -> Origin:
    return Origin(folder=path.parent, only="secret of noise")


def _make(path: Path) -> None:
    """Write a fresh secret, unless another process was faster: then its one stays."""
    own = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    content = json.dumps({"secret": secrets.token_bytes(SECRET_BYTES).hex()}).encode()
    write_json(own, content, origin=_origin(path), private=True)
    try:
        os.link(own, path)
        sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}{advice(error)}") from None
    finally:
        remove(own)
