"""Measure how fast scores are served online, with both sides, a foreign client and its load on this machine's cores.

A client asks for one row per request, from a server that asks its partner for the row each time. For comparison, the same server
returns a constant, and the same network runs in one process. Seconds depend on the other work of the machine, and CPU seconds of
each process depend less on it.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from typer import Option

from tallystick.config.contract import Contract, load_contract
from tallystick.config.party import load_party
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.errors import ConfigError
from tallystick.network.addresses import free_port
from tallystick.network.channel import Progress, no_progress
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import Architecture, TrainedFeatureParty, TrainedLabelParty, kept_encoder
from tallystick.scoring.answering import embedded
from tallystick.scoring.scoring import Scorer
from tallystick.scoring.stores.table import Snapshot
from tallystick.tables.keys import keys_of
from tallystick.tables.table import read_party_table
from tallystick_experiments.options import several
from tallystick_experiments.page import ExperimentResult
from tallystick_experiments.speed import serving_far, serving_faults, serving_flood, serving_memory
from tallystick_experiments.speed.serving_clients import CLIENTS, ask, require_clients
from tallystick_experiments.speed.serving_floor import round_trips
from tallystick_experiments.speed.serving_job import FEATURE, LABEL, ServingJob, cpu_s, end, started, until
from tallystick_experiments.speed.serving_page import serving_page
from tallystick_experiments.stats import Row

PARTS = ("load", "faults", "memory", "far", "flood")
WARM_UP_S = 3
ALONE_CALLS = 1000
GATHER_MS = 5


def measure_serving(
    *,
    parts: Annotated[Sequence[str], several("load, faults, memory, far or flood, with commas between.")] = ("load",),
    rows: Annotated[int, Option(help="Rows of each side's table.", min=1000)] = 20_000,
    seconds: Annotated[int, Option(help="Length of each load.", min=2)] = 20,
    rates: Annotated[
        Sequence[int],
        several("Requests a second, with commas between.", of=int, wanted="whole numbers above 0, with commas between"),
    ] = (100, 500),
    way: Annotated[str, Option(help="How the partner is asked: key, position, window or ahead.")] = "key",
    minutes: Annotated[float, Option(help="Length of the parts memory and far.", min=0.5)] = 20.0,
    progress: Progress = no_progress,
) -> ExperimentResult:
    """Train, serve, and send requests.

    Args:
        parts: ``load`` asks at each rate, from the server and from a constant one; ``faults`` harms the partner during the
            requests; ``memory`` asks for ``minutes`` and watches the processes' memory; ``far`` does so with a partner that is
            far away, and stopped, killed and slow in turn; ``flood`` measures an honest client next to connections that read
            nothing.
        rows: rows of each side's table.
        seconds: the length of each load.
        rates: requests a second.
        way: how the partner is asked.
        minutes: the length of the parts ``memory`` and ``far``.
        progress: called for each step.

    Raises ConfigError for another part or rate, if a client is not installed, or if the training fails.
    """
    if not set(parts) <= set(PARTS):
        raise ConfigError(f"--parts {','.join(parts)}: must be of {', '.join(PARTS)}, with commas between")
    if not rates or min(rates) < 1:
        raise ConfigError(f"--rates {','.join(map(str, rates))}: must be whole numbers above 0, with commas between")
    require_clients(CLIENTS if "load" in parts else () if list(parts) == ["flood"] else ("wrk",))
    load_before, rows_of_parts = os.getloadavg()[0], list[Row]()
    steps = 1 + ("load" in parts) * (3 * len(CLIENTS) * len(rates) + 1) + ("faults" in parts) * len(serving_faults.FAULTS)
    steps += 2 * ("memory" in parts) + len(serving_far.plan(minutes)) * ("far" in parts)
    steps += 4 * ("flood" in parts)
    number = iter(range(1, steps + 1))

    def say(what: str) -> None:
        progress(what, next(number), steps)

    with tempfile.TemporaryDirectory(prefix="tallystick-serve-") as place:
        say("training what is to be served")
        deadline_ms = serving_faults.DEADLINE_MS if parts == ["faults"] else 2000.0
        job = ServingJob.trained(Path(place), rows=rows, way=way, deadline_ms=deadline_ms)
        if "load" in parts:
            rows_of_parts += _load(job, rates, seconds, say)
        if "faults" in parts:
            rows_of_parts += serving_faults.faults_under_load(job, say=say)
        if "memory" in parts:
            rows_of_parts += serving_memory.memory_under_load(job, minutes=minutes, say=say)
        if "far" in parts:
            rows_of_parts += serving_far.far_under_load(job, minutes=minutes, say=say)
        if "flood" in parts:
            rows_of_parts += serving_flood.flooded(job, say=say)
    about = {
        "rows": rows,
        "seconds": seconds,
        "way": way,
        "minutes": minutes,
        "cores": os.cpu_count(),
        "load": load_before,
    }
    return ExperimentResult(experiment="serve", about=about, rows=rows_of_parts, page_of=serving_page)


def _load(job: ServingJob, rates: Sequence[int], seconds: int, say: Callable[[str], None]) -> list[Row]:
    rows_of_load, at_once = [], job.values(LABEL)["serving"]
    for gather_ms in (0, GATHER_MS):
        what = f"serve, gather_ms: {gather_ms}" if gather_ms else "serve"
        job.change(LABEL, serving={**at_once, "gather_ms": gather_ms})
        with job.serving() as running:
            processes = {"label": running[LABEL].pid, "feature": running[FEATURE].pid}
            for client in CLIENTS:
                for rate in rates:
                    say(f"{what}, {rate} a second by {client}")
                    rows_of_load.append(_measured(what, client, job, job.port, rate, seconds, processes))
    job.change(LABEL, serving=at_once)
    port = free_port()
    constant = [sys.executable, str(Path(__file__).with_name("constant_server.py")), str(port)]
    server = started(constant, log=job.root / "constant.log")
    try:
        until(f"http://127.0.0.1:{port}/v1/score", "")
        for client in CLIENTS:
            for rate in rates:
                say(f"a constant, {rate} a second by {client}")
                rows_of_load.append(_measured("a constant", client, job, port, rate, seconds, {"label": server.pid}))
    finally:
        end(server)
    say("one process")
    rows_of_load += [{"part": "one process", "rate": rate, "cpu_ms": cpu} for rate, cpu in _one_process(job, rates).items()]
    return [*rows_of_load, *({"part": "round trip", "rate": rate, "cpu_ms": cpu} for rate, cpu in round_trips(rates).items())]


def _measured(what: str, client: str, job: ServingJob, port: int, rate: int, seconds: int, processes: Mapping[str, int]) -> Row:
    ask(client, job, port, rate=rate, seconds=WARM_UP_S)
    before = {name: cpu_s(pid) for name, pid in processes.items()}
    load = ask(client, job, port, rate=rate, seconds=seconds)
    cpu = {f"{name}_cpu_ms": 1000 * (cpu_s(pid) - before[name]) / max(load.requests, 1) for name, pid in processes.items()}
    return {"part": "load", "what": what, "client": client, "rate": rate, **asdict(load), **cpu, "cpu_ms": sum(cpu.values())}


def _one_process(job: ServingJob, rates: Sequence[int]) -> dict[int, float]:
    """Measure CPU milliseconds of one row's score, looked up and computed in one process, at each rate and, at 0, without pauses.

    After a pause, a process finds the data of others in its caches, like one that serves.
    """
    torch.set_num_threads(1)
    root, contract = job.root, load_contract(job.root / "contract.yaml")
    scorer = Scorer.of(TrainedLabelParty.load(_folder(root, contract, LABEL), Architecture.of(contract, LABEL)))
    own, partner_store = (_snapshot(root, contract, name) for name in (LABEL, FEATURE))
    folder = _folder(root, contract, FEATURE)
    dataset = IntersectionDataset(encoder=kept_encoder(folder), source=None)
    bottom = TrainedFeatureParty.load(folder, Architecture.of(contract, FEATURE), dataset).bottom.eval()
    keys, rng, cpu_of_rate = list(own.places), np.random.default_rng(0), {}
    for rate in (0, *rates):
        spent = 0.0
        for number in range(50 + ALONE_CALLS):
            if rate:
                time.sleep(rng.exponential(1 / rate))
            key, began = keys[rng.integers(len(keys))], time.process_time()
            features = partner_store.find([key]).features_E
            assert features is not None
            scorer.joint([embedded(bottom, features, width=scorer.trained.widths[0])], own.find([key]).features_E)
            spent += time.process_time() - began if number >= 50 else 0.0
        cpu_of_rate[rate] = 1000 * spent / ALONE_CALLS
    return cpu_of_rate


def _folder(root: Path, contract: Contract, name: str) -> RunFolder:
    return RunFolder.latest(root / f"runs-{name}", contract, name)


def _snapshot(root: Path, contract: Contract, name: str) -> Snapshot:
    party = load_party(root / f"{name}.yaml")
    frame = read_party_table(party)
    return Snapshot.of(frame, keys_of(frame, party, contract.alignment), kept_encoder(_folder(root, contract, name)))
