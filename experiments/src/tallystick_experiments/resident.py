"""Memory of this process, as Linux tells it in /proc/self/status."""

import resource
import sys
from pathlib import Path

RESET_PEAK = Path("/proc/self/clear_refs")
"""Writing 5 measures VmHWM, the peak of resident memory, anew from there."""


def status_bytes(field: str) -> int:
    """Read resident memory now (VmRSS), at its highest (VmHWM), or address space (VmSize), or 0 where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def memory_mib(field: str) -> float:
    """Return the memory in MiB. If the system does not say, the process's peak, whatever was asked for."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (status_bytes(field) or (peak if sys.platform == "darwin" else peak * 1024)) / 2**20
