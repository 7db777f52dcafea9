"""The ledger's page: what it says of spending, cap and time, and that it needs no other file."""

import json
import re

import msgspec
import pytest
from html_page import Page
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.errors import StorageError
from tallystick.privacy.events import ApproximateDP, GaussianDP, NotPrivate, PureDP
from tallystick.privacy.ledger import Cap, Ledger
from tallystick.report.ledger import ledger_html, render_ledger

NASTY = '<script>"evil"</script>'


@pytest.fixture
def exported(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", party="bank")
    ledger.set_cap("test", Cap(epsilon=4.0))
    for _ in range(3):
        ledger.spend("test", PureDP(epsilon=1.0), what=f"AUC {NASTY}")
    ledger.spend("open", NotPrivate(), what="exact AUC")
    ledger.spend("open", PureDP(epsilon=0.5), what="AUC")
    return ledger.export()


def words(html):
    return re.sub(r"\s+", " ", " ".join(Page(html).text))


def test_page_shows_totals_cap_and_every_release_and_nothing_runs(exported):
    html = ledger_html(exported)
    text = words(html)
    assert "label-DP epsilon spent 3 cap 4 left 1 75 % of the cap is used releases 3" in text
    assert text.index("Not private What left without a guarantee.") < text.index("label-DP epsilon spent 3")
    assert "label-DP epsilon spent 0.5 cap none" in text
    assert NASTY in text
    assert "<script" not in html.replace("&lt;script", "")


def test_steps_rise_to_the_cap_at_the_times_of_the_releases(exported):
    dataset = exported["datasets"]["test"]
    for hour, entry in zip((0, 6, 8), dataset["entries"], strict=True):
        entry["time"] = f"2026-01-05T{hour:02}:00:00+00:00"
    html = ledger_html({**exported, "datasets": {"test": dataset}})
    assert "05 Jan 00:00 05 Jan 02:00 05 Jan 04:00 05 Jan 06:00 05 Jan 08:00" in words(html)
    assert "4 January 2026 to 5 January 2026 (UTC)" in words(html)  # there is some room on the left
    paths = {
        look: [[float(part) for part in point.split(",")] for point in points.split("L")]
        for look, points in re.findall(r'<path class="(line [^"]*)" d="M([^"]*)"/>\s*<|<path', html)
        if points.count("L") > 0
    }
    spent = next(points for look, points in paths.items() if "joint" in look and len(points) > 2)
    cap = next(points for look, points in paths.items() if "dashed" in look)
    xs, ys = [x for x, _ in spent], [y for _, y in spent]
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True)  # up the picture
    first, second, third = (spent[i] for i in (2, 4, 6))
    assert (second[0] - first[0]) / (third[0] - first[0]) == pytest.approx(6 / 8, abs=0.01)
    zero = spent[0][1]
    assert (zero - third[1]) / (zero - cap[0][1]) == pytest.approx(3 / 4, abs=0.01)


def test_what_is_added_up_is_said_by_whose_it_is(tmp_path):
    """A feature party's page said "label epsilon" of its keys and embeddings."""
    ledger = Ledger.create(tmp_path / "ledger", party="shop")
    ledger.spend("labels-keys", PureDP(epsilon=1.0, unit="key"), what="noise on keys")
    ledger.spend("labels-embeddings", GaussianDP(noise_multiplier=2.0, unit="record"), what="embeddings")
    text = words(ledger_html(ledger.export()))
    assert "epsilon of linking keys spent 1" in text
    assert "epsilon of records spent" in text
    assert "Epsilon of records over time" in text
    assert "label" not in re.sub("labels-(keys|embeddings)", "", text.partition("linking keys spent")[2].partition("releases")[0])


def test_a_clock_that_was_set_back_draws_no_step_back(exported):
    dataset = exported["datasets"]["test"]
    for hour, entry in zip((6, 0, 8), dataset["entries"], strict=True):
        entry["time"] = f"2026-01-05T{hour:02}:00:00+00:00"
    html = ledger_html({**exported, "datasets": {"test": dataset}})
    steps = next(points for points in re.findall(r'<path class="line joint[^"]*" d="M([^"]*)"', html) if points.count("L") > 2)
    across = [float(point.split(",")[0]) for point in steps.split("L")]
    assert across == sorted(across)


@pytest.mark.parametrize(
    ("first", "last", "marks", "days"),
    [
        ("2026-01-05T10:10", "2026-01-05T10:10", ["09:40", "10:00", "10:20", "10:40"], "5 January 2026 (UTC)"),
        ("2026-01-05T10:10", "2026-01-05T14:00", ["10:00", "11:00", "12:00", "13:00", "14:00"], "5 January 2026 (UTC)"),
        (
            "2026-01-05T00:00",
            "2026-01-09T00:00",
            ["05 Jan", "06 Jan", "07 Jan", "08 Jan", "09 Jan"],
            "4 January 2026 to 9 January",
        ),
    ],
)
def test_times_of_releases_are_marked_by_clock_and_date(exported, first, last, marks, days):
    dataset = exported["datasets"]["test"]
    for time, entry in zip((first, first, last), dataset["entries"], strict=True):
        entry["time"] = f"{time}:00+00:00"
    text = words(ledger_html({**exported, "datasets": {"test": dataset}}))
    assert f"{' '.join(marks)} {days}" in text


def test_a_cost_is_said_in_words(exported):
    ledger_rows = exported["datasets"]["test"]["entries"]
    ledger_rows[1]["event"] = msgspec.to_builtins(ApproximateDP(epsilon=2.0, delta=1e-6, unit="record"))
    ledger_rows[2]["event"] = msgspec.to_builtins(GaussianDP(noise_multiplier=4.25, releases=3))
    text = words(ledger_html(exported))
    for cost in (
        "epsilon 1 1",
        "epsilon 2, delta 1e-06 (of whole records) 2",
        "3 x Gaussian noise of 4.25 times the sensitivity 3",
    ):
        assert cost in text


def test_an_empty_ledger_says_so_and_one_that_is_gone_is_not_made_by_looking(lay_out_job, tmp_path):
    home = lay_out_job(rows=60).home("bank")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["ledger", str(home / "party.yaml"), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "nothing has been released yet" in done.stdout
    assert "Nothing has been released yet" in words(page.read_text())
    done = CliRunner().invoke(app, ["ledger", str(home / "party.yaml"), "--json"])
    identity = Ledger(home / "privacy-ledger.sqlite", party="bank").identity
    expected = {"party": "bank", "identity": identity, "delta": 1e-6, "not_private": [], "datasets": {}}
    assert json.loads(done.stdout) == expected
    (home / "privacy-ledger.sqlite").unlink()
    done = CliRunner().invoke(app, ["ledger", str(home / "party.yaml")])
    assert done.exit_code == 2
    assert "there is no ledger; `tallystick ledger PARTY.yaml --create` makes it, once" in done.stderr
    assert "a feature party" not in done.stderr
    assert not (home / "privacy-ledger.sqlite").exists()
    done = CliRunner().invoke(app, ["ledger", str(home.parent / "shop" / "party.yaml")])
    assert "; a feature party needs one where its columns or keys get noise" in done.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_bars_are_whole_on_every_terminal(lay_out_job, monkeypatch, columns):
    home = lay_out_job(rows=60).home("bank")
    ledger = Ledger(home / "privacy-ledger.sqlite", party="bank")
    ledger.set_cap("labels", Cap(epsilon=4.0))
    for epsilon in (1.0, 1.0, 2.0):
        ledger.spend("labels", PureDP(epsilon=epsilon), what="labels of a run, by label-dp, in [2026], with a long name")
    monkeypatch.setenv("COLUMNS", str(columns))
    done = CliRunner().invoke(app, ["ledger", str(home / "party.yaml")])
    assert done.exit_code == 0, done.output
    bars: list[str] = re.findall("[█░]+", done.stdout)
    assert [bar.count("█") / len(bar) for bar in bars] == [0.25, 0.5, 1.0]
    assert "[2026]" in re.sub(r"[│\s]+", " ", done.stdout)


def test_a_file_that_cannot_be_written_is_named(exported, tmp_path):
    with pytest.raises(StorageError, match="cannot be written"):
        render_ledger(exported, tmp_path / "nowhere" / "page.html")


def test_the_command_writes_the_page_and_keeps_its_bars(lay_out_job, tmp_path):
    home = lay_out_job(rows=60).home("bank")
    ledger = Ledger.create(home / "privacy.ledger", party="bank")
    ledger.spend("test", PureDP(epsilon=1.0), what="AUC")
    text = (home / "party.yaml").read_text()
    (home / "party.yaml").write_text(text + "privacy: {ledger: privacy.ledger}\n")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["ledger", str(home / "party.yaml"), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "█" in done.output
    assert "label-DP epsilon spent 1" in words(page.read_text())
