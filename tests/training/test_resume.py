"""Checkpoints: resuming gives the same bits, the best weights win, and a full disk leaves the last good one."""

import subprocess
import sys

import pytest
import torch
from lanes import short_lane_of
from loops import Setting, assert_same_bits, training, weights_of
from safetensors.torch import save
from tiny import PATIENCE_S

from tallystick.errors import Diverged, StorageError
from tallystick.storage import SEAL, Origin, write_bytes
from tallystick.training.checkpoint import CheckpointStore, TrainingState, read_tensors, write_tensors
from tallystick.training.objective import Supervised
from tallystick.training.updates import Updates


class Unplugged(Exception):
    """The connection breaks here."""


class Until:
    """A channel that breaks after a number of messages sent."""

    def __init__(self, channel, sends):
        self._channel, self._left, self.peer, self.traffic = channel, sends, channel.peer, channel.traffic

    def send(self, message):
        if self._left == 0:
            self._channel.abort("unplugged")
            raise Unplugged
        self._left -= 1
        self._channel.send(message)

    def receive(self, kind):
        return self._channel.receive(kind)

    def check(self):
        self._channel.check()


MODES = [{}, {"mode": "pipelined", "staleness": 2}]
AVERAGED = {"optimizer": "adamw", "schedule": "cosine", "warm_up": 0.1, "ema": 0.9, "clip": 0.1}


@pytest.fixture(scope="module", params=[*MODES, AVERAGED], ids=["synchronous", "pipelined", "averaged"])
def uncut(request, tmp_path_factory):
    """Return the setting, how it is trained, and the result without an interruption."""
    setting, how = Setting(parties=("club", "shop"), validation=40), training(**request.param, patience=3)
    return setting, how, setting.train(how, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("sends", short_lane_of([2, 5, 11, 12, 13, 29, 32], 2))
def test_resumed_training_equals_training_that_was_never_interrupted(uncut, sends, tmp_path):
    """Interrupted before, between and at checkpoints and ends of epochs, with early stopping's counters."""
    setting, how, (whole, (state, *_)) = uncut
    with pytest.raises(Unplugged):
        setting.train(how, tmp_path / "cut", wrap=lambda channel: Until(channel, sends))
    steps = [set(CheckpointStore(tmp_path / "cut" / party).steps()) for party in ("bank", "club", "shop")]
    common = max(set.intersection(*steps), default=0)
    assert common >= min(sends // 4 * 4 - 4, 10)
    resumed, (again, *_) = setting.train(how, tmp_path / "cut", resume_from=common)
    assert_same_bits(weights_of(resumed), weights_of(whole))
    timeless = [[{**epoch, "seconds": 0} for epoch in found.history] for found in (state, again)]
    assert timeless[0] == timeless[1]
    assert (state.step, state.best_epoch, state.best_loss) == (again.step, again.best_epoch, again.best_loss)


@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "pipelined"])
def test_committed_steps_are_on_all_disks(mode, tmp_path):
    setting = Setting()
    seen = {"bank": [], "shop": []}

    def noting(party):
        def committed(step):
            both = [CheckpointStore(tmp_path / name).steps() for name in ("bank", "shop")]
            seen[party].append((step, all(step in steps for steps in both) or any(min(steps) > step for steps in both)))

        return committed

    setting.train(training(**mode), tmp_path, committed={party: noting(party) for party in seen})
    for party, told in seen.items():
        assert told, party
        assert all(held for _, held in told), (party, told)
        assert [step for step, _ in told] == sorted(step for step, _ in told)


def test_early_stopping_keeps_the_best_weights(tmp_path):
    """With noise as labels validation soon gets worse."""
    setting = Setting(validation=100)
    target_N = torch.randint(0, 2, (330,), generator=torch.Generator().manual_seed(0)).float()
    setting.objective = Supervised("binary", target_N)
    how = training(epochs=40, patience=2, learning_rate=0.02)
    stopped, (label, feature) = setting.train(how, tmp_path / "patient")
    losses = [epoch["validation_loss"] for epoch in label.history]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert label.epoch == len(losses) == best + 1 + 2 < 40
    assert (label.best_epoch, label.best_loss) == (best, losses[best])
    assert (feature.best_epoch, feature.epoch, feature.stopped) == (best, label.epoch, True)
    # Training for exactly the best number of epochs, without early stopping, gives these weights.
    exact, _ = setting.train(training(epochs=best + 1, learning_rate=0.02), tmp_path / "exact")
    assert_same_bits(weights_of(stopped), weights_of(exact))


def test_divergence_is_a_clear_error(tmp_path):
    setting = Setting(kind="regression")
    with pytest.raises(Diverged, match=r"training diverged by step \d+: the loss is .* lower training.learning_rate"):
        setting.train(training(optimizer="sgd", learning_rate=100.0), tmp_path)


FULL_DISK = """
import resource, signal, sys
import torch
from pathlib import Path
from tallystick.errors import StorageError
from tallystick.training.checkpoint import CheckpointStore, TrainingState
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as on a full disk, write() fails instead
store = CheckpointStore(Path(sys.argv[1]))
small = torch.nn.Linear(10, 10)
torch.nn.init.constant_(small.weight, 7.0)
store.save(TrainingState(step=5), small, None)
store.save_best(small, step=5)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for save in (lambda m: store.save(TrainingState(step=10), m, None), lambda m: store.save_best(m, step=10)):
    try:
        save(torch.nn.Linear(300, 300))
    except StorageError as error:
        print(error)
    else:
        sys.exit("it fitted")
"""


@pytest.mark.long
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(
        f"cannot write {tmp_path / 'step-10.safetensors'}: File too large; the last good version is untouched"
    )
    assert "best-10.safetensors" in second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-5.safetensors", "step-5.safetensors"]
    store, module = CheckpointStore(tmp_path), torch.nn.Linear(10, 10)
    assert store.load(5, module, None).step == 5
    assert module.weight.eq(7.0).all()
    store.load_best(module, step=5)


def test_a_damaged_checkpoint_is_a_clear_error(tmp_path):
    store, module = CheckpointStore(tmp_path), torch.nn.Linear(2, 2)
    store.save(TrainingState(step=3), module, None)
    path = tmp_path / "step-3.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match=r"step-3.safetensors is damaged: its content does not match its digest"):
        store.load(3, module, None)


def test_two_generations_stay(tmp_path):
    store, module = CheckpointStore(tmp_path), torch.nn.Linear(2, 2)
    for step in (5, 10, 15, 100):
        store.save(TrainingState(step=step), module, None)
    assert store.steps() == [15, 100]
    store.drop_after(TrainingState(step=15))
    assert store.steps() == [15]


def test_updates_and_random_state_come_back(tmp_path):
    store, module = CheckpointStore(tmp_path), torch.nn.Linear(3, 2)
    updates = Updates(training(ema=0.9), module, steps=10)
    module(torch.ones(4, 3)).sum().backward()
    updates.step(1)
    with torch.random.fork_rng():
        store.save(TrainingState(step=1), module, updates)
        expected = torch.rand(3)
        fresh = torch.nn.Linear(3, 2)
        again = Updates(training(ema=0.9), fresh, steps=10)
        store.load(1, fresh, again)
        assert torch.equal(torch.rand(3), expected)
    assert_same_bits(updates.tensors(), again.tensors())
    assert {"optimizer/0/exp_avg", "average/weight"} <= set(again.tensors())


def test_tensors_and_metadata_round_trip(tmp_path):
    path = tmp_path / "file.safetensors"
    tensors = {"a": torch.arange(6).reshape(2, 3).T, "b": torch.empty(0)}
    write_tensors(path, tensors, {"who": "shop"}, origin=Origin(folder=tmp_path))
    found, metadata = read_tensors(path, origin=Origin(folder=tmp_path))
    assert metadata == {"who": "shop"}
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    write_bytes(path, b"replaced")
    assert path.read_bytes() == b"replaced"
    assert [file.name for file in path.parent.iterdir()] == ["file.safetensors"]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_a_file_holds_the_bytes_that_safetensors_writes_of_tensors(tmp_path, dtype):
    """NumPy has no bfloat16. All other numbers are written as NumPy arrays, which is faster."""
    path = tmp_path / "file.safetensors"
    numbers = torch.tensor([[0.0, 1.5, -2.0]]).abs().to(getattr(torch, dtype))
    tensors = {"numbers": numbers, "one": numbers[0, 1], "none": numbers[:0], "turned": numbers.T}
    write_tensors(path, tensors, {}, origin=Origin(folder=tmp_path))
    content = path.read_bytes()
    seal = content.partition(b'"seal":"')[2].partition(b'"')[0].decode()
    apart = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    assert content == save(apart, {SEAL: seal})
    assert_same_bits(read_tensors(path, origin=Origin(folder=tmp_path))[0], tensors)


def test_weights_that_two_layers_share_come_back(tmp_path):
    tied, again = (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)) for _ in range(2))
    for each in (tied, again):
        each[1].weight = each[0].weight
    store = CheckpointStore(tmp_path)
    store.save(TrainingState(step=1), tied, None)
    store.load(1, again, None)
    assert again[1].weight is again[0].weight
    assert_same_bits(again.state_dict(), tied.state_dict())
