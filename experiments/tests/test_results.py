"""The pages of results are those of the committed rows, and an unreadable file is named."""

import json
from functools import cache

import pytest

from tallystick.errors import DataError
from tallystick_experiments.output import write_folder
from tallystick_experiments.page import Benchmark, ExperimentResult, ResultTable
from tallystick_experiments.results import PAGES_FOLDER, RUNS, index, keep, markdown, page_maker, processor, read_page
from tallystick_experiments.stats import Spread

page_of = cache(read_page)


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_each_page_is_what_its_rows_give(path):
    page = page_of(path)
    drawn = page.drawings()
    assert page.place.read_text(encoding="utf-8") == page.text(drawn), "run `make results` and commit what it wrote"
    for name, svg in drawn.items():
        assert page.place.with_name(name).read_text(encoding="utf-8") == svg, name


def test_no_page_is_without_rows():
    pages = [page_of(path) for path in sorted(RUNS.glob("*.jsonl"))]
    assert {*PAGES_FOLDER.glob("*/*.md")} == {page.place for page in pages}
    assert (PAGES_FOLDER / "index.md").read_text(encoding="utf-8") == index(pages)


def test_a_table_in_markdown():
    cells = [["a|b", Spread(value=0.5, low=0.25, high=0.75), None], ["c", 1234, True]]
    found = Benchmark(
        title="Title",
        command="tallystick bench x",
        tables=[ResultTable(name="T", columns=["", "auc", "ok"], rows=cells)],
        notes=["N"],
    )
    text = markdown(found, "Made so:")
    assert "| a\\|b | 0.5000 (0.2500 to 0.7500) | \N{EN DASH} |\n| c | 1,234 | yes |" in text
    assert text.startswith("# Title\n")
    assert "    tallystick bench x\n" in text
    assert text.endswith("- N\n")
    assert "![a plot](a-plot.svg)" in markdown(found, "Made so:", drawn={"a-plot.svg": "<svg/>"})


def test_a_kept_sweep_gives_its_page_and_a_damaged_line_is_named(tmp_path):
    out, path = tmp_path / "out", tmp_path / "runs" / "kept.jsonl"
    with pytest.raises(DataError, match="holds no finished sweep"):
        keep(tmp_path, path, commit="abc", command="tallystick bench quality")
    out.mkdir()
    row = {"table": "wine", "method": "default", "seed": 1, "value": 1 / 3, "seconds": 1.0, "crossing_bytes": None}
    about = {"data": {"wine": {"rows": 178, "columns": 13, "target": "multiclass", "source": "here"}}}
    found = ExperimentResult(experiment="quality", about=about, rows=[row], page_of=page_maker("quality"))
    write_folder(out, found.as_json(found.page()), found.page())
    keep(out, path, commit="abc", command="tallystick bench quality")
    page = read_page(path)
    assert "0.3333" in page.text({})
    assert f"commit `abc` on a processor {processor()}, from" in page.text({})
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(DataError, match="line 3 is damaged"):
        read_page(path)
    (out / "result.json").write_text(json.dumps({"benchmark": "speed"}))
    with pytest.raises(DataError, match="is of speed; results are kept of again, audit, "):
        keep(out, path, commit="abc", command="tallystick bench speed")
