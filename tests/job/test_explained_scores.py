"""Explanations of scores in a prediction of two parties add up to the written score, and nothing more crosses."""

import math
import re

import polars as pl
import pytest
from test_chosen_runs import PARTIES, Watching, both
from tiny import files_of

from tallystick.errors import ConfigError
from tallystick.job.predict import predict_rows
from tallystick.job.process import run_process


def test_contributions_add_up_to_the_scores_that_are_written(lay_out_job):
    job = lay_out_job(PARTIES, rows=200, training__epochs=3, evaluation__bootstrap=0)
    both(lambda name: run_process(*files_of(job, name), watcher=Watching()))
    home = job.home("bank")

    def work(name, **more):
        output = home / "scores.csv" if name == "bank" else None
        asked = {"explained": home / "why.csv", "most_explained": 15} if name == "bank" else {}
        return predict_rows(*files_of(job, name), table=None, output=output, watcher=Watching(), **asked)

    both(work)
    scores, why = pl.read_csv(home / "scores.csv"), pl.read_csv(home / "why.csv")
    assert why["id"].to_list() == scores["id"].to_list()[:15]
    assert [name for name in why.columns if name.startswith("by ")] == ["by x", "by noise", "by kind", "by embedding of shop"]
    for row, score in zip(why.iter_rows(named=True), scores["score"], strict=False):
        total = row["base"] + sum(value for name, value in row.items() if name.startswith("by "))
        assert total == pytest.approx(row["logit"], abs=1e-4)
        assert 1 / (1 + math.exp(-row["logit"])) == pytest.approx(score, abs=1e-5)
    assert why["by x"].abs().mean() > why["by noise"].abs().mean()  # the label follows x

    with pytest.raises(ConfigError, match="--explain: the label party explains scores"):
        predict_rows(*files_of(job, "shop"), table=None, output=None, watcher=Watching(), explained=job.home("shop") / "why.csv")
    with pytest.raises(ConfigError, match=re.escape(str(home / "why.csv"))):
        predict_rows(*files_of(job, "bank"), table=None, output=home / "more.csv", watcher=Watching(), explained=home / "why.csv")
