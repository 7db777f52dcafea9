"""Run each party of a benchmark in a process of its own, joined by mutual TLS on loopback.

``python -m tallystick.benchmark.processes MODULE ROLE JSON`` calls MODULE.party(role, network, arguments) and prints
the JSON that it returns as its last line.
"""

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tallystick.errors import TallystickError
from tallystick.network.addresses import free_port
from tallystick.network.certificates import load_identity, write_test_certificates
from tallystick.network.grpc import Limits, Network

LABEL, FEATURE = "label", "feature"


def run_pair(module: str, arguments: dict[str, Any], *, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Start both parties and give what each returned; raises TallystickError with what one printed if it fails."""
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        write_test_certificates(Path(folder), [LABEL, FEATURE])
        full = {**arguments, "certificates": folder, "port": free_port()}
        command = [sys.executable, "-m", "tallystick.benchmark.processes", module]
        started = {
            role: subprocess.Popen([*command, role, json.dumps(full)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for role in (LABEL, FEATURE)
        }
        results = {}
        try:
            for role, process in started.items():
                out, err = process.communicate(timeout=timeout_s)
                if process.returncode:
                    raise TallystickError(f"the {role} process of {module} ended with {process.returncode}:\n{err[-3000:]}")
                results[role] = json.loads(out.splitlines()[-1])
        finally:
            for process in started.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    return results


def main(module: str, role: str, raw: str) -> None:
    """One party's process."""
    arguments = json.loads(raw)
    folder, address = Path(arguments["certificates"]), f"127.0.0.1:{arguments['port']}"
    identity = load_identity(role, ca=folder / "ca.pem", certificate=folder / f"{role}.pem", key=folder / f"{role}.key")
    network = Network(identity, limits=Limits(), listen=address if role == LABEL else None)
    peer = FEATURE if role == LABEL else LABEL
    channel = network.connect({peer: None if role == LABEL else address})[peer]
    result = importlib.import_module(module).party(role, channel, arguments)
    network.close()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
