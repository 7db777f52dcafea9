"""A look at online answers: planted drift and no other, shares, latency, and labels that come later."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from html_page import Page
from prometheus_client.parser import text_string_to_metric_families
from sklearn.metrics import roc_auc_score
from tiny import tables
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.config.serving import AnswersConfig
from tallystick.errors import DamagedFile
from tallystick.monitoring.served import ServedLook, monitor_served
from tallystick.run_folder.answer_journal import AnsweredRow, AnswerLog, kept_columns, read_answers, serving_secret
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import kept_encoder
from tallystick.storage import Origin

SECRET = bytes(range(32))
PARTIES = ("bank", "shop")
FIRST = datetime(2026, 1, 20, tzinfo=UTC)
ROWS = 1_500


def log(folder, *, day=FIRST, origin=None, draw=lambda: 0.5, **config):
    secret = SECRET
    return AnswerLog(
        origin=origin or Origin(folder=folder), secret=secret, config=AnswersConfig(**config), clock=lambda: day, draw=draw
    )


def row(number):
    return AnsweredRow(row=f"{number:016x}", by="joint model", scores=(0.25,))


def plant(run, frame, scores):
    """Return what a server would keep of these rows: 20 days, a request for each, every tenth without a partner's row."""
    folder = RunFolder.open(run.path)
    encoder = kept_encoder(folder)
    features = encoder.encode(frame).unpacked()
    answers = log(folder.path, origin=folder.origin, columns=1.0)
    answers.secret = serving_secret(folder)
    for place, key in enumerate(frame["id"]):
        answers.clock = lambda place=place: FIRST + timedelta(days=20 * place / frame.height)
        numbers, codes = kept_columns(features, place)
        absent = place % 10 == 0
        answers.keep(
            [
                AnsweredRow(
                    row=answers.digest(key.encode()),
                    why="absent" if absent else "joint",
                    by="own columns" if absent else "joint model",
                    scores=(float(np.float32(scores[place])),),
                    numbers=numbers,
                    codes=codes,
                )
            ],
            {"all": float(place % 100), "partners": 1.0},
        )
    answers.close()


@pytest.fixture(scope="module")
def served(used):
    """Make the run of a simulation, with answers: x has moved by 1, noise and kind have not."""
    folder, _ = used
    (run,) = RunFolder.all(*_of(folder))
    later = tables(PARTIES, rows=ROWS, seed=7)["bank"].with_columns(x=pl.col("x") + 1)
    kept = pl.read_parquet(run.scores)["score"].to_numpy()
    scores = np.random.default_rng(8).choice(kept, later.height)
    plant(run, later, scores)
    later.select("id", "y").gather_every(2).write_parquet(folder / "labels.parquet")
    return folder, run, later, scores


def _of(folder):
    from tallystick.config.contract import load_contract

    return folder / "bank", load_contract(folder / "contract.yaml"), "bank"


def monitored(folder, *arguments, code=0, party="bank"):
    command = ["monitor", str(folder / "contract.yaml"), "--party", str(folder / f"{party}.yaml"), "--json", "--served"]
    ran = CliRunner().invoke(app, [*command, *map(str, arguments)])
    assert ran.exit_code == code, (ran.output, ran.exception)
    return json.loads(ran.stdout.splitlines()[-1])


def test_drift_is_found_where_it_was_planted_and_nowhere_else(served):
    """Of x the chance is far below 1e-9. Each of three that did not move has one below 3e-7 with a chance of 3e-7: 1e-6 in all.

    Scores are drawn from those of the run's test rows, which the look compares them with.
    """
    folder, run, _, _ = served
    _, contract, _ = _of(folder)
    found = monitor_served(ServedLook(contract=contract, party="bank", folder=run))
    chances = {each.name: each.chance for each in [*found.columns, found.scores]}
    assert chances.pop("x") < 1e-9
    assert len(chances) == 3
    assert min(chances.values()) > 3e-7, chances
    assert [each.name for each in found.drifted] == ["x"]


def test_shares_latency_and_scores_by_labels_that_came_later(served, tmp_path):
    folder, _, later, scores = served
    page, text = tmp_path / "page.html", tmp_path / "tallystick.prom"
    found = monitored(folder, "--labels", folder / "labels.parquet", "--html", page, "--prometheus", text)
    january, february = found["served"]
    assert (january["name"], february["name"]) == ("2026-01-01", "2026-02-01")
    month = np.array([(FIRST + timedelta(days=20 * place / later.height)).month for place in range(later.height)])
    assert january["rows"] == january["requests"] == (month == 1).sum()
    assert january["why"]["absent"] == (np.flatnonzero(month == 1) % 10 == 0).sum()
    times = [place % 100 for place in np.flatnonzero(month == 1)]
    assert january["latency"][0] == {
        "part": "all",
        "p50": np.quantile(times, 0.5),
        "p99": pytest.approx(np.quantile(times, 0.99)),
    }
    labelled = np.arange(later.height) % 2 == 0
    for number, period in zip((1, 2), found["periods"], strict=True):
        chosen = labelled & (month == number)
        assert period["rows"] == chosen.sum()
        wanted = roc_auc_score(later["y"].to_numpy()[chosen], scores[chosen])
        assert period["auc"] == pytest.approx(wanted, rel=1e-9)

    assert json.loads(Page(page.read_text()).result)["served"] == found["served"]
    samples = [sample for family in text_string_to_metric_families(text.read_text()) for sample in family.samples]
    shares = {s.labels["period"]: s.value for s in samples if s.name == "tallystick_monitor_own_share"}
    assert shares["2026-01-01"] == january["why"]["absent"] / january["rows"]


def test_days_before_the_first_that_counts_are_left_out(served):
    folder, *_ = served
    found = monitored(folder, "--since", "2026-02-01")
    assert [period["name"] for period in found["served"]] == ["2026-02-01"]


@pytest.mark.parametrize(
    ("arguments", "party", "said"),
    [
        (("--since", "2027-01-01"), "bank", "keeps no answer since then"),
        ((), "shop", "keeps no answer; name serving.answers in the party file"),
        (("--labels", "labels.csv"), "shop", "--labels: shop has no label column; bank can look at labels"),
        (("--scores", "x.csv"), "bank", "--scores: is for a look at a table"),
        (("--labels", "twice.csv"), "bank", "a key stands in"),
        (("--labels", "ftp://host/labels.csv"), "bank", "is a ftp:// address"),
    ],
)
def test_what_cannot_be_looked_at_is_said(served, arguments, party, said):
    folder, *_ = served
    pl.DataFrame({"id": ["id-000001"] * 2, "y": [0, 1]}).write_csv(folder / "twice.csv")
    named = [folder / each if each == "twice.csv" else each for each in arguments]
    assert said in monitored(folder, *named, code=2, party=party)["error"]["message"]


def test_a_days_file_stays_under_its_size_and_says_that_it_is_full_once(tmp_path):
    answers = log(tmp_path, mib_a_day=1)
    for _ in range(3):  # restarts
        for number in range(4_000):
            answers.keep([row(number)] * 8, {"all": 1.0})
        answers.close()
    (path,) = tmp_path.iterdir()
    assert 0.9 * (1 << 20) < path.stat().st_size < 1 << 20
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_text().count('"full":true') == 1
    assert json.loads(path.read_text().splitlines()[-1])["full"] is True


def test_old_days_go_and_others_files_stay(tmp_path):
    (tmp_path / "served-2026-99-01.jsonl").touch()
    (tmp_path / "notes.txt").touch()
    for day in range(5):
        answers = log(tmp_path, day=FIRST + timedelta(days=day), days=2)
        answers.keep([row(1)], {})
        answers.close()
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["notes.txt", "served-2026-01-23.jsonl", "served-2026-01-24.jsonl", "served-2026-99-01.jsonl"]


def test_a_line_that_a_kill_cut_short_is_left_out_and_one_that_is_no_answer_is_named(used, tmp_path):
    run = RunFolder(path=tmp_path, origin=Origin(folder=tmp_path))
    answers = log(tmp_path)
    answers.keep([row(1)], {})
    answers.close()
    path = tmp_path / "served-2026-01-20.jsonl"
    with path.open("a") as file:
        file.write('{"at":"2026')
    assert [each.rows for each in read_answers(run)] == [(row(1),)]
    answers.keep([row(2)], {})
    assert [each.rows for each in read_answers(run)] == [(row(1),), (row(2),)]
    path.write_text("{}\n")
    with pytest.raises(DamagedFile, match="not an answer"):
        list(read_answers(run))


def test_a_share_of_requests_is_sampled(tmp_path):
    draws = iter(np.arange(1000) / 1000)
    answers = log(tmp_path, columns=0.25, draw=lambda: next(draws))
    assert sum(answers.samples() for _ in range(1000)) == 250
    draws = iter(np.arange(1000) / 1000)
    answers = log(tmp_path, requests=0.1, draw=lambda: next(draws))
    assert sum(answers.takes() for _ in range(1000)) == 100
