"""A party's number of threads holds for all arithmetic, and for its run alone; by default small steps have one."""

from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from tiny import columns, contract_values, tables

from tallystick.config.contract import parse_contract
from tallystick.job.job import fitting_threads, use_threads
from tallystick.simulation import Silent, simulate


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_a_partys_threads_hold_for_linear_algebra_too() -> None:
    before = torch.get_num_threads()
    with threadpool_limits(2, user_api="blas"):
        use_threads(None)
        assert blas_threads() == {2}
        use_threads(1)
        assert blas_threads() == {torch.get_num_threads()} == {1}
    torch.set_num_threads(before)


def test_a_simulation_leaves_its_hosts_threads_as_they_were() -> None:
    parties = {name: each | {"threads": 1} for name, each in columns(("bank", "shop")).items()}
    with threadpool_limits(2, user_api="blas"):
        before = torch.get_num_threads()
        simulate(contract_values(("bank", "shop")), tables(("bank", "shop"), rows=200), parties, watcher=Silent())
        assert blas_threads() == {2}
        assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("rows", "model", "threads"),
    [
        (30_000, {}, 1),
        (200_000, {}, 1),
        (1_000_000, {}, None),  # batches of 1,024 rows
        (30_000, {"hidden": [1024, 1024]}, None),
        (30_000, {"top": "own:Top"}, None),
        (0, {}, None),  # a helper
    ],
)
def test_small_steps_take_one_thread(rows: int, model: dict[str, Any], threads: int | None) -> None:
    contract = parse_contract({**contract_values(("bank", "shop")), "model": model, "training": {}})
    assert fitting_threads(contract, rows) == threads


def test_all_parties_of_a_simulation_take_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int | None] = []
    monkeypatch.setattr("tallystick.job.run.use_threads", used.append)
    frames = tables(("bank", "shop"), rows=200)
    simulate(contract_values(("bank", "shop")), frames, columns(("bank", "shop")), watcher=Silent())
    assert used == [1, 1]
