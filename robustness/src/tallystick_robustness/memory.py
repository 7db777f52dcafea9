"""Memory of this process: Linux tells a process's peak, and lets it be measured anew. Elsewhere everything is 0."""

import resource

from tallystick.network.messages import MEBIBYTE
from tallystick_experiments.resident import RESET_PEAK, status_bytes

MEMORY_BYTES = 256 * MEBIBYTE  # that one case may take beyond what the process had before
ADDRESSES_BYTES = 4 << 30  # likewise of address space: what only reserves memory


def measured_anew() -> int:
    """Measure the peak of resident memory anew from here, and return what there is now."""
    try:
        RESET_PEAK.write_text("5")
    except OSError:
        return 0
    return status_bytes("VmRSS")


def excess(before: int) -> str:
    """Say that a case took too much since ``before`` was measured. It is empty if it did not."""
    more = status_bytes("VmHWM") - before if before else 0
    return f"a message that costs over {MEMORY_BYTES // MEBIBYTE} MiB" if more > MEMORY_BYTES else ""


def limit_addresses() -> None:
    """Let a reservation beyond all measure fail here, rather than the machine."""
    size = status_bytes("VmSize")
    if size:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESSES_BYTES, hard))


def resident_mib() -> int:
    """Return the resident memory now."""
    return status_bytes("VmRSS") // MEBIBYTE
