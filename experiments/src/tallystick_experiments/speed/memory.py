"""Measure the memory of a large table: a generated file like Criteo's, through two benchmarks and ``tallystick run``.

Every process is started as a user starts it. The figures are the peak of resident memory that the kernel reports for it, and its
processor time.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from typer import Option

from tallystick.alignment.linkages import LINKAGES
from tallystick.demo.homes import write_job
from tallystick.errors import ConfigError, TallystickError
from tallystick.network.addresses import free_port
from tallystick_experiments.catalogue.clicks import CRITEO_CATEGORICAL, CRITEO_NUMERIC

LABEL, FEATURE, HELPER = "bank", "shop", "post"
GENERATED_ROWS = 2**17  # generated at a time
DISTINCT = (
    1460, 583, 100_000, 100_000, 305, 24, 12_517, 633, 3, 93_145, 5683, 100_000, 3194,
    27, 14_992, 100_000, 10, 5652, 2173, 4, 100_000, 18, 15, 100_000, 105, 100_000,
)  # fmt: skip
"""Numbers of values in the 26 categorical columns: Criteo's own counts, at most 100,000."""
_MISSING = 0.1
ONE_RUN: Mapping[str, tuple[str, ...]] = {
    "label-leakage": ("--scenario", "none"),
    "florist": ("--sides", "both", "--ratios", "0.5", "--strategies", "florist-te"),
}
"""By experiment, the options that leave one run of it; of FLORIST they leave its two baselines as well."""
UNCOMMON = 100  # one id in this many is not common, because a union of two sides with the same ids protects nobody
OWN_NUMERIC, OWN_CATEGORICAL = CRITEO_NUMERIC[:6], CRITEO_CATEGORICAL[:13]  # the label party's columns
_CONTRACT: Mapping[str, Any] = {
    "name": "memory",
    "target": {"type": "binary"},
    "training": {"epochs": 1, "batch_size": 8192},
    "audit": False,
    "network": {"wait_s": 7200.0, "deadline_s": 120.0},  # a large table takes long before the first message
    "seed": 1,
}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Hold a process's usage: its peak of resident memory in bytes, and its processor time, also of each phase of a run.

    Processor time is that of all threads, and of children that have ended.
    """

    memory: float
    processor_s: float
    phases: Mapping[str, float] = field(default_factory=dict)


def measure_memory(
    *,
    rows: Annotated[list[int] | None, Option(help="Of the generated file; repeat it for bytes per row.", min=1000)] = None,
    leakage: Annotated[bool, Option(help="Measure bench label-leakage, one epoch of one scenario.")] = True,
    florist: Annotated[bool, Option("--florist", help="Measure bench florist, one epoch where both sides lack half.")] = False,
    job: Annotated[bool, Option(help="Measure all parties of a run.")] = True,
    alignment: Annotated[str, Option(help="Of the run: intersection, union or union-with-helper.")] = "intersection",
    aligned: Annotated[float, Option(help="Share of rows that the run's feature party has; the others train too.")] = 1.0,
    seed: int = 1,
) -> dict[str, Any]:
    """Measure the peak and the processor time of every process at each size, and how they grow per row.

    With ``aligned`` below 1, the feature party of the run has only that share of the rows, and the others train too.

    Return per process its peak in MiB and its processor seconds by size, and bytes per row between each size and the next. Raises
    TallystickError, with the process's last line, if one fails.
    """
    if alignment not in LINKAGES:
        raise ConfigError(f"alignment = {alignment!r}: expected one of {', '.join(LINKAGES)}")
    if not 0 < aligned <= 1:
        raise ConfigError(f"aligned = {aligned}: expected a share of the rows, above 0 and at most 1")
    sizes, found_at = sorted(rows or (100_000, 400_000)), dict[str, list[Usage]]()
    benches = [name for name, wanted in (("label-leakage", leakage), ("florist", florist)) if wanted]
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="tallystick-memory-") as name:
            folder = Path(name)
            figures = _benches(benches, folder, size, seed) if benches else {}
            figures |= job_usages(folder, size, alignment, seed, aligned=aligned) if job else {}
        for process, usage in figures.items():
            found_at.setdefault(process, []).append(usage)
    return {
        "rows": sizes,
        "processes": {
            process: {
                "peak_mib": [round(usage.memory / 2**20, 1) for usage in figures],
                "processor_s": [round(usage.processor_s, 1) for usage in figures],
                "bytes_per_row": [
                    round((more.memory - less.memory) / (larger - smaller), 1)
                    for smaller, larger, less, more in zip(sizes, sizes[1:], figures, figures[1:], strict=False)
                ],
            }
            for process, figures in found_at.items()
        },
    }


class CriteoLike:
    """Generate rows like Criteo's: a label, 13 counts, 26 columns of eight hexadecimal digits.

    The frequencies of values fall like Criteo's (the k-th about as 1 / k), a tenth of the cells is empty, and the label depends
    on the first count and two categories. A piece of rows is the same whatever was drawn before it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.words = [
            pl.Series(np.char.mod("%08x", (np.arange(distinct, dtype=np.uint64) * 2_654_435_761 + 40_503 * place) % 2**32))
            for place, distinct in enumerate(DISTINCT)
        ]

    def pieces(self, rows: int) -> Iterator[pl.DataFrame]:
        """Draw this many rows, a piece at a time."""
        for number, first in enumerate(range(0, rows, GENERATED_ROWS)):
            yield self._piece(min(GENERATED_ROWS, rows - first), np.random.default_rng([self.seed, number]))

    def _piece(self, rows: int, rng: np.random.Generator) -> pl.DataFrame:
        counts = np.floor(rng.lognormal(mean=1.5, sigma=1.5, size=(rows, len(CRITEO_NUMERIC)))).astype(np.int64)
        places = [np.floor(np.exp(rng.random(rows) * np.log(distinct + 1))).astype(np.int64) - 1 for distinct in DISTINCT]
        logit = 0.4 * np.log1p(counts[:, 0]) + np.sin(places[0]) + np.cos(places[1]) - 2.0
        cells = {name: pl.Series(counts[:, place]) for place, name in enumerate(CRITEO_NUMERIC)}
        cells |= {name: self.words[place].gather(places[place]) for place, name in enumerate(CRITEO_CATEGORICAL)}
        columns = {"label": pl.Series(rng.random(rows) < 1 / (1 + np.exp(-logit))).cast(pl.Int64)}
        for name, column in cells.items():
            columns[name] = pl.select(pl.when(pl.lit(pl.Series(rng.random(rows) >= _MISSING))).then(pl.lit(column))).to_series()
        return pl.DataFrame(columns)


def write_criteo(path: Path, rows: int, *, seed: int) -> None:
    """Write a file in Kaggle's format."""
    with path.open("wb") as file:
        for piece in CriteoLike(seed).pieces(rows):
            piece.write_csv(file, include_header=False, separator="\t")


def write_tables(homes: Mapping[str, Path], rows: int, *, aligned: float = 1.0, seed: int) -> None:
    """Write both parties' CSV files. They have the same ids except for one in a hundred, each piece in another order.

    The feature party has the share ``aligned`` of the rows.
    """
    first = 0
    with (homes[LABEL] / "table.csv").open("wb") as own_file, (homes[FEATURE] / "table.csv").open("wb") as partner_file:
        for piece in CriteoLike(seed).pieces(rows):
            ids = pl.Series("id", np.char.mod("c%09d", np.arange(first, first + piece.height)))
            whole = piece.insert_column(0, ids)
            whole.select("id", "label", *OWN_NUMERIC, *OWN_CATEGORICAL).write_csv(own_file, include_header=first == 0)
            other = pl.when(pl.int_range(pl.len()) % UNCOMMON == 0).then("s" + pl.col("id")).otherwise(pl.col("id")).alias("id")
            mixed = whole.with_columns(other).sample(fraction=aligned, shuffle=True, seed=seed)
            mixed.drop("label", *OWN_NUMERIC, *OWN_CATEGORICAL).write_csv(partner_file, include_header=first == 0)
            first += piece.height


def _benches(names: list[str], folder: Path, rows: int, seed: int) -> dict[str, Usage]:
    """Run these benchmarks on one file, one after the other."""
    write_criteo(folder / "train.txt", rows, seed=seed)
    usages_by_name: dict[str, Usage] = {}
    for name in names:
        command = ["bench", name, "--data", "train.txt", "--seeds", "1", "--epochs", "1", *ONE_RUN[name], "--json"]
        usages_by_name |= usages({f"bench {name}": (command, folder)})
    (folder / "train.txt").unlink()
    return usages_by_name


def job_usages(folder: Path, rows: int, alignment: str, seed: int, *, aligned: float = 1.0, **changes: Any) -> dict[str, Usage]:
    """Run a job on generated tables, one process per party, with ``changes`` to its contract, and return each one's usage."""
    helper = (HELPER,) if LINKAGES[alignment].helper else ()
    addresses = {name: f"127.0.0.1:{free_port()}" for name in (LABEL, *helper)}
    dialled = {LABEL: helper, FEATURE: (LABEL, *helper), **dict.fromkeys(helper, ())}
    roles = {LABEL: "label", FEATURE: "feature", HELPER: "helper"}
    contract = {
        **_CONTRACT,
        "parties": {name: {"role": roles[name]} for name in dialled},
        "alignment": {"method": alignment, "keys": [{"name": "id"}]},
        "unaligned": {"method": "none"} if aligned == 1 else {"method": "warm-start", "epochs": 1},
        **changes,
    }
    columns = {"table": {"path": "table.csv"}, "keys": {"id": "id"}, "encoding": {"numeric": "log", "min_count": 10}}
    of_party = {LABEL: columns | {"label": "label"}, FEATURE: columns, HELPER: {}}
    parties = {
        name: {
            "threads": 1,
            "peers": {peer: {"address": addresses[peer]} for peer in peers},
            **({"listen": addresses[name]} if name in addresses else {}),
            **of_party[name],
        }
        for name, peers in dialled.items()
    }
    homes = write_job(folder, contract, parties)
    write_tables(homes, rows, aligned=aligned, seed=seed)
    command = ["run", "contract.yaml", "--party", "party.yaml", "--progress", "json", "--json"]
    return usages({f"run, {roles[name]}": (command, home) for name, home in homes.items()})


def usages(commands: Mapping[str, tuple[list[str], Path]]) -> dict[str, Usage]:
    """Run these commands at the same time, and return the usage of each."""
    running: dict[str, tuple[subprocess.Popen[bytes], _Follower]] = {}
    for name, (arguments, folder) in commands.items():
        process = subprocess.Popen(
            [sys.executable, "-m", "tallystick", *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        running[name] = process, _Follower(process)
        running[name][1].start()
    usages_by_name, failed = dict[str, Usage](), []
    for name, (process, follower) in running.items():
        follower.join()  # its last look at the process comes before the process is reaped
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        usages_by_name[name] = Usage(
            memory=usage.ru_maxrss * 1024.0, processor_s=usage.ru_utime + usage.ru_stime, phases=follower.phases
        )
        if process.returncode:
            words = " ".join(follower.lines).split()
            failed.append(f"{name} ended with {process.returncode}: {' '.join(words)[-500:] or 'it said nothing'}")
    if failed:
        raise TallystickError("; ".join(failed))
    return usages_by_name


class _Follower(threading.Thread):
    """Read what a process says, and look up its processor time whenever it names a phase."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(daemon=True)
        self.lines: deque[str] = deque(maxlen=50)
        self.phases: dict[str, float] = {}
        self._process = process

    def run(self) -> None:
        """Follow the process until it closes its standard error."""
        assert self._process.stderr is not None
        phase, since = "", 0.0
        with self._process.stderr as said:
            for line in said:
                words = line.decode(errors="replace")
                if words.startswith('{"phase": '):
                    now = processor_seconds(self._process.pid)
                    self.phases[phase] = self.phases.get(phase, 0.0) + now - since
                    phase, since = str(json.loads(words)["phase"]), now
                elif not words.startswith('{"what": '):
                    self.lines.append(words)
        self.phases[phase] = self.phases.get(phase, 0.0) + processor_seconds(self._process.pid) - since


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far, with that of its ended children, from Linux's ``/proc``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
