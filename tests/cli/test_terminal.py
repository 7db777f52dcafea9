"""Texts of others do nothing to a terminal: neither those of a table, nor those of a result that somebody sent."""

import io
import os
import re
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import short_lane_of
from rich.markup import escape
from rich.table import Table
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.cli.output import finish
from tallystick.cli.watch import Lines
from tallystick.terminal import PlainWordsConsole, printable_lines

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r"


def harmless(shown):
    return all(character.isprintable() or character == "\n" for character in shown)


@given(st.text(max_size=60))
def test_nothing_that_is_printed_acts(words):
    console = PlainWordsConsole(file=io.StringIO(), highlight=False)
    table = Table(title=escape(words))
    table.add_column(escape(words), overflow="fold")
    table.add_row(escape(words))
    console.print(table)
    console.print(words, markup=False)
    assert harmless(console.file.getvalue())
    assert harmless(printable_lines(words))


def test_styles_and_lines_stay():
    console = PlainWordsConsole(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    console.print("[bold]a[/bold]\nb\x1b[2J")
    assert console.file.getvalue() == "\x1b[1ma\x1b[0m\nb\\x1b[2J\n"


def test_a_line_in_a_file_stays_whole_however_long_its_path(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    path = "/a folder/" * 20
    console = PlainWordsConsole(file=io.StringIO(), highlight=False)
    console.print(f"report: {path}", markup=False)
    assert console.file.getvalue() == f"report: {path}\n"
    finish({"folder": path, "none": None, "lines": ["one", "two"]}, as_json=False)
    assert capsys.readouterr().out == f"folder  {path}\nlines   one\n        two\n"


def test_help_shows_the_styles_of_progress_in_words():
    said = CliRunner().invoke(app, ["run", "--help"]).output
    assert re.search(r"--progress +STYLE +How progress", said)
    assert "<auto" not in said


@pytest.mark.parametrize("where", ["column", "value"])
def test_check_shows_a_hostile_table_in_plain_words(lay_out_job, where):
    home = lay_out_job(rows=50).home("bank")
    frame = pl.read_parquet(home / "table.parquet")
    column = pl.lit(EVIL).alias("extra" if where == "value" else EVIL)
    frame.with_columns(column).write_parquet(home / "table.parquet")
    done = CliRunner().invoke(app, ["check", str(home / "party.yaml"), str(home / "contract.yaml")])
    assert done.exit_code == 0, done.output
    assert harmless(done.stdout)
    assert harmless(done.stderr)


def test_a_plain_line_says_the_day(capsys):
    """A service stays up for days."""
    Lines().say("the partners are late")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d {3}the partners are late\n", capsys.readouterr().err)


IN_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # files are in ASCII, too, if no encoding is named


@pytest.mark.parametrize(("encoding", "locale"), short_lane_of([("ascii", IN_ASCII), ("latin-1", {}), ("utf-8", {})], 1))
def test_names_beyond_a_locale_s_letters_are_written_by_their_codes(tmp_path, encoding, locale):
    """If a locale has no UTF-8, a command still says what it has to say, ends as usual, and writes its files in UTF-8."""
    path = tmp_path / "pessoas.csv"
    names = ("sal\u00e1rio", "\u0928\u093e\u092e", "c\u00f3digo_id")
    path.write_text(f"{','.join(names)}\n2.5,\u0915,1\n3.5,\u0916,2\n4.5,\u0915,3\n", encoding="utf-8")
    command = [sys.executable, "-m", "tallystick", "init", tmp_path / "bank", "--role", "label", "--table", path]
    ended = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding, **locale}, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, b"")
    said = ended.stdout.decode(encoding)
    for name in names:
        assert f"{name.encode(encoding, 'backslashreplace').decode(encoding)}: " in said
    assert names[2] in (tmp_path / "bank" / "party.yaml").read_text(encoding="utf-8")
