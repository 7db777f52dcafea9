"""A run in use, for all tests of monitoring."""

import numpy as np
import polars as pl
import pytest
import yaml
from tiny import columns, contract_values, tables

from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")


@pytest.fixture(scope="session")
def used(tmp_path_factory):
    """Make a finished run's folder, contract and party files, and new rows: the shop's are as before, a column of the
    bank's moved.
    """
    folder = tmp_path_factory.mktemp("used")
    contract = contract_values(PARTIES, evaluation__bootstrap=0)
    result = simulate(contract, tables(PARTIES, rows=1_500), columns(PARTIES), folder=folder, watcher=Silent())
    later = tables(PARTIES, rows=1_200, seed=2)
    rng = np.random.default_rng(3)
    days = pl.datetime_range(pl.datetime(2026, 1, 1), pl.datetime(2026, 2, 28), "1d", eager=True)
    bank = later["bank"].with_columns(x=pl.col("x") + 1, day=pl.Series(rng.choice(days.to_numpy(), later["bank"].height)))
    later["bank"] = bank.with_columns(y=pl.when(pl.Series(rng.random(bank.height)) < 0.8).then(pl.col("y")))
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    for name in PARTIES:
        later[name].write_parquet(folder / f"{name}.parquet")
        values = {"party": name, "table": {"path": f"{name}.parquet"}, "runs": name, **columns(PARTIES)[name]}
        if name == "bank":
            values["time"] = "day"
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    score = 1 / (1 + np.exp(-later["bank"]["x"].to_numpy()))
    scores = pl.DataFrame({"id": later["bank"]["id"], "score": score, "run_id": result.run_id})
    scores = scores.with_columns(scored_by=pl.Series(np.where(np.arange(len(score)) % 4, "joint model", "own columns")))
    scores[:1_000].write_csv(folder / "scores.csv")
    return folder, result.run_id
