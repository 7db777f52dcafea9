"""Make kept rows again with this code on this machine, to see whether the pages still show the right results.

    python -m tallystick_experiments.again DATA COUNT [NAME ...]

The command in the first line of each sweep under ``experiments/runs`` declares it. All sweeps are taken if none is named. The
files that a command names are looked for below the folder DATA. COUNT rows of each, drawn at random by a seed, are made again. A
line of JSON per row says how far its figures are from the kept ones. A last line says how many are the same to the last kept
digit. Seconds are not compared. Commands that measure the machine itself (``bench line``, ``bench serve``) are left out. So are
rows of TabM, which are made on a graphics card.

    python -m tallystick_experiments.again DATA COUNT > LOG
    python -m tallystick_experiments.outcomes LOG COMMIT    # keep the results, and the commit whose code made them
"""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import typer

from tallystick.compute.threads import limited_threads
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.app import every_command
from tallystick_experiments.command import command_of, is_declaration
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import Trial
from tallystick_experiments.options import options_of, read_option
from tallystick_experiments.results import RUNS, rounded
from tallystick_experiments.stats import Row
from tallystick_experiments.tasks import declared

SEED = 20261126  # seed of the draw
UNLIKE = ("seconds", "cpu_seconds", "epoch_s", "process", "tau")  # figures that differ in every run; tau is a setting of old rows
ON_A_CARD = ("tabm",)  # methods whose rows are made on a graphics card


def made_again(path: Path, data: Path, count: int) -> Iterator[Row]:
    """Make ``count`` rows of a file of results again, and yield each one's case and its largest difference from the kept row.

    Raises DataError for a command that declares no sweep here, or whose file is not below ``data``, and the errors of the trial.
    """
    head, *kept = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    sweep = declared_by(head["command"], data)
    if not sweep.cases:
        raise DataError(f"{head['command']}: makes no rows one by one")
    row_of_case = {json.dumps(rounded(case)): case for case in sweep.cases if case.get("method") not in ON_A_CARD}
    fields = tuple(sweep.cases[0])
    first = rounded(sweep.cases[0])
    usual = {name: first[name] for name in fields if all(case[name] == sweep.cases[0][name] for case in sweep.cases)}
    places = [json.dumps({name: row.get(name, usual.get(name)) for name in fields}) for row in kept]  # older rows lack some
    pairs = [(row_of_case[place], row) for place, row in zip(places, kept, strict=True) if place in row_of_case]
    if not pairs:
        raise DataError(f"{head['command']}: none of its rows is one of its cases")
    with limited_threads(1):
        for place in np.random.default_rng(SEED).permutation(len(pairs))[:count]:
            case, row = pairs[place]
            yield {"rows_of": head["commit"], **compared(path.stem, case, row, sweep.trial)}


def compared(name: str, case: Row, kept: Row, trial: Trial) -> Row:
    """Compare a row made again with the kept one."""
    new_row = rounded(json.loads(json.dumps({**case, **trial(**case)})))
    before, after = (_numbers({key: value for key, value in row.items() if key not in case}) for row in (kept, new_row))
    apart = {each: abs(after.get(each, float("nan")) - value) for each, value in before.items()}
    furthest = max(apart, key=lambda each: (apart[each] != apart[each], apart[each]), default=None)
    far = {"largest_difference": apart[furthest], "of": furthest, "kept": before[furthest]} if furthest is not None else {}
    return {"results": name, **case, "same": all(after.get(each) == value for each, value in before.items()), **far}


def declared_by(command: str, data: Path) -> Experiment:
    """Declare the experiment of a command line. Raises DataError like ``made_again``."""
    words = shlex.split(command)
    if words[:2] != ["tallystick", "bench"] or ";" in command.split('"')[0]:
        raise DataError(f"{command}: is not one command of tallystick bench")
    name, *others = words[2:]
    place = every_command()[name].place
    work = getattr(import_module(place.partition(":")[0]), place.partition(":")[2])
    if not is_declaration(work):
        raise DataError(f"{command}: keeps no runs that could be made one by one")
    app = typer.Typer(add_completion=False)
    app.command(name)(command_of(work))
    parameters = typer.main.get_command(app).make_context(name, others).params
    options = options_of(work)
    options_here = {
        each: read_option(options[each], each, value)
        for each, value in parameters.items()
        if each in options and each != "device"
    }
    return declared(place, {each: _found(value, data) for each, value in options_here.items()})


def _found(value: Any, data: Path) -> Any:
    """Replace paths by files below the folder of data. DATA is the folder itself."""
    if isinstance(value, list | tuple):
        return [_found(each, data) for each in value]
    if not isinstance(value, Path):
        return value
    if value.name == "DATA":
        return data
    paths = sorted(data.rglob(value.name))
    if not paths:
        raise DataError(f"{data}: has no {value.name}, which the command names")
    return paths[0]


def _numbers(value: Any, name: str = "") -> dict[str, float]:
    """List all numbers of a row by their place in it."""
    if isinstance(value, Mapping):
        parts = ((str(key), each) for key, each in value.items() if key not in UNLIKE)
    elif isinstance(value, list):
        parts = ((str(number), each) for number, each in enumerate(value))
    else:
        return {name: float(value)} if isinstance(value, int | float) else {}
    return {place: number for key, each in parts for place, number in _numbers(each, f"{name}.{key}".lstrip(".")).items()}


def main(words: Sequence[str]) -> None:
    """Print the rows made again, as the module describes."""
    if len(words) < 2 or not words[1].isdigit():
        raise ConfigError("wanted: DATA COUNT [NAME ...], a folder, how many rows of each, and names under experiments/runs")
    data, count, names = Path(words[0]), int(words[1]), words[2:]
    paths = [RUNS / f"{name}.jsonl" for name in names] or sorted(RUNS.glob("*.jsonl"))
    same = rows = 0
    for path in paths:
        try:
            for row in made_again(path, data, count):
                rows, same = rows + 1, same + row["same"]
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
        except (DataError, ConfigError) as error:
            sys.stdout.write(json.dumps({"results": path.stem, "left_out": str(error)}) + "\n")
    sys.stdout.write(json.dumps({"rows": rows, "same": same}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
