"""Erase persons from all data by row that a party's `runs` folder keeps: ``tallystick forget``.

A run folder keeps some files with a value for each row: the alignment, the records for the audit, scores, and checkpoints from
which training continues. These values include statistics of many rows, so a run gives up all of them, for all rows. Journals of
serving, opened scores and their counts stay in use, so only the persons are removed from them. Profiles of columns lose every
value of few rows. Reports lose the places and texts that a linkage by similarity shows. Weights, encoders and figures stay.

The files that are changed, and the account of it, are the same whether or not a person was in them: nobody learns from it who was
known. No other party is notified. Sides that serve align again when they next meet. The others see by this that something was
erased or changed, but not whose rows.

No formal guarantee: weights and figures of a run still depend on each of its rows, and its encoder holds values of single rows,
such as the smallest and the largest of a column. Not protected: files outside `runs`, data that other parties keep, and freed
blocks of a disk.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from tallystick.alignment.outcome import Alignment, Candidates
from tallystick.audit.linkage import NOTE as LINKAGE_NOTE
from tallystick.audit.linkage import keep_linkage, kept_linkage, without_rows
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError, StorageError, advice
from tallystick.evaluation.decisions import Grouping
from tallystick.report.page import to_html
from tallystick.report.templating import write_page
from tallystick.results import read_result
from tallystick.run_folder.answer_journal import PREFIX as ANSWERS
from tallystick.run_folder.answer_journal import SERVING, row_digest
from tallystick.run_folder.folder import ALIGNMENT, ERASED, NOISY_KEYS, SETTLED, TRIAL, RunFolder
from tallystick.run_folder.ledger import LEDGER_NOTE
from tallystick.run_folder.line_file import LINES, rewrite_lines
from tallystick.run_folder.profile import coarsen_profile, profile_path
from tallystick.run_folder.score_count import forget_counted_scores
from tallystick.run_folder.shared_head import forget_scored
from tallystick.scoring.journal import PREFIX as JOURNAL
from tallystick.serving.kept_alignment import FILE as SERVED_ALIGNMENT
from tallystick.serving.serving_folder import ServingHome
from tallystick.storage import PARTIAL, remove
from tallystick.tables.keys import ids_of_persons
from tallystick.tables.lazy_table import Frame
from tallystick.tables.text import FRACTION, as_text

BY_ROW = ("scores.parquet", f"{SETTLED}.json", "values.json", NOISY_KEYS)
"""Files of a run with a value for each row. Every folder in a run has such values too, or serves to continue a training: records
for the audit, buckets of an alignment, checkpoints, trials of a search.
"""
REMAINS = (
    "Weights, encoders and figures of finished runs remain, and depend on each of the rows. An encoder has values as they stand "
    "in the table: the smallest and the largest number of a column, up to 1,000 numbers of a skewed one, and categories. To be "
    "rid of them, delete the persons' rows from the table, train from scratch on all sides, promote that run, and delete the "
    "older folders.",
    "Files outside `runs` remain: tables, stores of serving, predictions, exported models, students. So does what other parties "
    "have: no other party was told.",
    "The runs can predict and be served as before. They cannot be resumed, evaluated or audited again, and no run can start from "
    "them.",
)


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """Account for an erasure. The account does not depend on whether a person was known.

    Args:
        deleted: files and folders that are deleted, or emptied of their rows.
        coarsened: profiles, findings and reports that lose every value of few rows.
        rewritten: journals from which the persons are removed, and everybody who was asked about a run that is gone.
        doubts: doubts about how the persons' keys are written.
        ledger: the ledger that drops the persons' rows from its counts of opened scores, or None if there is none.
        done: whether it was done, rather than only planned.
        remains: sentences that say which remaining files still depend on rows of a run.
    """

    deleted: tuple[str, ...]
    coarsened: tuple[str, ...]
    rewritten: tuple[str, ...]
    doubts: tuple[str, ...]
    ledger: str | None
    done: bool
    remains: tuple[str, ...] = REMAINS


def erase_persons(party: PartyFile, persons: Frame, *, do: bool) -> Erasure:
    """Erase persons from this party's `runs` folder and its ledger, or say what an erasure would change. It reads no table.

    After a crash, a second call finishes what the first one began.

    Args:
        party: the party whose `runs` folder it is.
        persons: one row for each person, with the key columns under this party's names.
        do: whether to erase; if False, nothing is changed.

    Raises ConfigError if a key column is missing, a person has no key, or another process works in one of the folders; then
    nothing is erased.
    Raises StorageError, and DamagedFile, for a file that cannot be read or written.
    """
    columns = set(party.keys.values()) & set(persons.columns)
    named_N = np.full(persons.height, not columns)  # a column that is missing is named below
    for name in columns:
        named_N |= (as_text(persons.get_column(name)).str.strip_chars() != "").fill_null(False).to_numpy()
    if nameless := int((~named_N).sum()):
        raise ConfigError(f"forget: {nameless} of {persons.height} persons have a blank key, which names nobody; leave them out")
    paths = sorted(path.parent for path in party.runs.glob("*/contract.json"))
    opened = [RunFolder.open(path, key=party.run_key) for path in paths]
    runs = [(folder, folder.contract()) for folder in opened if folder.origin.party == party.party]
    ids_of = {folder.path: _ids(party, contract, persons) for folder, contract in runs}
    homes = {home.contract: home for home in ServingHome.all(party)}
    with ExitStack() as locks:
        in_use: list[RunFolder | ServingHome] = [*(folder for folder, _ in runs), *homes.values()]
        for each in in_use if do else ():  # before files are listed, since a run that ends now writes some
            locks.enter_context(each.locked())
        by_row = {folder.path: _files_by_row(folder) for folder, _ in runs}
        answers = {folder.path: sorted(folder.path.glob(f"{ANSWERS}*{LINES}")) for folder, _ in runs}
        journals = {name: sorted(home.path.glob(f"{JOURNAL}*{LINES}")) for name, home in homes.items()}
        of_few_rows = [  # whose values may be in these files, among figures of many
            path
            for folder, _ in runs
            for path in (profile_path(folder), folder.path / f"{LINKAGE_NOTE}.json", folder.result, folder.report)
        ]
        coarsened = [path for path in of_few_rows if path.exists()]
        in_homes = sorted(path for home in homes.values() for path in home.path.iterdir())
        aligned = [path for path in in_homes if path.name == SERVED_ALIGNMENT or path.name.endswith(PARTIAL)]
        if do:
            for folder, _ in runs:
                _erase_rows(folder, by_row[folder.path])
                coarsen_profile(folder)
                _erase_shown_rows(folder)
                forget_scored(folder, ids_of[folder.path])
                _erase_answers(folder, answers[folder.path], ids_of[folder.path])
            for path in aligned:
                remove(path)
            for name, home in homes.items():
                ids_by_run = {folder.run_id: ids_of[folder.path] for folder, contract in runs if contract.name == name}
                _erase_asked(home, journals[name], ids_by_run)
            forget_counted_scores(party, set().union(*ids_of.values()))
    return Erasure(
        deleted=tuple(str(path) for paths in by_row.values() for path in paths) + tuple(str(path) for path in aligned),
        coarsened=tuple(str(path) for path in coarsened),
        rewritten=tuple(str(path) for paths in (*answers.values(), *journals.values()) for path in paths),
        doubts=_doubts(party, persons),
        ledger=str(party.privacy.ledger) if party.privacy.ledger.exists() else None,
        done=do,
    )


def persons_by_key(party: PartyFile, keys: Sequence[str]) -> pl.DataFrame:
    """Return a row for each of these keys. Raises ConfigError if a person has several columns of keys."""
    columns = sorted(set(party.keys.values()))
    if len(columns) != 1:
        raise ConfigError(
            f"KEY: {party.party} knows a person by {' and '.join(columns) or 'no key'}; give a file of these columns by --table"
        )
    return pl.DataFrame({columns[0]: list(keys)})


def _doubts(party: PartyFile, persons: Frame) -> tuple[str, ...]:
    """Say which keys a column of numbers would write differently. The lines do not depend on who is known."""
    lines = []
    for name in sorted(set(party.keys.values()) & set(persons.columns)):
        column = persons.get_column(name)
        if column.dtype == pl.String and (ends := int(column.str.contains(FRACTION).sum())):
            lines.append(
                f"key column {name!r}: {ends} of these keys end{'s' if ends == 1 else ''} in a zero behind a point, as 1.50; "
                "where the table has numbers it is 1.5, so name that person again without the zero"
            )
    return tuple(lines)


def _ids(party: PartyFile, contract: Contract, persons: Frame) -> set[bytes]:
    """Return all ids under which a run of this contract may know these persons. A run linked by similarity knows no ids."""
    terms = contract.alignment
    if terms.similarity is not None:
        return set()
    if missing := sorted({key.name for key in terms.keys} - party.keys.keys()):
        raise ConfigError(
            f"keys: has no {missing[0]}, by which runs of contract {contract.name} in {party.runs} are linked; name its column"
        )
    return ids_of_persons(persons, columns=party.keys, alignment=terms)


def _files_by_row(folder: RunFolder) -> list[Path]:
    """List the files and folders of a run that hold a value for each row, and files that a kill left behind."""
    files = [folder.path / name for name in (ALIGNMENT, *BY_ROW)]
    inside = sorted(folder.path.iterdir())
    return [path for path in inside if path.is_dir() or path in files or path.name.endswith(PARTIAL)]


def _erase_rows(folder: RunFolder, files: Iterable[Path]) -> None:
    """Delete a run's values by row.

    Its alignment keeps the run's id, the counts, and the scale of the similarities, by which new rows are linked. A trial of a
    search keeps its last reading of the ledger, which shows whether a ledger found later is an older copy.
    """
    # First, because a run that lost some of them cannot continue.
    folder.note(ERASED, {"on": datetime.now(UTC).date().isoformat()})
    for path in files:
        if path.name == ALIGNMENT and (saved_before := folder.load_alignment()) is not None:
            saved, alignment = saved_before
            counts = Alignment(
                method=alignment.method,
                rows_N=np.empty(0, dtype=np.int64),
                sizes=alignment.sizes,
                learnt=alignment.learnt,
                candidates={
                    name: Candidates(numbers_NK=np.empty((0, 1), dtype=np.int64), rows=each.rows, scale=each.scale)
                    for name, each in alignment.candidates.items()
                },
                multiplications=alignment.multiplications,
            )
            folder.save_alignment(counts, run_id=saved.run_id, table="")
        elif path.is_dir():
            note = path / f"{LEDGER_NOTE}.json"
            keeps_note = path.name.startswith(TRIAL) and note.exists()
            try:
                for each in [each for each in path.iterdir() if each != note] if keeps_note else [path]:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
            except OSError as error:
                raise StorageError(f"cannot delete {path}: {error.strerror}{advice(error)}") from None
        else:
            remove(path)


def _erase_shown_rows(folder: RunFolder) -> None:
    """Remove places and texts of rows from the findings of a linkage, and names of small groups from the report."""
    if (summary := kept_linkage(folder)) is not None:
        keep_linkage(folder, without_rows(summary))
    if not folder.result.exists():
        return
    result = read_result(folder.read_json(folder.result))
    linkage = result.sections.linkage
    groups = [
        Grouping(**{**each, "groups": [group for group in each["groups"] if group["rows"] is not None]})
        for each in result.sections.groups
    ]
    sections = msgspec.structs.replace(
        result.sections, linkage=without_rows(linkage) if linkage is not None else None, groups=groups
    )
    if sections != result.sections:
        result = msgspec.structs.replace(result, sections=sections)
        folder.write(folder.result, result.to_json())
        write_page(to_html(result), folder.report, origin=folder.origin)


def _erase_answers(folder: RunFolder, files: Sequence[Path], ids: set[bytes]) -> None:
    """Remove persons from a run's journal of online answers. The times that requests took stay."""
    secret = folder.noted(SERVING).get("secret")
    if not files or not isinstance(secret, str):
        return
    digests = {row_digest(each, bytes.fromhex(secret)) for each in ids}

    def without(line: bytes) -> bytes:
        answer = json.loads(line)
        answer["rows"] = [row for row in answer.get("rows", ()) if row["row"] not in digests]
        return _compact(answer)

    for path in files:
        rewrite_lines(path, origin=folder.origin, rewritten=without)


def _erase_asked(home: ServingHome, files: Sequence[Path], ids_by_run: Mapping[str, set[bytes]]) -> None:
    """Remove persons from the journals of requests, and everybody who was asked about a run that is gone.

    How that run spelt its keys is no longer known. A row without a name still counts for its day.
    """
    if not files:
        return
    secret = home.secret()
    digests = {row_digest(each, secret) for ids in ids_by_run.values() for each in ids}

    def without(line: bytes) -> bytes:
        asked = json.loads(line)
        is_gone = asked["run"] not in ids_by_run
        asked["rows"] = ["" if is_gone or row in digests else row for row in asked["rows"]]
        return _compact(asked)

    for path in files:
        rewrite_lines(path, origin=home.origin, rewritten=without)


def _compact(values: object) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()
