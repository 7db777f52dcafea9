"""Make the runs of a sweep of defences: one after the other in this process, or as tasks on an engine, with the same bits."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, TypeAlias

import msgspec
import polars as pl

from tallystick.compute.task import Engine, TaskFunction, Work
from tallystick.config.contract import Contract
from tallystick.errors import ConfigError, DataError
from tallystick.results import Result, read_result
from tallystick.simulation import simulate
from tallystick.trials.partner import SimulatedPartner
from tallystick.watcher import Silent

Outcome: TypeAlias = Result | ConfigError | DataError
"""Outcome of a run: its result, or the error."""
_ERRORS: dict[str, type[ConfigError] | type[DataError]] = {"config": ConfigError, "data": DataError}


def simulated_here(
    contracts: Sequence[Contract], partner: SimulatedPartner, numbers: Iterable[int]
) -> Iterator[tuple[int, Outcome]]:
    """Make the runs with these numbers. Number n is contract n modulo their count; its seed is increased by n over
    their count.
    """
    for number in numbers:
        contract, later = contracts[number % len(contracts)], number // len(contracts)
        values = contract.model_dump(mode="json")
        try:
            yield number, _run(values, partner.tables, partner.columns, later=later, baseline=number % len(contracts) == 0)
        except (ConfigError, DataError) as error:
            yield number, error


def simulated_on(
    engine: Engine, contracts: Sequence[Contract], partner: SimulatedPartner, numbers: Iterable[int]
) -> Iterator[tuple[int, Outcome]]:
    """Make the same runs on an engine, and yield each when it is done. A number is taken when a worker is free."""
    tables = {}
    for name, table in partner.tables.items():
        written = BytesIO()
        table.write_ipc(written)
        tables[name] = written.getvalue()
    shared = _Shared(
        contracts=[json.dumps(contract.model_dump(mode="json")) for contract in contracts],
        tables=tables,
        # A worker's threads are those of the engine.
        columns={name: json.dumps({**columns, "threads": None}) for name, columns in partner.columns.items()},
    )
    running: list[int] = []

    def inputs() -> Iterator[bytes]:
        for number in numbers:
            running.append(number)
            yield str(number).encode()

    work = Work(prepare=f"{__name__}:{prepare_simulation.__name__}", shared=msgspec.msgpack.encode(shared))
    for index, outcome in engine.map(work, inputs(), _outcome):
        yield running[index], outcome


def _outcome(output: bytes) -> Outcome:
    kind, _, rest = output.partition(b":")
    return read_result(rest) if kind == b"result" else _ERRORS[kind.decode()](rest.decode())


class _Shared(msgspec.Struct, frozen=True):
    """Data for every worker: contracts and columns as JSON, tables as Arrow."""

    contracts: list[str]
    tables: dict[str, bytes]
    columns: dict[str, str]


def prepare_simulation(shared: bytes) -> TaskFunction:
    """Read the tables in a worker. A task's input is the number of a run."""
    inputs = msgspec.msgpack.decode(shared, type=_Shared)
    contracts = [json.loads(contract) for contract in inputs.contracts]
    tables = {name: pl.read_ipc(BytesIO(table)) for name, table in inputs.tables.items()}
    columns = {name: json.loads(each) for name, each in inputs.columns.items()}

    def make(payload: bytes) -> bytes:
        later, which = divmod(int(payload), len(contracts))
        try:
            result = _run(contracts[which], tables, columns, later=later, baseline=which == 0)
        except (ConfigError, DataError) as error:
            kind = next(name for name, each in _ERRORS.items() if isinstance(error, each))
            return f"{kind}:{error}".encode()
        return b"result:" + result.to_json().encode()

    return make


def _run(
    contract: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    columns: Mapping[str, Mapping[str, Any]],
    *,
    later: int,
    baseline: bool,
) -> Result:
    """Simulate a contract with a later seed. Nothing is sent, so values that are secret in a job may follow from the seed."""
    seed = contract["seed"] + later
    values = {**contract, "seed": seed, "evaluation": contract["evaluation"] | {"own_columns_baseline": baseline}}
    return simulate(values, tables, columns, secret_seed=seed, watcher=Silent())
