"""A benchmark's page needs no other file, escapes what it shows, and puts points where they belong."""

import json
import re

import pytest
from html_page import Page

from tallystick.errors import DataError, StorageError
from tallystick.report.formats import MINUS
from tallystick_experiments.output import write_folder
from tallystick_experiments.page import (
    Benchmark,
    Curve,
    ResultTable,
    Series,
    benchmark_html,
    figure,
    pictures,
    render_benchmark,
)
from tallystick_experiments.stats import Spread

NASTY = '</script><b>&"evil'


def benchmark(**changes):
    values = {
        "title": f"Bench {NASTY}",
        "command": "tallystick bench x --data 'a b'",
        "tables": [
            ResultTable(
                name="Table 1",
                columns=["strategy", "paper", "here", "wide"],
                rows=[["majority", 0.5761, Spread(value=0.573, low=0.571, high=0.575), 458407], [NASTY, None, 0.000041, True]],
            )
        ],
        "curves": [
            Curve(
                name="AUC",
                x="ratio",
                y="AUC",
                series=[Series(name=f"line {i}", xs=[0.9, 0.1, 0.5], ys=[0.7 + i / 100, 0.5, None]) for i in range(8)],
            ),
            Curve(name="sd", x="epsilon", y="sd", log_x=True, log_y=True, series=[Series(name="m", xs=[1, 8], ys=[1e-2, 1e-5])]),
            Curve(name="nothing", x="x", y="y", series=[Series(name="m", xs=[1.0], ys=[None])]),
        ],
        "notes": ["a note"],
        "facts": {"cores": "2"},
        "seconds": 84.0,
    }
    return Benchmark(**{**values, **changes})


def test_page_nests_loads_nothing_and_carries_what_it_shows():
    html = benchmark_html(benchmark())
    page = Page(html)
    assert NASTY in " ".join(page.text)
    assert not [tag for tag, attrs in page.tags if tag in ("b", "img", "link") and "evil" in str(attrs)]
    assert all("src" not in attrs for _, attrs in page.tags)
    assert re.findall(r"https?://\S+", html) == []
    result = json.loads(page.result)
    assert result["tables"][0]["rows"][0][2] == {"value": 0.573, "low": 0.571, "high": 0.575}
    assert result["title"] == f"Bench {NASTY}"


def test_numbers_are_shown_with_their_intervals_and_small_ones_keep_digits():
    text = re.sub(r"\s+", " ", " ".join(Page(benchmark_html(benchmark())).text))
    for shown in ("0.5761", "0.5730 0.5710 to 0.5750", "458,407", "0.000041", "yes", "1 min 24 s"):
        assert shown in text, shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.5, "0.5000"), (0.0123, "0.0123"), (0.00123, "0.0012"), (-0.000041, MINUS + "0.000041"), (0.0, "0.0000"),
     (1e-12, "1.0e-12"), (12.345, "12.35"), (float("nan"), "nan"), (float("-inf"), MINUS + "inf")],
)  # fmt: skip
def test_figure(value, shown):
    assert figure(value) == shown


def test_curves_are_placed_in_order_between_the_axes_and_lines_can_be_told_apart():
    html = benchmark_html(benchmark())
    assert html.count('<svg class="plot long"') == 2  # a curve without a known point is left out
    first, second = html.split('<svg class="plot long"')[1:]
    paths = re.findall(r'<path class="(line [^"]*)" d="M([^"]*)"', first)
    looks = [look for look, _ in paths]
    assert len(set(looks[:8])) == 8
    for _, points in paths[:8]:
        (x0, y0), (x1, y1) = [[float(part) for part in point.split(",")] for point in points.split("L")]
        assert x0 < x1  # ratio .1 before .9
        assert y0 > y1  # the picture's y grows downwards
    (x0, y0), (x1, y1) = [
        [float(part) for part in point.split(",")] for point in re.search(r'd="M([^"]*)"', second)[1].split("L")
    ]
    ticks = re.findall(r'<text x="[^"]*" y="[^"]*" text-anchor="end">([^<]*)</text>', second)
    assert "0.001" in ticks
    # Log axis: three decades down, so .001 is at a third of the way, where a tick says it.
    tick = float(re.search(r'y="([\d.]*)" text-anchor="end">0.001<', second)[1]) - 4
    assert tick == pytest.approx(y0 + (y1 - y0) / 3, abs=0.5)


def test_rows_must_fit_their_columns():
    with pytest.raises(DataError, match="a row of 1 cells under 2 columns"):
        ResultTable(name="t", columns=["a", "b"], rows=[["x"]])


def test_a_folder_gets_both_files_and_one_that_cannot_be_made_is_named(tmp_path):
    paths = write_folder(tmp_path / "deep" / "out", {"benchmark": "x", "value": 1}, benchmark())
    assert json.loads((tmp_path / "deep" / "out" / "result.json").read_text()) == {"benchmark": "x", "value": 1}
    text = " ".join(Page((tmp_path / "deep" / "out" / "report.html").read_text()).text)
    assert "cores" in text
    assert "torch" in text
    assert paths["report"].endswith("report.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--out"):
        write_folder(tmp_path / "file" / "out", {}, benchmark())
    with pytest.raises(StorageError, match="cannot be written"):
        render_benchmark(benchmark(), tmp_path / "nowhere" / "report.html")


def test_a_logarithmic_axis_within_an_octave_has_marks() -> None:
    curve = Curve(name="rmse", x="metres", y="rmse", log_x=True, log_y=True, series=[Series(name="m", xs=[5, 900], ys=[24, 39])])
    (picture,) = pictures(Benchmark(title="t", command="c", curves=[curve])).values()
    assert all(f">{mark}<" in picture for mark in (25, 30, 35))
