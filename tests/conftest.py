"""Fixtures that several folders share, and how the tests are run: side by side, and in which order."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # a process per core: PyTorch's own threads would only be in each other's way
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings
from tiny import contract_values, lay_out, leave_files_to_the_kernel, remember_products, seed_system

settings.register_profile("random", deadline=None)  # a busy machine is no error
settings.register_profile("tallystick", settings.get_profile("random"), derandomize=True)  # the same examples in every run
settings.load_profile("tallystick")
leave_files_to_the_kernel()

BY_THE_CLOCK = (
    ("tests/job/test_crashes.py",),
    ("robustness/tests/", "tests/demo/", "tests/job/test_hostile_messages.py"),
    ("tests/network/",),
)
"""Tests of deadlines, heartbeats and kills, which mostly wait: one worker takes all of a line, and begins with it."""

LONG = (
    *("tests/job/", "tests/alignment/", "tests/attacks/", "tests/audit/", "tests/cli/", "tests/evaluation/private/"),
    *("tests/export/", "tests/serving/", "tests/training/", "tests/test_public_names.py", "experiments/tests/"),
)
"""Where files take five processor seconds and more: they begin first, so that at the end no worker is alone with one."""


def _turn(nodeid):
    """Return (turn, group) of a test: what goes by the clock begins, then whole runs, then all else, a file at a time."""
    for names in BY_THE_CLOCK:
        if nodeid.startswith(names):
            return 0, names[0]
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


@pytest.fixture(autouse=True)
def _seeded_system(request, monkeypatch):
    """What draws from the operating system in the test's process draws from seeded streams: the test ends alike in every run.

    A test of the source itself is marked ``unseeded`` and states its chance of failing.
    """
    if not request.node.get_closest_marker("unseeded"):
        seed_system(monkeypatch)
        remember_products(monkeypatch)
        torch.manual_seed(0)


@pytest.fixture
def lay_out_job(tmp_path):
    """Lay out jobs: lay_out_job(parties=("bank", "shop"), rows=600, **changes of the contract); ends all processes."""
    jobs = []

    def make(parties=("bank", "shop"), *, rows=600, frames=None, **changes):
        root = tmp_path / f"job-{len(jobs)}"
        root.mkdir()
        jobs.append(lay_out(root, parties, contract_values(parties, **changes), frames, rows=rows))
        return jobs[-1]

    yield make
    for job in jobs:
        for party in job.started:
            party.close()
