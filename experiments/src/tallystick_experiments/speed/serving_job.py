"""Train a job of two parties to be served, and run its processes, for measurements of serving."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from tallystick.errors import ConfigError
from tallystick.network.addresses import free_port
from tallystick.network.certificates import write_test_certificates
from tallystick.privacy.ledger import Ledger

LABEL, FEATURE = "bank", "shop"
READY, READY_S, TRAIN_S, END_S = "ready\n", 180.0, 900.0, 30
BODIES, LONELY = 500, 500
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class ServingJob:
    """Hold a trained job. The partner has a row for each id, except for LONELY of the label party's.

    Args:
        root: the folder of its files.
        rows: rows of the partner's table.
        port: the port at which the label party answers clients.
        link: the port at which it answers its partner.
        token: the token of its clients.
    """

    root: Path
    rows: int
    port: int
    link: int
    token: str

    @classmethod
    def trained(cls, root: Path, *, rows: int, way: str = "key", deadline_ms: float = 2000.0) -> "ServingJob":
        """Write tables, contract and party files, and train. Raises ConfigError if that fails."""
        job = cls(root=root, rows=rows, port=free_port(), link=free_port(), token=secrets.token_hex(16))
        job._lay_out(way=way, deadline_ms=deadline_ms)
        running = {name: job.start(name, "run") for name in (LABEL, FEATURE)}
        for name, process in running.items():
            if process.wait(TRAIN_S):
                log_lines = (root / f"{name}.log").read_text().strip().splitlines()
                raise ConfigError(
                    f"bench serve: the training of what is to be served failed at {name}: {log_lines[-1] if log_lines else ''}"
                )
        return job

    def start(self, name: str, command: str = "serve") -> "subprocess.Popen[bytes]":
        """Start a side."""
        files = [str(self.root / "contract.yaml"), "--party", str(self.root / f"{name}.yaml")]
        return started([sys.executable, "-m", "tallystick", command, *files], log=self.root / f"{name}.log")

    @contextmanager
    def serving(self) -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
        """Keep both sides running until the block ends. A process that replaces another in the mapping is ended with it."""
        running = {name: self.start(name) for name in (LABEL, FEATURE)}
        try:
            until(f"http://127.0.0.1:{self.port}/readyz", READY)
            yield running
        finally:
            for process in running.values():
                end(process)

    def change(self, name: str, **values: Any) -> None:
        """Change keys of a party's file."""
        path = self.root / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}, sort_keys=False))

    def values(self, name: str) -> dict[str, Any]:
        """Return the values of a party's file."""
        settings: dict[str, Any] = yaml.safe_load((self.root / f"{name}.yaml").read_text())
        return settings

    def scored(self) -> Mapping[str, float]:
        """Return the label party's counts of scored rows by the way of scoring, over all runs."""
        from prometheus_client.parser import (
            text_string_to_metric_families,
        )  # from the extra `serve`, which the page does not need

        header = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers=header)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own server
            text = answer.read().decode()
        counts: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "tallystick_rows_total":
                    counts[sample.labels["by"]] = counts.get(sample.labels["by"], 0.0) + sample.value
        return counts

    def _lay_out(self, *, way: str, deadline_ms: float) -> None:
        root, rows = self.root, self.rows
        write_test_certificates(root / "certificates", [LABEL, FEATURE])
        (root / "tokens").write_text(f"{self.token}\n")
        contract = {
            "name": "serve",
            "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
            "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
            "training": {"epochs": 1},
            "audit": False,
            "unaligned": {"method": "multi-task"},
            "network": {"wait_s": 300.0},
            "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
            "serving": {"ways": [way]},
        }
        (root / "contract.yaml").write_text(yaml.safe_dump(contract, sort_keys=False))
        for name, frame in _tables(rows).items():
            frame.write_parquet(root / f"{name}.parquet")
            (root / f"{name}.yaml").write_text(yaml.safe_dump(self._party(name, deadline_ms), sort_keys=False))
            Ledger.create(root / f"ledger-{name}.sqlite", party=name)
        self._write_bodies(pl.read_parquet(root / f"{LABEL}.parquet").drop("y")[: self.rows])

    def _party(self, name: str, deadline_ms: float) -> dict[str, Any]:
        values: dict[str, Any] = {
            "party": name,
            "table": {"path": f"{name}.parquet"},
            "keys": {"id": "id"},
            "tls": {"ca": "certificates/ca.pem", "certificate": f"certificates/{name}.pem", "key": f"certificates/{name}.key"},
            "runs": f"runs-{name}",
            "privacy": {"ledger": f"ledger-{name}.sqlite"},
            "threads": 1,
        }
        address = f"127.0.0.1:{self.link}"
        if name == FEATURE:
            return values | {"peers": {LABEL: {"address": address}}}
        serving = {"listen": f"127.0.0.1:{self.port}", "token_file": "tokens", "deadline_ms": deadline_ms}
        return values | {"label": "y", "listen": address, "serving": serving}

    def _write_bodies(self, table: pl.DataFrame) -> None:
        """Write bodies of requests for one row each, one per line: with the key alone, and with own columns."""
        sampled = table.sample(min(BODIES, table.height), seed=0).to_dicts()
        for name, rows in (("keys", [{"id": row["id"]} for row in sampled]), ("columns", sampled)):
            (self.root / name).write_text("".join(json.dumps({"rows": [row]}) + "\n" for row in rows))
        (self.root / "body.json").write_text(json.dumps({"rows": [{"id": sampled[0]["id"]}]}))


def _tables(rows: int) -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(0)
    signal_N2, tables = rng.normal(size=(rows + LONELY, 2)), {}
    for place, name in enumerate((LABEL, FEATURE)):
        numbers = {f"x{number}": signal_N2[:, place] + rng.normal(size=len(signal_N2)) for number in range(8)}
        kinds = {f"kind{number}": rng.choice(["red", "green", "blue"], size=len(signal_N2)) for number in range(2)}
        tables[name] = pl.DataFrame({"id": [f"id-{number:07}" for number in range(len(signal_N2))], **numbers, **kinds})
    return {LABEL: tables[LABEL].with_columns(y=(signal_N2.sum(axis=1) > 0).astype(np.int64)), FEATURE: tables[FEATURE][:rows]}


def started(command: Sequence[str], *, log: Path) -> "subprocess.Popen[bytes]":
    """Start a process with one thread for its linear algebra, and append its words to the log."""
    environment: Mapping[str, str] = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as log_file:
        return subprocess.Popen(command, cwd=log.parent, env=environment, stdout=subprocess.DEVNULL, stderr=log_file)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process, by force if it does not end in time."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_S)


def until(url: str, word: str) -> None:
    """Wait until the server answers with this word, or with anything if it is empty."""
    last = time.monotonic() + READY_S
    while time.monotonic() < last:
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


def cpu_s(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
