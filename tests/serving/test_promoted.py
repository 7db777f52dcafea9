"""Serving uses the run that all sides promoted, and none that one side did not promote."""

import polars as pl
import pytest
from serving_job import Served
from tiny import within

from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.job.run_selection import complete_ids
from tallystick.job.versions import Versions

PARTIES = ("bank", "shop")


def versions(job, name):
    contract = load_contract(job.home(name) / "contract.yaml")
    return Versions(contract=contract, party=load_party(job.home(name) / "party.yaml"))


@pytest.mark.long
def test_the_run_that_all_promoted_is_served_and_one_side_alone_brings_none_into_use(lay_out_job):
    more = {"evaluation__bootstrap": 0, "unaligned": {"method": "multi-task"}}
    job = lay_out_job(PARTIES, rows=200, training__epochs=1, serving={"ways": ["key"]}, **more)
    for _ in range(2):
        job.run_all()
    bank = versions(job, "bank")
    old = complete_ids(bank.contract, bank.party)[-1]
    bank.promote(old)
    key = pl.read_parquet(job.home("bank") / "table.parquet")["id"][0]
    served = Served(job, way="key")
    try:
        served.start()
        refused = "no run is promoted on all sides"
        assert within(60, lambda: any(refused in str(event) for event in served.running["bank"].events))
        assert served.ask({"id": key}).json()["scores"][0]["scored_by"] == "own columns"
        served.running["shop"].kill()
        versions(job, "shop").promote(old)
        served.start("shop").until_ready()
        assert served.ask({"id": key}).json()["run_id"] == old
        assert versions(job, "shop").promoted()[0].version
    finally:
        served.close()
