"""Choose how many batches are in flight: the contract's number, or one that suits the network (``training.mode: auto``).

    label party                                    feature party
    probes                                 ->
                                           <-      an answer to each
    Pace                                   ->

The label party decides by the feature party with the longest round trip and tells all, so all train alike. A resumed run keeps
its number, and measures nothing.
"""

from tallystick.config.sections import TrainingConfig, TrainingSettings
from tallystick.dataset.dataset import Dataset
from tallystick.errors import ProtocolError
from tallystick.job.job import Job
from tallystick.network.line_speed import answer_probes, measure_line
from tallystick.run_folder.folder import PACE
from tallystick.training.plan import fitting_staleness
from tallystick.training.training_messages import Pace


def paced_label_party(job: Job, dataset: Dataset, *, goes_on: bool) -> TrainingConfig:
    """Decide the training settings of this run, and tell the feature parties."""
    training = dataset.resolved(job.contract.training)
    if training.mode != "auto":
        return training
    if goes_on:
        staleness, why = _kept(job), "as the run began"
    else:
        line = max((measure_line(channel) for channel in job.feature_channels), key=lambda each: each.round_trip_s)
        batches = -(-len(dataset.train_N) // training.batch_size)
        staleness = fitting_staleness(line.round_trip_s, batch_size=training.batch_size, batches=batches)
        why = f"by {line}"
    for channel in job.feature_channels:
        channel.send(Pace(staleness=staleness))
    job.logbook.watcher.say(f"training.mode = auto: {_in_words(staleness)}, {why}")
    return _settled(job, training, staleness)


def paced_feature_party(job: Job, dataset: Dataset, *, goes_on: bool) -> TrainingConfig:
    """Receive this run's training settings from the label party. Raises ProtocolError if a resumed run had others."""
    training = dataset.resolved(job.contract.training)
    if training.mode != "auto":
        return training
    channel = job.channels[job.contract.label_party]
    if not goes_on:
        answer_probes(channel)
    staleness = channel.receive(Pace).staleness
    if goes_on and staleness != _kept(job):
        raise ProtocolError(
            channel.peer, f"{channel.peer} goes on with {staleness} batches in flight; the run began with {_kept(job)}"
        )
    job.logbook.watcher.say(f"training.mode = auto: {_in_words(staleness)}, as {channel.peer} says")
    return _settled(job, training, staleness)


def pace_note(training: TrainingSettings, rows: int, *, round_trip_s: float) -> str | None:
    """Say how long round trips will delay training on at most this many rows, or return None if the delay is small."""
    resolved = training.resolved(rows)
    fitting = fitting_staleness(round_trip_s, batch_size=resolved.batch_size, batches=-(-rows // resolved.batch_size))
    if not fitting or training.gradients == "none" or training.mode == "pipelined":
        return None
    if training.mode == "auto":
        return f"training.mode: auto would keep some {fitting} batches in flight"
    return (
        f"synchronous training makes {1 / round_trip_s:.0f} steps a second at most over this line, and training.mode: auto "
        f"would keep some {fitting} batches in flight"
    )


def _settled(job: Job, training: TrainingConfig, staleness: int) -> TrainingConfig:
    job.folder.note(PACE, {"staleness": staleness})
    mode = "pipelined" if staleness else "synchronous"
    return training.model_copy(update={"mode": mode, "staleness": max(staleness, 1)})


def _kept(job: Job) -> int:
    return int(str(job.folder.required(PACE)["staleness"]))


def _in_words(staleness: int) -> str:
    return f"pipelined with {staleness} batches in flight" if staleness else "synchronous"
