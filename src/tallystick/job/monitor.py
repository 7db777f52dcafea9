"""Read and check the inputs of `monitor`: the run in use and the new rows."""

from datetime import date
from pathlib import Path

import polars as pl

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.config.table import TableConfig
from tallystick.errors import ConfigError, DataError
from tallystick.job.run_selection import chosen_run
from tallystick.job.versions import Versions
from tallystick.monitoring.monitor import KEY, Every, Look, labels_of
from tallystick.monitoring.served import ServedLook
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import kept_encoder
from tallystick.tables.keys import key_of, keys_of
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_rows, read_table, require_column


def look_of(
    contract: Contract, party: PartyFile, *, table: str | None, scores: Path | None, run: str | None, every: Every
) -> Look:
    """Read the new rows, their scores and the run. Raises ConfigError or DataError for what cannot be read."""
    check_party(contract, party, network=False)
    if contract.role_of(party.party) == "helper":
        raise ConfigError(f"monitor: {party.party} has no table; it is for parties with rows")
    folder = _folder_in_use(contract, party, run)
    frame = with_summaries(read_rows(party.table_at(table), party, trained=kept_encoder(folder)), party, contract.alignment)
    of_scores = None
    if scores is not None:  # keys of a CSV are text if the party file says so
        scores_table = read_table(TableConfig(path=scores), text=party.text_columns)
        of_scores = scores_table.select(scores_table.columns)
    return Look(
        contract=contract,
        party=party,
        folder=folder,
        frame=frame,
        keys=keys_of(frame, party, contract.alignment),
        scores=of_scores,
        every=every,
    )


def served_look_of(
    contract: Contract, party: PartyFile, *, labels: str | None, run: str | None, since: date | None, every: Every
) -> ServedLook:
    """Find the served run, and read the labels that have arrived. Raises ConfigError or DataError."""
    check_party(contract, party, network=False)
    labels_by_key: pl.DataFrame | None = None
    if labels is not None:  # a table with keys and labels, at any address that table.path may have
        if not party.labels:
            raise ConfigError(f"--labels: {party.party} has no label column; {contract.label_party} can look at labels")
        looked_at = {*party.keys.values(), *party.labels}
        source = party.table_at(labels, option="--labels")
        frame = read_table(source, text=party.text_columns, asks_for=looked_at.__contains__)
        key = key_of(frame, columns=party.keys, alignment=contract.alignment)
        columns = zip(labels_of(contract, party), party.labels, strict=True)
        arrived = {name: require_column(frame, column, use="label") for name, column in columns}
        has_label = ~pl.all_horizontal(pl.col(list(arrived)).is_null())
        labels_by_key = pl.DataFrame({KEY: key, **arrived}).drop_nulls(KEY).filter(has_label)
        if labels_by_key.get_column(KEY).is_duplicated().any():
            raise DataError(f"--labels: a key stands in {labels} with several labels; give each row's label once")
    return ServedLook(
        contract=contract,
        party=party.party,
        folder=_folder_in_use(contract, party, run),
        labels=labels_by_key,
        since=since,
        every=every,
    )


def _folder_in_use(contract: Contract, party: PartyFile, run: str | None) -> RunFolder:
    """Return the run that is named, or the newest promoted one, or the newest."""
    promoted = [] if run is not None else Versions(contract=contract, party=party).intact()
    return chosen_run(contract, party, promoted[0].run_id if promoted else run, say=lambda _: None)
