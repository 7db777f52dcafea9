"""Made-up click logs for the benchmark's tests."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable


ENTRY_POINTS = cache(entry_points)


def criteo_text(rows: int) -> str:
    """Make labels that follow the first number and the first category, so that a model has something to learn."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(rows):
        numbers = [str(int(n)) if rng.random() < 0.9 else "" for n in rng.integers(-2, 100, 13)]
        categories = [f"{int(c):08x}" if rng.random() < 0.95 else "" for c in rng.integers(0, 6, 26)]
        signal = (int(numbers[0] or 0) > 60) + (categories[0] == f"{1:08x}")
        lines.append("\t".join([str(int(rng.random() < 0.1 + 0.4 * signal)), *numbers, *categories]))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def criteo_lines() -> Callable[[int], str]:
    return criteo_text


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("criteo") / "train.txt"
    path.write_text(criteo_text(700))
    return path


@pytest.fixture(scope="session")
def table(file: Path) -> "TwoPartyTable":
    from tallystick_experiments.catalogue.clicks import read_clicks

    return read_clicks(file)


@pytest.fixture(scope="session")
def clicks(table: "TwoPartyTable") -> "SplitData":
    from tallystick_experiments.catalogue.clicks import encode_clicks

    return encode_clicks(table, seed=1)


@pytest.fixture(autouse=True, scope="module")
def _short_trainings():
    """These tests are about what experiments do with attacks, not about how well these read. Installed packages are looked
    through once.
    """
    from tiny import short_trainings

    from tallystick.defenses import defense_table

    with pytest.MonkeyPatch.context() as patch:
        short_trainings(patch)
        patch.setattr(defense_table, "entry_points", ENTRY_POINTS)
        yield
