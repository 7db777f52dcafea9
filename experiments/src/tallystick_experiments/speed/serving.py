"""How fast scores are served online: both sides, a foreign client and their load share this machine's cores.

``hey`` asks for one row a request, at a fixed rate, of a server that asks its partner for the row each time. Beside it stand the
same server returning a constant, and the same network in one process. Seconds hang on what else the machine does; CPU seconds of
each process do so less.
"""

import io
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import yaml

from tallystick.artifacts.folder import RunFolder
from tallystick.artifacts.trained import Architecture, TrainedFeatureParty, TrainedLabelParty, kept_encoder
from tallystick.config.contract import Contract, load_contract
from tallystick.config.party import load_party
from tallystick.data.keys import keys_of
from tallystick.data.table import read_party_table
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.errors import ConfigError
from tallystick.network.addresses import free_port
from tallystick.network.certificates import write_test_certificates
from tallystick.privacy.ledger import Ledger
from tallystick.serving.answering import embedded
from tallystick.serving.scoring import Scorer
from tallystick.serving.stores.table import Snapshot

Figures = dict[str, Any]
LABEL, FEATURE = "bank", "shop"
READY_S, TRAIN_S = 120.0, 900.0
WARM_UP_S = 3
ALONE_CALLS = 1000
TICKS = os.sysconf("SC_CLK_TCK")


def run(*, rows: int = 20_000, seconds: int = 20, rates: Sequence[int] = (100, 500), way: str = "key") -> Figures:
    """Train, serve, and ask at each rate, of the server and of the constant one.

    Gives for each rate and server ``p50_ms``, ``p99_ms``, ``per_second``, ``failed`` and ``cpu_ms`` per request of each process,
    and ``one_process_ms``: CPU of one score of the same network in one process.

    Raises ConfigError where ``hey`` is not installed, or the training fails.
    """
    if shutil.which("hey") is None:
        raise ConfigError("bench serve: the client hey is not installed; apt-get install hey")
    with tempfile.TemporaryDirectory(prefix="tallystick-serve-") as place:
        root = Path(place)
        port, token = _lay_out(root, rows=rows, way=way)
        _trained(root)
        measured = {}
        with _started([_command("serve", root, name) for name in (LABEL, FEATURE)], cwd=root) as (label, feature):
            _until(f"http://127.0.0.1:{port}/readyz", "ready\n")
            processes = {"label party": label.pid, "feature party": feature.pid}
            for rate in rates:
                measured[f"serve, {rate}/s"] = _ask(root, port, token, rate=rate, seconds=seconds, processes=processes)
        other = free_port()
        constant = [sys.executable, str(Path(__file__).with_name("constant_server.py")), str(other)]
        with _started([constant], cwd=root) as (server,):
            _until(f"http://127.0.0.1:{other}/v1/score", "")
            for rate in rates:
                processes = {"label party": server.pid}
                measured[f"constant, {rate}/s"] = _ask(root, other, token, rate=rate, seconds=seconds, processes=processes)
        alone = _one_process(root)
    return {"rows": rows, "seconds": seconds, "way": way, "cores": os.cpu_count(), "one_process_ms": alone, "load": measured}


def _lay_out(root: Path, *, rows: int, way: str) -> tuple[int, str]:
    """Tables, contract and party files of both sides; gives the port for clients, and their token."""
    rng = np.random.default_rng(0)
    signal_N2 = rng.normal(size=(rows, 2))
    ids = [f"id-{number:07}" for number in range(rows)]
    write_test_certificates(root / "certificates", [LABEL, FEATURE])
    address, port, token = f"127.0.0.1:{free_port()}", free_port(), secrets.token_hex(16)
    (root / "tokens").write_text(f"{token}\n")
    (root / "body.json").write_text(f'{{"rows":[{{"id":"{ids[rows // 2]}"}}]}}')
    contract = {
        "name": "serve",
        "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
        "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
        "training": {"epochs": 1},
        "audit": False,
        "network": {"wait_s": 300.0},
        "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
        "serving": {"ways": [way]},
    }
    (root / "contract.yaml").write_text(yaml.safe_dump(contract, sort_keys=False))
    for place, name in enumerate((LABEL, FEATURE)):
        columns = {f"x{number}": signal_N2[:, place] + rng.normal(size=rows) for number in range(8)}
        kinds = {f"kind{number}": rng.choice(["red", "green", "blue"], size=rows) for number in range(2)}
        label = {"y": (signal_N2.sum(axis=1) > 0).astype(np.int64)} if name == LABEL else {}
        pl.DataFrame({"id": ids, **columns, **kinds, **label}).write_parquet(root / f"{name}.parquet")
        values: dict[str, Any] = {
            "party": name,
            "table": {"path": f"{name}.parquet"},
            "keys": {"id": "id"},
            "tls": {"ca": "certificates/ca.pem", "certificate": f"certificates/{name}.pem", "key": f"certificates/{name}.key"},
            "runs": f"runs-{name}",
            "privacy": {"ledger": f"ledger-{name}.sqlite"},
            "threads": 1,
        }
        if name == LABEL:
            serving = {"listen": f"127.0.0.1:{port}", "token_file": "tokens", "deadline_ms": 2000.0}
            values |= {"label": "y", "listen": address, "serving": serving}
        else:
            values |= {"peers": {LABEL: {"address": address}}}
        Ledger.create(root / f"ledger-{name}.sqlite", party=name)
        (root / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return port, token


def _command(command: str, root: Path, name: str) -> list[str]:
    return [sys.executable, "-m", "tallystick", command, str(root / "contract.yaml"), "--party", str(root / f"{name}.yaml")]


def _trained(root: Path) -> None:
    running = {}
    for name in (LABEL, FEATURE):
        with (root / f"{name}.log").open("wb") as log:
            running[name] = subprocess.Popen(_command("run", root, name), stdout=subprocess.DEVNULL, stderr=log)
    for name, process in running.items():
        if process.wait(TRAIN_S):
            said = (root / f"{name}.log").read_text().strip().splitlines()
            raise ConfigError(f"bench serve: the training of what is to be served failed at {name}: {said[-1] if said else ''}")


@contextmanager
def _started(commands: Sequence[Sequence[str]], *, cwd: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        yield running
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def _until(url: str, word: str) -> None:
    """Wait until the server says the word; any answer will do where it is empty."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
                if answer.read().decode() == word or not word:
                    return
        except urllib.error.HTTPError:
            if not word:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise ConfigError(f"bench serve: {url} was not ready within {READY_S:g} s")


def _ask(root: Path, port: int, token: str, *, rate: int, seconds: int, processes: Mapping[str, int]) -> Figures:
    _hey(root, port, token, rate=rate, seconds=WARM_UP_S)
    before = {name: _cpu_s(pid) for name, pid in processes.items()}
    answers = _hey(root, port, token, rate=rate, seconds=seconds)
    cpu = {name: 1000 * (_cpu_s(pid) - before[name]) / max(len(answers), 1) for name, pid in processes.items()}
    millis = 1000 * answers.get_column("response-time").to_numpy()
    return {
        "requests": len(answers),
        "failed": int((answers.get_column("status-code") != 200).sum()),
        "per_second": len(answers) / seconds,
        "p50_ms": float(np.percentile(millis, 50)),
        "p99_ms": float(np.percentile(millis, 99)),
        "cpu_ms": cpu,
        "cpu_ms_all": sum(cpu.values()),
    }


def _hey(root: Path, port: int, token: str, *, rate: int, seconds: int) -> pl.DataFrame:
    workers = max(1, rate // 10)
    command = ["hey", "-z", f"{seconds}s", "-c", str(workers), "-q", str(rate / workers), "-o", "csv", "-m", "POST"]
    command += ["-T", "application/json", "-H", f"Authorization: Bearer {token}", "-D", str(root / "body.json")]
    said = subprocess.run([*command, f"http://127.0.0.1:{port}/v1/score"], check=True, capture_output=True, timeout=seconds + 60)
    return pl.read_csv(io.BytesIO(said.stdout))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _one_process(root: Path) -> float:
    """CPU milliseconds of one row's score, looked up and computed in one process."""
    torch.set_num_threads(1)
    contract = load_contract(root / "contract.yaml")
    scorer = Scorer.of(TrainedLabelParty.load(_folder(root, contract, LABEL), Architecture.of(contract, LABEL)))
    own, theirs = (_snapshot(root, contract, name) for name in (LABEL, FEATURE))
    folder = _folder(root, contract, FEATURE)
    dataset = IntersectionDataset(encoder=kept_encoder(folder), source=None)
    bottom = TrainedFeatureParty.load(folder, Architecture.of(contract, FEATURE), dataset).bottom.eval()
    keys = list(own.places)[: ALONE_CALLS + 50]
    for number, key in enumerate(keys):
        if number == len(keys) - ALONE_CALLS:
            began = time.process_time()
        features = theirs.find([key]).features_E
        assert features is not None
        scorer.joint([embedded(bottom, features, width=scorer.trained.widths[0])], own.find([key]).features_E)
    return 1000 * (time.process_time() - began) / ALONE_CALLS


def _folder(root: Path, contract: Contract, name: str) -> RunFolder:
    return RunFolder.latest(root / f"runs-{name}", contract, name)


def _snapshot(root: Path, contract: Contract, name: str) -> Snapshot:
    party = load_party(root / f"{name}.yaml")
    frame = read_party_table(party)
    return Snapshot.of(frame, keys_of(frame, party, contract.alignment), kept_encoder(_folder(root, contract, name)))
