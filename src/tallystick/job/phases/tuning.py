"""A search over what the contract lets be tuned: trial after trial is a training with other values, compared at the label party.

The label party names the values, every party trains with them as in a run, and the loss on the validation rows stays at home.
No test row is touched. Each trial discloses what a training does, is charged like one, and has a folder and a secret of its own.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import yaml

from tallystick.alignment.outcome import Alignment
from tallystick.artifacts.embedding_charge import sent_by
from tallystick.artifacts.folder import RunFolder
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.tuning import ONLY_TOGETHER, TunedKey
from tallystick.config.unaligned import UnalignedConfig
from tallystick.data.keys import Keys
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.errors import ConfigError, ProtocolError
from tallystick.job.handshake import Agreement, ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.job import Job
from tallystick.job.phases.defense import RunDefense, training_charged
from tallystick.job.phases.search import TrialRecord, best_of, next_values, require_optuna
from tallystick.job.phases.train import encode_rows, own_rows, train_as_feature_party, train_as_label_party
from tallystick.msgspec_threads import prepared
from tallystick.network.channel import Channel
from tallystick.network.messages import Message
from tallystick.storage import write_bytes
from tallystick.training.checkpoint import TrainingState
from tallystick.training.label_party import train_label_party
from tallystick.training.run import TrainingRun

NOTE = "tuning"
TUNED = "tuned-contract.yaml"
_MOST_KEYS = 100

Train = Callable[[Job], tuple[TrainingState, tuple[int, int]]]
"""Trains one trial; gives where it ended, and how many training and validation rows it took."""


class TuningTerms(Message, frozen=True):
    """Feature party to label party: the keys that it lets be tuned, and in how many trials it takes part."""

    keys: list[str]
    trials: int


class NextTrial(Message, frozen=True):
    """Label party to feature parties: the values of the next trial, as JSON; or of the best one, once all are over."""

    number: int
    values: str
    over: bool


def allowed_keys(contract: Contract, party: PartyFile) -> dict[str, TunedKey]:
    """What this party lets be tuned; raises ConfigError where it is nothing."""
    if not contract.tuning.keys:
        raise ConfigError(
            "tuning.keys: is empty; list in the contract what may be tuned, such as "
            "training.learning_rate: {low: 0.0003, high: 0.01, log: true}"
        )
    found = {key: tuned for key, tuned in contract.tuning.keys.items() if key in party.tuning.allow}
    if not found:
        raise ConfigError(
            f"tuning.allow: {party.party} allows none of the contract's tuning.keys ({', '.join(contract.tuning.keys)}); "
            "list in the party file those that may be tuned"
        )
    return found


def most_trials(contract: Contract, party: PartyFile) -> int:
    """The contract's, or this party's if they are fewer."""
    return min(contract.tuning.trials, party.tuning.trials or contract.tuning.trials)


def trials_left(contract: Contract, party: PartyFile, folder: RunFolder | None) -> int:
    """How many trials there may still be that were not charged for yet."""
    most = most_trials(contract, party)
    if folder is None:
        return most
    begun = [number for number in range(1, most + 1) if (folder.path / f"trial-{number}").exists()]
    trials = {number: folder.trial(number) for number in begun}
    charged = [number for number, trial in trials.items() if training_charged(trial) or sent_by(trial).charged]
    return most - max([len(finished_trials(folder)), *charged])


def finished_trials(folder: RunFolder) -> list[TrialRecord]:
    """The trials that are over, in their order."""
    noted = folder.noted(NOTE).get("trials", [])
    return msgspec.convert(noted, prepared(list[TrialRecord]))


def tune_as_label_party(job: Job, keys: Keys, alignment: Alignment, *, run_id: str) -> list[TrialRecord]:
    """Search together with all feature parties; raises ProtocolError, and ConfigError where they allow nothing in common."""
    tunable, most = allowed_keys(job.contract, job.party), most_trials(job.contract, job.party)
    for channel in job.feature_channels:
        terms = channel.receive(TuningTerms)
        _check_terms(terms, channel, job.contract)
        tunable = {key: tuned for key, tuned in tunable.items() if key in terms.keys}
        most = min(most, terms.trials)
    if not tunable:
        raise ConfigError("tuning.allow: no key of the contract's tuning.keys is allowed by all parties; agree on some")

    def train(trial: Job) -> tuple[TrainingState, tuple[int, int]]:
        dataset = encode_rows(trial, keys, alignment, trial.feature_channels)
        agreement = shake_hands_label_party(trial.contract, _kept(trial, run_id), dict(_named(trial)))
        state = train_as_label_party(trial, dataset, _of_trial(agreement, trial)).state
        return state, (len(dataset.train_N), len(dataset.validation_N))

    def announce(trial: TrialRecord, over: bool) -> None:
        for channel in job.feature_channels:
            channel.send(NextTrial(number=trial.number, values=json.dumps(trial.values), over=over))

    return _search(job, tunable, most, train, announce)


def tune_alone(job: Job, keys: Keys) -> list[TrialRecord]:
    """Search on the label party's own columns alone, by the labels that the contract lets train, replaced once for all trials.

    Nothing is sent, but the values that are found stand in a contract that others read: the ledger is charged as for one run.
    """
    tunable = allowed_keys(job.contract, job.party)
    for key in ONLY_TOGETHER:
        if tunable.pop(key, None) is not None:
            job.logbook.watcher.say(f"tuning.keys.{key}: makes no difference to own columns alone; left out")
    if not tunable:
        raise ConfigError("tuning.keys: what is left makes no difference to own columns alone; tune it with a partner")

    defense = RunDefense.of(job.contract, job.folder)

    def train(trial: Job) -> tuple[TrainingState, tuple[int, int]]:
        alone = trial.contract.model_copy(update={"unaligned": UnalignedConfig()})
        rows = own_rows(trial, keys, _every_row(keys))
        exact = IntersectionDataset.of(alone, rows, [], secret_seed=trial.folder.secret_seed)
        if exact.encoder is None:
            raise ConfigError(f"features: {job.name} has no usable column, so there is nothing to tune alone")
        what = f"tuning of {job.contract.name}, alone, {job.folder.path.name}"
        defense.spend(job.contract, job.party, job.folder, exact.known_labels.true_N, what=what)
        own = defense.defended(exact)
        training, store = own.resolved(trial.contract.training), trial.folder.store()
        run = TrainingRun(
            training=training,
            schedule=own.schedule(training, seed=trial.contract.seed),
            store=store,
            resume_from=max(store.intact()[0], default=0),
            progress=trial.logbook.watcher.progress,
        )
        model = trial.architecture.label_model(exact.encoder, [])
        return train_label_party(model, own.features_at, own.objective(), [], run), (len(own.train_N), len(own.validation_N))

    return _search(job, tunable, most_trials(job.contract, job.party), train, lambda _trial, _over: None)


def tune_as_feature_party(job: Job, keys: Keys, alignment: Alignment, *, run_id: str) -> list[TrialRecord]:
    """Take part: train each trial that the label party names, within what the contract and this party allow."""
    channel = job.channels[job.contract.label_party]
    tunable, most = allowed_keys(job.contract, job.party), most_trials(job.contract, job.party)
    channel.send(TuningTerms(keys=sorted(tunable), trials=most))
    finished, again = finished_trials(job.folder), True  # the label party may have been killed before it noted the last one
    while True:
        message = channel.receive(NextTrial)
        values = _checked(message, channel, tunable, finished, most=most, again=again)
        again = False
        if message.over:
            _write_tuned(job, values)
            return finished
        began, trial = time.monotonic(), _trial_of(job, message.number, values)
        dataset = encode_rows(trial, keys, alignment, [channel])
        agreement = shake_hands(trial.contract, _kept(trial, run_id), channel)
        state = train_as_feature_party(trial, dataset, _of_trial(agreement, trial)).state
        record = TrialRecord(
            number=message.number,
            values=values,
            epochs=state.epoch,
            rows=(len(dataset.train_N), len(dataset.validation_N)),
            seconds=time.monotonic() - began,
        )
        finished = [*(done for done in finished if done.number != record.number), record]
        _note(job, finished)
        job.logbook.watcher.progress("trials", message.number, most)
        job.logbook.watcher.say(f"trial {message.number}: {told(values)}; {state.epoch} epochs")


def told(values: Mapping[str, Any]) -> str:
    """Values in words."""
    return ", ".join(f"{key} = {value}" for key, value in values.items()) or "the contract as it is"


def _search(
    job: Job, tunable: Mapping[str, TunedKey], most: int, train: Train, announce: Callable[[TrialRecord, bool], None]
) -> list[TrialRecord]:
    """Trial after trial, each kept once it is over; then the best one's values go out."""
    require_optuna()
    watcher, finished = job.logbook.watcher, finished_trials(job.folder)
    while len(finished) < most:
        watcher.progress("trials", len(finished), most)
        values = next_values(tunable, finished, seed=job.contract.seed)
        if values is None:
            watcher.say(f"all there is to try was tried, in {len(finished)} trials")
            break
        began, record = time.monotonic(), TrialRecord(number=len(finished) + 1, values=values)
        try:
            trial = _trial_of(job, record.number, values)
        except ConfigError as error:
            finished.append(msgspec.structs.replace(record, problem=str(error)))
        else:
            announce(record, False)
            state, rows = train(trial)
            seconds = time.monotonic() - began
            record = msgspec.structs.replace(record, loss=state.best_loss, epochs=state.epoch, rows=rows, seconds=seconds)
            finished.append(record)
        _note(job, finished)
        came_to = f"validation loss {record.loss:.5g}" if record.loss is not None else "cannot be"
        watcher.say(f"trial {record.number}: {told(values)}: {came_to}")
    watcher.progress("trials", len(finished), len(finished))
    best = best_of(finished)
    assert best is not None, "the contract as it is can be trained"
    announce(best, True)
    _write_tuned(job, best.values)
    return finished


def _every_row(keys: Keys) -> Alignment:
    """The alignment of a party with nobody: each of its rows."""
    count = len(keys.rows_R)
    return Alignment(method="none", rows_N=np.arange(count), sizes={"own": count, "intersection": count}, learnt=[])


def _trial_of(job: Job, number: int, values: Mapping[str, Any]) -> Job:
    """The job of one trial; raises ConfigError for values that the contract cannot have together."""
    contract = job.contract.tuned(values).for_trial()
    return replace(job, contract=contract, folder=job.folder.trial(number), resume=True, phases=("training",))


def _kept(trial: Job, run_id: str) -> ResumeState:
    steps, _ = trial.folder.store().intact()
    trained = trial.folder.trained and not trial.folder.damage()
    return ResumeState(command=trial.command, resume=True, run_id=run_id, checkpoints=tuple(steps), trained=trained)


def _of_trial(agreement: Agreement, trial: Job) -> Agreement:
    """The agreement with the trial in the run's name, for the ledger."""
    return msgspec.structs.replace(agreement, run_id=f"{agreement.run_id}, {trial.folder.path.name}")


def _named(job: Job) -> list[tuple[str, Channel]]:
    return [(name, job.channels[name]) for name in job.contract.feature_parties]


def _check_terms(terms: TuningTerms, channel: Channel, contract: Contract) -> None:
    if terms.trials < 1 or len(terms.keys) > _MOST_KEYS or not set(terms.keys) <= set(contract.tuning.keys):
        raise ProtocolError(
            channel.peer, f"{channel.peer} allows {terms.trials} trials of keys that the contract's tuning.keys do not all have"
        )


def _checked(
    message: NextTrial,
    channel: Channel,
    tunable: Mapping[str, TunedKey],
    finished: Sequence[TrialRecord],
    *,
    most: int,
    again: bool,
) -> dict[str, Any]:
    """The values of a trial; raises ProtocolError for one that is not due, or values that this party does not allow."""
    peer, number = channel.peer, message.number
    try:
        values = json.loads(message.values)
    except (ValueError, RecursionError):
        raise ProtocolError(peer, f"{peer} named values for trial {number} that are not readable") from None
    if not isinstance(values, dict) or any(key not in tunable or not tunable[key].admits(key, values[key]) for key in values):
        raise ProtocolError(
            peer, f"{peer} named values for trial {number} that the contract's tuning.keys and tuning.allow here do not allow"
        )
    known = {trial.number: trial.values for trial in finished}
    last = max(known, default=0)
    is_due = number in known if message.over else last < number <= most or (again and number == last > 0)
    if not is_due or known.get(number, values) != values:
        raise ProtocolError(peer, f"{peer} named trial {number}{' the best' if message.over else ''}, which is not due")
    return values


def _note(job: Job, finished: Sequence[TrialRecord]) -> None:
    job.folder.note(NOTE, {"trials": msgspec.to_builtins(list(finished))})


def _write_tuned(job: Job, values: Mapping[str, Any]) -> None:
    """Leave the contract with the best values: the same for all parties, which still have to agree on it by running it."""
    tuned = job.contract.tuned(values)
    text = yaml.safe_dump(tuned.model_dump(mode="json", exclude_unset=True), sort_keys=False)
    write_bytes(job.folder.path / TUNED, text.encode())
    job.logbook.watcher.say(f"best: {told(values)}; the contract with it: {job.folder.path / TUNED}")
