"""Served embeddings with noise: a row has the same noise each time it is asked for, and a table is charged once."""

import polars as pl
import pytest
from serving_job import Served, files
from test_serve import bits
from tiny import within

from tallystick.privacy.ledger import Ledger
from tallystick.run_folder.ledger import known_ledger

NOISE = {"method": "gaussian-embeddings", "epsilon": 5.0, "delta": 1e-6, "clip": 1.0}


def charges(job):
    """Return the entries for serving in the feature party's ledger."""
    return sum("serving" in entry.what for entry in known_ledger(files(job, "shop")[1]).entries())


def rewrite(path, frame):
    frame.write_parquet(path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


@pytest.mark.long
def test_a_row_has_the_same_noise_each_time_and_a_changed_table_is_charged_again(lay_out_job):
    job = lay_out_job(("bank", "shop"), rows=200, training__epochs=1, serving={"ways": ["key"]}, defense=[NOISE])
    Ledger.create(job.home("shop") / "privacy-ledger.sqlite", party="shop")
    job.run_all()
    job.change("shop", serving={"refresh_s": 0.1})
    path = job.home("shop") / "table.parquet"
    table = pl.read_parquet(path)
    ids = table["id"].filter(table["id"].is_in(pl.read_parquet(job.home("bank") / "table.parquet")["id"].to_list()))[:40]
    served = Served(job)

    def scores():
        came = []

        def answered():
            came.append(served.ask(*ids.to_frame().to_dicts()))
            return came[-1].status_code == 200

        assert within(120, answered), came[-1].text
        return [row["score"] for row in came[-1].json()["scores"]]

    try:
        served.start().until_ready()
        first = scores()
        assert bits(scores()) == bits(first)
        assert charges(job) == 1
        served.running["shop"].kill()
        served.start("shop")
        assert bits(scores()) == bits(first)
        assert charges(job) == 1  # the same table
        rewrite(path, table.with_columns(x=pl.when(pl.col("id") == ids[0]).then(pl.col("x") + 5).otherwise(pl.col("x"))))
        assert within(60, lambda: charges(job) == 2)
        assert within(60, lambda: scores()[0] != first[0])
        assert bits(scores()[1:]) == bits(first[1:])  # unchanged rows have the same noise as before
        rewrite(path, table)
        assert within(60, lambda: scores()[0] == first[0])
        assert charges(job) == 2  # a table that was charged
    finally:
        served.close()
