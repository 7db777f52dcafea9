"""Scores online, over real sessions and HTTP, equal those of a prediction, to the bit."""

import io

import numpy as np
import polars as pl
import pytest
from serving_job import Served


def bits(values):
    return np.array(values, dtype=np.float32).tobytes()


def in_several_requests(served, frame, columns):
    """Return the scores of all rows of a table, asked for in requests of several sizes."""
    got, start = [], 0
    for size in (1, 2, 7, 37, 50, *[500] * 9):
        rows = frame[start : start + size].select(columns).to_dicts()
        if rows:
            response = served.ask(*rows)
            assert response.status_code == 200, response.text
            got += response.json()["scores"]
        start += size
    return got


@pytest.mark.parametrize("way", ["position", pytest.param("window", marks=pytest.mark.long), "ahead"])
def test_scores_are_those_of_a_prediction_to_the_bit(trained, way):
    job, expected = trained
    served = Served(job, way=way)
    try:
        served.start().until_ready()
        got = in_several_requests(served, expected, ["id"])
        assert [row["scored_by"] for row in got] == expected["scored_by"].to_list()
        assert bits([row["score"] for row in got]) == bits(expected["score"].to_numpy())
    finally:
        served.close()


def test_own_columns_in_the_request_give_the_same_bits(served, trained):
    job, expected = trained
    table = pl.read_parquet(job.home("bank") / "table.parquet").join(expected, on="id", maintain_order="right")
    got = in_several_requests(served, table[:97], ["id", "x", "noise", "kind"])
    assert bits([row["score"] for row in got]) == bits(table["score"][:97].to_numpy())


def test_arrow_gives_the_same_bits_and_says_what_scored(served, trained):
    _, expected = trained
    stream = io.BytesIO()
    expected[:50].select("id").write_ipc_stream(stream)
    kind = "application/vnd.apache.arrow.stream"
    response = served.client.post("/v1/score", content=stream.getvalue(), headers={"content-type": kind})
    scored = pl.read_ipc_stream(io.BytesIO(response.content))
    assert bits(scored["score"].to_numpy()) == bits(expected["score"][:50].to_numpy())
    assert scored["scored_by"].to_list() == expected["scored_by"][:50].to_list()


def test_the_page_for_programs_names_the_columns_and_the_page_for_monitors_counts(served):
    document = served.client.get("/openapi.json").json()
    row = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["rows"]
    assert set(row["items"]["properties"]) == {"id", "x", "noise", "kind"}
    before = served.client.get("/metrics").text
    served.ask({"id": "nobody"})
    assert 'tallystick_requests_total{status="404"}' in served.client.get("/metrics").text
    assert before != served.client.get("/metrics").text
    assert served.client.get("/healthz").status_code == 200
