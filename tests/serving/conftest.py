"""Train a job once for all tests of serving."""

import pytest
from serving_job import Served, predicted
from tiny import contract_values, lay_out

PARTIES = ("bank", "shop")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Make a trained job whose contract allows all ways and scores unaligned rows, with the scores that `predict` gives
    its rows.
    """
    serving = {"ways": ["key", "position", "window", "ahead"], "window": 16}
    values = contract_values(PARTIES, serving=serving, unaligned={"method": "multi-task"}, model__hidden=[16, 16])
    job = lay_out(tmp_path_factory.mktemp("served"), PARTIES, values)
    job.run_all()
    yield job, predicted(job)
    for party in job.started:
        party.close()


@pytest.fixture(scope="module")
def served(trained):
    """Start both sides, asking by key."""
    job, _ = trained
    served = Served(job, way="key", max_rows=50, max_body_kib=64)
    yield served.start().until_ready()
    served.close()
