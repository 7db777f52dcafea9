"""Fixtures that several folders share."""

import pytest
from tiny import contract_values, lay_out, seed_system


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
