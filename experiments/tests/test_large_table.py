"""bench table measures the phases of a run one by one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tallystick_experiments.speed import table


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_label_party_alone(tmp_path: Path) -> None:
    found = table.measure_table(rows=3000, batch_size=512, alone=True, log=tmp_path / "log")
    party = found["parties"]["label"]
    assert list(party["phases"]) == ["generate", "read", "number", "fit", "encode", "batches"]
    assert party["phases"]["batches"]["batches"] == party["phases"]["batches"]["of"] > 0
    assert all(phase["peak_mib"] >= phase["anonymous_mib"] > 0 for phase in party["phases"].values())
    assert party["encoded_row_bytes"] == 6 * (4 + 1) + 13  # numbers with their marks, and a byte for each category of so few rows
    assert len((tmp_path / "log").read_text().splitlines()) == 6
