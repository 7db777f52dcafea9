"""Jobs are tested for what they do and say; how well each attack reads is for tests/attacks."""

import pytest
from tiny import few_places, short_trainings


@pytest.fixture(autouse=True, scope="module")
def _short_attacks():
    with pytest.MonkeyPatch.context() as patch:
        short_trainings(patch)
        few_places(patch)
        yield
