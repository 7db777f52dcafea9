"""Measure the memory of this process. Linux reports a process's peak and can reset it. On other systems every figure is 0."""

import resource

from tallystick.network.messages import MEBIBYTE
from tallystick_experiments.resident import RESET_PEAK, status_bytes

MEMORY_BYTES = 256 * MEBIBYTE  # limit of a case's memory, in addition to the memory before it
ADDRESSES_BYTES = 4 << 30  # the same limit for address space, because memory may be only reserved


def measured_anew() -> int:
    """Reset the peak of resident memory, and return the resident memory now, in bytes."""
    try:
        RESET_PEAK.write_text("5")
    except OSError:
        return 0
    return status_bytes("VmRSS")


def excess(before: int) -> str:
    """Say that a case took too much memory since ``before`` was measured. It is empty if it did not."""
    more = status_bytes("VmHWM") - before if before else 0
    return f"a message that costs over {MEMORY_BYTES // MEBIBYTE} MiB" if more > MEMORY_BYTES else ""


def limit_addresses() -> None:
    """Limit the address space, so that an enormous reservation fails in this process and not in the machine."""
    size = status_bytes("VmSize")
    if size:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESSES_BYTES, hard))


def resident_mib() -> int:
    """Return the resident memory now, in MiB."""
    return status_bytes("VmRSS") // MEBIBYTE
