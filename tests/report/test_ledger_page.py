"""The ledger's page: what it says of spending, cap and time, and that it stands alone."""

import re

import pytest
from test_page import Page
from typer.testing import CliRunner

from tallystick.cli.main import app
from tallystick.errors import StorageError
from tallystick.privacy.events import NotPrivate, PureDP
from tallystick.privacy.ledger import Cap, Ledger
from tallystick.report.ledger import ledger_html, render_ledger

NASTY = '<script>"evil"</script>'


@pytest.fixture
def exported(tmp_path):
    ledger = Ledger(tmp_path / "ledger", party="bank")
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
    assert "label epsilon spent 3 cap 4 left 1 75 % of the cap is used releases 3" in text
    assert "label epsilon spent unbounded cap none" in text
    assert NASTY in text
    assert "<script" not in html.replace("&lt;script", "")


def test_steps_rise_to_the_cap_at_the_times_of_the_releases(exported):
    dataset = exported["datasets"]["test"]
    for hour, entry in zip((0, 6, 8), dataset["entries"], strict=True):
        entry["time"] = f"2026-01-05T{hour:02}:00:00+00:00"
    html = ledger_html({**exported, "datasets": {"test": dataset}})
    assert "hours since the first release" in words(html)
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


def test_a_file_that_cannot_be_written_is_named(exported, tmp_path):
    with pytest.raises(StorageError, match="cannot be written"):
        render_ledger(exported, tmp_path / "nowhere" / "page.html")


def test_the_command_writes_the_page_and_keeps_its_bars(lay_out_job, tmp_path):
    home = lay_out_job(rows=60).home("bank")
    ledger = Ledger(home / "privacy.ledger", party="bank")
    ledger.spend("test", PureDP(epsilon=1.0), what="AUC")
    text = (home / "party.yaml").read_text()
    (home / "party.yaml").write_text(text + "privacy: {ledger: privacy.ledger}\n")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["ledger", str(home / "party.yaml"), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "█" in done.output
    assert "label epsilon spent 1" in words(page.read_text())
