"""The recorder keeps what crossed, step by step, and says what is wrong with a damaged or foreign view."""

from itertools import pairwise

import pytest
import torch

from tallystick.errors import ConfigError, DataError
from tallystick.run_folder.recorder import MAX_VIEW_BYTES, Recorder, RecordingPlan, ViewStore
from tallystick.storage import Origin
from tallystick.training.plan import Schedule

ROWS, BATCH, WIDTH = 22, 4, 3


@pytest.fixture
def schedule():
    return Schedule(train_N=torch.arange(100, 100 + ROWS), validation_N=torch.arange(5), batch_size=BATCH, seed=1)


def embedding(index_B):
    """Make values that identify their row."""
    return index_B[:, None].float() + torch.arange(WIDTH) / 10


def crossed(schedule, folder, *, epochs=3, skip=0, plan=None, contract="abc", run_id="r"):
    """Record what crosses in a training run. Return the recorder's store."""
    store = ViewStore(folder=folder, contract=contract, origin=Origin(folder=folder), run_id=run_id)
    plan = plan or RecordingPlan.of(schedule, first=1, later=4, epochs=epochs, width=WIDTH)
    recorder = Recorder(plan=plan, store=store)
    for epoch in range(epochs):
        for batch in schedule.epoch(epoch, skip=skip if epoch == 0 else 0):
            given_BD, answer_BD = embedding(batch.index_B), -embedding(batch.index_B)
            recorder.crossed(batch, given_BD, answer_BD)
            given_BD.zero_()  # training that writes to the same memory meanwhile changes nothing
            answer_BD.zero_()
        recorder.epoch_ended(epoch)
    return store


def test_every_step_is_kept_as_the_peer_saw_it(schedule, tmp_path):
    store = crossed(schedule, tmp_path)
    steps = store.load("cut_gradient")
    batches = [(epoch, batch) for epoch in range(3) for batch in schedule.epoch(epoch)]
    assert [step.epoch for step in steps] == [epoch for epoch, _ in batches]
    for step, (_, batch) in zip(steps, batches, strict=True):
        assert torch.equal(step.rows_B, batch.index_B)
        assert torch.equal(step.sent_BD, embedding(batch.index_B))
        assert torch.equal(step.received_BD, -embedding(batch.index_B))
    mirrored = store.load("cut_embedding")[0]
    assert torch.equal(mirrored.received_BD, steps[0].sent_BD)
    assert torch.equal(mirrored.sent_BD, steps[0].received_BD)


def test_a_resumed_epoch_is_recorded_from_where_it_resumed(schedule, tmp_path):
    steps = crossed(schedule, tmp_path, skip=3).load("cut_gradient")
    expected = [batch.index_B.tolist() for batch in schedule.epoch(0, skip=3)]
    assert [step.rows_B.tolist() for step in steps if step.epoch == 0] == expected
    assert len([step for step in steps if step.epoch == 1]) == schedule.steps_per_epoch


def test_the_first_batches_of_all_can_be_kept_beside_those_that_are_spread():
    plan = RecordingPlan(first=1, later=1, batches=1, every=3, lead=2)
    kept = [(epoch, batch) for epoch in range(3) for batch in range(5) if plan.records(epoch, batch)]
    assert kept == [(0, 0), (0, 1), (1, 0), (2, 0)]


def test_it_is_bounded_in_rows_epochs_and_bytes(schedule, tmp_path):
    plan = RecordingPlan(first=1, later=1, batches=2)
    store = crossed(schedule, tmp_path, plan=plan)
    assert [step.epoch for step in store.load("cut_gradient")] == [0, 0, 2, 2]
    assert len(store.files()) == 2
    store = crossed(schedule, tmp_path / "first", plan=RecordingPlan(first=2, later=0, batches=2))
    assert store.epochs() == [0, 1]

    large = Schedule(train_N=torch.arange(10_000_000), validation_N=torch.arange(0), batch_size=512, seed=1)
    for width, first, later, epochs, most in ((1, 1, 4, 1, 1), (128, 1, 4, 100, 6), (128, 2, 4, 5, 5), (4096, 2, 0, 100, 2)):
        kept = RecordingPlan.of(large, first=first, later=later, epochs=epochs, width=width)
        assert 0 < kept.batches * 512 * most * (8 * width + 8) <= MAX_VIEW_BYTES
    few = {rows: RecordingPlan.of(large, first=1, later=4, epochs=9, width=8, rows=rows).batches for rows in (1, 512, 513, 10**6)}
    assert few == {1: 1, 512: 1, 513: 2, 10**6: 50_000 // 512}
    spread = RecordingPlan(first=1, later=0, batches=3, every=4)
    assert [batch for batch in range(20) if spread.records(0, batch)] == [0, 4, 8]
    assert not spread.records(1, 0)
    with pytest.raises(ConfigError, match=r"batch of 512 rows with cut width 1000000 is more than the recorder keeps"):
        RecordingPlan.of(large, first=1, later=4, epochs=2, width=1_000_000)


def test_however_long_training_lasts_epochs_up_to_its_last_are_kept(schedule, tmp_path):
    store = crossed(schedule, tmp_path, epochs=12)
    assert store.epochs() == [0, 4, 6, 9, 11]
    assert {step.epoch for step in store.load("cut_gradient")} == {0, 4, 6, 9, 11}


@pytest.mark.parametrize(("first", "later"), [(1, 4), (2, 4)])
def test_the_kept_epochs_are_few_and_spread(first, later):
    plan, kept = RecordingPlan(first=first, later=later, batches=1), []
    for newest in range(500):
        kept.append(newest)
        for stale in plan.stale(kept):
            kept.remove(stale)
        assert len(kept) == min(newest + 1, first + later)
        assert kept[-1] == newest
        assert set(range(min(first, newest))) <= set(kept)
        if len(kept) == first + later and newest > first + later:
            assert max(after - before for before, after in pairwise(kept)) <= newest / 2


def test_epochs_that_an_interrupted_run_left_over_are_dropped_by_the_next():
    assert RecordingPlan(first=1, later=2, batches=1).stale([0, 1, 2, 3, 9]) == [1, 2]


def test_epochs_that_are_trained_again_are_forgotten(schedule, tmp_path):
    store = crossed(schedule, tmp_path)
    store.drop_from(1)
    assert {step.epoch for step in store.load("cut_gradient")} == {0}


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-7])


def nothing_in_it(path):
    path.write_bytes(b"")


def other_bytes(path):
    path.write_bytes(b"\x08" + bytes(7) + b"not json" + bytes(100))


def other_tensors(path):
    from tallystick.training.checkpoint import read_tensors, write_tensors

    tensors, metadata = read_tensors(path, origin=Origin(folder=path.parent))
    write_tensors(path, tensors | {"rows_S": tensors["rows_S"] + 1}, metadata, origin=Origin(folder=path.parent))


def no_facts(path):
    from tallystick.training.checkpoint import read_tensors, write_tensors

    write_tensors(path, read_tensors(path, origin=Origin(folder=path.parent))[0], {}, origin=Origin(folder=path.parent))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut_short, "is cut short or not a recorded view"),
        (nothing_in_it, "is cut short or not a recorded view"),
        (other_bytes, "is cut short or not a recorded view"),
        (no_facts, "is cut short or not a recorded view"),
        (other_tensors, "its tensors do not fit together"),
    ],
)
def test_a_damaged_view_is_named(schedule, tmp_path, damage, says):
    store = crossed(schedule, tmp_path)
    damage(store.files()[1])
    with pytest.raises(DataError, match=says) as caught:
        store.load("cut_gradient")
    assert str(store.files()[1]) in str(caught.value)


def test_a_view_of_another_contract_or_run_is_refused(schedule, tmp_path):
    crossed(schedule, tmp_path)
    with pytest.raises(DataError, match="is of contract abc, run r, but here contract other"):
        ViewStore(folder=tmp_path, contract="other", origin=Origin(folder=tmp_path)).load("cut_gradient")
    with pytest.raises(DataError, match="but here contract abc, run other"):
        ViewStore(folder=tmp_path, contract="abc", origin=Origin(folder=tmp_path), run_id="other").load("cut_gradient")


def test_an_empty_view_says_how_to_record_one(tmp_path):
    with pytest.raises(DataError, match=r"holds no recorded step; run the contract until"):
        ViewStore(folder=tmp_path, contract="abc", origin=Origin(folder=tmp_path)).load("cut_gradient")
