"""Read the memory of this process from Linux's /proc/self/status."""

import resource
import sys
from pathlib import Path

RESET_PEAK = Path("/proc/self/clear_refs")
"""Writing 5 to it resets VmHWM, the peak of resident memory."""


def status_bytes(field: str) -> int:
    """Read resident memory now (VmRSS), its peak (VmHWM), or address space (VmSize), or 0 if the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def memory_mib(field: str) -> float:
    """Return the memory in MiB. If the system does not report it, return the process's peak for every field."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (status_bytes(field) or (peak if sys.platform == "darwin" else peak * 1024)) / 2**20
