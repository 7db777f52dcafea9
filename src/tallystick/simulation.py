"""Run all parties in one process, as threads over in-memory channels: for notebooks, tests and what-if questions.

The job code and the message codec are those of a run over the network; only the transport differs.
"""

import gc
import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import PartyFile, parse_party
from tallystick.config.party_checks import check_party, dialled
from tallystick.errors import ConfigError, PeerError
from tallystick.job.explore import require_estimate, require_explore
from tallystick.job.job import ALL_PHASES, EXPLORE, Job, check_process, fitting_threads
from tallystick.job.log import Logbook
from tallystick.job.process import work_of
from tallystick.job.start_from import run_to_start_from
from tallystick.job.watchers import watcher_here
from tallystick.network.channel import MemoryChannel, memory_channels
from tallystick.results import Result, merge
from tallystick.run_folder.embedding_charge import noise_on_embeddings
from tallystick.run_folder.folder import REPEATS, SAMPLE, START, RunFolder, fresh_secret
from tallystick.run_folder.initial_weights import keep_starting_point
from tallystick.run_folder.ledger import create_ledger, with_ledger_named
from tallystick.storage import scratch_folder
from tallystick.tables.frame import as_frame
from tallystick.tables.keys import Keys, keys_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.repeats import with_summaries
from tallystick.tables.times import with_dates
from tallystick.tables.vectors import with_vectors
from tallystick.watcher import Silent, Watcher

_STEP_S = 0.2


def simulate(
    contract: Contract | Mapping[str, Any],
    tables: Mapping[str, Any],
    parties: Mapping[str, Mapping[str, Any]],
    *,
    bottoms: Mapping[str, nn.Module] | None = None,
    top: nn.Module | None = None,
    folder: Path | None = None,
    watcher: Watcher | None = None,
    secret_seed: int | None = None,
    start_from: str | None = None,
    explores: bool = False,
) -> Result:
    """Run a contract with all its parties in this process and return the joined result.

    No guarantee: the process that simulates holds all tables. The numbers equal those of a run over the network.

    Args:
        contract: a Contract, or its values.
        tables: each party's table by its name: of Polars, pandas, PyArrow, DuckDB, or any object with ``__arrow_c_stream__``.
        parties: by party name, what its party file would say of the columns (``keys``, ``label``, ``features``, ...).
        bottoms: by party name, a module to use instead of the contract's, which takes Features and states its output ``width``.
            These modules are not tested for mixing a batch's rows; the contract's own are, if a defence relies on separate rows.
        top: a module over the joined cut embeddings, feature parties' first, to use instead of the contract's.
        folder: the place of the run folders, one per party; by default a temporary folder, removed at the end.
        secret_seed: a number from which all parties draw their secrets: starting weights, the order of an id's rows, flipped
            labels, noise, stand-ins. One number and one contract give the same bits on an intersection. If it is left out, the
            first two follow from the contract's seed, so that plain training repeats, and other secrets come from the operating
            system, as all do in a run over the network. A person who knows the number can undo what a defence did.
        start_from: id of a finished run under ``folder``; all parties start with its weights, encoders and coding of labels.
        explores: whether to estimate the gain on a sample, as `tallystick explore` does.
        watcher: shows the label party's progress; by default a notebook or a terminal does. ``Silent()`` shows nothing.

    Raises ConfigError and DataError for unusable input; the first party's error if the run fails.
    """
    check_process()
    agreed = contract if isinstance(contract, Contract) else parse_contract(contract)
    own_bottoms = bottoms or {}
    if explores:
        require_explore(agreed)
    with_rows = [name for name, party in agreed.parties.items() if party.role != "helper"]
    if missing := [name for name in with_rows if name not in tables or name not in parties]:
        raise ConfigError(f"simulate: no table or no columns for {', '.join(missing)}; give both for every party of the contract")
    if top is None and agreed.label_party in own_bottoms:
        raise ConfigError(
            f"simulate: bottoms has {agreed.label_party}, the label party, and there is no top to join it; give a top as well, "
            f"or name the module in the contract's model.bottoms.{agreed.label_party}"
        )
    if top is not None and agreed.unaligned.used:
        raise ConfigError(
            f"simulate: a top is given, but unaligned.method = {agreed.unaligned.method} makes tops of its own; "
            "name the module's class in the contract's model.top instead"
        )
    if bottoms or top is not None:
        if agreed.training.folds not in ("auto", 1):
            raise ConfigError(
                f"simulate: modules are given, but training.folds = {agreed.training.folds} takes several of each; leave one of "
                "the two out"
            )
        agreed = agreed.model_copy(update={"training": agreed.training.model_copy(update={"folds": 1})})
    if start_from is not None and folder is None:
        raise ConfigError(f"simulate: start_from = {start_from!r}: give the folder that this run was simulated in")
    frames = {}
    for name, table in tables.items():
        columns = parse_party(
            {"party": name, "table": {"path": f"{name}.parquet"}, **parties.get(name, {})}, folder=Path(), source=name
        )
        frames[name] = as_frame(table, source=name, asks_for=columns.asks_for)
    watcher = watcher or watcher_here()
    threads = torch.get_num_threads()
    try:
        with threadpool_limits(), _looking_for_garbage_seldom(), ExitStack() as restored:  # which undo their settings at the end
            place = folder or restored.enter_context(scratch_folder())
            return _simulate(
                _Simulation(
                    contract=agreed,
                    tables=frames,
                    columns=parties,
                    bottoms=bottoms or {},
                    top=top,
                    folder=place,
                    watcher=watcher,
                    secret_seed=secret_seed,
                    start_from=start_from,
                    command=EXPLORE if explores else "run",
                )
            )
    finally:
        torch.set_num_threads(threads)  # the party's own setting must not change its host's


@contextmanager
def _looking_for_garbage_seldom() -> Iterator[None]:
    """Search for garbage rarely. A run makes little of it in cycles, and each search goes through all loaded modules."""
    usual = gc.get_threshold()
    gc.set_threshold(usual[0] and max(100_000, usual[0]), *usual[1:])  # 0 means never
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@dataclass(frozen=True, kw_only=True)
class _Simulation:
    """Inputs of all parties of a simulation. The arguments of ``simulate``."""

    contract: Contract
    tables: Mapping[str, pl.DataFrame]
    columns: Mapping[str, Mapping[str, Any]]
    bottoms: Mapping[str, nn.Module]
    top: nn.Module | None
    folder: Path
    watcher: Watcher
    secret_seed: int | None
    start_from: str | None
    command: str

    def job(self, name: str, channels: Mapping[str, MemoryChannel]) -> Job:
        """Make one party's job. Raises ConfigError or DataError for unusable columns or tables."""
        contract = self.contract
        # The table's path is never read, because the frame is in memory.
        table = {"table": {"path": f"{name}.parquet"}} if name in self.tables else {}
        # All share the folder, in which the label party's ledger has the default name.
        apart = {"privacy": {"ledger": f"{name}-privacy-ledger.sqlite"}} if name != contract.label_party else {}
        # All parties' threads use the same number of threads, or they would change each other's.
        threads = {"threads": fitting_threads(contract, min(frame.height for frame in self.tables.values()))}
        values = {"party": name, **table, "runs": name, **apart, **threads, **self.columns.get(name, {})}
        party: PartyFile = parse_party(values, folder=self.folder, source=name)
        check_party(contract, party, network=False, source=name)
        role, terms = contract.role_of(name), contract.alignment.similarity
        on_keys = terms is not None and terms.noise.keys != "none" and role != "helper"
        if (
            role == "label" or on_keys or (role == "feature" and noise_on_embeddings(contract) is not None)
        ) and not party.privacy.ledger.exists():
            create_ledger(party)
        party = with_ledger_named(party)  # nothing leaves a simulation
        frame: Frame = pl.DataFrame()
        keys: Keys | None = None
        if name in self.tables:
            frame = with_vectors(with_dates(self.tables[name], party.dates), party.vectors)
            frame = with_summaries(frame, party, contract.alignment)
            keys = keys_of(frame, party, contract.alignment)
        is_label = name == contract.label_party
        earlier = run_to_start_from(contract, party, self.start_from) if self.start_from and keys is not None else None
        use = EXPLORE if self.command == EXPLORE else ""
        folder = RunFolder.new(party.runs, contract, name, use=use, key=party.run_key)

        def draw(use: str) -> bytes:
            """Replace a party's own secrets in a process that sends nothing out."""
            if self.secret_seed is None and use not in (START, REPEATS, SAMPLE):
                return fresh_secret(use)
            seed = contract.seed if self.secret_seed is None else self.secret_seed
            return hashlib.blake2b(f"{seed} {use} of {name}".encode(), digest_size=32, person=b"simulation").digest()

        run_folder = replace(folder, draw=draw)
        if earlier is not None:
            keep_starting_point(earlier, run_folder)
        return Job(
            contract=contract,
            party=party,
            frame=frame,
            keys=keys,
            channels=channels,
            folder=run_folder,
            logbook=Logbook(party=name, watcher=self.watcher if is_label else Silent()),
            command=self.command,
            bottom=self.bottoms.get(name),
            top=self.top if is_label else None,
        )


def _simulate(simulation: _Simulation) -> Result:
    contract = simulation.contract
    channels: dict[str, dict[str, MemoryChannel]] = {name: {} for name in contract.parties}
    for name in contract.parties:
        for peer in dialled(contract, name):
            channels[name][peer], channels[peer][name] = memory_channels(name, peer, timeout_s=3600)
    results: dict[str, Result] = {}
    errors: list[Exception] = []
    interrupts: list[KeyboardInterrupt] = []
    ends: dict[str, Future[None]] = {name: Future() for name in contract.parties}

    def run(name: str) -> None:
        if not ends[name].set_running_or_notify_cancel():
            return
        try:
            results[name] = work_of(simulation.command, ALL_PHASES)(simulation.job(name, channels[name]))
        except Exception as error:
            errors.append(error)
            for channel in channels[name].values():
                channel.abort(f"{name} failed: {error}")
        except KeyboardInterrupt as interrupt:  # Polars gives Ctrl-C only to the thread that computes with it
            interrupts.append(interrupt)
            for channel in channels[name].values():
                channel.abort(f"{name} was interrupted")
        finally:
            ends[name].set_result(None)

    threads = [threading.Thread(target=run, args=(name,), name=f"simulate-{name}") for name in contract.parties]
    try:
        for thread in threads:
            thread.start()
        _wait_for(ends.values())  # no join(): an interrupted join() takes the thread for ended
    except KeyboardInterrupt:  # end the parties before their folders go
        cancelled = [end for end in ends.values() if not end.cancel()]
        for name, channels_of in channels.items():
            for channel in channels_of.values():
                channel.abort(f"{name} was interrupted")
        _wait_for(cancelled)
        for thread in threads:
            if thread.is_alive():  # its work is over, and the thread is about to end
                thread.join()
        raise
    for thread in threads:
        thread.join()
    if interrupts:
        raise KeyboardInterrupt
    if errors:
        raise next((error for error in errors if not isinstance(error, PeerError)), errors[0])
    merged = merge(list(results.values()))
    if simulation.command == EXPLORE:
        require_estimate(merged)
    return merged


def _wait_for(ends: Collection[Future[None]]) -> None:
    """Wait in short steps. Once Polars is loaded, a signal does not end a wait for a lock; Python handles it between
    two steps.
    """
    while wait(ends, timeout=_STEP_S).not_done:
        pass
