"""Fixtures that several folders share, and how the tests are run: side by side, but those that go by the clock one by one."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # a process per core: PyTorch's own threads would only be in each other's way
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from tiny import contract_values, lay_out, seed_system

settings.register_profile("tallystick", deadline=None)  # a busy machine is no error
settings.load_profile("tallystick")

BY_THE_CLOCK = (
    "tests/benchmark/test_faults.py",
    "tests/demo/",
    "tests/job/test_crashes.py",
    "tests/job/test_hostile_messages.py",
    "tests/network/",
)
"""Tests of deadlines, heartbeats and kills. One worker takes them all, so that none slows another; they mostly wait."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, whose fixtures are then made once, and one worker all that goes by the clock."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileAndClock(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "by the clock" if nodeid.startswith(BY_THE_CLOCK) else super()._split_scope(nodeid)

    return ByFileAndClock(config, log)


@pytest.fixture
def seeded_system(monkeypatch):
    """Jobs in threads draw from seeded streams, not the operating system: what is measured of them is the same in every run."""
    seed_system(monkeypatch)


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
