"""Which run's model scores in a prediction, and what parties with different runs are told."""

import shutil
from functools import partial

import polars as pl
import pytest
from tiny import OnDisk, contract_values, error_of, files_of, lay_out, of_each

from tallystick import predict
from tallystick.errors import ConfigError, DamagedFile, PeerStopped, TallystickError
from tallystick.job.process import run_process
from tallystick.tables import records
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
both = partial(of_each, PARTIES)


class Watching(Silent):
    """Collects phases and lines, and ends a training early if asked to."""

    def __init__(self, *, stops=False):
        self.heard, self._stops, self.steps = [], stops, []

    def phase(self, name):
        self.heard.append(name)

    def say(self, text):
        self.heard.append(text)

    def progress(self, what, *step):
        self.steps.append((what, *step))
        if self._stops and what == "training":
            raise TallystickError("stopped")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Make two complete runs on different labels, and one that was interrupted in its training."""
    values = contract_values(PARTIES, training__epochs=2, evaluation__bootstrap=0)
    job = lay_out(tmp_path_factory.mktemp("finished"), PARTIES, values, rows=150)
    table = job.home("bank") / "table.parquet"
    frame = pl.read_parquet(table)
    for flipped, stops in ((True, False), (False, False), (False, True)):
        frame.with_columns(y=1 - pl.col("y") if flipped else pl.col("y")).write_parquet(table)
        ended = both(lambda name, stops=stops: run_process(*files_of(job, name), watcher=Watching(stops=stops)))
        assert all(isinstance(end, TallystickError) == stops for end in ended.values()), ended
    return job


@pytest.fixture
def job(finished, tmp_path):
    """Return a copy of it."""
    return OnDisk(shutil.copytree(finished.root, tmp_path / "job"), PARTIES)


def predicted(job, file, *, chosen=None):
    """Return each side's prediction, and what it was told."""
    watchers = {name: Watching() for name in PARTIES}

    def work(name):
        output = job.home(name) / file if name == "bank" else None
        home = job.home(name)
        run = (chosen or {}).get(name)
        return predict(home / "contract.yaml", home / "party.yaml", output=output, run=run, watcher=watchers[name])

    return both(work), watchers


def test_the_latest_complete_run_or_the_chosen_one_scores_and_says_so(job):
    first, second, interrupted = job.runs("bank")
    found, watchers = predicted(job, "default.csv")
    run_id = found["bank"]["run"]
    assert (found["bank"]["folder"], found["shop"]["run"]) == (str(second), run_id)
    for name in PARTIES:
        folders = [path.name for path in job.runs(name)]
        said = f"{folders[2]} was not finished: predicting with the latest complete run, {folders[1]}"
        assert said in watchers[name].heard
    # it may consist of digits alone
    default = pl.read_csv(job.home("bank") / "default.csv", schema_overrides={"run_id": pl.String})
    for watcher in watchers.values():  # both see the progress of scoring
        assert watcher.steps[-1] == ("scoring", default.height, default.height)
    assert default["run_id"].unique().to_list() == [run_id]
    assert stat_mode(job.home("bank") / "default.csv") == 0o600

    shops = job.runs("shop")[0]
    found, _ = predicted(job, "first.parquet", chosen={"bank": first.name, "shop": str(shops)})
    chosen, theirs = found["bank"]["run"], pl.read_parquet(job.home("bank") / "first.parquet")
    assert chosen != run_id
    assert theirs["run_id"].unique().to_list() == [chosen] == [found["shop"]["run"]]
    again, _ = predicted(job, "again.parquet", chosen=dict.fromkeys(PARTIES, chosen))  # by the id that both know
    assert again["bank"]["folder"] == str(first)
    beside = default.join(theirs, on="id", suffix="_first")
    assert (beside["score"] - beside["score_first"]).abs().max() > 0.01  # it was trained on flipped labels

    contract, party = files_of(job, "bank")
    assert interrupted != second
    for name, words in (
        (interrupted.name, "training was not finished"),
        ("x", rf"give the id of a complete run \({run_id}, {chosen}\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            predict(contract, party, output=job.home("bank") / "none.csv", run=name, watcher=Silent())
    shutil.copytree(shops, party.runs / shops.name, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match="is a run of shop; give one of bank"):
        predict(contract, party, output=job.home("bank") / "none.csv", run=shops.name, watcher=Silent())


def test_rows_get_the_same_scores_wherever_they_lie(job, monkeypatch):
    predicted(job, "held.parquet")
    for name, value in (("IN_MEMORY_BYTES", 0), ("PIECE_BYTES", 1), ("LEAST_ROWS", 50)):
        monkeypatch.setattr(records, name, value)
    predicted(job, "files.parquet")
    held, files = (pl.read_parquet(job.home("bank") / f"{name}.parquet") for name in ("held", "files"))
    assert held.height > 100
    assert files.equals(held)


def test_sides_with_different_runs_hear_who_has_which_and_what_helps_before_anything_crosses(job):
    found, _ = predicted(job, "second.csv")
    second = found["bank"]["run"]
    shutil.rmtree(job.runs("shop")[1])
    ended, watchers = predicted(job, "mixed.csv")
    (first,) = {folder.name for folder in [job.runs("shop")[0]]}
    own, told = str(ended["bank"]), str(ended["shop"])
    assert isinstance(ended["shop"], PeerStopped)
    for words in (own, told):
        assert f"the sides would predict with different runs: bank {second}, shop " in words
        assert "all have run " in words
    shared = own.split("`--run ")[1].split("`")[0]
    assert all("alignment" not in watcher.heard for watcher in watchers.values())
    assert not (job.home("bank") / "mixed.csv").exists()
    found, _ = predicted(job, "mixed.csv", chosen=dict.fromkeys(PARTIES, shared))  # following the advice helps
    assert found["bank"]["run"] == shared
    assert found["shop"]["folder"].endswith(first)

    shutil.rmtree(job.runs("bank")[0])
    ended, _ = predicted(job, "none.csv")
    assert "there is no complete run that all sides have: make one with `tallystick run` on all sides" in str(ended["bank"])


def test_a_damaged_latest_run_is_named_and_another_can_be_chosen(job):
    origin = job.runs("bank")[2] / "origin.json"
    origin.write_bytes(origin.read_bytes()[:-3])
    contract, party = files_of(job, "bank")
    error = error_of(lambda: predict(contract, party, output=job.home("bank") / "a.csv", watcher=Silent()))
    assert isinstance(error, DamagedFile)
    assert str(origin) in str(error)
    found, _ = predicted(job, "chosen.csv", chosen={"bank": job.runs("bank")[1].name})
    assert found["bank"]["run"] == found["shop"]["run"]


def stat_mode(path):
    return path.stat().st_mode & 0o777


def test_keys_that_are_written_otherwise_than_in_training_are_said_before_rows_are_scored(job):
    table = job.home("bank") / "table.parquet"
    frame, (key,) = pl.read_parquet(table), files_of(job, "bank")[1].keys.values()
    other = pl.when(pl.int_range(pl.len()) % 3 > 0).then(pl.lit("K-") + pl.col(key).cast(pl.String))
    frame.with_columns(other.otherwise(pl.col(key).cast(pl.String)).alias(key)).write_parquet(table)
    _, watchers = predicted(job, "other.csv")
    assert any(f"key column {key!r}" in line and "and the training's like" in line for line in watchers["bank"].heard)
    assert not any("and the training's like" in line for line in watchers["shop"].heard)
