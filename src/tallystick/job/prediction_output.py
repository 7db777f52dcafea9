"""Check the file of a prediction's scores before a peer is called, and write it."""

import io
from pathlib import Path

import polars as pl

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError
from tallystick.storage import written
from tallystick.tables.lazy_table import Frame

RUN = "run_id"
"""Column of the predictions: the run whose model scored, by the id that all its parties know."""
ROW = "row"
"""Column of the predictions, if keys may repeat: the row's number in the table, from 0."""
SCORED_BY = "scored_by"
"""Column of the predictions, if rows without a partner's row have a score too: the joint model, or own columns."""
SCORED_ON = "scored_on"
"""Column of the predictions by a head on shares: the day (UTC) on which a row's only score was opened."""
SIMILARITY = "similarity"
"""Column of the predictions, if rows are linked by similarity: the similarity of the most similar row."""
_FORMULA = r"^[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"  # the last four are full-width forms of the first
_NUMBER = r"^[+\-][0-9][0-9 .,()/\-]*$"  # telephone numbers, too: a spreadsheet may compute with them, but runs nothing


def check_output(contract: Contract, party: PartyFile, output: Path | None) -> None:
    """Refuse a file that cannot hold the scores, or a side that gets none. Raises ConfigError."""
    gets_scores = contract.role_of(party.party) == "label" or contract.linkage.shares_scores
    if gets_scores and (output is None or output.suffix not in (".csv", ".parquet")):
        raise ConfigError(
            f"output{' is missing' if output is None else f' = {output}'}: name a .csv or .parquet file for the scores (--output)"
        )
    if output is not None and not gets_scores:
        raise ConfigError(f"output = {output}: the scores of an intersection stay with {contract.label_party}; leave it out")
    if output is not None and output.exists():
        raise ConfigError(f"output = {output}: exists already; name another file or remove it")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"output = {output}: there is no folder {output.absolute().parent}; make it first")


def check_columns(contract: Contract, party: PartyFile, frame: Frame, output: Path) -> None:
    """Refuse key columns whose names clash with the scores, and in a CSV file keys that a spreadsheet would run.

    A CSV file has no way to say that ``=1+1`` is text, and a quote in front of it would be another key for a program that joins
    by it.
    """
    columns = list(party.keys.values())
    reserved_names = {RUN, ROW, SCORED_BY, SIMILARITY, "score", *([SCORED_ON] if contract.shares_head else [])}
    for name in columns:
        if name in reserved_names or (
            contract.target.type in ("multiclass", "multilabel", "quantile") and name.startswith("score_")
        ):
            raise ConfigError(f"keys: column {name!r} has a name that the file of scores needs itself; rename it in the table")
    if output.suffix != ".csv":
        return
    for name in columns:
        column = frame.select([name]).to_series()
        texts = column.cast(pl.String) if column.dtype in (pl.String, pl.Categorical, pl.Enum) else pl.Series([], dtype=pl.String)
        values = pl.concat([pl.Series([name]), texts.alias("")])
        odd = values.str.contains(_FORMULA) & ~values.str.contains(_NUMBER)
        if count := int(odd.sum()):
            first = values.filter(odd)[0]
            raise ConfigError(
                f"output = {output}: {count} of {len(values)} keys in column {name!r} begin as a formula does in a spreadsheet, "
                f"which would run it ({first[:40]!r} is the first); name a .parquet file, which holds every key as it is"
            )


def write_scores(scores: pl.DataFrame, output: Path) -> None:
    """Write the scores completely or not at all, readable by this user alone, because they are about persons. Raises
    StorageError.
    """
    content = io.BytesIO()  # a disk error is then Python's own, with its number, and not Polars' text
    if output.suffix == ".csv":
        scores.write_csv(content)
    else:
        scores.write_parquet(content)
    with written(output, private=True, shared=True) as file:
        file.write(content.getbuffer())
