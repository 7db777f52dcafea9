"""Test what jobs do and say. How well each attack reads is tested in tests/attacks."""

import pytest
from tiny import few_places, one_draw_of_known_rows, seed_system, short_trainings, short_unions

from tallystick.job.phases import evaluate, train
from tallystick.network.channel import MemoryChannel
from tallystick.network.messages import encode


@pytest.fixture(autouse=True, scope="module")
def _short_attacks():
    with pytest.MonkeyPatch.context() as patch:
        short_trainings(patch)
        short_unions(patch)
        one_draw_of_known_rows(patch)
        few_places(patch, most=20)
        yield


@pytest.fixture
def own_trainings(monkeypatch):
    """Collect each training of own columns alone: its rows, the model, the state, and the weights before a refit."""
    found = []
    train_own_columns = train.train_own_columns

    def training(contract, own, model, *, between=lambda: None, **more):
        first = {}

        def watched():
            first.update({name: weight.clone() for name, weight in model.state_dict().items()})
            between()

        state = train_own_columns(contract, own, model, between=watched, **more)
        found.append((own, model, state, first))
        return state

    for module in (train, evaluate):
        monkeypatch.setattr(module, "train_own_columns", training)
    return found


@pytest.fixture
def to_shop(monkeypatch):
    """Collect all bytes that shop is sent, in order. Draws from the system are seeded, so that two runs can be compared."""
    sent = []
    seed_system(monkeypatch)
    send, abort = MemoryChannel.send, MemoryChannel.abort

    def kept(channel, message):
        if channel.peer == "shop":
            sent.append(bytes(encode(message)))
        send(channel, message)

    def aborted(channel, reason):
        if channel.peer == "shop":
            sent.append(reason.encode())
        abort(channel, reason)

    monkeypatch.setattr(MemoryChannel, "send", kept)
    monkeypatch.setattr(MemoryChannel, "abort", aborted)
    return sent
