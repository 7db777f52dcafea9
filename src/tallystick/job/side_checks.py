"""Check before any job what a party can check alone: its party file, certificates, addresses, table and keys.

Commands that only align, and load no PyTorch, use this, and so do those that train (``preflight.py``).
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from tallystick.alignment.encoding import check_filters
from tallystick.alignment.exchange import check_ids
from tallystick.alignment.key_noise import check_radius
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.errors import ComputeError, ConfigError, DataError, LabelError, StorageError, TallystickError
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
from tallystick.tables.table import label_column, read_party_table
from tallystick.tables.target_leakage import follows, telling

if TYPE_CHECKING:
    from tallystick.job.resource_estimate import Room

T = TypeVar("T")


@dataclass(kw_only=True)
class Preflight:
    """Findings of the checks before a job: the problems in order, and everything that could be read in spite of them."""

    problems: list[TallystickError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # facts of the encoder, fitted on all own rows
    frame: Frame | None = None
    keys: Keys | None = None
    identity: Identity | None = None
    room: "Room | None" = None  # what a run of a party with columns will need
    budget: Sequence[Outlook] = ()  # each of this party's budgets as it would be after the job
    own_columns: bool | None = None  # for a label party, whether it has useful columns; None if not checked

    def tried(self, work: Callable[[], T]) -> T | None:
        """Run one check, and keep its problem, so that the other checks still run."""
        try:
            return work()
        except (ComputeError, ConfigError, DataError, StorageError) as error:
            self.problems.append(error)
            return None


def raise_problems(preflight: Preflight) -> None:
    """Raise the problem; for several problems a ConfigError or a DataError with a line for each."""
    if len(preflight.problems) == 1:
        raise preflight.problems[0]
    if preflight.problems:
        kind = DataError if all(isinstance(error, DataError) for error in preflight.problems) else ConfigError
        raise kind("\n".join(str(error) for error in preflight.problems))


def require_to_align(contract: Contract, party: PartyFile, *, folder: RunFolder | None = None) -> tuple[Frame, Keys | None]:
    """Return this party's table and keys, after all checks of an alignment have passed. Raises the same errors as require().

    Labels, columns and the network are checked before training: they do not change the alignment, and a party that only aligns
    needs no PyTorch. A helper has no table and no keys.
    """
    report = Preflight()
    fits = check_side(contract, party, report)
    if party.table is not None:
        report.frame = report.tried(lambda: read_party_table(party))
    if fits and (frame := report.frame) is not None:
        report.frame = report.tried(lambda: with_summaries(frame, party, contract.alignment))
    if fits and report.frame is not None:
        keys = check_keys(contract, party, report, report.frame, folder=folder)
        if contract.alignment.similarity is not None:  # the ledger is charged for noise on keys
            from tallystick.job.phases.budget import Ahead, check_budget

            report.tried(lambda: check_budget(Ahead(contract=contract, party=party, folder=folder, keys=keys)))
    raise_problems(report)
    if isinstance(report.frame, LazyTable):
        report.frame.forget_columns()  # an alignment only needs the keys
    return report.frame if report.frame is not None else pl.DataFrame(), report.keys


def check_side(contract: Contract, party: PartyFile, preflight: Preflight) -> bool:
    """Check everything but the table. Return whether the party file fits the contract."""
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
    """Load and check the party's certificates."""
    assert party.tls is not None
    password = party.tls.key_password.read("tls.key_password") if party.tls.key_password is not None else None
    return load_identity(
        party.party, ca=party.tls.ca, certificate=party.tls.certificate, key=party.tls.key, key_password=password
    )


def proxy_of(party: PartyFile) -> Proxy | None:
    """Return the proxy through which this party reaches its peers, with its credentials."""
    if party.proxy is None:
        return None
    credentials = party.proxy.credentials
    user_and_password = credentials.read("proxy.credentials").strip() if credentials is not None else None
    return checked_proxy(party.proxy.address, credentials=user_and_password)


def check_keys(
    contract: Contract, party: PartyFile, preflight: Preflight, frame: Frame, *, folder: RunFolder | None = None
) -> Keys | None:
    """Read and check the keys of a table, and compare them with those that this folder's run aligned."""
    keys = preflight.keys = preflight.tried(lambda: keys_of(frame, party, contract.alignment))
    preflight.tried(lambda: check_subgroups(frame, party))
    if keys is not None:
        preflight.tried(lambda: check_ids_of(contract, keys, is_label=contract.role_of(party.party) == "label"))
        has_labels = bool(party.labels) and set(party.labels) <= set(frame.columns)
        if contract.alignment.duplicates == "all" and has_labels and promises_labels(contract):
            preflight.tried(
                lambda: refuse_telling(
                    pl.Series(np.bincount(keys.id_R)[keys.id_R]),
                    label_column(frame, party).gather(keys.rows_R),
                    what="the number of rows of an id",
                    why="alignment.duplicates = all shows it to others: the contract's promise for labels would not hold; agree "
                    "on another rule for duplicates, or bring rows whose number does not depend on labels",
                )
            )
            preflight.warnings.append(
                "alignment.duplicates = all: others learn how many rows each common id has, so the contract's promise for labels "
                "holds only if these numbers do not depend on labels"
            )
        if folder is not None:
            preflight.tried(lambda: check_kept(party, keys, folder))
    return keys


def promises_labels(contract: Contract) -> bool:
    """Tell whether the contract promises that exact labels are hidden in all that is sent."""
    return contract.hides_labels or not contract.sends_gradients


def refuse_telling(values: pl.Series, label: pl.Series, *, what: str, why: str) -> None:
    """Refuse what others see of each row if it reveals labels that the contract promises to hide. Raises LabelError."""
    how = telling(values, label) or ("follows from the label" if follows(values, label) else None)
    if how is not None:
        raise LabelError(f"{what} {how}, and {why}")


def check_kept(party: PartyFile, keys: Keys, folder: RunFolder) -> None:
    """Refuse to resume a run that aligned other ids, or whose rows were erased. Raises DataError or ConfigError."""
    folder.require_rows()
    saved = folder.load_alignment()
    if saved is not None and saved[0].table != fingerprint(keys):
        raise DataError(
            f"the table of {party.party} has other ids, or another order, than when {folder.path} was aligned; "
            "put the old table back, or align it by `tallystick align`, or start a new run without --resume on all sides"
        )


def check_ids_of(contract: Contract, keys: Keys, *, is_label: bool) -> None:
    """Refuse ids, similar keys or dummies that the contract's alignment cannot use. Raises DataError or ConfigError."""
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
            f"{key}: with these {len(keys.ids)} ids they may exceed alignment.max_rows = {limit}; raise it, or use fewer dummies"
        )


def check_listen(listen: str, *, key: str = "listen") -> None:
    """Raise ConfigError if this process cannot listen at an address."""
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
