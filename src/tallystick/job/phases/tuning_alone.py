"""Search on the label party's own columns: run trials in this process one by one, or as tasks on an engine, with the same
losses.
"""

import json
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tallystick.alignment.outcome import Alignment
from tallystick.compute.task import TaskFunction, Work
from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import PartyFile, parse_party
from tallystick.config.tuning import ONLY_TOGETHER
from tallystick.config.unaligned import NoneConfig
from tallystick.dataset.datasets import nothing_to_draw
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import ConfigError
from tallystick.job.findings import TrialRecord
from tallystick.job.job import Job
from tallystick.job.phases.defense import RunDefense
from tallystick.job.phases.tuning import allowed_keys, keep_best, most_trials, say_left_out, search, trial_of
from tallystick.network.channel import Progress, no_progress
from tallystick.run_folder.trained import Architecture
from tallystick.storage import scratch_folder
from tallystick.tables.keys import Keys, keys_of
from tallystick.tables.lazy_table import Frame
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.label_party import train_label_party
from tallystick.training.run import TrainingRun
from tallystick.training.screening import Screening

_OF_ROWS = {"party", "keys", "units", "repeats", "label", "weight", "time", "features", "sequences", "drop", "encoding", "device"}
"""The keys of a party file that say how rows are read."""


def tune_alone(job: Job, keys: Keys) -> list[TrialRecord]:
    """Search on the label party's own columns alone, with the contract's training labels, replaced once for all trials.

    Nothing is sent. But others will read the best values in a contract, so the ledger is charged as for one run. If the party
    file has ``compute``, its engine runs the trials.
    """
    tunable = allowed_keys(job.contract, job.party)
    say_left_out(job, job.name, tunable)
    for key in ONLY_TOGETHER:
        if tunable.pop(key, None) is not None:
            job.logbook.watcher.say(f"tuning.keys.{key}: makes no difference to own columns alone, so it is left out")
    if not tunable:
        raise ConfigError("tuning.keys: what is left makes no difference to own columns alone; tune it with a partner")
    defense = RunDefense.of(job.contract, job.folder)
    rows = _Rows(contract=job.contract, party=job.party, frame=job.frame, keys=keys, defense=defense)
    exact = rows.exact(job.contract)
    if exact.encoder is None:
        raise ConfigError(f"features: {job.name} has no usable column, so there is nothing to tune alone")
    what = f"tuning of {job.contract.name}, alone, {job.folder.path.name}"
    defense.spend(job.contract, job.party, job.folder, exact.known_labels.true_N, what=what, use="tuning")

    def run(due: Iterator[TrialRecord | None]) -> Generator[TrialRecord]:
        if job.party.compute is not None:
            inputs = (msgspec.json.encode(record) if record is not None else None for record in due)
            work = Work(prepare=f"{__name__}:{prepare_trial.__name__}", shared=msgspec.msgpack.encode(_Shared.of(rows)))
            decoded = partial(msgspec.json.decode, type=TrialRecord)
            yield from (record for _, record in job.party.compute.made().map(work, inputs, decoded))
            return
        for record in due:
            assert record is not None, "each is over before the next is asked for"
            trial = trial_of(job, record.number, record.values)
            yield rows.trained(record, trial.folder.store(), progress=trial.logbook.watcher.progress)

    finished = search(job, tunable, most_trials(job.contract, job.party), at_once=job.party.tuning.at_once, run=run)
    keep_best(job, finished)
    return finished


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Rows that every trial trains on.

    Args:
        contract: with no key tuned.
        party: what its file says of columns.
        frame: its table.
        keys: of the table.
        defense: replaces labels.
    """

    contract: Contract
    party: PartyFile
    frame: Frame
    keys: Keys
    defense: RunDefense

    def exact(self, contract: Contract) -> IntersectionDataset:
        """Return all rows of the search, with their true labels."""
        count = len(self.keys.rows_R)
        everyone = Alignment(method="none", rows_N=np.arange(count), sizes={"own": count, "intersection": count}, learnt=[])
        own = OwnRows(
            party=self.party,
            is_label=True,
            frame=self.frame,
            keys=self.keys,
            alignment=everyone,
            numbers=contract.model.numeric,
            screens=contract.screens(self.party.party),
        )
        alone = contract.model_copy(update={"unaligned": NoneConfig()})
        return IntersectionDataset.of(alone, own, [], secret_seed=nothing_to_draw)

    def trained(self, record: TrialRecord, store: CheckpointStore, *, progress: Progress = no_progress) -> TrialRecord:
        """Train one trial, from its newest checkpoint, and return it with its loss."""
        began = time.monotonic()
        contract = self.contract.tuned(record.values).for_trial()
        exact = self.exact(contract)
        own = self.defense.defended(exact)
        training = own.resolved(contract.training)
        run = TrainingRun(
            training=training,
            schedule=own.schedule(training, seed=contract.seed),
            store=store,
            resume_from=max(store.intact()[0], default=0),
            progress=progress,
            screening=Screening(seed=contract.seed),
        )
        architecture = Architecture.of(contract, self.party.party, device=self.party.device)
        model = replace(architecture, folds=exact.networks).label_model(exact.encoder, [])
        state = train_label_party(model, own.features_at, own.objective(), [], run)
        rows = len(own.train_N), len(own.validation_N)
        return record.ended(state.best_loss, epochs=state.epoch, rows=rows, seconds=time.monotonic() - began)


class _Shared(msgspec.Struct, frozen=True):
    """Data for every worker: contract and party file as JSON, the table as Arrow, the secret of replaced labels."""

    contract: str
    party: str
    table: bytes
    secret: bytes

    @classmethod
    def of(cls, rows: _Rows) -> "_Shared":
        written = BytesIO()
        (rows.frame if isinstance(rows.frame, pl.DataFrame) else rows.frame.collect()).write_ipc(written)
        return cls(
            contract=json.dumps(rows.contract.model_dump(mode="json", exclude_unset=True)),
            party=rows.party.model_dump_json(exclude_unset=True, include=_OF_ROWS),
            table=written.getvalue(),
            secret=rows.defense.secret,
        )

    def rows(self) -> _Rows:
        contract = parse_contract(json.loads(self.contract))
        values: Mapping[str, Any] = json.loads(self.party)
        party = parse_party(values, folder=Path())  # its paths are never used
        frame = pl.read_ipc(BytesIO(self.table))
        return _Rows(
            contract=contract,
            party=party,
            frame=frame,
            keys=keys_of(frame, party, contract.alignment),
            defense=RunDefense(defenses=contract.defenses(), secret=self.secret, classes=contract.target.classes),
        )


def prepare_trial(shared: bytes) -> TaskFunction:
    """Read the table in a worker. A task's input is a trial; its output is that trial with its loss."""
    rows = msgspec.msgpack.decode(shared, type=_Shared).rows()

    def train(payload: bytes) -> bytes:
        with scratch_folder() as folder:
            return msgspec.json.encode(rows.trained(msgspec.json.decode(payload, type=TrialRecord), CheckpointStore(folder)))

    return train
