"""Rows that cross without a gradient coming back are recorded: every pass, whatever the part, and across a resume."""

import pytest
import torch

from tallystick.errors import DataError
from tallystick.run_folder.pass_recorder import CONTRAST, PassRecorder, PassStores
from tallystick.storage import Origin


@pytest.fixture
def stores(tmp_path):
    origin = Origin.create(tmp_path, party="shop", contract="c", key=None)
    (tmp_path / "view").mkdir()
    return PassStores(folder=tmp_path / "view", contract="c", run_id="r", origin=origin)


def sent(recorder, part, index_N, cut_ND):
    """Make one pass in two batches."""
    for rows in torch.split(torch.arange(len(index_N)), 4):
        recorder.sent(part, index_N[rows], cut_ND[rows])
    recorder.pass_ended(part)


def test_each_pass_is_a_look_and_a_resumed_run_goes_on(stores):
    positions = {"validation": torch.tensor([9, 3, 5, 1, 7, 2]), "test": torch.tensor([4, 8])}
    passes = [torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    recorder = PassRecorder.of(stores, positions, width=3, anew=True)
    for cut_ND in passes[:2]:
        sent(recorder, "validation", positions["validation"], cut_ND)
    recorder.epoch_ended()
    recorder = PassRecorder.of(stores, positions, width=3)
    sent(recorder, "validation", positions["validation"], passes[2])
    sent(recorder, "prediction", positions["validation"], passes[2])  # no part of the run
    recorder.epoch_ended()
    (step,) = stores.load("validation").view().steps
    order = positions["validation"].argsort()
    assert torch.equal(step.rows_B, positions["validation"][order])
    assert torch.equal(step.looks_BE, torch.cat([each[order] for each in passes], dim=1))
    assert torch.equal(step.received_BD, passes[2][order])
    torch.testing.assert_close(step.mean_BD, torch.stack(passes).mean(dim=0)[order])
    assert step.looks_at_BL.eq(0).all()
    assert stores.load("test") is None


def test_what_a_shuffled_column_takes_away_is_kept_as_a_mean(stores):
    index_N, cut_ND = torch.arange(6), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    recorder = PassRecorder.of(stores, {"validation": index_N}, width=3)
    sent(recorder, "validation", index_N, cut_ND)
    contrast = recorder.contrast(index_N[2:5], 2)  # three of the rows are measured
    losses = torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    for column in range(2):
        for repeat in range(2):
            contrast(column, 0.5, torch.arange(3), cut_ND[2:5] - losses[column, repeat])
    contrast.save()
    rows_N, contrast_NCD = stores.contrast()
    assert rows_N.tolist() == [2, 3, 4]
    torch.testing.assert_close(contrast_NCD, losses.mean(dim=1).transpose(0, 1), atol=1e-6, rtol=0)
    (stores.folder / CONTRAST).write_bytes(b"cut short")
    with pytest.raises(DataError, match="cut short or holds no shuffled columns"):
        stores.contrast()


def test_a_pass_is_kept_as_it_was_whatever_became_of_the_memory(stores):
    index_N, given_ND = torch.arange(3), torch.ones(3, 2)
    recorder = PassRecorder.of(stores, {"validation": index_N}, width=2)
    recorder.sent("validation", index_N, given_ND)
    given_ND.zero_()
    assert recorder.sums["validation"].sum_ND.tolist() == [[1.0] * 2] * 3
