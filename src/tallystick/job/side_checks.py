"""What a party can find out alone before any job: its file, certificates, addresses, table and keys.

Shared by what aligns alone, which loads no PyTorch, and by what trains (``preflight.py``).
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from tallystick.alignment.encoding import check_filters
from tallystick.alignment.exchange import check_ids
from tallystick.alignment.key_noise import check_radius
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.errors import ComputeError, ConfigError, DataError, StorageError, TallystickError
from tallystick.job.loggers import loggers_of
from tallystick.job.phases.align import max_rows
from tallystick.network.certificates import Identity, load_identity
from tallystick.network.proxy import Proxy, checked_proxy
from tallystick.privacy.ledger import Outlook
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.groups import check_subgroups
from tallystick.tables.keys import Keys, fingerprint, keys_of
from tallystick.tables.lazy_table import Frame, LazyTable
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_party_table

if TYPE_CHECKING:
    from tallystick.job.resource_estimate import Room

T = TypeVar("T")


@dataclass(kw_only=True)
class Preflight:
    """Findings before a job: the problems in their order, and what could be read in spite of them."""

    problems: list[TallystickError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the encoder came to, fitted on all own rows
    frame: Frame | None = None
    keys: Keys | None = None
    identity: Identity | None = None
    room: "Room | None" = None  # what a run will take, of a party with columns
    budget: Sequence[Outlook] = ()  # what the job would bring each of this party's budgets to
    own_columns: bool | None = None  # of a label party: whether it has any of use; None where that was not found out

    def tried(self, work: Callable[[], T]) -> T | None:
        """Do one check. What it finds is kept, and the other checks go on."""
        try:
            return work()
        except (ComputeError, ConfigError, DataError, StorageError) as error:
            self.problems.append(error)
            return None


def raise_problems(preflight: Preflight) -> None:
    """Raise what was found: the problem, or of several a ConfigError or a DataError with a line for each."""
    if len(preflight.problems) == 1:
        raise preflight.problems[0]
    if preflight.problems:
        kind = DataError if all(isinstance(error, DataError) for error in preflight.problems) else ConfigError
        raise kind("\n".join(str(error) for error in preflight.problems))


def require_to_align(contract: Contract, party: PartyFile, *, folder: RunFolder | None = None) -> tuple[Frame, Keys | None]:
    """Return this party's table and its keys, once all that an alignment needs has passed. Raises as require() does.

    Labels, columns and the network are looked at before training, with the alignment kept: they change nothing of it, and nobody
    who only aligns needs PyTorch. A helper has no table and no keys.
    """
    report = Preflight()
    fits = check_side(contract, party, report)
    if party.table is not None:
        report.frame = report.tried(lambda: read_party_table(party))
    if fits and (frame := report.frame) is not None:
        report.frame = report.tried(lambda: with_summaries(frame, party, contract.alignment))
    if fits and report.frame is not None:
        keys = check_keys(contract, party, report, report.frame, folder=folder)
        if contract.alignment.similarity is not None:  # whose noise on keys is charged
            from tallystick.job.phases.budget import Ahead, check_budget

            report.tried(lambda: check_budget(Ahead(contract=contract, party=party, folder=folder, keys=keys)))
    raise_problems(report)
    if isinstance(report.frame, LazyTable):
        report.frame.forget_columns()  # an alignment needs the keys alone
    return report.frame if report.frame is not None else pl.DataFrame(), report.keys


def check_side(contract: Contract, party: PartyFile, preflight: Preflight) -> bool:
    """Check all but the table, and tell whether the party file fits the contract."""
    preflight.tried(lambda: check_party(contract, party))
    fits = not preflight.problems
    if party.tls is not None:
        preflight.identity = preflight.tried(lambda: identity_of(party))
    preflight.tried(lambda: proxy_of(party))
    if (listen := party.listen) is not None:
        preflight.tried(lambda: check_listen(listen))
    preflight.tried(lambda: _check_runs(party.runs))
    preflight.tried(lambda: loggers_of(party, folder=party.runs))
    preflight.tried(lambda: party.run_key)
    return fits


def identity_of(party: PartyFile) -> Identity:
    """Load the party's certificates, checked."""
    assert party.tls is not None
    password = party.tls.key_password.read("tls.key_password") if party.tls.key_password is not None else None
    return load_identity(
        party.party, ca=party.tls.ca, certificate=party.tls.certificate, key=party.tls.key, key_password=password
    )


def proxy_of(party: PartyFile) -> Proxy | None:
    """Return the proxy that the party's peers are dialled through, with its credentials."""
    if party.proxy is None:
        return None
    credentials = party.proxy.credentials
    user_and_password = credentials.read("proxy.credentials").strip() if credentials is not None else None
    return checked_proxy(party.proxy.address, credentials=user_and_password)


def check_keys(
    contract: Contract, party: PartyFile, preflight: Preflight, frame: Frame, *, folder: RunFolder | None = None
) -> Keys | None:
    """Read and check the keys of a table, beside those that a run of this folder aligned."""
    keys = preflight.keys = preflight.tried(lambda: keys_of(frame, party, contract.alignment))
    preflight.tried(lambda: check_subgroups(frame, party))
    if keys is not None:
        preflight.tried(lambda: check_ids_of(contract, keys, is_label=contract.role_of(party.party) == "label"))
        if folder is not None:
            preflight.tried(lambda: check_kept(party, keys, folder))
    return keys


def check_kept(party: PartyFile, keys: Keys, folder: RunFolder) -> None:
    """Refuse to go on with a run that aligned other ids, or whose rows were erased. Raises DataError, and ConfigError."""
    folder.require_rows()
    saved = folder.load_alignment()
    if saved is not None and saved[0].table != fingerprint(keys):
        raise DataError(
            f"the table of {party.party} has other ids, or another order, than when {folder.path} was aligned; "
            "put the old table back, or align it by `tallystick align`, or start a new run without --resume on all sides"
        )


def check_ids_of(contract: Contract, keys: Keys, *, is_label: bool) -> None:
    """Refuse ids, similar keys or dummies that the contract's alignment cannot take. Raises DataError or ConfigError."""
    check_ids(keys.ids, max_rows=max_rows(contract, len(keys.ids)))
    terms = contract.alignment.similarity
    if terms is not None and keys.similar is not None:
        check_filters(len(keys.similar), terms)
        check_radius(keys.similar, terms)
    if terms is not None and not is_label and len(keys.ids) < terms.neighbors:
        raise DataError(
            f"alignment.similarity.neighbors = {terms.neighbors}: this side has {len(keys.ids)} rows with a key to link to; "
            "agree on at most that many, or bring more rows"
        )
    limit = contract.alignment.max_rows
    dummies = contract.union.label_dummies if is_label else contract.union.feature_dummies
    if contract.linkage.imputes and limit is not None and len(keys.ids) + dummies > limit:
        key = f"union.{'label' if is_label else 'feature'}_dummies = {dummies}"
        raise DataError(
            f"{key}: with these {len(keys.ids)} ids they may exceed alignment.max_rows = {limit}; raise it, or have fewer dummies"
        )


def check_listen(listen: str, *, key: str = "listen") -> None:
    """Raise ConfigError where nobody can listen at an address now."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(1)
    except OSError as error:
        raise ConfigError(
            f"{key} = {listen}: cannot listen there ({error.strerror or error}); is the port taken, as by `tallystick serve`, "
            "or is it not this machine's address?"
        ) from None


def _check_runs(runs: Path) -> None:
    there = next((path for path in (runs, *runs.parents) if path.exists()), runs)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"runs = {runs}: no folder can be made there ({there} is not a folder that this user may write to)")
