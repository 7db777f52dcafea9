"""Loggers: TensorBoard and MLflow read back what the result says, and a logger that fails does not end a run."""

import warnings

import pytest
from test_chosen_runs import PARTIES, Watching, both
from tiny import files_of

from tallystick.config.party import parse_party
from tallystick.errors import ConfigError
from tallystick.job.loggers import Facts, MlflowLogger, TensorBoardLogger, facts_of, logged_name, loggers_of
from tallystick.job.process import run_process
from tallystick.network.addresses import free_port

FACTS = Facts(
    run="r1",
    name="tiny",
    settings={"party": "bank", "contract": "0" * 64},
    curves=[("joint/training loss", 1, 0.7), ("joint/training loss", 2, 0.5), ("joint/validation loss", 1, 0.6)],
    figures={"joint/auc": 0.75, "leak of labels/norm shop, from cut gradients/auc": 0.91},
)


def read_events(folder):
    """Return every scalar that TensorBoard's own reader finds: (step, value)s by name."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no TensorBoard")
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    return {name: [(each.step, each.value) for each in found.Scalars(name)] for name in found.Tags()["scalars"]}


def as_told(facts):
    """Return what a reader must find of the facts."""
    wanted = {}
    for name, step, value in [*facts.curves, *((name, 0, value) for name, value in facts.figures.items())]:
        wanted.setdefault(logged_name(name), []).append((step, pytest.approx(value, rel=1e-6)))
    return wanted


def test_tensorboard_reads_what_was_told(tmp_path):
    TensorBoardLogger(tmp_path / "run")(FACTS)
    assert read_events(tmp_path / "run") == as_told(FACTS)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of MLflow's and SQLAlchemy's own code
def test_mlflow_reads_what_was_told(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking", reason="no MLflow")
    pytest.importorskip("sqlalchemy", reason="no database for MLflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for _ in range(2):  # the experiment exists by then
        MlflowLogger(uri, "credit")(FACTS)
    client = tracking.MlflowClient(tracking_uri=uri)
    first, second = client.search_runs([client.get_experiment_by_name("credit").experiment_id])
    assert first.info.status == second.info.status == "FINISHED"
    assert first.data.params == FACTS.settings
    assert first.data.tags["tallystick.run"] == "r1"
    found = {name: client.get_metric_history(first.info.run_id, name) for name in first.data.metrics}
    assert {name: [(each.step, each.value) for each in history] for name, history in found.items()} == as_told(FACTS)


def test_a_run_logs_its_own_facts_and_a_server_that_is_away_ends_nothing(lay_out_job, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    job = lay_out_job(PARTIES, rows=150, audit="quick", training__epochs=2, evaluation__bootstrap=0)
    for name in PARTIES:
        job.change(name, loggers={"tensorboard": {"folder": "events"}})
    away = f"http://127.0.0.1:{free_port()}"
    job.change("shop", loggers={"tensorboard": {"folder": "events"}, "mlflow": {"tracking": away}})
    watchers = {name: Watching() for name in PARTIES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = both(lambda name: run_process(*files_of(job, name), watcher=watchers[name]))
    results = {name: ended[name][0] for name in PARTIES}
    for name in PARTIES:
        (folder,) = job.runs(name)
        assert read_events(job.home(name) / "events" / folder.name) == as_told(facts_of(results[name]))
    own = facts_of(results["bank"])
    assert [epoch for name, epoch, _ in own.curves if name == "joint/validation loss"] == [1, 2]
    assert own.figures["joint/auc"] == results["bank"].joint["auc"]["value"]
    assert any(name.startswith("leak of labels/") for name in own.figures)
    (said,) = [line for line in watchers["shop"].heard if line.startswith("loggers.mlflow: nothing was logged")]
    assert said.endswith("the report is complete")
    assert not [line for line in watchers["bank"].heard if line.startswith("loggers.")]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_library_is_named_before_the_run(tmp_path, monkeypatch, name):
    settings = {"tensorboard": {"folder": "events"}, "mlflow": {"tracking": "http://localhost"}}
    values = {"party": "p", "table": {"path": "t.csv"}, "keys": {"id": "id"}, "loggers": {name: settings[name]}}
    party = parse_party(values, folder=tmp_path)
    monkeypatch.setattr("tallystick.job.loggers.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"loggers\.{name}: .* pip install 'tallystick\[{name}\]'"):
        loggers_of(party, folder=tmp_path)


def test_a_password_in_an_address_is_refused(tmp_path):
    values = {"party": "p", "table": {"path": "t.csv"}, "keys": {"id": "id"}}
    with pytest.raises(ConfigError, match=r"loggers\.mlflow\.tracking: holds a password") as caught:
        parse_party(values | {"loggers": {"mlflow": {"tracking": "http://me:hunter2@h"}}}, folder=tmp_path)
    assert "hunter2" not in str(caught.value)
