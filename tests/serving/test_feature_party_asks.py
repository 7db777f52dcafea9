"""The feature party has the clients. It gets the scores of a prediction, whichever side has its rows."""

import polars as pl
import pytest
from serving_job import Served
from test_kinds import trained_job
from test_serve import bits
from tiny import within

from tallystick.privacy.ledger import Ledger

PARTIES = ("bank", "shop")
KINDS = {
    "embedding": {"ways": ["embedding"]},
    "agreed-batch": {"ways": ["agreed-batch"], "window": 20},
}


def own_scores(job):
    """Return what `predict` on a union writes for the feature party's rows."""
    return pl.read_parquet(job.home("shop") / "scores.parquet")


@pytest.mark.long
@pytest.mark.parametrize("way", KINDS)
def test_on_a_union_the_scores_of_its_own_rows_are_those_of_a_prediction_and_stay_so(tmp_path, way):
    features = {"bank": {"numeric": [], "categorical": []}} if way == "embedding" else {}
    job, _ = trained_job(
        tmp_path,
        PARTIES,
        features=features,
        alignment__method="union",
        serving=KINDS[way],
        union={"audit": False, "features": "sampling"},  # other methods change real rows' values a little, anew in each alignment
        model__hidden=[16, 16],
    )
    served, expected = Served(job, asks="shop"), own_scores(job)
    both = set(pl.read_parquet(job.home("bank") / "table.parquet")["id"]) if way == "agreed-batch" else set(expected["id"])
    common = [place for place, key in enumerate(expected["id"]) if key in both]
    try:
        served.start().until_ready()
        got = [
            score for part in expected["id"].to_frame().iter_slices(50) for score in served.ask(*part.to_dicts()).json()["scores"]
        ]
        scores = [row["score"] for row in got]
        assert bits([scores[place] for place in common]) == bits(expected["score"].to_numpy()[common])
        assert served.ask({"id": "nobody"}).status_code == 404
        brought = served.ask({"id": expected["id"][0], "x": 0.1, "noise": 0.2, "kind": "red"})
        assert brought.status_code == (200 if way == "embedding" else 422)
        for side in PARTIES:  # a side that comes back makes up the same rows
            served.running[side].kill()
        served.start().until_ready(seconds=120)
        again = [row["score"] for row in served.ask(*expected["id"].to_frame().to_dicts()[:200]).json()["scores"]]
        assert bits(again) == bits(scores[:200])
    finally:
        served.close()
    entered = [each.what for each in Ledger(job.home("bank") / "privacy-ledger.sqlite", party="bank").not_private()]
    assert [what.partition(" with ")[0] for what in entered if "scores, sent to shop" in what] == [
        "prediction",
        "serving",
        "serving",
    ]


@pytest.mark.long
def test_on_an_intersection_the_scores_of_common_rows_are_those_of_a_prediction(tmp_path):
    job, expected = trained_job(
        tmp_path,
        PARTIES,
        sequences=True,
        unaligned={"method": "multi-task"},
        serving={"ways": ["agreed-batch"], "window": 20, "questions_a_day_per_row": 1},
        model__hidden=[16, 16],
    )
    expected, served = expected.filter(expected["scored_by"] == "joint model"), Served(job, asks="shop")
    try:
        served.start().until_ready()
        for _ in range(2):  # a batch crosses once, and so stays within the day's budget of its rows
            parts = [served.ask(*part.to_dicts()).json()["scores"] for part in expected.select("id").iter_slices(100)]
            assert bits([row["score"] for part in parts for row in part]) == bits(expected["score"].to_numpy())
        served.running["bank"].kill()
        served.start("bank")
        key = {"id": expected["id"][0]}
        # in a new session it crosses again, which today's budget forbids
        assert within(120, lambda: served.ask(key).status_code == 429)
        alone = pl.read_parquet(job.home("shop") / "table.parquet")["id"]
        assert served.ask({"id": alone.filter(~alone.is_in(expected["id"].to_list()))[0]}).status_code == 404
    finally:
        served.close()
