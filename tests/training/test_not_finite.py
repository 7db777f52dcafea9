"""A peer's numbers are data: numbers that are not finite are refused at the cut, and never reach a checkpoint or an end."""

import pytest
import torch
from lanes import by_turns, short_lane_of
from loops import Setting, assert_same_bits, training, weights_of
from safetensors.torch import load_file

from tallystick.cut.cut_messages import CutEmbedding, CutGradient, all_finite
from tallystick.errors import Diverged, ProtocolError
from tallystick.network.messages import Array
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.finite import refuse_lost_weights

PARTIES = ("bank", "shop")


class Poisoned:
    """The label party's end of a channel, on which one number of one step's message is replaced."""

    def __init__(self, channel, kind, step, number):
        self._channel, self._kind, self._step, self._number = channel, kind, step, number
        self.peer, self.traffic = channel.peer, channel.traffic

    def _poison(self, message):
        if isinstance(message, self._kind) and message.step == self._step:
            values = message.values.tensor().clone()
            values[3, 1] = self._number
            return self._kind(step=message.step, values=Array.of(values))
        return message

    def send(self, message):
        self._channel.send(self._poison(message))

    def receive(self, kind):
        return self._poison(self._channel.receive(kind))

    def check(self):
        self._channel.check()


def steps_on_disk(folder):
    """Return what can be resumed from, by party. Fail if any tensor on disk is not finite."""
    for path in folder.rglob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert not tensor.is_floating_point() or all_finite(tensor), f"{path}: {name}"
    return {party: CheckpointStore(folder / party).steps() for party in PARTIES}


MODES = [{}, {"mode": "pipelined", "staleness": 4}]


@pytest.mark.parametrize(("crossing", "mode"), by_turns([(CutEmbedding, "shop"), (CutGradient, "bank")], MODES), ids=str)
@pytest.mark.parametrize("number", short_lane_of([float("nan"), float("inf"), -float("inf")], 1))
def test_one_number_that_is_not_finite_is_refused_by_name_and_step_and_the_run_resumes(tmp_path, crossing, number, mode):
    kind, blamed = crossing
    setting = Setting(validation=40)
    how = training(**mode, patience=None)
    step = 17 if mode else 16  # in the second epoch, some steps after a checkpoint
    with pytest.raises(
        ProtocolError, match=rf"{blamed}: {kind.__name__} of step {step} is NaN or infinite in 1 of \d+ rows"
    ) as failed:
        setting.train(how, tmp_path / "run", wrap=lambda channel: Poisoned(channel, kind, step, number))
    assert failed.value.peer == blamed
    kept = steps_on_disk(tmp_path / "run")
    common = max(set(kept["bank"]) & set(kept["shop"]))
    assert 12 <= common < step
    resumed, _ = setting.train(how, tmp_path / "run", resume_from=common)
    whole, _ = setting.train(how, tmp_path / "whole")
    assert_same_bits(weights_of(resumed), weights_of(whole))


def test_validation_embeddings_are_checked_too(tmp_path):
    """Their steps are counted from 0, and training has no step 0."""
    with pytest.raises(
        ProtocolError, match="shop: CutEmbedding of step 0 is NaN or infinite in 1 of 32 rows, the first is row 3"
    ):
        Setting(validation=40).train(training(), tmp_path, wrap=lambda channel: Poisoned(channel, CutEmbedding, 0, float("nan")))
    steps_on_disk(tmp_path)


def test_finite_numbers_that_overflow_are_named_and_not_kept(tmp_path):
    """The largest float is no NaN. The loss that it causes is not blamed on the learning rate alone."""
    with pytest.raises(
        Diverged, match=r"training diverged by step 16: the loss is .*largest number received for it: 3.4e\+38 from shop"
    ):
        Setting(kind="regression").train(
            training(), tmp_path, wrap=lambda channel: Poisoned(channel, CutEmbedding, 16, torch.finfo(torch.float32).max)
        )
    assert 12 in steps_on_disk(tmp_path)["bank"]


def test_a_finite_gradient_that_ruins_the_optimizer_is_not_committed(tmp_path):
    """Adam's second moment overflows at 2e19. Then the weights would never change again, and look healthy."""
    with pytest.raises(
        Diverged,
        match=r"by step 20: the optimizer's exp_avg_sq of \S+ is NaN or infinite, though .* that was kept 1e\+25 from bank;",
    ):
        Setting().train(training(), tmp_path, wrap=lambda channel: Poisoned(channel, CutGradient, 18, 1e25))
    assert steps_on_disk(tmp_path)["shop"] == [12, 16]


def test_a_finite_embedding_that_ruins_the_weights_is_named(tmp_path):
    """The loss of two classes accepts it, and the top model's own weights do not."""
    with pytest.raises(Diverged, match=r"training diverged by step \d+: .* 1e\+2[05] from shop"):
        Setting().train(training(), tmp_path, wrap=lambda channel: Poisoned(channel, CutEmbedding, 18, -1e25))
    assert max(steps_on_disk(tmp_path)["bank"]) <= 16


@pytest.mark.parametrize("mode", [{}, {"mode": "pipelined", "staleness": 4}], ids=["synchronous", "pipelined"])
def test_own_divergence_leaves_no_checkpoint_that_is_not_finite(tmp_path, mode):
    with pytest.raises(Diverged, match=r"lower training\.learning_rate"):
        Setting(kind="regression").train(
            training(optimizer="sgd", learning_rate=100.0, checkpoint_every=1, epochs=9, **mode), tmp_path
        )
    steps_on_disk(tmp_path)


def test_a_mask_may_hold_infinities_and_a_buffer_no_nan():
    module = torch.nn.Linear(2, 2)
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    refuse_lost_weights(module, None, step=1)
    module.register_buffer("mean", torch.tensor([torch.nan]))
    with pytest.raises(Diverged, match="by step 1: mean is NaN"):
        refuse_lost_weights(module, None, step=1)
    with torch.no_grad():
        module.bias[1] = torch.inf
    with pytest.raises(Diverged, match="by step 1: bias is NaN or infinite"):
        refuse_lost_weights(module, None, step=1)


def test_what_is_finite_is_called_finite():
    largest = torch.finfo(torch.float32).max
    assert all_finite(torch.full((5, 2), largest))  # its sum is not
    assert all_finite(torch.empty(0, 3))
    for number in (torch.nan, torch.inf, -torch.inf):
        assert not all_finite(torch.tensor([[1.0, number], [largest, -number]]))
