"""``tallystick bench`` belongs to another package: found if it is installed, named if it is not."""

import pytest
from typer.testing import CliRunner

from tallystick.cli import app as cli
from tallystick_experiments.app import command_line, every_command

COMMANDS = every_command()


def test_robustness_adds_its_command():
    assert "faults" in COMMANDS


def test_all_are_listed_with_what_they_measure():
    shown = CliRunner().invoke(command_line(()), ["--help"], env={"COLUMNS": "200"})
    assert all(name in shown.stdout and command.says in shown.stdout for name, command in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_measures(name):
    shown = CliRunner().invoke(command_line([name]), [name, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert COMMANDS[name].says in shown.stdout
    assert "--json" in shown.stdout


def test_a_command_that_does_not_exist_is_named():
    shown = CliRunner().invoke(cli.app, ["bench", "flroist"], env={"COLUMNS": "200"})
    assert shown.exit_code == 2
    assert "No such command 'flroist'" in shown.output


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["fedads", "--data", "x", "--table", "5"], "--table 5"),
        (["fedads", "--data", "x", "--table", "4", "--by-users"], "--by-users"),
        (["fedads", "--data", "x", "--table", "3", "--epochs", "2"], "--epochs"),
        (["fedads", "--data", "x", "--table", "leaks", "--swapped"], "--swapped"),
        (["fedads", "--data", "x", "--table", "4", "--only", "none"], "--only none"),
        (["quality", "--label", "y"], "--label"),
        (["florist", "--data", "x", "--ratios", "half"], "--ratios half: must be numbers with commas between, such as 0.25,0.5"),
        (["line", "--lines", "50"], "--lines 50: must be ms:Mbit/s, as 50:100"),
        (["serve", "--rates", "0"], "--rates 0: must be whole numbers above 0"),
        (["serve", "--rates", "1,x"], "--rates 1,x: must be whole numbers above 0"),
        (["quality", "--leaks", "--table", "own.csv", "--label", "y"], "--table own.csv"),
    ],
)
def test_an_option_that_is_none_or_would_do_nothing_is_refused_and_leaves_no_folder_behind(tmp_path, command, named):
    shown = CliRunner().invoke(command_line(command[:1]), [*command, "--out", str(tmp_path / "out")])
    assert shown.exit_code == 2
    assert named in shown.output
    assert not (tmp_path / "out").exists()


def test_where_it_is_not_installed_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cli, "entry_points", lambda **_: ())
    shown = CliRunner().invoke(cli.app, ["bench", "florist", "--data", "x"])
    assert shown.exit_code == 2
    assert "bench is not installed" in shown.output
    assert "pip install ./experiments ./robustness" in shown.output
    assert shown.output.count("\n") == 1
