"""Keep what a party needs to serve a contract, with any of its runs: a secret, a journal, and a lock."""

import json
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.encryption import FolderKey
from tallystick.scoring.answering import OPEN, Gate
from tallystick.scoring.journal import Journal
from tallystick.storage import Origin, is_encrypted, locked, make_folder, make_folders, read_json, write_json

_FOLDER = "serving"
SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class ServingHome:
    """A folder next to the run folders.

    All versions share it: budgets count the requests to all of them, and a row is in the same window with each.

    Args:
        path: of the folder.
        key: encrypts the secret; None if run folders are not encrypted.
    """

    path: Path
    key: FolderKey | None = field(repr=False)

    @classmethod
    def of(cls, contract: Contract, party: PartyFile) -> "ServingHome":
        """Open the folder of this party under this contract, and make it if it does not exist. Raises StorageError."""
        home = cls.at(contract, party)
        make_folders(home.path.parent, mode=0o700)
        make_folder(home.path)
        return home

    @classmethod
    def at(cls, contract: Contract, party: PartyFile) -> "ServingHome":
        """Return the same, without making the folder."""
        return cls(path=party.runs / _FOLDER / contract.name / party.party, key=party.run_key)

    @classmethod
    def all(cls, party: PartyFile) -> "list[ServingHome]":
        """List the folders of this party, also of contracts without a run folder."""
        paths = sorted((party.runs / _FOLDER).glob(f"*/{party.party}"))
        return [cls(path=path, key=party.run_key) for path in paths if path.is_dir()]

    @property
    def contract(self) -> str:
        """Return the name of the contract that is served."""
        return self.path.parent.name

    @property
    def origin(self) -> Origin:
        """Return the owner of its files."""
        return Origin(folder=self.path, key=self.key)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder for this process. Raises ConfigError if another process already serves this contract for this party."""
        return locked(self.path, doing="serves this contract for this party already")

    def secret(self) -> bytes:
        """Return the 32 bytes from which windows and the journal's digests follow. Raises DamagedFile."""
        path = self.path / "secret.json"
        origin = Origin(folder=self.path, only="secret of serving", key=self.key)
        if self.key is not None and _FOLDER in self.key.clear and path.exists() and not is_encrypted(path):
            origin = replace(origin, key=None)  # it was drawn before the party file named a key
        elif not path.exists():
            content = json.dumps({"secret": secrets.token_bytes(SECRET_BYTES).hex()})
            write_json(path, content.encode(), origin=origin, private=True)
        return bytes.fromhex(json.loads(read_json(path, origin=origin))["secret"])

    def gate(self, *, a_day: int | None, a_day_per_row: int | None, journal: bool) -> Gate:
        """Build the journal, and the budgets that it counts."""
        if not journal and a_day is None and a_day_per_row is None:
            return OPEN
        return Journal(
            origin=Origin(folder=self.path, key=self.key), secret=self.secret(), a_day=a_day, a_day_per_row=a_day_per_row
        )
