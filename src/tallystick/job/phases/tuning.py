"""Search over the keys that the contract allows to tune. Each trial is a training with other values; the label party compares
them.

The label party names the values, every party trains with them as in a run, and the loss on the validation rows stays at home.
No test row is touched. Each trial discloses what a training does, is charged like one, and has a folder and a secret of its own.
"""

import json
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import yaml

from tallystick.alignment.outcome import Alignment
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.tuning import TunedKey
from tallystick.errors import ConfigError, ProtocolError
from tallystick.job.findings import TrialRecord
from tallystick.job.handshake import Agreement, ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.job import Job
from tallystick.job.phases.defense import training_charged
from tallystick.job.phases.search import TrialOrder, best_of, require_optuna
from tallystick.job.phases.train import encode_rows, own_rows, train_as_feature_party, train_as_label_party
from tallystick.msgspec_threads import prepared
from tallystick.network.channel import Channel
from tallystick.network.messages import Message
from tallystick.run_folder.embedding_charge import sent_by
from tallystick.run_folder.folder import TRIAL, RunFolder
from tallystick.storage import write_bytes
from tallystick.tables.keys import Keys

NOTE = "tuning"
TUNED = "tuned-contract.yaml"
_MOST_KEYS = 100

Run = Callable[[Iterator[TrialRecord | None]], Generator[TrialRecord]]
"""Runs the trials that are due, and gives each with its loss when it is over. None says that the next one waits for a running
one.
"""


class TuningTerms(Message, frozen=True):
    """Feature party to label party: the keys that it allows to tune, and the number of trials in which it takes part."""

    keys: list[str]
    trials: int


class NextTrial(Message, frozen=True):
    """Label party to feature parties: the values of the next trial, as JSON, or of the best trial after the last one."""

    number: int
    values: str
    over: bool


def allowed_keys(contract: Contract, party: PartyFile) -> dict[str, TunedKey]:
    """Return the keys that this party allows to tune. Raises ConfigError if there are none."""
    if not contract.tuning.keys:
        raise ConfigError(
            "tuning.keys: is empty; list in the contract what may be tuned, such as "
            "training.learning_rate: {low: 0.0003, high: 0.01, log: true}"
        )
    keys = {key: tuned for key, tuned in contract.tuning.keys.items() if key in party.tuning.allow}
    if not keys:
        raise ConfigError(
            f"tuning.allow: {party.party} allows none of the contract's tuning.keys ({', '.join(contract.tuning.keys)}); "
            "list in the party file those that may be tuned"
        )
    return keys


def say_left_out(job: Job, party: str, allowed: Collection[str]) -> None:
    """Say which of the contract's tuning.keys a party does not allow to tune."""
    for key in job.contract.tuning.keys:
        if key not in allowed:
            job.logbook.watcher.say(f"tuning.keys.{key}: tuning.allow of {party} does not name it, so it is left out")


def most_trials(contract: Contract, party: PartyFile) -> int:
    """Return the smaller of the contract's and this party's number of trials."""
    return min(contract.tuning.trials, party.tuning.trials or contract.tuning.trials)


def trials_left(contract: Contract, party: PartyFile, folder: RunFolder | None) -> int:
    """Count the trials that may still run and were not charged yet."""
    most = most_trials(contract, party)
    if folder is None:
        return most
    numbers = [number for number in range(1, most + 1) if (folder.path / f"trial-{number}").exists()]
    trials = {number: folder.trial(number) for number in numbers}
    charged = [number for number, trial in trials.items() if training_charged(trial) or sent_by(trial).charged]
    return most - max([len(finished_trials(folder)), *charged])


def finished_trials(folder: RunFolder) -> list[TrialRecord]:
    """Return the finished trials, in their order."""
    noted = folder.noted(NOTE).get("trials", [])
    return msgspec.convert(noted, prepared(list[TrialRecord]))


def open_trials(folder: RunFolder) -> list[RunFolder]:
    """Return the folders of trials that began and are not finished."""
    over = {f"{TRIAL}{trial.number}" for trial in finished_trials(folder)}
    names = [path.name for path in folder.path.glob(f"{TRIAL}*") if path.name not in over]
    return [folder.trial(int(name.removeprefix(TRIAL))) for name in sorted(names)]


def tune_as_label_party(job: Job, keys: Keys, alignment: Alignment, *, run_id: str) -> list[TrialRecord]:
    """Search together with all feature parties. Raises ProtocolError, and ConfigError if they allow no key in common."""
    tunable, most = allowed_keys(job.contract, job.party), most_trials(job.contract, job.party)
    say_left_out(job, job.name, tunable)
    for channel in job.feature_channels:
        terms = channel.receive(TuningTerms)
        _check_terms(terms, channel, job.contract)
        say_left_out(job, channel.peer, terms.keys)
        tunable = {key: tuned for key, tuned in tunable.items() if key in terms.keys}
        most = min(most, terms.trials)
    if not tunable:
        raise ConfigError("tuning.allow: no key of the contract's tuning.keys is allowed by all parties; agree on some")

    def run(due: Iterator[TrialRecord | None]) -> Generator[TrialRecord]:
        for record in due:
            assert record is not None, "each is over before the next is asked for"
            began, trial = time.monotonic(), trial_of(job, record.number, record.values)
            announce(record, over=False)
            dataset = encode_rows(trial, keys, alignment, trial.feature_channels)
            agreement = shake_hands_label_party(
                trial.contract,
                _kept(trial, run_id),
                {name: trial.channels[name] for name in trial.contract.feature_parties},
            )
            agreement = _of_trial(agreement, trial)
            own = own_rows(trial, keys, alignment)  # trials are only compared
            state = train_as_label_party(trial, dataset, agreement, own=own, scores_unmatched=False).state
            rows = len(dataset.train_N), len(dataset.validation_N)
            yield record.ended(state.best_loss, epochs=state.epoch, rows=rows, seconds=time.monotonic() - began)

    def announce(trial: TrialRecord, *, over: bool) -> None:
        for channel in job.feature_channels:
            channel.send(NextTrial(number=trial.number, values=json.dumps(trial.values), over=over))

    finished = search(job, tunable, most, at_once=1, run=run)
    announce(keep_best(job, finished), over=True)
    return finished


def tune_as_feature_party(job: Job, keys: Keys, alignment: Alignment, *, run_id: str) -> list[TrialRecord]:
    """Take part in a search: train each trial that the label party names, within what the contract and this party allow."""
    channel = job.channels[job.contract.label_party]
    tunable, most = allowed_keys(job.contract, job.party), most_trials(job.contract, job.party)
    say_left_out(job, job.name, tunable)
    channel.send(TuningTerms(keys=sorted(tunable), trials=most))
    finished, again = finished_trials(job.folder), True  # the label party may have been killed before it recorded the last trial
    while True:
        message = channel.receive(NextTrial)
        values = _checked(message, channel, tunable, finished, most=most, again=again)
        again = False
        if message.over:
            _write_tuned(job, values)
            return finished
        began, trial = time.monotonic(), trial_of(job, message.number, values)
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
    """Write values as text."""
    return ", ".join(f"{key} = {value}" for key, value in values.items()) or "the contract as it is"


def search(job: Job, tunable: Mapping[str, TunedKey], most: int, *, at_once: int, run: Run) -> list[TrialRecord]:
    """Run all trials, save each when it is finished, and return all of them."""
    require_optuna()
    watcher, trial_of_number = job.logbook.watcher, {trial.number: trial for trial in finished_trials(job.folder)}
    reported = set(trial_of_number)

    def problem(values: Mapping[str, Any]) -> str:
        try:
            job.contract.tuned(values)
        except ConfigError as error:
            return str(error)
        return ""

    def keep() -> list[TrialRecord]:
        over = [trial for _, trial in sorted(trial_of_number.items()) if not trial.is_open]
        _note(job, over)
        for trial in over:
            if trial.number not in reported:
                came_to = f"validation loss {trial.loss:.5g}" if trial.loss is not None else "cannot be"
                watcher.say(f"trial {trial.number}: {told(trial.values)}: {came_to}")
        reported.update(trial.number for trial in over)
        watcher.progress("trials", len(over), most)
        return over

    keep()
    contract, own = job.contract, job.contract.values_of(tunable)
    trials = TrialOrder(
        keys=tunable, own=own, most=most, at_once=at_once, seed=contract.seed, problem=problem, found=trial_of_number
    )
    with closing(run(trials.due())) as records:
        for record in records:
            trial_of_number[record.number] = record
            keep()
    over = keep()
    if len(over) < most:
        watcher.say(f"all possible values were tried, in {len(over)} trials")
        watcher.progress("trials", len(over), len(over))
    return over


def keep_best(job: Job, finished: Sequence[TrialRecord]) -> TrialRecord:
    """Write the contract with the values of the best trial, and return that trial."""
    best = best_of(finished)
    assert best is not None, "the contract as it is can be trained"
    _write_tuned(job, best.values)
    return best


def trial_of(job: Job, number: int, values: Mapping[str, Any]) -> Job:
    """Build the job of one trial. Raises ConfigError for values that the contract cannot have together."""
    contract = job.contract.tuned(values).for_trial()
    return replace(job, contract=contract, folder=job.folder.trial(number), resume=True, phases=("training",))


def _kept(trial: Job, run_id: str) -> ResumeState:
    steps, _ = trial.folder.store().intact()
    trained = trial.folder.trained and not trial.folder.damage()
    return ResumeState(command=trial.command, resume=True, run_id=run_id, checkpoints=tuple(steps), trained=trained)


def _of_trial(agreement: Agreement, trial: Job) -> Agreement:
    """Return the agreement with the trial's number in the run id, for the ledger."""
    return msgspec.structs.replace(agreement, run_id=f"{agreement.run_id}, {trial.folder.path.name}")


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
    """Check the values of a trial. Raises ProtocolError for a trial out of turn, or values that this party does not allow."""
    peer, number = channel.peer, message.number
    try:
        values = json.loads(message.values)
    except (ValueError, RecursionError):
        raise ProtocolError(peer, f"{peer} named values for trial {number} that are not readable") from None
    if not isinstance(values, dict) or any(key not in tunable or not tunable[key].admits(key, values[key]) for key in values):
        raise ProtocolError(
            peer, f"{peer} named values for trial {number} that the contract's tuning.keys and tuning.allow here do not allow"
        )
    values_of = {trial.number: trial.values for trial in finished}
    last = max(values_of, default=0)
    is_due = number in values_of if message.over else last < number <= most or (again and number == last > 0)
    if not is_due or values_of.get(number, values) != values:
        raise ProtocolError(peer, f"{peer} named trial {number}{' the best' if message.over else ''}, which is not due")
    return values


def _note(job: Job, finished: Sequence[TrialRecord]) -> None:
    job.folder.note(NOTE, {"trials": msgspec.to_builtins(list(finished))})


def _write_tuned(job: Job, values: Mapping[str, Any]) -> None:
    """Write the contract with the best values. It is the same for all parties, who still have to agree on it by running it."""
    tuned = job.contract.agreed.tuned(values)
    text = yaml.safe_dump(tuned.model_dump(mode="json", exclude_unset=True), sort_keys=False)
    write_bytes(job.folder.path / TUNED, text.encode())
    job.logbook.watcher.say(f"best: {told(values)}; the contract with it: {job.folder.path / TUNED}")
