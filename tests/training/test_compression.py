"""Compressed steps: what is read back, what either side's observer sees, and training as in one process that rounds the same."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from loops import Setting, assert_same_bits, training, weights_of

from tallystick.config.sections import CompressionName
from tallystick.cut.compression import COMPRESSIONS
from tallystick.cut.cut_messages import CutEmbedding, receive_embedding, send_embedding
from tallystick.errors import Diverged, ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array, MalformedMessage
from tallystick.training.optimizers import optimizer_of

NAMES = [name for name in get_args(CompressionName) if name != "none"]
ROWS_BD = arrays.arrays("float32", st.tuples(st.integers(1, 5), st.integers(1, 19)), elements=st.floats(-6e4, 6e4, width=32))


def read(name, values_BD):
    compression = COMPRESSIONS[name]
    packed_BR = compression.packed(values_BD)
    assert packed_BR.dtype == torch.uint8
    assert packed_BR.shape == (len(values_BD), compression.row_bytes(values_BD.shape[1]))
    return compression.unpacked(packed_BR, values_BD.shape[1])


def test_every_name_of_the_contract_has_its_compression():
    assert set(COMPRESSIONS) == set(get_args(CompressionName))


@given(ROWS_BD)
def test_two_bytes_keep_what_the_type_keeps(values):
    values_BD = torch.from_numpy(values)
    assert torch.equal(read("bfloat16", values_BD), values_BD.bfloat16().float())


@given(ROWS_BD)
def test_a_byte_is_off_by_half_a_step_of_its_row_at_most(values):
    values_BD = torch.from_numpy(values).double()
    found_BD = read("int8", values_BD.float()).double()
    step_B1 = values_BD.abs().amax(dim=1, keepdim=True) / 127
    # A step below float32's normal numbers has few digits of its own.
    assert ((found_BD - values_BD).abs() <= step_B1 * 0.50001 + 128 * 1.5e-45).all()


class Seen:
    """Keeps what crosses."""

    def __init__(self):
        self.steps = []

    def crossed(self, batch, embedding_BD, gradient_BD):
        self.steps.append((batch.step, embedding_BD.clone(), gradient_BD.clone()))

    def epoch_ended(self, epoch):
        pass


@pytest.mark.parametrize("how", [{}, {"mode": "pipelined", "staleness": 4}], ids=["synchronous", "pipelined"])
@pytest.mark.parametrize("name", NAMES)
def test_both_sides_keep_what_was_really_sent(name, how, tmp_path):
    bank, shop = Seen(), Seen()
    Setting().train(training(epochs=1, compression=name, **how), tmp_path, observers={"bank": bank, "shop": shop})
    assert len(bank.steps) == len(shop.steps) == 11
    for ours, theirs in zip(bank.steps, shop.steps, strict=True):
        assert ours[0] == theirs[0]
        assert torch.equal(ours[1], theirs[1])
        assert torch.equal(ours[2], theirs[2])
    _, embedding_BD, gradient_BD = bank.steps[3]
    if name != "int8":  # whose steps depend on the largest number before it was rounded
        assert torch.equal(read(name, embedding_BD), embedding_BD)
        assert torch.equal(read(name, gradient_BD), gradient_BD)


def reference(setting, how):
    """One process that rounds both ways. The gradient ignores the rounding."""
    bottoms, label = setting.modules()
    optimizers = [optimizer_of(how, module) for module in (*bottoms.values(), label)]
    for epoch in range(how.epochs):
        for batch in setting.schedule.epoch(epoch):
            made = [bottom(setting.columns[name].rows(batch.index_B)) for name, bottom in bottoms.items()]
            cuts = [read(how.compression, cut_BD.detach()).requires_grad_() for cut_BD in made]
            loss, _ = setting.objective(label(cuts, setting.own_columns.rows(batch.index_B)), batch.index_B)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            torch.autograd.backward(made, [read(how.compression, cut.grad) for cut in cuts])
            for optimizer in optimizers:
                optimizer.step(how.learning_rate)
    return weights_of((bottoms, label))


@pytest.mark.parametrize("name", NAMES)
def test_training_equals_one_process_that_rounds_alike(name, tmp_path):
    setting, how = Setting(), training(epochs=1, compression=name)
    modules, _ = setting.train(how, tmp_path)
    assert_same_bits(weights_of(modules), reference(setting, how))


def test_a_number_that_bfloat16_cannot_write_is_named_before_it_is_sent():
    ours, theirs = memory_channels("bank", "shop", timeout_s=5)
    with pytest.raises(Diverged, match=r"training\.compression = bfloat16"):
        send_embedding(ours, 3, torch.tensor([[1.0, 3.4e38]]), compression="bfloat16")
    send_embedding(ours, 4, torch.tensor([[1.0, 70_000.0]]), compression="bfloat16")
    found_BD = receive_embedding(theirs, 4, 1, 2, compression="bfloat16")
    assert torch.equal(found_BD, torch.tensor([[1.0, 70_000.0]]).bfloat16().float())


PACKED = {name: COMPRESSIONS[name].packed(torch.ones(3, 16)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_what_no_writer_makes_is_refused(name):
    good_BR = PACKED[name]
    hostile = [good_BR[:2], good_BR[:, :-1], torch.cat([good_BR, good_BR[:, :1]], dim=1), good_BR.float(), torch.ones(3, 16)]
    full_BR = torch.full_like(good_BR, 255)  # NaN, or steps and places that there are not
    for values_BR in [*hostile, *([full_BR] if name != "int8" else [full_BR.roll(1, 1)])]:
        ours, theirs = memory_channels("bank", "shop", timeout_s=5)
        ours.send(CutEmbedding(step=4, values=Array.of(values_BR)))
        with pytest.raises(ProtocolError, match="step 4"):
            receive_embedding(theirs, 4, 3, 16, compression=name)


def test_a_negative_step_is_refused():
    step = torch.tensor([[-1.0]]).view(torch.uint8)
    with pytest.raises(MalformedMessage, match="negative"):
        COMPRESSIONS["int8"].unpacked(torch.cat([step, torch.zeros(1, 3, dtype=torch.uint8)], dim=1), 3)
