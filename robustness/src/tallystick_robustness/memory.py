"""Memory of this process: Linux tells a process's peak, and lets it be measured anew; elsewhere everything is 0."""

import resource
from pathlib import Path

from tallystick.network.messages import MEBIBYTE

MEMORY_BYTES = 256 * MEBIBYTE  # that one case may take beyond what the process had before
ADDRESSES_BYTES = 4 << 30  # likewise of address space: what only reserves memory


def measured_anew() -> int:
    """Measure the peak of resident memory anew from here; gives what there is now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _status("VmRSS:")


def excess(before: int) -> str:
    """Say that a case took too much since ``before`` was measured; empty if it did not."""
    more = _status("VmHWM:") - before if before else 0
    return f"a message that costs over {MEMORY_BYTES // MEBIBYTE} MiB" if more > MEMORY_BYTES else ""


def limit_addresses() -> None:
    """Let a reservation beyond all measure fail here, rather than the machine."""
    size = _status("VmSize:")
    if size:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESSES_BYTES, hard))


def resident_mib() -> int:
    """Resident memory now."""
    return _status("VmRSS:") // MEBIBYTE


def _status(field: str) -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
