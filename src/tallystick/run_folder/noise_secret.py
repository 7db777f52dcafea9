"""Keep the secret from which a party's noise follows: one for all its runs, stored with its ledger for the ledger's lifetime."""

import json
import os
import secrets
from pathlib import Path

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import DamagedFile, StorageError, advice
from tallystick.run_folder.folder import digest_of
from tallystick.run_folder.ledger import EMBEDDINGS, KEYS, known_ledger
from tallystick.storage import Origin, read_json, remove, sync_folder, write_json

SECRET_BYTES = 32
_BOUND = "noise secret"
_HELPS = (
    "put back a copy. Without a copy, this noise cannot be drawn again, and fresh noise on the same rows can be "
    "averaged with what was sent: begin with a new ledger (privacy.ledger), and count what this one holds on top of it"
)


def row_noise_secret(contract: Contract, party: PartyFile) -> bytes | None:
    """Return the secret of a feature party whose embeddings get noise, or None if no noise is drawn."""
    noisy = contract.role_of(party.party) == "feature" and contract.embedding_defenses().noisy
    return noise_secret(party) if noisy else None


def noise_secret(party: PartyFile) -> bytes:
    """Return the party's secret, made once and readable by its owner alone. Anything that is sent again then has the same noise.

    It is stored next to the ledger, which relies on it and holds its digest: a lost secret is not drawn again, and another one is
    not accepted. If the ledger has no digest but holds releases with noise, there was a secret, so none is made either. Whoever
    has the secret can remove the noise. Raises what known_ledger does, StorageError, or DamagedFile with advice.
    """
    path, ledger = party.privacy.ledger.with_suffix(".noise.json"), known_ledger(party)
    if not path.exists() and ledger.bind(_BOUND, None) is None:
        if count := sum(entry.dataset.endswith((KEYS, EMBEDDINGS)) for entry in ledger.entries()):
            why = f"it is missing, and {party.privacy.ledger} holds {count} entries of noise that followed from it"
            raise DamagedFile(path, why, _HELPS)
        _make(path)
    try:
        secret = bytes.fromhex(json.loads(read_json(path, origin=_origin(path)))["secret"])
    except DamagedFile as error:
        raise DamagedFile(path, error.why, _HELPS) from None
    if ledger.bind(_BOUND, digest_of(secret)) != digest_of(secret):
        raise DamagedFile(path, f"it is not the secret that the noise charged to {party.privacy.ledger} follows from", _HELPS)
    return secret


def _origin(path: Path) -> Origin:
    return Origin(folder=path.parent, only="secret of noise")


def _make(path: Path) -> None:
    """Write a new secret, unless another process was faster: then its secret stays."""
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
