"""Measure a table that does not fit memory: generate rows like Criteo's, then read, fit, encode, train and score.

Each party is a process that calls the phases of a run (``job/phases``) one after the other, over mutual TLS on loopback, and
measures each. Keys and alignment are left out, because ``bench alignment`` measures them. Instead, both parties know their rows
by number, and the positions are these numbers in an order drawn from the seed, as in an alignment.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from typer import Option

from tallystick.alignment.ids import Ids
from tallystick.alignment.outcome import Alignment
from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import parse_party
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.datasets import dataset_of
from tallystick.dataset.own_rows import OwnRows
from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyContext, run_parties
from tallystick.job.handshake import Agreement
from tallystick.job.job import Job, use_threads
from tallystick.job.log import Logbook
from tallystick.job.phases.evaluate import evaluate_as_feature_party, evaluate_as_label_party
from tallystick.job.phases.train import train_as_feature_party, train_as_label_party
from tallystick.network.channel import Channel
from tallystick.network.messages import Message
from tallystick.network.session import Limits
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger
from tallystick.run_folder.trained import keep_encoders
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import PackedFeatures
from tallystick.tables.keys import KeyReport, Keys
from tallystick.tables.lazy_table import Frame
from tallystick.tables.table import read_party_table
from tallystick.watcher import Silent
from tallystick_experiments.resident import RESET_PEAK, status_bytes
from tallystick_experiments.speed.memory import GENERATED_ROWS, OWN_CATEGORICAL, OWN_NUMERIC, CriteoLike

HOURS = 4 * 3600.0
SAMPLED_S = 0.1
MINUTE_S = 60.0
ROW = "row"
SHARES = {"test": 0.05, "validation": 0.05}


def measure_table(
    *,
    rows: Annotated[int, Option(help="Of each party's generated table.", min=1000)] = 10_000_000,
    batch_size: Annotated[int, Option(help="Of training.", min=32)] = 8192,
    alone: Annotated[
        bool, Option("--alone", help="The label party only, up to its rows encoded; then batches of them for a minute.")
    ] = False,
    log: Annotated[Path | None, Option(help="A file that gets the figures of each phase as it ends.")] = None,
    seed: int = 1,
) -> dict[str, Any]:
    """Measure each phase at both parties.

    Return, per party and phase, seconds, processor seconds and the peak of memory: all resident memory, the part without pages of
    files, and the rise of that part per row in bytes. Raises TallystickError if a party fails.
    """
    arguments = {"rows": rows, "batch_size": batch_size, "seed": seed, "log": str(log.absolute()) if log else None}
    about = {"rows": rows, "batch_size": batch_size, "cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="tallystick-table-") as folder:
        if alone:
            return about | {"parties": {LABEL: _measured(LABEL, Path(folder), arguments | {"seconds": MINUTE_S}, [])}}
        limits = Limits(wait_s=HOURS, deadline_s=HOURS)
        results = run_parties(Path(folder), table_party, PAIR, arguments, limits=limits, timeout_s=HOURS)
    return about | {"parties": results.results}


@dataclass(kw_only=True)
class _Phases:
    """Measure the resources of each phase of this process.

    Args:
        rows: rows of the table.
        log: the file to which figures are written as they come.
        name: the party's name.
    """

    rows: int
    log: Path | None
    name: str
    found: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Measure the work in this block."""
        RESET_PEAK.write_text("5")
        wall, busy, over = time.perf_counter(), time.process_time(), threading.Event()
        before = status_bytes("RssAnon")
        most = [before]

        def watch() -> None:
            while not over.is_set():
                most[0] = max(most[0], status_bytes("RssAnon"))
                over.wait(SAMPLED_S)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        self.found[phase] = {
            "seconds": round(time.perf_counter() - wall, 1),
            "processor_s": round(time.process_time() - busy, 1),
            "peak_mib": round(status_bytes("VmHWM") / 2**20),
            "anonymous_mib": round(most[0] / 2**20),
            "bytes_per_row": round((most[0] - before) / self.rows, 1),
        }
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{time.strftime('%H:%M:%S')} {self.name}, {self.rows:,} rows, {phase}: {self.found[phase]}\n")


@dataclass(frozen=True, kw_only=True)
class _MeasuredRows(OwnRows):
    """Hold a party's rows, and measure fitting and use of their encoder."""

    phases: _Phases
    encoding: ExitStack = field(default_factory=ExitStack)

    def fit_encoder(self, frame: Frame, training_rows: NDArray[np.int64]) -> Encoder | None:
        """Fit the encoder as a run does. The next phase encodes, beginning with labels."""
        with self.phases.during("fit"):
            encoder = super().fit_encoder(frame, training_rows)
        self.encoding.enter_context(self.phases.during("encode"))
        return encoder

    def named(self, packed: PackedFeatures, rows_M: NDArray[np.int64], contract: Contract) -> PackedFeatures:
        """Return the same rows, which are encoded by now."""
        self.encoding.close()
        return super().named(packed, rows_M, contract)


def table_party(stage: PartyContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run one party's process, and return its measurements and the bytes of a row."""
    return _measured(stage.name, stage.home, arguments, list(stage.channels.values()))


def _measured(name: str, home: Path, arguments: Mapping[str, Any], channels: list[Channel]) -> dict[str, Any]:
    rows, seed = arguments["rows"], arguments["seed"]
    log = Path(arguments["log"]) if arguments["log"] is not None else None
    phases = _Phases(rows=rows, log=log, name=name)
    file = home / "table.parquet"
    with phases.during("generate"):
        file_bytes = _write(file, rows, seed, is_label=name == LABEL)
    values = {
        "party": name,
        "threads": 1,
        "table": {"path": "table.parquet", "max_rows": 10**10},
        "encoding": {"numeric": "log", "min_count": 10},
        "keys": {"row": ROW},
    }
    own = parse_party((values | ({"label": "label"} if name == LABEL else {})), folder=home, source=name)
    contract = parse_contract(
        {
            "name": "table",
            "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
            "alignment": {"method": "intersection", "keys": [{"name": "row"}]},
            "target": {"type": "binary"},
            "split": SHARES,
            "training": {"epochs": 1, "batch_size": arguments["batch_size"], "mode": "synchronous"},
            "evaluation": {"own_columns_baseline": False, "bootstrap": 0},
            "audit": "quick",
            "network": {"wait_s": HOURS, "deadline_s": HOURS},
            "seed": arguments["seed"],
        }
    )
    use_threads(own.threads)
    with phases.during("read"):
        frame = read_party_table(own)
    file.unlink()  # a run reads the copy
    if contract.role_of(own.party) == "label":
        create_ledger(own)
    job = Job(
        contract=contract,
        party=own,
        frame=frame,
        keys=None,
        channels={channel.peer: channel for channel in channels},
        folder=RunFolder.new(own.runs, contract, own.party, key=None),
        logbook=Logbook(party=own.party, watcher=_EpochLog(log, own.party)),
    )
    with phases.during("number"):
        own_rows = _rows(job, rows, seed, phases)
    if name == FEATURE:
        channels[0].receive(EncodedInTurn)
    dataset = dataset_of(contract.linkage).of(contract, own_rows, channels, secret_seed=job.folder.secret_seed)
    if channels and name == LABEL:
        channels[0].send(EncodedInTurn())
    keep_encoders(job.folder, dataset, {})
    if channels:
        agreement = Agreement(run_id="table", align=False, resume_from=0, train=True)
        _train_and_evaluate(job, own_rows, dataset, agreement, phases)
    else:
        # Take batches of the first epoch as training would, for at most these seconds
        schedule = dataset.schedule(dataset.resolved(job.contract.training), seed=job.contract.seed)
        with phases.during("batches"):
            until = time.monotonic() + arguments["seconds"]
            for batch in schedule.epoch(0):
                dataset.features_at(batch.index_B)
                job.logbook.watcher.progress("batches", batch.step, schedule.steps_per_epoch)
                if time.monotonic() > until:
                    break
        phases.found["batches"] |= {"batches": batch.step, "of": schedule.steps_per_epoch}
    assert dataset.encoder is not None
    return {"phases": phases.found, "encoded_row_bytes": dataset.encoder.packing.row_bytes, "file_row_bytes": file_bytes / rows}


def _train_and_evaluate(job: Job, rows: OwnRows, dataset: Dataset, agreement: Agreement, phases: _Phases) -> None:
    if job.is_label:
        with phases.during("epoch"):
            trained = train_as_label_party(job, dataset, agreement, own=rows)
        with phases.during("evaluation"):
            evaluate_as_label_party(job, rows, trained, dataset, run_id=agreement.run_id)
        return
    with phases.during("epoch"):
        embedding = train_as_feature_party(job, dataset, agreement)
    with phases.during("evaluation"):
        evaluate_as_feature_party(job, embedding, dataset, run_id=agreement.run_id)


class EncodedInTurn(Message, frozen=True):
    """Sent by the label party when it has encoded its rows, so that the feature party's turn comes: both share this machine."""


class _Numbered(Ids):
    """Represent ids by numbers that take no further memory, because the memory of ids is not measured here."""

    def __init__(self, number_N: NDArray[np.int64]) -> None:
        self._number_N = number_N

    def __len__(self) -> int:
        return len(self._number_N)

    def __getitem__(self, index: Any) -> Any:
        return _Numbered(self._number_N[index]) if isinstance(index, slice) else b"%d" % self._number_N[index]

    def __iter__(self) -> Iterator[bytes]:
        return (b"%d" % number for number in self._number_N.tolist())

    def gather(self, rows_M: NDArray[Any]) -> "_Numbered":
        """Select these of the ids (M)."""
        return _Numbered(self._number_N[rows_M])


class _EpochLog(Silent):
    """Add the steps of the epoch to the log, every minute."""

    def __init__(self, log: Path | None, name: str) -> None:
        self._log, self._name, self._said = log, name, time.monotonic()

    def progress(self, what: str, done: int, total: int) -> None:
        """Log a line at most once a minute."""
        if self._log is not None and time.monotonic() - self._said > MINUTE_S:
            self._said = time.monotonic()
            with self._log.open("a") as file:
                file.write(f"{time.strftime('%H:%M:%S')} {self._name}, {what}: {done:,} of {total:,}\n")


def _write(path: Path, rows: int, seed: int, *, is_label: bool) -> int:
    """Write this party's columns of the generated rows, a piece at a time, and return the file's bytes."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    with ExitStack() as stack:
        file = None
        for number, piece in enumerate(CriteoLike(seed).pieces(rows)):
            first = number * GENERATED_ROWS
            numbered = piece.with_columns(pl.int_range(first, first + piece.height, dtype=pl.Int32).alias(ROW))
            own = ["label", *OWN_NUMERIC, *OWN_CATEGORICAL]
            table = (numbered.select(ROW, *own) if is_label else numbered.drop(own)).to_arrow(
                compat_level=pl.CompatLevel.oldest()
            )
            file = file or stack.enter_context(ParquetWriter(path, table.schema, compression="zstd", compression_level=1))
            assert isinstance(table, pa.Table)
            file.write_table(table)
    return path.stat().st_size


def _rows(job: Job, rows: int, seed: int, phases: _Phases) -> _MeasuredRows:
    """Return all rows, known by their number, at positions in random order."""
    row_R = np.arange(rows)
    report = KeyReport(rows=rows, null_rows=0, duplicated_keys=0, duplicate_rows=0, used=rows)
    order_N = np.random.default_rng(seed).permutation(rows)
    return _MeasuredRows(
        party=job.party,
        is_label=job.is_label,
        frame=job.frame,
        keys=Keys(ids=_Numbered(row_R), rows_R=row_R, id_R=row_R, report=report),
        alignment=Alignment(method="intersection", rows_N=order_N, sizes={"own": rows, "intersection": rows}, learnt=[]),
        numbers=job.contract.model.numeric,
        phases=phases,
    )
