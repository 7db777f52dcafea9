"""Define a ledger as plain data, as ``Ledger.export`` returns it and JSON holds it, for a page and a terminal."""

from typing import Any, NotRequired, TypedDict


class ExportedEpsilon(TypedDict):
    """An epsilon and its delta. An epsilon of None bounds nothing."""

    epsilon: float | None
    delta: float


class ExportedEntry(TypedDict):
    """One release with a guarantee."""

    number: int
    time: str  # ISO 8601
    what: str
    event: dict[str, Any]  # its type is one of privacy/events.py


class ExportedUnbounded(TypedDict):
    """One release without a guarantee, which is in no sum."""

    number: int
    time: str
    dataset: str
    what: str


class ExportedDataset(TypedDict):
    """Releases of one data set: its cap, its totals, and every release with the total so far."""

    cap: ExportedEpsilon | None
    spent: ExportedEpsilon
    epsilon_of: str
    label_epsilon: float | None
    label_epsilon_at_delta: float | None
    record_epsilon: float | None
    running_label_epsilon: list[float | None]
    entries: list[ExportedEntry]


class ExportedLedger(TypedDict):
    """A party's whole ledger. ``page`` is the path of its page, if one was written."""

    party: str
    identity: str
    delta: float
    not_private: list[ExportedUnbounded]
    datasets: dict[str, ExportedDataset]
    page: NotRequired[str]
