"""Fixtures that several folders share, and the order in which tests run side by side."""

import atexit
import gc
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # a process per core: threads of PyTorch's and Polars' own would only be in the way
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("POLARS_MAX_THREADS", "1")

import pytest
from hypothesis import settings

# This file and those beside it import PyTorch and the library where they need them: the process that hands out the tests loads
# this file, too, and before it has done so no worker starts.

settings.register_profile("random", deadline=None)  # a busy machine is no error
settings.register_profile("tallystick", settings.get_profile("random"), derandomize=True)  # the same examples in every run
settings.register_profile("short lane", settings.get_profile("tallystick"), max_examples=15)  # if a test states no number
settings.load_profile("tallystick")

gc.disable()  # until all tests are known, because what modules and tests create stays

BY_THE_CLOCK = (
    *("tests/job/test_crashes.py", "robustness/tests/", "tests/demo/", "tests/job/test_hostile_messages.py"),
    "tests/network/",
)
"""Tests of deadlines, heartbeats and kills, which mostly wait: one worker begins with all of them, and the others compute."""

LONG = (
    *("tests/job/", "tests/alignment/", "tests/attacks/", "tests/audit/", "tests/cli/", "tests/evaluation/private/"),
    *("tests/export/", "tests/serving/", "tests/tables/", "tests/training/", "tests/test_public_names.py", "experiments/tests/"),
)
"""Where files take five processor seconds and more: they begin first, so that at the end no worker is alone with one."""


def pytest_configure(config):
    """Take fewer examples in the short lane."""
    if config.getoption("markexpr") == "not long":
        settings.load_profile("short lane")


def _turn(nodeid):
    """Return (turn, group) of a test: what goes by the clock begins, then whole runs, then all else, a file at a time."""
    if nodeid.startswith(BY_THE_CLOCK):
        return 0, "by the clock"
    for folder in ("tests/export/", "tests/serving/"):
        if nodeid.startswith(folder):
            return 1, folder  # ONNX takes seconds to load, and the job that is served is trained once
    return 1 if nodeid.startswith(LONG) else 2, nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, whose fixtures are then made once, in the order of their turns."""
    from xdist.scheduler import LoadFileScheduling

    class ByTurns(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return _turn(nodeid)[1]

    config.option.loadscopereorder = False  # else by the number of tests, which says little of their time
    return ByTurns(config, log)


def pytest_collection_modifyitems(items):
    """Sort the tests by turn; those of one turn keep their order."""
    items.sort(key=lambda item: _turn(item.nodeid)[0])


def pytest_collection_finish():
    """Begin to collect garbage now, without the million objects that stay, and not after each 700 new ones."""
    from tiny import leave_files_to_the_kernel, remember_libraries, remember_products

    leave_files_to_the_kernel()
    remember_libraries()
    remember_products()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
    atexit.register(gc.unfreeze)  # DuckDB writes to standard error which of its objects were not collected


@pytest.fixture(autouse=True)
def _seeded_system(request, monkeypatch):
    """Draws from the operating system in the test's process come from seeded streams, so the test ends alike in every run.

    A test of the source itself is marked ``unseeded`` and states its chance of failing.
    """
    if not request.node.get_closest_marker("unseeded"):
        import torch
        from tiny import seed_system

        seed_system(monkeypatch)
        # torch.manual_seed records the whole stack for each kind of accelerator, each time
        torch.default_generator.manual_seed(0)


@pytest.fixture
def lay_out_job(tmp_path):
    """Lay out jobs: lay_out_job(parties=("bank", "shop"), rows=300, **changes of the contract). End all processes."""
    from tiny import contract_values, lay_out

    jobs = []

    def make(parties=("bank", "shop"), *, rows=300, frames=None, **changes):
        root = tmp_path / f"job-{len(jobs)}"
        root.mkdir()
        jobs.append(lay_out(root, parties, contract_values(parties, **changes), frames, rows=rows))
        return jobs[-1]

    yield make
    for job in jobs:
        for party in job.started:
            party.close()
