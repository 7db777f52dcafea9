"""training.mode: auto: how many batches are in flight, who decides it, and that a resumed run keeps its number."""

from types import SimpleNamespace

import pytest
import tiny
from tiny import columns, contract_values, tables

from tallystick.config.contract import parse_contract
from tallystick.config.sections import StillTraining, SynchronousTraining
from tallystick.errors import DamagedFile, ProtocolError
from tallystick.job.phases import batches_in_flight
from tallystick.network.channel import memory_channels
from tallystick.network.line_speed import LineProbe, MeasuredLine, measure_line
from tallystick.run_folder.folder import RunFolder
from tallystick.simulation import simulate
from tallystick.training.plan import fitting_staleness, most_batches_per_message, rows_validated
from tallystick.training.training_messages import Pace

PARTIES = ("bank", "shop", "club")


@pytest.mark.parametrize(
    ("round_trip_s", "batch_size", "batches", "expected"),
    [
        (0.0001, 64, 1000, 0),
        (0.0049, 64, 1000, 0),
        (0.006, 64, 1000, 8),
        (0.050, 64, 1000, 16),
        (0.5, 64, 1000, 16),
        (0.050, 1024, 1000, 8),
        (0.050, 100_000, 1000, 2),
        (0.050, 64, 40, 10),
        (0.050, 64, 1, 2),
    ],
)
def test_as_many_batches_are_in_flight_as_fill_the_line(round_trip_s, batch_size, batches, expected):
    assert fitting_staleness(round_trip_s, batch_size=batch_size, batches=batches) == expected


def run(folder, **training):
    changes = {f"training__{key}": value for key, value in training.items()}
    result = simulate(
        contract_values(PARTIES, **changes), tables(PARTIES, rows=400), columns(PARTIES), folder=folder, secret_seed=3
    )
    folders = {party: RunFolder.open(next((folder / party).glob("tiny-*"))) for party in PARTIES}
    return result, folders


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """Make a run whose label party measures 20 ms to one of its partners."""
    away = {"shop": 0.020, "club": 0.0}

    def measured(channel):
        measure_line(channel)
        return MeasuredLine(round_trip_s=away[channel.peer], bytes_per_s=1e7)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_in_flight, "measure_line", measured)
        return run(tmp_path_factory.mktemp("far"), mode="auto", batch_size=8)


def test_the_farthest_partner_decides_for_all_and_the_run_is_that_of_its_pace(far, tmp_path):
    result, folders = far
    assert [folder.noted("pace") for folder in folders.values()] == [{"staleness": 7}] * 3  # a quarter of an epoch
    expected, others = run(tmp_path, mode="pipelined", staleness=7, batch_size=8)
    assert result.joint == expected.joint
    assert tiny.weights(folders["shop"].model) == tiny.weights(others["shop"].model)
    assert not any(folder.noted("pace") for folder in others.values())


def test_partners_beside_each_other_train_without_loss(tmp_path, monkeypatch):
    monkeypatch.setattr("tallystick.job.phases.batches_in_flight.measure_line", near)
    result, folders = run(tmp_path / "auto", mode="auto")
    assert [folder.noted("pace") for folder in folders.values()] == [{"staleness": 0}] * 3
    expected, _ = run(tmp_path / "synchronous")
    assert result.joint == expected.joint


def near(channel):
    """Return the times of a quiet machine, whatever this one does."""
    measure_line(channel)
    return MeasuredLine(round_trip_s=0.0002, bytes_per_s=1e8)


def parts(folder, channel):
    """Return what this phase needs of a job and of a dataset."""
    training = SynchronousTraining(mode="auto")
    job = SimpleNamespace(
        contract=SimpleNamespace(training=training, label_party="bank"),
        channels={"bank": channel},
        feature_channels=[channel],
        folder=folder,
        logbook=SimpleNamespace(watcher=SimpleNamespace(say=lambda _: None)),
    )
    return job, SimpleNamespace(resolved=lambda settings: settings.resolved(400), train_N=range(400))


def answered(messages):
    """A channel on which the other side has already sent all this."""
    ours, theirs = memory_channels("shop", "bank", timeout_s=5)
    for message in messages:
        theirs.send(message)
    return ours


PROBES = [LineProbe(data=b"")] * 5


@pytest.mark.parametrize(
    "said",
    [
        [Pace(staleness=4)],
        [*PROBES[:2], Pace(staleness=4)],
        [*PROBES, LineProbe(data=b"")],
        *([*PROBES, Pace(staleness=staleness)] for staleness in (-1, 17, 1 << 63)),
    ],
)
def test_a_pace_out_of_turn_or_out_of_range_is_refused(far, said):
    with pytest.raises(ProtocolError):
        batches_in_flight.paced_feature_party(*parts(far[1]["shop"], answered(said)), goes_on=False)


def test_a_run_that_goes_on_keeps_its_pace(far):
    shop = far[1]["shop"]
    settled = batches_in_flight.paced_feature_party(*parts(shop, answered([Pace(staleness=7)])), goes_on=True)
    assert (settled.mode, settled.staleness) == ("pipelined", 7)
    with pytest.raises(ProtocolError, match="bank goes on with 8 batches in flight; the run began with 7"):
        batches_in_flight.paced_feature_party(*parts(shop, answered([Pace(staleness=8)])), goes_on=True)


def test_the_label_party_of_a_run_that_goes_on_tells_its_pace_and_measures_nothing(far):
    ours, theirs = memory_channels("bank", "shop", timeout_s=5)
    settled = batches_in_flight.paced_label_party(*parts(far[1]["bank"], ours), goes_on=True)
    assert (settled.mode, settled.staleness) == ("pipelined", 7)
    assert theirs.receive(Pace) == Pace(staleness=7)


def test_a_pace_that_is_lost_is_not_made_up(far, tmp_path):
    empty = RunFolder.new(tmp_path, parse_contract(contract_values(PARTIES)), "shop", key=None)
    with pytest.raises(DamagedFile, match=r"pace\.json"):
        batches_in_flight.paced_feature_party(*parts(empty, answered([Pace(staleness=7)])), goes_on=True)


@pytest.mark.parametrize(
    ("changes", "round_trip_s", "expected"),
    [
        ({}, 0.004, None),
        (
            {},
            0.050,
            "synchronous training makes 20 steps a second at most over this line, and training.mode: auto would keep some 16",
        ),
        ({"mode": "auto"}, 0.050, "training.mode: auto would keep some 16 batches in flight"),
        ({"mode": "pipelined"}, 0.050, None),
        ({"gradients": "none"}, 0.050, None),
    ],
)
def test_check_says_what_a_long_line_means_for_training(changes, round_trip_s, expected):
    training = parse_contract(contract_values(PARTIES, training={"batch_size": 64, **changes})).training
    note = batches_in_flight.pace_note(training, 100_000, round_trip_s=round_trip_s)
    assert (note is None) == (expected is None)
    assert note is None or note.startswith(expected)


def test_messages_are_bounded_before_the_line_is_known():
    """At most eight batches of sixteen in flight travel together, with 4,096 rows at most."""
    settled = SynchronousTraining(mode="auto", batch_size=64).resolved(1_000)
    assert most_batches_per_message(settled) == 8
    assert most_batches_per_message(settled.model_copy(update={"batch_size": 1024})) == 4
    assert most_batches_per_message(settled.model_copy(update={"mode": "synchronous"})) == 1


@pytest.mark.parametrize(
    ("batch_size", "width", "most", "rows"),
    [
        (128, 128, 1 << 26, 1024),
        (128, 1 << 16, 1 << 26, 256),  # the widest cut that may be announced
        (128, 128, (1 << 20) - 4096, 1024),
        (128, 512, (1 << 20) - 4096, 480),  # 510 rows fit, and 480 of them are whole tiles
        (128, 4096, (1 << 20) - 4096, 128),  # a batch, which training sends anyway
        (2048, 128, 1 << 26, 2048),
    ],
)
def test_validation_rows_of_a_message_fit_into_it_in_whole_tiles_or_are_those_of_a_batch(batch_size, width, most, rows):
    training = SynchronousTraining(batch_size=batch_size).resolved(10_000)
    assert rows_validated(training, width=width, max_message_bytes=most) == rows
    assert rows == batch_size or (4 * rows * width <= most and rows % 32 == 0)


def test_where_no_gradient_is_sent_nobody_waits_and_nothing_is_measured():
    settings = StillTraining(mode="auto", gradients="none")
    assert settings.resolved(1000) == StillTraining(mode="synchronous", gradients="none").resolved(1000)
