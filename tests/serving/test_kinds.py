"""Serve other kinds of jobs: several partners, sequences and classes, a union. The bits are those of a prediction."""

import numpy as np
import polars as pl
import pytest
from serving_job import Served, predicted
from test_serve import bits, in_several_requests
from tiny import contract_values, lay_out, tables


def trained_job(root, parties, *, sequences=False, target="binary", features=None, **changes):
    frames = tables(parties, rows=400, target=target)
    if sequences:
        rng = np.random.default_rng(3)
        frames = {
            name: frame.with_columns(
                seen=pl.Series([" ".join(rng.choice(list("abcdef"), size=rng.integers(0, 6))) for _ in range(frame.height)])
            )
            for name, frame in frames.items()
        }
    job = lay_out(root, parties, contract_values(parties, **changes), frames)
    for name, columns in (features or {}).items():
        job.change(name, features=columns)
    if sequences:
        for name in parties:
            job.change(name, sequences={"seen": {"separator": " ", "length": 3}})
    job.run_all()
    return job, predicted(job, shared=changes.get("alignment__method") == "union")


@pytest.mark.long
@pytest.mark.parametrize("way", ["key", "window"])
def test_several_partners_sequences_classes_and_rows_that_only_some_partners_have(tmp_path, way):
    parties = ("bank", "mail", "shop")
    job, expected = trained_job(
        tmp_path,
        parties,
        sequences=True,
        target="multiclass",
        target__type="multiclass",
        target__classes=3,
        model__hidden=[16, 16],
        serving={"ways": ["key", "window"], "window": 10},
    )
    served = Served(job, way=way)
    try:
        served.start().until_ready()
        got = in_several_requests(served, expected, ["id"])
        for name in [name for name in expected.columns if name.startswith("score_")]:
            assert bits([row[name] for row in got]) == bits(expected[name].to_numpy())
        mine = pl.read_parquet(job.home("bank") / "table.parquet")["id"]
        lonely = mine.filter(~mine.is_in(expected["id"].to_list()))
        assert {served.ask({"id": key}).status_code for key in lonely[:20]} == {404}
    finally:
        served.close()


@pytest.mark.long
def test_a_union_is_asked_ahead_and_what_crosses_is_the_same_whatever_is_asked(tmp_path):
    job, expected = trained_job(
        tmp_path,
        ("bank", "shop"),
        alignment__method="union",
        serving={"ways": ["ahead"]},
        union={"audit": False, "features": "sampling"},  # other methods change real rows' values a little, anew in each alignment
        model__hidden=[16, 16],
    )
    served = Served(job)
    try:
        served.start().until_ready()
        mine = pl.read_parquet(job.home("bank") / "table.parquet")["id"]
        theirs = set(pl.read_parquet(job.home("shop") / "table.parquet")["id"])
        journal = next((job.home("shop") / "runs").glob("serving/*/*/serving-journal-*"))
        before = journal.read_bytes()
        got = in_several_requests(served, expected.filter(expected["id"].is_in(mine.to_list())), ["id"])
        assert journal.read_bytes() == before  # nothing of requests crossed
        common = [place for place, key in enumerate(expected["id"]) if key in theirs]
        scores = np.array([row["score"] for row in got], dtype=np.float32)
        assert scores[common].tobytes() == bits(expected["score"].to_numpy()[common])
        assert served.ask({"id": "nobody"}).status_code == 404
    finally:
        served.close()
