"""The row recorder: its files hold the sums up to an epoch, few of them are kept, and a resumed run continues them."""

import stat

import pytest
import torch

from tallystick.attacks.row_sums import most_looks
from tallystick.errors import DataError
from tallystick.run_folder.row_recorder import MOST_BYTES, MOST_ROWS, RowRecorder, RowStore
from tallystick.storage import Origin
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.training.plan import Schedule

ROWS, BATCH, WIDTH = 22, 4, 3


@pytest.fixture
def schedule():
    return Schedule(train_N=torch.arange(100, 100 + ROWS), validation_N=torch.arange(5), batch_size=BATCH, seed=1)


def store_of(folder, **changes):
    return RowStore(
        **{
            "folder": folder,
            "contract": "abc",
            "origin": Origin(folder=folder),
            "run_id": "r",
            "received": "cut_embedding",
            **changes,
        }
    )


def recorded(schedule, folder, *, epochs, resume_epoch=0, skip=0):
    store = store_of(folder)
    recorder = RowRecorder.of(store, store.no_sums(schedule.train_N, width=WIDTH), resume_epoch=resume_epoch)
    for epoch in range(resume_epoch, epochs):
        for batch in schedule.epoch(epoch, skip=skip if epoch == resume_epoch else 0):
            sent_BD = batch.index_B[:, None].float() + torch.arange(WIDTH) + epoch
            recorder.crossed(batch, sent_BD, sent_BD)
        recorder.epoch_ended(epoch)
    return recorder


def test_the_last_file_holds_every_epoch_and_earlier_ones_how_it_came_to_that(schedule, tmp_path):
    recorded(schedule, tmp_path, epochs=12)
    store = store_of(tmp_path)
    assert store.epochs() == [0, 4, 6, 9, 11]
    for epoch in store.epochs():
        sums = store.load(epoch)
        assert sums.epochs == tuple(range(epoch + 1))
        assert sums.count_N.tolist() == [epoch + 1] * ROWS
        expected_ND = (schedule.train_N[:, None] + torch.arange(WIDTH)) * (epoch + 1) + sum(range(epoch + 1))
        torch.testing.assert_close(sums.sum_ND, expected_ND.float())
        torch.testing.assert_close(sums.last_ND, (schedule.train_N[:, None] + torch.arange(WIDTH) + epoch).float())
        assert sums.look_epochs == tuple(range(epoch + 1))
        torch.testing.assert_close(sums.looks_LND[0], (schedule.train_N[:, None] + torch.arange(WIDTH)).float())
        assert torch.equal(sums.looks_LND[-1], sums.last_ND)
    assert stat.S_IMODE((tmp_path / "rows-000011.safetensors").stat().st_mode) == 0o600


def test_a_resumed_run_goes_on_from_the_epoch_before_and_says_what_it_lacks(schedule, tmp_path):
    recorded(schedule, tmp_path, epochs=5)
    sums = recorded(schedule, tmp_path, epochs=7, resume_epoch=3, skip=2).sums
    whole = recorded(schedule, tmp_path / "whole", epochs=7).sums
    assert sums.epochs == whole.epochs
    # what crossed before the commit from which the run was resumed
    assert int(whole.count_N.sum() - sums.count_N.sum()) == 2 * BATCH
    assert store_of(tmp_path).load(6).sum_ND.equal(sums.sum_ND)


def test_memory_and_disk_are_bounded(tmp_path):
    for width in (1, 128, 4096):
        rows = len(store_of(tmp_path).no_sums(torch.arange(1_000_000), width=width).rows_N)
        assert 0 < rows <= MOST_ROWS["cut_embedding"]
        assert 6 * rows * ((2 + most_looks(width)) * 4 * width + 20) <= MOST_BYTES


def short(path):
    path.write_bytes(path.read_bytes()[:-9])


def other(path):
    tensors, facts = read_tensors(path, origin=Origin(folder=path.parent))
    write_tensors(path, tensors | {"rows_N": tensors["rows_N"].flip(0)}, facts, origin=Origin(folder=path.parent))


def nothing_said(path):
    write_tensors(path, read_tensors(path, origin=Origin(folder=path.parent))[0], {}, origin=Origin(folder=path.parent))


@pytest.mark.parametrize(
    ("damage", "says"), [(short, "cut short"), (nothing_said, "cut short"), (other, "its tensors do not fit together")]
)
def test_a_damaged_file_is_named(schedule, tmp_path, damage, says):
    recorded(schedule, tmp_path, epochs=1)
    damage(tmp_path / "rows-000000.safetensors")
    with pytest.raises(DataError, match=says):
        store_of(tmp_path).load(0)


@pytest.mark.parametrize("changes", [{"contract": "xyz"}, {"run_id": "s"}])
def test_sums_of_another_contract_or_run_are_refused(schedule, tmp_path, changes):
    recorded(schedule, tmp_path, epochs=1)
    with pytest.raises(DataError, match="give the run folder that it was recorded in"):
        store_of(tmp_path, **changes).load(0)
    with pytest.raises(DataError, match="do not fit together"):
        store_of(tmp_path, received="cut_gradient").load(0)
