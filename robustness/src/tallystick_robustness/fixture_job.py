"""Define the job that every campaign disturbs: small tables, a small network, short heartbeats, and a home for each party on
disk.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from safetensors.torch import load_file, save

from tallystick.demo.homes import write_job

LABEL, FEATURE = PARTIES = ("bank", "shop")
HELPER, HELPER_LISTENS = "helper", "127.0.0.1:7444"
THIRD = "club"  # a second feature party, if a job has one
LEDGER = "privacy-ledger.sqlite"  # its place if a party file names none
HEARTBEAT_S, DEADLINE_S, WAIT_S = 0.5, 6.0, 24.0

Values = dict[str, Any]


def tables(rows: int, *, seed: int = 1) -> dict[str, pl.DataFrame]:
    """Make one table per party with most ids in common. The label depends on both parties' columns."""
    rng = np.random.default_rng(seed)
    signal_N2 = rng.normal(size=(rows, 2))
    score_N = signal_N2.sum(axis=1) + 0.3 * rng.normal(size=rows)
    frames = {}
    for index, name in enumerate(PARTIES):
        frame = pl.DataFrame(
            {
                "id": [f"id-{number:06}" for number in range(rows)],
                "x": signal_N2[:, index],
                "noise": rng.normal(size=rows),
                "kind": rng.choice(["red", "green", "blue"], size=rows),
            }
        )
        if name == LABEL:
            frame = frame.with_columns(
                y=(score_N > 0).astype(np.int64), weight=rng.uniform(0.5, 2, size=rows), day=np.arange(rows) % 100
            )
        frames[name] = frame[rng.permutation(rows)[: rows - rows // 20]]
    return frames


def contract(**changes: Any) -> Values:
    """Return a contract's values. A double underscore changes a nested key: training__epochs=3."""
    values: Values = {
        "version": 1,
        "name": "faults",
        "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
        "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
        "target": {"type": "binary"},
        "split": {"method": "hash", "validation": 0.1, "test": 0.2},
        "model": {"embedding_width": 2, "hidden": [8, 8], "cut_after": 1},
        "training": {
            "epochs": 2,
            "batch_size": 16,
            "learning_rate": 0.01,
            "patience": None,
            "checkpoint_every": 10,
            "starts": "public",
        },
        "evaluation": {"calibration_bins": 5, "bootstrap": 5, "own_columns_boosting": False},
        "audit": False,
        "network": {"heartbeat_s": HEARTBEAT_S, "deadline_s": DEADLINE_S, "wait_s": WAIT_S},
        "seed": 1,
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    if values["alignment"]["method"] == "union":  # it refuses public starting weights; a copied run folder holds its secret
        values["training"]["starts"] = "secret"
    return values


def party_values(name: str, *, address: str) -> Values:
    """Return a party file's values. ``address`` is the party's own listener, or the label party's for a feature party."""
    values: Values = {"party": name, "threads": 1}
    if name != HELPER:
        values |= {
            "table": {"path": "table.parquet"},
            "keys": {"id": "id"},
            "features": {"numeric": ["x", "noise"], "categorical": ["kind"]},
        }
    if name == LABEL:
        values["label"] = "y"
    return values | ({"peers": {LABEL: {"address": address}}} if name in (FEATURE, THIRD) else {"listen": address})


@dataclass(frozen=True, kw_only=True)
class Homes:
    """Hold a job on disk: a home per party, with its table, certificates, party file and contract."""

    root: Path

    def home(self, name: str) -> Path:
        """Return a party's folder."""
        return self.root / name

    def parties(self) -> list[str]:
        """List the parties that have a home: both parties, a third one, and a helper if linking has one."""
        return [name for name in (*PARTIES, THIRD, HELPER) if self.home(name).exists()]

    def party(self, name: str) -> Values:
        """Read a party file."""
        values: Values = yaml.safe_load((self.home(name) / "party.yaml").read_text())
        return values

    def write_party(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a party file."""
        (self.home(name) / "party.yaml").write_text(yaml.safe_dump(dict(values), sort_keys=False))

    def latest(self, name: str) -> Path | None:
        """Return a party's newest run folder."""
        runs = sorted((self.home(name) / "runs").glob("*-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        return runs[-1] if runs else None

    def digest(self, name: str) -> str:
        """Return a digest of the final weights of a party's newest run. It is empty if the run has not ended."""
        folder = self.latest(name)
        model = folder / "model.safetensors" if folder is not None else None
        if model is None or not model.exists():
            return ""
        return hashlib.sha256(save(load_file(model))).hexdigest()  # not of the file, which names its run

    def digests(self) -> dict[str, str]:
        """Return both parties' digests."""
        return {name: self.digest(name) for name in PARTIES}


def lay_out(root: Path, values: Values, frames: Mapping[str, pl.DataFrame], *, listen: str, call: str | None = None) -> Homes:
    """Write a job. ``call`` is the address that the feature party dials, if it is not the label party's listener.

    A helper that the contract names listens at HELPER_LISTENS.
    """
    addresses = {LABEL: listen, FEATURE: call or listen, THIRD: call or listen, HELPER: HELPER_LISTENS}
    parties = {name: party_values(name, address=addresses[name]) for name in values["parties"]}
    for name, home in write_job(root, values, parties).items():
        if name in frames:
            frames[name].write_parquet(home / "table.parquet")
    return Homes(root=root)
