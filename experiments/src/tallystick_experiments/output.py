"""Write the files of an experiment to ``--out FOLDER``: result.json, and report.html that shows it."""

import json
import os
import platform
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tallystick import __version__
from tallystick.storage import write_bytes
from tallystick_experiments.grid import make_output_folder
from tallystick_experiments.page import Benchmark, pictures, render_benchmark


def write_folder(folder: Path, found: dict[str, Any], page: Benchmark) -> dict[str, str]:
    """Write both files, and an SVG per curve, and return the paths of the two.

    The page has this machine's facts and versions.
    """
    result = make_output_folder(folder) / "result.json"
    write_bytes(result, json.dumps(found, indent=1).encode())
    full_page = replace(page, started=page.started or iso_now(), facts={**page.facts, **machine_facts()})
    for name, picture in pictures(full_page).items():
        write_bytes(folder / name, picture.encode())
    return {"result": str(result), "report": str(render_benchmark(full_page, folder / "report.html"))}


def machine_facts() -> dict[str, str]:
    """Return versions, and the facts of the machine that figures depend on."""
    return {
        "tallystick": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }


def command() -> str:
    """Return the command line that is running, for the page."""
    return shlex.join(["tallystick", *sys.argv[1:]])


def iso_now() -> str:
    """Return this moment, in the page's format."""
    return datetime.now(UTC).isoformat(timespec="seconds")
