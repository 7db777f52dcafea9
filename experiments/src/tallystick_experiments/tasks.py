"""Make a sweep's cases as tasks. A worker declares the same sweep by the command's name and options, and makes requested cases.

So no sweep needs to know of workers. A worker keeps the data that it loads and encodes for its next case.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from tallystick.compute.task import Engine, TaskFunction, Work
from tallystick.errors import DataError
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import Trial, place_of
from tallystick_experiments.options import called, parameters_of
from tallystick_experiments.stats import Row

SAME_FILES = "each machine needs the same files at the same path"


@dataclass(frozen=True, kw_only=True)
class MadeByTasks:
    """Make the cases of a sweep on an engine, as the ``made`` of a ``Keeping``.

    Args:
        engine: the engine that runs the tasks.
        command: the function of the sweep's options, ``module:function``.
        options: its arguments, by name.
    """

    engine: Engine
    command: str
    options: Mapping[str, Any]

    def __call__(self, _trial: Trial, cases: Sequence[Row], missing: Sequence[int], setting: Row) -> Iterator[tuple[int, Row]]:
        """Make the cases of these numbers, as workers become free."""
        options = {name: to_jsonable_python(_whole(value)) for name, value in self.options.items()}
        shared = json.dumps({"command": self.command, "options": options, "setting": setting})
        work = Work(prepare=f"{__name__}:{prepare_case.__name__}", shared=shared.encode())
        inputs = (json.dumps([number, place_of(cases[number])]).encode() for number in missing)
        for number, row in self.engine.map(work, inputs, json.loads):
            yield missing[number], row


def prepare_case(shared: bytes) -> TaskFunction:
    """Declare the sweep in a worker. Raises DataError if it finds other data there than the process that began the sweep."""
    work = json.loads(shared)
    sweep = declared(work["command"], work["options"])
    if (own := json.loads(json.dumps(sweep.setting))) != work["setting"]:
        differing = sorted(key for key in {*own, *work["setting"]} if own.get(key) != work["setting"].get(key))
        raise DataError(f"a worker has read another sweep: {', '.join(differing)} differ; {SAME_FILES}")

    def make(given: bytes) -> bytes:
        number, place = json.loads(given)
        if number >= len(sweep.cases) or place_of(sweep.cases[number]) != place:
            raise DataError(f"a worker finds other cases in this sweep; {SAME_FILES}")
        return json.dumps(dict(sweep.trial(**sweep.cases[number]))).encode()

    return make


def declared(command: str, options: Mapping[str, Any]) -> Experiment:
    """Declare a command's experiment by its options as plain data."""
    module, _, name = command.partition(":")
    work: Callable[..., Experiment] = getattr(importlib.import_module(module), name)
    parameters = parameters_of(work)
    values = {name: TypeAdapter(parameters[name].annotation).validate_python(value) for name, value in options.items()}
    experiment: Experiment = called(work, values)
    return experiment


def _whole(value: Any) -> Any:
    """Make paths absolute, because a worker may run in another folder."""
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return value.absolute() if isinstance(value, Path) else value
