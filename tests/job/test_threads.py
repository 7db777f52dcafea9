"""A party's number of threads holds for all arithmetic, and for its run alone."""

import torch
from threadpoolctl import threadpool_info, threadpool_limits
from tiny import columns, contract_values, tables

from tallystick.job.job import use_threads
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
