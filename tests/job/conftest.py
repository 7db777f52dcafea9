"""Jobs are tested for what they do and say; how well each attack reads is for tests/attacks."""

import pytest
from tiny import few_places, one_draw_of_known_rows, short_trainings, short_unions

from tallystick.job.phases import evaluate, train


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
    """What is trained of own columns alone: its rows, the model, the state, and the weights before a refit."""
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
