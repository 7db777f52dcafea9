"""Format numbers, times and sizes for people."""

import math
from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from tallystick.results import Estimate

T = TypeVar("T")


NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


def number(value: float | None, *, signed: bool = False, digits: int = 4) -> str:
    """Write ``digits`` decimals below 10, fewer above, none from 1,000 on. The minus sign is a real one.

    Numbers below a millionth, or from 10^15 on, are written as powers of ten.
    """
    if value is None:
        return NOTHING
    large = abs(value)
    if 0 < large < 1e-6 or 1e15 <= large < math.inf:
        return f"{value:{'+' if signed else ''}.3g}".replace("-", MINUS)
    form = f".{digits}f" if large < 10 else ".2f" if large < 100 else ".1f" if large < 1000 else ".0f"
    return f"{value:{'+' if signed else ''},{form}}".replace("-", MINUS)


def quantity(value: float, unit: str) -> str:
    """Write three digits and the unit, never as a power of ten: 28.1 m, 1.24 km."""
    if unit == "m" and abs(value) >= 1000:
        value, unit = value / 1000, "km"
    if value == 0:
        return f"0 {unit}".strip()
    digits = min(max(0, 2 - math.floor(math.log10(abs(value)))), 9)
    return f"{value:,.{digits}f} {unit}".strip().replace("-", MINUS)


def interval(low: float | None, high: float | None, *, signed: bool = False, digits: int = 4) -> str:
    """Return ``low to high``, or nothing without an interval."""
    if low is None or high is None:
        return ""
    return f"{number(low, signed=signed, digits=digits)} to {number(high, signed=signed, digits=digits)}"


def spread_in_words(value: Estimate) -> str:
    """Say how much an estimate varies over seeds: its interval, or for two seeds the smaller and the larger value."""
    low, high = number(value.low, digits=3), number(value.high, digits=3)
    return f"min {low}, max {high}" if value.spread == "min to max" else f"{low} to {high}"


def duration(seconds: float | None) -> str:
    """Write seconds for people: 0.42 s, 12.3 s, 3 min 12 s, 2 h 5 min."""
    if seconds is None:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """Write bytes for people, in powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def moment(iso: str) -> str:
    """Format an ISO 8601 time for people. Return any other text unchanged."""
    try:
        time = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{time.day} {time:%B %Y, %H:%M %Z}".strip()


def percent(share: float | None) -> str:
    """Format a share for people: 0.2134 is 21.3 %."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def in_runs(values: Iterable[T], name: str) -> list[tuple[str, list[T]]]:
    """Group neighbours with equal (dotted) attributes, so that a table names each once."""
    return [(key, list(group)) for key, group in groupby(values, attrgetter(name))]
