"""Run SecretFlow's private set intersections, with both parties on this machine's loopback, to compare tallystick's with them.

Its ``spu`` is not a dependency: the user names a Python that has it, which runs ``secretflow_party.py``.
"""

import json
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError, TallystickError
from tallystick_experiments.speed import secretflow_party

PROTOCOLS = ("RR22", "KKRT", "ECDH")
TIMEOUT_S = 1800.0
_IMPORT_S = 120.0


def check_peer(python: str, protocols: Sequence[str]) -> None:
    """Raise ConfigError if this Python cannot import ``spu``, and for an unknown protocol."""
    if odd := sorted(set(protocols) - set(PROTOCOLS)):
        raise ConfigError(f"--peer-protocols: {', '.join(map(repr, odd))}: expected some of {','.join(PROTOCOLS)}")
    try:
        probe = subprocess.run([python, "-c", "import spu.psi"], capture_output=True, text=True, timeout=_IMPORT_S, check=False)
        wrong = probe.stderr.strip().splitlines()[-1:] if probe.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        wrong = [str(error)]
    if wrong:
        raise ConfigError(
            f"--peer spu: {python} cannot import spu ({wrong[0]}); make a Python that can (python3.11 -m venv FOLDER; "
            "FOLDER/bin/pip install spu) and name it: --peer-python FOLDER/bin/python"
        )


def measure_secretflow(python: str, protocols: Sequence[str], tables: Sequence[Path], *, common: int) -> dict[str, Any]:
    """Intersect two CSV files with each of the protocols.

    Return seconds of the slower party, processor seconds, and peak MiB of both.

    The time runs from reading the files to the written ones, once the parties are connected. Raises TallystickError if a party
    fails or finds another number of common ids.
    """
    with tempfile.TemporaryDirectory(prefix="tallystick-spu-") as folder:
        return {protocol: _run(python, protocol, tables, Path(folder), common=common) for protocol in protocols}


def _run(python: str, protocol: str, tables: Sequence[Path], folder: Path, *, common: int) -> dict[str, Any]:
    job = {"protocol": protocol, "ports": _free_ports(len(tables))}
    results = []
    with ExitStack() as running:
        parties = []
        for rank, table in enumerate(tables):
            figures = folder / f"{protocol}-{rank}.json"
            of_party = {
                "rank": rank,
                "table": str(table),
                "written": str(folder / f"written-{rank}.csv"),
                "figures": str(figures),
            }
            log = running.enter_context((folder / f"{protocol}-{rank}.log").open("w+"))
            party = subprocess.Popen(
                [python, "-I", secretflow_party.__file__], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, cwd=folder
            )
            running.callback(party.kill)
            assert party.stdin is not None
            party.stdin.write(json.dumps(job | of_party))
            party.stdin.close()
            parties.append((party, log, figures))
        for party, log, figures in parties:
            if party.wait(TIMEOUT_S) or not figures.exists():
                log.seek(0)
                raise TallystickError(f"spu's {protocol} failed: {log.read()[-500:]}")
            results.append(json.loads(figures.read_text(encoding="utf-8")))
    if any(each["common"] != common for each in results):
        raise TallystickError(f"spu's {protocol} found {results[0]['common']} common ids of {common}")
    return {
        "seconds": max(each["seconds"] for each in results),
        "cpu_seconds": sum(each["cpu_seconds"] for each in results),
        "peak_mib": [each["peak_mib"] for each in results],
    }


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
