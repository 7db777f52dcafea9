"""What `monitor` looks at: the run in use and the new rows, read and checked."""

from pathlib import Path

import polars as pl

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile, TableConfig, check_party
from tallystick.data.keys import keys_of
from tallystick.data.repeats import with_summaries
from tallystick.data.table import read_table
from tallystick.errors import ConfigError
from tallystick.job.runs import chosen_run
from tallystick.job.versions import Versions
from tallystick.monitoring.monitor import Every, Look


def look_of(
    contract: Contract, party: PartyFile, *, table: Path | None, scores: Path | None, run: str | None, every: Every
) -> Look:
    """Read the new rows, their scores and the run; raises ConfigError and DataError for what cannot be read."""
    check_party(contract, party, network=False)
    if party.table is None or contract.role_of(party.party) == "helper":
        raise ConfigError(f"monitor: {party.party} has no table; it is for parties with rows")
    promoted = [] if run is not None else Versions(contract=contract, party=party).intact()
    folder = chosen_run(contract, party, promoted[0].run_id if promoted else run, say=_unheard)
    source = party.table.model_copy(update={"path": table, "query": None, "database": None}) if table is not None else party.table
    frame = with_summaries(read_table(source, text=party.text_columns), party, contract.alignment)
    return Look(
        contract=contract,
        party=party,
        folder=folder,
        frame=frame,
        keys=keys_of(frame, party, contract.alignment),
        scores=_read(scores, party) if scores is not None else None,
        every=every,
    )


def _read(scores: Path, party: PartyFile) -> pl.DataFrame:
    """The scores; keys of a CSV as text where the party file says so."""
    found = read_table(TableConfig(path=scores), text=party.text_columns)
    return found.select(found.columns)


def _unheard(_: str) -> None:
    """Drop a note."""
